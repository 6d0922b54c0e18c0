"""The question engine: answers that never change, verified questions, splits, quotas, one output.

Run: python -m pytest tests/test_synthesis_engine.py
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

from drlib.synthesis import synthesize_questions
from drlib.synthesis.checks import constant_edges, effort, faults, target_edges
from drlib.synthesis.engine import (
    OPERATORS,
    can_be_asked_for,
    draft,
    expand,
    explain,
    known_by,
    layers,
    met,
    side_of,
)
from drlib.synthesis.queries import (
    And,
    Count,
    Diff,
    Extreme,
    Or,
    Proj,
    Range,
    SqlEngine,
    canonical,
    constants,
    depth,
    evaluate,
    from_text,
    to_text,
    walk,
)
from drlib.worlds import Graph, Node, fictional_world, load_world
from drlib.worlds.fictional import Names

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def world():
    return load_world("cldr")


@pytest.fixture(scope="module")
def tasks(world):
    return synthesize_questions(world, 400, 0, split="train")


def starts(graph, n, seed):
    """`n` verified-by-nothing queries of one look-up, and their answers."""
    rng, found = random.Random(f"starts-{seed}"), []
    titles = [t for t in sorted(graph.nodes) if can_be_asked_for(t, graph)]
    while len(found) < n:
        answer = rng.choice(titles)
        query = explain(answer, graph, rng, frozenset((answer,)), 2, 3)
        found += [(answer, query)] if query else []
    return found


# ------------------------------------------------------------------------------- generation


def test_known_by_lists_true_conditions(world):
    graph = world.graph
    for title in sorted(graph.nodes)[::20]:
        for part, fulfil in known_by(title, graph):
            assert title in fulfil == evaluate(part, graph)
            assert len(fulfil) <= 100 and part.of != title
    codes = [part for part, _ in known_by("Norwegian Krone", graph) if part.relation == "code of"]
    assert codes == []  # the code of one currency leads to nothing else


def test_an_explanation_is_exact_and_each_condition_is_needed(world):
    graph, rng = world.graph, random.Random(1)
    for answer, query in starts(graph, 60, 1):
        assert evaluate(query, graph) == {answer}
        assert 2 <= len(query.parts) <= 3
        assert all(len(evaluate(part, graph)) > 1 for part in query.parts)
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
                evaluate(new, graph) == {answer} == SqlEngine(graph).answers(new)
                if i < 3
                else evaluate(new, graph) == {answer}
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
            assert evaluate(query, graph) == {answer}
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
        assert evaluate(query, graph) == {answer} and depth(query) == 3
        on_the_way = [evaluate(part, graph) for part in walk(query) if not isinstance(part, str)]
        assert not [name for name in constants(query) if {name} in on_the_way]
        assert answer in met(query, graph) >= set(constants(query))
    assert found > 20


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_operators_raise_the_work_and_keep_the_answer(name, world, tasks):
    graph, rng, done = world.graph, random.Random(f"op-{name}"), []
    for task in tasks[:150]:
        query = from_text(task.query)
        new = OPERATORS[name](query, graph, rng)
        if new is None:
            continue
        done.append((query, new))
        assert evaluate(new, graph) == {task.answer}
        assert faults(new, graph) == []
        assert effort(query, graph) < effort(new, graph) < float("inf")
    assert len(done) > 5
    kinds = Counter(type(part) for pair in done for part in walk(pair[1]))
    before = Counter(type(part) for pair in done for part in walk(pair[0]))
    more = {"deepen": Proj, "widen": And, "abstract": Or, "difference": Diff, "compute": Extreme}
    if name in more:
        assert kinds[more[name]] - before[more[name]] >= len(done)
    if name == "widen":
        assert all(len(constants(new)) > len(constants(query)) for query, new in done)


def test_numbers_become_ranges_and_counts():
    """Towns are told apart by how many mills they have; a year is told by its decade."""
    rng = random.Random("town")
    towns = [f"Town {chr(65 + i)}" for i in range(24)]
    rivers, guilds = [f"River {i}x" for i in range(6)], [f"Guild {i}y" for i in range(8)]
    facts = [(t, "river", rng.choice(rivers)) for t in towns]
    facts += [(t, "founded", str(rng.choice((1901, 1905, 1933, 1950)))) for t in towns]
    facts += [(t, "mills", str(rng.randint(2, 4))) for t in towns]
    facts += [(g, "seat", rng.choice(towns)) for g in guilds for _ in range(3)]
    facts += [(g, "river", rng.choice(rivers)) for g in guilds]
    nodes = [
        Node(t, k)
        for k, some in (("town", towns), ("river", rivers), ("guild", guilds))
        for t in some
    ]
    graph = Graph(nodes, facts)
    query = And(
        (
            Proj("river", And((Proj("mills of", "3"), Proj("founded of", "1950")))),
            Proj("river", "Guild 0y"),
        )
    )
    made = {
        name: [OPERATORS[name].__wrapped__(n, graph, rng, met(query, graph)) for _ in range(40)]
        for name, n in (("fuzz", "1950"), ("fuzz ", "3"), ("compute", "3"))
        for name in [name.strip()]
        if (name, n) != ("fuzz", "3")
    }
    assert set(made["fuzz"]) == {Range("", 1950, 1959)}
    counts = [q for q in made["compute"] if q is not None]
    assert counts and all(isinstance(q, Count) and evaluate(q, graph) == {"3"} for q in counts)
    fuzzed = OPERATORS["fuzz"].__wrapped__("40", graph, rng, frozenset())
    low, high = fuzzed.low, fuzzed.high
    assert 32 <= low <= 40 <= high <= 48


# -------------------------------------------------------------------------------- questions


def test_questions_are_verified_by_two_engines(world, tasks):
    engine = SqlEngine(world.graph)
    for task in tasks:
        query = from_text(task.query)
        assert evaluate(query, world.graph) == {task.answer} == engine.answers(query)
        assert faults(query, world.graph) == [] == faults(query, world.graph, engine)
        assert effort(query, world.graph) <= 60
        assert query == canonical(query)
        assert task.hops == depth(query) and task.skill == f"h{task.hops}"
        assert task.kind == "search" and task.world == world.version
        assert task.aliases == world.graph.nodes[task.answer].aliases
        assert task.start == "" and task.relations == ()


def dropped(lists):
    """Every query (as JSON lists) that lacks one condition, at any depth."""
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
            yield from ([kind, *fields[:i], less, *fields[i + 1 :]] for less in dropped(field))


def test_no_condition_at_any_depth_can_go(world, tasks):
    """By surgery on the JSON and the second engine: no code of the checks is used."""
    engine, tried = SqlEngine(world.graph), 0
    for task in tasks[:200]:
        for less in dropped(json.loads(task.query)):
            assert engine.answers(from_text(json.dumps(less))) != {task.answer}, task.query
            tried += 1
    assert tried > 400


def test_a_set_of_answers_may_be_prescribed(world):
    some = sorted(t for t in world.graph.nodes if can_be_asked_for(t, world.graph))[::3]
    asked = {task.answer for task in synthesize_questions(world, 60, 1, asked=some)}
    assert asked <= {*some} and len(asked) > 20


def test_questions_are_different_and_no_answer_is_a_good_guess(tasks):
    assert len(tasks) == len({t.id for t in tasks}) == len({t.query for t in tasks}) == 400
    assert max(Counter(t.answer for t in tasks).values()) <= 8  # 2% of 400
    hops = Counter(t.hops for t in tasks)
    assert set(hops) == {2, 3} and 130 <= hops[2] <= 190  # 2 : 3
    operators = Counter(type(p).__name__ for t in tasks for p in walk(from_text(t.query)))
    assert {"And", "Or", "Diff", "Extreme"} <= set(operators)


def test_sides_share_neither_answer_nor_query(world, tasks):
    test = synthesize_questions(world, 150, 7, split="test")
    for part in ("answer", "query", "id"):
        assert not {getattr(t, part) for t in tasks} & {getattr(t, part) for t in test}
    assert {side_of(t.answer) for t in test} == {"test"}
    assert {side_of(t.answer) for t in tasks} == {"train"}
    sides = Counter(map(side_of, world.graph.nodes))
    assert 0.2 < sides["test"] / len(world.graph.nodes) < 0.3


def test_same_seed_same_questions(world):
    first, again = (synthesize_questions(world, 30, "s") for _ in range(2))
    assert first == again != synthesize_questions(world, 30, "t")


def test_the_shares_of_depths_and_the_work_are_what_was_asked(world):
    deep = synthesize_questions(world, 25, 0, hops={3: 1, 4: 3}, max_effort=30, max_share=0.04)
    assert set(Counter(t.hops for t in deep)) == {3, 4}
    assert len({t.answer for t in deep}) == 25
    assert all(effort(from_text(t.query), world.graph) <= 30 for t in deep)


def test_the_output_is_the_same_under_any_hash_seed():
    program = (
        "from drlib.synthesis import synthesize_questions as f\n"
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
        for seed in ("0", "1", "77")
    ]
    digests = {process.communicate()[0].strip() for process in running}
    assert len(digests) == 1 and len(digests.pop()) == len(hashlib.sha256().hexdigest())


@pytest.mark.parametrize("seed", range(3))
def test_an_invented_world_by_brute_force(seed):
    """Every node of a random graph is tried as the answer, by definition of the query."""
    from tests.test_synthesis_queries import fulfils

    rng = random.Random(f"invented-{seed}")
    titles = [f"Thing {chr(97 + i)}{i}" for i in range(26)]
    facts = [(rng.choice(titles), rng.choice("rst"), rng.choice(titles)) for _ in range(70)]
    graph = Graph([Node(title, "thing") for title in titles], facts)
    world = SimpleNamespace(graph=graph, name="invented", version="v")
    for task in synthesize_questions(world, 12, seed, hops={2: 1}, max_share=0.5):
        query = from_text(task.query)
        right = [title for title in titles if fulfils(title, query, graph)]
        assert right == [task.answer]


def test_the_tours_worlds_give_questions_too():
    tour = load_world("tour")
    for small in (tour, fictional_world(3, Names.of(tour))):
        for task in synthesize_questions(small, 5, 0, hops={2: 1}, max_share=0.4):
            assert faults(from_text(task.query), small.graph) == []


# -------------------------------------------------------------------------------- bad input


def test_a_world_without_a_graph_says_what_to_do():
    for graph in (None, Graph([Node("Lonely", "page")], [])):
        bare = SimpleNamespace(name="heap", graph=graph, version="v")
        with pytest.raises(ValueError, match=r"'heap' has no graph.*links or tables.*endpoint="):
            synthesize_questions(bare, 3, 0)


def test_a_world_that_is_too_small_says_how_many_there_are():
    nodes = [Node(t, "x") for t in ("Ash", "Birch", "Cedar", "Park", "Wood")]
    tiny = Graph(
        nodes,
        [
            ("Ash", "in", "Park"),
            ("Birch", "in", "Park"),
            ("Birch", "in", "Wood"),
            ("Cedar", "in", "Wood"),
        ],
    )
    with pytest.raises(ValueError, match="tiny gives only about 0 of 5 questions"):
        synthesize_questions(SimpleNamespace(name="tiny", graph=tiny, version="v"), 5, 0)
    with pytest.raises(ValueError, match=r"only about \d+ of 400 .*max_effort"):
        synthesize_questions(load_world("tour"), 400, 0, max_effort=2)


@pytest.mark.parametrize(
    "wrong", [{"n": 0}, {"depth": 1}, {"width": 1}, {"hops": {1: 1.0}}], ids=str
)
def test_impossible_settings_are_named(wrong, world):
    with pytest.raises(ValueError, match="at least 1"):
        synthesize_questions(world, **{"n": 3, "seed": 0} | wrong)


def test_ids_change_with_the_world_and_not_with_the_wording(tasks):
    assert all(t.id.startswith(f"search-h{t.hops}-") for t in tasks)
    assert to_text(from_text(tasks[0].query)) == tasks[0].query
