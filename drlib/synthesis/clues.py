"""What tells one thing of a graph from the others: its conditions, and the sets of them that do.

A condition is R(constant), "the currency of Norway". An answer is *explained* by conditions that it
alone fulfils, and of which none can go: without any one of them more would fit. All such sets of
one size are listed once for an answer, level by level: a set is looked at only where every smaller
part of it still fits too many (Apriori, Agrawal and Srikant, 1994). A draw among them then costs
next to nothing, and fails only where there is none.

In these lists a set, of conditions or of the things that fulfil them, is a whole number with a bit
for each member: a hundred thousand of them are compared in the time of a question.

A constant of a query needs less: what stands in its place must not fit any of its *rivals*, the
things that would bring in another answer there, and may fit others. Rivals change with the query,
so nothing is listed for them (`draw_stand_in`).
"""

import random
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, chain, combinations
from typing import NamedTuple

from drlib.synthesis.giveaways import leaks, tells
from drlib.synthesis.queries import And, Proj, Query, constants, is_number
from drlib.worlds.graph import Graph, inverse

HUB = 50  # a condition that more things fulfil is no clue
MAX_KNOWN = 40  # conditions of a title that are looked at
NUMBER_WEIGHT = 0.02  # of a number as a clue, where a thing has 1: it leads on by coincidence only
LONGER = 0.4  # of an explanation by one condition more, where the shorter has 1
TRIES = 8  # of a draw that names what is banned, until the others are listed
SEVERAL = 10  # things that a vague description may fit
PAIR_SHARE = 0.25  # of the stand-ins, those that are to be two conditions where there are such
KnownFact = tuple[Proj, frozenset[str]]  # R(constant), and all that fulfil it


@lru_cache(maxsize=1 << 15)
def known_by(title: str, graph: Graph) -> tuple[KnownFact, ...]:
    """Conditions R(constant) that `title` fulfils, each with all that fulfil it: `MAX_KNOWN` of
    those that at most `HUB` things do. Left out: a value that one thing alone has, like a code,
    which leads nowhere, and a name that tells the title."""
    found = []
    for relation in graph.relations.get(title, ()):
        for value in sorted(graph.values(title, relation)):
            if value == title:
                continue
            fulfil = graph.values(value, inverse(relation))
            leads_on = len(fulfil) > 1 or not graph.is_value(value)
            if leads_on and len(fulfil) <= HUB and not tells(title, value, graph):
                found.append((Proj(inverse(relation), value), fulfil))
    rng = random.Random(f"known-{title}")
    return tuple(rng.sample(found, min(MAX_KNOWN, len(found))))


@lru_cache(maxsize=1 << 15)
def can_be_asked_for(title: str, graph: Graph) -> bool:
    """Whether several conditions together, and none alone, tell `title` from all else."""
    sets = [fulfil for _, fulfil in known_by(title, graph) if len(fulfil) > 1]
    return len(sets) > 1 and len(frozenset.intersection(*sets)) == 1


def is_explained(title: str, graph: Graph, width: int, listed: bool = True) -> bool:
    """Whether two to `width` conditions explain `title` alone, one of which a page lists if it is
    to be `listed`: whether `draw_explanation` has anything to draw for an answer."""
    return bool(_sizes(title, graph, 2, width, listed, True).shares)


def draw_explanation(
    title: str,
    graph: Graph,
    rng: random.Random,
    banned: frozenset[str],
    least: int,
    most: int,
    listed: bool = False,
    numbers: bool = True,
) -> Query | None:
    """One of the sets of `least` to `most` conditions that together only `title` fulfils, and of
    which none can go: rather few (`LONGER`) and rather without numbers (`NUMBER_WEIGHT`: what has
    an equal year has little else in common), or not `numbers`: none with any. None: there is none,
    or each of the drawn size names something `banned`.

    `listed`: one condition at least names a thing with a page, which lists what fulfils the
    condition; a value, as a year or a parameter, has no page, and a solver could not begin.
    """
    sizes = _sizes(title, graph, least, most, listed, numbers)
    if not sizes.shares:
        return None
    sets, weights = _one_of(sizes.rows, sizes.shares, rng)
    rows = known_by(title, graph)
    barred = _barred(title, graph, banned)
    for _ in range(TRIES):
        drawn = _one_of(sets, weights, rng)
        if not drawn & barred:
            return _query(drawn, rows)
    single = [after - before for before, after in zip((0.0, *weights), weights)]
    left = [(one, weight) for one, weight in zip(sets, single) if not one & barred]
    if not left:
        return None
    drawn = _one_of([one for one, _ in left], list(accumulate(weight for _, weight in left)), rng)
    return _query(drawn, rows)


def _one_of(rows: Sequence, weights: Sequence[float], rng: random.Random):
    """One of `rows`, by `weights` summed up. (`random.choices` does this at twice the price.)"""
    return rows[bisect(weights, rng.random() * weights[-1], 0, len(rows) - 1)]


def _query(chosen: int, rows: tuple[KnownFact, ...]) -> Query:
    parts = tuple([part for i, (part, _) in enumerate(rows) if chosen >> i & 1])
    return And(parts) if len(parts) > 1 else parts[0]


@lru_cache(maxsize=1 << 15)
def _named(title: str, graph: Graph) -> dict[str, int]:
    """Constant -> the conditions of `title` that name it."""
    found: dict[str, int] = {}
    for i, (part, _) in enumerate(known_by(title, graph)):
        found[part.of] = found.get(part.of, 0) | 1 << i
    return found


