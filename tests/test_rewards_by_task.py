"""Rewards as data and threshold schedules: tasks that name their verifier, and boundaries by hand.

Run: python -m pytest tests/test_rewards_by_task.py
"""

import json
import math
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from drlib import register
from drlib.rewards.functions import REWARDS, check_reward, make_reward
from drlib.rewards.functions import _example as example
from drlib.rewards.judges import JUDGES, set_f1
from drlib.task import Task
from drlib.training.distributed import Ranks
from drlib.training.rollouts import judge_rollout, sample_rollouts, summarise_rollouts
from tests.loop_examples import cold_start, settings

start = cold_start
TASK = Task("t-7", "What is the capital of Norway?", "Oslo", "search", "w")
V_TRIUNE = [[0.1, 0.85], [0.25, 0.95], [1, 0.99]]


@pytest.fixture(autouse=True)
def registry():
    before = dict(REWARDS)
    yield
    for name in set(REWARDS) - set(before):
        del REWARDS[name]


def verified(reward, **arguments):
    return replace(TASK, verifier=json.dumps({"reward": reward, "arguments": arguments}))


def at(progress, answer="Oslo"):
    trajectory = example(answer)
    trajectory.metadata["progress"] = progress
    return trajectory


# ---------------------------------------------------------------- by task


def test_each_task_is_judged_by_its_own_verifier():
    reward = make_reward("by_task")
    cases = [
        (TASK, "Oslo", 1.0, {"search/exact_match": 1.0}),
        (verified("inverse"), "Oslo", 0.0, {"search/exact_match": 1.0, "search/inverse": 0.0}),
        (verified("judged", judge="squad"), "the Oslo", 1.0, {"search/squad", "search/judged"}),
        (verified("judged", judge="squad", graded=True), "Oslo fjord", 2 / 3, None),
        (replace(verified("format"), kind="swe"), "Bergen", 1.0, {"swe/format": 1.0}),
    ]
    for task, answer, expected, parts in cases:
        found = reward(example(answer), task)
        assert found.value == pytest.approx(expected)
        assert parts is None or found.parts.keys() == {*parts}


def test_default_reward_of_tasks_without_a_verifier():
    reward = make_reward("by_task", default="judged", arguments={"judge": "squad"})
    assert reward(example("the Oslo"), TASK).value == 1.0


@pytest.mark.parametrize(
    ("verifier", "message"),
    [
        ('{"reward": "exact_mach"}', "unknown reward 'exact_mach': did you mean 'exact_match'"),
        ('{"reward": "weighted"}', "weights"),  # a missing argument
        ('{"reward": "judged", "arguments": {"judge": "sqad"}}', "squad"),
        ('{"reward": "judged", "arguments": {"x": 1}}', "its arguments: judge"),
        ('{"reward": "by_task"}', "by_task itself"),
        ('{"rewards": "format"}', "a verifier is"),
        ('{"reward": "format", "weight": 1}', "a verifier is"),
        ("exact_match", "JSONDecodeError"),
        ('["exact_match"]', "a verifier is"),
        ('{"reward": "nan"}', "nan is nan for 0-0-0"),
        ('{"reward": "raising"}', "KeyError: 'gold'"),
    ],
)
def test_errors_name_the_task_and_its_verifier(verifier, message):
    def raising(trajectory, task):
        return {}["gold"]

    register.reward("nan", lambda trajectory, task: math.nan)
    register.reward("raising", raising)
    task = replace(TASK, verifier=verifier)
    with pytest.raises(ValueError, match="(?s)task t-7, verifier .*" + message):
        make_reward("by_task")(example("Oslo"), task)


def test_nan_names_the_task_without_by_task_too():
    register.reward("nan", lambda trajectory, task: math.nan)
    with pytest.raises(ValueError, match="of task t-7"):
        make_reward("nan")(example("Oslo"), TASK)


def test_a_faulty_environment_is_not_judged_by_any_verifier():
    failed = example("Oslo")
    failed.tool_results[0].env_fault = True
    for task in (TASK, verified("judged"), verified("format")):
        found = make_reward("by_task")(failed, task)
        assert found.value is None and not found.parts


def test_verifiers_are_made_once():
    made = []

    def counted(at=0):
        made.append(at)
        return lambda trajectory, task: float(at)

    register.reward("counted", counted)
    reward = make_reward("by_task")
    for number in (1, 2, 1, 2, 1):
        assert reward(example("Oslo"), verified("counted", at=number)).value == number
    assert made == [1, 2]


def test_metrics_of_each_kind_equal_a_group_by():
    reward, values, rollouts = make_reward("by_task"), defaultdict(list), []
    rng = np.random.default_rng(0)
    for number in range(60):
        kind = ["search", "swe", "gym"][number % 3]
        name = ["exact_match", "format"][number % 2]
        task = replace(verified(name), kind=kind)
        rollout = example(str(rng.choice(["Oslo", "Bergen"])))
        rollout.metadata["source"] = "real"
        rollouts.append(judge_rollout(rollout, task, reward))
        values[f"rewards/{kind}/{name}/mean"].append(rollouts[-1].reward)
    row, _ = summarise_rollouts(rollouts, [], Ranks())
    found = {name: value for name, value in row.items() if name.startswith("rewards/")}
    assert found == {name: pytest.approx(np.mean(some)) for name, some in values.items()}


