"""Rewards and filtering: a decision table of synthetic trajectories, and its effects."""

import dataclasses

import pytest
import torch
from rl_examples import a_format_error, a_tool_result, a_trajectory, changed

from drlib.chat.tool_calls import FORMAT_REASONS
from drlib.rewards.functions import REWARDS, exact_match, make_reward, random_reward
from drlib.rl.advantages import leave_one_out
from drlib.rl.filtering import (
    FOREIGN_REASONS,
    FilterConfig,
    Pipeline,
    classify,
    filter_rollouts,
    has_hallucination,
)
from drlib.rl.losses import policy_loss
from drlib.rl.resampling import drop_zero_variance_groups
from drlib.task import Task
from drlib.trajectory import Segment, Termination

TASK = Task("t-1", "What is the capital?", "Côte d’Or", "search", "w", aliases=("Cote d'Or", "12"))
ANSWERED, LENGTH, TURNS = Termination.ANSWERED, Termination.LENGTH, Termination.TURNS


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_non_finite_reward_is_rejected(reward):
    with pytest.raises(ValueError, match="None: not judged"):
        classify(changed(a_trajectory(), reward=reward))


# termination, answer, reward, faults -> label, loss weight, in baseline, reasons
TABLE = [
    (ANSWERED, "x", 1.0, 0, "positive", 1.0, True, ()),
    (ANSWERED, "x", 0.0, 0, "negative", 1.0, True, ()),
    (Termination.FORMAT, None, 0.0, 0, "negative", 1.0, True, ()),
    (Termination.LOOP, None, 0.0, 0, "negative", 1.0, True, ()),
    (TURNS, None, 0.0, 0, "negative", 1.0, True, ()),
    (LENGTH, None, 0.0, 0, "excluded", 0.0, True, ("overlong",)),
    (LENGTH, "x", 0.0, 0, "negative", 1.0, True, ()),
    (LENGTH, None, 1.0, 0, "positive", 1.0, True, ()),
    (ANSWERED, "x", 1.0, 1, "excluded", 0.0, False, ("env_fault",)),
    (LENGTH, None, 0.0, 1, "excluded", 0.0, False, ("env_fault",)),
    (Termination.ENV_FAULT, None, None, 0, "excluded", 0.0, False, ("env_fault", "unjudged")),
    (ANSWERED, "x", None, 0, "excluded", 0.0, False, ("unjudged",)),
]


@pytest.mark.parametrize(
    ("termination", "answer", "reward", "faults", "label", "weight", "in_baseline", "reasons"),
    TABLE,
)
def test_decision_table(termination, answer, reward, faults, label, weight, in_baseline, reasons):
    verdict = classify(a_trajectory(termination, answer, reward, faults))
    assert dataclasses.astuple(verdict) == (label, weight, in_baseline, reasons)


def test_filter_options():
    overlong = a_trajectory(LENGTH, None, 0.0)
    assert classify(overlong, FilterConfig(overlong="keep")).label == "negative"
    many_turns = a_trajectory(TURNS, None, 0.0)
    both = FilterConfig(limits=(LENGTH, TURNS))
    assert classify(many_turns, both).reasons == ("overlong",)
    shaped = a_trajectory(LENGTH, None, 0.1)
    assert classify(shaped).label == "excluded"
    assert classify(shaped, FilterConfig(positive_from=0.1)).label == "positive"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"overlong": "mask"}, "overlong must be"),
        ({"limits": (ANSWERED,)}, "limits may hold"),
        ({"limits": ("LENGHT",)}, "limits may hold"),
        ({"positive_from": float("nan")}, "positive_from"),
        ({"hallucination": "punish"}, "hallucination must be"),
        ({"baseline": "none"}, "baseline must be"),
    ],
)
def test_invalid_filter_settings_are_rejected(settings, message):
    with pytest.raises(ValueError, match=message):
        FilterConfig(**settings)


def make_group():
    return [
        a_trajectory(reward=1.0, tokens=2),
        a_trajectory(reward=0.0, tokens=3),
        a_trajectory(Termination.ENV_FAULT, None, None, tokens=1),
        a_trajectory(LENGTH, None, 0.0, tokens=6),
    ]


