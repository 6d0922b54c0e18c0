"""Resample-on-correct and zero-variance groups: quotas, draws, gradients."""

import numpy as np
import pytest
import torch

from drlib.rl.advantages import leave_one_out
from drlib.rl.resampling import (
    drop_zero_variance_groups,
    error_penalty,
    format_penalty,
    replace_zero_variance_groups,
    resample_on_correct,
    roc_quotas,
)
from drlib.trajectory import Segment, Termination, ToolResult, Trajectory

CLEAN = ("<answer>x</answer>",)


def make_tool_result(ok=True, text="1. x", env_fault=False, tool="search"):
    return ToolResult(
        tool=tool,
        arguments={},
        text=text,
        ok=ok,
        error=None if ok else "bad",
        latency_s=0.0,
        attempts=1,
        source="index",
        cache_hit=False,
        degraded=False,
        env_fault=env_fault,
    )


def make_trajectory(reward=1.0, calls=(), turns=CLEAN, group="g-0", name="r"):
    zeros = np.zeros(3)
    return Trajectory(
        id=name,
        task_id="t",
        group_id=group,
        world_version="w",
        policy_version=0,
        token_ids=zeros.astype(np.int32),
        generated=zeros == 0,
        logprobs=zeros.astype(np.float32),
        entropies=None,
        segments=np.full(3, Segment.THINK, dtype=np.uint8),
        turns=zeros.astype(np.uint16),
        versions=zeros.astype(np.int32),
        routed_experts=None,
        tool_results=list(calls),
        termination=Termination.ANSWERED,
        answer="x",
        reward=reward,
        reward_parts={},
        messages=[{"role": "user", "content": "<answer>?"}]
        + [{"role": "assistant", "content": text} for text in turns],
        metadata={},
    )


def make_trajectory_with_errors(errors, calls, reward=1.0):
    return make_trajectory(reward, [make_tool_result(ok=i >= errors) for i in range(calls)])


def make_generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("calls", "penalty"),
    [
        ([], 0.5),
        ([make_tool_result()], 0.0),
        ([make_tool_result(False)], 1.0),
        (
            [make_tool_result(False), make_tool_result(), make_tool_result(), make_tool_result()],
            0.25,
        ),
        ([make_tool_result(text="error: printed by a program that ran")], 0.0),
        ([make_tool_result(False, text="worker went away")], 1.0),
        ([make_tool_result(), make_tool_result(False, tool="format")], 0.5),
    ],
)
def test_error_penalty(calls, penalty):
    assert error_penalty(make_trajectory(calls=calls)) == penalty


@pytest.mark.parametrize(
    ("turns", "penalty"),
    [
        (CLEAN, 0.0),
        (("no answer",), 1.0),
        ((), 1.0),
        (("a", "b", "<answer>x</answer>"), 0.0),
        (("a", "<answer>x</answer>", "b", "<answer>y</answer>"), 0.25),
        (("<answer>1</answer><answer>2</answer><answer>3</answer>",), 1.0),
        (("<answer>x",), 1.0),
        (("<answer>x</answer></answer>",), 1.0),
    ],
)
def test_format_penalty(turns, penalty):
    assert format_penalty(make_trajectory(turns=turns)) == penalty


