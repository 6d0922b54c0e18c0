"""Stale samples: age filter, GLM-5's group repair as a truth table, replay and weights."""

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drlib.rl.staleness import (
    ReplayBuffer,
    StalenessFilter,
    TrainedGroup,
    admission_capacity,
    age,
    repair_groups,
    replay_weights,
)
from drlib.trajectory import Segment, Termination, Trajectory


def make_rollout(versions=(0,), world="w", fault=False, group="g", name="r"):
    """Return a rollout: a prompt token of version -1, then one sampled token per version."""
    n = len(versions) + 1
    generated = np.arange(n) > 0
    return Trajectory(
        id=name,
        task_id="q",
        group_id=group,
        world_version=world,
        policy_version=max(versions),
        token_ids=np.arange(n, dtype=np.int32),
        generated=generated,
        logprobs=-generated.astype(np.float32),
        entropies=None,
        segments=np.full(n, Segment.ANSWER, dtype=np.uint8),
        turns=np.zeros(n, np.uint16),
        versions=np.array([-1, *versions], dtype=np.int32),
        routed_experts=None,
        tool_results=[],
        termination=Termination.ENV_FAULT if fault else Termination.ANSWERED,
        answer="x",
        reward=None if fault else 0.5,
        reward_parts={},
        messages=[],
        metadata={},
    )


def test_age_counts_from_the_first_sampled_token():
    assert age(make_rollout([3, 4, 6]), 7) == 4 and age(make_rollout([7]), 7) == 0
    with pytest.raises(ValueError, match="r is of version 8, newer than the policy"):
        age(make_rollout([8]), 7)


# rollout, max_age -> may it train the policy of version 10 in the worlds "w" and "v"?
FILTER = [
    (make_rollout([10, 10]), 0, True),
    (make_rollout([9, 10]), 0, False),
    (make_rollout([9, 10]), 1, True),
    (make_rollout([6, 10]), 3, False),
    (make_rollout([7, 10]), 3, True),
    (make_rollout([10], fault=True), 3, False),
    (make_rollout([10], world="old"), 3, False),
    (make_rollout([10], world="v"), 3, True),
    (make_rollout([0], "old", True), None, True),
]


@pytest.mark.parametrize(("rollout", "max_age", "expected"), FILTER)
def test_filter_table(rollout, max_age, expected):
    assert StalenessFilter(max_age).update([rollout], 10, {"w", "v"}) == [expected]


def test_filter_per_rollout_without_worlds():
    batch = [
        make_rollout([5]),
        make_rollout([3]),
        make_rollout([5], fault=True),
        make_rollout([5], world="v"),
    ]
    assert StalenessFilter(1).update(batch, 5, {"w"}) == [True, False, False, False]
    assert StalenessFilter(1).update([make_rollout([7], world="any")], 7) == [True]


# size, which are valid -> which train; None: the group is dropped
REPAIR = [
    (4, "0000", None),
    (4, "1000", None),
    (4, "1100", None),
    (4, "1011", [0, 2, 3, 0]),
    (4, "1111", [0, 1, 2, 3]),
    (5, "11000", None),
    (5, "01011", [1, 3, 4, 1, 3]),
    (3, "110", [0, 1, 0]),
    (2, "10", None),
    (1, "1", [0]),
    (1, "0", None),
    (4, "111", [0, 1, 2, 0]),
    (4, "110", None),
]


@pytest.mark.parametrize(("size", "flags", "expected"), REPAIR)
def test_repair_table(size, flags, expected):
    indices = repair_groups(["g"] * len(flags), [f == "1" for f in flags], size)
    assert indices == (expected or [])


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=5), max_size=6), st.randoms())
@settings(max_examples=100)
def test_repaired_batches_have_full_valid_groups(flags, rng):
    samples = [(g, valid) for g, group in enumerate(flags) for valid in group]
    rng.shuffle(samples)
    groups, valid = [g for g, _ in samples], [v for _, v in samples]
    indices = repair_groups(groups, valid, 5)
    kept = {g for g, group in enumerate(flags) if sum(group) > 2.5}
    assert sorted(groups[i] for i in indices) == sorted(list(kept) * 5)
    assert all(valid[i] for i in indices)
    used = [indices.count(i) for i in range(len(samples)) if valid[i] and groups[i] in kept]
    assert set(used) <= {1, 2}  # every valid sample is used at most twice


