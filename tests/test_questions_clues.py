"""Tests of conditions, explaining sets and draws against brute force.

Run: python -m pytest tests/test_questions_clues.py
"""

import random
from collections import Counter
from itertools import combinations

import pytest

from drlib.questions.checks import leaks
from drlib.questions.expansion import (
    SEVERAL,
    draw_explanation,
    draw_stand_in,
    find_known_facts,
    has_explanation,
    is_identifiable,
)
from drlib.questions.queries import (
    And,
    evaluate_query,
    from_text,
    is_number,
    list_constants,
    to_text,
)
from drlib.worlds.graph import Graph, Node
from tests.shared_worlds import shared_world


@pytest.fixture(scope="module")
def world():
    return shared_world("cldr")


def test_find_known_facts_returns_true_conditions(world):
    graph = world.graph
    for title in sorted(graph.nodes)[::20]:
        for part, fulfil in find_known_facts(title, graph):
            assert title in fulfil == evaluate_query(part, graph)
            assert len(fulfil) <= 100 and part.of != title
    codes = [
        part for part, _ in find_known_facts("Norwegian Krone", graph) if part.relation == "code of"
    ]
    assert codes == []  # a currency code identifies only its currency


def list_by_brute_force(title, graph, size):
    """Return the sets of `size` conditions that explain `title`, as frozensets of texts."""
    rows = find_known_facts(title, graph)

    def is_unique(subset):
        return len(frozenset.intersection(*[fulfil for _, fulfil in subset])) == 1

    return {
        frozenset(to_text(part) for part, _ in subset)
        for subset in combinations(rows, size)
        if is_unique(subset)
        and not (size > 1 and any(map(is_unique, combinations(subset, size - 1))))
    }


def parts_of(query):
    return query.parts if isinstance(query, And) else (query,)


@pytest.mark.parametrize("size", [1, 2])
def test_draw_explanation_matches_brute_force(world, size):
    graph, seen = world.graph, 0
    titles = [t for t in sorted(graph.nodes) if 2 < len(find_known_facts(t, graph)) < 14][::5]
    for title in titles:
        expected = list_by_brute_force(title, graph, size)
        rng, drawn = random.Random(title), set()
        no_bans = frozenset()
        for _ in range(20 * len(expected) + 1):
            query = draw_explanation(title, graph, rng, no_bans, size, size)
            drawn |= {frozenset(map(to_text, parts_of(query)))} if query else set()
        assert drawn <= expected
        names = [from_text(text).of for texts in expected for text in texts]
        if not any(map(is_number, names)):  # sets with a number are rarely drawn
            assert drawn == expected
        seen += len(drawn)
    assert seen > 10


def test_draw_explanation_respects_banned_names(world):
    graph, rng, found = world.graph, random.Random(1), 0
    titles = [t for t in sorted(graph.nodes) if is_identifiable(t, graph)]
    for title in rng.sample(titles, 60):
        banned = frozenset()
        while query := draw_explanation(title, graph, rng, banned, 2, 2):
            assert evaluate_query(query, graph) == {title}
            assert banned.isdisjoint(list_constants(query))
            banned |= {rng.choice(list_constants(query))}
            found += 1
        for texts in list_by_brute_force(title, graph, 2):
            assert any(from_text(text).of in banned for text in texts)
    assert found > 60


def test_has_explanation_needs_a_listed_condition():
    """A and B share the number, C and D the place; "who has 7 and is in Oslo" is A alone."""
    nodes = [Node(title, "person") for title in "ABCD"] + [Node("Oslo", "town")]
    nodes += [Node("Rome", "town")]
    facts = [("A", "number", "7"), ("B", "number", "7"), ("A", "town", "Oslo")]
    facts += [("C", "town", "Oslo"), ("B", "year", "1999"), ("D", "year", "1999")]
    graph = Graph(nodes, facts)
    assert has_explanation("A", graph, 3)
    assert not has_explanation("B", graph, 3)  # two literal values, which no page lists
    draws = [draw_explanation("B", graph, random.Random(i), frozenset(), 2, 3) for i in range(9)]
    assert {frozenset(list_constants(query)) for query in draws} == {frozenset({"7", "1999"})}
    listed = (
        draw_explanation("B", graph, random.Random(i), frozenset(), 2, 3, True) for i in range(9)
    )
    assert not any(listed)


