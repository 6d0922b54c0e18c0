"""Extract text, or Markdown with structure, from the bytes of a file or page.

Untrusted bytes can hang a parser or exhaust memory. Every format except plain text is therefore
parsed in a new interpreter (this file run as a script) with limits on CPU time, memory and wall
time, and without our environment. Archives are checked first and unpacked in memory only. A
`Parser` reads many files with one subprocess, because its start costs more than most files.

`OUTLINES` are readers for worlds, which keep headings, links and tables. Not implemented: isolation
against code execution in a C parser; OCR, audio, doc, xls, ppt; page headers and notes.
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
import unicodedata
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import ModuleType
from xml.etree import ElementTree

TABLES = (".csv", ".tsv", ".json", ".jsonl", ".xlsx", ".pptx")  # converted to Markdown for worlds
MAX_FILE = 20_000_000  # bytes
KEPT_CHARS = 100_000  # default length of a text
# Budget of all archives in a file: members, unpacked bytes, nesting depth.
ALLOWED = {"members": 1_000, "bytes": 100_000_000, "archives": 2}
LARGE_MEMBER = 1_000_000  # unpacked bytes above which MAX_RATIO applies
MAX_RATIO = 200  # unpacked to packed bytes
PARSER_CPU_S = 20  # CPU seconds per file
PARSER_BYTES = 1 << 30  # address space
# "data:image/png;base64,iVBO...", wrapped or not; in JSON with escapes; with a picture as markup.
DATA_URL = re.compile(
    r"""(?isx)\b(data:(?:[\w.+-]+\\?/[\w.+-]+)?)
    (?:;[\w.+-]+(?:=(?:"[^"]*"|[^\s;,"'<>()]*))?)*,
    ((?<=base64,)\s*[\w+/=%\\-]+
        (?:(?:\s++[a-z\d+/]{16,}+={0,2})+(?:\s+[a-z\d+/]{1,15}={0,2})?(?=\s*["')>])
        |(?:\s++[a-z\d+/]{60,}+={0,2})*(?:\s+[a-z\d+/]+={0,2}(?=\s*["')>]))?)
    |(?:<|%3C)svg\b(?:(?!\bdata:).)*?(?:<|%3C)(?:\\?/|%2F)svg(?:>|%3E)
    |(?:[^\s"'`<>()|]|\([^\s"'`<>()|]*\))+)"""
)
SHORT_DATA = 80  # characters of a data: URL that are kept, as in a text about such URLs
XML_START = b"\xef\xbb\xbf\xfe\xff \t\r\n"  # byte order marks and white space
# Exit status of a parser process -> kind of fault; SIGALRM is its timeout.
EXIT_FAULTS = {
    -signal.SIGALRM: "timeout",
    -signal.SIGXCPU: "too_large",
    -signal.SIGKILL: "too_large",
}


class Unreadable(Exception):
    """(kind, detail): reason why a file gives no text; kinds as in `drlib.tools.backends`."""


def require_libraries() -> None:
    """Raise ImportError with the remedy if a parsing library is missing."""
    wanted = ("trafilatura", "bs4", "lxml", "pypdf", "openpyxl")
    wanted += ("charset_normalizer", "webencodings")
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(f'{", ".join(missing)} missing: pip install "drlib[docs]"')


class Parser:
    """A subprocess that reads one file after another; `close` it.

    A file that fails in a subprocess that has read other files is retried in a new one, because the
    earlier files may be the cause.
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
        """Parse a file of type `suffix`, such as ".pdf".

        Args:
            suffix: type of the file.
            data: its bytes.
            timeout_s: seconds for this file.
            charset: encoding declared by a server for text or HTML, or "".
            outline: return Markdown with structure.
            chars: longest text, of which head and tail are kept; 0: `KEPT_CHARS`.

        Returns:
            {"title", "text"}

        Raises:
            Unreadable: no text can be extracted.
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
        """Return the subprocess's reply; raise `Unreadable` if it ended."""
        has_read_others = self._child is not None
        child = self._child = self._child or self._start_child()
        with suppress(BrokenPipeError, ValueError):  # ValueError: no JSON, or an incomplete line
            child.stdin.write(json.dumps(order).encode() + b"\n" + data)
            child.stdin.flush()
            return json.loads(child.stdout.readline())
        self.close()
        if has_read_others:
            return self._ask(order, data)
        kind = EXIT_FAULTS.get(child.returncode, "malformed")
        raise Unreadable(kind, f"the parser of {order[0]} ended with {child.returncode}")

    def _start_child(self) -> subprocess.Popen:
        """Run this file as a script with an empty environment."""
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
        """End the subprocess, if there is one, by closing its input."""
        if self._child is not None:
            self._child.communicate()
            self._child = None


def shorten(text: str, chars: int = 0) -> str:
    """Keep head and tail of `chars` (0: `KEPT_CHARS`) characters and note the omission."""
    chars = chars or KEPT_CHARS
    if len(text) <= chars:
        return text
    half = chars // 2
    return f"{text[:half]}\n[... {len(text) - half * 2} characters left out ...]\n{text[-half:]}"


def drop_data(text: str) -> str:
    """Reduce data: URLs, such as embedded pictures, to "data:" and their media type."""
    if "ata:" not in text and "ATA:" not in text:  # the search below is slower
        return text
    return DATA_URL.sub(lambda m: m[0] if len(m[2]) <= SHORT_DATA else m[1], text)


def clean(text: str) -> str:
    """Return the composed Unicode form (NFC), without lone surrogates of JSON and PDF."""
    return unicodedata.normalize("NFC", text.encode("utf-8", "replace").decode())


def reply_to(order: list, data: bytes, allowed: dict | None = None) -> dict:
    """Parse a file and return {"title", "text"}, or {"fault": (kind, detail)} on any error.

    Args:
        order: suffix, charset, chars and outline of `Parser.parse`.
        data: bytes of the file.
        allowed: remaining budget of `ALLOWED`.
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
    text = clean(shorten(drop_data(text.strip()), chars))
    return {"title": clean(" ".join(title.split())[:300]), "text": text}


def _text(data: bytes, charset: str, _allowed: dict) -> tuple[str, str]:
    return "", _decode(data, charset)


def _decode(data: bytes, charset: str = "") -> str:
    from drlib.worlds.charsets import decode

    try:
        return decode(data, charset)
    except ValueError as error:
        raise Unreadable("malformed", str(error)) from None


def _soup(data: bytes, charset: str, is_ours: bool):
    """Return title, Unicode text and visible tree of an HTML page.

    A page of the web is decoded as well as possible. A user's own file (`is_ours`) without a
    fitting encoding is refused.
    """
    import bs4

    from drlib.worlds.charsets import codec
    from drlib.worlds.outlines import named

    declared = codec(charset)
    if not declared:
        label = bs4.dammit.EncodingDetector.find_declared_encoding(data, is_html=True) or ""
        declared = codec(label)
        if declared.startswith("utf-16"):  # a tag readable as ASCII cannot be in UTF-16
            declared = "utf-8"
    try:
        html = _decode(data, declared)
    except Unreadable:
        if is_ours:
            raise
        html = bs4.UnicodeDammit(data, is_html=True).unicode_markup or data.decode("latin-1")
    soup = bs4.BeautifulSoup(html, "lxml")
    title = soup.title.get_text() if soup.title else ""
    for hidden in named(soup, {"script", "style", "noscript", "template", "title"}):
        hidden.decompose()
    return title, html, soup


def _html(data: bytes, charset: str, _allowed: dict) -> tuple[str, str]:
    """Extract the article with trafilatura, or all visible text if there is none."""
    import trafilatura

    from drlib.worlds.outlines import separate_blocks

    title, html, soup = _soup(data, charset, is_ours=False)
    tree = trafilatura.load_html(html) if html else None
    if tree is not None:
        separate_blocks(tree)
    article = trafilatura.extract(tree) if tree is not None else None
    return title, article or soup.get_text("\n", strip=True)


def _outline(data: bytes, charset: str, _allowed: dict) -> tuple[str, str]:
    from drlib.worlds.outlines import outline

    title, _, soup = _soup(data, charset, is_ours=True)
    return title, outline(soup)


def _notebook(data: bytes, charset: str, _allowed: dict) -> tuple[str, str]:
    """Return the cells of a notebook: Markdown as it is, code fenced, no outputs."""
    from drlib.worlds.outlines import fenced

    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(data)["cells"]]
    return "", "\n\n".join(fenced(text) if kind == "code" else text for kind, text in cells)


def _pdf(data: bytes, _charset: str, _allowed: dict) -> tuple[str, str]:
    import pypdf
    from pypdf.errors import DependencyError, FileNotDecryptedError

    from drlib.worlds.hyphens import join_hyphenated

    try:
        reader = pypdf.PdfReader(io.BytesIO(data))  # tries an empty password
        title = (reader.metadata and reader.metadata.title) or ""
        text = "\n\n".join(page.extract_text() for page in reader.pages)
    except FileNotDecryptedError:
        why = "it cannot be decrypted without its password: save it without one"
        raise Unreadable("malformed", why) from None
    except DependencyError as error:
        raise Unreadable("refused", f'{error}: pip install "drlib[docs]"') from None
    return title, join_hyphenated(text)


def _pdf_with_text(data: bytes, charset: str, allowed: dict) -> tuple[str, str]:
    title, text = _pdf(data, charset, allowed)
    if not text.strip():
        raise Unreadable("refused", "no text in it, its pages are pictures: run OCR over it first")
    return title, text


def _archive(data: bytes, allowed: dict, *, office: bool = False) -> zipfile.ZipFile:
    """Open an archive after checking its members; `office` files must not declare entities."""
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
        # no document type means no entities; without zero bytes UTF-16 reads like ASCII; XML starts
        # with "<", and a printer's settings, which may contain a document type, do not
        part = archive.read(info).replace(b"\0", b"").lstrip(XML_START) if office else b""
        if part.startswith(b"<") and b"<!DOCTYPE" in part:
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
            reply: dict = {"text": f"[type {suffix!r} is not read]"}
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
    """Return one line per paragraph and per table row, with tabs between cells."""
    from drlib.worlds.office import hide, main_part, relations

    with _archive(data, allowed, office=True) as archive:
        place = main_part(archive, "word/document.xml")
        root = ElementTree.fromstring(archive.read(place))
        styles = [
            ElementTree.fromstring(archive.read(target))
            for kind, target in relations(archive, place).values()
            if kind == "styles" and target in archive.NameToInfo
        ]
    hide(root, styles[0] if styles else ElementTree.Element("styles"))
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
        "ptab": "\t",
        "noBreakHyphen": "-",
        "another in its cell": " ",
    }
    names = {tag: tag.rpartition("}")[2] for tag in {node.tag for node in root.iter()}}
    parts = [
        (node.text or "") if names[node.tag] == "t" else marks.get(names[node.tag], "")
        for node in root.iter()
    ]
    return "", "".join(parts).replace("\n\t", "\n")


def _xlsx(data: bytes, _charset: str, allowed: dict) -> tuple[str, str]:
    """Return one line per row with tabs between cells, without empty rows."""
    lines = []
    for name, rows in _sheets(data, allowed):
        lines.append(f"=== {name} ===")
        lines += ["\t".join(map(_shown, row)).rstrip("\t") for row in rows]
    return "", "\n".join(filter(None, lines))


def _sheets(data: bytes, allowed: dict) -> Iterator[tuple[str, Iterator[tuple]]]:
    """Yield (name, rows) of each sheet of a workbook."""
    # keeps openpyxl from importing it, which is slow and needs memory
    sys.modules.setdefault("numpy", None)
    import openpyxl

    _archive(data, allowed, office=True).close()
    book = openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=True)
    for sheet in book.worksheets:
        sheet.reset_dimensions()  # the size declared in the file may be wrong
        yield sheet.title, sheet.iter_rows(values_only=True)


def _shown(value: object) -> str:
    """Return a cell's value as text."""
    return "" if value is None else str(value)


def _as_markdown(kind: str) -> Callable[[bytes, str, dict], tuple[str, str]]:
    """Return a reader of tables or slides that `drlib.worlds.sheets` writes as Markdown."""

    def read(data: bytes, charset: str, allowed: dict) -> tuple[str, str]:
        from drlib.worlds import sheets

        if kind == ".xlsx":
            return "", sheets.from_sheets(_sheets(data, allowed))
        if kind == ".pptx":
            with _archive(data, allowed, office=True) as archive:
                return "", sheets.from_slides(archive)
        text = drop_data(_decode(data, charset))
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
    """Run the subprocess of a `Parser`: one JSON line per order, within its limits."""
    out, sys.stdout = sys.stdout, sys.stderr  # output of libraries must not mix with replies
    with suppress(ValueError):  # a lower limit is set, or macOS without memory limits
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


def _stub_packages() -> None:
    """Register empty parent packages, so that only the modules beside this file are imported.

    Importing the whole package would cost more than most files.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    for name, path in (("drlib", os.path.dirname(here)), ("drlib.worlds", here)):
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__path__ = [path]


if __name__ == "__main__":
    _stub_packages()
    _serve()
