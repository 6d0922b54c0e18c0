"""Where a world's pages, facts and full-text index lie: one SQLite file, or memory.

SQLite comes with Python, ranks in C (FTS5, its BM25) and is safe for many readers. A world consists
of *sources*: units of change, such as a file, a shard or a whole data set, each with a stamp. An
update reads only the sources whose stamp is new, in one transaction of the write-ahead log: a
reader goes on in the state that it opened, and a killed writer leaves the old state.
`drlib.worlds.ranking` adds that BM25 up, for the state that is shown.

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
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from drlib.worlds.graph import Fact, Node
from drlib.worlds.reading import clean

FACTS_PER_PAGE = 60
MORE_FACTS = "more facts"  # how a page's line to its next part begins: no relation
MAX_TERMS = 64  # of a query
WAIT_S = 600.0  # for another writer
FILE_FORMAT = 0x64726C02  # SQLite's application id of our files: "drl", and the format's number
STOP = frozenset("a an and are by for in is of on the to was what which who".split())
DOTTED_NAME = re.compile(r"\w\w+(?:[._]\w+)+")
WORD = re.compile(r"[^\W_]+")
LINKED_TITLE = re.compile(r"\[(.+?)\]\([^\s:]+:\1\)")
TITLE_WEIGHT = 4.0  # of a title's words against those of the text
MAX_RANKED = 4_000_000  # pages in all cached terms, 12 bytes each
TERM_SCORES = "SELECT rowid, bm25(pages, ?, 1.0, 1.0) FROM pages WHERE pages MATCH ?"
ROW = np.dtype([("page", np.int64), ("score", np.float64)])
# A row of `documents` has the rowid of its row in `pages`, which holds the text and the index.
TABLES = {
    "documents": "title, links",
    "nodes": "title, kind, aliases",
    "names": "folded, title",
    "facts": "subject, value, relation",
    "sources": "stamp, reason, digest",
}
INDEXED = {"names": 2, "facts": 2}  # how many of a table's first columns have an index: else one


def _schema() -> str:
    """SQL that makes the tables and indexes that are not there yet."""
    new = "IF NOT EXISTS"
    statements = [f"CREATE VIRTUAL TABLE {new} pages USING fts5 (title, text, facts)"]
    for table, columns in TABLES.items():
        statements.append(f"CREATE TABLE {new} {table} ({columns}, source)")
        indexed = columns.split(", ")[: INDEXED.get(table, 1)]
        statements += [
            f"CREATE INDEX {new} {table}_{column} ON {table} ({column})"
            for column in (*indexed, "source")
        ]
    statements.append(f"CREATE TABLE {new} world (name)")
    statements.append(f"PRAGMA application_id = {FILE_FORMAT}")
    return "; ".join(["BEGIN IMMEDIATE", *statements, "COMMIT"])


REMEDIES = {
    "SQLITE_BUSY": "another process is writing: wait until it has ended",
    "SQLITE_FULL": "the disk is full: make room there, or give another path",
}
# What a source tells something about.
TOLD_ABOUT = " UNION ".join(
    f"SELECT {what} WHERE source = :s"
    for what in (
        "subject FROM facts",
        "value FROM facts",
        "title FROM nodes",
        "title FROM documents",
    )
)
# All that it says.
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


class Ranking:
    """Ranks the pages that `db` shows; for one state, and one thread at a time."""

    def __init__(self, db: sqlite3.Connection):
        self._db = db
        rows = db.execute("SELECT rowid FROM documents ORDER BY title")
        self._pages = np.fromiter((page for (page,) in rows), np.int64)  # by title
        self._places = np.argsort(self._pages).astype(np.int32)  # of the pages by number
        self._numbers = self._pages[self._places]
        self._added: dict[str, tuple[np.ndarray, np.ndarray]] = {}  # last used last
        self._kept = 0

    def best(self, terms: Sequence[str], k: int) -> list[int]:
        """The rows of the `k` best pages that have any of the `terms`, each a word or a phrase;
        pages of one score by title."""
        scores = np.zeros(len(self._pages))
        for term in terms:
            places, added = self._of(term)
            scores[places] += added  # SQLite's: the lower, the better, and never 0
        found = np.flatnonzero(scores)
        reached = scores[found]
        if len(found) > k:
            is_near = reached <= np.partition(reached, k - 1)[k - 1]
            found, reached = found[is_near], reached[is_near]
        order = np.argsort(reached, kind="stable")[:k]
        return self._pages[found[order]].tolist()

    def _of(self, term: str) -> tuple[np.ndarray, np.ndarray]:
        """(places in `_pages` of those that have `term`, what it adds to their scores)."""
        known = self._added.pop(term, None)
        if known is None:
            rows = self._db.execute(TERM_SCORES, (TITLE_WEIGHT, f'"{term}"'))
            made = np.fromiter(rows, ROW)
            places = self._places[np.searchsorted(self._numbers, made["page"])]
            known = places, made["score"].copy()
            self._kept += len(places)
        self._added[term] = known
        while self._kept > MAX_RANKED and len(self._added) > 1:
            oldest = next(iter(self._added))
            self._kept -= len(self._added.pop(oldest)[0])
        return known


class Store:
    """Pages, facts and index at `path`, or in memory. From `update` on it shows one state, that of
    its last `update`, whatever others write; safe from many threads. `world` says whose they are.

    ValueError: the file at `path` is something else, another world's, damaged or locked, or the
    world would have no pages. It is left as it is.
    """

    def __init__(self, path: Path | None = None, world: str = ""):
        self.path = Path(path) if path else None
        self.world = world
        self.changes: Changes | None = None
        self._lock = threading.RLock()
        self._db: sqlite3.Connection | None = None
        self._ranking: Ranking | None = None  # of the state that is shown

    def update(
        self,
        stamps: Mapping[str, str],
        read: Callable[[str], Part],
        expect: Callable[[list[str]], None] | None = None,
    ) -> Changes:
        """Make the sources those of `stamps`: `read` each that is new or has another stamp, and
        then, if there are any, those of stamp "", which are made of the others. All or nothing:
        whatever `read` raises, but for `Skip`, leaves the old state and is raised. What was skipped
        is tried again each time. The file is made only here. `expect` is told before the first is
        read which ones will be, in their order."""
        with self._lock, self._damage():
            self._db = self._db or self._open()
            self._ranking = None
            self._begin("BEGIN")
            due = self._due(stamps)
            skipped = self.rows("SELECT 1 FROM sources WHERE reason NOT NULL")
            pages = self.rows("SELECT 1 FROM documents LIMIT 1")
            if any(due) or skipped or not pages:
                self._begin("BEGIN IMMEDIATE")
                with self._db:
                    due = self._change(stamps, read, expect)
                # the file alone is complete then, unless a reader still needs its old state
                self._db.execute("PRAGMA wal_checkpoint")
                self._begin("BEGIN")
            # reading also fixes the state that is seen from now on
            reasons = dict(self.rows("SELECT source, reason FROM sources WHERE reason NOT NULL"))
            done = ([source for source in some if source not in reasons] for some in due)
            self.changes = Changes(*done, dict(sorted(reasons.items())))
            return self.changes

    def _open(self) -> sqlite3.Connection:
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        where = self.path or ":memory:"
        db = sqlite3.connect(where, WAIT_S, isolation_level=None, check_same_thread=False)
        db.execute("BEGIN")  # one state for both questions: another process may be making the file
        (ours,) = db.execute("PRAGMA application_id").fetchone()
        is_filled = db.execute("SELECT 1 FROM sqlite_master").fetchone()
        db.execute("COMMIT")
        if ours != FILE_FORMAT:
            if ours or is_filled:
                raise sqlite3.DatabaseError("not an index of this version of drlib")
            _log_ahead(db)
            db.executescript(_schema())
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
        added = sorted(stamps.keys() - old)
        gone = sorted(old.keys() - stamps)
        known = [source for source in stamps if source in old]
        changed = [source for source in known if old[source] != stamps[source]]
        if added or changed or gone:  # then what is made of the others is due as well
            changed += [source for source in known if not stamps[source]]
        return added, sorted(changed), gone

    def _change(
        self,
        stamps: Mapping[str, str],
        read: Callable[[str], Part],
        expect: Callable[[list[str]], None] | None,
    ) -> tuple[list[str], list[str], list[str]]:
        """`update` inside its transaction; what was due."""
        self._db.execute("DELETE FROM sources WHERE reason NOT NULL")
        added, changed, gone = due = self._due(stamps)
        stale: set[tuple[str]] = set()  # titles whose page has to be indexed again
        for source in (*changed, *gone):
            stale.update(self._db.execute(TOLD_ABOUT, {"s": source}))
            self._remove(source)
        # those of stamp "" last: they are made of the others
        order = sorted((*added, *changed), key=lambda source: not stamps[source])
        if expect is not None:
            expect(order)
        for source in order:
            self._read(source, stamps[source], read)
            stale.update(self._db.execute(TOLD_ABOUT, {"s": source}))
        if not self.rows("SELECT 1 FROM documents LIMIT 1"):
            why = self.rows("SELECT source, reason FROM sources WHERE reason NOT NULL LIMIT 3")
            raise ValueError(f"{self.world or self.path}: no pages in it; left out: {why}")
        own = "INSERT INTO world SELECT ? WHERE NOT EXISTS (SELECT 1 FROM world)"
        self._db.execute(own, (self.world,))
        for (title,) in sorted(stale):
            self._index_facts(title)
        return due

    def _remove(self, source: str) -> None:
        """Delete all that a source says."""
        pages = "rowid IN (SELECT rowid FROM documents WHERE source = ?)"
        self._db.execute(f"DELETE FROM pages WHERE {pages}", (source,))
        for table in TABLES:
            self._db.execute(f"DELETE FROM {table} WHERE source = ?", (source,))

    def _read(self, source: str, stamp: str, read: Callable[[str], Part]) -> None:
        """Read a source and write its rows, or why it was skipped."""
        reason = None
        self._db.execute("SAVEPOINT source")
        try:
            self._add(source, read(source))
        except Skip as skip:
            self._db.execute("ROLLBACK TO source")
            reason = str(skip)
        self._db.execute("RELEASE source")
        row = (stamp, reason, self._digest(source), source)
        self._db.execute("INSERT INTO sources VALUES (?, ?, ?, ?)", row)

    def _index_facts(self, title: str) -> None:
        """Make the other names and the facts of a page searchable."""
        sql = "SELECT DISTINCT folded FROM names WHERE title = ? AND folded != ? ORDER BY 1"
        names = [name for (name,) in self.rows(sql, title, title.casefold())]
        facts = [f"{relation} {value}" for relation, value, _ in self.facts(title)]
        text = "; ".join([*names, *facts[:FACTS_PER_PAGE]]) or None
        row = "rowid = (SELECT rowid FROM documents WHERE title = ?)"
        update = f"UPDATE pages SET facts = ? WHERE {row} AND facts IS NOT ?"
        self._db.execute(update, (text, title, text))

    def _add(self, source: str, part: Part) -> None:
        """Write a source's rows."""
        run = self._db.execute
        name = "INSERT INTO names VALUES (?, ?, ?)"
        for title, text, links in part.documents:
            title = one_line(title)
            for (other,) in self.rows("SELECT source FROM documents WHERE title = ?", title):
                raise Skip(f"{title!r} is already a page of {other!r}: give it another title")
            document = (title, json.dumps([one_line(link) for link in links]), source)
            row = run("INSERT INTO documents VALUES (?, ?, ?)", document).lastrowid
            run("INSERT INTO pages (rowid, title, text) VALUES (?, ?, ?)", (row, title, text))
            run(name, (title.casefold(), title, source))
        for title, kind, aliases in part.nodes:
            title = one_line(title)
            run("INSERT INTO nodes VALUES (?, ?, ?, ?)", (title, kind, json.dumps(aliases), source))
            for alias in aliases:
                run(name, (alias.casefold(), title, source))
        for fact in part.facts:
            cleaned = [one_line(text) for text in fact]
            subject, relation, value = cleaned
            is_ours = relation.endswith(" of") or ": " in relation or relation == MORE_FACTS
            if not all(cleaned) or is_ours:
                raise ValueError(f"{source}: {cleaned} has an empty part or a wrong relation")
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
        terms = list(dict.fromkeys(search_terms(clean(query))))  # a repeated query costs time
        if not terms:
            return []
        with self._lock, self._damage():
            self._ranking = self._ranking or Ranking(self._db)
            best = self._ranking.best(terms[:MAX_TERMS], k)
            sql = "SELECT title FROM documents WHERE rowid = ?"
            return [self._db.execute(sql, (row,)).fetchone()[0] for row in best]

    def facts(self, title: str) -> list[tuple[str, str, int]]:
        """(relation, value, whether the value has a page), inverses included, sorted."""
        return self.rows(
            "SELECT relation, value, EXISTS (SELECT 1 FROM documents WHERE title = value) FROM ("
            "SELECT relation, value FROM facts WHERE subject = ? UNION"
            " SELECT relation || ' of', subject FROM facts WHERE value = ?) ORDER BY 1, 2",
            title,
            title,
        )

    @property
    def version(self) -> str:
        """First 12 hex digits of a SHA-256 over documents, nodes and facts."""
        found = self.rows("SELECT digest FROM sources WHERE reason IS NULL ORDER BY 1")
        return hashlib.sha256(json.dumps(found).encode()).hexdigest()[:12]


def _log_ahead(db: sqlite3.Connection) -> None:
    """Switch a new file to write-ahead logging; sqlite3.OperationalError after `WAIT_S`.

    Where several processes make one file SQLite does not wait here, as two might wait for each
    other: it says at once that the file is locked, and the next try finds it free, or switched.
    """
    until = time.monotonic() + WAIT_S
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as fault:
            if fault.sqlite_errorname != "SQLITE_BUSY" or time.monotonic() > until:
                raise
            time.sleep(0.01)


def one_line(text: str) -> str:
    """`text` as titles, relations and values are kept: on one line, and without what would be read
    on a page as the "; " between values or as a link."""
    text = " ".join(text.split()).replace("; ", ", ")
    holds_link = "](" in text and LINKED_TITLE.search(text)
    return text.replace("](", "] (") if holds_link else text


def search_terms(text: str) -> list[str]:
    """What to search for: names such as `json.dumps` and all words, but for the most common."""
    found = WORD.findall(text)
    rare = [word for word in found if word.casefold() not in STOP]
    return DOTTED_NAME.findall(text) + (rare or found)
