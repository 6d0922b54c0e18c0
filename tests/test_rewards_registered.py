"""Registered rewards: functions, factories, their settings, and errors before a run.

Run: python -m pytest tests/test_rewards_registered.py
"""

import json
import math

import numpy as np
import pytest
import torch

from drlib import register
from drlib.config import Config
from drlib.registry import load_plugins
from drlib.rewards.functions import REWARDS, RewardResult, check_reward, make_reward
from drlib.rewards.functions import _example as example
from drlib.task import Task
from drlib.training import launch, stages
from drlib.training.distributed import Ranks
from drlib.training.rollouts import build_reward, summarise_rollouts
from drlib.trajectory import with_reward

TASK = Task("t", "?", "Oslo", "search", "w")


@pytest.fixture(autouse=True)
def registry():
    before = dict(REWARDS)
    yield
    for name in set(REWARDS) - set(before):
        del REWARDS[name]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.5, 0.5), (1, 1.0), (True, 1.0), (np.float32(0.25), 0.25), (torch.tensor(2.0), 2.0)],
)
def test_function_that_returns_a_number_is_a_reward(value, expected):
    register.reward("mine", lambda trajectory, task: value)
    result = make_reward("mine")(example("Oslo"), TASK)
    assert result == RewardResult(expected, {"mine": expected})


def test_function_gets_trajectory_task_and_settings():
    @register.reward("short")
    def short(trajectory, task, most=1.0, *, scale=2.0):
        return min(most, scale * (trajectory.answer == task.answer))

    assert make_reward("short")(example("Oslo"), TASK).value == 1.0
    assert make_reward("short", most=5.0)(example("Oslo"), TASK).value == 2.0
    assert make_reward("short", most=5.0, scale=3.0)(example("Oslo"), TASK).value == 3.0
    assert make_reward("short")(example("Bergen"), TASK).value == 0.0


def test_environment_fault_is_not_judged():
    register.reward("mine", lambda trajectory, task: 1.0)
    failed = example("Oslo")
    failed.tool_results[0].env_fault = True
    assert make_reward("mine")(failed, TASK).value is None
    register.reward("none", lambda trajectory, task: None)
    assert make_reward("none")(example("Oslo"), TASK) == RewardResult(None)


@pytest.mark.parametrize(
    ("value", "error", "word"),
    [
        ("1", TypeError, "reward 'mine' returned str"),
        ((1.0, {}), TypeError, "reward 'mine' returned tuple"),
        (math.nan, ValueError, "mine is nan for 0-0-0"),
        (math.inf, ValueError, "mine is inf"),
        (RewardResult(1.0, {"term": math.nan}), ValueError, "term is nan"),
    ],
)
def test_other_results_are_errors_that_name_the_reward(value, error, word):
    register.reward("mine", lambda trajectory, task: value)
    with pytest.raises(error, match=word):
        make_reward("mine")(example("Oslo"), TASK)


def test_unknown_settings_are_named():
    register.reward("mine", lambda trajectory, task, price=0.1: price)
    register.reward("made", lambda price=0.1: lambda trajectory, task: price)
    for name in ("mine", "made"):
        with pytest.raises(ValueError, match=f"reward '{name}'.*prize.*its arguments: price"):
            make_reward(name, prize=1)
    register.reward("not_made", lambda price=0.1: price)
    with pytest.raises(ValueError, match="returned 0.1 instead of a function"):
        make_reward("not_made")


def test_check_names_the_reward_and_keeps_its_message():
    def broken(trajectory, task):
        return trajectory.answers

    register.reward("broken", broken)
    line = broken.__code__.co_firstlineno + 1
    words = f"reward 'broken' .*registered.py, line {line}.*AttributeError.*no attribute 'answers'"
    with pytest.raises(ValueError, match=words):
        check_reward("broken")
    for name in ("exact_match", "format_and_answer", "gain_beyond_rag", "random"):
        check_reward(name)


@pytest.mark.parametrize("text", ["{", "[1]", "3", '"price"', "price=2"])
def test_invalid_arguments_of_the_configuration(text):
    with pytest.raises(ValueError, match=r"rl\.reward\.arguments="):
        build_reward(Config.load("ci", rl__reward__arguments=text))


def test_arguments_of_the_configuration():
    config = Config.load(
        "ci", rl__reward__name="format_and_answer", rl__reward__arguments='{"weight": 1.0}'
    )
    assert build_reward(config)(example("Bergen"), TASK).value == 1.0
    control = stages.stage_config("rl_random_reward", config)
    assert set(build_reward(control)(example("Oslo"), TASK).parts) == {"random"}


PLUGIN = """
from drlib import register

@register.reward("plugin_reward")
def plugin_reward(trajectory, task, scale=1.0):
    if scale > 1:
        raise KeyError("no such field")
    return scale
"""


def test_command_fails_before_any_process_starts(tmp_path, monkeypatch, capsys):
    from drlib.cli.train import main

    (tmp_path / "my_plugin_rewards.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(launch, "launch_stage", lambda *_: pytest.fail("a stage was started"))
    monkeypatch.setattr("drlib.cli.train.launch_stage", launch.launch_stage)
    arguments = ["--profile=ci", f"--runs={tmp_path}", "--plugins=my_plugin_rewards"]
    arguments.append("--rl.reward.name=plugin_reward")
    assert main(["rl", *arguments, '--rl.reward.arguments={"scale": 2}']) == 1
    assert "my_plugin_rewards.py, line 7" in capsys.readouterr().err.splitlines()[-1]
    assert main(["rl", *arguments, '--rl.reward.arguments={"size": 2}']) == 1
    assert "its arguments: scale" in capsys.readouterr().err.splitlines()[-1]
    load_plugins("my_plugin_rewards")
    with pytest.raises(ValueError, match="no such field"):
        launch.build_stage(
            "rl",
            Config.load(
                "ci",
                rl__reward__name="plugin_reward",
                rl__reward__arguments=json.dumps({"scale": 2}),
            ),
            runs=tmp_path,
        )


def test_metrics_of_rewards_by_hand():
    def rollout(group, reward, **parts):
        one = example("Oslo")
        one.metadata |= {"skill": "find", "source": "real"}
        one.group_id = group
        return with_reward(one, reward, {"correct": 1.0, **parts})

    rollouts = [
        rollout("a", 1.0, right=1.0, paid=0.0),
        rollout("a", 0.0, right=0.0, paid=0.0),
        rollout("b", 0.5, right=1.0, paid=0.5),
        rollout("b", 0.5, right=1.0, paid=0.5),
        rollout("c", None),
    ]
    row, _ = summarise_rollouts(rollouts, rollouts, Ranks())
    assert row["reward"] == 0.5 and row["reward_std"] == 0.25
    assert row["rewards/right/mean"] == 0.75 and row["rewards/paid/mean"] == 0.25
    assert row["zero_variance"] == pytest.approx(2 / 3) and row["live_groups"] == pytest.approx(
        1 / 3
    )
    assert "rewards/correct/mean" not in row
