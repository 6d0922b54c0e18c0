"""Comparisons of ways to make questions, on a graph of seven countries and on CLDR.

Run: python -m pytest tests/test_analysis_question_controls.py
"""

import random

import pytest

from drlib.analysis.question_controls import (
    ORDERS,
    compare_orders,
    count_faults,
    count_fits,
    draw_controls,
    draw_start,
    expand_repeatedly,
    find_first,
    upgrade_each,
)
from drlib.questions.checks import find_faults, measure_effort
from drlib.questions.queries import And, Proj, Range, evaluate_query, measure_depth
from drlib.questions.websailor import Predicate
from drlib.worlds.graph import Graph, Node
from tests.shared_worlds import shared_world

JOINED = {"Austria": 1995, "Denmark": 1973, "Greece": 1981, "Ireland": 1973, "Malta": 2004}
TOY = Graph(
    [Node(name, "country") for name in JOINED],
    [(name, "joined", str(year)) for name, year in JOINED.items()],
)
ANSWERS = ("Afghanistan", "Serbia", "Ireland", "Iraq", "Sudan")


@pytest.fixture(scope="module")
def graph():
    return shared_world("cldr").graph


def test_find_first_tries_seeds_in_order():
    seen = []

    def make(rng):
        seen.append(rng.random())
        return "found" if len(seen) == 3 else None

    assert find_first(make, 5) == "found"
    assert seen == [random.Random(seed).random() for seed in range(3)]
    assert find_first(lambda rng: None, 4) is None
    assert find_first(lambda rng: 0, 1) == 0  # falsy, but a result


def test_a_start_has_two_conditions_and_one_answer(graph):
    for name in ANSWERS:
        start = draw_start(name, graph)
        assert isinstance(start, And) and len(start.parts) == 2
        assert evaluate_query(start, graph) == {name}
    assert draw_start("Denmark", TOY) is None  # has one fact


def test_expansions_add_hops_and_keep_the_answer(graph):
    start = draw_start("Afghanistan", graph)
    depths = [measure_depth(expand_repeatedly(start, graph, "layer", times)) for times in (0, 1, 2)]
    assert depths == [1, 2, 3]
    assert evaluate_query(expand_repeatedly(start, graph, "layer"), graph) == {"Afghanistan"}
    assert expand_repeatedly(Proj("joined of", "1981"), TOY, "layer") is None


def test_orders_differ_in_shortcuts_and_redundancy(graph):
    starts = [draw_start(name, graph) for name in ANSWERS]
    shares = compare_orders(starts, graph)
    assert tuple(shares) == ORDERS
    assert all(some["same answer"] == 1 for some in shares.values())
    assert shares["layer"]["shortcut"] == shares["layer"]["redundant"] == 0
    assert shares["sequential"]["shortcut"] == 1 == shares["random"]["redundant"]
    grown = [expand_repeatedly(start, graph, "layer") is not None for start in starts]
    assert shares["layer"]["expanded"] == sum(grown) / len(starts)
    with pytest.raises(ValueError, match="expands none of 1 starts"):
        compare_orders([Proj("joined of", "1981")], TOY)


def test_controls_are_unchecked_queries_with_the_requested_hops(graph):
    sources = draw_controls(ANSWERS, graph, 20, random.Random(0), hops=(3,))
    assert sources == draw_controls(ANSWERS, graph, 20, random.Random(0), hops=(3,))
    pairs, drafts = sources["two facts"], sources["drafts"]
    assert len(pairs) == len(drafts) == 20
    assert {measure_depth(query) for query in pairs} == {1}
    assert {measure_depth(query) for query in drafts} == {3}
    assert all(evaluate_query(query, graph) & {*ANSWERS} for query in pairs + drafts)


def test_faults_are_counted_once_per_query():
    good = And((Range("joined", 1970, 1979), Range("joined", 1973, 1995)))
    counts = count_faults({"one": [good], "three": [good] * 3}, TOY)
    faults = find_faults(good, TOY)
    assert "not unique" in faults
    assert counts == {"one": dict.fromkeys(faults, 1), "three": dict.fromkeys(faults, 3)}


def test_upgrades_are_harder_and_keep_the_answer(graph):
    queries = [expand_repeatedly(draw_start(name, graph), graph, "layer", 1) for name in ANSWERS]
    queries = [query for query in queries if query and not find_faults(query, graph)]
    upgraded = upgrade_each(queries, graph)
    assert queries and {"deepen", "fuzz", "compute"} <= {*upgraded}
    assert sum(map(len, upgraded.values())) > 0
    for found in upgraded.values():
        for i, new in found.items():
            assert evaluate_query(new, graph) == evaluate_query(queries[i], graph)
            assert measure_effort(new, graph) > measure_effort(queries[i], graph)


def test_fits_count_the_things_of_facts_and_clues():
    clues = [
        ("period", Predicate(Proj("joined of", "1973"), Range("joined", 1973, 1981))),
        ("period", Predicate(Proj("joined of", "1981"), Range("joined", 1973, 2004))),
        ("band", Predicate(Proj("joined of", "1981"), Range("joined", 1973, 2004))),
    ]
    assert count_fits(clues, TOY) == {"period": ([2, 1], [3, 5])}  # one clue is no sample
