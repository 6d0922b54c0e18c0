"""The solver uses only tool results, makes a bounded number of calls and corrects its mistakes.

The world is hand-made and its answers are counted by hand. tests/benchmarks/bench_solver.py
measures the solved share of the engine's questions; here a few are tested.

Run: python -m pytest tests/test_demonstrations_solver.py
"""

import dataclasses
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from drlib.demonstrations.episodes import observations
from drlib.demonstrations.funnel import Funnel
from drlib.demonstrations.solver import MISTAKES, Solver
from drlib.questions.queries import And, Count, Diff, Extreme, Or, Proj, Range, evaluate_query
from drlib.questions.question_engine import synthesize_questions
from drlib.sandbox import Sandbox
from drlib.tools import Toolbox
from drlib.tools.fault_injection import FaultInjector
from drlib.tools.reliability import ReliabilityPolicy
from drlib.worlds import load_world
from tests.solver_examples import MILLS, ON_5, task, tiny
from tests.tool_examples import FakeClock


@pytest.fixture(scope="module")
def world():
    return tiny()


@pytest.fixture(scope="module")
def toolbox(world):
    with Toolbox(world, calculator=True) as tools:
        yield tools


def calls(episode):
    return [(r.tool, next(iter(r.arguments.values()))) for r in episode.tool_results]


def test_one_hop_is_a_search_and_a_visit(toolbox):
    episode = Solver(toolbox).solve(task(Proj("capital", "Bigland"), "Town 019"))
    assert calls(episode) == [("search", ["Bigland"]), ("visit", ["tiny:Bigland"])]
    assert episode.correct and episode.messages[-1]["content"].endswith("<answer>Town 019</answer>")
    assert observations(episode) == [r.text for r in episode.tool_results]
    assert Funnel().fault(episode) is None


QUERIES = {
    "and": (And((MILLS, ON_5)), "Town 005"),
    "or": (
        And((Or((Proj("river of", "River 2"), Proj("river of", "River 3"))), MILLS)),
        "Town 012",
    ),
    "diff": (
        Diff(And((MILLS, Proj("guild of", "Guild 5"))), Or((ON_5, Proj("river of", "River 9")))),
        "Town 012",
    ),
    "range": (And((MILLS, Range("people", 1006, 1018))), "Town 012"),
    "range of many": (And((Proj("guild of", "Guild 3"), Range("people", 1100, 1105))), "Town 101"),
    "most": (Extreme("people", MILLS, True), "Town 019"),
    "least": (Proj("river", Extreme("people", MILLS, False)), "River 5"),
    "count": (Count(Proj("river of", "River 4")), "15"),
    "nested": (Proj("zone", Proj("country", And((MILLS, ON_5)))), "Zone North"),
    "value": (Proj("river", Proj("people of", "1042")), "River 2"),
    "by its own page": (And((MILLS, Proj("people of", "1012"))), "Town 012"),
}


@pytest.mark.parametrize("name", QUERIES)
def test_every_operator_is_solved_with_tools(name, world, toolbox):
    query, answer = QUERIES[name]
    assert evaluate_query(query, world.graph) == {answer}
    episode = Solver(toolbox).solve(task(query, answer))
    assert episode.correct, calls(episode)
    assert Funnel().fault(episode) is None
    assert all(result.ok for result in episode.tool_results)


def test_solver_uses_tools_and_not_the_graph(world):
    blind = tiny()
    blind.__dict__["graph"] = None  # replaces the cached property
    for query, answer in QUERIES.values():
        assert Solver(Toolbox(blind)).solve(task(query, answer)).correct or "1042" in str(query)
        closed = Solver(Toolbox(world, closed_book=True)).solve(task(query, answer))
        assert not closed.correct and len(closed.tool_results) < 12


def test_long_page_is_read_up_to_the_relation(toolbox):
    """Bigland: capital, 150 x country of, zone; 152 facts in three parts, sorted by relation."""
    zone_run = Solver(toolbox).solve(task(Proj("zone", "Bigland"), "Zone North"))
    parts = [urls for tool, urls in calls(zone_run) if tool == "visit"]
    assert parts == [["tiny:Bigland"], ["tiny:Bigland?part=2"], ["tiny:Bigland?part=3"]]
    assert zone_run.correct
    first = Solver(toolbox).solve(task(Proj("capital", "Bigland"), "Town 019"))
    assert len(first.tool_results) == 2  # "capital" sorts before the end of the first part


def test_large_set_is_filtered_by_visiting_candidates(toolbox):
    """The country has 150 towns, 3 of them with a mill: only those three pages are read."""
    large = Proj("country of", Proj("zone of", "Zone North"))
    query = And((large, MILLS, Proj("guild of", "Guild 5"), ON_5))
    episode = Solver(toolbox).solve(task(query, "Town 005"))
    assert episode.correct
    visited = [url for tool, urls in calls(episode) if tool == "visit" for url in urls]
    assert sum("Town" in url for url in visited) <= 3
    one = Solver(toolbox, batch=1).solve(task(*QUERIES["range"]))
    assert one.correct and all(len(urls) == 1 for tool, urls in calls(one))


