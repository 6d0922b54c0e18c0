"""From an answer to a query that only it fulfils, made deeper layer by layer.

An answer is *explained*: two or three conditions of which all are needed, from the lists of
`drlib.questions.expansion` (`strict`) or by a greedy draw (`explain`: small worlds, and operators).
The small worlds keep the draws by which policies were trained. Then each constant is
replaced by a query that it answers, alone or as one of a few things, one layer after the other
(the layer-wise expansion of WebShaper, arXiv 2507.15061, section 3.3): the answer stays, every path
from a constant to the target grows, and no constant stands beside the target or is joined to
another. A question of three look-ups and more may go deeper at one constant only (`add_hop`). The
paper's two baselines, `random` and `sequential` expansion, are here for comparison.

What may stand for a constant is known before it is drawn: anything true of it that fits none of
its `find_rivals`. One pass from the target down to the constant finds them.

Everything is drawn from a `random.Random` that the caller gives; None means that this draw found
nothing, and another may.

What tells one thing of a graph from the others: its conditions, and the sets of them that do.

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
from typing import Literal, NamedTuple, cast

from drlib.questions.checks import (
    count_constant_edges,
    find_neighbours,
    is_far,
    iter_without_one,
    leaks,
    names_overlap,
)
from drlib.questions.queries import (
    And,
    Or,
    Proj,
    Query,
    canonicalise,
    evaluate_query,
    find_compared,
    is_number,
    list_closed_parts,
    list_constants,
    list_subqueries,
    measure_depth,
    substitute,
    walk,
)
from drlib.worlds.graph import NOTHING, Graph, inverse

HUB = 50  # a condition that more things fulfil is no clue
MAX_KNOWN = 40  # conditions of a title that are looked at
NUMBER_WEIGHT = 0.02  # of a number as a clue, where a thing has 1: it leads on by coincidence only
LONGER = 0.4  # of an explanation by one condition more, where the shorter has 1
TRIES = 8  # of a draw that names what is banned, until the others are listed
SEVERAL = 10  # things that a vague description may fit
PAIR_SHARE = 0.25  # of the stand-ins, those that are to be two conditions where there are such
KnownFact = tuple[Proj, frozenset[str]]  # R(constant), and all that fulfil it


@lru_cache(maxsize=1 << 15)
def find_known_facts(title: str, graph: Graph) -> tuple[KnownFact, ...]:
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
            if leads_on and len(fulfil) <= HUB and not names_overlap(title, value, graph):
                found.append((Proj(inverse(relation), value), fulfil))
    rng = random.Random(f"known-{title}")
    return tuple(rng.sample(found, min(MAX_KNOWN, len(found))))


@lru_cache(maxsize=1 << 15)
def is_identifiable(title: str, graph: Graph) -> bool:
    """Whether several conditions together, and none alone, tell `title` from all else."""
    sets = [fulfil for _, fulfil in find_known_facts(title, graph) if len(fulfil) > 1]
    return len(sets) > 1 and len(frozenset.intersection(*sets)) == 1


def has_explanation(title: str, graph: Graph, width: int, listed: bool = True) -> bool:
    """Whether two to `width` conditions explain `title` alone, one of which a page lists if it is
    to be `listed`: whether `draw_explanation` has anything to draw for an answer."""
    return bool(_group_by_size(title, graph, 2, width, listed, True).shares)


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
    sizes = _group_by_size(title, graph, least, most, listed, numbers)
    if not sizes.shares:
        return None
    sets, weights = _draw_weighted(sizes.rows, sizes.shares, rng)
    rows = find_known_facts(title, graph)
    barred = _find_barred(title, graph, banned)
    for _ in range(TRIES):
        drawn = _draw_weighted(sets, weights, rng)
        if not drawn & barred:
            return _build_query(drawn, rows)
    single = [after - before for before, after in zip((0.0, *weights), weights)]
    left = [(one, weight) for one, weight in zip(sets, single) if not one & barred]
    if not left:
        return None
    drawn = _draw_weighted(
        [one for one, _ in left], list(accumulate(weight for _, weight in left)), rng
    )
    return _build_query(drawn, rows)


def _draw_weighted(rows: Sequence, weights: Sequence[float], rng: random.Random):
    """One of `rows`, by `weights` summed up. (`random.choices` does this at twice the price.)"""
    return rows[bisect(weights, rng.random() * weights[-1], 0, len(rows) - 1)]


def _build_query(chosen: int, rows: tuple[KnownFact, ...]) -> Query:
    parts = tuple([part for i, (part, _) in enumerate(rows) if chosen >> i & 1])
    return And(parts) if len(parts) > 1 else parts[0]


@lru_cache(maxsize=1 << 15)
def _index_by_constant(title: str, graph: Graph) -> dict[str, int]:
    """Constant -> the conditions of `title` that name it."""
    found: dict[str, int] = {}
    for i, (part, _) in enumerate(find_known_facts(title, graph)):
        constant = cast(str, part.of)
        found[constant] = found.get(constant, 0) | 1 << i
    return found


def _find_barred(title: str, graph: Graph, banned: frozenset[str]) -> int:
    """The conditions that name something `banned`."""
    named = _index_by_constant(title, graph)
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
def _group_by_size(
    title: str, graph: Graph, least: int, most: int, listed: bool, numbers: bool
) -> _Sizes:
    """The sets of `least` to `most` conditions that explain `title`, by size. A size's share goes
    by the mean weight of its sets: a set of three things comes before one with a number."""
    rows = find_known_facts(title, graph)
    pages = sum(
        1 << i for i, (part, _) in enumerate(rows) if not graph.is_value(cast(str, part.of))
    )
    weights = [NUMBER_WEIGHT if is_number(part.of) else 1.0 for part, _ in rows]
    numbered = sum(1 << i for i, (part, _) in enumerate(rows) if is_number(part.of))
    found, shares = [], []
    for size in range(least, most + 1):
        sets = _compute_level(title, graph, size).telling
        if listed:
            sets = [one for one in sets if one & pages]
        if not numbers:
            sets = [one for one in sets if not one & numbered]
        if sets:
            summed = list(accumulate(_weigh(one, weights) for one in sets))
            found.append((sets, summed))
            shares.append(LONGER ** (size - least) * summed[-1] / len(sets))
    return _Sizes(found, list(accumulate(shares)))


def _weigh(chosen: int, weights: list[float]) -> float:
    product = 1.0
    for i, weight in enumerate(weights):
        if chosen >> i & 1:
            product *= weight
    return product


@lru_cache(maxsize=1 << 15)
def _compute_level(title: str, graph: Graph, size: int) -> _Level:
    """The sets of `size` conditions of `title` whose smaller parts all fit others too."""
    things = _encode_things(title, graph)
    level = _Level({}, [])
    if size == 1:
        grown = [(1 << i, fulfil) for i, fulfil in enumerate(things)]
    else:
        smaller = _compute_level(title, graph, size - 1).wide
        grown = [
            (one | 1 << i, fit & fulfil)
            for one, fit in smaller.items()
            for i, fulfil in enumerate(things)
            if one >> i == 0 and _are_all_wide(one, 1 << i, smaller)
        ]
    for conditions, fit in grown:
        if fit.bit_count() > 1:
            level.wide[conditions] = fit
        else:
            level.telling.append(conditions)
    return level


def _are_all_wide(one: int, more: int, smaller: dict[int, int]) -> bool:
    """Whether `one` and `more` without any member of `one` is among the `smaller` sets."""
    rest = one
    while rest:
        lowest = rest & -rest
        if (one ^ lowest | more) not in smaller:
            return False
        rest ^= lowest
    return True


def _encode_things(title: str, graph: Graph) -> list[int]:
    """What fulfils each of the conditions."""
    places: dict[str, int] = {}
    return [
        sum(1 << places.setdefault(thing, len(places)) for thing in fulfil)
        for _, fulfil in find_known_facts(title, graph)
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
    """What may stand for `title` where none of its `find_rivals` may: a condition that none of them
    fulfils, or, of a `width` of 2, two that none fulfils both and of which each is needed; at most
    `most` things fit, and where only `title` does no name hints at it. Constants that are barred
    are not named, and numbers only where nothing else will do. `exactly`: single conditions come
    first that fit `title` alone, "the captain of the Heron" before "a captain from Oslo". None:
    there is no such description."""
    known = find_known_facts(title, graph)
    rows = rng.sample(known, len(known))
    rows.sort(key=lambda row: (is_number(row[0].of), exactly and len(row[1]) > 1))
    ways = [_iter_single(rows, rivals, most)]
    if width > 1:
        ways.insert(rng.random() >= PAIR_SHARE, _iter_pairs(rows, rivals, most))
    for description, fit in chain(*ways):
        named = list_constants(description)
        is_hinted = len(fit) == 1 and any(leaks(title, name, graph) for name in named)
        if not is_hinted and not any(map(is_barred, named)):
            return description
    return None


def _iter_single(
    rows: Sequence[KnownFact], rivals: frozenset[str], most: int
) -> Iterator[tuple[Query, frozenset[str]]]:
    """The conditions that few things and no rival fulfil, and these things."""
    for part, fulfil in rows:
        if len(fulfil) <= most and fulfil.isdisjoint(rivals):
            yield part, fulfil


def _iter_pairs(
    rows: Sequence[KnownFact], rivals: frozenset[str], most: int
) -> Iterator[tuple[Query, frozenset[str]]]:
    """Each two conditions that some rivals fulfil, but none both, and the few things that do."""
    crossed = [(part, fulfil, fulfil & rivals) for part, fulfil in rows]
    crossed = [row for row in crossed if row[2]]
    for (part, fulfil, rival), (other, others, also) in combinations(crossed, 2):
        if rival.isdisjoint(also) and len(fulfil & others) <= most:
            yield And((part, other)), fulfil & others


MAX_OPTIONS = 16  # of these, tried in one explanation
MAX_CONSTANTS = 8  # that a question names

# How `explain` tells a constant: (conditions at least, things at most that may fulfil them).
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
EXACT_SHARE = 0.5  # of the stand-ins, those that are to fit one thing alone where there are such
LAYER_SHARE = 0.4  # of the expansions after the first, those that replace a whole layer
Order = Literal["layer", "random", "sequential"]
Barred = Callable[[str], bool]  # whether a constant must not be named


class Bars(NamedTuple):
    """What a strict expansion does not do.

    near: titles that it does not name, as they stand next to the answer.
    hints: naming what hints at a thing on the way, or what a fact joins to another constant. It
        does no harm where the next expansion replaces what is named now.
    numbers: replacing a number, so that a condition hangs on what two things share by coincidence.
    vague: saying of a thing what others are too, where something is true of it alone; of what is
        compared with another thing ("the same product as ..."), in any case. People ask so; without
        this bar half of the draws do (`EXACT_SHARE`), as what is said of one thing alone often
        leads no further.
    """

    near: frozenset[str] = NOTHING
    hints: bool = True
    numbers: bool = False
    vague: bool = False


NO_BARS = Bars()  # nothing stands next to the answer


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
    numbers are not wanted or draws are many, `drlib.questions.expansion.draw_explanation` is better."""
    options = [row for row in find_known_facts(title, graph) if row[0].of not in banned]
    tried = rng.sample(options, min(len(options), MAX_OPTIONS))
    chosen: list[KnownFact] = []
    left: frozenset[str] = NOTHING  # what fulfils all of `chosen`
    for part, fulfil in tried:
        tells_alone = len(fulfil) <= few
        if tells_alone and (chosen or least > 1):
            continue
        rest = left & fulfil if chosen else fulfil
        rows = [*chosen, (part, fulfil)]
        if len(rest) <= few and len(rows) >= least:
            needed = are_all_needed([some for _, some in rows], few)
            return _join(rows) if needed else None
        narrows = not chosen or len(rest) < len(left)
        if few < len(rest) and len(rows) < most and narrows:
            chosen, left = rows, rest
    return None


