"""A teacher that reads documents: search with the question, open a page, quote it, answer.

Its questions are those of `drlib dataset` about a user's own documents (families `chain` and
`prose`), each with the lines or sentences that prove its answer. The teacher knows in which page
each of them is, but it opens only pages that a tool has shown, and its thoughts quote only opened
pages. It never answers from a search result: a small model that has seen this answers from the
first hit, whatever it says. It follows links to the next hop, and sometimes opens a wrong hit
first.

Not supported: questions that need several searches, and observations of more than `MAX_OBSERVED`
characters together.
"""

import random
import re
import tempfile
from pathlib import Path
from typing import NamedTuple

from drlib.demonstrations.oracle import Episode
from drlib.questions.families import LOOKUPS
from drlib.questions.queries import Proj, Query, from_text
from drlib.questions.question_set import DatasetRequest, draw_dataset, row_to_task
from drlib.task import Task
from drlib.tools import Toolbox
from drlib.tools.toolbox import HIT
from drlib.worlds import World, load_world

MAX_OBSERVED = 3000  # characters of all observations of an episode
MAX_QUOTE = 300  # characters of a thought
DETOURS = 0.5  # share of the questions whose page is not the best hit that open that hit first
SEARCH = ("Look it up.", "Search the documents.", "I search for this.")
OPEN = ("I open {}.", "This may be in {}.", "Read {}.")
NOT_THERE = ("Not on this page.", "This page does not say it.")
LINK = re.compile(r"\[([^\n]{1,200}?)\]\(([^\n]{1,200}?)\)")  # text, address
DISPLAY_PREFIX = re.compile(r"^[a-z]+:")


class DocumentQuestion(NamedTuple):
    """A question about documents.

    Attributes:
        task: the question.
        quotes: (text, address of its page) of each hop, in order.
    """

    task: Task
    quotes: tuple[tuple[str, str], ...]


def draw_document_questions(name: str, n: int, seed: int) -> tuple[World, list[DocumentQuestion]]:
    """Load the world `name` and draw `n` questions about it, or as many as there are."""
    world = load_world(name)
    wish = DatasetRequest(world=name, n=n, families=LOOKUPS, seed=seed, test_share=0.0, plain=True)
    with tempfile.TemporaryDirectory() as folder:
        rows = draw_dataset(wish, world, Path(folder), lambda line: None).assembly.rows
    return world, [_question(row) for side in rows.values() for row in side]


def _question(row: dict) -> DocumentQuestion:
    """Convert a row of a data set; the quotes are put in the order of the hops."""
    order = _relations(from_text(row["query"]))
    quotes = sorted(row["evidence"], key=lambda quote: _rank(quote["fact"][1], order))
    pairs = tuple((quote["quote"].strip(), quote["address"]) for quote in quotes)
    return DocumentQuestion(row_to_task(row), pairs)


def _relations(query: Query) -> list[str]:
    """Return the relations of a chain, the first hop first."""
    found = []
    while isinstance(query, Proj):
        found.append(query.relation.removesuffix(" of"))
        query = query.of
    return found[::-1]


def _rank(relation: str, order: list[str]) -> int:
    return order.index(relation) if relation in order else len(order)


def read_documents(
    question: DocumentQuestion, toolbox: Toolbox, world: World, rng: random.Random
) -> Episode:
    """Answer one question through `search` and `visit`.

    Raises:
        LookupError: the search does not show the page, a page does not show the quote, or the
            observations are too long.
    """
    task = question.task
    episode = Episode(task, toolbox, world)
    shown = episode.call(rng.choice(SEARCH), "search", {"query": [task.question]})
    hits = [hit["url"] for hit in HIT.finditer(shown)]
    opened, note = "", ""
    for number, (quote, address) in enumerate(question.quotes):
        if len(quote) > MAX_QUOTE:
            raise LookupError(f"the quote has {len(quote)} characters")
        if number == 0 and hits and address != hits[0] and rng.random() < DETOURS:
            opened = shown = _open(episode, hits[0], rng, "")
            if not says(opened, quote):  # else another page says it, too
                note = f"{rng.choice(NOT_THERE)} "
        if not says(opened, quote):
            if address not in {*hits, *(link[2] for link in LINK.finditer(shown))}:
                raise LookupError(f"no tool has shown {address}")
            opened = shown = _open(episode, address, rng, note)
        if not says(opened, quote):
            raise LookupError(f"{address} does not show {quote!r}")
        note = f"{quote} "
    observed = sum(len(result.text) for result in episode.tool_results)
    if observed > MAX_OBSERVED:
        raise LookupError(f"the observations have {observed} characters")
    return episode.finish(note.strip(), task.answer)


def says(text: str, quote: str) -> bool:
    """Return True if `text` contains `quote` as it is or with links reduced to their texts."""
    return quote in text or quote in LINK.sub(r"\1", text)


def _open(episode: Episode, address: str, rng: random.Random, note: str) -> str:
    """Visit a page; return the observation."""
    title = DISPLAY_PREFIX.sub("", address)
    thought = note + rng.choice(OPEN).format(title)
    arguments = {"url": [address], "goal": episode.task.question}
    return episode.call(thought, "visit", arguments)
