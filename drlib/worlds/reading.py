"""What turns the bytes of a file or page into text, or into Markdown that keeps its structure.

Strangers' bytes can hang a parser or make it eat all memory. So every format but plain text is read
by a fresh interpreter (this file run as a script) with limits on processor time, memory and clock,
and without our environment. Archives are checked first and unpacked in memory only. A `Parser`
reads many files with one such child, because its start costs more than most files.

`OUTLINES` are readers for worlds: headings, links and tables stay. Left out: a wall against code
that takes over a parser in C; OCR, sound, doc, xls, ppt; headers and notes.
"""

import importlib.util
import io
import json
import os
import re
import resource
import signal
import stat
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import ModuleType
from xml.etree import ElementTree

TABLES = (".csv", ".tsv", ".json", ".jsonl", ".xlsx", ".pptx")  # read as Markdown, for worlds
MAX_FILE = 20_000_000  # bytes of a file
KEPT_CHARS = 100_000  # of its text, where the caller does not say
# What the archives of a file may hold together: members, unpacked bytes, archives in one another.
ALLOWED = {"members": 1_000, "bytes": 100_000_000, "archives": 2}
LARGE_MEMBER = 1_000_000  # unpacked bytes from which on the next limit holds
MAX_RATIO = 200  # of unpacked to packed bytes
PARSER_CPU_S = 20  # processor seconds of one file
PARSER_BYTES = 1 << 30  # of address space
# How a parser's process ended -> what that says; SIGALRM is its clock.
EXIT_FAULTS = {
    -signal.SIGALRM: "timeout",
    -signal.SIGXCPU: "too_large",
    -signal.SIGKILL: "too_large",
}


class Unreadable(Exception):
    """(kind, detail): why a file gives no text, in the kinds of `drlib.tools.backends`."""


def require_libraries() -> None:
    """ImportError that names the remedy when a parsing library is missing."""
    wanted = ("trafilatura", "bs4", "lxml", "pypdf", "openpyxl", "charset_normalizer")
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(f'{", ".join(missing)} missing: pip install "drlib[docs]"')