@given(
    max_lag=st.integers(0, 4),
    version=st.integers(0, 6),
    batch=st.integers(1, 5),
    accepted=st.integers(0, 60),
    running=st.integers(0, 20),
)
def test_admission_bounds_the_age(max_lag, version, batch, accepted, running):
    """A group may start if the batch with its number comes at most max_lag updates later."""
    room = admission_capacity(1000, max_lag, version, batch, accepted, running)
    for number in range(accepted + running, accepted + running + 30):
        may_start = number < accepted + running + room
        assert may_start == (number // batch - version <= max_lag)
    assert admission_capacity(running, max_lag, version, batch, accepted, running) <= 0


def test_oversized_group_is_rejected():
    with pytest.raises(ValueError, match="a group has 3 samples, size is 2"):
        repair_groups(["a", "a", "a"], [True] * 3, 2)
    with pytest.raises(ValueError, match="2 groups for 1"):
        repair_groups(["a", "b"], [True], 2)


# ---------------------------------------------------------------- replay


def make_trained_group(name, version, world="w", fault=False, priority=1.0):
    rollouts = [
        make_rollout([version], world, fault and i == 1, name, f"{name}-{i}") for i in (0, 1)
    ]
    return TrainedGroup(rollouts, [priority, -priority], [1.0, 1.0])


def filled_buffer(**kwargs):
    buffer = ReplayBuffer(**{"max_age": 2} | kwargs)
    for i in range(6):
        buffer.add(make_trained_group(f"g{i}", i))
    return buffer


def names_of(drawn):
    return [group.rollouts[0].group_id for group, _ in drawn]


def test_draws_are_recent_and_from_valid_worlds():
    buffer = filled_buffer()
    buffer.add(make_trained_group("moved", 5, world="old"))
    buffer.add(make_trained_group("broken", 5, fault=True))
    seen = set()
    for seed in range(20):
        drawn = buffer.draw(99, 6, random.Random(seed), worlds={"w"})
        assert len(drawn) == 2  # at most as many draws as eligible groups
        seen |= set(names_of(drawn))
    assert seen == {"g4", "g5"}
    left = [group.rollouts[0].group_id for group in buffer.state["groups"]]
    assert left == ["g4", "g5", "moved", "broken"]  # stale groups are removed
    assert len(buffer.draw(99, 6, random.Random(0), worlds=None)) == 3  # all worlds are valid
    assert buffer.draw(1, 99, random.Random(0), worlds=None) == []
    assert buffer.state_dict() == {"groups": []}


PRIORITIES = (0.1, 0.2, 0.4, 0.8)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_draws_are_proportional_to_priority(alpha):
    """Chi-square of 4000 draws over four groups: 16.3 is the 0.999 quantile of 3 degrees."""
    buffer = ReplayBuffer(9, alpha)
    for i, priority in enumerate(PRIORITIES):
        buffer.add(make_trained_group(f"g{i}", 0, priority=priority))
    rng = random.Random(5)
    drawn = [name for _ in range(2000) for name in names_of(buffer.draw(2, 0, rng, worlds=None))]
    chances = np.array(PRIORITIES) ** alpha
    expected = 4000 * chances / chances.sum()
    found = np.array([drawn.count(f"g{i}") for i in range(4)])
    assert ((found - expected) ** 2 / expected).sum() < 16.3


def test_importance_weights_by_hand():
    """(N P)^-beta over its largest value, which is that of the least probable group."""
    buffer = ReplayBuffer(9, 0.5, 0.4)
    for i, priority in enumerate((0.16, 0.64, 0.25)):
        buffer.add(make_trained_group(f"g{i}", 0, priority=priority))
    chances = np.array([0.4, 0.8, 0.5]) / 1.7  # square roots of the priorities
    by_hand = (3 * chances) ** -0.4
    by_hand = dict(zip(("g0", "g1", "g2"), by_hand / by_hand.max()))
    weights = {}
    for seed in range(20):
        drawn = buffer.draw(3, 0, random.Random(seed), worlds=None)
        weights |= dict(zip(names_of(drawn), [weight for _, weight in drawn]))
    assert weights == pytest.approx(by_hand) and weights["g0"] == 1.0
    even = ReplayBuffer(9, 0.0)
    even.state["groups"] = buffer.state["groups"]
    assert {w for _, w in even.draw(3, 0, random.Random(0), worlds=None)} == {1.0}


def test_resumed_buffer_draws_the_same_groups():
    whole, resumed = filled_buffer(), ReplayBuffer(2)
    resumed.load_state_dict(whole.state_dict())
    for now in (5, 6, 7):
        ours, theirs = (b.draw(2, now, random.Random(now), worlds={"w"}) for b in (whole, resumed))
        assert ours == theirs and ours
        for buffer in (whole, resumed):
            buffer.add(make_trained_group(f"new{now}", now))
    assert whole.state == resumed.state


def test_trained_group_validates_its_fields():
    group = make_trained_group("g", 0, priority=0.5)
    assert group.priority == 0.5
    with pytest.raises(ValueError, match="one group"):
        TrainedGroup([make_rollout(group="a"), make_rollout(group="b")], [1.0, 1.0], [1.0, 1.0])
    with pytest.raises(ValueError, match="one advantage and one weight"):
        TrainedGroup(group.rollouts, [1.0], [1.0, 1.0])
    with pytest.raises(ValueError, match="group g has only advantages of 0"):
        TrainedGroup(group.rollouts, [0.0, 0.0], [1.0, 1.0])


def test_replay_weights_by_hand():
    ages_N, log_ratio_N = torch.tensor([0, 1, 2, 3]), torch.log(torch.tensor([1.0, 0.5, 1.5, 9.0]))
    weights_N = replay_weights(ages_N, log_ratio_N, decay=0.5, cap=2.0)
    assert torch.allclose(weights_N, torch.tensor([1.0, 0.25, 0.375, 0.25]))


def test_on_policy_weights_are_one_without_gradient():
    log_ratio_N = torch.zeros(7, requires_grad=True)
    weights_N = replay_weights(torch.zeros(7, dtype=torch.int64), log_ratio_N)
    assert torch.equal(weights_N, torch.ones(7)) and not weights_N.requires_grad


def test_extreme_replay_weights_are_capped():
    extreme_N = torch.tensor([500.0, -500.0])
    ages_N = torch.zeros(2, dtype=torch.int64)
    assert torch.allclose(replay_weights(ages_N, extreme_N, cap=2.0), torch.tensor([2.0, 0.0]))


BAD = [
    (torch.tensor([0]), torch.zeros(2), {}, "one age and one ratio"),
    (torch.tensor([-1]), torch.zeros(1), {}, "negative age"),
    (torch.tensor([0]), torch.tensor([math.nan]), {}, "not finite"),
    (torch.tensor([0]), torch.zeros(1), {"decay": 0.0}, "decay"),
    (torch.tensor([0]), torch.zeros(1), {"cap": math.inf}, "cap"),
]


@pytest.mark.parametrize(("ages_N", "log_ratio_N", "kwargs", "words"), BAD)
def test_invalid_weight_inputs_are_rejected(ages_N, log_ratio_N, kwargs, words):
    with pytest.raises(ValueError, match=words):
        replay_weights(ages_N, log_ratio_N, **kwargs)


def test_invalid_settings_are_rejected():
    with pytest.raises(ValueError, match="max_age"):
        StalenessFilter(-1)
    with pytest.raises(ValueError, match="alpha"):
        ReplayBuffer(1, alpha=1.5)
