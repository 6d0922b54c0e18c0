"""Crawl a web site into a folder of Markdown, for `load_world("folder:OUT")`.

    drlib crawl https://docs.example.org/guide/ site --pages 200

Pages are fetched breadth first within the folder of the start page on its host. The crawl obeys
robots.txt and "Retry-After", sends one request at a time, and waits `delay_s` or the site's
Crawl-delay between them. Pages are fetched by the guarded reader (`drlib.tools.fetch`), so no
redirect leads into the local network, and are cached in `OUT/.crawl`: an interrupted or extended
crawl fetches nothing twice. At the end the pages are written as files with links between them.
Files of unchanged pages are not touched, so the world's index reads only new ones.

Not implemented: scripts, forms, sitemaps, `<base>`, pages that changed since they were fetched
(delete `.crawl` to fetch them again).
"""

import hashlib
import posixpath
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit
from urllib.robotparser import RobotFileParser

from drlib.files import append_json_line, resume_json_lines, write_atomic
from drlib.tools.backends import ToolFault
from drlib.tools.fetch import Fetched, PageReader, web_address
from drlib.validation import require
from drlib.worlds.reading import Parser, Unreadable

AGENT = "drlib"  # user agent in robots.txt
ATTEMPTS = 3  # attempts per page after transient faults
LONGEST_WAIT_S = 60.0
MAX_FAILED = 5  # consecutive failed pages that stop the crawl
MAX_CHARS = 1_000_000  # characters of a page
CACHE_FOLDER = ".crawl"
LINK = re.compile(r"(?<!\\)\]\(([^()\s<>]{1,2000})\)")
FENCE = re.compile(r"`{3,}$")


