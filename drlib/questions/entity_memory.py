"""Entity-anchored memory: what has been said about each entity, when, and where.

Tongyi DeepResearch and AgentFounder (arXiv 2509.13310, section 3) keep open-world knowledge as
entity -> statements with time and source. That takes in what a schema refuses (a sentence of a
page, a line of a tool's log, a discarded trajectory), and a later question or judge only asks it
what is known about an entity. Facts of graphs and cells of tables become sentences in ONE wording
(`FACT`), so that `recall` can read them back as facts.

Two statements about an entity are one when they differ in case, space or closing punctuation only;
then all sources count, and the earliest time. What the memory holds does not depend on the order
in which it was told. Left out: entities that are not named (pronouns, spelling variants).

The memory of a world: its facts in one wording, and the sentences of its pages that name things.

The things are called as a question would call them (`drlib.questions.phrases`): a page by its
heading, a row of a table by its first cell. A thing whose name means several things here is left
out, since a statement about one would be read as one about the other, and so are relations that say
how files hang together (links, headings).

Left out: a sentence that begins with a pronoun, or names nothing that its page links to or is about
(pronouns are not resolved here; `drlib.worlds.folder` does that with an endpoint), tables and lists
as text.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from drlib.questions.phrases import Phrasebook
from drlib.questions.question_engine import FOLDER_RELATIONS
from drlib.questions.read_back import load_grammar
from drlib.questions.wording import mentions
from drlib.trajectory import ToolResult
from drlib.validation import require
from drlib.worlds import World

FACT = "The {relation} of {entity} is {value}."
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")


class Statement(NamedTuple):
    """`time` as it was given (ISO dates sort), "" when unknown; `sources` are sorted; `fact`:
    whether the text is that of a fact, whose capitals are to be trusted."""

    text: str
    time: str = ""
    sources: tuple[str, ...] = ()
    fact: bool = False


class EntityMemory:
    """Statements by entity. `entities`: the titles that `read` looks for in running text."""

    def __init__(self, entities: Iterable[str] = ()):
        self._statements: dict[str, dict[str, Statement]] = defaultdict(dict)
        self._entities_by_key: dict[str, set[str]] = defaultdict(set)  # a statement -> its entities
        titles = sorted(entities, key=lambda title: (-len(title), title))  # the longest name wins
        names = "|".join(map(re.escape, titles)) or "(?!)"
        self._names = re.compile(rf"(?<!\w)(?:{names})(?!\w)")

    def add(self, entity: str, text: str, source: str, time: str = "", fact: bool = False) -> bool:
        """Whether that was new. ValueError: an empty entity, statement or source."""
        text = " ".join(text.split())
        if not (entity and text and source):
            raise ValueError(f"a statement needs entity, text and source: {(entity, text, source)}")
        known = self._statements[entity]
        key = _normalise(text)
        old = known.get(key, Statement(text, fact=fact))
        times = {old.time, time} - {""}
        sources = {*old.sources, source}
        # of two wordings a fact's wins, and else the one that sorts last, whatever came first
        is_fact, wording = max((old.fact, old.text), (fact, text))
        earliest = min(times, default="")
        known[key] = Statement(wording, earliest, tuple(sorted(sources)), is_fact)
        self._entities_by_key[key].add(entity)
        return not old.sources

    def add_fact(self, entity: str, relation: str, value: str, source: str, time: str = "") -> bool:
        """A fact of a graph, kept at both its ends."""
        text = FACT.format(relation=relation, entity=entity, value=value)
        self.add(value, text, source, time, fact=True)
        return self.add(entity, text, source, time, fact=True)

    def add_table(self, rows: Iterable[Mapping], key: str, source: str, time: str = "") -> int:
        """Each cell is a fact about its row's `key`; returns how many are new."""
        cells = [
            (str(row[key]), column, str(value))
            for row in rows
            for column, value in row.items()
            if column != key
        ]
        known = [cell for cell in cells if cell[2] not in ("", "None")]
        return sum(self.add_fact(*cell, source, time) for cell in known)

    def add_text(self, text: str, source: str, time: str = "") -> int:
        """A document: each sentence is kept at every known entity that it names; returns how many
        statements are new."""
        new = 0
        for sentence in _SENTENCE.split(text):
            for entity in sorted({*self._names.findall(sentence)}):
                new += self.add(entity, sentence, source, time)
        return new

    def add_observations(self, results: Iterable[ToolResult], source: str, time: str = "") -> int:
        """The observations of a trajectory, kept or discarded; a failed call's says nothing about
        the world."""
        new = 0
        for i, result in enumerate(results):
            if result.ok:
                new += self.add_text(result.text, f"{source}/{i}-{result.tool}", time)
        return new

    @property
    def entities(self) -> list[str]:
        """All that something is known about, sorted."""
        return sorted(self._statements)

    def list_statements(self, entity: str) -> list[Statement]:
        """What is known about `entity`, by time and then text; empty when nothing is."""
        return sorted(self._statements.get(entity, {}).values(), key=lambda s: (s.time, s.text))

    def find_entities(self, statement: Statement) -> list[str]:
        """The entities at which this statement is kept, sorted."""
        return sorted(self._entities_by_key.get(_normalise(statement.text), ()))

    def recall(self, entity: str, relation: str) -> list[tuple[str, Statement]]:
        """(value, statement) of each fact that gives `entity` a value of `relation`."""
        head = FACT.format(relation=relation, entity=entity, value="")[:-1]
        return [
            (known.text.removeprefix(head).removesuffix("."), known)
            for known in self.list_statements(entity)
            if known.text.startswith(head)
        ]


