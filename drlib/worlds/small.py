"""A small world: all of it in memory, and every relation with one value.

Entities of a few kinds are joined by *functional* relations (an entity has at most one value per
relation), each with one page. Therefore a chain of look-ups has exactly one right answer, and a
question made from the graph needs no judge. A search shows a page's facts on a line, so that a
policy that reads a few hundred tokens can read what it found. The tour's world is one, invented
worlds are, and so is the selection that a policy learns in of any world
(`drlib.worlds.selection`).

Left out: aliases, several values per relation, and pages longer than a paragraph.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from drlib.files import write_whole
from drlib.worlds.graph import Graph, Node
from drlib.worlds.store import Document, Part, Store
from drlib.worlds.world import Hit, Page


@dataclass(frozen=True)
class Entity:
    """A node: `facts` maps a relation to the value's title; `notes` are sentences without links."""

    title: str
    kind: str
    facts: Mapping[str, str] = field(default_factory=dict)  # relation -> the value's title
    notes: tuple[str, ...] = ()  # sentences without links


class SmallWorld:
    """`entities` by title, their pages, an index over these, and the `graph`: to make and check
    questions, never shown to a policy. `version` is a hash of the data, part of every cache key.

    Titles are unique (ValueError); a fact's value that is itself a title becomes a link. The SQLite
    index is kept at `index_path`, or in memory. `name` is shown in messages, and URLs begin with
    `scheme`.
    """

    def __init__(
        self,
        entities: Iterable[Entity],
        name: str = "world",
        index_path: Path | None = None,
        scheme: str = "cldr",
    ):
        self.entities: dict[str, Entity] = {}
        for entity in entities:
            if entity.title in self.entities:
                raise ValueError(f"world {name!r}: two entities are called {entity.title!r}")
            self.entities[entity.title] = entity
        self.name = name
        self.scheme = scheme
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

    def url(self, title: str) -> str:
        """The address of a page."""
        return f"{self.scheme}:{title}"

    def find(self, text: str) -> str | None:
        """The title or URL `text` as a known title, or None."""
        return self._folded.get(text.strip().removeprefix(f"{self.scheme}:").strip().casefold())

    def search(self, query: str, k: int = 10) -> list[Hit]:
        """The `k` best pages: an exact title first, then BM25 with titles weighted four times."""
        if k < 1:
            raise ValueError(f"search needs k >= 1, got {k}")
        exact = self.find(query)
        titles = [exact] if exact else []
        if len(titles) < k:  # else the index need not be built
            titles += [t for t in self.store.search(query, k + 1) if t != exact]
        return [Hit(t, self.url(t), snippet(self.entities[t])) for t in titles[:k]]

    def page(self, title_or_url: str) -> Page:
        """The page of a title or URL; KeyError names it when there is none."""
        title = self.find(title_or_url)
        if title is None:
            raise KeyError(f"no page {title_or_url!r} in {self.name}: search for it first")
        entity = self.entities[title]
        links = tuple([value for value in entity.facts.values() if value in self.entities])
        sentences = [f"{title} is a {entity.kind}."]
        for relation, value in entity.facts.items():
            shown = f"[{value}]({self.url(value)})" if value in links else value
            sentences.append(f"Its {relation} is {shown}.")
        text = " ".join([*sentences, *entity.notes])
        return Page(title, self.url(title), text, links)

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

    def save(self, path: Path) -> None:
        """The world as one JSON file."""
        rows = [
            {"title": e.title, "kind": e.kind, "facts": dict(e.facts), "notes": list(e.notes)}
            for e in self.entities.values()
        ]
        text = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        head = f'"name": {json.dumps(self.name)}, "scheme": {json.dumps(self.scheme)}'
        write_whole(path, f'{{{head}, "entities": [\n{text}\n]}}\n')

    @staticmethod
    def load(path: Path) -> "SmallWorld":
        """The world that `save` wrote."""
        saved = json.loads(path.read_text())
        entities = [Entity(**row | {"notes": tuple(row["notes"])}) for row in saved["entities"]]
        return SmallWorld(entities, saved["name"], scheme=saved["scheme"])


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