def _barred(title: str, graph: Graph, banned: frozenset[str]) -> int:
    """The conditions that name something `banned`."""
    named = _named(title, graph)
    return sum(map(named.__getitem__, banned.intersection(named)))


class _Level(NamedTuple):
    """Sets of conditions of one size: those that several things fulfil, with these, and those that
    explain."""

    wide: dict[int, int]
    telling: list[int]


class _Sizes(NamedTuple):
    """(sets that explain, their weights summed up) of each size that has any, and the shares of
    these sizes, summed up too."""

    rows: list[tuple[list[int], list[float]]]
    shares: list[float]


@lru_cache(maxsize=1 << 15)
def _sizes(title: str, graph: Graph, least: int, most: int, listed: bool, numbers: bool) -> _Sizes:
    """The sets of `least` to `most` conditions that explain `title`, by size. A size's share goes
    by the mean weight of its sets: a set of three things comes before one with a number."""
    rows = known_by(title, graph)
    pages = sum(1 << i for i, (part, _) in enumerate(rows) if not graph.is_value(part.of))
    weights = [NUMBER_WEIGHT if is_number(part.of) else 1.0 for part, _ in rows]
    numbered = sum(1 << i for i, (part, _) in enumerate(rows) if is_number(part.of))
    found, shares = [], []
    for size in range(least, most + 1):
        sets = _level(title, graph, size).telling
        if listed:
            sets = [one for one in sets if one & pages]
        if not numbers:
            sets = [one for one in sets if not one & numbered]
        if sets:
            summed = list(accumulate(_weight(one, weights) for one in sets))
            found.append((sets, summed))
            shares.append(LONGER ** (size - least) * summed[-1] / len(sets))
    return _Sizes(found, list(accumulate(shares)))


def _weight(chosen: int, weights: list[float]) -> float:
    product = 1.0
    for i, weight in enumerate(weights):
        if chosen >> i & 1:
            product *= weight
    return product


@lru_cache(maxsize=1 << 15)
def _level(title: str, graph: Graph, size: int) -> _Level:
    """The sets of `size` conditions of `title` whose smaller parts all fit others too."""
    things = _things(title, graph)
    level = _Level({}, [])
    if size == 1:
        grown = [(1 << i, fulfil) for i, fulfil in enumerate(things)]
    else:
        smaller = _level(title, graph, size - 1).wide
        grown = [
            (one | 1 << i, fit & fulfil)
            for one, fit in smaller.items()
            for i, fulfil in enumerate(things)
            if one >> i == 0 and _all_wide(one, 1 << i, smaller)
        ]
    for conditions, fit in grown:
        if fit.bit_count() > 1:
            level.wide[conditions] = fit
        else:
            level.telling.append(conditions)
    return level


def _all_wide(one: int, more: int, smaller: dict[int, int]) -> bool:
    """Whether `one` and `more` without any member of `one` is among the `smaller` sets."""
    rest = one
    while rest:
        lowest = rest & -rest
        if (one ^ lowest | more) not in smaller:
            return False
        rest ^= lowest
    return True


def _things(title: str, graph: Graph) -> list[int]:
    """What fulfils each of the conditions."""
    places: dict[str, int] = {}
    return [
        sum(1 << places.setdefault(thing, len(places)) for thing in fulfil)
        for _, fulfil in known_by(title, graph)
    ]


def draw_stand_in(
    title: str,
    graph: Graph,
    rng: random.Random,
    rivals: frozenset[str],
    width: int,
    is_barred: Callable[[str], bool],
    exactly: bool = False,
    most: int = SEVERAL,
) -> Query | None:
    """What may stand for `title` where none of its `rivals` may: a condition that none of them
    fulfils, or, of a `width` of 2, two that none fulfils both and of which each is needed; at most
    `most` things fit, and where only `title` does no name hints at it. Constants that are barred
    are not named, and numbers only where nothing else will do. `exactly`: single conditions come
    first that fit `title` alone, "the captain of the Heron" before "a captain from Oslo". None:
    there is no such description."""
    known = known_by(title, graph)
    rows = rng.sample(known, len(known))
    rows.sort(key=lambda row: (is_number(row[0].of), exactly and len(row[1]) > 1))
    ways = [_single(rows, rivals, most)]
    if width > 1:
        ways.insert(rng.random() >= PAIR_SHARE, _pairs(rows, rivals, most))
    for told, fit in chain(*ways):
        named = constants(told)
        is_hinted = len(fit) == 1 and any(leaks(title, name, graph) for name in named)
        if not is_hinted and not any(map(is_barred, named)):
            return told
    return None


def _single(
    rows: Sequence[KnownFact], rivals: frozenset[str], most: int
) -> Iterator[tuple[Query, frozenset[str]]]:
    """The conditions that few things and no rival fulfil, and these things."""
    for part, fulfil in rows:
        if len(fulfil) <= most and fulfil.isdisjoint(rivals):
            yield part, fulfil


def _pairs(
    rows: Sequence[KnownFact], rivals: frozenset[str], most: int
) -> Iterator[tuple[Query, frozenset[str]]]:
    """Each two conditions that some rivals fulfil, but none both, and the few things that do."""
    crossed = [(part, fulfil, fulfil & rivals) for part, fulfil in rows]
    crossed = [row for row in crossed if row[2]]
    for (part, fulfil, rival), (other, others, also) in combinations(crossed, 2):
        if rival.isdisjoint(also) and len(fulfil & others) <= most:
            yield And((part, other)), fulfil & others
