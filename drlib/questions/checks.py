"""Checks of a query by execution: unique answer, minimal conditions, no shortcut, no leak.

WebShaper (arXiv 2507.15061, section 3.3) defines redundancy and shortcuts on the edges of a
question; here every fact of the graph is considered. As in WebSailor (arXiv 2507.02592), questions
with several answers are rejected. Queries are executed on sets or on SQLite; no model judges them.
Names are compared as whole words, aliases included, and titles also by word stems.
`measure_effort` estimates the pages that a solver with tools must read.
"""

import math
import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import combinations

from drlib.questions.queries import (
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
    bind,
    evaluate_query,
    is_number,
    list_closed_parts,
    list_constants,
    list_subqueries,
    measure_depth,
    rebuild,
    unfold,
    walk,
)
from drlib.questions.sql_engine import SqlEngine
from drlib.worlds.graph import NOTHING, Graph, Node, inverse
from drlib.worlds.store import FACTS_PER_PAGE

STEM = 4  # smallest common prefix of two words
STEM_SHARE = 0.6  # smallest common prefix as a share of the shorter word
PLAIN = frozenset(  # words too common to identify a name; "franc" is not France
    "and city de east eastern franc great island islands la new north northern of old republic "
    "saint south southern st the union united west western".split()
)


@lru_cache(maxsize=1 << 18)
def leaks(answer: str, constant: str, graph: Graph, stems: bool = True) -> bool:
    """Return True if one name reveals the other: as whole words or, with `stems`, by a word stem.

    The results are cached per (answer, constant, graph, stems).
    """
    return names_overlap(answer, constant, graph) or (stems and shares_stems(answer, constant))


def names_overlap(answer: str, constant: str, graph: Graph) -> bool:
    """Return True if a name or alias of one contains a name of the other as whole words."""
    one, two = graph.nodes.get(answer), graph.nodes.get(constant)
    return _names_overlap(one or Node(answer, ""), two or Node(constant, ""))


@lru_cache(maxsize=1 << 18)
def _names_overlap(one: Node, two: Node) -> bool:
    """Return True if a normalised name of one node contains a name of the other."""
    names, others = _normalise_names(one), _normalise_names(two)
    return any(name in other or other in name for name in names for other in others)


@lru_cache(maxsize=1 << 16)
def _normalise_names(node: Node) -> tuple[str, ...]:
    """Return the title and aliases, case-folded, each word surrounded by single spaces."""
    names = (node.title, *node.aliases)
    words = {re.sub(r"[\W_]+", " ", f" {name.casefold()} ") for name in names}
    return tuple(sorted(words - {" "}))


def shares_stems(a: str, b: str) -> bool:
    """Return True if every significant word of one title shares a stem with the other."""
    (words, heads), (others, other_heads) = _split_words(a), _split_words(b)
    if heads.isdisjoint(other_heads):  # nearly always true, and then no stem is shared
        return False
    return _all_share_stem(words, others) or _all_share_stem(others, words)


