"""Operators that make a finished question harder, and rounds that apply them.

An operator replaces a constant. The result must keep the answer, pass all checks and cost a solver
more pages (`checks.measure_effort`). The rounds follow Tongyi DeepResearch (arXiv 2510.24701):
knowledge expansion, conceptual abstraction and computational formulation. In the paper a model
upgrades the questions; here every upgrade is executed.
"""

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, wraps

from drlib.questions.checks import find_first_fault, measure_effort
from drlib.questions.expansion import SEVERAL, explain, find_known_facts, find_single_things
from drlib.questions.queries import (
    Count,
    Diff,
    Extreme,
    Or,
    Proj,
    Query,
    Range,
    evaluate_query,
    is_number,
    list_constants,
    list_subqueries,
    parse_numbers,
    substitute,
    walk,
)
from drlib.worlds.graph import NOTHING, Graph, inverse

CONSTANTS_TRIED = 3  # per operator and question
DRAWS_A_STAGE = 20  # failed draws until a stage is skipped
OPERATORS: dict[str, Callable[..., Query | None]] = {}


def register_operator(make: Callable) -> Callable:
    """Register `make(constant, graph, rng, banned)` as an operator.

    The operator (query, graph, rng, strict=True) returns a harder verified query, or None if this
    draw found none.
    """

    @wraps(make)
    def upgrade(
        query: Query, graph: Graph, rng: random.Random, strict: bool = True
    ) -> Query | None:
        """Return a harder query or None."""
        banned = find_single_things(query, graph)
        named = list_constants(query)
        for name in rng.sample(named, min(CONSTANTS_TRIED, len(named))):
            replacement = make(name, graph, rng, banned)
            old = name
            if isinstance(
                replacement, Range
            ):  # it takes the place of the condition with the number
                old = next(part for part in walk(query) if name in list_subqueries(part))
                replacement = _make_range(old, replacement)
            if replacement is None:
                continue
            new = substitute(query, old, replacement)
            if is_better(new, query, graph, strict):
                return new
        return None

    OPERATORS[make.__name__] = upgrade
    return upgrade


def _make_range(condition: Query, numbers_: Range) -> Range | None:
    """Return the range with the relation of the condition that names the number."""
    if not isinstance(condition, Proj):
        return None
    return replace(numbers_, relation=inverse(condition.relation))


def is_better(new: Query, query: Query, graph: Graph, strict: bool = True) -> bool:
    """Return True if `new` has the answer of `query`, no fault and a larger finite effort."""
    if evaluate_query(new, graph) != evaluate_query(query, graph):
        return False
    if find_first_fault(new, graph, strict):
        return False
    return measure_effort(query, graph) < measure_effort(new, graph) < math.inf


@register_operator
def deepen(name: str, graph: Graph, rng: random.Random, banned: frozenset[str]) -> Query | None:
    """Add a hop before a constant."""
    return explain(name, graph, rng, banned, 1, 1)


@register_operator
def widen(name: str, graph: Graph, rng: random.Random, banned: frozenset[str]) -> Query | None:
    """Replace a constant by two or three conditions."""
    return explain(name, graph, rng, banned, 2, 3)


def _draw_vague_condition(
    name: str, graph: Graph, rng: random.Random, banned: frozenset[str]
) -> tuple[Proj | None, list[str]]:
    """Return a condition that `name` and a few other things fulfil, and these things."""
    options = [
        (part, sorted(fulfil - {name}))
        for part, fulfil in find_known_facts(name, graph)
        if 1 < len(fulfil) <= SEVERAL and part.of not in banned
    ]
    return rng.choice(options) if options else (None, [])


@register_operator
def fuzz(name: str, graph: Graph, rng: random.Random, banned: frozenset[str]) -> Query | None:
    """Replace a number by a decade or range, or a name by a shared attribute."""
    for number in parse_numbers([name]):
        if number >= 1000:
            decade = number - number % 10
            return Range("", decade, decade + 9)
        reach = 1 + abs(number) // 5
        low = number - rng.randrange(reach)
        return Range("", low, number + rng.randrange(reach))
    condition, _ = _draw_vague_condition(name, graph, rng, banned)
    return condition


@register_operator
def abstract(name: str, graph: Graph, rng: random.Random, banned: frozenset[str]) -> Query | None:
    """Replace a constant by a union with a similar thing."""
    _, others = _draw_vague_condition(name, graph, rng, frozenset())
    others = [other for other in others if other not in banned]
    return Or((name, rng.choice(others))) if others else None


@register_operator
def difference(name: str, graph: Graph, rng: random.Random, banned: frozenset[str]) -> Query | None:
    """Replace a constant by a shared condition with an exception."""
    common, others = _draw_vague_condition(name, graph, rng, banned)
    if not others:
        return None
    options = [
        part
        for part, fulfil in find_known_facts(rng.choice(others), graph)
        if name not in fulfil and part.of not in banned | {common.of}
    ]
    return Diff(common, rng.choice(options)) if options else None


@register_operator
def compute(name: str, graph: Graph, rng: random.Random, banned: frozenset[str]) -> Query | None:
    """Replace a name by an extreme, or a number by a count."""
    options: Sequence[Query]
    counted = parse_numbers([name])
    if counted:
        parts = group_by_size(graph)[counted[0]]
        options = [Count(part) for part in parts if part.of not in banned]
    else:
        options = _list_extremes(name, graph, rng, banned)
    return rng.choice(options) if options else None


def _list_extremes(
    name: str, graph: Graph, rng: random.Random, banned: frozenset[str]
) -> list[Extreme]:
    """List extremes of similar things that identify `name`."""
    common, _ = _draw_vague_condition(name, graph, rng, banned)
    if common is None:
        return []
    relations = [
        relation for relation in graph.relations[name] if relation in _list_numeric_relations(graph)
    ]
    found = [Extreme(relation, common, most) for relation in relations for most in (False, True)]
    return [part for part in found if evaluate_query(part, graph) == {name}]


@lru_cache(maxsize=4)
def _list_numeric_relations(graph: Graph) -> frozenset[str]:
    """Return the relations with numeric values."""
    return frozenset(
        relation
        for relation, rows in graph.adjacent.items()
        if any(map(is_number, NOTHING.union(*rows.values())))
    )


@lru_cache(maxsize=4)
def group_by_size(graph: Graph) -> Mapping[int, list[Proj]]:
    """Return number -> conditions that this many things fulfil, for small numbers."""
    found = defaultdict(list)
    for relation, rows in graph.adjacent.items():
        for title, values in sorted(rows.items()):
            if 1 < len(values) <= SEVERAL and not graph.is_value(title):
                found[len(values)].append(Proj(relation, title))
    return found


# Stages of a round and their operators.
UPGRADE_STAGES = {
    "knowledge expansion": ("widen", "deepen"),
    "conceptual abstraction": ("abstract", "fuzz"),
    "computational formulation": ("compute", "difference"),
}


def run_upgrade_rounds(
    query: Query, graph: Graph, rng: random.Random, n: int
) -> Iterator[tuple[str, Query]]:
    """Yield (stage, query) of `n` rounds of `UPGRADE_STAGES`.

    Each query keeps the answer and has more effort than the one before. A stage is skipped if
    `DRAWS_A_STAGE` draws find nothing.
    """
    for _ in range(n):
        for stage, names in UPGRADE_STAGES.items():
            draws = (OPERATORS[rng.choice(names)](query, graph, rng) for _ in range(DRAWS_A_STAGE))
            harder = next((found for found in draws if found is not None), None)
            if harder is not None:
                query = harder
                yield stage, query
