"""Tests of the query algebra: two engines against brute force, and parsing.

Run: python -m pytest tests/test_questions_queries.py
"""

import json
import random
import re
from dataclasses import replace
from functools import lru_cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from query_examples import small_graph

from drlib.questions.queries import (
    And,
    Count,
    Diff,
    Extreme,
    Or,
    Proj,
    Range,
    canonicalise,
    evaluate_query,
    from_text,
    list_constants,
    list_subqueries,
    measure_depth,
    parse_numbers,
    substitute,
    to_text,
    unfold,
    walk,
)
from drlib.questions.sql_engine import SqlEngine
from drlib.worlds.graph import Graph, Node, inverse

SMALL = Graph(
    [Node(title, "thing") for title in "ABCDE"],
    [
        ("A", "likes", "B"),
        ("A", "likes", "C"),
        ("B", "likes", "C"),
        ("D", "likes", "A"),
        ("A", "age", "7"),
        ("B", "age", "7"),
        ("C", "age", "-3"),
        ("D", "age", "12"),
        ("E", "age", "--5"),
        ("E", "age", "2²"),
        ("E", "likes", "E"),
    ],
)


def random_graph(rng):
    """Return a graph of a dozen nodes and three relations; some values only look like numbers."""
    titles = [f"n{i}" for i in range(12)]
    values = [*titles, "1", "2", "-4", "30", "1999", "--1", "٣", "1" * 19]
    facts = [
        (rng.choice(titles), rng.choice(("r", "s", "t")), rng.choice(values))
        for _ in range(rng.randrange(1, 40))
    ]
    return Graph([Node(title, rng.choice("xy")) for title in titles], facts)


def random_query(rng, graph, deep=4):
    relations = [name for base in ("r", "s", "t") for name in (base, inverse(base))]
    if deep == 0 or rng.random() < 0.15:
        return rng.choice(sorted(graph.nodes))
    kind = rng.choice(("proj", "proj", "proj", "and", "or", "diff", "range", "extreme", "count"))
    inside = [random_query(rng, graph, deep - 1) for _ in range(rng.randint(2, 3))]
    low = rng.randint(-5, 40)
    return {
        "proj": lambda: Proj(rng.choice(relations), inside[0]),
        "and": lambda: And(tuple(inside)),
        "or": lambda: Or(tuple(inside)),
        "diff": lambda: Diff(*inside[:2]),
        "range": lambda: Range(rng.choice(relations), low, low + rng.choice((0, 10, 3000))),
        "extreme": lambda: Extreme(rng.choice(relations), inside[0], rng.random() < 0.5),
        "count": lambda: Count(inside[0]),
    }[kind]()


def parse_integer(value):
    return re.fullmatch(r"-?[0-9]{1,18}", value) and int(value)


@lru_cache(maxsize=1 << 16)
def fulfils(title, query, graph):
    """Return True if `title` is an answer, by definition, from the facts alone."""

    def values(x, relation):
        return {
            o if (s, r) == (x, relation) else s
            for s, r, o in graph.facts
            if (s, r) == (x, relation) or (o, f"{r} of") == (x, relation)
        }

    def members(part):
        return {
            x
            for x in [*graph.nodes, *list_constants(query), *map(str, range(30))]
            if fulfils(x, part, graph)
        }

    match query:
        case str():
            return title == query
        case Proj(relation, of):
            return any(fulfils(x, of, graph) for x in values(title, inverse(relation)))
        case And(parts):
            return all(fulfils(title, part, graph) for part in parts)
        case Or(parts):
            return any(fulfils(title, part, graph) for part in parts)
        case Diff(left, right):
            return fulfils(title, left, graph) and not fulfils(title, right, graph)
        case Range(relation, low, high):
            found = [parse_integer(v) for v in values(title, relation)]
            return any(n is not None and low <= n <= high for n in found)
        case Extreme(relation, of, most):
            all_of = [
                n
                for x in members(of)
                for n in map(parse_integer, values(x, relation))
                if n is not None
            ]
            own = [n for n in map(parse_integer, values(title, relation)) if n is not None]
            return (
                fulfils(title, of, graph)
                and bool(own)
                and (max(all_of) in own if most else min(all_of) in own)
            )
        case Count(of):
            return title == str(len(members(of)))


