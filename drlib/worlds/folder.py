"""A user's own folder as a world: md, txt, rst, html, pdf, ipynb and docx, cut into chunks.

A chunk is a section under its heading, at most `CHUNK` characters of it. Its title is an address:
the first chunk of a file is called like the file ("guide/intro.md"), a section adds its anchor
("guide/intro.md#install"), a long one goes on as "guide/intro.md#install (2)". So a link names its
target without a look into the other file, and a change of one file is a change of one source.

Facts without any model: `link` (between chunks), `section` and `heading`, the front matter of a
file, and clean tables: each row is a node, each column a relation. With an OpenAI-compatible
endpoint (`drlib.worlds.triples`) also what a model finds in the texts, as far as it quotes them.

The folder is never written to: the index lies at `index_path` or in memory. Left out: symbolic
links, hidden folders, Markdown and rst links by name, :ref:, tables of rst.
"""

import os
import posixpath
import re
import stat
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import groupby
from pathlib import Path
from urllib.parse import unquote

import yaml

from drlib.worlds.graph import Node
from drlib.worlds.library import Library
from drlib.worlds.reading import (
    MAX_FILE,
    OUTLINES,
    Parser,
    Unreadable,
    clean,
    fenced,
    require_libraries,
)
from drlib.worlds.store import Document, Part, Skip, Store, one_line
from drlib.worlds.triples import Endpoint, relation_name

VERSION = "2"  # of what `chunks` makes of a file: part of every stamp
CHUNK, CELL = 4_000, 80  # characters of a chunk, and of a cell of a table
TIMEOUT_S, MAX_TEXT = 60.0, 5_000_000  # for one file; characters kept of its text
PLAIN, FLAT = (".md", ".rst", ".txt"), (".txt", ".pdf", ".docx")  # needs no library; has no marks
HEADING = re.compile(r"(#{1,6})[ \t]+([^{]*[^{#\s])[ \t#]*(?:\{#([^\s{}]*)\})?\s*")
UNDERLINE = re.compile(r"([!-/:-@[-`{-~])\1{2,}\s*")
FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})(.*)")
FENCED = "\0"  # before each line of a fence while a file is cut: nothing in it is structure
WORDS, TARGET = r"([^\[\]\n]{0,300})", r"([^()\s<>]{1,500})"
LINK = re.compile(rf"\[{WORDS}\]\([ \t]*<?{TARGET}>?(?:[ \t][^()\n]{{0,300}})?\)")
RST_DOC = re.compile(r":doc:`(?:([^`<>\n]{1,200}) <)?([^`<>\s]{1,300})>?`")
RST_LINK = re.compile(r"`([^`<>\n]{1,200}) <([^`<>\s]{1,500})>`_")
TABLE = re.compile(r"\s*\|?(?:\s*:?-+:?\s*\|)+(?:\s*:?-+:?)?\s*")
PIECE = re.compile(rf"(?s).{{1,{CHUNK}}}(?:\n|\Z)|.{{{CHUNK}}}")  # cut between lines, if possible
FRONT = re.compile(r"---[ \t]*\n(.{0,20000}?)\n(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)


def load(rest: str, index_path: Path | None = None, *, endpoint: str = "", **options) -> Library:
    """The folder `rest` as a `Library`; `.changes.skipped` names each file that is not in it.

    `endpoint` is the base URL of an OpenAI-compatible server ("http://localhost:8000/v1"), and
    `options` (model, timeout_s, api_key) those of `Endpoint`; `.extraction` counts what it gave.
    Give them again to load an index that was made with them: only new files are asked about.
    ValueError: no folder, or nothing in it can be read.
    """
    path = Path(rest).expanduser()
    if not path.is_dir():
        raise ValueError(f"folder:{rest}: there is no such folder; give folder:PATH of one")
    store, asked = Store(index_path, f"folder:{path.resolve()}"), Endpoint(endpoint, **options)
    try:
        stamps = _stamps(path)
    except RecursionError:
        raise ValueError(f"folder:{rest}: its folders lie too deep in one another") from None
    if not stamps:
        raise ValueError(f"folder:{rest}: put files of type {' '.join(OUTLINES)} into it")
    with closing(Parser()) as parser:
        read = lambda source: chunks(source, _text(path, source, parser))  # noqa: E731
        asked.update(store, stamps, read) if endpoint else store.update(stamps, read)
    library = Library(f"folder:{rest}", store, "folder")
    library.extraction = asked.counts
    return library


def _stamps(folder: Path) -> dict[str, str]:
    """Source -> stamp. Folders that are not entered are sources too, so that they get named."""
    found = {}
    walk = os.walk(
        folder,
        onerror=lambda error: found.setdefault(os.path.relpath(error.filename, folder), VERSION),
    )
    for root, folders, files in walk:
        closed = [n for n in folders if n.startswith(".") or os.path.islink(os.path.join(root, n))]
        folders[:] = [name for name in folders if name not in closed]
        for name in files + closed:
            path = Path(root, name)
            source = path.relative_to(folder).as_posix().encode("utf-8", "backslashreplace")
            with suppress(FileNotFoundError):  # it has just been deleted
                state = path.lstat() if name in files else None
                times = state and (state.st_size, state.st_mtime_ns, state.st_ctime_ns)
                found[source.decode()] = f"{VERSION} {times}"
    return found


def _text(folder: Path, source: str, parser: Parser) -> str:
    """A file as Markdown, rst or plain text; `Skip` with the reason why there is none."""
    path, suffix = folder / source, _suffix(source)
    try:
        if suffix not in OUTLINES or not stat.S_ISREG(path.lstat().st_mode):
            known = f"no regular file of type {' '.join(OUTLINES)}"
            raise Skip(f"{known}; links are not followed, hidden and closed folders not entered")
        if suffix not in PLAIN:
            require_libraries()
        with open(path, "rb", opener=_itself) as file:
            state = os.fstat(file.fileno())
            if state.st_size > MAX_FILE:
                raise Skip(f"{state.st_size} bytes, above the limit of {MAX_FILE}: split the file")
            data = file.read(state.st_size)
        return parser.parse(suffix, data, TIMEOUT_S, outline=True, chars=MAX_TEXT)["text"]
    except (OSError, ImportError, Unreadable) as error:
        raise Skip(f"not readable: {': '.join(map(str, error.args))}") from None


def _itself(name: str, flags: int) -> int:
    """Open a regular file; no link or pipe that has just taken its place."""
    found = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(found).st_mode):
        return found
    os.close(found)
    raise OSError("not a regular file any more")


