"""Tests of the question engine: constant answers, verified questions, splits, quotas, determinism.

Run: python -m pytest tests/test_questions_question_engine.py
"""

import hashlib
import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from drlib.questions import expansion, question_engine, synthesize_questions
from drlib.questions.checks import count_coincidences, find_faults, measure_effort
from drlib.questions.expansion import is_identifiable
from drlib.questions.queries import (
    canonicalise,
    evaluate_query,
    from_text,
    list_constants,
    measure_depth,
    to_text,
    walk,
)
from drlib.questions.question_engine import choose_side
from drlib.questions.sql_engine import SqlEngine
from drlib.worlds import Graph, Node, fictional_world, load_world
from drlib.worlds.fictional import Names
from tests.shared_worlds import shared_world

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def world():
    return shared_world("cldr")


@pytest.fixture(scope="module")
def tasks(world):
    return synthesize_questions(world, 400, 0, split="train")


def test_questions_are_verified_by_two_engines(world, tasks):
    engine = SqlEngine(world.graph)
    for task in tasks:
        query = from_text(task.query)
        assert evaluate_query(query, world.graph) == {task.answer} == engine.answers(query)
        assert find_faults(query, world.graph) == [] == find_faults(query, world.graph, engine)
        assert measure_effort(query, world.graph) <= 60
        assert query == canonicalise(query)
        assert task.hops == measure_depth(query) and task.skill == f"c{task.conditions}"
        assert task.conditions == len(list_constants(query)) > 1
        assert task.kind == "search" and task.world == world.version
        assert task.aliases == world.graph.nodes[task.answer].aliases
        assert task.start == "" and task.relations == ()


def test_coincidences_are_rare(world, tasks):
    queries = [from_text(task.query) for task in tasks]
    by_chance = [
        query
        for query in queries
        if count_coincidences(query, lambda part: evaluate_query(part, world.graph))
    ]
    assert 0 < len(by_chance) <= question_engine.COINCIDENCE_SHARE * len(tasks)


def list_weakened(lists):
    """Return every query (as JSON lists) with one condition removed, at any depth."""
    if isinstance(lists, str):
        return
    kind, *fields = lists
    if kind == "and":
        for i in range(len(fields)):
            rest = fields[:i] + fields[i + 1 :]
            yield [kind, *rest] if len(rest) > 1 else rest[0]
    if kind in ("diff", "extreme"):
        yield fields[0] if kind == "diff" else fields[1]
    for i, field in enumerate(fields):
        if isinstance(field, list):
            yield from (
                [kind, *fields[:i], less, *fields[i + 1 :]] for less in list_weakened(field)
            )


def test_every_nested_condition_is_needed(world, tasks):
    """Edits the JSON and uses the second engine, independent of the checks."""
    engine, count = SqlEngine(world.graph), 0
    for task in tasks[:200]:
        for less in list_weakened(json.loads(task.query)):
            assert engine.answers(from_text(json.dumps(less))) != {task.answer}, task.query
            count += 1
    assert count > 400


def test_answers_can_be_restricted(world):
    allowed = sorted(t for t in world.graph.nodes if is_identifiable(t, world.graph))[::3]
    asked = {task.answer for task in synthesize_questions(world, 60, 1, asked=allowed)}
    assert asked <= {*allowed} and len(asked) > 20


def test_questions_are_unique_with_balanced_answers(tasks):
    assert len(tasks) == len({t.id for t in tasks}) == len({t.query for t in tasks}) == 400
    assert max(Counter(t.answer for t in tasks).values()) <= 8  # 2% of 400
    hops = Counter(t.hops for t in tasks)
    assert set(hops) == {2, 3} and 130 <= hops[2] <= 190  # 2 : 3


def test_all_operators_occur(world):
    """Extremes are the rarest: about four per thousand questions."""
    tasks = synthesize_questions(world, 1500, 0)
    operators = Counter(type(p).__name__ for t in tasks for p in walk(from_text(t.query)))
    assert {"And", "Or", "Diff", "Extreme"} <= set(operators)


def test_splits_share_neither_answers_nor_queries(world, tasks):
    test = synthesize_questions(world, 150, 7, split="test")
    for part in ("answer", "query", "id"):
        assert not {getattr(t, part) for t in tasks} & {getattr(t, part) for t in test}
    assert {choose_side(t.answer) for t in test} == {"test"}
    assert {choose_side(t.answer) for t in tasks} == {"train"}
    sides = Counter(map(choose_side, world.graph.nodes))
    assert 0.2 < sides["test"] / len(world.graph.nodes) < 0.3


