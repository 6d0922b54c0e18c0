"""Rubrics: criteria by hand, selection within a group, and a generative judge on a real server.

Run: python -m pytest tests/test_rewards_rubrics.py
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from drlib.config import Config
from drlib.rewards.functions import _example as example
from drlib.rewards.functions import check_reward, make_reward
from drlib.rewards.rubrics import select_rubrics, write_rubrics
from drlib.task import Task
from drlib.training.rollouts import adjust_rewards, judge_rollout
from drlib.trajectory import ToolResult

TASK = Task("t", "?", "Oslo", "search", "w", entities=("Norway", "Oslo"))


def rollout(answer="Oslo", thought="It is Norway.", results=("Oslo is in Norway.",), **changes):
    trajectory = example(answer)
    trajectory.messages = [{"role": "assistant", "content": f"<think>{thought}</think>"}]
    trajectory.tool_results = [
        replace(ToolResult("search", {"query": [i]}, text, True, ""), **changes)
        for i, text in enumerate(results)
    ]
    return trajectory


def test_every_criterion_has_a_text():
    assert [rubric.name for rubric in write_rubrics(TASK)] == [
        "entity_1",
        "searches",
        "supported",
        "no_error",
        "no_repeat",
    ]
    assert write_rubrics(TASK)[0].text == "The thoughts name Norway."


@pytest.mark.parametrize(
    ("trajectory", "missed"),
    [
        (rollout(), set()),
        (rollout(thought="It is Sweden."), {"entity_1"}),
        (rollout(results=()), {"searches", "supported"}),
        (rollout("Bergen"), {"supported"}),  # a wrong answer with a source would be supported
        (rollout(None), {"supported"}),
        (rollout(ok=False), {"searches", "no_error"}),
        (rollout(arguments={}, results=("Oslo", "Oslo")), {"no_repeat"}),
    ],
)
def test_criteria(trajectory, missed):
    found = make_reward("rubrics")(trajectory, TASK)
    assert {name for name, met in found.parts.items() if not met} == {f"rubric/{m}" for m in missed}
    assert found.value == pytest.approx(1 - len(missed) / 5)


def test_group_drops_criteria_without_discrimination():
    """All rollouts search and none repeats a call: two criteria remain of five."""
    config = Config.load("ci", rl__reward__name="rubrics")
    failed = rollout()
    failed.tool_results[0].env_fault = True
    group = [rollout(), rollout(thought=""), rollout("Bergen", thought=""), failed]
    judged = [judge_rollout(t, TASK, make_reward("rubrics")) for t in group]
    assert [t.reward for t in judged] == [1.0, pytest.approx(4 / 5), pytest.approx(3 / 5), None]
    found = adjust_rewards(judged, TASK, config, torch.Generator())
    assert [t.reward for t in found] == [1.0, 0.5, 0.0, None]
    same = adjust_rewards([judged[1], judged[1]], TASK, config, torch.Generator())
    assert same[0].reward == same[1].reward  # no criterion discriminates: no variance
    assert adjust_rewards([judged[3]], TASK, config, torch.Generator())[0].reward is None


def test_the_largest_deviations_are_kept():
    rng = np.random.default_rng(0)
    scores_NR = (rng.random((16, 9)) < np.linspace(0.02, 0.9, 9)).astype(float)
    kept = select_rubrics(scores_NR, 3)
    spread = scores_NR.std(axis=0)
    assert sorted(spread[kept]) == sorted(spread)[-3:] and len(kept) == 3
    assert len(select_rubrics(np.ones((4, 3)))) == 0


def test_check_before_a_run():
    check_reward("rubrics")
    check_reward("gated", weights={"rubrics": 1})


# ---------------------------------------------------------------- judges with arguments


def test_arguments_of_a_judge():
    closed = make_reward("judged", judge="squad", graded=True)
    opened = make_reward("judged", judge="squad", graded=True, arguments={"closed": False})
    task = replace(TASK, answer="yes")
    assert closed(example("yes it is"), task).value == 0.0
    assert opened(example("yes it is"), task).value == pytest.approx(0.5)
    with pytest.raises(ValueError, match="judge 'squad' cannot be made with"):
        make_reward("judged", judge="squad", arguments={"x": 1})
    with pytest.raises(ValueError, match="needs a server"):
        make_reward("judged", judge="llm")
    assert make_reward("judged", threads=4).threads == 4
