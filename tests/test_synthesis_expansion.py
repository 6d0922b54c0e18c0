"""Explaining an answer and expanding a query: the answer never changes, every condition is needed.

Run: python -m pytest tests/test_synthesis_expansion.py
"""

import random
from collections import Counter

import pytest

from drlib.synthesis.checks import constant_edges, target_edges
from drlib.synthesis.clues import can_be_asked_for
from drlib.synthesis.expansion import draft, expand, explain, layers, met
from drlib.synthesis.queries import constants, depth, evaluate_query, walk
from drlib.synthesis.sql_engine import SqlEngine
from tests.shared_worlds import shared_world


@pytest.fixture(scope="module")
def world():
    return shared_world("cldr")


def starts(graph, n, seed):
    """`n` verified-by-nothing queries of one look-up, and their answers."""
    rng, found = random.Random(f"starts-{seed}"), []
    titles = [t for t in sorted(graph.nodes) if can_be_asked_for(t, graph)]
    while len(found) < n:
        answer = rng.choice(titles)
        query = explain(answer, graph, rng, frozenset((answer,)), 2, 3)
        found += [(answer, query)] if query else []
    return found


def test_an_explanation_is_exact_and_each_condition_is_needed(world):
    graph, rng = world.graph, random.Random(1)
    for answer, query in starts(graph, 60, 1):
        assert evaluate_query(query, graph) == {answer}
        assert 2 <= len(query.parts) <= 3
        assert all(len(evaluate_query(part, graph)) > 1 for part in query.parts)
        banned = frozenset(constants(query))
        other = explain(answer, graph, rng, banned, 2, 3)
        assert other is None or not banned & set(constants(other))


def test_layer_wise_expansion_as_in_webshaper(world):
    """arXiv 2507.15061, section 3.3 and figure 4: n = 0..3 expansions keep the answer, the
    shortest path from a constant to the target grows by each, and nothing becomes redundant."""
    graph, grown = world.graph, 0
    for i, (answer, query) in enumerate(starts(graph, 100, 2)):
        rng = random.Random(i)
        for n in range(1, 4):
            nearest = min(layers(query))[0]
            assert nearest == n
            new = next(filter(None, (expand(query, graph, rng) for _ in range(10))), None)
            if new is None:
                break
            assert (
                evaluate_query(new, graph) == {answer} == SqlEngine(graph).answers(new)
                if i < 3
                else evaluate_query(new, graph) == {answer}
            )
            assert min(layers(new))[0] > nearest and depth(new) > depth(query)
            assert target_edges(new) == 0 == constant_edges(new, graph)
            query, grown = new, grown + 1
    assert grown > 100


def test_the_baselines_leave_shortcuts_and_redundancy(world):
    graph, edges = world.graph, {}
    for order in ("layer", "sequential", "random"):
        rng, count = random.Random(order), Counter()
        for answer, query in starts(graph, 60, 3):
            for _ in range(2):
                query = expand(query, graph, rng, order) or query
            assert evaluate_query(query, graph) == {answer}
            if depth(query) == 3 or order == "random":
                count += Counter(target=target_edges(query), constant=constant_edges(query, graph))
        edges[order] = count
    assert edges["layer"]["target"] == edges["layer"]["constant"] == 0
    assert edges["sequential"]["target"] > 20
    assert edges["random"]["target"] > 20 and edges["random"]["constant"] > 20


def test_a_draft_never_names_the_answer_or_a_thing_on_the_way(world):
    graph, rng, found = world.graph, random.Random(4), 0
    titles = [t for t in sorted(graph.nodes) if can_be_asked_for(t, graph)]
    for answer in rng.sample(titles, 300):
        query = draft(answer, graph, rng, 3)
        if query is None:
            continue
        found += 1
        assert evaluate_query(query, graph) == {answer} and depth(query) == 3
        on_the_way = [
            evaluate_query(part, graph) for part in walk(query) if not isinstance(part, str)
        ]
        assert not [name for name in constants(query) if {name} in on_the_way]
        assert answer in met(query, graph) >= set(constants(query))
        assert graph.neighbours[answer].isdisjoint(constants(query))
    assert found > 20
