"""Checks of a query by execution: one answer, every condition needed, nothing given away.

WebShaper (arXiv 2507.15061, section 3.3) names two ways in which a multi-hop question is none: a
*redundant* constant that another constant already leads to, and a *shortcut*, a constant that
stands next to the target. The paper looks at the question's own edges; a fact that the question
does not use is as short a way, and is looked for here too. WebSailor (2507.02592) and WebLeaper
drop questions with several answers. Here all of it is decided by running the query, on sets or on
SQLite, and not by a model.

`measure_effort` is what a question costs somebody who has only the tools. Left out: whether a search for
the question's text finds the answer (`drlib.questions.quality` measures it), and whether a reader
knows the answer by heart.

Whether one name gives another away: as whole words, or by a word's stem.

"New Zealand Dollar" says New Zealand, "Israeli New Shekel" says Israel, "Norwegian Krone" Norway.
The first is found in every name of both things, whole words in any case (`names_overlap`). The second is
found between titles, which are what a question shows: every word of one title that says something
has a word of the same stem in the other (`shares_stems`). Two words have the same stem when they are equal
or begin with the same `STEM` letters or more, which are at least `STEM_SHARE` of the shorter word,
accents left out. Words of fewer letters must be equal, and `PLAIN` words say nothing.

Of the 150,602 pairs of a territory with a currency, a language or a script of CLDR, the stems join
260 that whole words do not. A fact joins 193 of these too, nearly all rightly; of the other 67 some
are right ("Thai script" and Thailand), most are not ("Australian Dollar" and Austria, "Nigerian
Naira" and Niger): one pair in 2,500, and each costs no more than a question.
Left out: names that change their first letters ("Danish" and Denmark, "Swiss" and
Switzerland), and stems in the aliases, where six languages meet each other. A stemmer of words
(Porter's) takes Norwegian and Norway for two stems, as it cuts endings of one word class only.
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

STEM = 4  # letters that two words must begin with
STEM_SHARE = 0.6  # of the shorter word's letters
PLAIN = frozenset(  # words of many names that tell none of them; "franc" is not France
    "and city de east eastern franc great island islands la new north northern of old republic "
    "saint south southern st the union united west western".split()
)


@lru_cache(maxsize=1 << 18)
def leaks(answer: str, constant: str, graph: Graph, stems: bool = True) -> bool:
    """Whether a name of one says the other: as whole words, or with `stems` by a stem too."""
    return names_overlap(answer, constant, graph) or (stems and shares_stems(answer, constant))


def names_overlap(answer: str, constant: str, graph: Graph) -> bool:
    """Whether a name of one holds a name of the other, as whole words."""
    one, two = graph.nodes.get(answer), graph.nodes.get(constant)
    return _names_overlap(one or Node(answer, ""), two or Node(constant, ""))


@lru_cache(maxsize=1 << 18)
def _names_overlap(one: Node, two: Node) -> bool:
    names, others = _normalise_names(one), _normalise_names(two)
    return any(name in other or other in name for name in names for other in others)


@lru_cache(maxsize=1 << 16)
def _normalise_names(node: Node) -> tuple[str, ...]:
    """Title and aliases as ` words with single spaces `, in one case."""
    names = (node.title, *node.aliases)
    words = {re.sub(r"[\W_]+", " ", f" {name.casefold()} ") for name in names}
    return tuple(sorted(words - {" "}))


def shares_stems(a: str, b: str) -> bool:
    """Whether each word of one title that says something has its stem in the other."""
    (words, heads), (others, other_heads) = _split_words(a), _split_words(b)
    if heads.isdisjoint(other_heads):  # nearly always, and no stem is shared then
        return False
    return _all_share_stem(words, others) or _all_share_stem(others, words)


@lru_cache(maxsize=1 << 16)
def _split_words(title: str) -> tuple[tuple[str, ...], frozenset[str]]:
    """(the words of `title` that say something, without accents; how the long ones begin)"""
    letters = unicodedata.normalize("NFKD", title.casefold())
    plain = "".join(letter for letter in letters if not unicodedata.combining(letter))
    found = tuple(word for word in re.findall(r"[^\W_]+", plain) if word not in PLAIN)
    return found, frozenset(word[:STEM] for word in found if _is_long(word))


def _is_long(word: str) -> bool:
    return len(word) >= STEM and not word.isdigit()


def _all_share_stem(words: tuple[str, ...], others: tuple[str, ...]) -> bool:
    return bool(words) and all(
        any(have_same_stem(word, other) for other in others) for word in words
    )


def have_same_stem(word: str, other: str) -> bool:
    """Whether two words in one case begin with the same stem."""
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


TYPE_RELATIONS = {"kind of", "type of"}  # "is a territory" points at no single thing
MAX_COINCIDENCES = 1  # of a query


def find_answer(query: Query, graph: Graph) -> str | None:
    """The one answer, or None when there is none or are several."""
    found = evaluate_query(query, graph)
    return next(iter(found)) if len(found) == 1 else None


def find_faults(
    query: Query, graph: Graph, engine: SqlEngine | None = None, strict: bool = True
) -> list[str]:
    """What is wrong with `query`; [] means verified. By sets, or by `engine`.

    "shallow": fewer than two look-ups follow each other. "redundant": a constant named twice, or
    two constants that a fact joins. "shortcut": a constant stands next to the target (other than to
    say its kind), or one of several conditions has no other answer. "coincidence": more than one
    condition hangs on an equal number (`count_coincidences`). "not unique": not exactly one answer.
    "near": any fact of the graph joins the answer with a constant (`is_near`). "leak": a name of
    the answer, or of a single thing on the way to it, says a name of a constant or the other way
    round (`drlib.questions.checks`). "not minimal": without one condition, at any depth, the
    answers are still the same (`iter_weakened`), or a branch of a union adds nothing, or one of several
    things that an `Exists` may choose need not be the same wherever it is met.

    Not `strict`: without "near", "coincidence" and leaks by a stem. Small worlds are asked so
    (`drlib.questions.question_engine`): there nearly all things are near each other.
    """
    ask = engine.answers if engine else lambda part: evaluate_query(part, graph)
    return list(dict.fromkeys(_iter_faults(query, graph, ask, strict)))


def find_first_fault(query: Query, graph: Graph, strict: bool = True) -> str:
    """The first fault of `query`, "" for none; the others are not looked for."""
    return next(_iter_faults(query, graph, lambda part: evaluate_query(part, graph), strict), "")


def _iter_faults(query: Query, graph: Graph, ask: Callable, strict: bool) -> Iterator[str]:
    """The faults one by one, cheap checks first; `ask` gives the answers of a query."""
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
    """Whether the page of a constant, or of a number that is named, shows `answer` or is shown by
    it: any fact joins the two, other than one that says a kind. Of three look-ups and more also:
    whether all constants are within two facts, so that none of them is worth so many. What is
    counted has no page that could be near.
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
    """Whether more than two facts lie between the two: nothing is joined to both."""
    around = graph.neighbours.get(answer, NOTHING)
    return around.isdisjoint(graph.neighbours.get(name, NOTHING))


