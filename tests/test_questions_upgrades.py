"""Tests of upgrade operators: same answer, no fault, more pages.

Run: python -m pytest tests/test_questions_upgrades.py
"""

import random
from collections import Counter

import pytest

from drlib.questions import synthesize_questions
from drlib.questions.checks import find_faults, measure_effort
from drlib.questions.expansion import find_single_things
from drlib.questions.queries import (
    And,
    Count,
    Diff,
    Extreme,
    Or,
    Proj,
    Range,
    evaluate_query,
    from_text,
    list_constants,
    walk,
)
from drlib.questions.upgrades import OPERATORS, run_upgrade_rounds
from drlib.worlds import Graph, Node
from tests.shared_worlds import shared_world


@pytest.fixture(scope="module")
def world():
    return shared_world("cldr")


@pytest.fixture(scope="module")
def tasks(world):
    return synthesize_questions(world, 400, 0, split="train")


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_operators_increase_effort_and_keep_the_answer(name, world, tasks):
    graph, rng, upgraded = world.graph, random.Random(f"op-{name}"), []
    for task in tasks:
        query = from_text(task.query)
        new = OPERATORS[name](query, graph, rng)
        if new is None:
            continue
        upgraded.append((query, new))
        assert evaluate_query(new, graph) == {task.answer}
        assert find_faults(new, graph) == []
        assert measure_effort(query, graph) < measure_effort(new, graph) < float("inf")
    assert len(upgraded) > 5
    kinds = Counter(type(part) for pair in upgraded for part in walk(pair[1]))
    before = Counter(type(part) for pair in upgraded for part in walk(pair[0]))
    more = {"deepen": Proj, "widen": And, "abstract": Or, "difference": Diff, "compute": Extreme}
    if name == "compute":  # the extreme thing for a name, a count for a number
        kinds[Extreme] += kinds[Count]
        before[Extreme] += before[Count]
    if name in more:
        assert kinds[more[name]] - before[more[name]] >= len(upgraded)
    if name == "widen":
        assert all(len(list_constants(new)) > len(list_constants(query)) for query, new in upgraded)


def test_numbers_are_replaced_by_ranges_and_counts():
    """Towns are identified by their number of mills, a year by its decade."""
    rng = random.Random("town")
    towns = [f"Town {chr(65 + i)}" for i in range(24)]
    rivers = [f"River {i}x" for i in range(6)]
    guilds = [f"Guild {i}y" for i in range(8)]
    facts = [(t, "river", rng.choice(rivers)) for t in towns]
    facts += [(t, "founded", str(rng.choice((1901, 1905, 1933, 1950)))) for t in towns]
    facts += [(t, "mills", str(rng.randint(2, 4))) for t in towns]
    facts += [(g, "seat", rng.choice(towns)) for g in guilds for _ in range(3)]
    facts += [(g, "river", rng.choice(rivers)) for g in guilds]
    nodes = [Node(t, "town") for t in towns]
    nodes += [Node(r, "river") for r in rivers] + [Node(g, "guild") for g in guilds]
    graph = Graph(nodes, facts)
    query = And(
        (
            Proj("river", And((Proj("mills of", "3"), Proj("founded of", "1950")))),
            Proj("river", "Guild 0y"),
        )
    )
    banned = find_single_things(query, graph)

    def apply_operator(name, constant):
        return [OPERATORS[name].__wrapped__(constant, graph, rng, banned) for _ in range(40)]

    assert set(apply_operator("fuzz", "1950")) == {Range("", 1950, 1959)}
    counts = [q for q in apply_operator("compute", "3") if q is not None]
    assert counts and all(
        isinstance(q, Count) and evaluate_query(q, graph) == {"3"} for q in counts
    )
    fuzzed = OPERATORS["fuzz"].__wrapped__("40", graph, rng, frozenset())
    low, high = fuzzed.low, fuzzed.high
    assert 32 <= low <= 40 <= high <= 48


def test_upgrade_rounds_increase_effort(world):
    graph, stages = world.graph, set()
    for i, task in enumerate(synthesize_questions(world, 24, 3, depth=2)):
        query = from_text(task.query)
        rounds = list(run_upgrade_rounds(query, graph, random.Random(i), 2))
        assert rounds == list(run_upgrade_rounds(query, graph, random.Random(i), 2))
        for stage, harder in rounds:
            stages.add(stage)
            assert (
                evaluate_query(harder, graph) == {task.answer} and find_faults(harder, graph) == []
            )
            assert measure_effort(harder, graph) > measure_effort(query, graph)
            query = harder
    assert stages >= {"knowledge expansion", "conceptual abstraction", "computational formulation"}
