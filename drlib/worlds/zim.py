"""A Kiwix file (ZIM) as a world: its articles, the links between them, redirects as other names.

Wikipedia and many others come as one such file. libzim reads it: a binary wheel under
GPL-3.0-or-later, therefore an extra of its own (`pip install "drlib[zim]"`), imported only here.

The articles' HTML is a stranger's: it is read as every page is (`drlib.worlds.reading`). The first
`limit` articles are taken, in the order of their paths. Left out: pictures, tables as relations,
the file's own Xapian index.
"""

import posixpath
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from urllib.parse import unquote

from drlib.worlds.folder import LINK, TIMEOUT_S
from drlib.worlds.graph import Node
from drlib.worlds.library import Library
from drlib.worlds.reading import Parser, Unreadable, require_libraries
from drlib.worlds.store import Document, Part, Store, one_line


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
    titles, aliases, articles, documents, facts = {}, defaultdict(set), {}, [], []

    def entries() -> Iterator:  # one by one: a Wikipedia has millions
        return map(archive._get_entry_by_id, range(archive.all_entry_count))

    pages = (
        entry
        for entry in entries()
        if not entry.is_redirect and entry.get_item().mimetype.startswith("text/html")
    )
    for entry in islice(pages, limit):
        name = one_line(entry.title) or entry.path
        titles[entry.path] = name = f"{name} ({entry.path})" if name in articles else name
        articles[name] = entry
    for entry in (entry for entry in entries() if entry.is_redirect and entry.path != "mainPage"):
        goal, steps = entry.get_redirect_entry(), 0
        while goal.is_redirect and steps < 9:  # more: a circle
            goal, steps = goal.get_redirect_entry(), steps + 1
        if name := titles.get(goal.path):
            titles[entry.path] = name
            aliases[name] |= {entry.title} - {name}
    for name, entry in articles.items():
        found = {}

        def address(match, folder=posixpath.dirname(entry.path), found=found):
            path = posixpath.join(folder, unquote(match[2]).partition("#")[0])
            title = titles.get(posixpath.normpath(path).lstrip("/"))
            return f"[{match[1]}](zim:{found.setdefault(title, title)})" if title else match[1]

        try:
            data = bytes(entry.get_item().content)
            text = parser.parse(".html", data, TIMEOUT_S, outline=True)["text"]
        except Unreadable as fault:
            text = f"(This article could not be read: {': '.join(fault.args)}.)"
        documents.append(Document(name, LINK.sub(address, text), tuple(found)))
        facts += [(name, "link", title) for title in found if title != name]
    nodes = [Node(name, "article", tuple(sorted(aliases[name]))) for name in articles]
    return Part(documents, nodes, facts)