@lru_cache(maxsize=1 << 15)
def find_neighbours(answer: str, graph: Graph) -> frozenset[str]:
    """What a fact joins with `answer`, those that say a kind not counted."""
    relations = (
        relation
        for relation in graph.relations.get(answer, ())
        if not TYPE_RELATIONS & {relation, inverse(relation)}
    )
    return frozenset().union(*(graph.values(answer, relation) for relation in relations))


def count_coincidences(query: Query, ask: Callable[[Query], frozenset[str]]) -> int:
    """How many conditions of `query` hang on a number that two things happen to share: "whose
    currency began in the year in which that of Peru ended". `ask` gives the answers of a query."""
    return sum(
        isinstance(part, Proj) and not _is_constant(part.of) and any(map(is_number, ask(part.of)))
        for part in walk(unfold(query))
    )


def _list_exact_numbers(query: Query) -> list[str]:
    """The numbers that ranges of one number name."""
    ranges = [part for part in walk(query) if isinstance(part, Range)]
    return [str(part.low) for part in ranges if part.low == part.high]


def iter_weakened(query: Query) -> Iterator[Query]:
    """`query` with one condition less, in all ways and at any depth: without a part of an And, the
    exception of a Diff, the choice of an Extreme; with anything for what an Exists chooses
    among."""
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
    """`query` with `new` where `old`, this very object, stands directly inside it."""
    return rebuild(query, lambda part: new if part is old else part)


