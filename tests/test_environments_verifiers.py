"""Tasksets of verifiers as environments; skipped without it (run `make test-adapters`).

Run: python -m pytest tests/test_environments_verifiers.py
"""

import sys
from pathlib import Path

import pytest

from drlib.chat.tool_calls import render_answer, render_call
from drlib.environments import load_environment
from drlib.environments.environment import is_test
from drlib.trajectory import Termination
from tests.test_environments import roll

pytest.importorskip("verifiers", reason="run `make test-adapters`: it installs verifiers")
NAME = "verifiers:verifiers_counting:largest=1.5"


@pytest.fixture(scope="module")
def counting():
    sys.path.insert(0, str(Path(__file__).parent))  # tasksets are top-level modules
    yield load_environment(NAME)
    sys.path.pop(0)


def play(environment, task, *turns):
    """Return the rollout of a policy with these turns: numbers to add, or the answer."""
    written = [
        render_call("add", {"amount": turn}) if isinstance(turn, int) else render_answer(turn)
        for turn in turns
    ]

    def say(messages):
        said = sum(message["role"] == "assistant" for message in messages)
        return f"<think>x</think>{written[said]}"

    return roll(environment, [task], say)[0][0]


def test_a_taskset_is_played_and_scored_by_its_own_rewards(counting):
    task = counting.tasks(5, 0)[0]
    goal = int(task.question.split()[-1].rstrip("."))
    (tool,) = counting.tools(task)
    assert tool.name == "add" and tool.schema["parameters"]["required"] == ["amount"]
    rollout = play(counting, task, goal + 1, -1, "done")
    assert [r.text for r in rollout.tool_results] == [f"{goal + 1} of {goal}", f"{goal} of {goal}"]
    assert rollout.metadata["verification"]["score"] == 1.0  # (1 + 0.5) / 1.5
    scores = [
        play(counting, task, *turns).metadata["verification"]["score"]
        for turns in ((goal, "ready"), (goal + 1, "done"), (goal + 1, "ready"))
    ]
    assert scores == pytest.approx([2 / 3, 1 / 3, 0.0])
    assert play(counting, task, goal, "done").metadata["verification"]["score"] == 1.0  # new state
    with counting.reset(task) as episode:
        assert episode.verify(None) == 0.0


def test_errors_of_tools_are_shown_and_errors_of_rewards_are_faults(counting):
    task = counting.tasks(5, 0)[1]
    rollout = play(counting, task, 13, "done")
    assert [r.ok for r in rollout.tool_results] == [False]
    assert "unlucky" in rollout.tool_results[0].text
    rollout = play(counting, task, "many", "done")
    assert rollout.metadata["verification"]["score"] < 1
    rollout = play(counting, task, 666, "done")
    assert rollout.termination is Termination.ENV_FAULT
    assert "verification" not in rollout.metadata and "judge is down" in rollout.metadata["fault"]
    unscaled = load_environment("verifiers:verifiers_counting")
    goal = int(task.question.split()[-1].rstrip("."))
    with unscaled.reset(task) as episode:
        episode.call("add", {"amount": goal})
        with pytest.raises(ValueError, match="sum to 1.5: set largest"):
            episode.verify("done")


def test_settings_splits_and_missing_features(counting):
    small = load_environment("verifiers:verifiers_counting:size=15")
    questions = {task.question for task in small.tasks(10, 0)}
    assert len(questions) == 10 and not any(map(is_test, questions))
    for wrong in ("no_such_taskset", "verifiers_counting:sizes=3", "verifiers_counting:size=x"):
        with pytest.raises(ValueError, match=f"verifiers:{wrong}"):
            load_environment(f"verifiers:{wrong}")
    with pytest.raises(ValueError, match="needs its own environment"):
        load_environment("verifiers:openenv:base_url=http://127.0.0.1:9")
