"""Pages, facts and full-text index of a world in one SQLite file, or in memory.

SQLite comes with Python, ranks in C (FTS5 with BM25) and supports many concurrent readers. A world
consists of *sources*, its units of change (a file, a shard, a data set), each with a stamp. An
update reads only sources with a new stamp, in one transaction of the write-ahead log: readers keep
the state that they opened, and a killed writer leaves the old state.

A title is weighted four times as much as the text, which ranks the page *about* Gabon above pages
that mention it. The first 60 facts of a page are searchable; without this limit hubs made searches
slow (data_and_evaluation.md, b). The tokenizer keeps letters and digits only. A name such as
`json.dumps` is searched both as the phrase "json dumps" and by its words; '.' as a letter would
change the last word of every sentence.

Not implemented: pages with one title in two sources (the second source is skipped and reported);
truncating the log while a reader uses it.
"""

import hashlib
import json
import math
import re
import sqlite3
import threading
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from drlib.worlds.graph import Fact, Node
from drlib.worlds.reading import clean
from drlib.worlds.terms import derived_terms, fold_name, query_weights

FACTS_PER_PAGE = 60
MORE_FACTS = "more facts"  # reserved: begins the line with the next part of a page
WAIT_S = 600.0  # seconds to wait for another writer
FILE_FORMAT = 0x64726C03  # SQLite application id: "drl" and the format version
LINKED_TITLE = re.compile(r"\[(.+?)\]\([^\s:]+:\1\)")
TITLE_WEIGHT = 4.0  # weight of title words relative to text
MAX_RANKED = 4_000_000  # pages over all cached terms, 12 bytes each
TERM_SCORES = "SELECT rowid, bm25({0}, ?, 1.0, 1.0) FROM {0} WHERE {0} MATCH ?"
ROW = np.dtype([("page", np.int64), ("score", np.float64)])
# A row of `documents` has the rowid of its row in `pages`, which contains text and index, and in
# `derived`, which contains the terms that the tokenizer of `pages` does not find. It is a separate
# table, since more terms in `pages` would change the length of a page and with it all scores.
TABLES = {
    "documents": "title, links",
    "nodes": "title, kind, aliases",
    "names": "folded, title",
    "facts": "subject, value, relation",
    "sources": "stamp, reason, digest",
}
INDEXED = {"names": 2, "facts": 2}  # number of leading columns with an index; default 1


def _schema() -> str:
    """Return the SQL that creates missing tables and indexes."""
    new = "IF NOT EXISTS"
    statements = [
        f"CREATE VIRTUAL TABLE {new} pages USING fts5 (title, text, facts)",
        f"CREATE VIRTUAL TABLE {new} derived USING fts5 (title, text, facts,"
        " tokenize = \"unicode61 categories 'L* N* Co M*'\")",
    ]
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
    "SQLITE_BUSY": "another process is writing: wait until it ends",
    "SQLITE_FULL": "the disk is full: free space, or use another path",
}
# Titles that a source describes.
AFFECTED_TITLES = " UNION ".join(
    f"SELECT {what} WHERE source = :s"
    for what in (
        "subject FROM facts",
        "value FROM facts",
        "title FROM nodes",
        "title FROM documents",
    )
)
# All rows of a source, for its digest.
SOURCE_ROWS = (
    "SELECT d.title, text, links FROM documents d JOIN pages p ON p.rowid = d.rowid"
    " WHERE source = ?",
    "SELECT title, kind, aliases FROM nodes WHERE source = ?",
    "SELECT subject, value, relation FROM facts WHERE source = ?",
)


class Document(NamedTuple):
    """A page without its facts; `links` are titles, of which existing ones are kept."""

    title: str
    text: str
    links: tuple[str, ...] = ()


class Part(NamedTuple):
    """Contents of one source. Every node should have a document."""

    documents: Iterable[Document] = ()
    nodes: Iterable[Node] = ()
    facts: Iterable[Fact] = ()


class Skip(Exception):
    """Raised by a reader to leave out one source, with the reason."""