class Crawl:
    """A crawl from `start` into `folder`.

    Args:
        start: address of the first page.
        folder: output folder.
        pages: largest number of pages in the folder, including those of earlier runs.
        delay_s: least time between two requests; the site may ask for more.
        timeout_s: seconds for one page.
        reader: fetches the pages.

    Raises:
        ValueError: `start` is no web address, `folder` contains another crawl or other files, or a
            setting is out of range.
    """

    def __init__(
        self,
        start: str,
        folder: str | Path,
        *,
        pages: int = 200,
        delay_s: float = 1.0,
        timeout_s: float = 30.0,
        reader: PageReader | None = None,
    ):
        require(
            pages >= 1 and delay_s >= 0, f"{pages=} must be at least 1 and {delay_s=} at least 0"
        )
        try:
            self.start = urldefrag(str(web_address(start))).url
        except ToolFault as fault:
            raise ValueError(f"{fault}: pass the address of a page") from None
        self.folder, self.pages = Path(folder), pages
        self.delay_s, self.timeout_s = delay_s, timeout_s
        self._reader = reader or PageReader()
        self._within = self.start[: self.start.rindex("/") + 1]
        if urlsplit(self.start).path in ("", "/"):
            self._within = self.start.rstrip("/") + "/"
        self._parser = Parser()
        self._robots = RobotFileParser()
        self._rows: dict[str, dict] = {}  # requested address -> row
        self._next = 0.0  # earliest time of the next request
        self._load()

    def run(self, report: Callable[[str], None] = lambda line: None) -> Counter[str]:
        """Fetch the pages and write the files.

        Args:
            report: called with one line for each address.

        Returns:
            Number of addresses by outcome.

        Raises:
            ConnectionError: robots.txt cannot be read, too many pages failed in a row, or no page
                was kept; fetched pages are kept and their files written.
        """
        ends = Counter()
        try:
            self._read_robots()
            with closing(self._parser):
                for url, row in self._fetch_all():
                    ends[row["fault"].partition(":")[0] or "fetched"] += 1
                    report(f"{row['fault'] or 'fetched'}  {url}")
        finally:
            ends["files written"] = self._write_files()
        first = self._rows[self.start]
        if not any(row["kept"] for row in self._rows.values()):
            raise ConnectionError(f"no page of {self.start} was kept: {first['fault']}")
        return ends

    def _load(self) -> None:
        """Load the rows of earlier runs."""
        path = self.folder / CACHE_FOLDER / "pages.jsonl"
        if not path.exists():
            others = [*self.folder.glob("*")]
            require(not others, f"{self.folder} contains files of no crawl: use another folder")
            path.parent.mkdir(parents=True, exist_ok=True)
            append_json_line(path, {"start": self.start})
        for number, row in resume_json_lines(path):
            if number == 1:
                began = row.get("start")
                other = f"{self.folder} contains a crawl of {began}: use another folder"
                require(began == self.start, other)
            elif not row["may_pass"] and (row["kept"] or row["url"] != self.start):
                self._rows[row["url"]] = row

    def _read_robots(self) -> None:
        address = urljoin(self.start, "/robots.txt")
        try:
            lines = self._fetch_with_retries(address, lambda url: True).body.decode(
                "utf-8", "replace"
            )
        except ToolFault as fault:
            if fault.transient:  # RFC 9309, 2.3.1.4: then nothing may be requested
                raise ConnectionError(
                    f"{address} cannot be read ({fault}): try again later"
                ) from None
            lines = ""  # no robots.txt
        self._robots.parse(lines.splitlines())
        self.delay_s = max(self.delay_s, float(self._robots.crawl_delay(AGENT) or 0))
        self._next = time.monotonic() + self.delay_s

    def _is_permitted(self, url: str) -> bool:
        within = url.startswith(self._within) or f"{url}/" == self._within
        return within and self._robots.can_fetch(AGENT, url)

    def _fetch_all(self) -> Iterator[tuple[str, dict]]:
        """Yield each new address with its row, and follow the links of known ones."""
        waiting, seen, failed = deque([self.start]), {self.start}, 0
        while waiting and sum(bool(row["kept"]) for row in self._rows.values()) < self.pages:
            url = waiting.popleft()
            row = self._rows.get(url)
            if row is None:
                row = self._crawl_page(url)
                self._rows[url] = row
                append_json_line(self.folder / CACHE_FOLDER / "pages.jsonl", row)
                failed = failed + 1 if row["may_pass"] else 0
                yield url, row
                if failed == MAX_FAILED:
                    raise ConnectionError(f"{failed} pages in a row failed ({row['fault']})")
            new = [link for link in row["links"] if link not in seen and self._is_permitted(link)]
            seen.update(new)
            waiting.extend(new)

    def _crawl_page(self, url: str) -> dict:
        """Fetch `url`, cache its text and return its row."""
        row: dict[str, Any] = {
            "url": url,
            "to": url,
            "kept": "",
            "title": "",
            "links": [],
            "fault": "",
        }
        row["may_pass"] = False
        try:
            page = self._fetch_with_retries(url, self._is_permitted)
            row["to"] = urldefrag(page.url).url
            if any(other["kept"] and other["to"] == row["to"] for other in self._rows.values()):
                return row  # a redirect to a known page
            title, name, data = self._page_file(page)
            write_atomic(self.folder / CACHE_FOLDER / name, data)
        except (ToolFault, Unreadable) as fault:
            row["fault"] = str(fault) if isinstance(fault, ToolFault) else ": ".join(fault.args)
            row["may_pass"] = isinstance(fault, ToolFault) and fault.transient
            return row
        found = _links(data.decode()) if name.endswith(".md") else []
        links = dict.fromkeys(_resolve_link(row["to"], link) for link in found)
        return row | {"kept": name, "title": title, "links": [link for link in links if link]}

    def _fetch_with_retries(self, url: str, permits: Callable[[str], bool]) -> Fetched:
        """Fetch a page, with the delay between requests and retries after transient faults."""
        for attempt in range(1, ATTEMPTS + 1):
            time.sleep(max(0.0, self._next - time.monotonic()))
            wait_s = self.delay_s
            try:
                return self._reader.fetch(url, self.timeout_s, permits)
            except ToolFault as fault:
                wait_s = max(wait_s * 2**attempt, fault.retry_after_s or 0.0)
                if not fault.transient or attempt == ATTEMPTS:
                    wait_s = self.delay_s
                    raise
            finally:
                self._next = time.monotonic() + min(wait_s, LONGEST_WAIT_S)
        raise AssertionError("the last attempt returns or raises")

    def _page_file(self, page: Fetched) -> tuple[str, str, bytes]:
        """Return (title, cache file name, contents).

        HTML becomes Markdown. Other types are kept, because the folder's world reads them itself.
        """
        name = hashlib.sha256(page.url.encode()).hexdigest()[:16]
        if page.suffix != ".html":
            return "", name + page.suffix, page.body
        found = self._parser.parse(
            ".html", page.body, self.timeout_s, page.charset, outline=True, chars=MAX_CHARS
        )
        return found["title"], f"{name}.md", found["text"].encode()

    def _write_files(self) -> int:
        """Write the pages with relative links; return the number of written files."""
        kept = [row for row in self._rows.values() if row["kept"]]
        files = {row["to"]: _file_name(row["to"], row["kept"]) for row in kept}
        files |= {row["url"]: files[row["to"]] for row in self._rows.values() if row["to"] in files}
        written = 0
        for row in kept:
            data = (self.folder / CACHE_FOLDER / row["kept"]).read_bytes()
            if row["kept"].endswith(".md"):
                data = _rewrite_links(data.decode(), row, files).encode()
            path = self.folder / files[row["to"]]
            if not path.exists() or path.read_bytes() != data:
                write_atomic(path, data)
                written += 1
        return written


