"""Where a world's pages, facts and full-text index lie: one SQLite file, or memory.

SQLite comes with Python, ranks in C (FTS5, its BM25) and is safe for many readers. A world consists
of *sources*: units of change, such as a file, a shard or a whole data set, each with a stamp. An
update reads only the sources whose stamp is new, in one transaction of the write-ahead log: a
reader goes on in the state that it opened, and a killed writer leaves the old state.

A title counts four times as much as the text: that brings the page *about* Gabon before those that
merely mention it. A page's facts are searchable too, the first 60 of them: uncapped hubs made
searching slow (data_and_evaluation.md, b). The tokenizer keeps letters and digits only, and a name
like `json.dumps` is searched as the phrase "json dumps" besides its words; with '.' as a letter,
the last word of every sentence would be another word.

Left out: pages of one title in two sources (the second source is skipped and says so); shrinking
the log while an old reader still needs it.
"""

import hashlib
import json
import re
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from drlib.worlds.graph import Fact, Node
from drlib.worlds.reading import clean

FACTS_PER_PAGE, MORE = 60, "more facts"  # MORE: a page's line, no relation
MAX_TERMS = 64  # of a query
TITLE_WEIGHT = 4.0
WAIT_S = 600.0  # for another writer
FORMAT = 0x64726C02  # SQLite's application id of our files: "drl", and the format's number
STOP = frozenset("a an and are by for in is of on the to was what which who".split())
NAME = re.compile(r"\w\w+(?:[._]\w+)+")
WORD, LINKED = re.compile(r"[^\W_]+"), re.compile(r"\[(.+?)\]\([^\s:]+:\1\)")
# A row of `documents` has the rowid of its row in `pages`, which holds the text and the index.
TABLES = {
    "documents": "title, links",
    "nodes": "title, kind, aliases",
    "names": "folded, title",
    "facts": "subject, value, relation",
    "sources": "stamp, reason, digest",
}
NEW = "IF NOT EXISTS"
SCHEMA = f"BEGIN IMMEDIATE; CREATE VIRTUAL TABLE {NEW} pages USING fts5 (title, text, facts);"
for _table, _columns in TABLES.items():
    SCHEMA += f"CREATE TABLE {NEW} {_table} ({_columns}, source);"
    for _column in (*_columns.split(", ")[: 1 + (_table in ("names", "facts"))], "source"):
        SCHEMA += f"CREATE INDEX {NEW} {_table}_{_column} ON {_table} ({_column});"
SCHEMA += f"CREATE TABLE {NEW} world (name); PRAGMA application_id = {FORMAT}; COMMIT"
REMEDIES = {
    "SQLITE_BUSY": "another process is writing: wait until it has ended",
    "SQLITE_FULL": "the disk is full: make room there, or give another path",
}
# What a source tells something about, and all that it says.
TOLD = " UNION ".join(
    f"SELECT {what} WHERE source = :s"
    for what in (
        "subject FROM facts",
        "value FROM facts",
        "title FROM nodes",
        "title FROM documents",
    )
)
SAID = (
    "SELECT d.title, text, links FROM documents d JOIN pages p ON p.rowid = d.rowid"
    " WHERE source = ?",
    "SELECT title, kind, aliases FROM nodes WHERE source = ?",
    "SELECT subject, value, relation FROM facts WHERE source = ?",
)


class Document(NamedTuple):
    """A page without its facts; `links` are titles, of which those that exist are kept."""

    title: str
    text: str
    links: tuple[str, ...] = ()


class Part(NamedTuple):
    """What one source holds. Every node should have a document."""

    documents: Iterable[Document] = ()
    nodes: Iterable[Node] = ()
    facts: Iterable[Fact] = ()


class Skip(Exception):
    """Raised while a source is read: why it is left out while the others go on."""


class Changes(NamedTuple):
    """The sources that an update read or dropped, sorted; `skipped`: all that are left out."""

    added: list[str]
    updated: list[str]
    removed: list[str]
    skipped: dict[str, str]  # source -> reason


