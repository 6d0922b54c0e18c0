"""Checks of a query by execution: one answer, every condition needed, nothing given away.

WebShaper (arXiv 2507.15061, section 3.3) names two ways in which a multi-hop question is none: a
*redundant* constant that another constant already leads to, and a *shortcut*, a constant that
stands next to the target. WebSailor (2507.02592) and WebLeaper drop questions with several answers.
Here all of it is decided by running the query, on sets or on SQLite, and not by a model.

`effort` is what a question costs somebody who has only the tools. Left out: whether a search for
the question's text finds the answer (`drlib.synthesis.quality` measures it), and whether a reader
knows the answer by heart.
"""

import math
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import combinations

from drlib.synthesis.queries import (
    And,
    Count,
    Diff,
    Extreme,
    Or,
    Proj,
    Query,
    Range,
    SqlEngine,
    children,
    constants,
    depth,
    evaluate,
    rebuilt,
    walk,
)
from drlib.worlds.graph import Graph, Node, inverse
from drlib.worlds.store import FACTS_PER_PAGE

TYPE_RELATIONS = {"kind of", "type of"}  # "is a territory" points at no single thing


def answer_of(query: Query, graph: Graph) -> str | None:
    """The one answer, or None when there is none or are several."""
    found = evaluate(query, graph)
    return next(iter(found)) if len(found) == 1 else None


def faults(query: Query, graph: Graph, engine: SqlEngine | None = None) -> list[str]:
    """What is wrong with `query`; [] means verified. By sets, or by `engine`.

    "shallow": fewer than two look-ups follow each other. "redundant": a constant named twice, or
    two constants that a fact joins. "shortcut": a constant stands next to the target (other than to
    say its kind), or one of several conditions has no other answer. "not unique": not exactly one
    answer. "leak": a name of the answer, or of a single thing on the way to it, holds a name of a
    constant or the other way round, as whole words without regard to case. "not minimal": without
    one condition, at any depth, the answers are still the same (`weakened`), or a branch of a union
    adds nothing.
    """
    ask = engine.answers if engine else lambda part: evaluate(part, graph)
    return list(dict.fromkeys(_faults(query, graph, ask)))


def is_faulty(query: Query, graph: Graph) -> bool:
    """Whether `query` has a fault; stops at the first."""
    return any(_faults(query, graph, lambda part: evaluate(part, graph)))


def _faults(query: Query, graph: Graph, ask: Callable) -> Iterator[str]:
    """The faults one by one, cheap checks first."""
    if depth(query) < 2:
        yield "shallow"
    named = constants(query)
    if len(set(named)) < len(named) or constant_edges(query, graph):
        yield "redundant"
    if target_edges(query):
        yield "shortcut"
    found = ask(query)
    if len(found) != 1:
        yield "not unique"
    numbers = [
        str(part.low) for part in walk(query) if isinstance(part, Range) and part.low == part.high
    ]
    if any(
        leaks(thing, name, graph)
        for thing in sorted(_singles(query, ask) | found)
        for name in (*named, *numbers)
    ):
        yield "leak"
    if any(ask(weaker) == found for weaker in weakened(query)) or any(_idle(query, ask)):
        yield "not minimal"
    if len(several := conditions(query)) > 1 and any(ask(part) == found for part in several):
        yield "shortcut"


def weakened(query: Query) -> Iterator[Query]:
    """`query` with one condition less, in all ways and at any depth: without a part of an And, the
    exception of a Diff, the choice of an Extreme."""
    if isinstance(query, And):
        yield from without_one(query)
    elif isinstance(query, Diff | Extreme):
        yield children(query)[0]
    for child in children(query):
        for weaker in weakened(child):
            yield rebuilt(query, lambda part: weaker if part is child else part)


def without_one(query: And | Or) -> Iterator[Query]:
    """`query` without each of its parts."""
    for i in range(len(query.parts)):
        rest = query.parts[:i] + query.parts[i + 1 :]
        yield type(query)(rest) if len(rest) > 1 else rest[0]


def _idle(query: Query, ask: Callable) -> Iterator[bool]:
    """For every branch of every union, whether what holds the union is the same without it."""
    for part in walk(query):
        union = part.of if isinstance(part, Proj) else part
        for rest in without_one(union) if isinstance(union, Or) else ():
            yield ask(part) == ask(rest if part is union else Proj(part.relation, rest))


def _singles(query: Query, ask: Callable) -> frozenset[str]:
    """The things on the way that are the only ones of their description."""
    found = [ask(part) for part in walk(query) if not isinstance(part, str)]
    return frozenset().union(*(some for some in found if len(some) == 1))


