"""A world: what can be looked up.

Every world, real or invented, is entities of a few kinds, joined by *functional* relations (an
entity has at most one value per relation), each with one page. Therefore a chain of look-ups has
exactly one right answer, and a question made from the graph needs no judge.

The rest of the kit asks a world for `search` (an exact-title stage, then BM25), `page`, `links`,
`graph` (for making and checking questions, never shown to a policy) and `version` (a hash of the
data, part of every cache key and trajectory). This class is the tour's small world and the invented
ones, in memory; `drlib.worlds.library` offers the same of data of any size.

Left out: aliases, several values per relation, and pages longer than a paragraph.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from drlib.worlds.graph import Graph, Node
from drlib.worlds.store import Document, Part, Store

URL_SCHEME = "cldr:"


@dataclass(frozen=True)
class Entity:
    """A node: `facts` maps a relation to the value's title; `notes` are sentences without links."""

    title: str
    kind: str
    facts: Mapping[str, str] = field(default_factory=dict)  # relation -> the value's title
    notes: tuple[str, ...] = ()  # sentences without links


@dataclass(frozen=True)
class Page:
    """What `visit` shows: readable English with links written `[title](url)`."""

    title: str
    url: str
    text: str  # readable English with links written `[title](url)`
    links: tuple[str, ...]


@dataclass(frozen=True)
class Hit:
    """One search result of a `World`."""

    title: str
    url: str
    snippet: str  # the page's facts on a line


class World:
    """`entities` by title, their pages, an index over these, and the `graph`: to make and check
    questions, never shown to a policy. `version` is a hash of the data, part of every cache key.

    Titles are unique (ValueError); a fact's value that is itself a title becomes a link. The SQLite
    index is kept at `index_path`, or in memory. `name` is shown in messages.
    """

    def __init__(
        self, entities: Iterable[Entity], name: str = "world", index_path: Path | None = None
    ):
        self.entities: dict[str, Entity] = {}
        for entity in entities:
            if entity.title in self.entities:
                raise ValueError(f"world {name!r}: two entities are called {entity.title!r}")
            self.entities[entity.title] = entity
        self.name = name
        self.version = _version(self.entities.values())
        self._folded = {title.casefold(): title for title in self.entities}
        self._index_path = index_path

    @cached_property
    def graph(self) -> Graph:
        """The same entities and facts as every other world has them."""
        entities = self.entities.values()
        nodes = [Node(entity.title, entity.kind) for entity in entities]
        facts = [
            (entity.title, relation, value)
            for entity in entities
            for relation, value in entity.facts.items()
        ]
        return Graph(nodes, facts)

    @cached_property
    def store(self) -> Store:
        """The full-text index, built at its first use (most worlds answer by title alone)."""
        pages = [Document(e.title, f"{e.kind} {snippet(e)}") for e in self.entities.values()]
        store = Store(self._index_path, f"the small world {self.name}")
        store.update({"world": self.version}, lambda _: Part(pages))
        return store

    def find(self, text: str) -> str | None:
        """The title or URL `text` as a known title, or None."""
        return self._folded.get(text.strip().removeprefix(URL_SCHEME).strip().casefold())

    def search(self, query: str, k: int = 10) -> list[Hit]:
        """The `k` best pages: an exact title first, then BM25 with titles weighted four times."""
        if k < 1:
            raise ValueError(f"search needs k >= 1, got {k}")
        exact = self.find(query)
        titles = [exact] if exact else []
        if len(titles) < k:  # else the index need not be built
            titles += [t for t in self.store.search(query, k + 1) if t != exact]
        return [Hit(t, URL_SCHEME + t, snippet(self.entities[t])) for t in titles[:k]]

    def page(self, title_or_url: str) -> Page:
        """The page of a title or URL; KeyError names it when there is none."""
        title = self.find(title_or_url)
        if title is None:
            raise KeyError(f"no page {title_or_url!r} in {self.name}: search for it first")
        entity = self.entities[title]
        links = tuple([value for value in entity.facts.values() if value in self.entities])
        sentences = [f"{title} is a {entity.kind}."]
        for relation, value in entity.facts.items():
            shown = f"[{value}]({URL_SCHEME}{value})" if value in links else value
            sentences.append(f"Its {relation} is {shown}.")
        text = " ".join([*sentences, *entity.notes])
        return Page(title, URL_SCHEME + title, text, links)

    def links(self, title_or_url: str) -> tuple[str, ...]:
        """The titles that the page of a title or URL links to; KeyError when there is none."""
        return self.page(title_or_url).links

    def follow(self, start: str, relations: Iterable[str]) -> list[str] | None:
        """The titles on the chain of `relations` from `start` (excluded); None if it breaks."""
        path = [start]
        for relation in relations:
            entity = self.entities.get(path[-1])
            if entity is None or relation not in entity.facts:
                return None
            path.append(entity.facts[relation])
        return path[1:]

    def __len__(self) -> int:
        return len(self.entities)


def snippet(entity: Entity) -> str:
    """The facts on one line, `currency Norwegian Krone; language Norwegian.`"""
    return "; ".join(f"{relation} {value}" for relation, value in entity.facts.items()) + "."


def entities_of(rows: Iterable[tuple[str, str, Mapping, tuple[str, ...]]]) -> list[Entity]:
    """Entities of (title, kind, facts, notes), without facts that are None, without entities that
    have no fact, and of a title that two kinds share the first."""
    found: dict[str, Entity] = {}
    for title, kind, facts, notes in rows:
        known = {relation: value for relation, value in facts.items() if value}
        if known:
            found.setdefault(title, Entity(title, kind, known, notes))
    return list(found.values())


def only(mapping: Mapping[str, str], value: str) -> str | None:
    """The one key that has `value`, or None: whether a relation can be read backwards."""
    keys = [key for key, v in mapping.items() if v == value]
    return keys[0] if len(keys) == 1 else None


def _version(entities: Iterable[Entity]) -> str:
    """First 12 hex digits of a SHA-256 over the sorted data: equal data, equal version."""
    rows = sorted([e.title, e.kind, sorted(e.facts.items()), e.notes] for e in entities)
    return hashlib.sha256(json.dumps(rows, ensure_ascii=False).encode()).hexdigest()[:12]