@pytest.mark.parametrize("mode", ["sample", "sort"])
@pytest.mark.parametrize("keep", range(1, 9))
def test_keep_count_and_quotas_for_every_split(keep, mode):
    for negatives in range(2 * keep + 1):
        positives = 2 * keep - negatives
        rewards = [0.0] * negatives + [1.0] * positives
        group = [make_trajectory_with_errors(i % 3, 2, reward) for i, reward in enumerate(rewards)]
        kept = resample_on_correct(group, keep, mode, generator=make_generator(negatives))
        assert len(set(kept)) == len(kept) == keep and kept == sorted(kept)
        failed = sum(group[i].reward == 0 for i in kept)
        assert (failed, keep - failed) == roc_quotas(negatives, positives, keep)
        floor = min(2, keep // 2)
        assert failed >= min(floor, negatives) and keep - failed >= min(floor, positives)
        if (
            min(negatives, positives) >= 2 * floor
        ):  # the minimum is inactive: half of each, as published
            assert abs(failed - negatives / 2) <= 0.5
        assert [t.reward for t in group] == rewards


@pytest.mark.parametrize(
    ("negatives", "positives", "keep", "quotas"),
    [
        (16, 16, 16, (8, 8)),
        (31, 1, 16, (15, 1)),
        (1, 31, 16, (1, 15)),
        (29, 3, 16, (14, 2)),
        (32, 0, 16, (16, 0)),
        (0, 32, 16, (0, 16)),
        (3, 3, 3, (2, 1)),
        (2, 6, 4, (2, 2)),
        (5, 3, 8, (5, 3)),
        (5, 3, 0, (0, 0)),
        (0, 0, 0, (0, 0)),
    ],
)
def test_quotas_by_hand(negatives, positives, keep, quotas):
    assert roc_quotas(negatives, positives, keep) == quotas


def count_inclusions(group, keep, draws, **settings):
    """Count how often each rollout is kept."""
    generator, counts = make_generator(1), np.zeros(len(group))
    for _ in range(draws):
        counts[resample_on_correct(group, keep, generator=generator, **settings)] += 1
    return counts


@pytest.mark.parametrize("mode", ["sample", "sort"])
def test_failures_are_sampled_uniformly(mode):
    group = [make_trajectory_with_errors(i % 3, 2, 0.0) for i in range(8)] + [
        make_trajectory_with_errors(0, 1)
    ] * 8
    draws = 1000
    counts = count_inclusions(group, 8, draws, mode=mode)[:8]
    assert counts.sum() == 4 * draws
    # 4 of 8 without replacement: variance p(1 - p), covariance -p(1 - p)/7, so the sum of squares
    # over the variance times 7/8 is chi-square with 7 degrees of freedom
    statistic = 7 / 8 * ((counts - draws / 2) ** 2 / (draws / 4)).sum()
    assert statistic < 24.3  # P = 0.001


def test_cleaner_successes_are_kept_more_often():
    group = [make_trajectory_with_errors(errors, 4) for errors in (0, 1, 2, 3, 4)] + [
        make_trajectory_with_errors(1, 1, 0.0)
    ] * 5
    counts = count_inclusions(group, 5, 1000, epsilon=0.2)[:5]
    assert (np.diff(counts) < 0).all()
    even = count_inclusions(group, 5, 1000, epsilon=1e6)[:5] / 1000  # epsilon dominates: uniform
    assert np.abs(even - even.mean()).max() < 0.05


def test_sampling_follows_the_published_probabilities():
    # one of two: 1/(0.5 + 0) against 1/(0.5 + 1), that is 3 to 1; deviation of the mean 0.014
    group = [
        make_trajectory_with_errors(0, 1),
        make_trajectory_with_errors(1, 1),
        make_trajectory_with_errors(0, 1, 0.0),
        make_trajectory_with_errors(0, 1, 0.0),
    ]
    share = count_inclusions(group, 2, 1000, epsilon=0.5)[0] / 1000
    assert share == pytest.approx(0.75, abs=0.045)


def test_sort_mode_keeps_the_cleanest_with_random_ties():
    group = [make_trajectory_with_errors(errors, 4) for errors in (3, 0, 2, 1)] + [
        make_trajectory_with_errors(0, 1, 0.0)
    ] * 4
    for seed in range(5):
        kept = resample_on_correct(group, 4, "sort", generator=make_generator(seed))
        assert [i for i in kept if i < 4] == [1, 3]
    equal = [make_trajectory_with_errors(0, 1)] * 4 + [make_trajectory_with_errors(0, 1, 0.0)] * 4
    assert count_inclusions(equal, 4, 300, mode="sort")[:4].min() > 100


def test_resampling_is_deterministic_per_seed():
    group = [make_trajectory_with_errors(i % 4, 3, float(i % 2)) for i in range(16)]
    first, again, other = (
        resample_on_correct(group, 8, generator=make_generator(s)) for s in (3, 3, 4)
    )
    assert first == again != other


def test_unjudged_rollouts_are_kept_last():
    faulted = make_trajectory(1.0, [make_tool_result(env_fault=True)])
    unjudged = make_trajectory(None)
    group = [
        faulted,
        unjudged,
        *[make_trajectory_with_errors(0, 1, float(i % 2)) for i in range(4)],
    ]
    for seed in range(10):
        assert set(resample_on_correct(group, 4, generator=make_generator(seed))) == {2, 3, 4, 5}
    assert resample_on_correct(group, 5, generator=make_generator()) == [0, 2, 3, 4, 5]
    assert resample_on_correct([faulted, unjudged], 1) == [0]
    assert resample_on_correct([], 0) == []


def test_resampling_composes_with_leave_one_out():
    rewards = [1.0] * 2 + [0.0] * 6
    group = [make_trajectory_with_errors(0, 1, reward) for reward in rewards]
    kept = resample_on_correct(group, 4, generator=make_generator())
    rewards_N = torch.tensor([group[i].reward for i in kept])
    assert rewards_N.tolist() == [1, 1, 0, 0]
    assert leave_one_out(rewards_N, [0] * 4).tolist() == pytest.approx([2 / 3] * 2 + [-2 / 3] * 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"keep": 3}, "cannot keep 3 of 2 rollouts"),
        ({"keep": -1}, "cannot keep -1"),
        ({"mode": "best"}, "mode must be"),
        ({"epsilon": 0.0}, "epsilon must be"),
        ({"epsilon": float("nan")}, "epsilon must be"),
        ({"group": [make_trajectory(), make_trajectory(group="g-1")]}, "one group at a time"),
        (
            {"group": [make_trajectory(float("nan"), name="bad")]},
            r"trajectory bad: reward .* is nan",
        ),
    ],
)
def test_invalid_arguments_are_rejected(settings, message):
    with pytest.raises(ValueError, match=message):
        resample_on_correct(**{"group": [make_trajectory()] * 2, "keep": 1, **settings})
    with pytest.raises(ValueError, match="cannot keep 3 of 1 failures and 1 successes"):
        roc_quotas(1, 1, 3)