def _join(rows: list[KnownFact]) -> Query:
    parts = tuple(part for part, _ in rows)
    return And(parts) if len(parts) > 1 else parts[0]


def are_all_needed(sets: list[frozenset[str]], few: int) -> bool:
    """Whether without any one of several sets more than `few` things are in all others."""
    if len(sets) == 1:
        return True
    others = (sets[:i] + sets[i + 1 :] for i in range(len(sets)))
    return all(len(frozenset.intersection(*some)) > few for some in others)


def find_single_things(query: Query, graph: Graph) -> frozenset[str]:
    """What must not be named again: the constants, the answer and every thing on the way."""
    parts = (part for part in list_closed_parts(query) if not isinstance(part, str))
    found = (evaluate_query(part, graph) for part in parts)
    single = (some for some in found if len(some) == 1)
    return frozenset(list_constants(query)).union(*single)


def list_layers(query: Query, above: int = 0) -> list[tuple[int, str]]:
    """(look-ups between it and the target, constant) for every constant, from left to right."""
    if isinstance(query, str):
        return [(above, query)]
    above += isinstance(query, Proj)
    return [row for part in list_subqueries(query) for row in list_layers(part, above)]


def expand(
    query: Query,
    graph: Graph,
    rng: random.Random,
    order: Order = "layer",
    width: int = 2,
    strict: bool = True,
    bars: Bars = NO_BARS,
) -> Query | None:
    """One expansion that keeps the answer; None: this draw found none. `strict`: within `bars`, and
    with numbers only where nothing else will do.

    `layer` replaces all constants that are nearest to the target, `sequential` only the last one;
    `random` adds a true condition to any constant or to the target and replaces nothing.
    """
    on_the_way = find_single_things(query, graph)
    if order == "random":
        return _add_condition(query, graph, rng, on_the_way)
    rows = list_layers(query)
    if order == "sequential":
        names = [rows[-1][1]]
    else:
        nearest = min(rows)[0]
        names = [name for above, name in rows if above == nearest]
    if strict and bars.numbers and any(map(is_number, names)):
        return None
    named = frozenset(list_constants(query))
    new, kept = query, named.difference(names)
    for name in names:
        if strict:
            is_barred = _make_bar(on_the_way | kept, on_the_way - named, kept, bars, graph)
            description = _find_stand_in(new, name, graph, rng, width, is_barred, bars)
        else:
            description = _describe_greedily(new, name, graph, rng, on_the_way | kept, width)
        if description is None:
            return None
        new = substitute(new, name, description)
        kept = kept.union(list_constants(description))
    if order == "layer" and count_constant_edges(new, graph):
        return None
    return new