def _normalise(text: str) -> str:
    """What statements that say the same have in common."""
    return text.rstrip(".!?; ").casefold()


_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_CLAIM = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9\"'(])")
_FACTS = re.compile(r"^Facts about .*", re.MULTILINE)
_PRONOUN = re.compile(
    r"(?:it|he|she|they|his|her|its|their|this|that|these|those)\b", re.IGNORECASE
)
MIN_WORDS = 4  # of a sentence
NOT_TEXT = ("|", "-", "*", "#", ">", "`", "!")  # what lines of Markdown that are no text begin with


def build_world_memory(world: World) -> EntityMemory:
    """What `world` says of each thing that has a page; a statement's source is the page's URL.

    ValueError: a world of texts alone, of which nobody knows what they are about.
    """
    graph = world.graph
    require(graph is not None, f"{world.name} has no facts, so no things to keep a memory of")
    names = _name_pages(world, load_grammar(graph, world.scheme).book)
    memory = EntityMemory()
    for subject, relation, value in graph.facts:
        if relation in FOLDER_RELATIONS or subject not in names:
            continue
        said = value if graph.is_value(value) else names.get(value)
        if said:
            memory.add_fact(names[subject], relation, said, f"{world.scheme}:{subject}")
    for title, name in names.items():
        _add_page(world, title, name, names, memory)
    return memory


def _name_pages(world: World, book: Phrasebook) -> dict[str, str]:
    """Title of a page -> how it is called, where that means one thing (else it is called by its
    address)."""
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
    """Keep each sentence of a page at the things that it names."""
    page = world.page(title)
    beside = {names[other] for other in page.links if other in names} | {name}
    for sentence in _iter_sentences(page.text):
        for entity in sorted(beside):
            if mentions(sentence, entity):
                memory.add(entity, sentence, page.url)


def _iter_sentences(text: str) -> Iterator[str]:
    """The sentences of a page's text, without its facts, tables and lists."""
    body = _FACTS.split(text)[0]
    for line in body.splitlines():
        if line.strip() and not line.lstrip().startswith(NOT_TEXT):
            for sentence in _CLAIM.split(_LINK.sub(r"\1", line.strip())):
                if len(sentence.split()) >= MIN_WORDS and not _PRONOUN.match(sentence):
                    yield sentence