class Parser:
    """One child that reads file after file; `close` it.

    A file that fails in a child that has read others is tried once more in a new child: it may be
    their doing.
    """

    def __init__(self) -> None:
        self._child: subprocess.Popen | None = None

    def parse(
        self,
        suffix: str,
        data: bytes,
        timeout_s: float,
        charset: str = "",
        *,
        outline: bool = False,
        chars: int = 0,
    ) -> dict[str, str]:
        """{"title", "text"} of a file of type `suffix` (".pdf"); or `Unreadable`.

        `charset` is the encoding that a server declared for a text or HTML page, if it did;
        `outline` asks for Markdown. Of a text above `chars` characters (0: `KEPT_CHARS`) head and
        tail come back.
        """
        readers = OUTLINES if outline else READERS
        if suffix not in readers:
            known = f"files of type {suffix!r:.40} are not read; known: {' '.join(readers)}"
            raise Unreadable("refused", known)
        order = [suffix, charset, chars, outline]
        if readers[suffix] is _text:
            reply = reply_to(order, data)
        else:
            reply = self._ask([*order, timeout_s, len(data)], data)
        if "fault" in reply:
            raise Unreadable(*reply["fault"])
        return reply

    def _ask(self, order: list, data: bytes) -> dict:
        """The child's reply; `Unreadable` where it ended."""
        has_read_others = self._child is not None
        child = self._child = self._child or self._started()
        with suppress(BrokenPipeError, ValueError):  # ValueError: no line of JSON, or half of one
            child.stdin.write(json.dumps(order).encode() + b"\n" + data)
            child.stdin.flush()
            return json.loads(child.stdout.readline())
        self.close()
        if has_read_others:
            return self._ask(order, data)
        kind = EXIT_FAULTS.get(child.returncode, "malformed")
        raise Unreadable(kind, f"the parser of {order[0]} ended with {child.returncode}")

    def _started(self) -> subprocess.Popen:
        """This file as a script, in an environment that tells it nothing of ours."""
        kept = {
            name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ
        }
        return subprocess.Popen(
            [sys.executable, "-I", "-Xutf8", os.path.abspath(__file__)],
            env=kept,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def close(self) -> None:
        """End the child, if there is one: it ends with its input."""
        if self._child is not None:
            self._child.communicate()
            self._child = None


def shorten(text: str, chars: int = 0) -> str:
    """`text`, or head and tail of `chars` (0: `KEPT_CHARS`) characters and how much is left out."""
    chars = chars or KEPT_CHARS
    if len(text) <= chars:
        return text
    half = chars // 2
    return f"{text[:half]}\n[... {len(text) - half * 2} characters left out ...]\n{text[-half:]}"


def clean(text: str) -> str:
    """`text` without lone surrogates, which break whoever writes it out; JSON and PDF hold them."""
    return text.encode("utf-8", "replace").decode()


def reply_to(order: list, data: bytes, allowed: dict | None = None) -> dict:
    """{"title", "text"}, or {"fault": (kind, detail)} whatever happens.

    `order` is what `Parser.parse` was asked for; `allowed` what is left of `ALLOWED`.
    """
    suffix, charset, chars, outline = order
    try:
        reader = OUTLINES[suffix] if outline else READERS[suffix]
        title, text = reader(data, charset, dict(ALLOWED) if allowed is None else allowed)
    except Unreadable as fault:
        return {"fault": fault.args}
    except (MemoryError, RecursionError):
        return {"fault": ("too_large", f"the {suffix} needs too much memory")}
    except Exception as broken:  # noqa: BLE001 - on broken bytes parsers raise anything
        why = clean(f"{type(broken).__name__}: {broken!s:.200}")
        return {"fault": ("malformed", f"not a readable {suffix} ({why})")}
    text = clean(shorten(text.strip(), chars))
    return {"title": clean(" ".join(title.split())[:300]), "text": text}


def _text(data: bytes, charset: str, _allowed: dict) -> tuple[str, str]:
    return "", _decoded(data, charset)


def _decoded(data: bytes, charset: str = "") -> str:
    from drlib.worlds.charsets import decode

    try:
        return decode(data, charset)
    except ValueError as error:
        raise Unreadable("malformed", str(error)) from None


def _soup(data: bytes, charset: str, is_ours: bool):
    """The page's title, its text as Unicode, and its tree without what no reader sees. A page of
    the web is shown as well as can be; a file that is `is_ours` and no encoding fits is refused."""
    import bs4

    from drlib.worlds.charsets import codec

    declared = codec(charset) or codec(
        bs4.dammit.EncodingDetector.find_declared_encoding(data, is_html=True) or ""
    )
    try:
        html = _decoded(data, declared)
    except Unreadable:
        if is_ours:
            raise
        html = bs4.UnicodeDammit(data, is_html=True).unicode_markup or data.decode("latin-1")
    soup = bs4.BeautifulSoup(html, "lxml")
    title = soup.title.get_text() if soup.title else ""
    for hidden in soup(["script", "style", "noscript", "template", "title"]):
        hidden.decompose()
    return title, html, soup


def _html(data: bytes, charset: str, _allowed: dict) -> tuple[str, str]:
    """The article as trafilatura finds it; where it finds none, all the visible text."""
    import trafilatura

    title, html, soup = _soup(data, charset, is_ours=False)
    return title, (html and trafilatura.extract(html)) or soup.get_text("\n", strip=True)


def _outline(data: bytes, charset: str, _allowed: dict) -> tuple[str, str]:
    from drlib.worlds.outlines import outline

    title, _, soup = _soup(data, charset, is_ours=True)
    return title, outline(soup)


def _notebook(data: bytes, charset: str, _allowed: dict) -> tuple[str, str]:
    """The cells of a notebook: Markdown as it is, code fenced, without outputs."""
    from drlib.worlds.outlines import fenced

    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(data)["cells"]]
    return "", "\n\n".join(fenced(text) if kind == "code" else text for kind, text in cells)


