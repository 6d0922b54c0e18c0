"""`parse_file`: the text of a file of one folder; and what turns the bytes of a page into text.

Strangers' bytes can hang a parser or make it eat all memory. So every format but plain text is read
by a fresh interpreter (this file run as a script) with limits on processor time, memory and clock,
and without our environment. Archives are checked first and unpacked in memory only. Left out: a
wall against code that takes over a parser in C; OCR, sound, doc, xls, pptx; headers and notes.
"""

import codecs
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
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree

if __name__ != "__main__":  # the child must start fast, and sees no package
    from drlib.tools.backends import ToolFault

MAX_FILE, MAX_CHARS = 20_000_000, 100_000  # bytes of a file, characters kept of its text
# What the archives of a file may hold together: members, unpacked bytes, archives in one another.
ALLOWED = {"members": 1_000, "bytes": 100_000_000, "archives": 2}
MAX_RATIO = 200  # of unpacked to packed bytes, for a member above 1 MB
CPU_S, MEMORY = 20, 1 << 30  # processor seconds and bytes of address space of one parser


class Unreadable(Exception):
    """(kind, detail) of the `ToolFault` that the parent makes of it."""


class ParseFile:
    """Backend: {"file": a name relative to `folder`} -> {"name", "text"}.

    Raises "not_found" or "refused": a name outside the folder, an unknown type, and whatever is
    wrong with a file, which is no fault of the environment and would be no better next time.
    """

    name = "files"

    def __init__(self, folder: str | Path) -> None:
        require_libraries()
        self._folder = Path(folder).resolve(strict=True)

    def __call__(self, arguments: Mapping, timeout_s: float) -> dict[str, str]:
        name = arguments.get("file")
        try:
            path = (self._folder / name).resolve()
            inside = path.is_relative_to(self._folder) and ".." not in Path(name).parts
            if not inside or Path(name).is_absolute():
                raise ToolFault("refused", f"{name!r:.200} is outside the folder of files")
            if not path.is_file():
                raise ToolFault("not_found", f"there is no file {name!r:.200}")
            if path.stat().st_size > MAX_FILE:
                raise ToolFault("refused", f"too_large: {name!r:.200} is above {MAX_FILE} bytes")
            data = path.read_bytes()
        except (TypeError, OSError, ValueError, RuntimeError):  # too long, a NUL, a loop of links
            raise ToolFault("refused", f"{name!r:.200} cannot be opened") from None
        try:
            return {"name": name, "text": parse(path.suffix.lower(), data, timeout_s)["text"]}
        except ToolFault as fault:
            raise ToolFault("refused", str(fault)) from None


def require_libraries() -> None:
    """ImportError that names the remedy when a parsing library is missing."""
    wanted = ("trafilatura", "bs4", "lxml", "pypdf", "openpyxl")
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(f'{", ".join(missing)} missing: pip install "drlib[docs]"')


def parse(suffix: str, data: bytes, timeout_s: float, charset: str = "") -> dict[str, str]:
    """{"title", "text"} of a file of type `suffix` (".pdf"), head and tail if long; or `ToolFault`.

    `charset` is the encoding that a server declared for a text or HTML page, if it did.
    """
    if suffix not in READERS:
        known = " ".join(READERS)
        raise ToolFault("refused", f"files of type {suffix!r:.40} are not read; known: {known}")
    if READERS[suffix] is _text:
        reply = _reply(suffix, data, charset, {})
    else:
        command = [sys.executable, "-I", "-Xutf8", os.path.abspath(__file__), suffix, charset]
        kept = {k: os.environ[k] for k in ("PATH", "LD_LIBRARY_PATH") if k in os.environ}
        try:
            done = subprocess.run(command, input=data, stdout=subprocess.PIPE, env=kept,
                                  stderr=subprocess.DEVNULL, timeout=timeout_s)  # fmt: skip
        except subprocess.TimeoutExpired:
            raise ToolFault("timeout", f"the {suffix} was not parsed in time") from None
        if code := done.returncode:
            kind = "too_large" if code in (-signal.SIGXCPU, -signal.SIGKILL) else "malformed"
            raise ToolFault(kind, f"the parser of {suffix} ended with {code}")
        reply = json.loads(done.stdout)
    if "fault" in reply:
        raise ToolFault(*reply["fault"])
    return reply


def shorten(text: str) -> str:
    """`text`, or head and tail of `MAX_CHARS` together and how much is left out."""
    half, left_out = MAX_CHARS // 2, len(text) - MAX_CHARS // 2 * 2
    shown = f"{text[:half]}\n[... {left_out} characters left out ...]\n{text[-half:]}"
    return text if len(text) <= MAX_CHARS else shown


def clean(text: str) -> str:
    """`text` without lone surrogates, which break whoever writes it out; JSON and PDF hold them."""
    return text.encode("utf-8", "replace").decode()


def codec(charset: str) -> str:
    """The codec behind a declared encoding; "" for none, and for two that take hours for 10 MB."""
    with suppress(LookupError, ValueError):
        name = codecs.lookup(charset).name  # Python knows it in many spellings: "-idna" is one
        return "" if name in ("idna", "punycode") else name
    return ""


def decode(data: bytes, charset: str = "") -> str:
    """Bytes as text: by the declared encoding, a byte order mark, as UTF-8, else as Latin-1."""
    marked = "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    for name in filter(None, (codec(charset), marked)):
        with suppress(UnicodeError, LookupError):
            return data.decode(name)
    return data.decode("latin-1")


