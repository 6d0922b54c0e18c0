"""Semantic ambiguity (WebSailor-V2, arXiv 2509.13305): vague words with a stated meaning.

A vague word stands for a set of values: a part of a century, a third of all numbers, the beginning
of a name. It never identifies a value alone; only the conjunction of all conditions has one answer.
The meaning of each word is computed from the graph, so this can be proved: `prove_unique` checks
every entity of the graph against every condition.

    "late in the 19th century"    a year from 1867 to 1900
    "in the lowest third"         at or below the first tercile of this relation's numbers
    'a currency whose name begins with "Nor"'    any currency of such a name with this relation

The paper's words come from a language model and are not executable ("a mid-sized town"). The words
here say the rule that defines them.
"""

import random
from typing import NamedTuple, cast

from drlib.questions.queries import (
    And,
    Or,
    Proj,
    Query,
    Range,
    canonicalise,
    evaluate_query,
    parse_numbers,
)
from drlib.questions.websailor import FuzzedQuery, Predicate, obfuscate
from drlib.questions.wording import add_simple_article
from drlib.worlds.graph import Graph, inverse

YEARS = range(1001, 2101)  # numbers read as years if the relation speaks of one
PARTS = (("early in", 1, 33), ("around the middle of", 34, 66), ("late in", 67, 100))
THIRDS = ("in the lowest third", "in the middle third", "in the highest third")
PREFIX = 3  # letters of a name's beginning, at most


class UniquenessProof(NamedTuple):
    """The enumeration that proves a question's answer.

    Attributes:
        answer: the only entity that satisfies all conditions.
        checked: entities of the graph, all of which were checked.
        conditions: each condition with the number of entities that satisfy it alone.
        remaining: entities that satisfy the first 1, 2, ... conditions; the last is 1.
    """

    answer: str
    checked: int
    conditions: tuple[tuple[Query, int], ...]
    remaining: tuple[int, ...]


def century(fact: Proj, graph: Graph, rng: random.Random) -> Predicate | None:
    """Replace a year by the early, middle or late third of its century."""
    relation = inverse(fact.relation)
    for year in _read_number(fact):
        if year not in YEARS or "year" not in relation.split():
            continue
        number = (year - 1) // 100
        words, first, last = next(part for part in PARTS if year - 100 * number <= part[2])
        said = f"{words} the {_ordinal(number + 1)} century"
        return Predicate(fact, Range(relation, 100 * number + first, 100 * number + last), said)
    return None


def third(fact: Proj, graph: Graph, rng: random.Random) -> Predicate | None:
    """Replace a number that is no year by its third among all numbers of the relation."""
    relation = inverse(fact.relation)
    for number in _read_number(fact):
        if "year" in relation.split():
            continue
        values = [n for found in graph.adjacent[relation].values() for n in parse_numbers(found)]
        numbers = sorted(values)
        low, high = numbers[len(numbers) // 3], numbers[2 * len(numbers) // 3]
        bounds = ((numbers[0], low - 1), (low, high), (high + 1, numbers[-1]))
        for said, (first, last) in zip(THIRDS, bounds):
            if first <= number <= last:
                return Predicate(fact, Range(relation, first, last), said)
    return None


def prefix(fact: Proj, graph: Graph, rng: random.Random) -> Predicate | None:
    """Replace a name by its first letters, meaning all things of its kind that begin so."""
    name = cast(str, fact.of)
    node = graph.nodes.get(name)
    if node is None or graph.is_value(name):
        return None
    fitting = [title for title in graph.kinds[node.kind] if graph.values(title, fact.relation)]
    for length in range(PREFIX, 0, -1):
        start = name[:length]
        same = [title for title in fitting if title.startswith(start)]
        if start.isalpha() and len(same) > 1:
            said = f'{add_simple_article(node.kind)} whose name begins with "{start}"'
            meant = canonicalise(Or(tuple(same)))
            return Predicate(fact, Proj(fact.relation, meant), said)
    return None


VAGUE_WORDS = (century, third, prefix)


def make_vague(query: Query, graph: Graph, rng: random.Random) -> FuzzedQuery | None:
    """Say each fact of `query` vaguely, if the answer stays unique and no new fault appears.

    Returns:
        The vague query with its words, or None if no fact could be said vaguely.
    """
    return obfuscate(query, graph, rng, VAGUE_WORDS)


def prove_unique(query: Query, graph: Graph) -> UniquenessProof:
    """Check every entity of the graph against every condition of a question.

    Raises:
        ValueError: no entity, or several, satisfy all conditions; the message names them.
    """
    conditions = query.parts if isinstance(query, And) else (query,)
    fitting = [evaluate_query(condition, graph) for condition in conditions]
    remaining, left = [], [*graph.nodes]
    for fits in fitting:
        left = [title for title in left if title in fits]
        remaining.append(len(left))
    if len(left) != 1:
        raise ValueError(
            f"{len(left)} answers satisfy all conditions ({', '.join(left[:5]) or 'none'}): add a "
            "condition or make one narrower"
        )
    counts = tuple((condition, len(fits)) for condition, fits in zip(conditions, fitting))
    return UniquenessProof(left[0], len(graph), counts, tuple(remaining))


def _read_number(fact: Proj) -> list[int]:
    """Return the number that `fact` compares with, if any."""
    return parse_numbers((cast(str, fact.of),)) if fact.relation.endswith(" of") else []


def _ordinal(number: int) -> str:
    """Return 19th, 20th, 21st.

    >>> [_ordinal(n) for n in (11, 12, 19, 20, 21)]
    ['11th', '12th', '19th', '20th', '21st']
    """
    return f"{number}{'st' if number == 21 else 'th'}"
