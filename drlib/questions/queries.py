"""Query algebra: a question as an executable expression.

WebShaper (arXiv 2507.15061, section 3) uses unions and intersections of projections R(V), the
things related by R to a member of V; difference, ranges, extremes, counts and `Exists` are added
here:

    And((Proj("currency of", "Norwegian Krone"), Proj("language of", "Norwegian")))

`evaluate_query` works on sets, `sql_engine` on SQLite.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from drlib.worlds.graph import NOTHING, Graph, inverse


@dataclass(frozen=True)
class Proj:
    """The values of `relation` at the members of `of`."""

    relation: str
    of: Query


@dataclass(frozen=True)
class And:
    """The intersection of `parts`."""

    parts: tuple[Query, ...]


@dataclass(frozen=True)
class Or:
    """The union of `parts`."""

    parts: tuple[Query, ...]


@dataclass(frozen=True)
class Diff:
    """The members of `left` that are not in `right`."""

    left: Query
    right: Query


@dataclass(frozen=True)
class Range:
    """The things whose `relation` is a whole number in low..high, both inclusive."""

    relation: str
    low: int
    high: int


@dataclass(frozen=True)
class Extreme:
    """The member of `of` with the largest (`most`) or smallest number of `relation`."""

    relation: str
    of: Query
    most: bool


@dataclass(frozen=True)
class Count:
    """The number of members of `of`, as decimal digits."""

    of: Query


@dataclass(frozen=True)
class Anything:
    """All things of the graph."""


@dataclass(frozen=True)
class Var:
    """The thing bound by the enclosing `Exists` of this name."""

    name: str


@dataclass(frozen=True)
class Exists:
    """The union of `of` over all members of `among` bound to `Var(name)`.

    It joins conditions that form a cycle, which a tree of projections cannot:

        Exists("X", Proj("currency of", "Norwegian Krone"),
               And((Proj("border", Var("X")), Proj("language of", Proj("language", Var("X"))))))
    """

    name: str
    among: Query
    of: Query


Query = str | Proj | And | Or | Diff | Range | Extreme | Count | Anything | Var | Exists

_NUMBER = re.compile(r"-?[0-9]{1,18}")  # 18 digits: SQLite counts in 64 bits


def evaluate_query(query: Query, graph: Graph) -> frozenset[str]:
    """Return the answers of `query` by set algebra.

    Raises:
        TypeError: it is no query.
        ValueError: a variable has no `Exists`.
    """
    kind = type(query)  # not `match`: this is the innermost loop of the question engine
    if kind is str:
        return frozenset((query,))  # type: ignore[arg-type]
    if kind is Proj:
        rows = graph.adjacent.get(query.relation, {})
        if type(query.of) is str:
            return rows.get(query.of, NOTHING)
        found = [rows[title] for title in evaluate_query(query.of, graph) if title in rows]
        return found[0] if len(found) == 1 else NOTHING.union(*found)
    if kind is And:
        found = evaluate_query(query.parts[0], graph)
        for part in query.parts[1:]:
            if not found:
                break
            found = found & evaluate_query(part, graph)
        return found
    return _evaluate_rare(query, graph)


def _evaluate_rare(query: Query, graph: Graph) -> frozenset[str]:
    """Evaluate the less frequent classes."""
    match query:
        case Or(parts):
            return NOTHING.union(*(evaluate_query(part, graph) for part in parts))
        case Diff(left, right):
            return evaluate_query(left, graph) - evaluate_query(right, graph)
        case Range(relation, low, high):
            return frozenset(
                title
                for title, values in graph.adjacent.get(relation, {}).items()
                if any(low <= n <= high for n in parse_numbers(values))
            )
        case Extreme(relation, of, most):
            found = [
                (n, title)
                for title in evaluate_query(of, graph)
                for n in parse_numbers(graph.values(title, relation))
            ]
            choose = max if most else min
            best = choose((n for n, _ in found), default=None)
            return frozenset(title for n, title in found if n == best)
        case Count(of):
            return frozenset((str(len(evaluate_query(of, graph))),))
        case Exists(name, among, of):
            found = _evaluate_each(of, name, evaluate_query(among, graph), graph)
            return NOTHING.union(*found.values())
        case Anything():
            return frozenset(graph.nodes)
        case Var(name):
            raise ValueError(f"the variable {name!r} has no enclosing Exists")
    raise TypeError(f"not a query: {query!r}")


def _evaluate_each(
    query: Query, name: str, titles: Collection[str], graph: Graph
) -> dict[str, frozenset[str]]:
    """Return the answers of `query` for each title bound to `Var(name)`, empty ones excluded.

    All titles are evaluated together, since one part of a query often leaves few of thousands.
    """
    kind = type(query)
    if name not in find_free_variables(query):
        found = dict.fromkeys(titles, evaluate_query(query, graph))
    elif kind is Var:
        found = {title: frozenset((title,)) for title in titles}
    elif kind is Proj and type(query.of) is Var:
        rows = graph.adjacent.get(query.relation, {})
        found = {t: rows[t] for t in min(rows, titles, key=len) if t in rows and t in titles}
    elif kind is Proj:
        rows = graph.adjacent.get(query.relation, {})
        inner = _evaluate_each(query.of, name, titles, graph).items()
        found = {t: NOTHING.union(*[rows[x] for x in some if x in rows]) for t, some in inner}
    elif kind is And or kind is Diff:
        first, *others = list_subqueries(query)
        found = _evaluate_each(first, name, titles, graph)
        for other in others:
            beside = _evaluate_each(other, name, found, graph)
            if kind is And:
                found = {title: found[title] & some for title, some in beside.items()}
            else:
                found = {title: some - beside.get(title, NOTHING) for title, some in found.items()}
            found = {title: some for title, some in found.items() if some}
    else:
        found = {title: evaluate_query(bind(query, name, title), graph) for title in titles}
    return {title: some for title, some in found.items() if some}


def bind(query: Query, name: str, value: Query) -> Query:
    """Return `query` with `value` for each free `Var(name)`."""
    if type(query) is Var:
        return value if query.name == name else query
    if type(query) is Exists and query.name == name:
        return replace(query, among=bind(query.among, name, value))
    return rebuild(query, lambda part: bind(part, name, value))


def unfold(query: Query) -> Query:
    """Return `query` as a tree with each variable replaced by what it is chosen among.

    The occurrences become independent, so the result may have more answers.
    """
    if type(query) is Exists:
        return bind(unfold(query.of), query.name, unfold(query.among))
    return rebuild(query, unfold)


def find_free_variables(query: Query) -> frozenset[str]:
    """Return the names of the variables that no `Exists` in `query` binds."""
    if type(query) is Var:
        return frozenset((query.name,))
    if type(query) is Exists:
        return find_free_variables(query.among) | find_free_variables(query.of) - {query.name}
    return NOTHING.union(*map(find_free_variables, list_subqueries(query)))


def parse_numbers(values: Iterable[str]) -> list[int]:
    """Return the values that are whole numbers of at most 18 digits, as integers."""
    return [int(value) for value in values if is_number(value)]


@lru_cache(maxsize=1 << 16)
def is_number(value: str) -> bool:
    """Return True if `value` is a whole number of at most 18 digits."""
    return _NUMBER.fullmatch(value) is not None


def list_subqueries(query: Query) -> tuple[Query, ...]:
    """Return the direct subqueries of `query`.

    Raises:
        TypeError: it is no query.
    """
    kind = type(query)
    if kind is Proj or kind is Extreme or kind is Count:
        return (query.of,)
    if kind is str or kind is Range or kind is Var or kind is Anything:
        return ()
    if kind is And or kind is Or:
        return query.parts
    if kind is Exists:
        return (query.among, query.of)
    if kind is Diff:
        return (query.left, query.right)
    raise TypeError(f"not a query: {query!r}")


def rebuild(query: Query, change: Callable[[Query], Query]) -> Query:
    """Return `query` with `change` applied to its direct subqueries; the same object if none
    changes.
    """
    if type(query) is Proj:  # nearly all of them
        of = change(query.of)
        return query if of is query.of else Proj(query.relation, of)
    parts = list_subqueries(query)
    inside = tuple([change(part) for part in parts])
    if all(map(operator.is_, inside, parts)):
        return query
    if isinstance(query, And | Or):
        return type(query)(inside)
    if isinstance(query, Diff):
        return Diff(*inside)
    if isinstance(query, Exists):
        return Exists(query.name, *inside)
    if isinstance(query, Extreme):
        return Extreme(query.relation, inside[0], query.most)
    return Count(inside[0])


def substitute(query: Query, old: Query, new: Query) -> Query:
    """Return `query` with every `old` replaced by `new`."""
    if type(query) is type(old) and query == old:
        return new
    if type(query) is str:  # half of all parts
        return query
    return rebuild(query, lambda part: substitute(part, old, new))


def walk(query: Query) -> Iterator[Query]:
    """Yield `query` and all its subqueries in pre-order."""
    waiting = [query]
    while waiting:
        part = waiting.pop()
        yield part
        if type(part) is not str:  # half of all parts
            waiting += reversed(list_subqueries(part))


def list_closed_parts(query: Query) -> list[Query]:
    """Return the parts of `walk` without free variables, which can be evaluated alone."""
    parts = list(walk(query))
    if Exists not in map(type, parts):
        return parts
    return [part for part in parts if not find_free_variables(part)]


def list_constants(query: Query) -> list[str]:
    """Return the titles in the query from left to right."""
    if type(query) is str:
        return [query]
    if type(query) is Proj:  # nearly all of them
        return list_constants(query.of)
    return [name for part in list_subqueries(query) for name in list_constants(part)]


def measure_depth(query: Query) -> int:
    """Return the number of consecutive hops: the longest chain of projections to a constant."""
    kind = type(query)
    if kind is str:
        return 0
    if kind is Proj:  # nearly all others
        return 1 + measure_depth(query.of)
    if kind is Exists:
        return max(measure_depth(query.among), measure_depth(unfold(query)))
    return (kind is Range) + max(map(measure_depth, list_subqueries(query)), default=0)


def canonicalise(query: Query) -> Query:
    """Return one form for queries that differ in order, nesting or repetition of parts."""
    if type(query) is str:
        return query
    query = rebuild(query, canonicalise)
    if not isinstance(query, And | Or):
        return query
    flat: set[Query] = set()
    for inner in query.parts:
        same_kind = type(inner) is type(query)
        flat.update(inner.parts if same_kind else (inner,))
    parts = tuple(sorted(flat, key=to_text))
    return type(query)(parts) if len(parts) > 1 else parts[0]


# Classes by JSON name, and the types of their fields (None: a query).
_ALL = (Proj, And, Or, Diff, Range, Extreme, Count, Anything, Var, Exists)
_KINDS = {kind.__name__.lower(): kind for kind in _ALL}
_FIELDS = {
    Proj: (str, None),
    Diff: (None, None),
    Range: (str, int, int),
    Extreme: (str, None, bool),
    Count: (None,),
    Anything: (),
    Var: (str,),
    Exists: (str, None, None),
}


@lru_cache(maxsize=1 << 14)  # parts are sorted by their texts repeatedly
def to_text(query: Query) -> str:
    """Return the query as JSON: a string for a constant, else a list of class name and fields."""
    return json.dumps(_to_lists(query), ensure_ascii=False)


def _to_lists(query: Query) -> str | list:
    """Return the query as nested lists."""
    if isinstance(query, str):
        return query
    fields = query.parts if isinstance(query, And | Or) else vars(query).values()
    name = type(query).__name__.lower()
    return [name, *(field if isinstance(field, int) else _to_lists(field) for field in fields)]


def from_text(text: str) -> Query:
    """Parse the output of `to_text`.

    Raises:
        ValueError: the text is no query; the message names the fault.
    """
    try:
        query = _from_lists(json.loads(text))
        unbound = sorted(find_free_variables(query))
    except (json.JSONDecodeError, TypeError) as error:
        raise ValueError(f"a query must be JSON, but {text!r} cannot be parsed: {error}") from error
    except RecursionError as error:
        raise ValueError("the query is nested too deeply to be parsed") from error
    if unbound:
        raise ValueError(f"the variables {unbound} have no enclosing Exists: {text}")
    return query


def _from_lists(value: object) -> Query:
    """Return the query of nested lists."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value or not isinstance(value[0], str):
        raise ValueError(
            f"a query must be a title or a list that starts with its kind, not {value!r}"
        )
    name, *fields = value
    if name not in _KINDS:
        raise ValueError(f"unknown kind of query {name!r}: choose one of {sorted(_KINDS)}")
    kind: Any = _KINDS[name]
    if kind in (And, Or):
        if len(fields) < 2:
            raise ValueError(f"{name!r} needs at least two parts, got {len(fields)}")
        return kind(tuple(_from_lists(field) for field in fields))
    wanted = _FIELDS[kind]
    if len(fields) != len(wanted):
        raise ValueError(f"{name!r} needs {kind.__match_args__}, got {fields!r}")
    for label, field, type_ in zip(kind.__match_args__, fields, wanted):
        if type_ and type(field) is not type_:
            raise ValueError(f"{label!r} of {name!r} must be {type_.__name__}, got {field!r}")
    return kind(*(field if type_ else _from_lists(field) for field, type_ in zip(fields, wanted)))