def make_sharing_graph(*groups):
    """Return a graph of people A to D; each group is (relation, value, holders)."""
    facts = [(one, relation, value) for relation, value, holders in groups for one in holders]
    clubs = [Node(value, "club") for relation, value, _ in groups if relation == "club"]
    return Graph([Node(title, "person") for title in "ABCD"] + clubs, facts)


def test_explanations_rarely_use_numbers():
    """Any two of three conditions identify A; the weights are 0.02 per number, 1 + 0.02 + 0.02
    in total.
    """
    graph = make_sharing_graph(
        ("club", "Chess", "AB"), ("club", "Go", "AC"), ("year", "1999", "AD")
    )
    rng, named = random.Random(1), Counter()
    for _ in range(2000):
        query = draw_explanation("A", graph, rng, frozenset(), 2, 3)
        named[frozenset(list_constants(query))] += 1
    assert len(named) == 3
    of_numbers = sum(count for names, count in named.items() if "1999" in names)
    assert 40 < of_numbers < 120  # 77 of 2,000 are expected
    for i in range(200):
        query = draw_explanation(
            "A", graph, random.Random(i), frozenset(), 2, 3, listed=False, numbers=False
        )
        assert sorted(list_constants(query)) == ["Chess", "Go"]


def test_explanation_uses_three_conditions_if_needed():
    graph = make_sharing_graph(
        ("club", "Chess", "ABC"), ("club", "Go", "ABD"), ("club", "Golf", "ACD")
    )
    no_bans = frozenset()
    query = draw_explanation("A", graph, random.Random(1), no_bans, 2, 3)
    assert sorted(list_constants(query)) == ["Chess", "Go", "Golf"]
    assert draw_explanation("A", graph, random.Random(1), no_bans, 2, 2) is None
    assert has_explanation("A", graph, 3) and not has_explanation("A", graph, 2)
    assert draw_explanation("A", graph, random.Random(1), frozenset(("Go",)), 2, 3) is None


def test_explanations_are_minimal():
    wide = [("club", name, "ABC") for name in ("Golf", "Polo", "Rugby", "Judo", "Fives")]
    graph = make_sharing_graph(("club", "Chess", "AB"), ("club", "Go", "AC"), *wide)
    query = draw_explanation("A", graph, random.Random(1), frozenset(), 2, 2)
    assert sorted(list_constants(query)) == ["Chess", "Go"]
    assert draw_explanation("A", graph, random.Random(1), frozenset(), 3, 3) is None


def list_stand_ins(title, graph, rivals, most=SEVERAL):
    """Return the possible draws of `draw_stand_in`, by its definition, as frozensets of texts."""
    rows = [(frozenset([to_text(part)]), fulfil) for part, fulfil in find_known_facts(title, graph)]
    pairs = [(one | two, a & b, (a, b)) for (one, a), (two, b) in combinations(rows, 2)]
    found = {one for one, fulfil in rows if len(fulfil) <= most and not fulfil & rivals}
    return found | {
        union
        for union, fit, alone in pairs
        if len(fit) <= most and not fit & rivals and all(single & rivals for single in alone)
    }