def test_hand_computed_answers():
    cases = {
        "A": {"A"},
        Proj("likes", "A"): {"B", "C"},
        Proj("likes of", "C"): {"A", "B"},
        Proj("likes", Proj("likes", "D")): {"B", "C"},
        And((Proj("likes of", "C"), Proj("likes", "A"))): {"B"},
        Or((Proj("likes", "D"), Proj("likes", "B"))): {"A", "C"},
        Diff(Proj("likes", "A"), Proj("likes", "B")): {"B"},
        Range("age", 7, 12): {"A", "B", "D"},
        Range("age", -3, 0): {"C"},
        Extreme("age", Or(("A", "C", "D", "E")), True): {"D"},
        Extreme("age", Or(("A", "B")), True): {"A", "B"},  # a tie has two answers
        Extreme("age", "E", True): set(),  # no value is a number
        Count(Proj("likes of", "C")): {"2"},
        Count(Proj("likes of", "D")): {"0"},
        Proj("no such relation", "A"): set(),
        Proj("likes", "nobody"): set(),
    }
    engine = SqlEngine(SMALL)
    for query, expected in cases.items():
        assert evaluate_query(query, SMALL) == expected == engine.answers(query), query


@pytest.mark.parametrize("seed", range(24))
def test_both_engines_agree_with_brute_force(seed):
    rng = random.Random(f"algebra-{seed}")
    graph = random_graph(rng)
    engine = SqlEngine(graph)
    for _ in range(12):
        query = random_query(rng, graph, 3)
        titles = {*graph.nodes, *list_constants(query), *map(str, range(30))}
        brute = {title for title in titles if fulfils(title, query, graph)}
        assert evaluate_query(query, graph) == brute, query
        assert engine.answers(query) == brute, query
        assert evaluate_query(canonicalise(query), graph) == brute, query


def test_engines_agree_on_deep_queries():
    rng = random.Random("deep")
    full = 0
    for _ in range(40):
        graph = random_graph(rng)
        engine = SqlEngine(graph)
        for _ in range(20):
            query = random_query(rng, graph, 6)
            assert evaluate_query(query, graph) == engine.answers(query), query
            full += bool(evaluate_query(query, graph))
    assert full > 200  # many answers are non-empty


@given(
    st.lists(st.sets(st.sampled_from("ABCDEFGH"), min_size=1), min_size=1, max_size=4),
    st.sets(st.tuples(st.sampled_from("ABCDEFGH"), st.sampled_from("ABCDEFGH"))),
    st.sampled_from(("r", "r of")),
)
def test_proposition_1_of_webshaper(sets, pairs, relation):
    """R(S1) | .. | R(Sm) = R(S1 | .. | Sm), arXiv 2507.15061, section 3.1."""
    graph = Graph([Node(t, "x") for t in "ABCDEFGH"], [(a, "r", b) for a, b in pairs])
    groups = [Or(tuple(sorted(members))) for members in sets]
    apart = Or(tuple(Proj(relation, group) for group in groups))
    together = Proj(relation, Or(tuple(groups)))
    engine = SqlEngine(graph)
    assert evaluate_query(apart, graph) == evaluate_query(together, graph)
    assert engine.answers(apart) == engine.answers(together) == evaluate_query(together, graph)


# ---------------------------------------------------------------------------------------- texts

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def _parts(inner):
    return st.lists(inner, min_size=2, max_size=3).map(tuple)


QUERIES = st.recursive(
    NAMES | st.builds(Range, NAMES, st.integers(), st.integers()),
    lambda inner: st.one_of(
        st.builds(Proj, NAMES, inner),
        st.builds(And, _parts(inner)),
        st.builds(Or, _parts(inner)),
        st.builds(Diff, inner, inner),
        st.builds(Extreme, NAMES, inner, st.booleans()),
        st.builds(Count, inner),
    ),
    max_leaves=8,
)


@given(QUERIES)
def test_round_trip(query):
    again = from_text(to_text(query))
    assert again == query
    assert [type(part) for part in walk(again)] == [type(part) for part in walk(query)]


@given(QUERIES, st.randoms())
def test_canonical_form_ignores_order_nesting_and_repetition(query, rng):
    def shuffled(part):
        if isinstance(part, And | Or):
            parts = [shuffled(p) for p in part.parts]
            parts.append(rng.choice(parts))
            rng.shuffle(parts)
            return type(part)((parts[0], type(part)(tuple(parts[1:]))))
        if isinstance(part, Diff):
            return Diff(shuffled(part.left), shuffled(part.right))
        return part if not list_subqueries(part) else replace(part, of=shuffled(part.of))

    assert canonicalise(shuffled(query)) == canonicalise(query)
    assert canonicalise(canonicalise(query)) == canonicalise(query)


def test_different_queries_have_different_canonical_forms():
    rng = random.Random(5)
    graph = random_graph(rng)
    forms = {}
    for query in (random_query(rng, graph, 3) for _ in range(300)):
        forms.setdefault(to_text(canonicalise(query)), set()).add(evaluate_query(query, graph))
    assert len(forms) > 200
    assert all(len(answers) == 1 for answers in forms.values())