def test_calls_are_bounded_and_a_task_needs_a_query(toolbox):
    query = And((Proj("guild of", "Guild 3"), Range("people", 1100, 1105)))
    short = Solver(toolbox, max_calls=4).solve(task(query, "Town 101"))
    assert len(short.tool_results) == 4 and short.answer is None
    assert Funnel().fault(short) == ("format", "no answer")
    alone = Solver(toolbox).solve(task(Range("people", 1012, 1012), "Town 012"))
    assert alone.answer is None and not alone.tool_results  # no entity to start from
    with pytest.raises(ValueError, match="t1 has no query"):
        Solver(toolbox).solve(dataclasses.replace(task(query, ""), query=""))
    with pytest.raises(ValueError, match="unknown mistakes .'typo'"):
        Solver(toolbox, mistakes={"typo": 1})


def test_each_mistake_is_made_and_corrected(world):
    query = Proj("river", Extreme("people", And((MILLS, Proj("guild of", "Guild 5"))), False))
    with Sandbox(workers=1) as sandbox, Toolbox(world, sandbox) as tools:
        for kind in MISTAKES:
            clean = Solver(tools).solve(task(query, "River 5"))
            episode = Solver(tools, mistakes={kind: 1.0}).solve(task(query, "River 5"))
            assert episode.correct and len(episode.tool_results) > len(clean.tool_results)
            assert Funnel().fault(episode) is None, kind  # recovered: a good demonstration
            failed = [r for r in episode.tool_results if not r.ok]
            if kind == "python":
                assert [r.error for r in failed] == ["error"] and "NameError" in failed[0].text
            if kind == "arguments":
                assert {r.text for r in failed} == {"Error: query must be a list of strings."}
            if kind == "empty":
                assert [r.text for r in failed] == ["No results."]
        counted = Solver(tools).solve(task(Count(MILLS), "3"))
        assert counted.tool_results[-1].text == "3"  # counted by Python from the observations


def test_output_depends_only_on_the_seed(toolbox):
    def play(seed):
        solver = Solver(toolbox, mistakes=MISTAKES)
        return [
            solver.solve(task(query, answer), seed).messages for query, answer in QUERIES.values()
        ]

    assert play(1) == play(1) != play(2)


def digest():
    """Return a hash of the solver's texts and calls, including mistakes."""
    solver = Solver(Toolbox(tiny()), mistakes=MISTAKES)
    messages = [solver.solve(task(query, answer)).messages for query, answer in QUERIES.values()]
    return hashlib.sha256(repr(messages).encode()).hexdigest()


def test_output_does_not_depend_on_the_hash_seed():
    code = "from tests.test_demonstrations_solver import digest; print(digest())"
    root, environment = Path(__file__).resolve().parents[1], os.environ | {"PYTHONHASHSEED": "77"}
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        env=environment,
        text=True,
        check=True,
        capture_output=True,
    )
    assert run.stdout.strip() == digest()


def test_most_engine_questions_are_solved():
    cldr = load_world("cldr")
    tasks = synthesize_questions(cldr, 60, "solver")
    episodes = [Solver(Toolbox(cldr)).solve(task) for task in tasks]
    assert len(episodes) == 60 and sum(episode.correct for episode in episodes) >= 0.85 * 60
    faults = [Funnel().fault(episode) for episode in episodes if episode.correct]
    too_long = ("bounds", "too long")  # questions with many pages to read
    assert {*faults} <= {None, too_long} and faults.count(too_long) <= 0.05 * 60
    assert not any(episode.answer and not episode.correct for episode in episodes)


def test_retries_restore_the_reward_of_failing_tools():
    """WebSailor-V2 trains in both environments.

    With the same solver, seed and questions, one call in five of the "real" world fails. Retries
    give the reward of the simulated world; tools without retries give clearly less.
    """
    world, clock = load_world("cldr"), FakeClock()
    tasks = synthesize_questions(world, 40, 11)

    def reward(world, policies):
        with Toolbox(world, policies=policies, clock=clock) as toolbox:
            return sum(Solver(toolbox, 40).solve(one).correct for one in tasks) / len(tasks)

    retry = ReliabilityPolicy(attempts=6, breaker_failures=0, deadline_s=1000)
    simulated = reward(world, {})
    real, bare = (
        reward(FaultInjector({"503": 0.1, "cut": 0.1}, seed=3, clock=clock).world(world), policies)
        for policies in ({"search": retry, "visit": retry}, {})
    )
    assert simulated >= 0.95 and abs(real - simulated) <= 0.03
    assert bare <= simulated - 0.3
