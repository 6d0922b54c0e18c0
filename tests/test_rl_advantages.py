"""Advantages against values by hand, brute force and identities."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drlib.rl.advantages import (
    ADVANTAGES,
    batch_normalized,
    exponential,
    group_mean,
    group_normalized,
    leave_one_out,
    share_over_segments,
    uniform,
)

ESTIMATORS = [leave_one_out, group_mean, group_normalized, batch_normalized]
FINITE = st.floats(-100, 100, allow_nan=False)
BATCH = st.lists(st.tuples(FINITE, st.integers(-3, 3), st.booleans()), min_size=1, max_size=24)


def columns(batch):
    rewards, groups, valid = zip(*batch, strict=True)
    return torch.tensor(rewards, dtype=torch.float64), torch.tensor(groups), torch.tensor(valid)


def test_estimators_on_the_notebook_example():
    rewards_N, groups_N = torch.tensor([1.0, 0, 0, 0]), torch.zeros(4, dtype=torch.long)
    third = 1 / 3
    assert leave_one_out(rewards_N, groups_N).tolist() == pytest.approx([1, -third, -third, -third])
    assert group_mean(rewards_N, groups_N).tolist() == [0.75, -0.25, -0.25, -0.25]
    expected = [1.5, -0.5, -0.5, -0.5]  # the sample deviation of 1, 0, 0, 0 is 1/2
    assert group_normalized(rewards_N, groups_N, epsilon=0).tolist() == pytest.approx(expected)
    assert batch_normalized(rewards_N, groups_N, epsilon=0).tolist() == pytest.approx(expected)


def test_batch_normalized_uses_one_scale_for_all_groups():
    rewards_N, groups_N = torch.tensor([1.0, 0, 3, 3]), torch.tensor([0, 0, 1, 1])
    std = math.sqrt(((1 - 1.75) ** 2 + 1.75**2 + 2 * 1.25**2) / 3)
    advantages = batch_normalized(rewards_N, groups_N, epsilon=0)
    assert advantages.tolist() == pytest.approx([0.5 / std, -0.5 / std, 0, 0])


@given(BATCH)
@settings(max_examples=100, deadline=None)
def test_leave_one_out_matches_its_definition(batch):
    rewards_N, groups_N, valid_N = columns(batch)
    result = leave_one_out(rewards_N, groups_N, valid_N)
    for i, (reward, group, valid) in enumerate(batch):
        others = [r for j, (r, g, v) in enumerate(batch) if g == group and v and j != i]
        expected = reward - sum(others) / len(others) if valid and others else 0.0
        assert result[i].item() == pytest.approx(expected, abs=1e-9)


@given(BATCH)
@settings(max_examples=100, deadline=None)
def test_leave_one_out_is_the_scaled_group_mean(batch):
    rewards_N, groups_N, valid_N = columns(batch)
    size_N = torch.tensor([sum(g == h and v for _, h, v in batch) for _, g, _ in batch]).double()
    factor_N = size_N / (size_N - 1).clamp(min=1)
    expected = factor_N * group_mean(rewards_N, groups_N, valid_N)
    torch.testing.assert_close(leave_one_out(rewards_N, groups_N, valid_N), expected)


@pytest.mark.parametrize("estimate", ESTIMATORS)
@given(BATCH)
@settings(max_examples=50, deadline=None)
def test_advantages_sum_to_zero_in_each_group_and_are_finite(estimate, batch):
    rewards_N, groups_N, valid_N = columns(batch)
    result = estimate(rewards_N, groups_N, valid_N)
    assert torch.isfinite(result).all()
    for group in groups_N.unique():
        in_group = result[groups_N == group]
        bound = in_group.abs().max().item()
        assert in_group.sum().item() == pytest.approx(0, abs=1e-6 * (1 + bound))


@pytest.mark.parametrize("estimate", ESTIMATORS)
@given(FINITE, st.integers(1, 9))
@settings(max_examples=50, deadline=None)
def test_equal_rewards_and_singletons_give_exactly_zero(estimate, reward, size):
    result = estimate([reward] * size + [7.0], [4] * size + [9])
    assert result.tolist() == [0.0] * (size + 1)


@pytest.mark.parametrize("estimate", ESTIMATORS)
def test_order_and_group_numbers_do_not_matter(estimate):
    rewards_N = torch.tensor([0.2, 1.0, 0.0, 0.7, 0.1, 0.5], dtype=torch.float64)
    groups_N = torch.tensor([0, 1, 0, 1, 0, 1])
    order = torch.tensor([5, 0, 3, 4, 1, 2])
    shuffled = estimate(rewards_N[order], groups_N[order] * -40 + 7)
    torch.testing.assert_close(shuffled, estimate(rewards_N, groups_N)[order])


def test_invalid_rollouts_are_excluded_from_the_baseline():
    rewards_N = torch.tensor([1.0, 0.0, 0.0, float("nan")])
    valid_N = torch.tensor([True, True, True, False])
    result = leave_one_out(rewards_N, [0, 0, 0, 0], valid_N)
    assert result.tolist() == [1.0, -0.5, -0.5, 0.0]
    assert leave_one_out(rewards_N, [0] * 4, [True, False, False, False]).tolist() == [0.0] * 4


def test_dtype_is_kept_and_an_empty_batch_stays_empty():
    assert leave_one_out(torch.zeros(2, dtype=torch.float64), [0, 0]).dtype == torch.float64
    assert leave_one_out([1, 0], [0, 0]).tolist() == [1.0, -1.0]
    for estimate in ESTIMATORS:
        assert estimate([], []).shape == (0,)


@pytest.mark.parametrize("estimate", ESTIMATORS)
@pytest.mark.parametrize(
    ("rewards", "groups", "valid", "message"),
    [
        ([1.0, float("nan")], [0, 0], None, r"rewards_N\[1\] is nan"),
        ([float("inf"), 0.0], [0, 0], None, r"rewards_N\[0\] is inf"),
        ([1.0, 0.0, 0.0], [0, 0], None, r"shapes \(3,\), \(2,\)"),
        ([1.0, 0.0], [0, 0], [True], r", \(1,\)"),
        ([[1.0, 0.0]], [[0, 0]], None, r"shape \[N\]"),
        ([1.0, 0.0], [0.0, 0.0], None, "integers"),
        ([1.0, 0.0], [0, 0], [1, 1], "boolean"),
    ],
)
def test_invalid_inputs_are_rejected(estimate, rewards, groups, valid, message):
    with pytest.raises(ValueError, match=message):
        estimate(rewards, groups, valid)


def test_segments_have_the_advantage_of_their_trajectory():
    advantages_N = torch.tensor([1.0, -0.5, -0.5], dtype=torch.float64)
    shared = share_over_segments(advantages_N, [2, 0, 0, 1])
    assert shared.tolist() == [-0.5, 1.0, 1.0, -0.5] and shared.dtype == torch.float64
    assert share_over_segments(advantages_N, [0, 1, 2]).equal(advantages_N)  # K = 0: no resets
    assert share_over_segments([], []).shape == (0,)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ([0, 3], r"names \[3\], but there are 2"),
        ([-1], r"names \[-1\]"),
        ([[0]], r"shapes \[N\] and \[S\]"),
        ([0.0], "holds integers"),
        ([True], "holds integers"),
    ],
)
def test_invalid_segment_indices_are_rejected(index, message):
    with pytest.raises(ValueError, match=message):
        share_over_segments([1.0, -1.0], index)
    with pytest.raises(ValueError, match=r"got \[1, 2\] and \[3\]"):
        share_over_segments([[1.0, -1.0]], [0, 0, 1])


def test_weights_of_cloning_by_hand():
    """The middle rollout could not be judged: it is neither cloned nor in the mean."""
    rewards_N, groups_N = torch.tensor([1.0, math.nan, 0.0, 0.0]), torch.tensor([0, 0, 0, 1])
    valid_N = torch.tensor([True, False, True, True])
    assert uniform(rewards_N, groups_N, valid_N).tolist() == [1, 0, 1, 1]
    assert ADVANTAGES["reward"](rewards_N, groups_N, valid_N).tolist() == [1, 0, 0, 0]
    mean = (math.exp(2) + 2) / 3
    expected = [math.exp(2) / mean, 0, 1 / mean, 1 / mean]
    assert exponential(rewards_N, groups_N, valid_N).tolist() == pytest.approx(expected)


def test_exponential_weights_lie_between_cloning_all_and_the_best():
    rewards_N, groups_N = torch.tensor([1.0, 0.0, 0.5, 0.0]), torch.zeros(4, dtype=torch.long)
    assert exponential(rewards_N, groups_N, beta=1e9).tolist() == pytest.approx([1, 1, 1, 1])
    assert exponential(rewards_N, groups_N, beta=1e-3).tolist() == pytest.approx([4, 0, 0, 0])
    shifted = exponential(rewards_N + 1000, groups_N)
    assert shifted.tolist() == pytest.approx(exponential(rewards_N, groups_N).tolist())
    with pytest.raises(ValueError, match="beta=0 must be positive"):
        exponential(rewards_N, groups_N, beta=0)
