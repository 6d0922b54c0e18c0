"""What joins the files of a folder: links by name, and values that name a page or a row.

One source of stamp "" (`JOINS`) that is made of all others, and so made anew whenever one of them
changes. Nothing in a file's own rows depends on another file, so its stamp need not change when a
name begins to mean something else. For this, `held_back` keeps out of a file's facts those that
wait for the other files, and `joined` tells them.

Which thing a name means, in any case: the one page with this heading, title, alias, or else file
name; else the first row of a table with this first cell; else the one section with this heading. A
name of several pages means none of them. A row and a page, or rows of several tables, that have one
name are one thing, whose facts are told of the page or the first row, as long as they do not
contradict each other (the towns of 2020 and those of 2021 stay two). The other rows say "same as".

Left out: names within a text, and names that are spelled in another way.
"""

import json
import posixpath
import re
from collections import defaultdict
from collections.abc import Iterable

from drlib.worlds.chunking import NAMING
from drlib.worlds.graph import Fact, Node
from drlib.worlds.linking import WIKI_LINK, names_in, suffix_of
from drlib.worlds.reading import TABLES
from drlib.worlds.sheets import HAS_LETTER
from drlib.worlds.store import Part, Store
from drlib.worlds.triples import OWN

JOINS = "~~joins//"  # no path
HELD = "~held "  # before a relation and a value among the links of a document
SAME = "same as"
INDEXES = ("index", "readme", "_index")  # files that stand for their folder
NUMBER = re.compile(r"(?:^|(?<=/))\d+[-_. ]+(?=[^/])")  # that sorts files, and is no part of a link
LEADING_ID = re.compile(r"(\d{6,14}[a-z]?)(?![^\W_])")  # of a Zettelkasten: "202101010000 Ideas"
PAGE_KINDS = ("page", "section")


def held_back(part: Part) -> Part:
    """`part` without the facts that wait for other files: all of a row but its table, and those of
    front matter whose value may be a name. They are kept with the page that they are about."""
    rows = {node.title for node in part.nodes if node.kind not in PAGE_KINDS}
    kept: list[Fact] = []
    held: dict[str, list[str]] = defaultdict(list)
    for subject, relation, value in part.facts:
        waits = relation not in OWN and (subject in rows or HAS_LETTER.search(value))
        if waits:
            held[subject].append(HELD + json.dumps([relation, value], ensure_ascii=False))
        else:
            kept.append((subject, relation, value))
    documents = [
        document._replace(links=(*document.links, *held.get(document.title, ())))
        for document in part.documents
    ]
    return part._replace(documents=documents, facts=kept)


def joined(store: Store) -> Part:
    """Links by name, and the facts that were held back, with the things that their values name."""
    names = _Names(store)
    held: list[Fact] = []
    facts: list[Fact] = []
    called: dict[str, set[str]] = defaultdict(set)  # title -> names by which links call it
    for title, links in store.rows("SELECT title, links FROM documents WHERE links LIKE '%\"~%'"):
        held += [
            (title, *json.loads(link.removeprefix(HELD)))
            for link in json.loads(links)
            if link.startswith(HELD)
        ]
        for name in names_in(links):
            to = names.target(name)
            if to is not None and to != title:
                facts.append((title, "link", to))
            if to is not None:
                called[to].add(name)
    held = _in_one_spelling(held)
    moved = names.merged(held, store.rows("SELECT subject, relation, value FROM facts"))
    for subject, relation, value in held:
        about = moved.get(subject, subject)
        named = None if relation.casefold() in NAMING else names.thing(value)
        named = moved.get(named, named)
        facts.append((about, relation, value if named in (None, about) else named))
    facts += [(row, SAME, first) for row, first in names.doubles()]
    nodes = [
        Node(title, kind, tuple(dict.fromkeys([*json.loads(aliases), *sorted(called[title])])))
        for title, kind, aliases in store.rows("SELECT title, kind, aliases FROM nodes")
        if title in called
    ]
    return Part((), nodes, sorted({*facts}))


def _in_one_spelling(held: list[Fact]) -> list[Fact]:
    """`held` with a column that stands as a key in small letters elsewhere called like this key:
    "Owner" over a table is the "owner" of front matter."""
    known = {relation for _, relation, _ in held}
    return [
        (subject, small if (small := relation.casefold()) in known else relation, value)
        for subject, relation, value in held
    ]


