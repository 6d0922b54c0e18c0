"""The memory of a world: its facts in one wording, and the sentences of its pages that name things.

The things are called as a question would call them (`drlib.synthesis.phrases`): a page by its
heading, a row of a table by its first cell. A thing whose name means several things here is left
out, since a statement about one would be read as one about the other, and so are relations that say
how files hang together (links, headings).

Left out: a sentence that begins with a pronoun, or names nothing that its page links to or is about
(pronouns are not resolved here; `drlib.worlds.folder` does that with an endpoint), tables and lists
as text.
"""

import re
from collections.abc import Iterator

from drlib.synthesis.memory import EntityMemory
from drlib.synthesis.phrases import Phrasebook
from drlib.synthesis.read_back import grammar_of
from drlib.synthesis.shortage import FOLDER_RELATIONS
from drlib.synthesis.wording import says
from drlib.validation import require
from drlib.worlds import World

_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_CLAIM = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9\"'(])")
_FACTS = re.compile(r"^Facts about .*", re.MULTILINE)
_PRONOUN = re.compile(
    r"(?:it|he|she|they|his|her|its|their|this|that|these|those)\b", re.IGNORECASE
)
FEWEST_WORDS = 4  # of a sentence
NOT_TEXT = ("|", "-", "*", "#", ">", "`", "!")  # what lines of Markdown that are no text begin with


def memory_of_world(world: World) -> EntityMemory:
    """What `world` says of each thing that has a page; a statement's source is the page's URL.

    ValueError: a world of texts alone, of which nobody knows what they are about.
    """
    graph = world.graph
    require(graph is not None, f"{world.name} has no facts, so no things to keep a memory of")
    names = _names(world, grammar_of(graph, world.scheme).book)
    memory = EntityMemory()
    for subject, relation, value in graph.facts:
        if relation in FOLDER_RELATIONS or subject not in names:
            continue
        said = value if graph.is_value(value) else names.get(value)
        if said:
            memory.fact(names[subject], relation, said, f"{world.scheme}:{subject}")
    for title, name in names.items():
        _read_page(world, title, name, names, memory)
    return memory


def _names(world: World, book: Phrasebook) -> dict[str, str]:
    """Title of a page -> how it is called, where that means one thing (else it is called by its
    address)."""
    found = {}
    for title in world.graph.nodes:
        if world.graph.is_value(title) or world.find(title) is None:
            continue
        name = book.short(title)
        is_address = name == title and "/" in title
        if not is_address:
            found[title] = name.removeprefix("the ")
    return found


def _read_page(
    world: World, title: str, name: str, names: dict[str, str], memory: EntityMemory
) -> None:
    """Keep each sentence of a page at the things that it names."""
    page = world.page(title)
    beside = {names[other] for other in page.links if other in names} | {name}
    for sentence in _sentences(page.text):
        for entity in sorted(beside):
            if says(sentence, entity):
                memory.add(entity, sentence, page.url)


def _sentences(text: str) -> Iterator[str]:
    """The sentences of a page's text, without its facts, tables and lists."""
    body = _FACTS.split(text)[0]
    for line in body.splitlines():
        if line.strip() and not line.lstrip().startswith(NOT_TEXT):
            for sentence in _CLAIM.split(_LINK.sub(r"\1", line.strip())):
                if len(sentence.split()) >= FEWEST_WORDS and not _PRONOUN.match(sentence):
                    yield sentence