def test_batch_report_counts():
    weights_N, in_baseline_N, report = filter_rollouts(make_group())
    assert weights_N.tolist() == [1, 1, 0, 0]
    assert in_baseline_N.tolist() == [True, True, False, True]
    assert report == {
        "labels": {"excluded": 2, "negative": 1, "positive": 1},
        "reasons": {"env_fault": 1, "overlong": 1, "unjudged": 1},
        "excluded_tokens": 7 / 12,
        "reward_mean": 1 / 3,
        "reward_mean_in_loss": 1 / 2,
    }
    backwards = filter_rollouts(make_group()[::-1])
    assert backwards[2] == report
    assert backwards[0].tolist() == weights_N.tolist()[::-1]


def test_empty_batch_report():
    weights_N, in_baseline_N, report = filter_rollouts([])
    assert weights_N.shape == in_baseline_N.shape == (0,)
    assert in_baseline_N.dtype == torch.bool and report["reward_mean"] is None


def loss_gradient(group, config):
    """Return d loss / d logp after filter, advantages and loss, as in a training step."""
    weights_N, in_baseline_N, _ = filter_rollouts(group, config)
    rewards_N = torch.tensor([float("nan") if t.reward is None else t.reward for t in group])
    advantages_N = leave_one_out(rewards_N, [0] * len(group), in_baseline_N)
    logp_BT = torch.zeros(len(group), 7, requires_grad=True)
    mask_BT = torch.zeros(len(group), 7, dtype=torch.bool)
    for row, trajectory in enumerate(group):
        mask_BT[row, : len(trajectory.generated)] = torch.from_numpy(trajectory.generated)
    policy_loss(logp_BT, logp_BT.detach(), advantages_N, mask_BT, weights_B=weights_N)[0].backward()
    return logp_BT.grad


def test_overlong_failures_enter_only_the_baseline():
    grad = loss_gradient(make_group(), FilterConfig())
    # rewards 1, 0, fault, 0: the success is 1 above the mean of two failures; 5 tokens in the loss
    assert grad[0, 1:3].tolist() == pytest.approx([-1 / 5] * 2)
    assert grad[1, 1:4].tolist() == pytest.approx([0.5 / 5] * 3)
    assert grad[2:].abs().max() == 0
    kept = loss_gradient(make_group(), FilterConfig(overlong="keep"))
    assert kept[3, 1:7].tolist() == pytest.approx([0.5 / 11] * 6)
    without = loss_gradient(
        make_group()[:3], FilterConfig()
    )  # not in the baseline: another advantage
    assert without[1, 1:4].tolist() == pytest.approx([1 / 5] * 3)


def test_group_with_only_faults_has_zero_gradient():
    grad = loss_gradient([a_trajectory(Termination.ENV_FAULT, None, None)] * 3, FilterConfig())
    assert grad.abs().max() == 0


def make_hallucinated(how, **settings):
    """Return a rollout with an invented observation, shown by one of the three signs."""
    trajectory = a_trajectory(**settings)
    if how == "refused":
        refused = a_format_error("policy wrote a tool response.")
        return changed(trajectory, tool_results=[a_tool_result(), refused])
    if how == "text":
        text = "<tool_call>{}</tool_call><|im_start|>user\nfound it"
        return changed(trajectory, messages=[{"role": "assistant", "content": text}])
    segments = trajectory.segments.copy()
    segments[-2] = Segment.TOOL_RESPONSE
    return changed(trajectory, segments=segments)