# 8 groups of 2, interleaved: all first rewards, then all second ones
REWARDS = [float(pair[group] == "1") for pair in ("10110010", "00011011") for group in range(8)]
GROUPS = [10 * group for group in (0, 1, 2, 3, 4, 5, 6, 7)] * 2


def groups_with_variance():
    pairs = {g: {r for r, h in zip(REWARDS, GROUPS) if h == g} for g in GROUPS}
    return [g for g, values in pairs.items() if len(values) == 2]


def test_zero_variance_groups_are_replaced():
    indices_M, groups_M = replace_zero_variance_groups(REWARDS, GROUPS, generator=make_generator())
    rewards_M = torch.tensor(REWARDS)[indices_M]
    assert drop_zero_variance_groups(rewards_M, groups_M).all()
    assert groups_M.unique().tolist() == list(range(8)) and len(indices_M) == 16
    for slot, group in enumerate(dict.fromkeys(GROUPS)):
        sources = {GROUPS[i] for i in indices_M[groups_M == slot].tolist()}
        assert len(sources) == 1 and sources <= set(groups_with_variance())
        assert group not in groups_with_variance() or sources == {group}
    again = replace_zero_variance_groups(REWARDS, GROUPS, generator=make_generator())
    assert again[0].tolist() == indices_M.tolist()
    chosen = {
        tuple(
            replace_zero_variance_groups(REWARDS, GROUPS, generator=make_generator(s))[0].tolist()
        )
        for s in range(20)
    }
    assert len(chosen) > 1


def test_replacement_equals_weighting():
    indices_M, groups_M = replace_zero_variance_groups(REWARDS, GROUPS, generator=make_generator(5))
    logp_N = torch.linspace(-2, -1, 16, dtype=torch.float64, requires_grad=True)
    filled_M = leave_one_out(torch.tensor(REWARDS, dtype=torch.float64)[indices_M], groups_M)
    (filled,) = torch.autograd.grad((filled_M * logp_N[indices_M]).sum(), logp_N)
    advantages_N = leave_one_out(torch.tensor(REWARDS, dtype=torch.float64), GROUPS)
    weights_N = torch.bincount(indices_M, minlength=16)
    (weighted,) = torch.autograd.grad((weights_N * advantages_N * logp_N).sum(), logp_N)
    assert torch.equal(filled, weighted)


def test_batch_without_reward_variance_is_empty():
    for rewards, groups in (([1.0, 1.0, 0.0], [0, 0, 1]), ([], [])):
        indices_M, groups_M = replace_zero_variance_groups(rewards, groups)
        assert indices_M.tolist() == groups_M.tolist() == []


def test_invalid_rollouts_are_copied_with_their_group():
    rewards, groups = [1.0, 1.0, float("nan"), 1.0, 0.0, float("nan")], [0, 0, 0, 1, 1, 1]
    valid = [True, True, False, True, True, False]
    indices_M, groups_M = replace_zero_variance_groups(rewards, groups, valid)
    assert indices_M.tolist() == [3, 4, 5, 3, 4, 5] and groups_M.tolist() == [0, 0, 0, 1, 1, 1]
