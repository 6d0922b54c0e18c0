"""Query construction: conditions that identify an answer, then layer-wise expansion to more hops.

An answer is *explained* by a minimal set of conditions that only it fulfils; the sets of each size
are enumerated level by level (Apriori, Agrawal and Srikant, 1994). Constants are then replaced by
queries that they answer (WebShaper, arXiv 2507.15061, section 3.3); a replacement must not fit the
constant's *rivals*, the things that would add an answer. Sets are stored as integer bit masks.
Small worlds keep the greedy draws with which released policies were trained.
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

HUB = 50  # conditions that more things fulfil are skipped
MAX_KNOWN = 40  # conditions considered per title
NUMBER_WEIGHT = 0.02  # weight of a number; a thing has 1 and can be expanded
LONGER = 0.4  # relative weight of one more condition
TRIES = 8  # draws until the sets without banned names are listed
SEVERAL = 10  # things that a vague description may fit
PAIR_SHARE = 0.25  # share of stand-ins that prefer two conditions
KnownFact = tuple[Proj, frozenset[str]]  # R(constant), and the things that fulfil it


@lru_cache(maxsize=1 << 15)
def find_known_facts(title: str, graph: Graph) -> tuple[KnownFact, ...]:
    """Return up to `MAX_KNOWN` conditions that `title` fulfils, each with all things that fulfil
    it.

    Conditions that more than `HUB` things fulfil are skipped, as are values of a single thing (a
    code leads nowhere) and names that overlap with the title.
    """
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
    """Return True if several conditions together, and none alone, identify `title`."""
    sets = [fulfil for _, fulfil in find_known_facts(title, graph) if len(fulfil) > 1]
    return len(sets) > 1 and len(frozenset.intersection(*sets)) == 1


def has_explanation(title: str, graph: Graph, width: int, listed: bool = True) -> bool:
    """Return True if `draw_explanation` can draw two to `width` conditions for `title`.

    Args:
        listed: require a condition on a thing with a page.
    """
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
    """Draw a minimal set of conditions that only `title` fulfils.

    Small sets (`LONGER`) and sets without numbers (`NUMBER_WEIGHT`) are preferred, since things
    with an equal year have little else in common.

    Args:
        banned: constants that must not be named.
        least: smallest number of conditions.
        most: largest number of conditions.
        listed: require a condition on a thing with a page, where a solver can begin.
        numbers: allow conditions on numbers.

    Returns:
        The query, or None if no set of the drawn size avoids `banned`.
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
    """Draw one of `rows` by cumulative weights (twice as fast as `random.choices`)."""
    return rows[bisect(weights, rng.random() * weights[-1], 0, len(rows) - 1)]


def _build_query(chosen: int, rows: tuple[KnownFact, ...]) -> Query:
    """Return the conditions of the bit mask as a query."""
    parts = tuple([part for i, (part, _) in enumerate(rows) if chosen >> i & 1])
    return And(parts) if len(parts) > 1 else parts[0]


@lru_cache(maxsize=1 << 15)
def _index_by_constant(title: str, graph: Graph) -> dict[str, int]:
    """Return constant -> bit mask of the conditions that name it."""
    found: dict[str, int] = {}
    for i, (part, _) in enumerate(find_known_facts(title, graph)):
        constant = cast(str, part.of)
        found[constant] = found.get(constant, 0) | 1 << i
    return found


def _find_barred(title: str, graph: Graph, banned: frozenset[str]) -> int:
    """Return the bit mask of the conditions that name a banned constant."""
    named = _index_by_constant(title, graph)
    return sum(map(named.__getitem__, banned.intersection(named)))


class _Level(NamedTuple):
    """Sets of conditions of one size.

    Attributes:
        wide: mask of a set that several things fulfil -> mask of these things.
        telling: masks of the sets that only one thing fulfils.
    """

    wide: dict[int, int]
    telling: list[int]