def add_hop(
    query: Query, graph: Graph, rng: random.Random, bars: Bars = NO_BARS, width: int = 2
) -> Query | None:
    """`query`, which has one answer, with a look-up more at one of the constants that are farthest
    from the target, within `bars`; None: this draw found none. Of three look-ups and more one
    constant at least is not within two facts of the answer (`drlib.questions.checks.is_far`)."""
    (answer,) = evaluate_query(query, graph)
    named, on_the_way = frozenset(list_constants(query)), find_single_things(query, graph)
    rows = list_layers(query)
    farthest = max(above for above, _ in rows)
    names = [name for above, name in rows if above == farthest]
    for name in rng.sample(names, len(names)):
        if is_number(name) and bars.numbers:
            continue
        kept = named - {name}
        is_barred = _make_bar(on_the_way, on_the_way - named, kept, bars, graph)
        if measure_depth(query) > 1 and not any(is_far(other, answer, graph) for other in kept):
            is_barred = _bar_near(is_barred, answer, graph)
        description = _find_stand_in(query, name, graph, rng, width, is_barred, bars)
        if description is not None:
            return substitute(query, name, description)
    return None


def _make_bar(
    banned: frozenset[str],
    hidden: frozenset[str],
    kept: frozenset[str],
    bars: Bars,
    graph: Graph,
) -> Barred:
    """Whether a constant must not be named: it is `banned`, or within `bars` beside the constants
    that are `kept`, where `hidden` things are on the way."""

    def is_barred(name: str) -> bool:
        if name in banned or name in bars.near:
            return True
        if not bars.hints:
            return False
        if not kept.isdisjoint(graph.neighbours.get(name, NOTHING)):
            return True
        return any(leaks(thing, name, graph) for thing in hidden)

    return is_barred


