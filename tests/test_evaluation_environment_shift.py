"""The realistic environment: each declared difference, changed answers, and a real evaluation.

Run: python -m pytest tests/test_evaluation_environment_shift.py
"""

import json
import math
import shutil
from collections import Counter
from dataclasses import replace

import pytest

from drlib.config import Config
from drlib.config import EvaluationShiftConfig as Shift
from drlib.evaluation.environment_shift import (
    DriftedWorld,
    RealisticEnvironment,
    SimulatedClock,
    shift_tasks,
)
from drlib.evaluation.evaluate import build_realistic
from drlib.questions.chains import Chain, chain_questions, make_search_task
from drlib.rewards.functions import has_env_fault
from drlib.task import Task, is_correct
from drlib.tools import Toolbox
from drlib.training import stages
from drlib.training.launch import build_stage
from drlib.training.run_folder import read_manifest
from drlib.trajectory import load_trajectories
from drlib.worlds import Entity, SmallWorld, load_world
from tests.rl_examples import a_trajectory, changed


@pytest.fixture(scope="module")
def cldr():
    return load_world("tour")


@pytest.fixture(scope="module")
def questions(cldr):
    return chain_questions(cldr, 120, 7)


def chain_world():
    """Return three pages in a row and a second value of each relation."""
    rows = [
        Entity("Bolzano", "city", {"territory": "Italy"}),
        Entity("Italy", "territory", {"currency": "Euro"}),
        Entity("Euro", "currency", {"code": "EUR"}),
        Entity("Lima", "city", {"territory": "Peru"}),
        Entity("Peru", "territory", {"currency": "Sol"}),
        Entity("Sol", "currency", {"code": "PEN"}),
    ]
    return SmallWorld(rows, "six")


def calls(environment, rollouts, queries):
    """Return the results of searches, [rollouts] x [queries]."""
    tools = Toolbox(environment.world, policies=environment.policies, clock=environment.clock)
    with tools as toolbox:
        worlds = [environment.rollout_world(f"rollout {n}") for n in range(rollouts)]
        return [
            [toolbox.call("search", {"query": [query]}, world=world) for query in queries]
            for world in worlds
        ]


def test_missing_pages_are_gone_and_as_many_as_declared(cldr):
    world = DriftedWorld(cldr, Shift(missing_share=0.1, seed=3))
    assert len(world.missing) == round(0.1 * len(cldr)) == len(cldr) - len(world)
    for title in sorted(world.missing)[:20]:
        assert title not in [hit.title for hit in world.search(title, 10)]
        with pytest.raises(KeyError, match="no page"):
            world.page(title)
    more = DriftedWorld(cldr, Shift(missing_share=0.2, seed=3))
    assert world.missing < more.missing  # a larger share includes the smaller one
    assert world.missing != DriftedWorld(cldr, Shift(missing_share=0.1, seed=4)).missing
    assert not DriftedWorld(cldr, Shift(changed_share=0.1)).missing


def test_changed_pages_state_another_value_of_the_same_relation(cldr):
    world = DriftedWorld(cldr, Shift(changed_share=0.1, missing_share=0.05, seed=3))
    titles = [title for title, _ in world.changed]
    assert len({*titles}) == len(titles) == round(0.1 * len(cldr))
    assert not {*titles} & world.missing
    for title, relation in world.changed:
        before, after = cldr.entities[title], world.entities[title]
        value = after.facts[relation]
        assert value not in (before.facts[relation], title)
        assert any(value == e.facts.get(relation) for e in cldr.entities.values())
        assert {**after.facts, relation: before.facts[relation]} == before.facts
        assert f"{relation} is " in world.page(title).text and value in world.page(title).text
        assert world.page(title).text != cldr.page(title).text
    others = world.entities.keys() - {*titles}
    assert all(world.entities[title] is cldr.entities[title] for title in others)


def test_a_share_that_the_world_cannot_meet_is_refused():
    lonely = SmallWorld([Entity("A", "x", {"r": "1"}), Entity("B", "x", {"r": "1"})])
    with pytest.raises(ValueError, match="changed_share=0.5 is 1 pages, but only 0"):
        DriftedWorld(lonely, Shift(changed_share=0.5))