class _Sizes(NamedTuple):
    """Explaining sets by size.

    Attributes:
        rows: for each size, the sets and their cumulative weights.
        shares: cumulative shares of the sizes.
    """

    rows: list[tuple[list[int], list[float]]]
    shares: list[float]


@lru_cache(maxsize=1 << 15)
def _group_by_size(
    title: str, graph: Graph, least: int, most: int, listed: bool, numbers: bool
) -> _Sizes:
    """Group the explaining sets of `least` to `most` conditions by size.

    The share of a size is the mean weight of its sets: three things are preferred to a set with a
    number.
    """
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
    """Return the product of the weights of the conditions in the mask."""
    product = 1.0
    for i, weight in enumerate(weights):
        if chosen >> i & 1:
            product *= weight
    return product


@lru_cache(maxsize=1 << 15)
def _compute_level(title: str, graph: Graph, size: int) -> _Level:
    """Return the sets of `size` conditions whose proper subsets all fit several things."""
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
    """Return True if every set of `one` and `more` without a member of `one` is in `smaller`."""
    rest = one
    while rest:
        lowest = rest & -rest
        if (one ^ lowest | more) not in smaller:
            return False
        rest ^= lowest
    return True


def _encode_things(title: str, graph: Graph) -> list[int]:
    """Return, for each condition, the bit mask of the things that fulfil it."""
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
    """Draw a description that can replace `title` and fits none of its `rivals`.

    Args:
        rivals: things that the description must not fit.
        width: 1 for one condition; 2 also allows two, both of them needed.
        is_barred: predicate of constants that must not be named.
        exactly: prefer a condition that only `title` fulfils.
        most: largest number of things that the description may fit.

    Returns:
        The description, or None. Numbers are used only if nothing else works. A description of
        `title` alone does not leak its name.
    """
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
    """Yield the conditions that at most `most` things and no rival fulfil, with these things."""
    for part, fulfil in rows:
        if len(fulfil) <= most and fulfil.isdisjoint(rivals):
            yield part, fulfil


def _iter_pairs(
    rows: Sequence[KnownFact], rivals: frozenset[str], most: int
) -> Iterator[tuple[Query, frozenset[str]]]:
    """Yield the pairs of conditions that some rivals fulfil, but none both, with the things
    that do.
    """
    crossed = [(part, fulfil, fulfil & rivals) for part, fulfil in rows]
    crossed = [row for row in crossed if row[2]]
    for (part, fulfil, rival), (other, others, also) in combinations(crossed, 2):
        if rival.isdisjoint(also) and len(fulfil & others) <= most:
            yield And((part, other)), fulfil & others


MAX_OPTIONS = 16  # conditions tried by `explain`
MAX_CONSTANTS = 8  # per question

# Arguments of `explain` for a constant: (least conditions, most things that fulfil them).
ALONE = (1, 1)
ONE_OF_SEVERAL = (1, SEVERAL)
BY_TWO_CONDITIONS = (2, 1)
# One pair is drawn; its two members are tried in order.
WAYS = (
    (ONE_OF_SEVERAL, ALONE),
    (ONE_OF_SEVERAL, ALONE),
    (ALONE, ONE_OF_SEVERAL),
    (BY_TWO_CONDITIONS, ALONE),
)
EXACT_SHARE = 0.5  # share of stand-ins that prefer to fit one thing alone
LAYER_SHARE = 0.4  # share of later expansions that replace a whole layer
Order = Literal["layer", "random", "sequential"]
Barred = Callable[[str], bool]  # True if a constant must not be named


class Bars(NamedTuple):
    """Restrictions of a strict expansion.

    Attributes:
        near: titles that must not be named because they are adjacent to the answer.
        hints: forbid names that leak a thing on the path, and constants joined by a fact. Harmless
            if the next expansion replaces the constant.
        numbers: forbid replacing a number, which makes a condition depend on a coincidence.
        vague: forbid a description of several things where one thing alone can be described, and of
            what is compared ("the same product as ..."). Otherwise half of the draws are exact
            (`EXACT_SHARE`), as an exact description often cannot be expanded further.
    """

    near: frozenset[str] = NOTHING
    hints: bool = True
    numbers: bool = False
    vague: bool = False