def find_required(query: Query, graph: Graph, wanted: Iterable[str] | None = None) -> set[str]:
    """Return the titles needed to derive `wanted` (default: all answers), and what counts and
    extremes compare.
    """
    answers = {*evaluate_query(query, graph)}
    found = answers if wanted is None else answers & {*wanted}
    match query:
        case Proj(relation, of):
            start = (
                title
                for title in evaluate_query(of, graph)
                if graph.values(title, relation) & found
            )
            return found | find_required(of, graph, start)
        case And(parts) | Or(parts):
            return found.union(*(find_required(part, graph, found) for part in parts))
        case Diff(of, _):
            return find_required(of, graph, found)
        case Extreme(_, of, _) | Count(of):
            return found | find_required(of, graph)
        case Exists(name, among, of):
            chosen = [(title, bind(of, name, title)) for title in evaluate_query(among, graph)]
            used = [
                find_required(way, graph, found) | find_required(among, graph, {title})
                for title, way in chosen
                if found & evaluate_query(way, graph)
            ]
            return found.union(*used)
    return found


YEAR_RANKS = ("earliest", "latest")
RANKS = ("smallest", "largest")


def choose_rank_words(label: str) -> tuple[str, str]:
    """Return the words for the smallest and the largest value of `label`."""
    return YEAR_RANKS if "year" in label.split() else RANKS