def test_first_position_follows_plackett_and_luce(cldr):
    """The rank r comes first with a probability proportional to r^(-1 / noise)."""
    noise, n = 0.5, 400
    world = DriftedWorld(cldr, Shift(ranking_noise=noise))
    queries = [f"currency language {number}" for number in range(n)]  # the last word matches none
    ranks = []
    for query in queries:
        before = [hit.title for hit in cldr.search(query, 10)]
        after = [hit.title for hit in world.search(query, 10)]
        assert sorted(before) == sorted(after) and len(before) == 10
        assert [h.title for h in world.search(query, 2)] == after[:2]
        ranks.append(before.index(after[0]) + 1)
    weights = [rank ** (-1 / noise) for rank in range(1, 11)]
    for rank in (1, 2, 3):
        share = weights[rank - 1] / sum(weights)
        spread = math.sqrt(share * (1 - share) / n)
        assert abs(ranks.count(rank) / n - share) < 4 * spread, rank
    again = DriftedWorld(cldr, Shift(ranking_noise=noise))
    assert [h.url for h in again.search("Peru", 5)] == [h.url for h in world.search("peru", 5)]
    other = DriftedWorld(cldr, Shift(ranking_noise=noise, seed=1))
    assert any(world.search(q, 1) != other.search(q, 1) for q in queries[:20])
    usual = DriftedWorld(cldr, Shift(fault_share=0.5))
    assert all(usual.search(q, 3) == cldr.search(q, 3) for q in queries[:20])


def test_answers_are_derived_again_or_the_question_is_excluded():
    """By hand: the currency of Italy changes to Sol, so the code of Bolzano's currency is PEN."""
    world = chain_world()
    chain = Chain("Bolzano", ("territory", "currency", "code"), "EUR")
    task = replace(make_search_task(chain, world, 0), aliases=("Euro",))
    other = make_search_task(Chain("Lima", ("territory", "currency"), "Sol"), world, 0)
    drifted = DriftedWorld(world, Shift(ranking_noise=0.1))
    italy = Entity("Italy", "territory", {"currency": "Sol"})
    drifted.entities = {**world.entities, "Italy": italy}
    found = shift_tasks([task, other], drifted, results=1)
    (moved, kept), key = found.tasks, task.id
    assert (moved.id, moved.question, moved.answer) == (key, task.question, "PEN")
    assert moved.entities == ("Italy", "Sol", "PEN") and moved.world == drifted.version
    assert is_correct("PEN", moved) and not is_correct("EUR", moved)
    assert not is_correct("Euro", moved)  # an alias of the old answer
    assert kept.answer == "Sol" and found.changed == {key} and not found.excluded
    # Italy is missing: no page leads from Bolzano to an answer
    drifted.entities = {k: e for k, e in world.entities.items() if k != "Italy"}
    found = shift_tasks([task, other], drifted, results=1)
    assert found.excluded == {key: "unanswerable"} and [t.id for t in found.tasks] == [other.id]
    assert found.summary() == {"asked": 1, "changed": 0, "unanswerable": 1, "shortcut": 0}
    # the first page shows the answer of the third
    bolzano = Entity("Bolzano", "city", {"territory": "Italy", "former code": "PEN"})
    drifted.entities = {**world.entities, "Bolzano": bolzano, "Italy": italy}
    found = shift_tasks([task, other], drifted, results=1)
    assert found.excluded == {key: "shortcut"} and not found.changed
    with pytest.raises(ValueError, match="is no chain of hops"):
        shift_tasks([Task("t", "What?", "1", "python", "python")], drifted, 1)
    drifted.entities = {}
    with pytest.raises(ValueError, match="leaves no question"):
        shift_tasks([task], drifted, 1)


