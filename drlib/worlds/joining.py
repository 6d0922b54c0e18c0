"""Join the files of a folder: links by name, and values that name a page or a row.

The joins are one source with stamp "" (`JOINS`), derived from all others and rebuilt when one of
them changes. The rows of a file do not depend on other files, so its stamp stays valid when a name
changes its meaning. `defer_facts` removes the facts that depend on other files and `join_files`
restores them.

A name, in any case, refers to the first match of: the only page with this heading, title, alias or
file name; the first table row with this first cell; the only section with this heading. A name of
several pages refers to none of them. Rows and pages with one name are one thing, and their facts
belong to the page or the first row unless they contradict each other (the towns of 2020 and those
of 2021 stay separate). The other rows get the relation "same as".

Not implemented: names inside running text, and names with another spelling.
"""

import json
import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from drlib.worlds.chunking import NAMING
from drlib.worlds.graph import Fact, Node
from drlib.worlds.linking import WIKI_LINK, decode_names, file_suffix
from drlib.worlds.reading import TABLES
from drlib.worlds.sheets import HAS_LETTER
from drlib.worlds.store import Part, Store
from drlib.worlds.terms import fold_name
from drlib.worlds.triples import RESERVED_RELATIONS

JOINS = "~~joins//"  # cannot be a path
DEFERRED = "~held "  # prefix of a deferred fact among a document's links
SAME = "same as"
INDEXES = ("index", "readme", "_index")  # files that represent their folder
NUMBER = re.compile(r"(?:^|(?<=/))\d+[-_. ]+(?=[^/])")  # sorting prefix, not part of links
LEADING_ID = re.compile(r"(\d{6,14}[a-z]?)(?![^\W_])")  # Zettelkasten id: "202101010000 Ideas"
SITE_PAGES, SITE_SHARE = 3, 0.25  # pages that begin with the name of their site, at least
PAGE_KINDS = ("page", "section")


def defer_facts(part: Part) -> Part:
    """Move the facts that depend on other files into the document links of `part`.

    These are all facts of a row except its table, and front matter whose value may be a name.
    """
    rows = {node.title for node in part.nodes if node.kind not in PAGE_KINDS}
    kept: list[Fact] = []
    deferred: dict[str, list[str]] = defaultdict(list)
    for subject, relation, value in part.facts:
        waits = relation not in RESERVED_RELATIONS and (subject in rows or HAS_LETTER.search(value))
        if waits:
            deferred[subject].append(DEFERRED + json.dumps([relation, value], ensure_ascii=False))
        else:
            kept.append((subject, relation, value))
    documents = [
        document._replace(links=(*document.links, *deferred.get(document.title, ())))
        for document in part.documents
    ]
    return part._replace(documents=documents, facts=kept)


def join_files(store: Store) -> Part:
    """Resolve links by name and deferred facts against all files of the store."""
    names = _Names(store)
    deferred: list[Fact] = []
    facts: list[Fact] = []
    called: dict[str, set[str]] = defaultdict(set)  # title -> names used by links
    for title, links in store.rows("SELECT title, links FROM documents WHERE links LIKE '%\"~%'"):
        deferred += [
            (title, *json.loads(link.removeprefix(DEFERRED)))
            for link in json.loads(links)
            if link.startswith(DEFERRED)
        ]
        for name in decode_names(links):
            to = names.find_target(name)
            if to is not None and to != title:
                facts.append((title, "link", to))
            if to is not None:
                called[to].add(name)
    deferred = _unify_spelling(deferred)
    moved = names.merge_rows(deferred, store.rows("SELECT subject, relation, value FROM facts"))
    for subject, relation, value in deferred:
        about = moved.get(subject, subject)
        named = None if relation.casefold() in NAMING else names.find_thing(value)
        named = moved.get(named, named)
        facts.append((about, relation, value if named in (None, about) else named))
    facts += [(row, SAME, first) for row, first in names.find_duplicates()]
    for title, short in names.short.items():
        called[title].add(short)
    nodes = [
        Node(title, kind, tuple(dict.fromkeys([*json.loads(aliases), *sorted(called[title])])))
        for title, kind, aliases in store.rows("SELECT title, kind, aliases FROM nodes")
        if title in called
    ]
    return Part((), nodes, sorted({*facts}))


def _unify_spelling(deferred: list[Fact]) -> list[Fact]:
    """Spell a column like an equal key elsewhere: "Owner" and "owner", "item_no" and "Item number".

    Of several spellings the first of these is used: in lower case, without "_" and "no", in
    alphabetical order.
    """
    spellings: dict[str, set[str]] = defaultdict(set)
    for _, relation, _ in deferred:
        spellings[_fold_key(relation)].add(relation)

    def rank(relation: str) -> tuple[bool, bool, bool, str]:
        """Return the sort key of a spelling."""
        is_short = relation.casefold().endswith(("no", "nr"))
        return (
            relation != relation.casefold() or "_" in relation,
            "_" in relation,
            is_short,
            relation,
        )

    best = {key: min(some, key=rank) for key, some in spellings.items()}
    return [(subject, best[_fold_key(relation)], value) for subject, relation, value in deferred]


def _fold_key(relation: str) -> str:
    """Return a relation's name in lower case, with spaces and "number"."""
    words = relation.casefold().replace("_", " ").replace("-", " ")
    return re.sub(r"(?<= )(?:no|nr|num)\.?$", "number", " ".join(words.split()))