def _pdf(data: bytes, _charset: str, _allowed: dict) -> tuple[str, str]:
    import pypdf

    reader = pypdf.PdfReader(io.BytesIO(data))
    title = (reader.metadata and reader.metadata.title) or ""
    return title, "\n\n".join(page.extract_text() for page in reader.pages)


def _pdf_with_text(data: bytes, charset: str, allowed: dict) -> tuple[str, str]:
    title, text = _pdf(data, charset, allowed)
    if not text.strip():
        raise Unreadable("refused", "no text in it, its pages are pictures: run OCR over it first")
    return title, text


def _archive(data: bytes, allowed: dict, *, office: bool = False) -> zipfile.ZipFile:
    """An opened archive of few, small members inside it; of `office`, with XML free of entities."""
    archive = zipfile.ZipFile(io.BytesIO(data))
    for info in archive.infolist():
        name = info.filename.replace("\\", "/")
        allowed["members"] -= 1
        allowed["bytes"] -= info.file_size
        is_link = stat.S_ISLNK(info.external_attr >> 16)
        if is_link or re.match(r"/|[A-Za-z]:", name) or ".." in name.split("/"):
            raise Unreadable("refused", f"member {name!r:.200} points outside the archive")
        is_large = info.file_size > LARGE_MEMBER
        is_bomb = is_large and info.file_size > MAX_RATIO * info.compress_size
        if is_bomb or min(allowed.values()) < 0:
            raise Unreadable("too_large", f"at member {name!r:.200} the archive is above {ALLOWED}")
        # no document type, no entities; without zero bytes UTF-16 reads like ASCII
        if office and b"<!DOCTYPE" in archive.read(info).replace(b"\0", b""):
            raise Unreadable("refused", f"{name!r:.200} declares a document type (entities)")
    return archive


def _zip(data: bytes, _charset: str, allowed: dict) -> tuple[str, str]:
    inner = {**allowed, "archives": allowed["archives"] - 1}
    parts = []
    with _archive(data, inner) as archive:
        for info in archive.infolist():
            if info.is_dir():
                continue
            suffix = os.path.splitext(info.filename)[1].lower()
            reply = {"text": f"[type {suffix!r} is not read]"}
            if suffix in READERS:
                reply = reply_to([suffix, "", 0, False], archive.read(info), inner)
            kind, detail = reply.get("fault", ("", ""))
            if kind not in ("", "malformed"):
                raise Unreadable(kind, detail)
            text = reply.get("text", f"[{detail}]")
            parts.append(f"=== {info.filename} ===\n{text}")
    allowed.update(inner, archives=allowed["archives"])
    return "", "\n\n".join(parts)


def _docx(data: bytes, _charset: str, allowed: dict) -> tuple[str, str]:
    """A paragraph a line, a row of a table a line with tabs between its cells."""
    with _archive(data, allowed, office=True) as archive:
        root = ElementTree.fromstring(archive.read("word/document.xml"))
    for unwanted in ("Fallback", "tabs"):  # a drawing's text once more; positions of tab stops
        for node in root.iterfind(f".//{{*}}{unwanted}"):
            node.clear()
    for cell in root.iterfind(".//{*}tc"):
        for i, paragraph in enumerate(cell.findall(".//{*}p")):
            paragraph.tag = "another in its cell" if i else "in its cell"
    marks = {
        "p": "\n",
        "br": "\n",
        "cr": "\n",
        "tr": "\n",
        "tc": "\t",
        "tab": "\t",
        "another in its cell": " ",
    }
    parts = []
    for node in root.iter():
        tag = node.tag.rpartition("}")[2]
        parts.append((node.text or "") if tag == "t" else marks.get(tag, ""))
    return "", "".join(parts).replace("\n\t", "\n")


