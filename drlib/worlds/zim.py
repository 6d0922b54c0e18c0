"""World `zim`: a Kiwix file with its articles and links; redirects are aliases.

Wikipedia and many other sites are distributed as such a file. It is read by libzim, a binary wheel
under GPL-3.0-or-later and therefore a separate extra (`pip install "drlib[zim]"`), imported only
here.

The articles' HTML is untrusted and parsed like any page (`drlib.worlds.reading`). The first `limit`
articles in path order are loaded. Not implemented: pictures, tables as relations, the file's own
Xapian index.
"""

import posixpath
import re
import unicodedata
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

REDIRECT_STEPS = 9  # longer chains are cycles


def load(rest: str, index_path: Path | None = None, *, limit: int = 20_000) -> Library:
    """Load the ZIM file `rest` as a `Library`.

    Args:
        rest: path of the file.
        index_path: file of the index; None: in memory.
        limit: number of articles.

    Raises:
        ImportError: libzim is missing.
        ValueError: no ZIM file.
    """
    require_libraries()
    try:
        from libzim.reader import Archive
    except ImportError:
        remedy = 'pip install "drlib[zim]" (its licence: GPL-3.0-or-later)'
        raise ImportError(f"zim:{rest}: libzim is missing: {remedy}") from None
    try:
        archive = Archive(Path(rest).expanduser())
    except RuntimeError as error:
        raise ValueError(f"zim:{rest}: not a ZIM file ({error}): pass zim:PATH of one") from None
    store = Store(index_path, f"zim:{Path(rest).expanduser().resolve()}")
    with closing(Parser()) as parser:
        stamp = f"2 {archive.uuid} {archive.filesize} {limit}"
        store.update({Path(rest).name: stamp}, lambda _: _read(archive, parser, limit))
    return Library(f"zim:{rest}", store, "zim")


def _read(archive, parser: Parser, limit: int) -> Part:
    """Read the articles; a repeated title is qualified by its path."""
    articles, titles = _articles(archive, limit)
    aliases = _aliases(archive, titles)
    documents, facts = [], []
    for name, entry in articles.items():
        text, found = _resolve_links(_text(entry, parser), posixpath.dirname(entry.path), titles)
        documents.append(Document(name, text, found))
        facts += [(name, "link", title) for title in found if title != name]
    nodes = [Node(name, "article", tuple(sorted(aliases[name]))) for name in articles]
    return Part(documents, nodes, facts)


def _entries(archive) -> Iterator:
    """Iterate over all entries; a Wikipedia has millions."""
    return map(archive._get_entry_by_id, range(archive.all_entry_count))


def _articles(archive, limit: int) -> tuple[dict, dict[str, str]]:
    """Return (title -> entry, path -> title) of the first `limit` articles."""
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
        titles[_nfc(entry.path)] = name
        articles[name] = entry
    return articles, titles


def _aliases(archive, titles: dict[str, str]) -> dict[str, set[str]]:
    """Return title -> redirect names, and add the paths of redirects to `titles`."""
    aliases = defaultdict(set)
    for entry in _entries(archive):
        if not entry.is_redirect or entry.path == "mainPage":
            continue
        goal = entry.get_redirect_entry()
        for _ in range(REDIRECT_STEPS):
            if not goal.is_redirect:
                break
            goal = goal.get_redirect_entry()
        name = titles.get(_nfc(goal.path))
        if name:
            titles[_nfc(entry.path)] = name
            aliases[name] |= {entry.title} - {name}
    return aliases


def _nfc(path: str) -> str:
    """Return the composed Unicode form: paths and links may use different forms."""
    return unicodedata.normalize("NFC", path)


def _text(entry, parser: Parser) -> str:
    """Return the article as Markdown, or the reason why it cannot be read."""
    try:
        data = bytes(entry.get_item().content)
        return parser.parse(".html", data, TIMEOUT_S, outline=True)["text"]
    except Unreadable as fault:
        return f"(This article could not be read: {': '.join(fault.args)}.)"


def _resolve_links(text: str, folder: str, titles: dict[str, str]) -> tuple[str, tuple[str, ...]]:
    """Replace links to articles by page addresses; return the text and the linked titles.

    Other links become plain text.
    """
    found: dict[str, None] = {}

    def address(match: re.Match) -> str:
        path = posixpath.join(folder, unquote(match[2]).partition("#")[0])
        title = titles.get(_nfc(posixpath.normpath(path).lstrip("/")))
        if not title:
            return match[1]
        found[title] = None
        return f"[{match[1]}](zim:{title})"

    return MARKDOWN_LINK.sub(address, text), tuple(found)