@pytest.mark.parametrize("patience", [(1, 100), (16, 100)])
def test_postponed_answers_are_drawn_later(world, monkeypatch, patience):
    """Every retry limit finally draws each answer as often as no postponement."""
    allowed = sorted(t for t in world.graph.nodes if is_identifiable(t, world.graph))[::8]

    def count_answers(misses):
        monkeypatch.setattr(question_engine, "MISSES_AN_ANSWER", misses)
        with pytest.warns(UserWarning, match="gives only"):
            tasks = synthesize_questions(world, 900, 5, asked=allowed, max_share=0.02)
        return Counter(task.answer for task in tasks)

    all_at_once, later = count_answers((100, 100)), count_answers(patience)
    assert later.total() > 0.9 * all_at_once.total() > 300
    assert len(later) > 0.9 * len(all_at_once)


@pytest.mark.parametrize("plain", [True, False])
def test_plain_option_controls_vague_conditions(world, monkeypatch, plain):
    asked, deeper, widths, changed, with_numbers = set(), set(), set(), set(), []

    def draft(answer, graph, rng, hops, width, strict, listed, numbers, vague):
        asked.add(vague)
        widths.add(width)
        with_numbers.append(numbers)
        return expansion.draft_query(
            answer, graph, rng, hops, width, strict, listed, numbers, vague
        )

    def deepened(query, graph, rng, bars):
        deeper.add(bars.vague)
        return expansion.add_hop(query, graph, rng, bars)

    def operator(query, graph, rng, strict):
        changed.add(strict)

    monkeypatch.setattr(question_engine, "draft_query", draft)
    monkeypatch.setattr(question_engine, "add_hop", deepened)
    monkeypatch.setattr(question_engine, "OPERATORS", {"one": operator, "two": operator})
    hops = {2: 1} if plain else {3: 1}  # plain questions use no operators and no hop after one
    assert synthesize_questions(world, 5, 1, hops=hops, plain=plain, max_share=1)
    assert asked == {not plain} and deeper == (set() if plain else {False})
    assert widths == {2 if plain else 3} and changed == (set() if plain else {True})
    assert any(with_numbers) and (not plain or sum(with_numbers) < 0.4 * len(with_numbers))


def test_questions_are_reproducible(world):
    first, again = (synthesize_questions(world, 30, "s") for _ in range(2))
    assert first == again != synthesize_questions(world, 30, "t")


def test_hop_shares_and_effort_limit_are_respected(world):
    deep = synthesize_questions(world, 25, 0, hops={3: 1, 4: 3}, max_effort=30, max_share=0.04)
    assert set(Counter(t.hops for t in deep)) == {3, 4}
    assert len({t.answer for t in deep}) == 25
    assert all(measure_effort(from_text(t.query), world.graph) <= 30 for t in deep)


def test_output_does_not_depend_on_the_hash_seed():
    program = (
        "from drlib.questions import synthesize_questions as f\n"
        "from drlib.worlds import load_world\n"
        "import hashlib\n"
        "rows = f(load_world('cldr'), 60, 5)\n"
        "print(hashlib.sha256(repr(rows).encode()).hexdigest())\n"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": seed},
        )
        for seed in ("0", "77")
    ]
    digests = {process.communicate()[0].strip() for process in running}
    assert len(digests) == 1 and len(digests.pop()) == len(hashlib.sha256().hexdigest())


@pytest.mark.parametrize("seed", range(3))
def test_random_world_matches_brute_force(seed):
    """Every node of a random graph is tried as the answer."""
    from tests.test_questions_queries import fulfils

    rng = random.Random(f"invented-{seed}")
    titles = [f"Thing {chr(97 + i)}{i}" for i in range(26)]
    facts = [(rng.choice(titles), rng.choice("rst"), rng.choice(titles)) for _ in range(70)]
    graph = Graph([Node(title, "thing") for title in titles], facts)
    world = SimpleNamespace(graph=graph, name="invented", scheme="", version="v")
    for task in synthesize_questions(world, 12, seed, hops={2: 1}, max_share=0.5):
        query = from_text(task.query)
        expected = [title for title in titles if fulfils(title, query, graph)]
        assert expected == [task.answer]


def test_tour_worlds_give_questions():
    tour = load_world("tour")
    for small in (tour, fictional_world(3, Names.from_world(tour))):
        for task in synthesize_questions(small, 5, 0, hops={2: 1}, max_share=0.4):
            assert find_faults(from_text(task.query), small.graph) == []


# -------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    "wrong", [{"n": 0}, {"depth": 1}, {"width": 1}, {"hops": {1: 1.0}}], ids=str
)
def test_invalid_settings_are_rejected(wrong, world):
    with pytest.raises(ValueError, match="too small"):
        synthesize_questions(world, **{"n": 3, "seed": 0} | wrong)


def test_task_ids_and_query_text(tasks):
    assert all(t.id.startswith(f"search-h{t.hops}-") for t in tasks)
    assert to_text(from_text(tasks[0].query)) == tasks[0].query
