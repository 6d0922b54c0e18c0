"""Entity memory: statements about each entity with their times and sources.

Tongyi DeepResearch and AgentFounder (arXiv 2509.13310, section 3) keep open-world knowledge in this
form. Facts and table cells are stored in one wording (`FACT`), so that `recall` can parse them.
Statements that differ only in case, spaces or closing punctuation are merged; the contents do not
depend on the order of insertion. `build_world_memory` fills a memory from a world's facts and
pages. Pronouns and spelling variants are not resolved.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from drlib.questions.phrases import Phrasebook
from drlib.questions.read_back import load_grammar
from drlib.questions.wording import mentions
from drlib.trajectory import ToolResult
from drlib.validation import require
from drlib.worlds import World
from drlib.worlds.triples import RESERVED_RELATIONS

FACT = "The {relation} of {entity} is {value}."
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")


class Statement(NamedTuple):
    """A statement of the memory.

    Attributes:
        text: the sentence.
        time: the earliest time (ISO dates sort correctly); empty if unknown.
        sources: all sources, sorted.
        fact: True if the text is generated from a fact, so that its capitalisation is reliable.
    """

    text: str
    time: str = ""
    sources: tuple[str, ...] = ()
    fact: bool = False


class EntityMemory:
    """Statements by entity; `entities` are the titles that `add_text` searches for in text."""

    def __init__(self, entities: Iterable[str] = ()):
        self._statements: dict[str, dict[str, Statement]] = defaultdict(dict)
        self._entities_by_key: dict[str, set[str]] = defaultdict(set)  # statement key -> entities
        titles = sorted(entities, key=lambda title: (-len(title), title))  # the longest name wins
        names = "|".join(map(re.escape, titles)) or "(?!)"
        self._names = re.compile(rf"(?<!\w)(?:{names})(?!\w)")

    def add(self, entity: str, text: str, source: str, time: str = "", fact: bool = False) -> bool:
        """Add a statement about an entity and return True if it is new.

        Raises:
            ValueError: the entity, the statement or the source is empty.
        """
        text = " ".join(text.split())
        if not (entity and text and source):
            raise ValueError(f"entity, text and source must not be empty: {(entity, text, source)}")
        known = self._statements[entity]
        key = _normalise(text)
        old = known.get(key, Statement(text, fact=fact))
        times = {old.time, time} - {""}
        sources = {*old.sources, source}
        # prefer a fact's wording, else the one that sorts last, independent of the order
        is_fact, wording = max((old.fact, old.text), (fact, text))
        earliest = min(times, default="")
        known[key] = Statement(wording, earliest, tuple(sorted(sources)), is_fact)
        self._entities_by_key[key].add(entity)
        return not old.sources

    def add_fact(self, entity: str, relation: str, value: str, source: str, time: str = "") -> bool:
        """Add a fact of a graph at both of its ends; return True if it is new."""
        text = FACT.format(relation=relation, entity=entity, value=value)
        self.add(value, text, source, time, fact=True)
        return self.add(entity, text, source, time, fact=True)

    def add_text(self, text: str, source: str, time: str = "") -> int:
        """Add each sentence at every known entity that it names; return the number of new
        statements.
        """
        new = 0
        for sentence in _SENTENCE.split(text):
            for entity in sorted({*self._names.findall(sentence)}):
                new += self.add(entity, sentence, source, time)
        return new

    def add_observations(self, results: Iterable[ToolResult], source: str, time: str = "") -> int:
        """Add the observations of successful tool calls; return the number of new statements."""
        new = 0
        for i, result in enumerate(results):
            if result.ok:
                new += self.add_text(result.text, f"{source}/{i}-{result.tool}", time)
        return new

    @property
    def entities(self) -> list[str]:
        """Return all entities with a statement, sorted."""
        return sorted(self._statements)

    def list_statements(self, entity: str) -> list[Statement]:
        """Return the statements about `entity`, sorted by time and text."""
        return sorted(self._statements.get(entity, {}).values(), key=lambda s: (s.time, s.text))

    def find_entities(self, statement: Statement) -> list[str]:
        """Return the entities of a statement, sorted."""
        return sorted(self._entities_by_key.get(_normalise(statement.text), ()))

    def recall(self, entity: str, relation: str) -> list[tuple[str, Statement]]:
        """Return (value, statement) of each fact about a `relation` of `entity`."""
        head = FACT.format(relation=relation, entity=entity, value="")[:-1]
        return [
            (known.text.removeprefix(head).removesuffix("."), known)
            for known in self.list_statements(entity)
            if known.text.startswith(head)
        ]


def _normalise(text: str) -> str:
    """Return the key under which equivalent statements are merged."""
    return text.rstrip(".!?; ").casefold()


_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_CLAIM = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9\"'(])")
_FACTS = re.compile(r"^Facts about .*", re.MULTILINE)
_PRONOUN = re.compile(
    r"(?:it|he|she|they|his|her|its|their|this|that|these|those)\b", re.IGNORECASE
)
MIN_WORDS = 4  # per sentence
NOT_TEXT = ("|", "-", "*", "#", ">", "`", "!")  # Markdown that is no text


def build_world_memory(world: World) -> EntityMemory:
    """Return a memory with the facts and sentences of `world`; sources are page URLs.

    Things are named as in questions: a page by its heading, a table row by its first cell. Things
    with ambiguous names and the structural relations of folders are skipped.

    Raises:
        ValueError: the world has no facts.
    """
    graph = world.graph
    require(graph is not None, f"{world.name} has no facts, so no things to keep a memory of")
    names = _name_pages(world, load_grammar(graph, world.scheme).book)
    memory = EntityMemory()
    for subject, relation, value in graph.facts:
        if relation in RESERVED_RELATIONS or subject not in names:
            continue
        text = value if graph.is_value(value) else names.get(value)
        if text:
            memory.add_fact(names[subject], relation, text, f"{world.scheme}:{subject}")
    for title, name in names.items():
        _add_page(world, title, name, names, memory)
    return memory


def _name_pages(world: World, book: Phrasebook) -> dict[str, str]:
    """Return title -> name of the pages; pages that only have an address as name are skipped."""
    found = {}
    for title in world.graph.nodes:
        if world.graph.is_value(title) or world.find(title) is None:
            continue
        name = book.mention_briefly(title)
        is_address = name == title and "/" in title
        if not is_address:
            found[title] = name.removeprefix("the ")
    return found


def _add_page(
    world: World, title: str, name: str, names: dict[str, str], memory: EntityMemory
) -> None:
    """Add each sentence of a page at the entities that it names."""
    page = world.page(title)
    beside = {names[other] for other in page.links if other in names} | {name}
    for sentence in _iter_sentences(page.text):
        for entity in sorted(beside):
            if mentions(sentence, entity):
                memory.add(entity, sentence, page.url)


def _iter_sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a page without its facts, tables, lists and pronoun sentences."""
    body = _FACTS.split(text)[0]
    for line in body.splitlines():
        if line.strip() and not line.lstrip().startswith(NOT_TEXT):
            for sentence in _CLAIM.split(_LINK.sub(r"\1", line.strip())):
                if len(sentence.split()) >= MIN_WORDS and not _PRONOUN.match(sentence):
                    yield sentence