def iter_without_one(query: And | Or) -> Iterator[Query]:
    """`query` without each of its parts."""
    for i in range(len(query.parts)):
        rest = query.parts[:i] + query.parts[i + 1 :]
        yield type(query)(rest) if len(rest) > 1 else rest[0]


def _has_idle_branch(query: Query, ask: Callable) -> bool:
    """Whether a union stays the same, or a projection from it does, without one of its branches."""
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
    """Whether an Exists among several things has the same answers where each of its variables may
    be another."""
    return any(
        isinstance(part, Exists)
        and len(ask(part.among)) > 1
        and ask(part) == ask(bind(part.of, part.name, part.among))
        for part in list_closed_parts(query)
    )


def _find_single_things(query: Query, ask: Callable) -> frozenset[str]:
    """The things on the way that are the only ones of their description, or the only ones that an
    Exists can choose."""
    closed = list_closed_parts(query)
    found = [ask(part) for part in closed if not isinstance(part, str)]
    found += [_find_choices(part, ask) for part in closed if isinstance(part, Exists)]
    return frozenset().union(*(some for some in found if len(some) == 1))


def _find_choices(query: Exists, ask: Callable) -> frozenset[str]:
    """The things that `query` has an answer for."""
    return frozenset(t for t in ask(query.among) if ask(bind(query.of, query.name, t)))


def list_conditions(query: Query) -> tuple[Query, ...]:
    """What the target itself must fulfil or not fulfil; nothing for a number that is counted."""
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
    """How many conditions tie the target to a constant, those that say its kind not counted."""
    edges = 0
    for part in list_conditions(query):
        if isinstance(part, str):
            edges += 1
        elif isinstance(part, Proj) and _is_constant(part.of):
            edges += part.relation not in TYPE_RELATIONS
    return edges


def _is_constant(query: Query) -> bool:
    """A title, or a union of them (WebShaper merges such into one constant)."""
    if isinstance(query, Or):
        return any(map(_is_constant, query.parts))
    return isinstance(query, str)


def count_constant_edges(query: Query, graph: Graph) -> int:
    """How many pairs of constants a fact joins."""
    near = graph.neighbours
    return sum(b in near.get(a, ()) for a, b in combinations(list_constants(query), 2))


@lru_cache(maxsize=1 << 12)
def measure_effort(query: Query, graph: Graph) -> float:
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
    return sum(count_page_parts(title, graph) for title in read)


@lru_cache(maxsize=1 << 16)
def count_page_parts(title: str, graph: Graph) -> int:
    """How many parts the page of `title` has; none where it has no page."""
    if graph.is_value(title):
        return 0
    facts = sum(len(graph.adjacent[name][title]) for name in graph.relations.get(title, ()))
    return max(1, math.ceil(facts / FACTS_PER_PAGE))


def _is_listable(query: Query, graph: Graph) -> bool:
    """Whether pages list the answers of `query`: none does for what has a value or a number."""
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
    """The answers of `query`, or those `among` these; what is read on the way goes to `read`.
    LookupError: no page lists them."""
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
                raise LookupError("no page lists what has a number in a range")
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
    """`_solve` of an And: what can be listed first, and of that the smallest."""

    def rank(i: int) -> tuple[bool, int, int]:
        return not _is_listable(parts[i], graph), len(evaluate_query(parts[i], graph)), i

    for i in sorted(range(len(parts)), key=rank):
        among = _solve(parts[i], graph, read, among)
    return among


def _is_cheaper_one_by_one(
    query: Proj, graph: Graph, read: set[str], among: frozenset[str] | None
) -> bool:
    """Whether the candidates' own pages are less to read than a list of all answers."""
    if among is None or any(map(graph.is_value, among)):
        return False
    if not _is_listable(query, graph):
        return True
    return len(among - read) < len(evaluate_query(query.of, graph))