def conditions(query: Query) -> tuple[Query, ...]:
    """What the target itself must fulfil or not fulfil; nothing for a number that is counted."""
    match query:
        case And(parts) | Or(parts) if not _is_constant(query):
            return tuple(c for part in parts for c in conditions(part))
        case Diff(left, right):
            return conditions(left) + conditions(right)
        case Extreme(_, of, _):
            return conditions(of)
    return () if isinstance(query, Count) else (query,)


def target_edges(query: Query) -> int:
    """How many conditions tie the target to a constant, those that say its kind not counted."""
    direct = [
        part
        for part in conditions(query)
        if isinstance(part, str) or isinstance(part, Proj) and _is_constant(part.of)
    ]
    return sum(getattr(part, "relation", "") not in TYPE_RELATIONS for part in direct)


def _is_constant(query: Query) -> bool:
    """A title, or a union of them (WebShaper merges such into one constant)."""
    return isinstance(query, str) or isinstance(query, Or) and any(map(_is_constant, query.parts))


def constant_edges(query: Query, graph: Graph) -> int:
    """How many pairs of constants a fact joins."""
    near = graph.neighbours
    return sum(b in near.get(a, ()) for a, b in combinations(constants(query), 2))


def leaks(answer: str, constant: str, graph: Graph) -> bool:
    """Whether a name of one holds a name of the other, as whole words."""
    first, second = (_names(graph.nodes.get(t) or Node(t, "")) for t in (answer, constant))
    return any(a in b or b in a for a in first for b in second)


@lru_cache(maxsize=1 << 16)
def _names(node: Node) -> tuple[str, ...]:
    """Title and aliases as ` words with single spaces `, in one case."""
    names = (node.title, *node.aliases)
    return tuple(sorted({re.sub(r"[\W_]+", " ", f" {n.casefold()} ") for n in names} - {" "}))


@lru_cache(maxsize=1 << 12)
def effort(query: Query, graph: Graph) -> float:
    """How many pages a solver must read that has only the tools; infinite: it cannot list them.

    The solver lists the smallest part of an And and then either lists each other part or looks at
    the pages of the candidates, whichever is less to read. A number or a year has no page: it can
    be looked for on a candidate's page only. A page of n facts has n / 60 parts, rounded up.
    """
    read: set[str] = set()
    try:
        _solve(query, graph, read)
    except LookupError:
        return math.inf
    return sum(pages(title, graph) for title in read)


@lru_cache(maxsize=1 << 16)
def pages(title: str, graph: Graph) -> int:
    """How many parts the page of `title` has; none where it has no page."""
    if graph.is_value(title):
        return 0
    facts = sum(len(graph.adjacent[name][title]) for name in graph.relations.get(title, ()))
    return max(1, math.ceil(facts / FACTS_PER_PAGE))


def _listable(query: Query, graph: Graph) -> bool:
    if isinstance(query, And):
        return any(_listable(part, graph) for part in query.parts)
    if isinstance(query, Diff):
        return _listable(query.left, graph)
    if isinstance(query, Proj) and any(map(graph.is_value, evaluate(query.of, graph))):
        return False
    return not isinstance(query, Range) and all(_listable(c, graph) for c in children(query))


def _solve(
    query: Query, graph: Graph, read: set[str], among: frozenset[str] | None = None
) -> frozenset[str]:
    """The answers of `query`, or those `among` these; what is read on the way goes to `read`."""
    match query:
        case And(parts):
            ranked = [
                (not _listable(part, graph), len(evaluate(part, graph)), i)
                for i, part in enumerate(parts)
            ]
            for *_, i in sorted(ranked):
                among = _solve(parts[i], graph, read, among)
            return among
        case Or(parts):
            for part in parts:
                _solve(part, graph, read, among)
        case Diff(left, right):
            _solve(right, graph, read, _solve(left, graph, read, among))
        case Range():
            if among is None or any(map(graph.is_value, among)):
                raise LookupError("no page lists what has a number in a range")
            read |= among
        case Proj(relation, of) if (
            among is not None
            and not any(map(graph.is_value, among))
            and (not _listable(query, graph) or len(among - read) < len(evaluate(of, graph)))
        ):
            read |= among
            back = inverse(relation)
            shown = frozenset(v for title in among for v in graph.values(title, back))
            _solve(of, graph, read, shown)
        case Proj(_, of) | Extreme(_, of, _):
            found = _solve(of, graph, read)
            if isinstance(query, Proj) and any(map(graph.is_value, found)):
                raise LookupError("a value has no page")
            read |= found
        case Count(of):
            _solve(of, graph, read)
    found = evaluate(query, graph)
    return found if among is None else found & among
