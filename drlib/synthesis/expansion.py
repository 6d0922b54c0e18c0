"""From an answer to a query that only it fulfils, made deeper layer by layer.

An answer is *explained*: two or three conditions of which all are needed, from the lists of
`drlib.synthesis.clues` (`strict`) or by a greedy draw (`explain`: small worlds, and operators).
The small worlds keep the draws by which policies were trained. Then each constant is
replaced by a query that it answers, alone or as one of a few things, one layer after the other
(the layer-wise expansion of WebShaper, arXiv 2507.15061, section 3.3): the answer stays, every path
from a constant to the target grows, and no constant stands beside the target or is joined to
another. The paper's two baselines, `random` and `sequential` expansion, are here for comparison.

Everything is drawn from a `random.Random` that the caller gives; None means that this draw found
nothing, and another may.
"""

import random
from typing import Literal

from drlib.synthesis.checks import constant_edges, next_to, without_one
from drlib.synthesis.clues import KnownFact, draw_explanation, known_by
from drlib.synthesis.queries import (
    And,
    Proj,
    Query,
    canonical,
    closed_parts,
    constants,
    depth,
    evaluate_query,
    subqueries,
    substitute,
)
from drlib.worlds.graph import NOTHING, Graph

MAX_OPTIONS = 16  # of these, tried in one explanation
SEVERAL = 10  # things that a vague description may fit
MAX_CONSTANTS = 8  # that a question names

# How a constant is told: (conditions at least, things at most that may fulfil them).
ALONE = (1, 1)
ONE_OF_SEVERAL = (1, SEVERAL)
BY_TWO_CONDITIONS = (2, 1)
# One of these is drawn, and its two ways are tried in turn.
WAYS = (
    (ONE_OF_SEVERAL, ALONE),
    (ONE_OF_SEVERAL, ALONE),
    (ALONE, ONE_OF_SEVERAL),
    (BY_TWO_CONDITIONS, ALONE),
)
LAYER_SHARE = 0.4  # of the expansions after the first, those that replace a whole layer
Order = Literal["layer", "random", "sequential"]


def explain(
    title: str,
    graph: Graph,
    rng: random.Random,
    banned: frozenset[str],
    least: int,
    most: int,
    few: int = 1,
) -> Query | None:
    """`least` to `most` conditions that together only `title` fulfils, or at most `few` things, and
    none alone; `banned` constants are not used. Conditions are taken in a random order, each that
    leaves fewer things, and none is given back: None, this draw found none, says little. Where
    numbers are not wanted or draws are many, `drlib.synthesis.clues.draw_explanation` is better."""
    options = [row for row in known_by(title, graph) if row[0].of not in banned]
    tried = rng.sample(options, min(len(options), MAX_OPTIONS))
    chosen: list[KnownFact] = []
    left = None  # what fulfils all of `chosen`
    for part, fulfil in tried:
        tells_alone = len(fulfil) <= few
        if tells_alone and (chosen or least > 1):
            continue
        rest = left & fulfil if chosen else fulfil
        rows = [*chosen, (part, fulfil)]
        if len(rest) <= few and len(rows) >= least:
            needed = all_needed([some for _, some in rows], few)
            return _joined(rows) if needed else None
        narrows = not chosen or len(rest) < len(left)
        if few < len(rest) and len(rows) < most and narrows:
            chosen, left = rows, rest
    return None


def _joined(rows: list[KnownFact]) -> Query:
    parts = tuple(part for part, _ in rows)
    return And(parts) if len(parts) > 1 else parts[0]


def all_needed(sets: list[frozenset[str]], few: int) -> bool:
    """Whether without any one of several sets more than `few` things are in all others."""
    if len(sets) == 1:
        return True
    others = (sets[:i] + sets[i + 1 :] for i in range(len(sets)))
    return all(len(frozenset.intersection(*some)) > few for some in others)


