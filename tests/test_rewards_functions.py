"""Rewards with a format term, gain beyond RAG, and DAPO's length penalty."""

import itertools
from dataclasses import replace

import pytest
import torch

from drlib.rewards.functions import make_reward, soft_overlong_penalty
from drlib.task import Task
from drlib.trajectory import Termination, ToolResult
from tests.rl_examples import a_trajectory

TASK = Task("t-1", "What is 3 times 4?", "12", "python", "w")
REFUSED = ToolResult("format", {}, "Error: no tool call or answer.", False, "format")


def rollout(is_formed, is_right):
    done = a_trajectory(answer="12" if is_right else "13")
    return done if is_formed else replace(done, tool_results=[*done.tool_results, REFUSED])


@pytest.mark.parametrize("weight", [0.0, 0.1, 0.2, 0.5, 0.75, 1.0])
def test_format_and_answer_is_the_weighted_sum_on_a_grid(weight):
    reward = make_reward("format_and_answer", weight=weight)
    for is_formed, is_right in itertools.product((0, 1), repeat=2):
        found = reward(rollout(is_formed, is_right), TASK)
        assert found.value == pytest.approx(weight * is_formed + (1 - weight) * is_right, abs=1e-12)
        assert found.parts == {"format": is_formed, "exact_match": is_right}


def test_format_and_answer_default_weights():
    reward = make_reward("format_and_answer")
    values = [reward(rollout(*flags), TASK).value for flags in ((1, 1), (0, 1), (1, 0), (0, 0))]
    assert values == pytest.approx([1.0, 0.8, 0.2, 0.0])
    cut_short = a_trajectory(Termination.LENGTH, None)
    assert reward(cut_short, TASK).value == 0.0, "who does not answer has no form"
    assert reward(a_trajectory(answer="12", faults=1), TASK).value is None
    for weight in (-0.1, 1.1):
        with pytest.raises(ValueError, match=r"must be in \[0, 1\]"):
            make_reward("format_and_answer", weight=weight)


def test_gain_beyond_rag_by_hand():
    reward = make_reward("gain_beyond_rag")
    for answer, plain, gain in (
        ("12", "13", 1),
        ("12", "12", 0),
        ("13", None, 0),
        ("13", "12", -1),
    ):
        done = replace(a_trajectory(answer=answer), metadata={"rag_answer": plain})
        assert reward(done, TASK).value == gain
        assert reward(replace(done, termination=Termination.ENV_FAULT), TASK).value is None
    with pytest.raises(ValueError, match="no answer of plain RAG"):
        reward(a_trajectory(), TASK)


def test_soft_overlong_penalty():
    lengths = torch.tensor([0, 80, 85, 100, 101, 500])
    assert soft_overlong_penalty(lengths, 100, 20).tolist() == [0, 0, -0.25, -1, -1, -1]
    for limit, buffer in ((100, 0), (100, 101)):
        with pytest.raises(ValueError, match="need 0 < buffer <= limit"):
            soft_overlong_penalty(lengths, limit, buffer)
    with pytest.raises(ValueError, match="lengths_N must be >= 0"):
        soft_overlong_penalty([-1], 100, 20)