class Store:
    """Pages, facts and index at `path`, or in memory. From `update` on it shows one state, that of
    its last `update`, whatever others write; safe from many threads. `world` says whose they are.

    ValueError: the file at `path` is something else, another world's, damaged or locked, or the
    world would have no pages. It is left as it is.
    """

    def __init__(self, path: Path | None = None, world: str = ""):
        self.path, self.world, self.changes = path and Path(path), world, None
        self._lock, self._db = threading.RLock(), None

    def update(self, stamps: Mapping[str, str], read: Callable[[str], Part]) -> Changes:
        """Make the sources those of `stamps`: `read` each that is new or has another stamp, and
        then, if there are any, those of stamp "", which are made of the others. All or nothing:
        whatever `read` raises, but for `Skip`, leaves the old state and is raised. What was skipped
        is tried again each time. The file is made only here."""
        with self._lock, self._damage():
            self._db = self._db or self._open()
            self._begin("BEGIN")
            due, left = self._due(stamps), "SELECT 1 FROM sources WHERE reason NOT NULL"
            if any(due) or self.rows(left) or not self.rows("SELECT 1 FROM documents LIMIT 1"):
                self._begin("BEGIN IMMEDIATE")
                with self._db:
                    due = self._change(stamps, read)
                # the file alone is complete then, unless a reader still needs its old state
                self._db.execute("PRAGMA wal_checkpoint")
                self._begin("BEGIN")
            # reading also fixes the state that is seen from now on
            skipped = dict(self.rows("SELECT source, reason FROM sources WHERE reason NOT NULL"))
            kept = ([s for s in some if s not in skipped] for some in due)
            self.changes = Changes(*kept, dict(sorted(skipped.items())))
            return self.changes

    def _open(self) -> sqlite3.Connection:
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        where = self.path or ":memory:"
        db = sqlite3.connect(where, WAIT_S, isolation_level=None, check_same_thread=False)
        (ours,) = db.execute("PRAGMA application_id").fetchone()
        if ours != FORMAT:
            if ours or db.execute("SELECT 1 FROM sqlite_master").fetchone():
                raise sqlite3.DatabaseError("not an index of this version of drlib")
            db.execute("PRAGMA journal_mode = WAL")
            db.executescript(SCHEMA)
        return db

    def _begin(self, how: str) -> None:
        self._db.rollback()
        self._db.execute(how)

    def _due(self, stamps: Mapping[str, str]) -> tuple[list[str], list[str], list[str]]:
        """The sources that are new or were skipped, changed, and gone."""
        for (other,) in self.rows("SELECT name FROM world WHERE name != ?", self.world):
            remedy = "give each world an index_path of its own, or move this file away"
            raise ValueError(f"{self.path} is the index of {other}, not of {self.world}: {remedy}")
        old = dict(self.rows("SELECT source, stamp FROM sources WHERE reason IS NULL"))
        changed = [source for source in stamps if old.get(source, stamps[source]) != stamps[source]]
        added, gone = sorted(stamps.keys() - old), sorted(old.keys() - stamps)
        if added or changed or gone:
            changed += [source for source in stamps if not stamps[source] and source in old]
        return added, sorted(changed), gone

    def _change(self, stamps: Mapping[str, str], read: Callable[[str], Part]):
        """`update` inside its transaction; what was due."""
        run, stale = self._db.execute, set()
        run("DELETE FROM sources WHERE reason NOT NULL")
        added, changed, gone = due = self._due(stamps)
        for source in (*changed, *gone):
            stale.update(run(TOLD, {"s": source}))
            rows = "rowid IN (SELECT rowid FROM documents WHERE source = ?)"
            for table, which in ("pages", rows), *((table, "source = ?") for table in TABLES):
                run(f"DELETE FROM {table} WHERE {which}", (source,))
        for source in sorted((*added, *changed), key=lambda source: not stamps[source]):
            reason = None
            run("SAVEPOINT source")
            try:
                self._add(source, read(source))
            except Skip as skip:
                run("ROLLBACK TO source")
                reason = str(skip)
            run("RELEASE source")
            stale.update(run(TOLD, {"s": source}))
            row = stamps[source], reason, self._digest(source), source
            run("INSERT INTO sources VALUES (?, ?, ?, ?)", row)
        if not self.rows("SELECT 1 FROM documents LIMIT 1"):
            why = self.rows("SELECT source, reason FROM sources WHERE reason NOT NULL LIMIT 3")
            raise ValueError(f"{self.world or self.path}: no pages in it; left out: {why}")
        run("INSERT INTO world SELECT ? WHERE NOT EXISTS (SELECT 1 FROM world)", (self.world,))
        for (title,) in sorted(stale):
            sql = "SELECT DISTINCT folded FROM names WHERE title = ? AND folded != ? ORDER BY 1"
            names = [name for (name,) in self.rows(sql, title, title.casefold())]
            facts = [f"{relation} {value}" for relation, value, _ in self.facts(title)]
            text = "; ".join([*names, *facts[:FACTS_PER_PAGE]]) or None
            row = "rowid = (SELECT rowid FROM documents WHERE title = ?)"
            run(f"UPDATE pages SET facts = ? WHERE {row} AND facts IS NOT ?", (text, title, text))
        return due

    def _add(self, source: str, part: Part) -> None:
        """Write a source's rows."""
        run = self._db.execute
        for title, text, links in part.documents:
            title, links = one_line(title), json.dumps([one_line(link) for link in links])
            for (other,) in self.rows("SELECT source FROM documents WHERE title = ?", title):
                raise Skip(f"{title!r} is already a page of {other!r}: give it another title")
            row = run("INSERT INTO documents VALUES (?, ?, ?)", (title, links, source)).lastrowid
            run("INSERT INTO pages (rowid, title, text) VALUES (?, ?, ?)", (row, title, text))
            run("INSERT INTO names VALUES (?, ?, ?)", (title.casefold(), title, source))
        for title, kind, aliases in part.nodes:
            title = one_line(title)
            run("INSERT INTO nodes VALUES (?, ?, ?, ?)", (title, kind, json.dumps(aliases), source))
            for alias in aliases:
                run("INSERT INTO names VALUES (?, ?, ?)", (alias.casefold(), title, source))
        for fact in part.facts:
            subject, relation, value = fact = [one_line(text) for text in fact]
            if not all(fact) or relation.endswith(" of") or ": " in relation or relation == MORE:
                raise ValueError(f"{source}: {fact} has an empty part or a wrong relation")
            run("INSERT INTO facts VALUES (?, ?, ?, ?)", (subject, value, relation, source))

    def _digest(self, source: str) -> str:
        """A SHA-256 of what a source says, whatever the order."""
        digest = hashlib.sha256()
        for sql in SAID:
            for row in self._db.execute(f"{sql} ORDER BY 1, 2, 3", (source,)):
                digest.update(json.dumps(row).encode())
        return digest.hexdigest()

    @contextmanager
    def _damage(self) -> Iterator[None]:
        """Names the file and the remedy where SQLite cannot use it, or not any more."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            remedy = REMEDIES.get(
                getattr(error, "sqlite_errorname", ""),
                "move it away to have the index made again, or give another path",
            )
            raise ValueError(f"{self.path} cannot be used ({error}): {remedy}") from error

    def rows(self, sql: str, *values) -> list[tuple]:
        """The rows of a query on the state that was opened."""
        with self._lock, self._damage():
            return self._db.execute(sql, values).fetchall()

    def names(self, name: str) -> list[str]:
        """The pages that `name`, in any case, is the title (these first) or an alias of."""
        sql = "SELECT DISTINCT title FROM names JOIN documents USING (title) WHERE folded = ?"
        folded = clean(name).casefold()
        found = [title for (title,) in self.rows(sql, folded)]
        return sorted(found, key=lambda title: (title.casefold() != folded, title != name, title))

    def search(self, query: str, k: int) -> list[str]:
        """Titles of the `k` best pages for the words of `query`, best first; [] when none match."""
        terms = list(dict.fromkeys(words(clean(query))))[:MAX_TERMS]  # a repeated query costs time
        match = " OR ".join(f'"{term}"' for term in terms)
        order = "ORDER BY bm25(pages, ?, 1.0, 1.0), title LIMIT ?"
        sql = f"SELECT title FROM pages WHERE pages MATCH ? {order}"
        return [title for (title,) in self.rows(sql, match, TITLE_WEIGHT, k)] if match else []

    def facts(self, title: str) -> list[tuple[str, str, int]]:
        """(relation, value, whether the value has a page), inverses included, sorted."""
        return self.rows(
            "SELECT relation, value, EXISTS (SELECT 1 FROM documents WHERE title = value) FROM ("
            "SELECT relation, value FROM facts WHERE subject = ?1 UNION"
            " SELECT relation || ' of', subject FROM facts WHERE value = ?1) ORDER BY 1, 2",
            title,
        )

    @property
    def version(self) -> str:
        """First 12 hex digits of a SHA-256 over documents, nodes and facts."""
        found = self.rows("SELECT digest FROM sources WHERE reason IS NULL ORDER BY 1")
        return hashlib.sha256(json.dumps(found).encode()).hexdigest()[:12]


def one_line(text: str) -> str:
    """`text` as titles, relations and values are kept: on one line, and without what would be read
    on a page as the "; " between values or as a link."""
    text = " ".join(text.split()).replace("; ", ", ")
    return text.replace("](", "] (") if "](" in text and LINKED.search(text) else text


def words(text: str) -> list[str]:
    """What to search for: names such as `json.dumps` and all words, but for the most common."""
    found = WORD.findall(text)
    return NAME.findall(text) + ([w for w in found if w.casefold() not in STOP] or found)