class _Names:
    """What the names in a folder mean."""

    def __init__(self, store: Store):
        self._titles: dict[str, str] = {}  # folded -> a page, section or row
        self._paths: dict[str, set[str]] = defaultdict(set)  # folded path without suffix -> pages
        self._called: dict[str, set[str]] = defaultdict(set)  # folded heading or alias -> pages
        self._stems: dict[str, set[str]] = defaultdict(set)  # folded file name or id -> pages
        self._sections: dict[str, set[str]] = defaultdict(set)  # folded heading or label
        self._rows: dict[str, list[str]] = defaultdict(list)  # folded first cell -> rows
        self._entities: list[str] = []
        pages = "SELECT title FROM documents ORDER BY title"
        self._titles = {title.casefold(): title for (title,) in store.rows(pages)}
        rows = store.rows("SELECT title, kind, aliases FROM nodes WHERE source != ?", JOINS)
        for title, kind, aliases in sorted(rows):
            names = [_folded(name) for name in json.loads(aliases)]
            if kind == "entity":
                self._entities.append(title)
            elif kind == "page":
                self._add_page(title, names)
            elif kind == "section":
                for name in names:
                    self._sections[name].add(title)
            else:
                for name in filter(_is_name, names):
                    self._rows[name].append(title)
        sql = "SELECT subject, value FROM facts WHERE relation = 'heading' AND subject LIKE '%#%'"
        for title, heading in store.rows(sql):
            self._sections[_folded(heading)].add(title)

    def _add_page(self, title: str, names: Iterable[str]) -> None:
        for name in names:
            self._called[name].add(title)
        path = posixpath.splitext(title)[0].casefold()
        stem = posixpath.basename(path)
        ways = {path, NUMBER.sub("", path)}
        if stem in INDEXES:
            ways = {posixpath.dirname(way) for way in ways}
            stem = posixpath.basename(posixpath.dirname(path))
        for way in ways - {""}:
            self._paths[way].add(title)
        number = LEADING_ID.match(stem)
        for name in {stem, NUMBER.sub("", stem), number[1] if number else stem} - {""}:
            self._stems[name].add(title)

    def target(self, name: str) -> str | None:
        """What a link by `name` means: a path without suffix, a file's name, a name of a page."""
        path, _, anchor = name.partition("#")
        page = self._page(path)
        if page is None:
            return None if anchor else _only(self._sections.get(_folded(path)))
        return self._titles.get(f"{page}#{anchor}".casefold(), page) if anchor else page

    def _page(self, name: str) -> str | None:
        folded = _folded(name).strip("/")
        whole = self._titles.get(folded)
        if whole is not None:
            return whole
        path = re.sub(r"\.(?:md|mdx|html?|rst)$", "", folded)
        ways = [self._paths.get(path)]
        if "/" in path:  # from another folder than this one: a part of the path is enough
            ways.append(
                {p for p in self._stems.get(posixpath.basename(path), ()) if _ends(p, path)}
            )
            ways.append(self._paths.get(path.partition("/")[2]))
        ways += [self._stems.get(path), self._called.get(path)]
        return next((found for way in ways if (found := _only(way))), None)

    def thing(self, value: str) -> str | None:
        """The page, row or section that a value names, None: it is but a value."""
        wiki = WIKI_LINK.fullmatch(value)
        folded = _folded(wiki[1] if wiki else value)
        if not _is_name(folded):
            return None
        if folded in self._titles:
            return self._titles[folded]
        pages = self._pages(folded)
        if len(pages) == 1:
            return _only(pages)
        rows = [] if pages else self._rows.get(folded, [])
        return rows[0] if rows else _only(() if pages else self._sections.get(folded))

    def _pages(self, folded: str) -> set[str]:
        """Those that a name means: what a page calls itself counts more than its file's name, and
        the name of a table says what its rows are rather than what it is."""
        stems = self._stems.get(folded, ())
        called = self._called.get(folded)
        return called or {title for title in stems if suffix_of(title) not in TABLES}

    def doubles(self) -> Iterable[tuple[str, str]]:
        """(row or entity, the thing of the same name), for all but these things."""
        for name, rows in self._rows.items():
            first = self.thing(name)
            yield from ((row, first) for row in rows if first not in (None, row))
        for title in self._entities:
            name = _folded(title)
            first = _only(self._pages(name)) or next(iter(self._rows.get(name, ())), None)
            if first not in (None, title):
                yield title, first

    def merged(self, held: Iterable[Fact], told: Iterable[Fact]) -> dict[str, str]:
        """Row -> the thing of its name, for rows that do not contradict what is said of it."""
        said: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        for subject, relation, value in (*told, *held):
            if relation not in OWN:
                said[subject][relation].add(value.casefold())
        moved = {}
        for row, first in self.doubles():
            more, known = said[row], said[first]
            if row not in self._entities and all(known.get(r, v) == v for r, v in more.items()):
                moved[row] = first
                known.update(more)
        return moved


def _folded(name: str) -> str:
    return " ".join(name.split()).casefold()


def _is_name(folded: str) -> bool:
    return len(folded) > 1 and HAS_LETTER.search(folded) is not None


def _only(found: Iterable[str] | None) -> str | None:
    """The one of `found`, None where there are several or none."""
    some = [*(found or ())]
    return some[0] if len(some) == 1 else None


def _ends(title: str, path: str) -> bool:
    return f"/{posixpath.splitext(title)[0].casefold()}".endswith(f"/{path}")