@pytest.mark.parametrize("exactly", [True, False])
def test_stand_ins_match_brute_force(world, exactly):
    graph, seen, of_two = world.graph, 0, 0
    titles = [t for t in sorted(graph.nodes) if 2 < len(find_known_facts(t, graph)) < 10][::9]
    for title in titles:
        beside = sorted(
            frozenset().union(*(fulfil for _, fulfil in find_known_facts(title, graph)))
        )
        rng = random.Random(title)
        rivals = frozenset(rng.sample(beside, len(beside) // 3)) - {title}
        expected, drawn = list_stand_ins(title, graph, rivals), set()
        hinting = {w for w in expected if hints_at(title, w, graph)}
        for _ in range(30 * len(expected) + 1):
            query = draw_stand_in(title, graph, rng, rivals, 2, lambda name: False, exactly)
            drawn |= {frozenset(map(to_text, parts_of(query)))} if query else set()
        assert drawn <= expected and not drawn & hinting
        assert drawn or expected == hinting
        names = [from_text(text).of for texts in expected for text in texts]
        if not any(map(is_number, names)):  # a number is used only if nothing else fits
            left = expected - hinting
            assert drawn == (drop_vague(title, left, graph) if exactly else left)
        seen += len(drawn)
        of_two += sum(len(texts) == 2 for texts in drawn)
    assert seen > 100 and of_two > 10


def test_stand_ins_respect_the_match_limit(world):
    graph, seen, fewer = world.graph, 0, 0
    for title in [t for t in sorted(graph.nodes) if 2 < len(find_known_facts(t, graph)) < 10][::9]:
        rivals = frozenset(sorted(graph.nodes)[::7]) - {title}
        expected = list_stand_ins(title, graph, rivals, 1)
        fewer += len(list_stand_ins(title, graph, rivals)) > len(expected)
        rng = random.Random(title)
        draws = [
            draw_stand_in(title, graph, rng, rivals, 2, lambda name: False, most=1)
            for _ in range(20)
        ]
        drawn = {frozenset(map(to_text, parts_of(query))) for query in draws if query}
        assert drawn <= expected and (drawn or all(hints_at(title, w, graph) for w in expected))
        seen += len(drawn)
    assert seen > 20 and fewer > 5


def drop_vague(title, expected, graph):
    """Drop vague single conditions if a single condition fits `title` alone."""

    def is_exact(texts):
        (text,) = texts
        return evaluate_query(from_text(text), graph) == {title}

    single = {texts for texts in expected if len(texts) == 1}
    exact = set(filter(is_exact, single))
    return expected - (single - exact) if exact else expected


def hints_at(title, texts, graph):
    """Return True if conditions that only `title` fulfils leak its name."""
    parts = [from_text(text) for text in texts]
    fit = frozenset.intersection(*(evaluate_query(part, graph) for part in parts))
    return fit == {title} and any(leaks(title, part.of, graph) for part in parts)


def test_stand_ins_avoid_barred_names_and_numbers():
    graph = make_sharing_graph(("club", "Chess", "AB"), ("club", "Go", "AC"), ("year", "1999", "A"))
    rng, rivals = random.Random(1), frozenset("D")

    def named(*barred, width=2):
        draws = (draw_stand_in("A", graph, rng, rivals, width, barred.__contains__) for _ in "1234")
        return {tuple(list_constants(query)) if query else () for query in draws}

    assert {name for names in named() for name in names} <= {"Chess", "Go"}
    assert named("Chess") == {("Go",)}
    assert named("Chess", "Go") == {()}  # the number belongs only to A and links to nothing
    shared = make_sharing_graph(
        ("club", "Chess", "AB"), ("year", "1999", "AC"), ("year", "1999", "D")
    )
    draws = [
        draw_stand_in("A", shared, rng, rivals, 1, lambda name: name == "Chess") for _ in range(9)
    ]
    assert draws == [None] * 9  # D has the year too
    rivals = frozenset()
    draws = [draw_stand_in("A", shared, rng, rivals, 1, lambda _: False) for _ in range(30)]
    assert {tuple(list_constants(query)) for query in draws} == {("Chess",)}
    query = draw_stand_in("A", shared, rng, rivals, 1, lambda name: name == "Chess")
    assert list_constants(query) == ["1999"]


def test_stand_in_combines_conditions_that_each_fit_a_rival():
    graph = make_sharing_graph(("club", "Chess", "AB"), ("club", "Go", "AC"))
    rng, rivals = random.Random(1), frozenset("BC")
    query = draw_stand_in("A", graph, rng, rivals, 2, lambda name: False)
    assert sorted(list_constants(query)) == ["Chess", "Go"]
    assert draw_stand_in("A", graph, rng, rivals, 1, lambda name: False) is None
    alone = [draw_stand_in("A", graph, rng, frozenset("B"), 2, lambda name: False) for _ in "12345"]
    assert {tuple(list_constants(query)) for query in alone} == {("Go",)}