NO_BARS = Bars()  # no restrictions


def explain(
    title: str,
    graph: Graph,
    rng: random.Random,
    banned: frozenset[str],
    least: int,
    most: int,
    few: int = 1,
) -> Query | None:
    """Draw conditions that together only `title`, or at most `few` things, fulfil.

    Conditions are taken greedily in random order and never returned, so None only means that this
    draw failed. `draw_explanation` is better if numbers are unwanted or draws are many.

    Args:
        banned: constants that must not be named.
        least: smallest number of conditions.
        most: largest number of conditions.
        few: largest number of things that may fulfil all conditions.
    """
    options = [row for row in find_known_facts(title, graph) if row[0].of not in banned]
    tried = rng.sample(options, min(len(options), MAX_OPTIONS))
    chosen: list[KnownFact] = []
    left: frozenset[str] = NOTHING  # things that fulfil all of `chosen`
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
    """Return the conditions of the rows as one query."""
    parts = tuple(part for part, _ in rows)
    return And(parts) if len(parts) > 1 else parts[0]


def are_all_needed(sets: list[frozenset[str]], few: int) -> bool:
    """Return True if, without any one set, more than `few` things are in all the others."""
    if len(sets) == 1:
        return True
    others = (sets[:i] + sets[i + 1 :] for i in range(len(sets)))
    return all(len(frozenset.intersection(*some)) > few for some in others)


def find_single_things(query: Query, graph: Graph) -> frozenset[str]:
    """Return the constants, the answer and every single thing on the path: titles not to be
    named again.
    """
    parts = (part for part in list_closed_parts(query) if not isinstance(part, str))
    found = (evaluate_query(part, graph) for part in parts)
    single = (some for some in found if len(some) == 1)
    return frozenset(list_constants(query)).union(*single)


