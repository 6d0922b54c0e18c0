"""Comparisons of ways to make questions: orders, controls without checks, operators, clues.

The engine keeps only what passes every check, so its fault rates are 0 by construction. The
controls show which faults occur otherwise.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar, get_args

from drlib.questions.checks import count_constant_edges, count_target_edges, find_faults
from drlib.questions.expansion import Order, draft_query, expand, explain, find_known_facts
from drlib.questions.queries import And, Query, evaluate_query
from drlib.questions.upgrades import OPERATORS
from drlib.questions.websailor import Predicate
from drlib.worlds.graph import Graph

ORDERS: tuple[Order, ...] = get_args(Order)
DRAWS = 20  # seeds tried until an expansion or a start succeeds
UPGRADE_DRAWS = 5  # the same for an operator
Found = TypeVar("Found")


def find_first(make: Callable[[random.Random], Found | None], draws: int = DRAWS) -> Found | None:
    """Return the first result of `make(rng)` that is not None; the seeds are 0, 1, and so on.

    Returns:
        The result, or None if all `draws` draws fail.
    """
    found = (make(random.Random(seed)) for seed in range(draws))
    return next((one for one in found if one is not None), None)


def draw_start(answer: str, graph: Graph) -> Query | None:
    """Return two conditions that only `answer` fulfils, or None if `DRAWS` draws find none."""
    return find_first(lambda rng: explain(answer, graph, rng, frozenset([answer]), 2, 2))


def expand_repeatedly(query: Query, graph: Graph, order: Order, times: int = 2) -> Query | None:
    """Return `query` expanded `times` times in `order`, or None if `DRAWS` draws fail once."""
    for _ in range(times):
        larger = find_first(partial(expand, query, graph, order=order))
        if larger is None:
            return None
        query = larger
    return query


def compare_orders(starts: Sequence[Query], graph: Graph) -> dict[str, dict[str, float]]:
    """Expand each start twice in every order; return order -> shares in [0, 1].

    "expanded" is the share of the starts; "same answer", "shortcut" (a constant next to the answer)
    and "redundant" (a fact between two constants) are shares of those that could be expanded.

    Raises:
        ValueError: no start can be expanded in one of the orders.
    """
    shares = {}
    for order in ORDERS:
        pairs = [(query, expand_repeatedly(query, graph, order)) for query in starts]
        found = [(query, new) for query, new in pairs if new is not None]
        if not found:
            raise ValueError(f"order {order!r} expands none of {len(starts)} starts: pass more")
        same = [evaluate_query(query, graph) == evaluate_query(new, graph) for query, new in found]
        shares[str(order)] = {
            "expanded": len(found) / len(starts),
            "same answer": sum(same) / len(found),
            "shortcut": sum(count_target_edges(new) > 0 for _, new in found) / len(found),
            "redundant": sum(count_constant_edges(new, graph) > 0 for _, new in found) / len(found),
        }
    return shares


def draw_controls(
    answers: Sequence[str], graph: Graph, n: int, rng: random.Random, hops: Sequence[int]
) -> dict[str, list[Query]]:
    """Draw unchecked queries for things of `answers`; return source -> up to `n` queries.

    "two facts" joins any two facts of the answer; "drafts" are the engine's greedy drafts with a
    number of hops from `hops`, before the checks.
    """
    pairs: list[Query] = [
        And(tuple(rng.sample([fact for fact, _ in find_known_facts(name, graph)], 2)))
        for name in rng.choices(answers, k=n)
    ]
    attempts = (
        draft_query(name, graph, rng, rng.choice(hops), strict=False)
        for name in rng.choices(answers, k=10 * n)
    )
    drafts = [query for query in attempts if query is not None]
    return {"two facts": pairs, "drafts": drafts[:n]}


def count_faults(sources: Mapping[str, Iterable[Query]], graph: Graph) -> dict[str, Counter[str]]:
    """Return source -> number of queries with each fault of `checks.find_faults`."""
    return {
        source: Counter(fault for query in some for fault in find_faults(query, graph))
        for source, some in sources.items()
    }


def upgrade_each(queries: Sequence[Query], graph: Graph) -> dict[str, dict[int, Query]]:
    """Apply every operator of `upgrades.OPERATORS` to every query.

    Returns:
        Operator name -> index of the query -> harder query; queries without one are left out.
    """
    upgraded: dict[str, dict[int, Query]] = {}
    for name, operator in OPERATORS.items():
        found = (find_first(partial(operator, query, graph), UPGRADE_DRAWS) for query in queries)
        upgraded[name] = {i: new for i, new in enumerate(found) if new is not None}
    return upgraded


def count_fits(
    clues: Iterable[tuple[str, Predicate]], graph: Graph
) -> dict[str, tuple[list[int], list[int]]]:
    """Return kind of clue -> numbers of things that fit the facts, and that fit their clues.

    Args:
        clues: `FuzzedQuery.applied` of several questions; kinds with one clue are left out.
        graph: the facts.
    """
    found: dict[str, tuple[list[int], list[int]]] = {}
    for kind, clue in clues:
        for sizes, query in zip(found.setdefault(kind, ([], [])), (clue.fact, clue.query)):
            sizes.append(len(evaluate_query(query, graph)))
    return {kind: sizes for kind, sizes in found.items() if len(sizes[0]) > 1}