def _bar_near(is_barred: Barred, answer: str, graph: Graph) -> Barred:
    return lambda name: not is_far(name, answer, graph) or is_barred(name)


def _find_stand_in(
    query: Query,
    name: str,
    graph: Graph,
    rng: random.Random,
    width: int,
    is_barred: Barred,
    bars: Bars,
) -> Query | None:
    """Something to stand for the constant `name`: the answer stays, and no part of it can go."""
    wrong = find_rivals(query, name, graph)
    if wrong is None:
        return None
    exactly = bars.vague or rng.random() < EXACT_SHARE
    most = 1 if bars.vague and _is_compared(name, query) else SEVERAL
    return draw_stand_in(name, graph, rng, wrong, width, is_barred, exactly, most)


def _is_compared(name: str, query: Query) -> bool:
    """Whether `query` asks for what shares something with the constant `name`."""
    return any(isinstance(part, Proj) and find_compared(part) == name for part in walk(query))


def find_rivals(query: Query, name: str, graph: Graph) -> frozenset[str] | None:
    """What would bring in another answer if it stood where `query` has the constant `name`. None:
    it is not to be told thing by thing, as the constant is named twice, or stands in what is
    excepted, counted, compared or chosen among.

    From the target down: an intersection lets a wrong thing through where all its other parts have
    it, a projection where it leads to a wrong thing."""
    if list_constants(query).count(name) != 1:
        return None
    answers = evaluate_query(query, graph)
    wrong: frozenset[str] | None = None  # all but the answers
    way = _find_path(name, query)
    for part, inside in zip(way, way[1:]):
        if isinstance(part, Proj):
            wrong = _find_leading(wrong, part.relation, answers, graph)
        elif isinstance(part, And):
            others = [evaluate_query(other, graph) for other in part.parts if other is not inside]
            shared = frozenset.intersection(*others)
            wrong = shared - answers if wrong is None else shared & wrong
        elif not isinstance(part, Or):  # a wrong thing in one branch is in the union
            return None
    return wrong


