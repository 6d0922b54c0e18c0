"""The question engine: from an answer backwards to a question that has only this answer.

An answer is drawn and *explained*: two or three conditions of which all are needed. Then each
constant is replaced by a query that it answers, alone or as one of a few things, one layer after
the other (the layer-wise expansion of WebShaper, arXiv 2507.15061, section 3.3): the answer stays,
every path from a constant to the target grows, and no constant stands beside the target or is
joined to another. The paper's two baselines, `random` and `sequential` expansion, are here for
comparison. *Operators* then make a question harder; each result must pass all checks
(`checks.faults`) and cost a solver more pages than before (`checks.effort`), or it is dropped.

Questions are split by answer, so that a policy cannot learn test answers from training questions,
and no answer may have more than `max_share` of the questions, so that none is a good guess.
Left out: sums over several numbers, operators proposed by a language model.
"""

import hashlib
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import lru_cache, wraps
from typing import Literal

from drlib.synthesis.checks import constant_edges, effort, is_faulty, leaks, without_one
from drlib.synthesis.queries import (
    And,
    Count,
    Diff,
    Extreme,
    Or,
    Proj,
    Query,
    Range,
    canonical,
    children,
    constants,
    evaluate,
    numbers,
    substitute,
    to_text,
    walk,
)
from drlib.synthesis.queries import depth as depth_of
from drlib.synthesis.questions import Split
from drlib.synthesis.wording import TEMPLATES, render
from drlib.task import Task
from drlib.worlds.graph import Graph, inverse

HUB, SOME = 50, 40  # a condition that more things fulfil is no clue; conditions looked at a title
SEVERAL = 10  # things that a vague description may fit
# conditions at least, things that may fulfil them
ONE, SOME_OF, BOTH = (1, 1), (1, SEVERAL), (2, 1)
WAYS = (SOME_OF, ONE), (SOME_OF, ONE), (ONE, SOME_OF), (BOTH, ONE)  # tried in turn
MAX_CONSTANTS = 8
TRIES, PATIENCE = 3, 100  # constants that an operator tries; misses until an answer is given up
Order = Literal["layer", "random", "sequential"]


@lru_cache(maxsize=1 << 15)
def known_by(title: str, graph: Graph) -> tuple[tuple[Proj, frozenset[str]], ...]:
    """Conditions R(constant) that `title` fulfils, each with all that fulfil it: SOME of those that
    at most HUB things do. Left out: a value that one thing alone has, like a code, which leads
    nowhere, and a name that tells the title."""
    found = [
        (Proj(inverse(relation), value), graph.values(value, inverse(relation)))
        for relation in graph.relations.get(title, ())
        for value in sorted(graph.values(title, relation))
        if value != title
    ]
    found = [
        row
        for row in found
        if graph.is_value(row[0].of) < len(row[1]) <= HUB and not leaks(title, row[0].of, graph)
    ]
    return tuple(random.Random(f"known-{title}").sample(found, min(SOME, len(found))))