def chunks(source: str, text: str) -> Part:
    """What one file holds, from its path in the folder and its Markdown, rst or plain text."""
    documents, nodes, facts, above, taken = [], [], [], [], {source: 0}
    text = re.sub("\r\n?", "\n", text).replace(FENCED, "")
    flat, sections = _suffix(source) in FLAT, [(0, "", "", [text])]
    if not flat:
        rows, kept, text = _front_matter(text)
        facts += [(source, *row) for row in rows]
        sections = _sections(_suffix(source), text)
        sections[0][3][:0] = [FENCED + line for line in kept]
    for level, heading, anchor, lines in sections:
        heading = LINK.sub(r"\1", heading).replace("`", "").strip("* ")
        title, body = source, "\n".join(lines).strip()
        if above:
            title = _fresh(f"{source}#{anchor or slug(heading)}", taken)
            while len(above) > 1 and above[-1][0] >= level:
                above.pop()
            facts.append((above[-1][1], "section", title))
        above.append((level, title))
        facts.append((title, "heading", heading))
        for number, piece in enumerate(PIECE.findall(body) or [""], 1):
            name = title if number == 1 else _fresh(f"{title} ({number})", taken)
            shown, targets = (piece, ()) if flat else _linked(source, piece)
            facts += [(name, "link", target) for target in targets if target != name]
            shown = f"{heading}\n\n{shown.replace(FENCED, '').strip()}"
            documents.append(Document(name, shown.strip(), targets))
            nodes.append(Node(name, "page" if name == source else "section"))
        for first, *row in () if flat else _rows(source, body):
            name = _fresh(f"{title}: {first}", taken)
            documents.append(Document(name, f"{first}, in a table of [{title}](folder:{title})."))
            nodes.append(Node(name, "table row", (first,)))
            facts += [(name, "table", title), *((name, column, cell) for column, cell in row)]
    nowhere = {
        t
        for _, what, t in facts
        if what == "link" and t.startswith(f"{source}#") and t not in taken
    }
    facts = [fact for fact in facts if one_line(fact[2]) and fact[2] not in nowhere]
    return Part(documents, nodes, facts)


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub writes it: "Getting started!" -> "getting-started"."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") or "section"


