"""Which pages of a store are the best for some words: SQLite's own BM25, added up word by word.

BM25 is a sum over the words of a query (Robertson and Zaragoza, 2009, "The Probabilistic Relevance
Framework: BM25 and Beyond", equation 3.15), and what a word adds to a page does not depend on the
other words. SQLite computes the sum anew for each page that has any of the words, and a question in
plain English has words that half of the pages have: that was nearly all of a search's time. Here
SQLite is asked once what a word adds to each page that has it, and a query adds up arrays. The
numbers are SQLite's and are added in its order, so that scores, ties included, are those of one
query with OR, bit for bit.

The arrays hold for one state of the store. They are made at a word's first use and dropped, the
longest unused first, when they hold more than `KEPT` pages together (12 bytes a page).

Left out: leaving out common words, or stopping early (Turtle and Flood, 1995): adding up is no
longer what a search spends its time on. An engine beside SQLite, such as tantivy: its index would
be a second file, in step with the first through killed writers and readers of an older state.
"""

import sqlite3
from collections.abc import Sequence

import numpy as np

TITLE_WEIGHT = 4.0
KEPT = 4_000_000
ADDED = "SELECT rowid, bm25(pages, ?, 1.0, 1.0) FROM pages WHERE pages MATCH ?"
ROW = np.dtype([("page", np.int64), ("score", np.float64)])


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
            rows = self._db.execute(ADDED, (TITLE_WEIGHT, f'"{term}"'))
            made = np.fromiter(rows, ROW)
            places = self._places[np.searchsorted(self._numbers, made["page"])]
            known = places, made["score"].copy()
            self._kept += len(places)
        self._added[term] = known
        while self._kept > KEPT and len(self._added) > 1:
            oldest = next(iter(self._added))
            self._kept -= len(self._added.pop(oldest)[0])
        return known
