"""A small world: all in memory, with one value per relation.

Entities of a few kinds are connected by *functional* relations (at most one value each) and have
one page each. A chain of hops therefore has exactly one correct answer, and a question made from
the graph needs no judge. A search shows a page's facts on one line, so that a policy with a context
of a few hundred tokens can read the results. The tour's world, fictional worlds, and selections of
larger worlds (`drlib.worlds.selection`) are of this kind.

Not implemented: aliases, several values per relation, pages longer than a paragraph.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from drlib.files import write_atomic
from drlib.task import AnswerType, infer_answer_type
from drlib.worlds.graph import Graph, Node
from drlib.worlds.store import Document, Part, Store
from drlib.worlds.world import Hit, Page


@dataclass(frozen=True)
class Entity:
    """A node of a small world.

    Args:
        title: unique in its world.
        kind: such as "territory".
        facts: relation -> title of the value.
        notes: sentences without links.
    """

    title: str
    kind: str
    facts: Mapping[str, str] = field(default_factory=dict)  # relation -> the value's title
    notes: tuple[str, ...] = ()  # sentences without links


class SmallWorld:
    """Entities by title, their pages, a full-text index, and the graph.

    `version` is a hash of the data and part of every cache key.

    Args:
        entities: unique titles; a value that is itself a title becomes a link.
        name: shown in messages.
        index_path: file of the SQLite index; None: in memory.
        scheme: URLs begin with it.

    Raises:
        ValueError: two entities have one title.

    Example:
        >>> world = SmallWorld([Entity("Oslo", "city", {"territory": "Norway"})])
        >>> world.page("Oslo").text
        'Oslo is a city. Its territory is Norway.'
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
                raise ValueError(
                    f"world {name!r}: two entities have the title {entity.title!r}: rename one"
                )
            self.entities[entity.title] = entity
        self.name = name
        self.scheme = scheme
        self.version = _version(self.entities.values())
        self._folded = {title.casefold(): title for title in self.entities}
        self._index_path = index_path

    def __getstate__(self) -> dict:
        """Return the state without what is computed at its first use: a process builds its own."""
        computed = ("graph", "answer_types", "store")
        return {name: value for name, value in vars(self).items() if name not in computed}

    @cached_property
    def graph(self) -> Graph:
        """The entities and facts as a `Graph`; used for questions, never shown to a policy."""
        entities = self.entities.values()
        nodes = [Node(entity.title, entity.kind) for entity in entities]
        facts = [
            (entity.title, relation, value)
            for entity in entities
            for relation, value in entity.facts.items()
        ]
        return Graph(nodes, facts)

    @cached_property
    def answer_types(self) -> dict[str, AnswerType]:
        """Type of the values of each relation; titles of pages are text."""
        values: dict[str, set[str]] = {}
        for entity in self.entities.values():
            for relation, value in entity.facts.items():
                values.setdefault(relation, set()).add(value)
        return {
            relation: "text" if found & self.entities.keys() else infer_answer_type(found)
            for relation, found in values.items()
        }

    @cached_property
    def store(self) -> Store:
        """The full-text index, built at its first use."""
        pages = [Document(e.title, f"{e.kind} {snippet(e)}") for e in self.entities.values()]
        store = Store(self._index_path, f"the small world {self.name}")
        store.update({"world": self.version}, lambda _: Part(pages))
        return store

    def url(self, title: str) -> str:
        """Return the URL of a page."""
        return f"{self.scheme}:{title}"

    def find(self, text: str) -> str | None:
        """Return the known title that `text`, a title or URL, refers to, or None."""
        return self._folded.get(text.strip().removeprefix(f"{self.scheme}:").strip().casefold())

    def search(self, query: str, k: int = 10) -> list[Hit]:
        """Return the `k` best pages: an exact title first, then BM25 with titles weighted 4x.

        Raises:
            ValueError: k < 1.
        """
        if k < 1:
            raise ValueError(f"search needs k >= 1, got {k}")
        exact = self.find(query)
        titles = [exact] if exact else []
        if len(titles) < k:  # avoids building the index
            titles += [t for t in self.store.search(query, k + 1) if t != exact]
        return [Hit(t, self.url(t), snippet(self.entities[t])) for t in titles[:k]]

    def page(self, title_or_url: str) -> Page:
        """Return the page of a title or URL.

        Raises:
            KeyError: no such page; the message names it.
        """
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
        """Return the titles that a page links to.

        Raises:
            KeyError: no such page.
        """
        return self.page(title_or_url).links

    def follow(self, start: str, relations: Iterable[str]) -> list[str] | None:
        """Return the titles on the chain of `relations` after `start`; None if it breaks."""
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
        """Write the world as one JSON file."""
        rows = [
            {"title": e.title, "kind": e.kind, "facts": dict(e.facts), "notes": list(e.notes)}
            for e in self.entities.values()
        ]
        text = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        head = f'"name": {json.dumps(self.name)}, "scheme": {json.dumps(self.scheme)}'
        write_atomic(path, f'{{{head}, "entities": [\n{text}\n]}}\n')

    @staticmethod
    def load(path: Path) -> "SmallWorld":
        """Load a world written by `save`."""
        saved = json.loads(path.read_text())
        entities = [Entity(**row | {"notes": tuple(row["notes"])}) for row in saved["entities"]]
        return SmallWorld(entities, saved["name"], scheme=saved["scheme"])


def merge_worlds(worlds: Sequence[SmallWorld]) -> SmallWorld:
    """Return one world with the pages of all; a single world is returned unchanged.

    A title that an earlier world has, as a page or as a value, gets the name of its world.
    """
    if len(worlds) == 1:
        return worlds[0]
    entities: list[Entity] = []
    taken: set[str] = set()
    for world in worlds:
        titles = {t for e in world.entities.values() for t in (e.title, *e.facts.values())}
        new = {t: f"{t} ({world.name})" if t.casefold() in taken else t for t in titles}
        taken |= {title.casefold() for title in new.values()}
        entities += [
            replace(e, title=new[e.title], facts={r: new[v] for r, v in e.facts.items()})
            for e in world.entities.values()
        ]
    name = "+".join(world.name for world in worlds)
    return SmallWorld(entities, name, scheme=worlds[0].scheme)


def snippet(entity: Entity) -> str:
    """Return the facts on one line: `currency Norwegian Krone; language Norwegian.`"""
    return "; ".join(f"{relation} {value}" for relation, value in entity.facts.items()) + "."


def build_entities(rows: Iterable[tuple[str, str, Mapping, tuple[str, ...]]]) -> list[Entity]:
    """Build entities from rows of (title, kind, facts, notes).

    Facts with value None and entities without facts are dropped; of two entities with one title the
    first is kept.
    """
    found: dict[str, Entity] = {}
    for title, kind, facts, notes in rows:
        known = {relation: value for relation, value in facts.items() if value}
        if known:
            found.setdefault(title, Entity(title, kind, known, notes))
    return list(found.values())


def unique_key(mapping: Mapping[str, str], value: str) -> str | None:
    """Return the only key with `value`, or None; then a relation can be inverted."""
    keys = [key for key, v in mapping.items() if v == value]
    return keys[0] if len(keys) == 1 else None


def _version(entities: Iterable[Entity]) -> str:
    """Return the first 12 hex digits of a SHA-256 over the sorted data."""
    rows = sorted([e.title, e.kind, sorted(e.facts.items()), e.notes] for e in entities)
    return hashlib.sha256(json.dumps(rows, ensure_ascii=False).encode()).hexdigest()[:12]
