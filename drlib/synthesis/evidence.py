"""The facts by which a question is answered, each with the line of the page that shows it.

`facts_used` is to facts what `drlib.synthesis.funnel.required` is to titles: evaluation from the
answers backwards, so that of a hub's hundred facts only those count that lead to the answer. What
an exception, a count or an extreme compares is used too: without it the answer is not known.

Left out: which of several pages a solver would read. A fact is shown on the page of its subject
(short lists, its own relation's name), and on the page of its value where the subject has none.
"""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from drlib.synthesis.queries import (
    And,
    Anything,
    Count,
    Diff,
    Exists,
    Extreme,
    Or,
    Proj,
    Query,
    Range,
    bound,
    evaluate_query,
    numbers,
)
from drlib.synthesis.wording import says
from drlib.worlds.graph import Fact, Graph, inverse
from drlib.worlds.library import next_part, read_facts

_SENTENCE = re.compile(r"(?<=\.) (?=Its? )")  # where one begins on a page of sentences


class Quote(NamedTuple):
    """`quote` stands in the page that the world serves at `address`; `chunk` is its title."""

    quote: str
    address: str
    chunk: str


def facts_used(query: Query, graph: Graph, wanted: Iterable[str] | None = None) -> set[Fact]:
    """The facts by which `wanted` (by default all answers) are found to be answers of `query`.
    TypeError: it is no query."""
    found = evaluate_query(query, graph)
    if wanted is not None:
        found &= frozenset(wanted)
    match query:
        case str():
            return set()
        case Proj(relation, of):
            of_these = evaluate_query(of, graph)
            steps = [
                (start, value)
                for start in of_these
                for value in graph.values(start, relation) & found
            ]
            used = {_fact(start, relation, value) for start, value in steps}
            return used | facts_used(of, graph, {start for start, _ in steps})
        case And(parts) | Or(parts):
            return set().union(*(facts_used(part, graph, found) for part in parts))
        case Diff(left, right):
            excepted = evaluate_query(left, graph) & evaluate_query(right, graph)
            return facts_used(left, graph, found | excepted) | facts_used(right, graph, excepted)
        case Range(relation, low, high):
            rows = ((title, value) for title in found for value in graph.values(title, relation))
            return {
                _fact(title, relation, value)
                for title, value in rows
                if any(low <= n <= high for n in numbers((value,)))
            }
        case Extreme(relation, of, _):
            compared = {
                _fact(title, relation, value)
                for title in evaluate_query(of, graph)
                for value in graph.values(title, relation)
                if numbers((value,))
            }
            return compared | facts_used(of, graph)
        case Count(of):
            return facts_used(of, graph)
        case Exists(name, among, of):
            chosen = [(title, bound(of, name, title)) for title in evaluate_query(among, graph)]
            used = [
                facts_used(way, graph, found) | facts_used(among, graph, {title})
                for title, way in chosen
                if found & evaluate_query(way, graph)
            ]
            return set().union(*used)
        case Anything():
            return set()
    raise TypeError(f"not a query: {query!r}")


def _fact(start: str, relation: str, value: str) -> Fact:
    """The fact as the graph keeps it, under the relation's own name and not its inverse's."""
    is_inverse = relation.endswith(" of")
    return (value, inverse(relation), start) if is_inverse else (start, relation, value)


def quote(fact: Fact, world) -> Quote | None:
    """The line of a page of `world` that shows `fact`; None: no page shows it."""
    subject, relation, value = fact
    for title, name, other in ((subject, relation, value), (value, inverse(relation), subject)):
        if world.find(title) != title:
            continue
        for page in _parts(title, world):
            line = _line(page.text, name, other)
            if line:
                return Quote(line, page.url, title)
    return None


def _parts(title: str, world) -> Iterator:
    """The page of `title`, and those on which its facts go on."""
    address: str | None = title
    while address:
        page = world.page(address)
        yield page
        address = next_part(page.text)


def _line(text: str, relation: str, value: str) -> str:
    """The line of facts in `text` that has `value` under `relation`, or, on pages of sentences, the
    sentence that names both; "" for none."""
    if value in read_facts(text).get(relation, ()):
        start = f"- {relation}: "
        lines = [line for line in text.split("\n") if line.startswith(start)]
        return lines[-1]  # the block of facts stands last on a page
    fitting = (said for said in _SENTENCE.split(text) if says(said, relation) and says(said, value))
    return next(fitting, "")