def _reply(suffix: str, data: bytes, charset: str, allowed: dict) -> dict:
    """{"title", "text"}, or {"fault": (kind, detail)} whatever happens."""
    try:
        title, text = READERS[suffix](data, charset, allowed)
    except Unreadable as fault:
        return {"fault": fault.args}
    except (MemoryError, RecursionError):
        return {"fault": ("too_large", f"the {suffix} needs too much memory")}
    except Exception as broken:  # on broken bytes the parsers raise anything
        why = clean(f"{type(broken).__name__}: {broken!s:.200}")
        return {"fault": ("malformed", f"not a readable {suffix} ({why})")}
    return {"title": clean(" ".join(title.split())[:300]), "text": clean(shorten(text.strip()))}


def _text(data: bytes, charset: str, _allowed: dict) -> tuple[str, str]:
    text = decode(data, charset)
    if "\0" in text:
        raise Unreadable("malformed", "binary bytes, not text")
    return "", text


def _html(data: bytes, charset: str, _allowed: dict) -> tuple[str, str]:
    """The article as trafilatura finds it; where it finds none, all the visible text."""
    import bs4
    import trafilatura

    declared = list(filter(None, [codec(charset)]))
    html = bs4.UnicodeDammit(data, declared, is_html=True).unicode_markup
    soup = bs4.BeautifulSoup(html or decode(data), "lxml")
    title = soup.title.get_text() if soup.title else ""
    for hidden in soup(["script", "style", "noscript", "template", "title"]):
        hidden.decompose()
    return title, (html and trafilatura.extract(html)) or soup.get_text("\n", strip=True)


def _pdf(data: bytes, _charset: str, _allowed: dict) -> tuple[str, str]:
    import pypdf

    reader = pypdf.PdfReader(io.BytesIO(data))
    title = (reader.metadata and reader.metadata.title) or ""
    return title, "\n\n".join(page.extract_text() for page in reader.pages)


def _archive(data: bytes, allowed: dict, *, office: bool = False) -> zipfile.ZipFile:
    """An opened archive of few, small members inside it; of `office`, with XML free of entities."""
    archive = zipfile.ZipFile(io.BytesIO(data))
    for info in archive.infolist():
        name, size = info.filename.replace("\\", "/"), info.file_size
        allowed["members"] -= 1
        allowed["bytes"] -= size
        link = stat.S_ISLNK(info.external_attr >> 16)
        if link or re.match(r"/|[A-Za-z]:", name) or ".." in name.split("/"):
            raise Unreadable("refused", f"member {name!r:.200} points outside the archive")
        bomb = size > 1_000_000 and size > MAX_RATIO * info.compress_size
        if bomb or min(allowed.values()) < 0:
            raise Unreadable("too_large", f"at member {name!r:.200} the archive is above {ALLOWED}")
        # no document type, no entities; without zero bytes UTF-16 reads like ASCII
        if office and b"<!DOCTYPE" in archive.read(info).replace(b"\0", b""):
            raise Unreadable("refused", f"{name!r:.200} declares a document type (entities)")
    return archive


def _zip(data: bytes, _charset: str, allowed: dict) -> tuple[str, str]:
    inner = {**allowed, "archives": allowed["archives"] - 1}
    parts = []
    with _archive(data, inner) as archive:
        for info in (info for info in archive.infolist() if not info.is_dir()):
            suffix = os.path.splitext(info.filename)[1].lower()
            reply = {"text": f"[type {suffix!r} is not read]"}
            if suffix in READERS:
                reply = _reply(suffix, archive.read(info), "", inner)
            kind, detail = reply.get("fault", ("", ""))
            if kind not in ("", "malformed"):
                raise Unreadable(kind, detail)
            parts.append(f"=== {info.filename} ===\n{reply.get('text', f'[{detail}]')}")
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
    marks = {"p": "\n", "br": "\n", "cr": "\n", "tr": "\n", "tc": "\t", "tab": "\t",
             "another in its cell": " "}  # fmt: skip
    nodes = ((node.tag.rpartition("}")[2], node.text or "") for node in root.iter())
    text = "".join(words if tag == "t" else marks.get(tag, "") for tag, words in nodes)
    return "", text.replace("\n\t", "\n")


def _xlsx(data: bytes, _charset: str, allowed: dict) -> tuple[str, str]:
    """The values, a row a line with tabs between the cells, empty rows left out."""
    sys.modules.setdefault("numpy", None)  # openpyxl would load it: slow, and hungry for memory
    import openpyxl

    _archive(data, allowed, office=True).close()
    book = openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=True)
    lines = []
    for sheet in book.worksheets:
        lines.append(f"=== {sheet.title} ===")
        sheet.reset_dimensions()  # the file's own word for its size may be a lie
        for row in sheet.iter_rows(values_only=True):
            lines.append("\t".join("" if v is None else str(v) for v in row).rstrip("\t"))
    return "", "\n".join(filter(None, lines))


READERS = {
    **dict.fromkeys((".txt", ".md", ".csv", ".tsv", ".json", ".jsonl"), _text),
    ".html": _html, ".htm": _html, ".pdf": _pdf, ".docx": _docx, ".xlsx": _xlsx, ".zip": _zip,
}  # fmt: skip

if __name__ == "__main__":
    for what, limit in ((resource.RLIMIT_CPU, CPU_S), (resource.RLIMIT_AS, MEMORY)):
        with suppress(ValueError):  # a lower limit holds, or macOS, which has none on memory
            resource.setrlimit(what, (limit, limit))
    answer = _reply(sys.argv[1], sys.stdin.buffer.read(), sys.argv[2], dict(ALLOWED))
    sys.stdout.write(json.dumps(answer))