def _resolve_link(url: str, link: str) -> str:
    """Return the absolute address of a link without its anchor; "" if it is no web address."""
    try:
        return urldefrag(str(web_address(urljoin(url, link)))).url
    except (ToolFault, ValueError):
        return ""


def _links(text: str) -> list[str]:
    return [match[1] for line in _outside_fences(text) for match in LINK.finditer(line)]


def _outside_fences(text: str) -> Iterator[str]:
    """Yield the lines of Markdown, with "" for each line of a code fence."""
    mark = ""
    for line in text.split("\n"):
        ends = FENCE.match(line)
        if ends and (not mark or line == mark):
            mark = "" if mark else line
            yield ""
        else:
            yield "" if mark else line


def _file_name(url: str, kept: str) -> str:
    """Return the sanitised path of a page's file, with a digest of the query string."""
    parts = urlsplit(url)
    suffix = posixpath.splitext(kept)[1]
    path = "/".join(
        re.sub(r"[^\w.\- ]", "_", part).strip(". ")[:100]
        for part in unquote(parts.path).split("/")
        if part.strip(". ")
    )
    if parts.path.endswith("/") or not path:
        path = posixpath.join(path, "index")
    stem, last = posixpath.splitext(path)
    path = stem if last.lower() in (".html", ".htm", ".php", suffix) else path
    if parts.query:
        path += f"-{hashlib.sha256(parts.query.encode()).hexdigest()[:8]}"
    return path + suffix


def _rewrite_links(text: str, row: dict, files: dict[str, str]) -> str:
    """Point the links of a page at files where possible, and add its title as heading."""
    here = posixpath.dirname(files[row["to"]])

    def lead(match: re.Match) -> str:
        url, anchor = urldefrag(urljoin(row["to"], match[1]))
        to = files.get(_resolve_link(row["to"], url))
        shown = posixpath.relpath(to, here or ".") if to else url
        return f"]({shown}#{anchor})" if anchor else f"]({shown})"

    lines = [
        LINK.sub(lead, outside) if outside else line
        for line, outside in zip(text.split("\n"), _outside_fences(text), strict=True)
    ]
    if row["title"] and not any(line.startswith("# ") for line in lines):
        lines = [f"# {row['title']}", "", *lines]
    return "\n".join([*lines, ""])