def _find_path(name: str, query: Query) -> list[Query]:
    """`query`, and what stands inside each other in it down to `name`; [] if that is not in it."""
    if type(query) is str:
        return [query] if query == name else []
    for part in list_subqueries(query):
        if below := _find_path(name, part):
            return [query, *below]
    return []


def _find_leading(
    wrong: frozenset[str] | None, relation: str, answers: frozenset[str], graph: Graph
) -> frozenset[str]:
    """What has a `wrong` value (None: one that is no answer) of `relation`."""
    if wrong is None:
        rows = graph.adjacent.get(relation, {})
        return frozenset(title for title, values in rows.items() if not values <= answers)
    rows = graph.adjacent.get(inverse(relation), {})
    return NOTHING.union(*[rows[title] for title in wrong if title in rows])


def _add_condition(
    query: Query, graph: Graph, rng: random.Random, banned: frozenset[str]
) -> Query | None:
    """`query` and one true condition, on any constant or on the target."""
    spot = rng.choice([query, *list_constants(query)])
    (thing,) = evaluate_query(spot, graph)
    options = [part for part, _ in find_known_facts(thing, graph) if part.of not in banned]
    if not options:
        return None
    return canonicalise(substitute(query, spot, And((spot, rng.choice(options)))))


def _describe_greedily(
    query: Query,
    name: str,
    graph: Graph,
    rng: random.Random,
    banned: frozenset[str],
    width: int,
) -> Query | None:
    """As `_find_stand_in`, by the greedy draws of the small worlds."""
    answers = evaluate_query(query, graph)

    def keeps_the_answer(part: Query) -> bool:
        if evaluate_query(part, graph) == {name}:  # it is another word for the same
            return True
        return evaluate_query(substitute(query, name, part), graph) == answers

    for least, few in rng.choice(WAYS):
        description = explain(name, graph, rng, banned, least, width, few)
        if description is None or (few > 1 and not keeps_the_answer(description)):
            continue
        weaker = iter_without_one(description) if isinstance(description, And) else ()
        if not any(keeps_the_answer(part) for part in weaker):
            return description
    return None


def draft_query(
    answer: str,
    graph: Graph,
    rng: random.Random,
    hops: int,
    width: int = 3,
    strict: bool = True,
    listed: bool = True,
    numbers: bool = True,
    vague: bool = True,
) -> Query | None:
    """A query of `hops` look-ups for `answer`, not checked; None: this draw found none. `strict`:
    of things rather than of numbers (not `numbers`: it hangs on none), none of them next to the
    answer, and, if it is to be `listed`, such that a page lists what fulfils one condition of the
    answer. Not `vague`: things are description by what fits them alone, where there is such."""
    if not strict:
        return _draft_greedily(answer, graph, rng, hops, width)
    bars = Bars(find_neighbours(answer, graph), numbers=not numbers, vague=not vague)
    query = draw_explanation(answer, graph, rng, frozenset((answer,)), 2, width, listed, numbers)
    is_whole = True  # of a layer: after the first one no constant stands beside the target
    while query is not None and measure_depth(query) < hops:
        is_next_whole = measure_depth(query) < hops - 1 and rng.random() < LAYER_SHARE
        if not is_whole:
            query = add_hop(query, graph, rng, bars)
        elif is_next_whole:
            query = expand(query, graph, rng, bars=bars._replace(near=NOTHING, hints=False))
        else:
            query = expand(query, graph, rng, bars=bars)
        is_whole = is_next_whole
    return _keep_if_short(query)


def _draft_greedily(
    answer: str, graph: Graph, rng: random.Random, hops: int, width: int
) -> Query | None:
    """As `draft_query`, by the greedy draws of the small worlds."""
    query = explain(answer, graph, rng, frozenset((answer,)), rng.randint(2, width), width)
    while query is not None and measure_depth(query) < hops:
        whole_layer = measure_depth(query) == 1 or rng.random() < LAYER_SHARE
        order: Order = "layer" if whole_layer else "sequential"
        query = expand(query, graph, rng, order, strict=False)
    return _keep_if_short(query)


def _keep_if_short(query: Query | None) -> Query | None:
    return query if query is not None and len(list_constants(query)) <= MAX_CONSTANTS else None
