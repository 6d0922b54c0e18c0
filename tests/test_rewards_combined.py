"""Rewards built from other rewards: values by hand, properties over all outcomes, and errors.

Run: python -m pytest tests/test_rewards_combined.py
"""

import itertools
from dataclasses import replace

import pytest

from drlib import register
from drlib.rewards.functions import REWARDS, check_reward, make_reward
from drlib.rewards.functions import _example as example
from drlib.rewards.judges import JUDGES, Judgement, Verdict
from drlib.task import Task

TASK = Task("t", "What is the capital of Norway?", "Oslo", "search", "w", aliases=("Christiania",))


@pytest.fixture(autouse=True)
def registries():
    before = dict(REWARDS), dict(JUDGES)
    yield
    for registry, names in zip((REWARDS, JUDGES), before):
        for name in set(registry) - set(names):
            del registry[name]


def constant(name, value):
    register.reward(name, lambda trajectory, task: value)
    return name


def rollout(answer, is_formed=True):
    """Return a rollout; an ill-formed one had a turn that could not be read."""
    t = example(answer)
    if not is_formed:
        t.tool_results[0].error = "format"
    return t


def failed():
    t = example("Oslo")
    t.tool_results[0].env_fault = True
    return t


def value(reward, answer, is_formed=True):
    return reward(rollout(answer, is_formed), TASK).value


def test_format_alone():
    reward = make_reward("format")
    assert [value(reward, a, f) for a in ("Oslo", "Bergen", None) for f in (True, False)] == [
        *(1.0, 0.0),  # right
        *(1.0, 0.0),  # wrong
        *(0.0, 0.0),  # no answer
    ]
    assert reward(failed(), TASK).value is None


# ---------------------------------------------------------------- judged


@pytest.mark.parametrize(
    ("arguments", "answer", "expected"),
    [
        ({}, "Oslo", 1.0),
        ({}, "Christiania.", 1.0),
        ({}, "Bergen", 0.0),
        ({}, None, 0.0),
        ({"judge": "squad"}, "the Oslo", 1.0),
        ({"judge": "squad"}, "Oslo fjord", 0.0),
        # two words, one of them right: precision 1/2, recall 1, F1 2/3
        ({"judge": "squad", "graded": True}, "Oslo fjord", 2 / 3),
        ({"judge": "squad", "graded": True, "threshold": 0.6}, "Oslo fjord", 2 / 3),
        ({"judge": "squad", "graded": True, "threshold": 0.7}, "Oslo fjord", 0.0),
        ({"judge": "squad", "graded": True, "threshold": 1.0}, "Oslo", 1.0),
    ],
)
def test_judges_are_rewards(arguments, answer, expected):
    assert value(make_reward("judged", **arguments), answer) == pytest.approx(expected)


def test_what_cannot_be_judged_has_no_reward():
    @register.judge("broken")
    def broken():
        return lambda question, prediction, golds: Judgement(Verdict.JUDGE_ERROR, "down")

    for name, arguments in (
        ("judged", {"judge": "broken"}),
        ("weighted", {"weights": {"exact_match": 1, "judged": 1}}),
        ("all_of", {"rewards": ["exact_match", "judged"]}),
        ("gated", {"weights": {"judged": 1}}),
        ("gated", {"gate": "judged", "weights": {"exact_match": 1}}),
        ("inverse", {"reward": "judged"}),
        ("by_kind", {"rewards": {"search": "judged"}}),
    ):
        if name != "judged":
            arguments = arguments | {"arguments": {"judged": {"judge": "broken"}}}
        assert value(make_reward(name, **arguments), "Oslo") is None, name
        assert value(make_reward(name, **arguments), "Bergen") is None, name
    for name, arguments in (("judged", {}), ("weighted", {"weights": {"judged": 1}})):
        assert make_reward(name, **arguments)(failed(), TASK).value is None


# ---------------------------------------------------------------- combinations by hand


def test_weighted_mean():
    weights = {"exact_match": 3, constant("half", 0.5): 1}
    reward = make_reward("weighted", weights=weights)
    result = reward(rollout("Oslo"), TASK)
    assert result.value == (3 * 1 + 1 * 0.5) / 4
    assert result.parts == {"exact_match": 1.0, "half": 0.5}
    assert value(reward, "Bergen") == 0.5 / 4


def test_arguments_reach_their_term():
    @register.reward("scaled")
    def scaled(trajectory, task, scale=1.0):
        return scale

    reward = make_reward("weighted", weights={"scaled": 2.0}, arguments={"scaled": {"scale": 7.0}})
    assert value(reward, "Oslo") == 7.0


def test_smallest_of_several():
    reward = make_reward("all_of", rewards=["exact_match", "format"])
    outcomes = [value(reward, a, f) for a in ("Oslo", "Bergen") for f in (True, False)]
    assert outcomes == [1.0, 0.0, 0.0, 0.0]


