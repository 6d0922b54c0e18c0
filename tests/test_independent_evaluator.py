"""The raw-fact evaluator on cases by hand, and its verdict on the engine's questions.

Run: python -m pytest tests/test_independent_evaluator.py
"""

import ast
import json
import random
import sys
import warnings
from functools import cache
from pathlib import Path

import pytest
from query_examples import any_query, small_graph

from drlib.questions.queries import evaluate_query, to_text
from drlib.questions.question_engine import synthesize_questions
from drlib.questions.sql_engine import SqlEngine
from tests import independent_evaluator
from tests.independent_evaluator import RawFacts, count_hops, names_in_query
from tests.shared_worlds import shared_world

FACTS = [
    ("Ada", "team", "Blue"),
    ("Ben", "team", "Blue"),
    ("Cas", "team", "Red"),
    ("Ada", "skill", "Rust"),
    ("Ada", "skill", "Python"),
    ("Cas", "skill", "Python"),
    ("Ada", "entry year", "2019"),
    ("Ben", "entry year", "2021"),
    ("Cas", "entry year", "2021"),
    ("Blue", "town", "Oslo"),
    ("Dan", "entry year", "soon"),
    ("Dan", "depth", "-4"),
    ("Eva", "town", "Rome"),
]
RAW = RawFacts(FACTS)
BLUE = ["proj", "team of", "Blue"]
PYTHON = ["proj", "skill of", "Python"]
CASES = [
    ("Ada", {"Ada"}),
    (["proj", "skill", "Ada"], {"Rust", "Python"}),
    (BLUE, {"Ada", "Ben"}),
    (["proj", "town", ["proj", "team", "Ben"]], {"Oslo"}),
    (["proj", "skill of", "Go"], set()),
    (["proj", "no such relation", "Ada"], set()),
    (["and", BLUE, PYTHON], {"Ada"}),
    (["and", BLUE, PYTHON, ["proj", "team of", "Red"]], set()),
    (["or", BLUE, PYTHON], {"Ada", "Ben", "Cas"}),
    (["diff", BLUE, PYTHON], {"Ben"}),
    (["diff", PYTHON, BLUE], {"Cas"}),
    (["range", "entry year", 2019, 2021], {"Ada", "Ben", "Cas"}),
    (["range", "entry year", 2020, 2021], {"Ben", "Cas"}),
    (["range", "entry year", 2019, 2020], {"Ada"}),
    (["range", "depth", -4, -4], {"Dan"}),
    (["range", "entry year of", 0, 9], set()),
    (["extreme", "entry year", BLUE, True], {"Ben"}),
    (["extreme", "entry year", BLUE, False], {"Ada"}),
    (["extreme", "entry year", ["or", BLUE, PYTHON], True], {"Ben", "Cas"}),
    (["extreme", "entry year", "Dan", True], set()),
    (["count", BLUE], {"2"}),
    (["count", ["proj", "skill of", "Go"]], {"0"}),
]


@pytest.mark.parametrize(("query", "members"), CASES)
def test_each_operator_by_hand(query, members):
    assert RAW.members(json.dumps(query)) == members


def test_unknown_operator_is_rejected():
    with pytest.raises(ValueError, match="unknown operator 'nand'"):
        RAW.members('["nand", "Ada", "Ben"]')


def test_facts_connect_in_both_directions():
    distances = RAW.facts_away("Ada")
    assert {name: distances[name] for name in ("Ada", "Blue", "2019", "Ben", "Cas", "Oslo")} == {
        "Ada": 0,
        "Blue": 1,
        "2019": 1,
        "Ben": 2,
        "Cas": 2,
        "Oslo": 2,
    }
    assert distances["2021"] == 3 and "Rome" not in distances and "Dan" not in distances


def test_barriers_are_reached_and_not_crossed():
    distances = RAW.facts_away("Ada", barriers={"Blue", "Python"})
    assert distances["Blue"] == distances["Python"] == 1 and not {"Ben", "Cas"} & distances.keys()
    assert RAW.facts_away("Blue", barriers={"Blue"})["Ben"] == 1


def test_judgement_has_names_with_distances():
    text = json.dumps(
        ["and", BLUE, ["range", "entry year", 2021, 2021], ["proj", "town of", "Rome"]]
    )
    found = RAW.judge(text, "Ben")
    assert found.names == ("Blue", "2021", "Rome")
    assert found.facts_away == (1, 1, None) and found.nearest == 1
    assert found.members == set()


def test_names_and_hops_of_a_query():
    query = ["extreme", "age", ["diff", ["proj", "team of", ["proj", "team", "Ada"]], "Ben"], True]
    assert names_in_query(query) == ["Ada", "Ben"] and count_hops(query) == 2
    assert (
        names_in_query(["range", "age", 3, 9]) == []
        and count_hops(["count", ["range", "age", 3, 9]]) == 1
    )


def test_evaluator_does_not_import_the_library():
    tree = ast.parse(Path(independent_evaluator.__file__).read_text(encoding="utf-8"))
    imported = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
        )
    }
    assert imported and {name.split(".")[0] for name in imported} <= sys.stdlib_module_names


def test_evaluator_agrees_with_both_engines():
    graph, rng = small_graph(), random.Random(8)
    raw, sql = RawFacts(graph.facts), SqlEngine(graph)
    for _ in range(500):
        query = any_query(graph, rng, depth=rng.choice((1, 2, 3)))
        members = raw.members(to_text(query))
        assert members == evaluate_query(query, graph) == sql.answers(query), query


@cache
def world_and_facts(name):
    world = shared_world(name)
    return world, RawFacts(world.graph.facts)


@pytest.mark.parametrize("wording", ["sentences", "brackets"])
@pytest.mark.parametrize("name, n", [("cldr", 120), ("pydocs", 100), ("folder:notebooks/tern", 40)])
@pytest.mark.parametrize("hops", [2, 3])
def test_questions_have_one_answer_and_name_no_neighbour(name, n, hops, wording):
    world, raw = world_and_facts(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the folder is small
        tasks = synthesize_questions(
            world, n, f"judged-{wording}", hops={hops: 1}, wording=wording, at_least=n // 4
        )
    for task in tasks:
        found = raw.judge(task.query, task.target)
        assert found.members == {task.target}, task.query
        assert found.nearest is None or found.nearest > 1, task.query
        assert count_hops(json.loads(task.query)) == task.hops in (2, 3)
        assert len(found.names) >= task.conditions