# ---------------------------------------------------------------- thresholds


@pytest.mark.parametrize(
    ("progress", "threshold"),
    [
        (0.0, 0.85),
        (0.1, 0.85),
        (0.1001, 0.95),
        (0.25, 0.95),
        (0.2501, 0.99),
        (0.96, 0.99),
        (1.0, 0.99),
    ],
)
def test_boundaries_of_v_triunes_schedule(progress, threshold):
    for score in (0.5, 0.84, 0.85, 0.94, 0.95, 0.98, 0.99, 1.0):
        register.reward("graded", lambda t, task, score=score: score, replace=True)
        reward = make_reward("threshold", reward="graded", schedule=V_TRIUNE)
        found = reward(at(progress), TASK)
        assert found.value == (score if score >= threshold else 0.0)
        assert found.parts == {"graded": score, "threshold": threshold}


def test_threshold_of_f1_and_of_sets():
    words = {"reward": "judged", "arguments": {"judged": {"judge": "squad", "graded": True}}}
    reward = make_reward("threshold", schedule=[[0.5, 0.6], [1, 0.7]], **words)
    assert reward(at(0.5, "Oslo fjord"), TASK).value == pytest.approx(2 / 3)
    assert reward(at(0.51, "Oslo fjord"), TASK).value == 0.0
    assert reward(example("Oslo fjord"), TASK).value == 0.0  # outside training: the last threshold
    assert reward(example("Oslo"), TASK).value == 1.0
    task = replace(TASK, answer="Oslo; Bergen; Hamar")
    items = {"judged": {"judge": "sets", "graded": True}}
    reward = make_reward("threshold", schedule=[[1, 0.5]], arguments=items)
    # one of two given, of three wanted: 2 / 5; two of two: 4 / 5
    assert reward(example("Oslo, Rome"), task).value == 0.0
    assert reward(example("Hamar and Oslo"), task).value == pytest.approx(0.8)


def test_a_rollout_without_reward_has_none_above_a_threshold():
    register.reward("none", lambda trajectory, task: None)
    reward = make_reward("threshold", reward="none", schedule=[[1, 0.5]])
    assert reward(example("Oslo"), TASK).value is None


@pytest.mark.parametrize(
    "schedule",
    [[], [[0.5, 0.9]], [[0.5, 0.1], [0.5, 0.2], [1, 0.3]], [[0.0, 0.1], [1, 0.2]], [[1.5, 0.1]]],
)
def test_schedules_that_do_not_rise_to_1(schedule):
    with pytest.raises(ValueError, match="must rise"):
        make_reward("threshold", schedule=schedule)


def test_rollouts_of_training_carry_the_share_of_steps_done(start, tmp_path):
    """Both trainers sample with this function; the share depends on the step alone."""
    config = settings(
        rl__questions=2,
        rl__group=2,
        rl__reward__name="threshold",
        rl__reward__arguments='{"reward": "format", "schedule": [[0.5, 0.3], [1, 0.9]]}',
    )
    trainer = start.step(config, tmp_path)
    tasks, worlds = trainer.scheduler.draw(0, trainer.curriculum)
    for step, share, threshold in ((0, 0.0, 0.3), (2, 0.5, 0.3), (3, 0.75, 0.9)):
        made = sample_rollouts(trainer.agent, tasks, worlds, config, step)
        assert {t.metadata["progress"] for t in made} == {share}
        assert {t.reward_parts["threshold"] for t in made} == {threshold}


# ---------------------------------------------------------------- sets


@pytest.mark.parametrize(
    ("answer", "expected", "f1"),
    [
        ("Oslo, Bergen", "Bergen and Oslo", 1.0),
        ("Oslo", "Bergen and Oslo", 2 / 3),
        ("Oslo, Oslo", "Bergen and Oslo", 1 / 2),
        ("Oslo; Rome; Bergen", "Oslo; Bergen", 4 / 5),
        ("Rome", "Oslo; Bergen", 0.0),
        (",", "Oslo", 0.0),
        ("12.0", "12", 1.0),
    ],
)
def test_f1_of_items(answer, expected, f1):
    assert set_f1(answer, expected) == pytest.approx(f1)


def test_judge_of_sets():
    judge = JUDGES["sets"]()
    assert judge("?", "Final answer: Oslo, Bergen", ["Bergen, Oslo"]).verdict == "correct"
    found = judge("?", "Oslo", ["Bergen, Oslo", "Oslo, Hamar, Moss"])
    assert found.verdict == "incorrect" and found.score == pytest.approx(2 / 3)
    assert judge("?", None, ["Oslo"]).verdict == "not_attempted"


def test_check_before_a_run():
    check_reward("by_task")
    check_reward("threshold", reward="exact_match", schedule=V_TRIUNE)