def _sections(suffix: str, text: str) -> list[tuple[int, str, str, list[str]]]:
    """(level, heading, anchor, lines) of each section; text before the first heading is one."""
    parts, fence, rst = [(0, "", "", [])], "", suffix == ".rst"
    levels = {} if rst else {"=": 1, "-": 2}
    if rst:
        text = RST_DOC.sub(lambda m: f"[{m[1] or m[2]}]({m[2]}.rst)", text)
        text = RST_LINK.sub(r"[\1](\2)", text)
    for line in text.split("\n"):
        lines, mark = parts[-1][3], not rst and FENCE.match(line)
        if mark or fence:
            lines.append(FENCED + line)
            ends = mark and fence and mark[1].startswith(fence) and not mark[2].strip()
            fence = "" if ends else fence or mark[1]
        elif len(line) > 500:
            lines.append(line)
        elif not rst and (mark := HEADING.fullmatch(line)):
            parts.append((len(mark[1]), mark[2], mark[3], []))
        elif (
            (mark := UNDERLINE.fullmatch(line))
            and lines
            and lines[-1][:1] not in "|>- \t\0"
            and (len(line) >= len(lines[-1]) if rst else mark[1] in levels)
        ):
            parts.append((levels.setdefault(mark[1], len(levels) + 1), lines.pop(), "", []))
            if lines and UNDERLINE.fullmatch(lines[-1]):
                lines.pop()  # it has a line above, too
        else:
            lines.append(line)
    return parts if len(parts) == 1 or "".join(parts[0][3]).strip() else parts[1:]


def _linked(source: str, text: str) -> tuple[str, tuple[str, ...]]:
    """The text, its links inside the folder made addresses of chunks, and these chunks."""
    found = {}

    def address(match: re.Match) -> str:
        target = _target(source, match[2])
        return f"[{match[1]}](folder:{found.setdefault(target, target)})" if target else match[0]

    lines = (
        line if line.startswith(FENCED) else LINK.sub(address, line) for line in text.split("\n")
    )
    return "\n".join(lines), tuple(found)


def _target(source: str, link: str) -> str | None:
    """The chunk that a link in `source` means; None for other types and outside the folder."""
    path, _, anchor = unquote(link).partition("#")
    if re.match(r"[a-zA-Z][\w+.-]*:|//", path):
        return None
    base = "" if path.startswith("/") else posixpath.dirname(source)
    path = posixpath.normpath(posixpath.join(base, path.lstrip("/"))) if path else source
    if path != source and _suffix(path) in (".html", ".htm"):
        anchor = ""  # most stand at no heading, which cannot be seen from here
    inside = _suffix(path) in OUTLINES and not path.startswith("../")
    return (f"{path}#{anchor}" if anchor else path) if inside else None


def _rows(source: str, body: str) -> Iterator[list]:
    """[first cell, (column, cell), ...] of each row of the clean tables: all rows as long as the
    header, cells short, columns different from each other, and so the first cells."""
    for piped, lines in groupby(
        body.split("\n"), lambda line: "|" in line and not line.startswith(FENCED)
    ):
        lines = [line.strip().removeprefix("|").removesuffix("|") for line in lines]
        rules = [number for number, line in enumerate(lines) if TABLE.fullmatch(f"|{line}|")]
        if piped and len(lines) > 2 and rules == [1]:  # a second rule: two tables in one
            lines.pop(1)
            head, *rows = [
                [_cell(source, cell) for cell in re.split(r"(?<!\\)\|", line)] for line in lines
            ]
            names, firsts = [relation_name(column) for column in head], {row[0] for row in rows}
            if (
                len({*names} - {""}) == len(head) > 1
                and len(firsts - {""}) == len(rows)
                and all(len(row) == len(head) and max(map(len, row)) <= CELL for row in rows)
            ):
                yield from ([row[0], *zip(names[1:], row[1:], strict=True)] for row in rows)


def _cell(source: str, text: str) -> str:
    """The chunk that a cell links to, or its words."""
    link = LINK.fullmatch(text.strip())
    words = LINK.sub(r"\1", text).replace("\\|", "|").strip(" `*_\t")
    return (link and _target(source, link[2])) or one_line(words)


def _front_matter(text: str) -> tuple[list, list[str], str]:
    """(relation, value) for each short value, and each of a list, at the top level of the front
    matter; its lines as a block of code, if not all of it became facts; and the text after it."""
    front, rows, kept = FRONT.match(text), [], []
    try:
        found = yaml.load(front[1], yaml.BaseLoader) if front else None  # all values are texts
    except (yaml.YAMLError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return [], [], text
    for key, values in found.items():
        for value in values if isinstance(values, list) else [values]:
            row = relation_name(key), isinstance(value, str) and one_line(clean(value))
            if all(row) and len(row[1]) <= CELL:
                rows.append(row)
            elif value:
                kept = fenced(front[1]).split("\n")
    return rows, kept, text[front.end() :]


def _fresh(name: str, taken: dict[str, int]) -> str:
    """`name`, or the next of "name-1", "name-2", ... that is not taken; it is taken now."""
    found = name
    while found in taken:
        taken[name] += 1
        found = f"{name}-{taken[name]}"
    taken[found] = 0
    return found


def _suffix(source: str) -> str:
    return posixpath.splitext(source)[1].lower()