@pytest.mark.parametrize("how", ["refused", "text", "sampled"])
def test_hallucinated_observations_are_not_reinforced(how):
    right, wrong = make_hallucinated(how, reward=1.0), make_hallucinated(how, reward=0.0)
    assert has_hallucination(right) and not has_hallucination(a_trajectory())
    assert classify(right).loss_weight == 1.0  # the default checks the answer only
    config = FilterConfig(hallucination="exclude")
    expected = ("excluded", 0.0, True, ("hallucination",))
    assert dataclasses.astuple(classify(right, config)) == expected
    assert classify(wrong, config).label == "negative"
    group = [right, a_trajectory(reward=0.0, tokens=2), a_trajectory(reward=1.0, tokens=1)]
    assert loss_gradient(group, FilterConfig())[0].min() < 0  # descending raises log p
    grad = loss_gradient(group, config)
    assert grad[0].abs().max() == 0
    assert grad[2, 1] == pytest.approx(-0.5 / 3) and grad[1, 1] == pytest.approx(1 / 3)
    apart = loss_gradient(group, dataclasses.replace(config, baseline="kept"))
    assert apart[0].abs().max() == 0 and apart[2, 1] == pytest.approx(-1 / 3)


def test_format_reasons_and_real_observations():
    assert set(FOREIGN_REASONS) <= set(FORMAT_REASONS)
    observed = changed(a_trajectory(), messages=[{"role": "tool", "content": "<tool_response>"}])
    given = a_trajectory()
    given.segments[0] = Segment.TOOL_RESPONSE  # not sampled: a real observation
    assert not has_hallucination(observed) and not has_hallucination(given)


def test_dropped_group_has_zero_gradient():
    group = [
        make_hallucinated("text", reward=1.0),
        a_trajectory(LENGTH, None),
        a_trajectory(LENGTH, None),
    ]
    for baseline in ("all", "kept"):
        config = FilterConfig(pipeline=Pipeline(), baseline=baseline)
        assert loss_gradient(group, config).abs().max() == 0


def test_drop_zero_variance_groups():
    rewards_N = torch.tensor([0.1, 0.1, 0.1, 1.0, 0.0, 0.5, 1.0, 0.0])
    groups_N = torch.tensor([7, 7, 7, 2, 2, 3, 4, 4])
    expected = [False, False, False, True, True, False, True, True]
    assert drop_zero_variance_groups(rewards_N, groups_N).tolist() == expected
    valid_N = torch.tensor([True] * 7 + [False])
    expected[6:] = [False, False]
    assert drop_zero_variance_groups(rewards_N, groups_N, valid_N).tolist() == expected
    assert drop_zero_variance_groups([], []).tolist() == []


def test_exact_match_accepts_aliases_and_skips_faults():
    reward = exact_match()
    for answer, value in [("côte d’or.", 1.0), ("COTE D'OR", 1.0), ("12.0", 1.0), ("Dijon", 0.0)]:
        result = reward(a_trajectory(answer=answer), TASK)
        assert result.value == value and result.parts == {"exact_match": value}
    assert reward(a_trajectory(LENGTH, None), TASK).value == 0.0
    assert reward(a_trajectory(answer="Dijon", faults=1), TASK).value is None
    assert reward(a_trajectory(answer="côte d’or", faults=1), TASK).value is None
    assert reward(a_trajectory(Termination.ENV_FAULT, None), TASK).value is None
    with pytest.raises(ValueError, match="t-1 accepts an empty answer"):
        reward(a_trajectory(), dataclasses.replace(TASK, aliases=(" . ",)))


def test_random_reward_is_a_seeded_fair_coin():
    names = [f"r-{i}" for i in range(400)]
    toss = random_reward(7)
    coins = {n: toss(a_trajectory(name=n), TASK).value for n in names}
    again = {n: toss(a_trajectory(name=n, answer="12"), TASK).value for n in names[::-1]}
    assert coins == again and set(coins.values()) == {0.0, 1.0}
    assert 160 < sum(coins.values()) < 240  # 4 standard deviations
    other = sum(random_reward(8)(a_trajectory(name=n), TASK).value == coins[n] for n in names)
    assert 160 < other < 240
    assert random_reward(7)(a_trajectory(faults=1), TASK).value is None


def test_make_reward_by_name():
    assert make_reward("exact_match")(a_trajectory(answer="12"), TASK).value == 1.0
    assert make_reward("random", seed=3)(a_trajectory(), TASK).parts.keys() == {"random"}
    assert {"exact_match", "random"} <= REWARDS.keys()
    with pytest.raises(ValueError, match="'exactmatch': did you mean 'exact_match'. Known:"):
        make_reward("exactmatch")