def test_to_text_format():
    query = And(
        (
            Proj("currency of", "Norwegian Krone"),
            Range("since", 1900, 1909),
            Extreme("age", Diff("A", "B"), False),
            Count(Or(("A", "Å"))),
        )
    )
    assert json.loads(to_text(query)) == [
        "and",
        ["proj", "currency of", "Norwegian Krone"],
        ["range", "since", 1900, 1909],
        ["extreme", "age", ["diff", "A", "B"], False],
        ["count", ["or", "A", "Å"]],
    ]
    assert "Å" in to_text(query)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "must be JSON"),
        ("{", "must be JSON"),
        ('["proj", "r"', "must be JSON"),
        (None, "must be JSON"),
        ("3", "3"),
        ("null", "None"),
        ('{"and": []}', "and"),
        ("[]", r"\[\]"),
        ("[3]", "3"),
        ('["join", "a", "b"]', "join"),
        ('["join", "a", "b"]', "extreme"),
        ('["and"]', "two parts"),
        ('["or", "a"]', "two parts"),
        ('["and", "a", 4]', "4"),
        ('["proj", "r"]', "relation"),
        ('["proj", "r", "a", "b"]', "proj"),
        ('["proj", 5, "a"]', "relation.*5"),
        ('["proj", ["and"], "a"]', "relation"),
        ('["diff", "a"]', "left"),
        ('["range", "r", 1]', "high"),
        ('["range", "r", 1.5, 2]', "low"),
        ('["range", "r", true, 2]', "low"),
        ('["extreme", "r", "a", 1]', "most"),
        ('["extreme", "r", "a"]', "most"),
        ('["count"]', "of"),
        ('["count", 1]', "1"),
        ("[" * 100_000, "deep"),
        ('["count", ' * 5000 + '"a"' + "]" * 5000, "deep"),
    ],
)
def test_malformed_texts_are_rejected(text, named):
    with pytest.raises(ValueError, match=named):
        from_text(text)


def test_non_queries_are_rejected():
    for wrong in (3, ("proj", "r", "a"), Proj("r", None), None):
        with pytest.raises(TypeError, match="not a query"):
            evaluate_query(wrong, SMALL)
        with pytest.raises(TypeError, match="not a query"):
            SqlEngine(SMALL).answers(wrong)


def test_sqlite_limits_raise_a_clear_error():
    """Set evaluation has no such limit; SQLite agrees with it just below the limit."""
    graph, deep, rivers = small_graph(), "Rin", Proj("river of", "Rin")
    engine = SqlEngine(graph)
    fine = Proj("river", Proj("river of", Proj("river", rivers)))
    for query in (fine, And((rivers,) * 400), Range("length", -(2**63), 2**63 - 1)):
        assert engine.answers(query) == evaluate_query(query, graph) != frozenset()
    for at in range(60):
        deep = Proj("river" if at % 2 else "river of", deep)
    for query in (deep, And((rivers,) * 600), Or((rivers,) * 600), Range("length", 0, 10**30)):
        assert evaluate_query(query, graph)
        with pytest.raises(ValueError, match="SQLite cannot answer this query .*64-bit"):
            engine.answers(query)
    for _ in range(3000):
        deep = Proj("river", deep)
    with pytest.raises(ValueError, match="SQLite cannot answer"):
        engine.answers(deep)
    assert engine.answers(rivers) == evaluate_query(
        rivers, graph
    )  # the engine still works afterwards


def test_parts_of_a_query():
    query = And((Proj("r", Proj("s", "A")), Diff(Range("age", 1, 2), "B")))
    assert list_constants(query) == ["A", "B"]
    assert (
        measure_depth(query) == 2
        and measure_depth("A") == 0
        and measure_depth(Count(Range("age", 1, 2))) == 1
    )
    assert [type(part).__name__ for part in walk(query)] == [
        "And",
        "Proj",
        "Proj",
        "str",
        "Diff",
        "Range",
        "str",
    ]
    assert substitute(query, "A", Proj("t", "C")) == And(
        (Proj("r", Proj("s", Proj("t", "C"))), Diff(Range("age", 1, 2), "B"))
    )
    assert substitute(query, "C", "D") is query and unfold(query) is query
    assert substitute(query, "A", "E").parts[1] is query.parts[1]  # unchanged parts are not copied


def test_parse_numbers():
    assert sorted(
        parse_numbers(["7", "-3", "0012", "--5", "2²", "٣", "", "-", "1.5", "1" * 19])
    ) == [
        -3,
        7,
        12,
    ]


def test_different_kinds_of_query_are_never_equal():
    """Named tuples And(p) == Or(p) would share a cache entry."""
    assert And(("a", "b")) != Or(("a", "b")) and Proj("a", "b") != Diff("a", "b")
    assert len({And(("a", "b")), Or(("a", "b")), Proj("a", "b"), Diff("a", "b")}) == 4
    assert Proj("a", "b") == Proj("a", "b")
