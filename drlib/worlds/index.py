"""Full-text search over pages: SQLite FTS5 and its BM25, titles weighted four times.

SQLite comes with Python, is safe for many concurrent readers and ranks in C. The title weight is
what lets the page *about* Gabon come before those that merely mention it. An index on disk carries
the world's version and is rebuilt when that differs; it is written under a temporary name and
renamed, so a reader never meets half of one.
"""

import os
import re
import sqlite3
import threading
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

TITLE_WEIGHT = 4.0
_WORD = re.compile(r"\w+")
_STOP = frozenset("a an and are by for in is of on the to was what which who".split())


class Index:
    """`rows` are (title, text), `version` that of their world; `path` None keeps the index in
    memory. Safe from many threads. OSError, sqlite3.Error: it cannot be written; no file is left.
    """

    def __init__(self, rows: Iterable[tuple[str, str]], version: str, path: Path | None = None):
        self._lock = threading.Lock()
        if path is not None and not _is_current(path, version):
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_name(f"{path.name}.{os.getpid()}.partial")
            try:
                with closing(sqlite3.connect(unfinished)) as db:
                    _fill(db, rows, version)
                os.replace(unfinished, path)
            finally:
                unfinished.unlink(missing_ok=True)
        self._db = sqlite3.connect(path or ":memory:", check_same_thread=False)
        if path is None:
            _fill(self._db, rows, version)

    def search(self, query: str, k: int) -> list[str]:
        """Titles of the `k` best pages for the words of `query`, best first; [] when none match."""
        words = _WORD.findall(query)
        words = [w for w in words if w.casefold() not in _STOP] or words
        if not words:
            return []
        match = " OR ".join(f'"{word}"' for word in words)
        order = "ORDER BY bm25(pages, ?, 1.0), title LIMIT ?"
        sql = f"SELECT title FROM pages WHERE pages MATCH ? {order}"
        with self._lock:
            return [row[0] for row in self._db.execute(sql, (match, TITLE_WEIGHT, k))]


def _fill(db: sqlite3.Connection, rows: Iterable[tuple[str, str]], version: str) -> None:
    db.execute("CREATE VIRTUAL TABLE pages USING fts5(title, text, tokenize='unicode61')")
    db.executemany("INSERT INTO pages VALUES (?, ?)", rows)
    db.execute("CREATE TABLE meta AS SELECT ? AS version", (version,))
    db.commit()


def _is_current(path: Path, version: str) -> bool:
    if not path.exists():
        return False
    with closing(sqlite3.connect(path)) as db:
        try:
            return db.execute("SELECT version FROM meta").fetchone() == (version,)
        except sqlite3.DatabaseError:  # a truncated or foreign file: rebuild it
            return False