def met(query: Query, graph: Graph) -> frozenset[str]:
    """What must not be named again: the constants, the answer and every thing on the way."""
    parts = (part for part in closed_parts(query) if not isinstance(part, str))
    found = (evaluate_query(part, graph) for part in parts)
    single = (some for some in found if len(some) == 1)
    return frozenset(constants(query)).union(*single)


def layers(query: Query, above: int = 0) -> list[tuple[int, str]]:
    """(look-ups between it and the target, constant) for every constant, from left to right."""
    if isinstance(query, str):
        return [(above, query)]
    above += isinstance(query, Proj)
    return [row for part in subqueries(query) for row in layers(part, above)]


def expand(
    query: Query,
    graph: Graph,
    rng: random.Random,
    order: Order = "layer",
    width: int = 2,
    strict: bool = True,
    near: frozenset[str] = NOTHING,
) -> Query | None:
    """One expansion that keeps the answer; None: this draw found none. `strict`: things rather than
    numbers take a constant's place, and nothing that is `near`.

    `layer` replaces all constants that are nearest to the target, `sequential` only the last one;
    `random` adds a true condition to any constant or to the target and replaces nothing.
    """
    banned = met(query, graph) | near
    if order == "random":
        return _with_one_more(query, graph, rng, banned)
    rows = layers(query)
    if order == "sequential":
        names = [rows[-1][1]]
    else:
        nearest = min(rows)[0]
        names = [name for above, name in rows if above == nearest]
    new = query
    for name in names:
        told = _told(new, name, graph, rng, banned, width, strict)
        if told is None:
            return None
        new = substitute(new, name, told)
        banned = banned.union(constants(told))
    if order == "layer" and constant_edges(new, graph):
        return None
    return new


def _with_one_more(
    query: Query, graph: Graph, rng: random.Random, banned: frozenset[str]
) -> Query | None:
    """`query` and one true condition, on any constant or on the target."""
    spot = rng.choice([query, *constants(query)])
    (thing,) = evaluate_query(spot, graph)
    options = [part for part, _ in known_by(thing, graph) if part.of not in banned]
    if not options:
        return None
    return canonical(substitute(query, spot, And((spot, rng.choice(options)))))


def _told(
    query: Query,
    name: str,
    graph: Graph,
    rng: random.Random,
    banned: frozenset[str],
    width: int,
    strict: bool,
) -> Query | None:
    """Something to stand for the constant `name`: the answer stays, and no part of it can go."""
    answers = evaluate_query(query, graph)

    def keeps_the_answer(part: Query) -> bool:
        if evaluate_query(part, graph) == {name}:  # it is another word for the same
            return True
        return evaluate_query(substitute(query, name, part), graph) == answers

    draw = draw_explanation if strict else explain
    for least, few in rng.choice(WAYS):
        told = draw(name, graph, rng, banned, least, width, few)
        if told is None or (few > 1 and not keeps_the_answer(told)):
            continue
        weaker = without_one(told) if isinstance(told, And) else ()
        if not any(keeps_the_answer(part) for part in weaker):
            return told
    return None


def draft(
    answer: str,
    graph: Graph,
    rng: random.Random,
    hops: int,
    width: int = 3,
    strict: bool = True,
    listed: bool = True,
) -> Query | None:
    """A query of `hops` look-ups for `answer`, not checked; None: this draw found none. `strict`:
    of things rather than of numbers, none of them next to the answer, and, if it is to be `listed`,
    such that a page lists what fulfils one condition of the answer."""
    banned, near = frozenset((answer,)), NOTHING
    if strict:
        near = next_to(answer, graph)
        query = draw_explanation(answer, graph, rng, banned, 2, width, listed=listed)
    else:
        query = explain(answer, graph, rng, banned, rng.randint(2, width), width)
    while query is not None and depth(query) < hops:
        whole_layer = depth(query) == 1 or rng.random() < LAYER_SHARE
        order: Order = "layer" if whole_layer else "sequential"
        query = expand(query, graph, rng, order, strict=strict, near=near)
    if query is None or len(constants(query)) > MAX_CONSTANTS:
        return None
    return query