def test_every_question_has_the_answer_of_the_drifted_pages(cldr, questions):
    shift = Shift(changed_share=0.2, missing_share=0.1, ranking_noise=0.5, seed=2)
    environment = RealisticEnvironment(questions, cldr, shift)
    found, asked = environment.questions, {task.id: task for task in questions}
    assert len(found.tasks) + len(found.excluded) == len(questions)
    assert found.changed and {*found.excluded.values()} == {"unanswerable", "shortcut"}
    for task in found.tasks:
        title = task.start
        for relation in task.relations:  # read page by page, as a policy does
            text = environment.world.page(title).text
            title = environment.world.entities[title].facts[relation]
            assert title in text
        assert task.answer == title and (title != asked[task.id].answer) == (
            task.id in found.changed
        )
    for task_id, reason in found.excluded.items():
        task = asked[task_id]
        path = environment.world.follow(task.start, task.relations)
        assert (path is None) == (reason == "unanswerable")


def test_calls_fail_at_the_declared_rate_and_are_judged(cldr):
    """A tenth of 1,200 calls fail; a timeout has a probability of exp(-15 s / 5 s) otherwise."""
    titles = ["Norway", "Peru", "Chad", "Gabon"]
    shift = Shift(fault_share=0.1, latency_s=5.0, seed=1)
    found = calls(RealisticEnvironment([norway(cldr)], cldr, shift), 300, titles)
    results = [result for some in found for result in some]
    errors = Counter(result.error for result in results)
    n = len(results)
    faults, timeouts = errors["server"] + errors["connection"], errors["timeout"]
    late = 0.9 * math.exp(-3)
    assert {*errors} == {"", "server", "connection", "timeout"}
    assert abs(faults - 0.1 * n) < 4 * math.sqrt(0.1 * 0.9 * n)
    assert abs(timeouts - late * n) < 4 * math.sqrt(late * (1 - late) * n)
    failed = [result for result in results if result.error]
    assert all(result.text == "Error: this tool is unavailable now." for result in failed)
    assert not any(result.env_fault or result.cache_hit for result in results)
    rollout = changed(a_trajectory(), tool_results=failed[:1])
    assert not has_env_fault(rollout)  # part of the environment: judged, not repeated
    seconds = [r.latency_s for r in results if not r.error]
    assert all(0 <= s < 15 for s in seconds)
    # mean of an exponential of 5 s below 15 s: 5 - 15 / (exp(3) - 1)
    assert sum(seconds) / len(seconds) == pytest.approx(5 - 15 / (math.exp(3) - 1), abs=0.5)
    assert all(r.latency_s == pytest.approx(15) for r in results if r.error == "timeout")


def norway(world):
    return make_search_task(Chain("Norway", ("language",), ""), world, 0)


def test_faults_depend_on_seed_and_rollout_only(cldr):
    def errors(seed, order):
        shift = Shift(fault_share=0.3, latency_s=5.0, seed=seed)
        environment = RealisticEnvironment([norway(cldr)], cldr, shift)
        tools = Toolbox(environment.world, policies=environment.policies, clock=environment.clock)
        with tools as toolbox:
            waiting = {
                n: toolbox.submit(
                    "search",
                    {"query": ["Norway", "Peru", "Chad"]},
                    world=environment.rollout_world(str(n)),
                )
                for n in order
            }
            results = {n: future.result() for n, future in waiting.items()}
        return {n: (r.error, r.text, round(r.latency_s, 9)) for n, r in sorted(results.items())}

    first = errors(0, range(60))
    assert first == errors(0, reversed(range(60)))
    assert first != errors(1, range(60))
    assert len({*first.values()}) > 10  # equal calls of other rollouts have faults of their own


def test_a_repeated_call_may_succeed(cldr):
    shift = Shift(fault_share=0.5)
    found = calls(RealisticEnvironment([norway(cldr)], cldr, shift), 200, ["Peru"] * 2)
    again = [second.error == "" for first, second in found if first.error]
    assert 0.3 < sum(again) / len(again) < 0.7
    assert all(second.ok and second.cache_hit for first, second in found if not first.error)


def test_rollouts_have_worlds_of_their_own(cldr, questions):
    environment = RealisticEnvironment(questions[:3], cldr, Shift(fault_share=0.2))
    tasks, worlds = environment.expand(environment.questions.tasks, 2, "T=1.0")
    ids = [task.id for task in environment.questions.tasks]
    assert [task.id for task in tasks] == [task_id for task_id in ids for _ in range(2)]
    assert len({task.world for task in tasks}) == len(worlds) == len(tasks)
    assert all(worlds[task.world].version == task.world for task in tasks)
    again, _ = environment.expand(environment.questions.tasks[1:], 2, "T=1.0")
    assert [task.world for task in again] == [task.world for task in tasks[2:]]