def test_inverse():
    assert value(make_reward("inverse"), "Oslo") == 0.0
    assert value(make_reward("inverse"), "Bergen") == 1.0
    assert value(make_reward("inverse", reward="format"), "Oslo", is_formed=False) == 1.0


def test_kinds_have_their_own_rewards():
    rewards = {"python": "exact_match", "search": "judged"}
    reward = make_reward("by_kind", rewards=rewards, arguments={"judged": {"judge": "squad"}})
    assert reward(rollout("the Oslo"), TASK).value == 1.0
    calculation = replace(TASK, kind="python")
    result = reward(rollout("the Oslo"), calculation)
    assert result.value == 0.0 and result.parts == {"python/exact_match": 0.0}
    with pytest.raises(ValueError, match="no reward for task t of kind 'trail'"):
        reward(rollout("Oslo"), replace(TASK, kind="trail"))


# ---------------------------------------------------------------- the gate


def test_gate_by_hand():
    reward = make_reward("gated", weights={"format": 1, constant("half", 0.5): 1}, share=0.4)
    assert value(reward, "Oslo") == pytest.approx(1 - 0.4 + 0.4 * 0.75)
    assert value(reward, "Oslo", is_formed=False) == pytest.approx(1 - 0.4 + 0.4 * 0.25)
    assert value(reward, "Bergen") == 0.0


@pytest.mark.parametrize("share", [0.0, 0.2, 0.99])
def test_no_wrong_answer_outranks_a_right_one(share):
    """All pairs of terms, from 0 to 1: the least right answer is above the best wrong one."""
    grid = [0.0, 0.25, 0.5, 0.75, 1.0]
    rights, wrongs = [], []
    for number, (a, b) in enumerate(itertools.product(grid, grid)):
        weights = {constant(f"a{number}", a): 5.0, constant(f"b{number}", b): 0.1}
        reward = make_reward("gated", weights=weights, share=share)
        rights.append(value(reward, "Oslo"))
        wrongs.append(value(reward, "Bergen"))
    assert min(rights) > max(wrongs) == 0.0
    assert max(rights) == pytest.approx(1.0) and min(rights) == pytest.approx(1 - share)


@pytest.mark.parametrize(
    ("gate", "other", "message"),
    [
        (0.5, 0.5, "0-0-0"),
        (2.0, 0.5, "gate must be 0 or 1"),
        (1.0, 1.5, "within 0..1"),
        (1.0, -0.1, "within 0..1"),
        (0.0, 1.5, "within 0..1"),
    ],
)
def test_values_that_would_break_the_gate(gate, other, message):
    reward = make_reward("gated", gate=constant("g", gate), weights={constant("o", other): 1})
    with pytest.raises(ValueError, match=message):
        reward(rollout("Oslo"), TASK)


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("judged", {"judge": "unknown"}, "unknown"),
        ("judged", {"threshold": 0.5}, "needs graded"),
        ("judged", {"graded": True, "threshold": 1.5}, "in \\[0, 1\\]"),
        ("weighted", {}, "weights"),
        ("weighted", {"weights": {}}, "needs weights"),
        ("weighted", {"weights": {"exact_match": 0}}, "above 0"),
        ("weighted", {"weights": {"exact_match": float("nan")}}, "above 0"),
        ("weighted", {"weights": {"exact_mach": 1}}, "exact_match"),
        ("weighted", {"weights": {"format": 1}, "arguments": {"x": {}}}, "arguments for x"),
        ("weighted", {"weights": {"format": 1}, "arguments": {"format": {"y": 1}}}, "y"),
        ("gated", {"weights": {"format": 1}, "share": 1.0}, "outvoted"),
        ("gated", {"weights": {"exact_match": 1}}, "is the gate"),
        ("gated", {"weights": {"format": 1}, "arguments": {"x": {}}}, "arguments for x"),
        ("all_of", {"rewards": []}, "needs rewards"),
        ("all_of", {"rewards": ["format", "format"]}, "must differ"),
        ("by_kind", {"rewards": {}}, "needs rewards"),
        ("inverse", {"arguments": {"format": {}}}, "arguments for format"),
    ],
)
def test_settings_that_do_not_fit(name, arguments, message):
    with pytest.raises(ValueError, match=message):
        make_reward(name, **arguments)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("format", {}),
        ("judged", {"judge": "math"}),
        ("weighted", {"weights": {"exact_match": 1, "format": 0.1}}),
        ("gated", {"weights": {"format": 1}}),
        ("all_of", {"rewards": ["exact_match", "format"]}),
        ("inverse", {}),
        ("by_kind", {"rewards": {"search": "judged", "python": "exact_match"}}),
    ],
)
def test_rewards_pass_the_check_before_a_run(name, arguments):
    if arguments.get("judge") == "math":
        pytest.importorskip("math_verify")
    check_reward(name, **arguments)