class _Names:
    """Index of the names in a folder."""

    def __init__(self, store: Store):
        self._titles: dict[str, str] = {}  # case-folded title -> page, section or row
        # case-folded path without suffix -> pages
        self._paths: dict[str, set[str]] = defaultdict(set)
        self._called: dict[str, set[str]] = defaultdict(set)  # folded heading or alias -> pages
        self._stems: dict[str, set[str]] = defaultdict(set)  # folded file name or id -> pages
        self._sections: dict[str, set[str]] = defaultdict(set)  # folded heading or label
        self._rows: dict[str, list[str]] = defaultdict(list)  # folded first cell -> rows
        self._entities: list[str] = []
        pages = "SELECT title FROM documents ORDER BY title"
        self._titles = {fold_name(title): title for (title,) in store.rows(pages)}
        rows = store.rows("SELECT title, kind, aliases FROM nodes WHERE source != ?", JOINS)
        for title, kind, aliases in sorted(rows):
            names = [_fold(name) for name in json.loads(aliases)]
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
        sql = (
            "SELECT subject, value FROM facts WHERE relation = 'heading' AND subject NOT LIKE '%#%'"
        )
        self.short = find_short_names(dict(store.rows(sql)))
        for title, short in self.short.items():
            self._called[_fold(short)].add(title)
        sql = "SELECT subject, value FROM facts WHERE relation = 'heading' AND subject LIKE '%#%'"
        for title, heading in store.rows(sql):
            self._sections[_fold(heading)].add(title)

    def _add_page(self, title: str, names: Iterable[str]) -> None:
        for name in names:
            self._called[name].add(title)
        path = fold_name(posixpath.splitext(title)[0])
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

    def find_target(self, name: str) -> str | None:
        """Resolve a link by name: a path without suffix, a file name, or a name of a page."""
        path, _, anchor = name.partition("#")
        page = self._page(path)
        if page is None:
            return None if anchor else _unique(self._sections.get(_fold(path)))
        return self._titles.get(fold_name(f"{page}#{anchor}"), page) if anchor else page

    def _page(self, name: str) -> str | None:
        folded = _fold(name).strip("/")
        whole = self._titles.get(folded)
        if whole is not None:
            return whole
        path = re.sub(r"\.(?:md|mdx|html?|rst)$", "", folded)
        ways = [self._paths.get(path)]
        if "/" in path:  # links from other folders may omit the first folders
            ways.append(
                {
                    p
                    for p in self._stems.get(posixpath.basename(path), ())
                    if _has_path_suffix(p, path)
                }
            )
            ways.append(self._paths.get(path.partition("/")[2]))
        ways += [self._stems.get(path), self._called.get(path)]
        return next((found for way in ways if (found := _unique(way))), None)

    def find_thing(self, value: str) -> str | None:
        """Return the page, row or section that a value names, or None."""
        wiki = WIKI_LINK.fullmatch(value)
        folded = _fold(wiki[1] if wiki else value)
        if not _is_name(folded):
            return None
        if folded in self._titles:
            return self._titles[folded]
        pages = self._pages(folded)
        if len(pages) == 1:
            return _unique(pages)
        rows = [] if pages else self._rows.get(folded, [])
        return rows[0] if rows else _unique(() if pages else self._sections.get(folded))

    def _pages(self, folded: str) -> set[str]:
        """Return the pages that a name may refer to.

        A page's own heading takes precedence over its file name. The file name of a table describes
        its rows, not a page.
        """
        stems = self._stems.get(folded, ())
        called = self._called.get(folded)
        return called or {title for title in stems if file_suffix(title) not in TABLES}

    def find_duplicates(self) -> Iterable[tuple[str, str]]:
        """Yield (row or entity, the thing with the same name) for all other such things."""
        for name, rows in self._rows.items():
            first = self.find_thing(name)
            yield from ((row, first) for row in rows if first not in (None, row))
        for title in self._entities:
            name = _fold(title)
            first = _unique(self._pages(name)) or next(iter(self._rows.get(name, ())), None)
            if first not in (None, title):
                yield title, first

    def merge_rows(self, deferred: Iterable[Fact], stored: Iterable[Fact]) -> dict[str, str]:
        """Map each row to the thing of its name, unless their facts contradict each other."""
        known_values: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        for subject, relation, value in (*stored, *deferred):
            if relation not in RESERVED_RELATIONS:
                known_values[subject][relation].add(value.casefold())
        moved = {}
        for row, first in self.find_duplicates():
            more, known = known_values[row], known_values[first]
            if row not in self._entities and all(known.get(r, v) == v for r, v in more.items()):
                moved[row] = first
                known.update(more)
        return moved


def find_short_names(headings: Mapping[str, str]) -> dict[str, str]:
    """Return page -> heading without the name of a site that many begin with ("Acme: Lamp")."""
    for separator in (": ", " - ", " – ", " | "):
        parts = {title: heading.split(separator, 1) for title, heading in headings.items()}
        first = Counter(some[0] for some in parts.values() if len(some) == 2).most_common(1)
        if first and first[0][1] >= max(SITE_PAGES, SITE_SHARE * len(headings)):
            site = first[0][0]
            return {t: some[1] for t, some in parts.items() if some[0] == site and len(some) == 2}
    return {}


def _fold(name: str) -> str:
    return fold_name(" ".join(name.split()))


def _is_name(folded: str) -> bool:
    return len(folded) > 1 and HAS_LETTER.search(folded) is not None


def _unique(found: Iterable[str] | None) -> str | None:
    """Return the only element, or None if there are several or none."""
    some = [*(found or ())]
    return some[0] if len(some) == 1 else None


def _has_path_suffix(title: str, path: str) -> bool:
    return f"/{fold_name(posixpath.splitext(title)[0])}".endswith(f"/{path}")