class Changes(NamedTuple):
    """Sorted sources that an update read or removed; `skipped` maps omitted ones to a reason."""

    added: list[str]
    updated: list[str]
    removed: list[str]
    skipped: dict[str, str]  # source -> reason


class Ranking:
    """BM25 ranking of the pages in `db`; for one state and one thread at a time.

    BM25 is a sum over the words of a query (Robertson and Zaragoza, 2009, "The Probabilistic
    Relevance Framework: BM25 and Beyond", equation 3.15), and the contribution of a word does not
    depend on the others. SQLite recomputes the sum for each page with any of the words, which was
    most of the time of a search in plain English. Here the contribution of each word is fetched
    once from SQLite, and a query adds arrays in SQLite's order. Scores, ties included, are
    bit-identical to one query with OR.

    Arrays are created at a word's first use. The least recently used ones are dropped above
    `MAX_RANKED` pages in total. Dropping common words or early stopping (Turtle and Flood, 1995) is
    not needed, since adding is no longer the bottleneck. A separate engine such as tantivy would
    need a second file kept consistent with the first through killed writers and readers of an older
    state.
    """

    def __init__(self, db: sqlite3.Connection):
        self._db = db
        rows = db.execute("SELECT rowid FROM documents ORDER BY title")
        self._pages = np.fromiter((page for (page,) in rows), np.int64)  # sorted by title
        self._places = np.argsort(self._pages).astype(np.int32)  # positions sorted by row id
        self._numbers = self._pages[self._places]
        ((self._derived_pages,),) = db.execute("SELECT COUNT(*) FROM derived_docsize")
        # most recently used last
        self._scores_by_term: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self._cached_pages = 0

    def best(self, weights: Mapping[str, int], k: int) -> list[int]:
        """Return the row ids of the `k` best pages with any of the terms (words or phrases).

        Pages with equal scores are ordered by title.

        Args:
            weights: term -> factor of its contribution.
        """
        scores = np.zeros(len(self._pages))
        for term, weight in weights.items():
            places, added = self._term_scores(term)
            scores[places] += weight * added  # SQLite's scores: lower is better, never 0
        found = np.flatnonzero(scores)
        reached = scores[found]
        if len(found) > k:
            is_near = reached <= np.partition(reached, k - 1)[k - 1]
            found, reached = found[is_near], reached[is_near]
        order = np.argsort(reached, kind="stable")[:k]
        return self._pages[found[order]].tolist()

    def _term_scores(self, term: str) -> tuple[np.ndarray, np.ndarray]:
        """Return (positions of the pages with `term`, its contribution to their scores)."""
        known = self._scores_by_term.pop(term, None)
        if known is None:
            known = self._table_scores("pages", term)
            if self._derived_pages:
                known = self._add_derived(term, *known)
            places = known[0]
            self._cached_pages += len(places)
        self._scores_by_term[term] = known
        while self._cached_pages > MAX_RANKED and len(self._scores_by_term) > 1:
            oldest = next(iter(self._scores_by_term))
            self._cached_pages -= len(self._scores_by_term.pop(oldest)[0])
        return known

    def _table_scores(self, table: str, term: str) -> tuple[np.ndarray, np.ndarray]:
        """Return (positions of the pages with `term`, its scores) by one full-text table."""
        phrase = f'"{term[:-1]}"*' if term.endswith("*") else f'"{term}"'
        rows = self._db.execute(TERM_SCORES.format(table), (TITLE_WEIGHT, phrase))
        made = np.fromiter(rows, ROW)
        return self._places[np.searchsorted(self._numbers, made["page"])], made["score"].copy()

    def _add_derived(
        self, term: str, places: np.ndarray, scores: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Add the scores by derived terms, with the rarity of `term` among all pages."""
        derived, added = self._table_scores("derived", term)
        if not len(derived):
            return places, scores
        added *= _rarity(len(self._pages), len(derived)) / _rarity(
            self._derived_pages, len(derived)
        )
        both = np.union1d(places, derived)
        total = np.zeros(len(both))
        total[np.searchsorted(both, places)] += scores
        total[np.searchsorted(both, derived)] += added
        return both, total


def _rarity(pages: int, with_term: int) -> float:
    """Return the inverse document frequency of a term as in SQLite's bm25()."""
    return max(math.log((pages - with_term + 0.5) / (with_term + 0.5)), 1e-6)


class Store:
    """Pages, facts and index at `path`, or in memory; safe for many threads.

    After `update` it shows the state of that update, whatever other processes write.

    Args:
        path: SQLite file; None: in memory.
        world: identifies the world that the file belongs to.

    Raises:
        ValueError: the file is something else, of another world, damaged or locked, or the world
            would have no pages. The file is left unchanged.
    """

    def __init__(self, path: Path | None = None, world: str = ""):
        self.path = Path(path) if path else None
        self.world = world
        self.changes: Changes | None = None
        self._lock = threading.RLock()
        self._db: sqlite3.Connection | None = None
        self._ranking: Ranking | None = None  # ranking of the current state

    @classmethod
    def of(cls, texts: Mapping[str, str]) -> "Store":
        """Return a store in memory with one page per title.

        Args:
            texts: title -> text.

        Example:
            >>> Store.of({"Krone": "Money of Norway.", "Alta": "A town."}).search("money", 1)
            ['Krone']
        """
        store = cls()
        documents = [Document(title, text) for title, text in texts.items()]
        store.update({"texts": "1"}, lambda _: Part(documents))
        return store

    def update(
        self,
        stamps: Mapping[str, str],
        read: Callable[[str], Part],
        expect: Callable[[list[str]], None] | None = None,
    ) -> Changes:
        """Update the index to the sources of `stamps`, atomically.

        New sources and those with another stamp are read, then those with stamp "", which are
        derived from the others. Any error of `read` except `Skip` leaves the old state and is
        raised. Skipped sources are retried at each update. The file is created here.

        Args:
            stamps: source -> stamp.
            read: returns the contents of a source.
            expect: called with the sources to be read, in order, before the first one.
        """
        with self._lock, self._report_damage():
            self._db = self._db or self._open()
            self._ranking = None
            self._begin("BEGIN")
            due = self._find_changes(stamps)
            skipped = self.rows("SELECT 1 FROM sources WHERE reason NOT NULL")
            pages = self.rows("SELECT 1 FROM documents LIMIT 1")
            if any(due) or skipped or not pages:
                self._begin("BEGIN IMMEDIATE")
                with self._db:
                    due = self._change(stamps, read, expect)
                # moves the log into the file, unless a reader still needs the old state
                self._db.execute("PRAGMA wal_checkpoint")
                self._begin("BEGIN")
            # this read also fixes the visible state
            reasons = dict(self.rows("SELECT source, reason FROM sources WHERE reason NOT NULL"))
            added, updated, removed = (
                [source for source in some if source not in reasons] for some in due
            )
            self.changes = Changes(added, updated, removed, dict(sorted(reasons.items())))
            return self.changes

    def _open(self) -> sqlite3.Connection:
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        where = self.path or ":memory:"
        db = sqlite3.connect(where, WAIT_S, isolation_level=None, check_same_thread=False)
        # one transaction for both queries: another process may be creating the file
        db.execute("BEGIN")
        (ours,) = db.execute("PRAGMA application_id").fetchone()
        is_filled = db.execute("SELECT 1 FROM sqlite_master").fetchone()
        db.execute("COMMIT")
        if ours != FILE_FORMAT:
            if ours or is_filled:
                raise sqlite3.DatabaseError("not an index of this version of drlib")
            _enable_wal(db)
            db.executescript(_schema())
        return db

    def _begin(self, how: str) -> None:
        self._db.rollback()
        self._db.execute(how)

    def _find_changes(self, stamps: Mapping[str, str]) -> tuple[list[str], list[str], list[str]]:
        """Return the sources that are new or were skipped, changed, and removed."""
        for (other,) in self.rows("SELECT name FROM world WHERE name != ?", self.world):
            remedy = "use one index_path per world, or move this file"
            raise ValueError(f"{self.path} is the index of {other}, not of {self.world}: {remedy}")
        old = dict(self.rows("SELECT source, stamp FROM sources WHERE reason IS NULL"))
        added = sorted(stamps.keys() - old)
        gone = sorted(old.keys() - stamps)
        known = [source for source in stamps if source in old]
        changed = [source for source in known if old[source] != stamps[source]]
        if added or changed or gone:  # derived sources are then outdated, too
            changed += [source for source in known if not stamps[source]]
        return added, sorted(changed), gone

    def _change(
        self,
        stamps: Mapping[str, str],
        read: Callable[[str], Part],
        expect: Callable[[list[str]], None] | None,
    ) -> tuple[list[str], list[str], list[str]]:
        """Apply `update` inside its transaction; return the changed sources."""
        self._db.execute("DELETE FROM sources WHERE reason NOT NULL")
        added, changed, gone = due = self._find_changes(stamps)
        stale: set[tuple[str]] = set()  # titles to be indexed again
        for source in (*changed, *gone):
            stale.update(self._db.execute(AFFECTED_TITLES, {"s": source}))
            self._remove(source)
        # derived sources (stamp "") last
        order = sorted((*added, *changed), key=lambda source: not stamps[source])
        if expect is not None:
            expect(order)
        for source in order:
            self._read(source, stamps[source], read)
            stale.update(self._db.execute(AFFECTED_TITLES, {"s": source}))
        if not self.rows("SELECT 1 FROM documents LIMIT 1"):
            why = self.rows("SELECT source, reason FROM sources WHERE reason NOT NULL LIMIT 3")
            raise ValueError(f"{self.world or self.path}: no pages; skipped: {why}")
        own = "INSERT INTO world SELECT ? WHERE NOT EXISTS (SELECT 1 FROM world)"
        self._db.execute(own, (self.world,))
        for (title,) in sorted(stale):
            self._index_facts(title)
        return due

    def _remove(self, source: str) -> None:
        """Delete all rows of a source."""
        pages = "rowid IN (SELECT rowid FROM documents WHERE source = ?)"
        for table in ("pages", "derived"):
            self._db.execute(f"DELETE FROM {table} WHERE {pages}", (source,))
        for table in TABLES:
            self._db.execute(f"DELETE FROM {table} WHERE source = ?", (source,))

    def _read(self, source: str, stamp: str, read: Callable[[str], Part]) -> None:
        """Read a source and write its rows, or the reason why it was skipped."""
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
        """Make the aliases and facts of a page searchable."""
        nodes = self.rows("SELECT aliases FROM nodes WHERE title = ?", title)
        aliases = {name.casefold() for (some,) in nodes for name in json.loads(some)}
        names = sorted(aliases - {title.casefold()})
        facts = [f"{relation} {value}" for relation, value, _ in self.facts(title)]
        text = "; ".join([*names, *facts[:FACTS_PER_PAGE]]) or None
        row = "rowid = (SELECT rowid FROM documents WHERE title = ?)"
        update = f"UPDATE pages SET facts = ? WHERE {row} AND facts IS NOT ?"
        if self._db.execute(update, (text, title, text)).rowcount:
            terms = derived_terms(text or "", title)
            self._db.execute(f"UPDATE derived SET facts = ? WHERE {row}", (terms, title))
            if terms:
                missing = "rowid NOT IN (SELECT rowid FROM derived)"
                self._db.execute(
                    f"INSERT INTO derived (rowid, facts) SELECT rowid, ? FROM documents"
                    f" WHERE title = ? AND {missing}",
                    (terms, title),
                )

    def _add(self, source: str, part: Part) -> None:
        """Write the rows of a source."""
        run = self._db.execute
        name = "INSERT INTO names VALUES (?, ?, ?)"
        for title, text, links in part.documents:
            title = one_line(title)
            for (other,) in self.rows("SELECT source FROM documents WHERE title = ?", title):
                raise Skip(f"{title!r} is already a page of {other!r}: use another title")
            document = (title, json.dumps([one_line(link) for link in links]), source)
            row = run("INSERT INTO documents VALUES (?, ?, ?)", document).lastrowid
            run("INSERT INTO pages (rowid, title, text) VALUES (?, ?, ?)", (row, title, text))
            terms = derived_terms(title), derived_terms(text, title)
            if any(terms):
                run("INSERT INTO derived (rowid, title, text) VALUES (?, ?, ?)", (row, *terms))
            run(name, (fold_name(title), title, source))
        for title, kind, aliases in part.nodes:
            title = one_line(title)
            run("INSERT INTO nodes VALUES (?, ?, ?, ?)", (title, kind, json.dumps(aliases), source))
            for alias in aliases:
                run(name, (fold_name(alias), title, source))
        for fact in part.facts:
            cleaned = [one_line(text) for text in fact]
            subject, relation, value = cleaned
            is_ours = relation.endswith(" of") or ": " in relation or relation == MORE_FACTS
            if not all(cleaned) or is_ours:
                raise ValueError(
                    f"{source}: fact {cleaned} has an empty part or a reserved relation"
                )
            run("INSERT INTO facts VALUES (?, ?, ?, ?)", (subject, value, relation, source))

    def _digest(self, source: str) -> str:
        """Return SHA-256 of the rows of a source, independent of their order."""
        digest = hashlib.sha256()
        for sql in SOURCE_ROWS:
            for row in self._db.execute(f"{sql} ORDER BY 1, 2, 3", (source,)):
                digest.update(json.dumps(row).encode())
        return digest.hexdigest()

    @contextmanager
    def _report_damage(self) -> Iterator[None]:
        """Convert SQLite errors to a ValueError with file and remedy."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            remedy = REMEDIES.get(
                getattr(error, "sqlite_errorname", ""),
                "move the file to rebuild the index, or use another path",
            )
            raise ValueError(f"{self.path} cannot be used ({error}): {remedy}") from error

    def rows(self, sql: str, *values) -> list[tuple]:
        """Return the rows of a query on the opened state."""
        with self._lock, self._report_damage():
            return self._db.execute(sql, values).fetchall()

    def names(self, name: str) -> list[str]:
        """Return the pages with this title (first) or alias, in any case."""
        sql = "SELECT DISTINCT title FROM names JOIN documents USING (title) WHERE folded = ?"
        name = clean(name)
        folded, lower = fold_name(name), name.casefold()
        found = [title for (title,) in self.rows(sql, folded)]
        return sorted(
            found,
            key=lambda title: (
                fold_name(title) != folded,
                title.casefold() != lower,
                title != name,
                title,
            ),
        )

    def search(self, query: str, k: int) -> list[str]:
        """Return the titles of the `k` best pages for `query`, best first."""
        weights = query_weights(clean(query))
        if not weights:
            return []
        with self._lock, self._report_damage():
            self._ranking = self._ranking or Ranking(self._db)
            best = self._ranking.best(weights, k)
            sql = "SELECT title FROM documents WHERE rowid = ?"
            return [self._db.execute(sql, (row,)).fetchone()[0] for row in best]

    def facts(self, title: str) -> list[tuple[str, str, int]]:
        """Return sorted (relation, value, value has a page) of a title, inverses included."""
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


def _enable_wal(db: sqlite3.Connection) -> None:
    """Switch a new file to write-ahead logging.

    If several processes create one file, SQLite reports it as locked at once instead of waiting,
    because two of them could deadlock. A retry finds it free or already switched.

    Raises:
        sqlite3.OperationalError: still locked after `WAIT_S`.
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
    """Normalise a title, relation or value to one line in the composed Unicode form (NFC).

    The separator "; " and link syntax are escaped, because they have a meaning on pages.
    """
    text = unicodedata.normalize("NFC", " ".join(text.split())).replace("; ", ", ")
    holds_link = "](" in text and LINKED_TITLE.search(text)
    return text.replace("](", "] (") if holds_link else text