def list_layers(query: Query, above: int = 0) -> list[tuple[int, str]]:
    """Return (hops to the target, constant) for each constant, from left to right."""
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
    """Return one expansion of `query` that keeps its answer, or None if this draw found none.

    Args:
        order: "layer" replaces all constants nearest to the target, "sequential" the last constant;
            "random" adds a true condition and replaces nothing (the baselines of WebShaper).
        width: largest number of conditions of a replacement.
        strict: apply `bars`, and use numbers only if nothing else works.
        bars: restrictions of a strict expansion.
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
    """Return `query` with one more hop at a constant farthest from the target, or None.

    With three or more hops at least one constant stays more than two facts from the answer
    (`is_far`). `query` must have one answer.
    """
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
    """Return a predicate of constants that must not be named beside `kept` and `hidden` things."""

    def is_barred(name: str) -> bool:
        """Return True if the constant must not be named."""
        if name in banned or name in bars.near:
            return True
        if not bars.hints:
            return False
        if not kept.isdisjoint(graph.neighbours.get(name, NOTHING)):
            return True
        return any(leaks(thing, name, graph) for thing in hidden)

    return is_barred


def _bar_near(is_barred: Barred, answer: str, graph: Graph) -> Barred:
    """Return `is_barred` extended by constants within two facts of the answer."""
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
    """Return a description that replaces the constant `name`, keeps the answer and is minimal."""
    wrong = find_rivals(query, name, graph)
    if wrong is None:
        return None
    exactly = bars.vague or rng.random() < EXACT_SHARE
    most = 1 if bars.vague and _is_compared(name, query) else SEVERAL
    return draw_stand_in(name, graph, rng, wrong, width, is_barred, exactly, most)


def _is_compared(name: str, query: Query) -> bool:
    """Return True if `query` compares the target with the constant `name`."""
    return any(isinstance(part, Proj) and find_compared(part) == name for part in walk(query))


def find_rivals(query: Query, name: str, graph: Graph) -> frozenset[str] | None:
    """Return the things that would add an answer in place of the constant `name`.

    One pass from the target down to the constant finds them. An intersection passes a wrong thing
    on if all its other parts contain it; a projection, if it leads to a wrong thing.

    Returns:
        The rivals, or None if `name` occurs twice or below an exception, a count, an extreme or an
        Exists.
    """
    if list_constants(query).count(name) != 1:
        return None
    answers = evaluate_query(query, graph)
    wrong: frozenset[str] | None = None  # None: everything except the answers
    way = _find_path(name, query)
    for part, inside in zip(way, way[1:]):
        if isinstance(part, Proj):
            wrong = _find_leading(wrong, part.relation, answers, graph)
        elif isinstance(part, And):
            others = [evaluate_query(other, graph) for other in part.parts if other is not inside]
            shared = frozenset.intersection(*others)
            wrong = shared - answers if wrong is None else shared & wrong
        elif not isinstance(part, Or):  # a union passes the wrong things of each branch on
            return None
    return wrong


def _find_path(name: str, query: Query) -> list[Query]:
    """Return the nested queries from `query` down to the constant `name`; empty if absent."""
    if type(query) is str:
        return [query] if query == name else []
    for part in list_subqueries(query):
        if below := _find_path(name, part):
            return [query, *below]
    return []


def _find_leading(
    wrong: frozenset[str] | None, relation: str, answers: frozenset[str], graph: Graph
) -> frozenset[str]:
    """Return the things with a wrong value of `relation`; `wrong` None means any non-answer."""
    if wrong is None:
        rows = graph.adjacent.get(relation, {})
        return frozenset(title for title, values in rows.items() if not values <= answers)
    rows = graph.adjacent.get(inverse(relation), {})
    return NOTHING.union(*[rows[title] for title in wrong if title in rows])


def _add_condition(
    query: Query, graph: Graph, rng: random.Random, banned: frozenset[str]
) -> Query | None:
    """Return `query` with one true condition added to a constant or to the target."""
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
    """Return a replacement of the constant `name`, drawn greedily (small worlds)."""
    answers = evaluate_query(query, graph)

    def keeps_the_answer(part: Query) -> bool:
        """Return True if the answer is unchanged with `part` in place of the constant."""
        if evaluate_query(part, graph) == {name}:  # an equivalent description
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
    """Return an unchecked query with `hops` hops for `answer`, or None if this draw found none.

    Args:
        width: largest number of conditions of the answer.
        strict: prefer things to numbers and name nothing adjacent to the answer; False: the greedy
            draws of the small worlds.
        listed: require a condition on a thing with a page.
        numbers: allow conditions on numbers.
        vague: allow descriptions that fit several things.
    """
    if not strict:
        return _draft_greedily(answer, graph, rng, hops, width)
    bars = Bars(find_neighbours(answer, graph), numbers=not numbers, vague=not vague)
    query = draw_explanation(answer, graph, rng, frozenset((answer,)), 2, width, listed, numbers)
    is_whole = True  # the first draft and each complete layer leave no constant next to the target
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
    """Return a draft by the greedy draws of the small worlds."""
    query = explain(answer, graph, rng, frozenset((answer,)), rng.randint(2, width), width)
    while query is not None and measure_depth(query) < hops:
        whole_layer = measure_depth(query) == 1 or rng.random() < LAYER_SHARE
        order: Order = "layer" if whole_layer else "sequential"
        query = expand(query, graph, rng, order, strict=False)
    return _keep_if_short(query)


def _keep_if_short(query: Query | None) -> Query | None:
    """Return `query` if it names at most `MAX_CONSTANTS` constants, else None."""
    return query if query is not None and len(list_constants(query)) <= MAX_CONSTANTS else None