def format_range(low: int, high: int, one: str) -> str:
    """Return the whole numbers low..high in words; `one` precedes a single number."""
    if low == high:
        return f"{one} {low}"
    if 1000 <= low <= 2100 and low % 10 == 0 and high == low + 9:
        return f"in the {low}s"
    return f"between {low} and {high}"


def find_compared(query: Proj) -> Query | None:
    """Return Y if `query` asks for things that share a value with Y, else None."""
    of = query.of
    if isinstance(of, Proj) and query.relation == inverse(of.relation):
        return of.of if query.relation.endswith(" of") else None
    return None


def goes_back(query: Proj) -> bool:
    """Return True if `query` asks for another value of the same thing."""
    return isinstance(query.of, Proj) and query.of.relation == inverse(query.relation)


def is_union_of_titles(query: Query) -> bool:
    """Return True for a union of titles."""
    return isinstance(query, Or) and all(isinstance(part, str) for part in query.parts)


def count_clauses(query: Query) -> int:
    """Return the number of nested clauses that the wording of a condition opens."""
    if isinstance(query, str | Var) or is_union_of_titles(query):
        return 0
    if isinstance(query, Range):
        return 1
    if isinstance(query, Proj):
        shared = find_compared(query)
        return 1 + count_clauses(query.of if shared is None else shared)
    return 9  # too deep for a clause: needs a step of its own


def fits(query: Query, limit: int) -> bool:
    """Return True if a noun phrase of at most `limit` clauses expresses the query."""
    if isinstance(query, Count | Extreme):
        return limit > 0 and isinstance(query.of, Proj) and count_clauses(query.of) == 1
    return isinstance(query, Proj) and count_clauses(query) <= limit
