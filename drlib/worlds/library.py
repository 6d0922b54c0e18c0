"""A world of any size on a `Store`; its pages show facts in both directions.

A page is the document's text followed by its facts in a form that `read_facts` parses. Every answer
of the graph can therefore be read, and an oracle needs no other source. A page with many facts is
split into parts.

Not implemented: links in the text for names that the document does not link itself.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cached_property

import numpy as np

from drlib.worlds.embeddings import load_embeddings, unit
from drlib.worlds.graph import VALUE, Graph, Node
from drlib.worlds.reading import clean
from drlib.worlds.store import FACTS_PER_PAGE, MORE_FACTS, Store, one_line
from drlib.worlds.terms import fold_name, is_long, query_weights, search_terms
from drlib.worlds.world import Hit, Page

SNIPPET = 160  # characters
ENGINES = ("fts5", "bm25s", "hybrid")
TITLE_TIMES = 4  # weight of a title in bm25s, as in the store
RRF_RANK = 60  # constant of reciprocal rank fusion, as published
FUSED = 1000  # best pages of each of two rankings that are fused
NEXT_PART = re.compile(rf"- {MORE_FACTS}: \[(.+), part (\d+)\]\(([^\s:]+:\1\?part=\2)\)")
PART_OF_URL = re.compile(r"\?part=(\d{1,9})$")
# a title may contain brackets: a link ends after the second occurrence of its title
VALUES = re.compile(r"(?:\[(.+?)\]\([^\s:]+:\1\)|(.+?))(?:; |$)")


class Library:
    """Pages, facts and index of an updated `store`.

    Args:
        name: as shown in messages.
        store: its `changes` are those of the last update.
        scheme: URLs begin with it.
        engine: "fts5" (SQLite), "bm25s" (extra `search`), an alternative implementation for
            comparison, or "hybrid" (extra `retrieval`), which adds word embeddings. The last two
            load all pages into memory at their first use.

    | engine (tests/benchmarks/bench_search.py) | queries/s, cldr | queries/s, pydocs |
    |---|---|---|
    | fts5 | 3,800 | 1,800 |
    | bm25s | 2,400 | 660 |

    bm25s has a shorter worst-case latency (99th percentile) and slightly lower recall. `graph` is
    None without facts.

    Raises:
        ValueError: the engine is unknown.
    """

    extraction: Counter[str]  # outcomes of extracted triples; only for worlds of folders

    def __init__(self, name: str, store: Store, scheme: str, engine: str = "fts5"):
        if engine not in ENGINES:
            raise ValueError(f"unknown engine {engine!r}: use {' or '.join(ENGINES)}")
        self.name = name
        self.store = store
        self.scheme = scheme
        self.engine = engine
        self.changes = store.changes
        self.version = store.version

    @cached_property
    def graph(self) -> Graph | None:
        """Graph of all facts; None without facts. Used for questions, never shown to a policy.

        If two sources describe a node, the first source in alphabetical order gives kind and
        aliases.
        """
        facts = self.store.rows("SELECT subject, relation, value FROM facts")
        if not facts:
            return None
        rows = self.store.rows("SELECT title, kind, aliases FROM nodes ORDER BY source DESC")
        # default, if no source describes it
        nodes = {subject: Node(subject, VALUE) for subject, *_ in facts}
        for title, kind, aliases in rows:
            nodes[title] = Node(title, kind, tuple(json.loads(aliases)))
        return Graph(nodes.values(), facts)

    # ------------------------------------------------------------------------------- finding pages

    def find(self, text: str) -> str | None:
        """Return the known title that a title or URL (of any part, in any case) refers to."""
        return self._place(text)[0]

    def _place(self, text: str) -> tuple[str | None, int]:
        """Return (title, part) of a title or URL; a title may itself look like a part or a URL."""
        text = one_line(text)
        url = text.removeprefix(f"{self.scheme}:").strip()
        part = PART_OF_URL.search(url)
        number = int(part[1]) if part else 1
        for name, meant in ((url, 1), (PART_OF_URL.sub("", url), number), (text, 1)):
            found = self.store.names(name)[:1]
            if found and fold_name(found[0]) == fold_name(name):
                return found[0], meant
        others = self.store.names(url) if text.startswith(f"{self.scheme}:") else ()
        return (others[0], 1) if len(others) == 1 else (None, 1)  # a link by alias

    def search(self, query: str, k: int = 10) -> list[Hit]:
        """Return the `k` best pages: titles and aliases equal to `query`, then by BM25.

        Raises:
            ValueError: k < 1.
        """
        if k < 1:
            raise ValueError(f"search needs k >= 1, got {k}")
        title = self.find(query)
        titles = [title] if title else []
        titles += self.store.names(query.strip())
        if len(titles) < k:
            rankers = {"bm25s": self._bm25s, "hybrid": self._hybrid}
            ranked = rankers.get(self.engine, self.store.search)
            titles += ranked(query, k + len(titles))
        different = list(dict.fromkeys(titles))
        return [self._hit(title) for title in different[:k]]

    def _hit(self, title: str) -> Hit:
        text, _ = self._document(title)
        shown = " ".join(text[: 9 * SNIPPET].split())
        if len(shown) > SNIPPET:
            shown = shown[:SNIPPET].rsplit(" ", 1)[0] + " ..."
        return Hit(title, f"{self.scheme}:{title}", shown)

    def _document(self, title: str) -> tuple[str, str]:
        """Return (text, links as JSON) of an existing title."""
        sql = "SELECT text, links FROM documents d JOIN pages p ON p.rowid = d.rowid"
        return self.store.rows(f"{sql} WHERE d.title = ?", title)[0]

    def _bm25s(self, query: str, k: int) -> list[str]:
        titles, index = self._memory
        weights = query_weights(clean(query))
        tokens = [[term.casefold() for term, n in weights.items() for _ in range(n)]]
        found, scores = index.retrieve(tokens, k=min(k, len(titles)), show_progress=False)
        return [titles[i] for i, score in zip(found[0], scores[0]) if score > 0]

    @cached_property
    def _memory(self):
        """(titles, bm25s index)."""
        try:
            import bm25s
        except ImportError as error:
            raise ImportError('bm25s is missing: pip install "drlib[search]"') from error
        rows = self.store.rows("SELECT title, text, facts FROM pages ORDER BY title")
        texts = [
            " ".join([*[title] * TITLE_TIMES, text, facts or ""]) for title, text, facts in rows
        ]
        index = bm25s.BM25()
        index.index([_tokens(text) for text in texts], show_progress=False)
        return [title for title, *_ in rows], index

    def _hybrid(self, query: str, k: int) -> list[str]:
        """Rank a long query by reciprocal rank fusion (Cormack et al., SIGIR 2009).

        A question is ranked by words first: its names matter, and mean vectors blur them. Pages
        without any of its words follow by meaning.
        """
        query = clean(query)
        titles, vectors = self._embedded
        (asked,) = load_embeddings().embed([query])
        depth = max(k, FUSED)
        by_meaning = [titles[i] for i in np.argsort(-(vectors @ asked), kind="stable")[:depth]]
        by_words = self.store.search(query, depth)
        if not is_long(query):
            return list(dict.fromkeys([*by_words, *by_meaning]))[:k]
        scores: defaultdict[str, float] = defaultdict(float)
        for ranking in (by_words, by_meaning):
            for rank, title in enumerate(ranking, 1):
                scores[title] += 1 / (RRF_RANK + rank)
        return sorted(scores, key=lambda title: (-scores[title], title))[:k]

    @cached_property
    def _embedded(self) -> tuple[list[str], np.ndarray]:
        """(titles in order, unit vectors [pages, 256]).

        The vector of a page is the mean of that of its title and text and that of its file: a
        section ("guide.md#install") often does not repeat what its file is about.
        """
        rows = self.store.rows("SELECT title, text FROM pages ORDER BY title")
        model = load_embeddings()
        texts = model.add_up(text for _, text in rows)
        pages = unit(texts + model.add_up(title for title, _ in rows))
        _, file = np.unique([title.partition("#")[0] for title, _ in rows], return_inverse=True)
        files = np.zeros((file.max() + 1, texts.shape[1]), np.float32)
        np.add.at(files, file, texts)
        return [title for title, _ in rows], unit(pages + unit(files)[file])

    # ------------------------------------------------------------------------------- showing pages

    def page(self, title_or_url: str) -> Page:
        """Return a part of the page of a title or URL.

        Raises:
            KeyError: no such page; the message names it.
        """
        title, part = self._place(title_or_url)
        facts = [] if title is None else self.store.facts(title)
        start = (part - 1) * FACTS_PER_PAGE
        end = start + FACTS_PER_PAGE
        if title is None or (start and not 0 < start < len(facts)):
            raise KeyError(f"no page {title_or_url!r} in {self.name}: search for it first")
        text, links = self._document(title)
        url = f"{self.scheme}:{title}"
        shown = facts[start:end]
        blocks = []
        if start == 0:
            # only the last block may look like a facts block
            blocks.append(f"\n{text}".replace("\nFacts about ", "\n Facts about ")[1:])
        if shown:
            blocks.append("\n".join([f"Facts about {title}:", *self._lines(shown)]))
        if end < len(facts):
            following = part + 1
            blocks[-1] += f"\n- {MORE_FACTS}: [{title}, part {following}]({url}?part={following})"
        known = [] if start else [to for to in json.loads(links) if to in self.store.names(to)]
        known += [value for _, value, has_page in shown if has_page]
        if start:
            url = f"{url}?part={part}"
        return Page(title, url, "\n\n".join(blocks), tuple(dict.fromkeys(known)))

    def _lines(self, facts: list[tuple[str, str, int]]) -> Iterator[str]:
        """Yield one line per relation: "- currency: [Euro](cldr:Euro); ..." """
        found = defaultdict(list)
        for relation, value, has_page in facts:
            found[relation].append(f"[{value}]({self.scheme}:{value})" if has_page else value)
        for relation, values in found.items():
            yield f"- {relation}: {'; '.join(values)}"

    def links(self, title_or_url: str) -> tuple[str, ...]:
        """Return the titles that this part of the page links to.

        Raises:
            KeyError: no such page.
        """
        return self.page(title_or_url).links

    def __len__(self) -> int:
        return self.store.rows("SELECT COUNT(*) FROM documents")[0][0]


def _tokens(text: str) -> list[str]:
    return [word.casefold() for word in search_terms(text)]


# --------------------------------------------------------------------------------- reading a page


def read_facts(page_text: str) -> dict[str, list[str]]:
    r"""Parse the facts of (a part of) a page into relation -> values; {} without facts.

    Example:
        >>> read_facts("Facts about Norway:\n- currency: [Krone](cldr:Krone)\n- code: NO")
        {'currency': ['Krone'], 'code': ['NO']}
    """
    found = {}
    for line in _facts_block(page_text):
        if line.startswith(f"- {MORE_FACTS}: "):
            continue
        relation, values = line.removeprefix("- ").split(": ", 1)
        found[relation] = [linked or plain for linked, plain in VALUES.findall(values)]
    return found


def next_part(page_text: str) -> str | None:
    """Return the URL of the next part of a page's facts, or None."""
    lines = _facts_block(page_text)
    found = NEXT_PART.fullmatch(lines[-1]) if lines else None
    return found[3] if found else None


def _facts_block(page_text: str) -> list[str]:
    """Return the fact lines after the last "Facts about ...:"."""
    _, head, block = ("\n" + page_text).rpartition("\nFacts about ")
    lines = block.split("\n")[1:] if head else []
    for number, line in enumerate(lines):
        if not line.startswith("- ") or ": " not in line:
            return lines[:number]
    return lines