def test_clock_costs_no_time_and_threads_do_not_share_it():
    clock = SimulatedClock()
    clock.sleep(2.5)
    clock.sleep(1.0)
    with Toolbox(chain_world(), clock=clock) as toolbox:
        assert toolbox.submit_work(clock.monotonic).result() == 0.0
    assert clock.monotonic() == 3.5


def test_is_active():
    assert not Shift(seed=7).is_active
    assert all(
        Shift(**{name: 0.5}).is_active
        for name in ("fault_share", "latency_s", "changed_share", "missing_share", "ranking_noise")
    )
    restricted = Config.load("ci", evaluation__shift__seed=7).restrict({"evaluate"})
    assert not restricted.evaluation.shift.is_active


# ------------------------------------------------------------------------ the stage, tiny policy


SHIFT = {
    "evaluation.shift.fault_share": 0.2,
    "evaluation.shift.latency_s": 5.0,
    "evaluation.shift.changed_share": 0.1,
    "evaluation.shift.missing_share": 0.1,
    "evaluation.shift.ranking_noise": 0.5,
}


def run(folder, processes=1):
    settings = {"rl.steps": 1, "rl.questions": 2, "evaluation.questions": 24, **SHIFT}
    config = Config.load("ci", processes=processes, **settings)
    build_stage("evaluate_rl", config, runs=folder)
    return stages.folder("evaluate_rl", config, folder)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    return run(tmp_path_factory.mktemp("runs"))


def outcomes(path, kind):
    rows = [json.loads(line) for line in (path / "outcomes.jsonl").read_text().splitlines()]
    return {row["task"]: row for row in rows if row["kind"] == kind}


def test_a_policy_is_evaluated_in_both_environments(evaluated):
    search, realistic = outcomes(evaluated, "search"), outcomes(evaluated, "realistic")
    counts = read_manifest(evaluated)["metrics"]["realistic"]
    assert len(search) == len(outcomes(evaluated, "python")) == 24
    assert {*realistic} < {*search} and len(realistic) == counts["asked"]
    assert sum(counts.values()) - counts["changed"] == len(search)
    rows = json.loads((evaluated / "rows.json").read_text())
    assert sum(r["n"] for r in rows if (r["kind"], r["decoding"]) == ("realistic", "sample")) == (
        2 * len(realistic)
    )
    failed = sum(row["errors"] for row in realistic.values())
    assert failed > sum(search[task]["errors"] for task in realistic)
    results = [
        result
        for trajectory in load_trajectories(evaluated / "sampled_realistic.parquet")
        for result in trajectory.tool_results
        if result.tool == "search"
    ]
    assert any(result.error in ("server", "connection") for result in results)
    assert any(result.latency_s > 1 for result in results)
    assert not any(result.env_fault for result in results)


def test_the_evaluation_does_not_depend_on_the_number_of_processes(evaluated, tmp_path):
    policy = shutil.ignore_patterns("evaluate_*")  # the same policy, evaluated again
    shutil.copytree(evaluated.parents[1], tmp_path / "runs", ignore=policy)
    again = run(tmp_path / "runs", processes=2)
    assert read_manifest(again)["processes"] == 2
    for kind in ("search", "realistic"):
        assert outcomes(again, kind) == outcomes(evaluated, kind)


def test_settings_that_exclude_each_other_are_refused(cldr, questions):
    config = Config.load("ci", **SHIFT)
    assert build_realistic(questions, cldr, config).questions.tasks
    with pytest.raises(ValueError, match="evaluation.shift changes the world"):
        build_realistic(questions, cldr, config.derive(rl__callbacks__world_change=1))
    with pytest.raises(ValueError, match="it excludes evaluation.world=none"):
        build_realistic([], None, config)
    assert build_realistic(questions, cldr, Config.load("ci")) is None