def _xlsx(data: bytes, _charset: str, allowed: dict) -> tuple[str, str]:
    """The values, a row a line with tabs between the cells, empty rows left out."""
    lines = []
    for name, rows in _sheets(data, allowed):
        lines.append(f"=== {name} ===")
        lines += ["\t".join(map(_shown, row)).rstrip("\t") for row in rows]
    return "", "\n".join(filter(None, lines))


def _sheets(data: bytes, allowed: dict) -> Iterator[tuple[str, Iterator[tuple]]]:
    """(name, rows) of each sheet of a workbook."""
    sys.modules.setdefault("numpy", None)  # openpyxl would load it: slow, and hungry for memory
    import openpyxl

    _archive(data, allowed, office=True).close()
    book = openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=True)
    for sheet in book.worksheets:
        sheet.reset_dimensions()  # the file's own word for its size may be a lie
        yield sheet.title, sheet.iter_rows(values_only=True)


def _shown(value: object) -> str:
    """A cell's value as text."""
    return "" if value is None else str(value)


def _as_markdown(kind: str) -> Callable[[bytes, str, dict], tuple[str, str]]:
    """A reader of a kind of tables or slides that `drlib.worlds.sheets` writes as Markdown."""

    def read(data: bytes, charset: str, allowed: dict) -> tuple[str, str]:
        from drlib.worlds import sheets

        if kind == ".xlsx":
            return "", sheets.from_sheets(_sheets(data, allowed))
        if kind == ".pptx":
            with _archive(data, allowed, office=True) as archive:
                return "", sheets.from_slides(archive)
        text = _decoded(data, charset)
        if kind in (".json", ".jsonl"):
            return "", sheets.from_json(text, is_lines=kind == ".jsonl")
        return "", sheets.from_delimited(text, "\t" if kind == ".tsv" else "")

    return read


READERS = {
    **dict.fromkeys((".txt", ".md", ".csv", ".tsv", ".json", ".jsonl"), _text),
    ".html": _html,
    ".htm": _html,
    ".pdf": _pdf,
    ".docx": _docx,
    ".xlsx": _xlsx,
    ".zip": _zip,
}
OUTLINES = {
    **dict.fromkeys((".txt", ".md", ".mdx", ".rst"), _text),
    ".html": _outline,
    ".htm": _outline,
    ".ipynb": _notebook,
    ".pdf": _pdf_with_text,
    ".docx": _docx,
    **{kind: _as_markdown(kind) for kind in TABLES},
}


def _serve() -> None:
    """Be the child of a `Parser`: a line of JSON for each order, within its limits."""
    out, sys.stdout = sys.stdout, sys.stderr  # whatever a library prints is no reply
    with suppress(ValueError):  # a lower limit holds, or macOS, which has none on memory
        resource.setrlimit(resource.RLIMIT_AS, (PARSER_BYTES, PARSER_BYTES))
    for line in sys.stdin.buffer:
        *order, timeout_s, size = json.loads(line)
        data = sys.stdin.buffer.read(size)
        signal.setitimer(signal.ITIMER_REAL, timeout_s)
        with suppress(ValueError):
            _, hard = resource.getrlimit(resource.RLIMIT_CPU)
            limit = int(time.process_time()) + PARSER_CPU_S
            resource.setrlimit(resource.RLIMIT_CPU, (limit, hard))
        print(json.dumps(reply_to(order, data)), file=out, flush=True)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _know_neighbours() -> None:
    """Let a child import the modules beside this file, and nothing else of the package: its own
    start would cost more than most files."""
    here = os.path.dirname(os.path.abspath(__file__))
    for name, path in (("drlib", os.path.dirname(here)), ("drlib.worlds", here)):
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__path__ = [path]


if __name__ == "__main__":
    _know_neighbours()
    _serve()