def can_be_asked_for(title: str, graph: Graph) -> bool:
    """Whether several conditions together, and none alone, tell `title` from all else."""
    sets = [fulfil for _, fulfil in known_by(title, graph) if len(fulfil) > 1]
    return len(sets) > 1 and len(frozenset.intersection(*sets)) == 1


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
    none alone. `banned` constants are not used. None: this draw found none."""
    options = [row for row in known_by(title, graph) if row[0].of not in banned]
    chosen, left = [], None
    for part, fulfil in rng.sample(options, min(len(options), 16)):
        if len(fulfil) <= few and (chosen or least > 1):
            continue
        rest = left & fulfil if chosen else fulfil
        rows = [*chosen, (part, fulfil)]
        if len(rest) <= few and len(rows) >= least:
            parts = tuple(part for part, _ in rows)
            spare = (
                frozenset.intersection(*(some for _, some in rows if some is not gone))
                for _, gone in rows
                if len(rows) > 1
            )
            needed = all(len(some) > few for some in spare)
            return (And(parts) if len(parts) > 1 else part) if needed else None
        if few < len(rest) and len(rows) < most and (not chosen or len(rest) < len(left)):
            chosen, left = rows, rest
    return None


def met(query: Query, graph: Graph) -> frozenset[str]:
    """What must not be named again: the constants, the answer and every thing on the way."""
    found = (evaluate(part, graph) for part in walk(query) if not isinstance(part, str))
    return frozenset(constants(query)).union(*(some for some in found if len(some) == 1))


def layers(query: Query, above: int = 0) -> list[tuple[int, str]]:
    """(look-ups between it and the target, constant) for every constant, from left to right."""
    if isinstance(query, str):
        return [(above, query)]
    above += isinstance(query, Proj)
    return [row for child in children(query) for row in layers(child, above)]


def expand(
    query: Query, graph: Graph, rng: random.Random, order: Order = "layer", width: int = 2
) -> Query | None:
    """One expansion that keeps the answer; None: this draw found none.

    `layer` replaces all constants that are nearest to the target, `sequential` only the last one;
    `random` adds a true condition to any constant or to the target and replaces nothing.
    """
    rows, banned, new = layers(query), met(query, graph), query
    if order == "random":
        spot = rng.choice([query, *constants(query)])
        options = [
            part for part, _ in known_by(*evaluate(spot, graph), graph) if part.of not in banned
        ]
        return (
            canonical(substitute(query, spot, And((spot, rng.choice(options)))))
            if options
            else None
        )
    for above, name in rows if order == "layer" else rows[-1:]:
        if order == "sequential" or above == min(rows)[0]:
            part = _told(new, name, graph, rng, banned, width)
            if part is None:
                return None
            new, banned = substitute(new, name, part), banned.union(constants(part))
    return None if order == "layer" and constant_edges(new, graph) else new


def _told(query, name, graph, rng, banned, width) -> Query | None:
    """Something to stand for the constant `name`: the answer stays, and no part of it can go."""
    answers = evaluate(query, graph)
    for least, few in rng.choice(WAYS):
        part = explain(name, graph, rng, banned, least, width, few)
        parts = part and [part, *(without_one(part) if isinstance(part, And) else ())]
        same = [evaluate(substitute(query, name, p), graph) == answers for p in parts or ()]
        if same and same[0] and not any(same[1:]):
            return part
    return None


def draft(answer: str, graph: Graph, rng: random.Random, hops: int, width: int = 3) -> Query | None:
    """A query of `hops` look-ups for `answer`, not checked; None: this draw found none."""
    query = explain(answer, graph, rng, frozenset((answer,)), rng.randint(2, width), width)
    while query is not None and depth_of(query) < hops:
        layer = depth_of(query) == 1 or rng.random() < 0.4
        query = expand(query, graph, rng, "layer" if layer else "sequential")
    return query if query and len(constants(query)) <= MAX_CONSTANTS else None


# --------------------------------------------------------------------------------- operators

OPERATORS: dict[str, Callable[[Query, Graph, random.Random], Query | None]] = {}


def operator(make: Callable) -> Callable:
    """`make(constant, graph, rng, banned)`, which says a constant in another way, as an operator
    (query, graph, rng) -> the harder query that passes all checks, or None: this draw found none.
    """

    @wraps(make)
    def upgrade(query: Query, graph: Graph, rng: random.Random) -> Query | None:
        banned = met(query, graph)
        for name in rng.sample(named := constants(query), min(TRIES, len(named))):
            old, new = name, make(name, graph, rng, banned)
            if isinstance(new, Range):  # it takes the place of the condition with the number
                old = next(part for part in walk(query) if name in children(part))
                new = isinstance(old, Proj) and replace(new, relation=inverse(old.relation))
            if new and is_better(new := substitute(query, old, new), query, graph):
                return new
        return None

    OPERATORS[make.__name__] = upgrade
    return upgrade


def is_better(new: Query, query: Query, graph: Graph) -> bool:
    """Whether `new` has the answer of `query`, no fault, and costs a solver more pages."""
    return (
        evaluate(new, graph) == evaluate(query, graph)
        and not is_faulty(new, graph)
        and effort(query, graph) < effort(new, graph) < math.inf
    )


@operator
def deepen(name, graph, rng, banned) -> Query | None:
    """A look-up more on the way to a constant."""
    return explain(name, graph, rng, banned, 1, 1)


@operator
def widen(name, graph, rng, banned) -> Query | None:
    """Two or three conditions in the place of a constant."""
    return explain(name, graph, rng, banned, 2, 3)


def _vague(name, graph, rng, banned) -> tuple[Proj | None, list[str]]:
    """A condition that `name` and a few other things fulfil, and these."""
    options = [
        (part, sorted(fulfil - {name}))
        for part, fulfil in known_by(name, graph)
        if 1 < len(fulfil) <= SEVERAL and part.of not in banned
    ]
    return rng.choice(options) if options else (None, [])


@operator
def fuzz(name, graph, rng, banned) -> Query | None:
    """A decade or a range in the place of a number, an attribute that several things have in that
    of a name."""
    for n in numbers([name]):
        low = n - (n % 10 if n >= 1000 else rng.randrange(1 + abs(n) // 5))
        return Range("", low, low + 9 if n >= 1000 else n + rng.randrange(1 + abs(n) // 5))
    return _vague(name, graph, rng, banned)[0]


@operator
def abstract(name, graph, rng, banned) -> Query | None:
    """A union of two alike in the place of one of them."""
    others = [other for other in _vague(name, graph, rng, ())[1] if other not in banned]
    return Or((name, rng.choice(others))) if others else None


@operator
def difference(name, graph, rng, banned) -> Query | None:
    """What several things have in common, save those that have something else too."""
    common, others = _vague(name, graph, rng, banned)
    options = [
        part
        for part, fulfil in (known_by(rng.choice(others), graph) if others else ())
        if name not in fulfil and part.of not in banned | {common.of}
    ]
    return Diff(common, rng.choice(options)) if options else None


@operator
def compute(name, graph, rng, banned) -> Query | None:
    """The extreme one of several things in the place of a name, a count in that of a number."""
    if counted := numbers([name]):
        options = [Count(part) for part in of_size(graph)[counted[0]] if part.of not in banned]
    else:
        common, _ = _vague(name, graph, rng, banned)
        options = [
            Extreme(relation, common, most)
            for relation in graph.relations[name]
            for most in (False, True)
            if common
        ]
        options = [part for part in options if evaluate(part, graph) == {name}]
    return rng.choice(options) if options else None


@lru_cache(maxsize=4)
def of_size(graph: Graph) -> Mapping[int, list[Proj]]:
    """Number -> the conditions R(title) that so many things fulfil, for small numbers."""
    found = defaultdict(list)
    for relation, rows in graph.adjacent.items():
        for title, values in sorted(rows.items()):
            if 1 < len(values) <= SEVERAL and not graph.is_value(title):
                found[len(values)].append(Proj(relation, title))
    return found


# --------------------------------------------------------------------------------- questions


def side_of(answer: str) -> Split:
    """The side of the split to which questions with this answer belong, one in four to `test`."""
    return "train" if int(_digest(f"side of {answer.casefold()}"), 16) % 4 else "test"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def synthesize_questions(
    world,
    n: int,
    seed: int | str,
    *,
    depth: int = 3,
    width: int = 3,
    split: Split | None = None,
    max_share: float = 0.02,
    max_effort: float = 60,
    hops: Mapping[int, float] | None = None,
    asked: Collection[str] | None = None,
) -> list[Task]:
    """`n` verified questions of `world`, all different; the same seed gives the same list.

    Args:
        depth: look-ups that follow each other, at most. width: conditions of the answer, at most.
        split: one side alone (`side_of` the answer); None: both.
        max_share: of the questions that may have the same answer (one always may).
        max_effort: pages that a solver may have to read.
        hops: the share of each depth, 2 and more; by default a depth's share grows with it.
        asked: titles that may be asked for (say, the train answers of another split); None: all.
    ValueError: the world has no graph, or cannot give `n`.
    """
    graph, hops = world.graph, hops or {d: d for d in range(2, depth + 1)}
    if graph is None or not graph.facts:
        raise ValueError(
            f"world {world.name!r} has no graph: nothing joins its pages. Give a folder whose "
            "pages have links or tables, or let a model read triples from them (endpoint=...)"
        )
    if n < 1 or width < 2 or not hops or min(hops) < 2:
        raise ValueError(f"n must be at least 1, width and depths 2: {n=}, {width=}, {dict(hops)}")
    rng, quota = random.Random(f"engine-{split}-{seed}"), max(1, int(max_share * n))
    answers = [
        title
        for title in sorted(graph.nodes)
        if split in (None, side_of(title))
        and (asked is None or title in asked)
        and not graph.is_value(title)
        and can_be_asked_for(title, graph)
    ]
    live, misses, used = {d: list(answers) for d in hops}, Counter(), Counter()
    tasks: dict[str, Task] = {}
    wanted = rng.choices(list(hops), list(hops.values()), k=n)
    while len(tasks) < n:
        d = wanted[len(tasks)]
        if not live[d]:
            raise ValueError(
                f"{world.name} gives only about {len(tasks)} of {n} questions: those of {d} "
                "look-ups have run out. Ask for fewer, or allow more max_share, max_effort or width"
            )
        spot = rng.randrange(len(live[d]))
        answer = live[d][spot]
        query = None
        if used[answer] < quota:
            query = _question(answer, graph, rng, d, width, max_effort)
        text = query and to_text(query)
        if query and text not in tasks:
            tasks[text] = _task(world, answer, query, text, rng.randrange(TEMPLATES))
            used[answer] += 1
            misses[d, answer] = 0
            continue
        misses[d, answer] += 1
        if used[answer] >= quota or misses[d, answer] >= PATIENCE:
            live[d][spot] = live[d][-1]
            live[d].pop()
    return list(tasks.values())


def _question(
    answer: str, graph: Graph, rng: random.Random, hops: int, width: int, max_effort: float
) -> Query | None:
    """A verified query of `hops` look-ups for `answer`, canonical; None: this draw found none."""
    upgrades = rng.sample(sorted(OPERATORS), rng.choice((0, 1, 1, 2)))
    query = draft(answer, graph, rng, max(2, hops - bool(upgrades)), width)
    if query is None or is_faulty(query, graph) or effort(query, graph) > max_effort:
        return None
    for name in [*upgrades, "deepen"]:
        if name == "deepen" and depth_of(query) == hops:
            continue
        new = OPERATORS[name](query, graph, rng)
        if new and depth_of(new) <= hops and effort(new, graph) <= max_effort:
            query = new
    return canonical(query) if depth_of(query) == hops else None


def _task(world, answer: str, query: Query, text: str, template: int) -> Task:
    hops, aliases = depth_of(query), world.graph.nodes[answer].aliases
    name = f"search-h{hops}-{_digest(f'{world.version}|{text}')}"
    return Task(
        name,
        render(query, world.graph, template),
        answer,
        "search",
        world.version,
        hops,
        aliases=aliases,
        query=text,
    )