@lru_cache(maxsize=1 << 16)
def _split_words(title: str) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the significant words of `title` without accents, and prefixes of the long ones."""
    letters = unicodedata.normalize("NFKD", title.casefold())
    plain = "".join(letter for letter in letters if not unicodedata.combining(letter))
    found = tuple(word for word in re.findall(r"[^\W_]+", plain) if word not in PLAIN)
    return found, frozenset(word[:STEM] for word in found if _is_long(word))


def _is_long(word: str) -> bool:
    """Return True if `word` is long enough to have a stem."""
    return len(word) >= STEM and not word.isdigit()


def _all_share_stem(words: tuple[str, ...], others: tuple[str, ...]) -> bool:
    """Return True if every word (at least one) shares a stem with a word of `others`."""
    return bool(words) and all(
        any(have_same_stem(word, other) for other in others) for word in words
    )


def have_same_stem(word: str, other: str) -> bool:
    """Return True if two case-folded words are equal or share a long enough prefix.

    The prefix has at least `STEM` letters and `STEM_SHARE` of the shorter word. On CLDR this joins
    260 of 150,602 pairs that whole words do not join.
    """
    if word == other:
        return True
    if not (_is_long(word) and _is_long(other)):
        return False
    shared = 0
    for one, two in zip(word, other):
        if one != two:
            break
        shared += 1
    return shared >= max(STEM, STEM_SHARE * min(len(word), len(other)))


TYPE_RELATIONS = {"kind of", "type of"}  # "is a territory" identifies no single thing
MAX_COINCIDENCES = 1  # per query


def find_answer(query: Query, graph: Graph) -> str | None:
    """Return the only answer of `query`, or None if it has no answer or several."""
    found = evaluate_query(query, graph)
    return next(iter(found)) if len(found) == 1 else None


def find_faults(
    query: Query, graph: Graph, engine: SqlEngine | None = None, strict: bool = True
) -> list[str]:
    """Return the faults of `query`; an empty list means that it is verified.

    The faults are:
        shallow: fewer than two consecutive hops.
        redundant: a constant occurs twice, or a fact joins two constants.
        shortcut: a constant is adjacent to the target (except to state its kind), or one of several
            conditions alone has the same answers.
        coincidence: more than one condition depends on an equal number (`count_coincidences`).
        not unique: the number of answers is not one.
        near: any fact of the graph joins the answer with a constant (`is_near`).
        leak: a name of the answer, or of a single thing on the path to it, reveals the name of a
            constant or is revealed by it (`leaks`).
        not minimal: the answers are unchanged without one condition (`iter_weakened`) or one
        branch of
            a union, or if the choice of an `Exists` may differ between its occurrences.

    Args:
        query: the query to check.
        graph: the facts.
        engine: executes the queries; None: set algebra.
        strict: also check "near", "coincidence" and leaks by a stem. Small worlds disable it
            because nearly all of their things are adjacent.
    """
    ask = engine.answers if engine else lambda part: evaluate_query(part, graph)
    return list(dict.fromkeys(_iter_faults(query, graph, ask, strict)))


def find_first_fault(query: Query, graph: Graph, strict: bool = True) -> str:
    """Return the first fault of `query`, or an empty string."""
    return next(_iter_faults(query, graph, lambda part: evaluate_query(part, graph), strict), "")


def _iter_faults(query: Query, graph: Graph, ask: Callable, strict: bool) -> Iterator[str]:
    """Yield the faults, cheap checks first; `ask` returns the answers of a query."""
    if measure_depth(query) < 2:
        yield "shallow"
    named = list_constants(query)
    if len(set(named)) < len(named) or count_constant_edges(query, graph):
        yield "redundant"
    if count_target_edges(query):
        yield "shortcut"
    if strict and count_coincidences(query, ask) > MAX_COINCIDENCES:
        yield "coincidence"
    answers = ask(query)
    if len(answers) != 1:
        yield "not unique"
    if strict and len(answers) == 1 and is_near(query, next(iter(answers)), graph):
        yield "near"
    given = [*named, *_list_exact_numbers(query)]
    hidden = sorted(_find_single_things(query, ask) | answers)
    if any(leaks(thing, name, graph, stems=strict) for thing in hidden for name in given):
        yield "leak"
    is_idle = _has_idle_branch(query, ask) or _has_idle_choice(query, ask)
    if is_idle or any(ask(weaker) == answers for weaker in iter_weakened(query)):
        yield "not minimal"
    parts = list_conditions(query)
    if len(parts) > 1 and any(ask(part) == answers for part in parts):
        yield "shortcut"


def is_near(query: Query, answer: str, graph: Graph) -> bool:
    """Return True if a fact other than a kind joins the answer with a constant or a named number.

    With three or more hops, also True if every constant is within two facts of the answer. False
    for a count, which has no page.
    """
    if isinstance(query, Count):
        return False
    given = {*list_constants(query), *_list_exact_numbers(query)}
    if given & find_neighbours(answer, graph):
        return True
    return (
        measure_depth(query) > 2
        and bool(given)
        and not any(is_far(x, answer, graph) for x in given)
    )


def is_far(name: str, answer: str, graph: Graph) -> bool:
    """Return True if more than two facts separate `name` and `answer` (no common neighbour)."""
    around = graph.neighbours.get(answer, NOTHING)
    return around.isdisjoint(graph.neighbours.get(name, NOTHING))


@lru_cache(maxsize=1 << 15)
def find_neighbours(answer: str, graph: Graph) -> frozenset[str]:
    """Return the titles that a fact joins with `answer`, facts that state a kind excepted."""
    relations = (
        relation
        for relation in graph.relations.get(answer, ())
        if not TYPE_RELATIONS & {relation, inverse(relation)}
    )
    return frozenset().union(*(graph.values(answer, relation) for relation in relations))


def count_coincidences(query: Query, ask: Callable[[Query], frozenset[str]]) -> int:
    """Count the conditions that depend on a number shared by chance.

    An example is "whose currency began in the year in which that of Peru ended". `ask` returns the
    answers of a query.
    """
    return sum(
        isinstance(part, Proj) and not _is_constant(part.of) and any(map(is_number, ask(part.of)))
        for part in walk(unfold(query))
    )


def _list_exact_numbers(query: Query) -> list[str]:
    """List the numbers named by ranges of one number."""
    ranges = [part for part in walk(query) if isinstance(part, Range)]
    return [str(part.low) for part in ranges if part.low == part.high]


def iter_weakened(query: Query) -> Iterator[Query]:
    """Yield `query` with one condition removed, in every way and at any depth.

    A part of an And, the exception of a Diff or the choice of an Extreme is dropped; what an Exists
    chooses among is replaced by Anything.
    """
    if isinstance(query, And):
        yield from iter_without_one(query)
    elif isinstance(query, Diff | Extreme):
        yield list_subqueries(query)[0]
    elif isinstance(query, Exists):
        yield Exists(query.name, Anything(), query.of)
    for inner in list_subqueries(query):
        for weaker in iter_weakened(inner):
            yield _replace_part(query, inner, weaker)


def _replace_part(query: Query, old: Query, new: Query) -> Query:
    """Return `query` with `new` in place of the direct part `old`, compared by identity."""
    return rebuild(query, lambda part: new if part is old else part)


def iter_without_one(query: And | Or) -> Iterator[Query]:
    """Yield `query` without each of its parts."""
    for i in range(len(query.parts)):
        rest = query.parts[:i] + query.parts[i + 1 :]
        yield type(query)(rest) if len(rest) > 1 else rest[0]


def _has_idle_branch(query: Query, ask: Callable) -> bool:
    """Return True if a union, or a projection of it, is unchanged without one of its branches."""
    for part in list_closed_parts(query):
        union = part.of if isinstance(part, Proj) else part
        if not isinstance(union, Or):
            continue
        for rest in iter_without_one(union):
            smaller = rest if part is union else Proj(part.relation, rest)
            if ask(part) == ask(smaller):
                return True
    return False


def _has_idle_choice(query: Query, ask: Callable) -> bool:
    """Return True if an Exists has the same answers when its occurrences may differ."""
    return any(
        isinstance(part, Exists)
        and len(ask(part.among)) > 1
        and ask(part) == ask(bind(part.of, part.name, part.among))
        for part in list_closed_parts(query)
    )


def _find_single_things(query: Query, ask: Callable) -> frozenset[str]:
    """Return the titles that are the only answer of a subquery or the only choice of an Exists."""
    closed = list_closed_parts(query)
    found = [ask(part) for part in closed if not isinstance(part, str)]
    found += [_find_choices(part, ask) for part in closed if isinstance(part, Exists)]
    return frozenset().union(*(some for some in found if len(some) == 1))


def _find_choices(query: Exists, ask: Callable) -> frozenset[str]:
    """Return the choices for which the Exists `query` has an answer."""
    return frozenset(t for t in ask(query.among) if ask(bind(query.of, query.name, t)))


def list_conditions(query: Query) -> tuple[Query, ...]:
    """Return the conditions on the target itself; none for a count."""
    match query:
        case And(parts) | Or(parts) if not _is_constant(query):
            return tuple(condition for part in parts for condition in list_conditions(part))
        case Diff(left, right):
            return list_conditions(left) + list_conditions(right)
        case Extreme(_, of, _):
            return list_conditions(of)
        case Exists(name, among, of):
            return tuple(Exists(name, among, condition) for condition in list_conditions(of))
        case Count():
            return ()
    return (query,)


def count_target_edges(query: Query) -> int:
    """Count the conditions that join the target to a constant, kinds excepted."""
    edges = 0
    for part in list_conditions(query):
        if isinstance(part, str):
            edges += 1
        elif isinstance(part, Proj) and _is_constant(part.of):
            edges += part.relation not in TYPE_RELATIONS
    return edges


def _is_constant(query: Query) -> bool:
    """Return True for a title or a union with a title, which WebShaper merges to one constant."""
    if isinstance(query, Or):
        return any(map(_is_constant, query.parts))
    return isinstance(query, str)


def count_constant_edges(query: Query, graph: Graph) -> int:
    """Count the pairs of constants that a fact joins."""
    near = graph.neighbours
    return sum(b in near.get(a, ()) for a, b in combinations(list_constants(query), 2))


@lru_cache(maxsize=1 << 12)
def measure_effort(query: Query, graph: Graph) -> float:
    """Return the number of page parts that a solver with tools must read.

    The solver lists the smallest part of an And. For each other part it either lists that part or
    reads the candidates' pages, whichever is cheaper. Numbers and years have no page, so they are
    read on a candidate's page. A page of n facts has ceil(n / 60) parts.

    Returns:
        The number of parts; infinity if no page lists the candidates.
    """
    read: set[str] = set()
    try:
        _solve(query, graph, read)
    except LookupError:
        return math.inf
    return sum(count_page_parts(title, graph) for title in read)


@lru_cache(maxsize=1 << 16)
def count_page_parts(title: str, graph: Graph) -> int:
    """Return the number of parts of the page of `title`; 0 if it has no page."""
    if graph.is_value(title):
        return 0
    facts = sum(len(graph.adjacent[name][title]) for name in graph.relations.get(title, ()))
    return max(1, math.ceil(facts / FACTS_PER_PAGE))


def _is_listable(query: Query, graph: Graph) -> bool:
    """Return True if pages list the answers of `query`; values and ranges are not listed."""
    match query:
        case And(parts):
            return any(_is_listable(part, graph) for part in parts)
        case Diff(left, _):
            return _is_listable(left, graph)
        case Range() | Anything():
            return False
        case Exists(name, among, of):
            chosen = (bind(of, name, title) for title in evaluate_query(among, graph))
            return _is_listable(among, graph) and all(_is_listable(part, graph) for part in chosen)
        case Proj(_, of) if any(map(graph.is_value, evaluate_query(of, graph))):
            return False
    return all(_is_listable(part, graph) for part in list_subqueries(query))


def _solve(
    query: Query, graph: Graph, read: set[str], among: frozenset[str] | None = None
) -> frozenset[str]:
    """Return the answers of `query`, restricted to `among`, and add the pages read to `read`.

    Raises:
        LookupError: no page lists the answers.
    """
    match query:
        case And(parts):
            return _solve_all(parts, graph, read, among)
        case Or(parts):
            for part in parts:
                _solve(part, graph, read, among)
        case Diff(left, right):
            found = _solve(left, graph, read, among)
            _solve(right, graph, read, found)
        case Range():
            if among is None or any(map(graph.is_value, among)):
                raise LookupError("no page lists the things with a number in a range")
            read |= among
        case Anything():
            raise LookupError("no page lists everything")
        case Exists(name, chosen, of):
            for title in _solve(chosen, graph, read):
                _solve(bind(of, name, title), graph, read)
        case Proj(relation, of) if _is_cheaper_one_by_one(query, graph, read, among):
            read |= among
            back = inverse(relation)
            shown = frozenset(value for title in among for value in graph.values(title, back))
            _solve(of, graph, read, shown)
        case Proj(_, of) | Extreme(_, of, _):
            found = _solve(of, graph, read)
            if isinstance(query, Proj) and any(map(graph.is_value, found)):
                raise LookupError("a value has no page")
            read |= found
        case Count(of):
            _solve(of, graph, read)
    answers = evaluate_query(query, graph)
    return answers if among is None else answers & among


def _solve_all(
    parts: tuple[Query, ...], graph: Graph, read: set[str], among: frozenset[str] | None
) -> frozenset[str]:
    """Solve the parts of an And: listable parts first, the smallest of them first."""

    def rank(i: int) -> tuple[bool, int, int]:
        """Return the sort key of a part."""
        return not _is_listable(parts[i], graph), len(evaluate_query(parts[i], graph)), i

    for i in sorted(range(len(parts)), key=rank):
        among = _solve(parts[i], graph, read, among)
    return among


def _is_cheaper_one_by_one(
    query: Proj, graph: Graph, read: set[str], among: frozenset[str] | None
) -> bool:
    """Return True if reading the candidates' pages costs less than a list of all answers."""
    if among is None or any(map(graph.is_value, among)):
        return False
    if not _is_listable(query, graph):
        return True
    return len(among - read) < len(evaluate_query(query.of, graph))
