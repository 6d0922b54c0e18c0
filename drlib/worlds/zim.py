"""A Kiwix file (ZIM) as a world: its articles, the links between them, redirects as other names.

Wikipedia and many others come as one such file. libzim reads it: a binary wheel under
GPL-3.0-or-later, therefore an extra of its own (`pip install "drlib[zim]"`), imported only here.

The articles' HTML is a stranger's: it is read as every page is (`drlib.worlds.reading`). The first
`limit` articles are taken, in the order of their paths. Left out: pictures, tables as relations,
the file's own Xapian index.
"""

import posixpath
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from urllib.parse import unquote

from drlib.worlds.folder import TIMEOUT_S
from drlib.worlds.graph import Node
from drlib.worlds.library import Library
from drlib.worlds.linking import MARKDOWN_LINK
from drlib.worlds.reading import Parser, Unreadable, require_libraries
from drlib.worlds.store import Document, Part, Store, one_line

REDIRECT_STEPS = 9  # after one another; more are a circle


def load(rest: str, index_path: Path | None = None, *, limit: int = 20_000) -> Library:
    """The ZIM file `rest` as a `Library`. ImportError without libzim; ValueError: no ZIM file."""
    require_libraries()
    try:
        from libzim.reader import Archive
    except ImportError:
        remedy = 'pip install "drlib[zim]" (its licence: GPL-3.0-or-later)'
        raise ImportError(f"zim:{rest}: libzim is missing: {remedy}") from None
    try:
        archive = Archive(Path(rest).expanduser())
    except RuntimeError as error:
        raise ValueError(f"zim:{rest}: give zim:PATH of a ZIM file ({error})") from None
    store = Store(index_path, f"zim:{Path(rest).expanduser().resolve()}")
    with closing(Parser()) as parser:
        stamp = f"1 {archive.uuid} {archive.filesize} {limit}"
        store.update({Path(rest).name: stamp}, lambda _: _read(archive, parser, limit))
    return Library(f"zim:{rest}", store, "zim")


def _read(archive, parser: Parser, limit: int) -> Part:
    """The articles; a title that came before gets its path added."""
    articles, titles = _articles(archive, limit)
    aliases = _aliases(archive, titles)
    documents, facts = [], []
    for name, entry in articles.items():
        text, found = _linked(_text(entry, parser), posixpath.dirname(entry.path), titles)
        documents.append(Document(name, text, found))
        facts += [(name, "link", title) for title in found if title != name]
    nodes = [Node(name, "article", tuple(sorted(aliases[name]))) for name in articles]
    return Part(documents, nodes, facts)


def _entries(archive) -> Iterator:
    """All entries, one by one: a Wikipedia has millions."""
    return map(archive._get_entry_by_id, range(archive.all_entry_count))


def _articles(archive, limit: int) -> tuple[dict, dict[str, str]]:
    """(title -> entry, path -> title) of the first `limit` articles."""
    articles, titles = {}, {}
    pages = (
        entry
        for entry in _entries(archive)
        if not entry.is_redirect and entry.get_item().mimetype.startswith("text/html")
    )
    for entry in islice(pages, limit):
        name = one_line(entry.title) or entry.path
        if name in articles:
            name = f"{name} ({entry.path})"
        titles[entry.path] = name
        articles[name] = entry
    return articles, titles


def _aliases(archive, titles: dict[str, str]) -> dict[str, set[str]]:
    """Title -> the other names that redirects give it; their paths are added to `titles`."""
    aliases = defaultdict(set)
    for entry in _entries(archive):
        if not entry.is_redirect or entry.path == "mainPage":
            continue
        goal = entry.get_redirect_entry()
        for _ in range(REDIRECT_STEPS):
            if not goal.is_redirect:
                break
            goal = goal.get_redirect_entry()
        name = titles.get(goal.path)
        if name:
            titles[entry.path] = name
            aliases[name] |= {entry.title} - {name}
    return aliases


def _text(entry, parser: Parser) -> str:
    """The article as Markdown, or why it could not be read."""
    try:
        data = bytes(entry.get_item().content)
        return parser.parse(".html", data, TIMEOUT_S, outline=True)["text"]
    except Unreadable as fault:
        return f"(This article could not be read: {': '.join(fault.args)}.)"


def _linked(text: str, folder: str, titles: dict[str, str]) -> tuple[str, tuple[str, ...]]:
    """The text of an article that lies in `folder`, its links to articles made addresses of their
    pages, all others plain words; and the titles it links to."""
    found: dict[str, None] = {}

    def address(match: re.Match) -> str:
        path = posixpath.join(folder, unquote(match[2]).partition("#")[0])
        title = titles.get(posixpath.normpath(path).lstrip("/"))
        if not title:
            return match[1]
        found[title] = None
        return f"[{match[1]}](zim:{title})"

    return MARKDOWN_LINK.sub(address, text), tuple(found)
