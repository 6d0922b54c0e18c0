"""Stale samples: what is dropped, GLM-5's group repair as a truth table, replay and its weights."""

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drlib.rl.stability import StalenessFilter
from drlib.rl.staleness import ReplayBuffer, age, repair_groups, replay_weights
from drlib.trajectory import (
    Segment,
    Termination,
    Trajectory,
    load_trajectories,
    save_trajectories,
)


def a_rollout(versions=(0,), world="w", fault=False, group="g", name="r"):
    """A prompt token of version -1, which no policy sampled, then a token of each version."""
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
    assert age(a_rollout([3, 4, 6]), 7) == 4 and age(a_rollout([7]), 7) == 0
    with pytest.raises(ValueError, match="r is of version 8, the policy of 7"):
        age(a_rollout([8]), 7)


# rollout, max_age -> may it train the policy of version 10 in the worlds "w" and "v"?
FILTER = [
    (a_rollout([10, 10]), 0, True),
    (a_rollout([9, 10]), 0, False),
    (a_rollout([9, 10]), 1, True),
    (a_rollout([6, 10]), 3, False),
    (a_rollout([7, 10]), 3, True),
    (a_rollout([10], fault=True), 3, False),
    (a_rollout([10], world="old"), 3, False),
    (a_rollout([10], world="v"), 3, True),
    (a_rollout([0], "old", True), None, True),
]


@pytest.mark.parametrize(("rollout", "max_age", "expected"), FILTER)
def test_the_filter_table(rollout, max_age, expected):
    assert StalenessFilter(max_age).update([rollout], 10, {"w", "v"}) == [expected]


def test_the_filter_judges_each_rollout_and_asks_for_no_world_where_none_is_given():
    batch = [a_rollout([5]), a_rollout([3]), a_rollout([5], fault=True), a_rollout([5], world="v")]
    assert StalenessFilter(1).update(batch, 5, {"w"}) == [True, False, False, False]
    assert StalenessFilter(1).update([a_rollout([7], world="any")], 7) == [True]


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
def test_the_repair_table(size, flags, expected):
    indices = repair_groups(["g"] * len(flags), [f == "1" for f in flags], size)
    assert indices == (expected or [])


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=5), max_size=6), st.randoms())
@settings(max_examples=100)
def test_repaired_batches_hold_whole_groups_of_valid_samples(flags, rng):
    samples = [(g, valid) for g, group in enumerate(flags) for valid in group]
    rng.shuffle(samples)
    groups, valid = [g for g, _ in samples], [v for _, v in samples]
    indices = repair_groups(groups, valid, 5)
    kept = {g for g, group in enumerate(flags) if sum(group) > 2.5}
    assert sorted(groups[i] for i in indices) == sorted(list(kept) * 5)
    assert all(valid[i] for i in indices)
    used = [indices.count(i) for i in range(len(samples)) if valid[i] and groups[i] in kept]
    assert set(used) <= {1, 2}  # nothing is lost, nothing counts more than twice


def test_a_group_larger_than_its_size_is_refused():
    with pytest.raises(ValueError, match="a group has 3 samples, size is 2"):
        repair_groups(["a", "a", "a"], [True] * 3, 2)
    with pytest.raises(ValueError, match="2 groups for 1"):
        repair_groups(["a", "b"], [True], 2)


# ---------------------------------------------------------------- replay


def a_group(name, version, world="w", fault=False):
    return [a_rollout([version], world, fault and i == 1, name, f"{name}-{i}") for i in range(2)]


def filled(**kwargs):
    buffer = ReplayBuffer(**{"capacity": 9, "max_age": 2} | kwargs)
    for i in range(6):
        buffer.add(a_group(f"g{i}", i))
    return buffer


def test_only_groups_of_the_recent_policy_and_this_world_come_back():
    buffer = filled()
    buffer.add(a_group("moved", 5, world="old"))
    buffer.add(a_group("broken", 5, fault=True))
    drawn, ages_N = buffer.draw(99, 6, random.Random(0), worlds={"w"})
    by_group = {t.group_id: int(a) for t, a in zip(drawn, ages_N)}
    assert by_group == {"g4": 2, "g5": 1} and len(drawn) == 4
    left = [group[0].group_id for group in buffer.state["groups"]]
    assert left == ["g4", "g5", "moved", "broken"]  # what is too old is forgotten
    assert ages_N.dtype == torch.int64
    assert len(buffer.draw(99, 6, random.Random(0), worlds=None)[0]) == 6  # no world ever changes


def test_the_buffer_is_a_ring_and_draws_whole_groups_without_repeats():
    buffer = filled(capacity=4, max_age=9)
    assert [group[0].group_id for group in buffer.state["groups"]] == ["g2", "g3", "g4", "g5"]
    counts = dict.fromkeys(("g2", "g3", "g4", "g5"), 0)
    rng = random.Random(3)
    for _ in range(400):
        drawn, _ = buffer.draw(2, 6, rng, worlds=None)
        names = [t.group_id for t in drawn]
        assert names[0] == names[1] != names[2] == names[3]
        counts[names[0]] += 1
        counts[names[2]] += 1
    assert all(150 < count < 250 for count in counts.values())  # 200 each, 5 sigma is 50


def test_replay_is_off_without_settings():
    buffer = ReplayBuffer()
    buffer.add(a_group("g", 0))
    drawn, ages_N = buffer.draw(3, 0, random.Random(0), worlds=None)
    assert drawn == [] and ages_N.shape == (0,) and buffer.state_dict() == {"groups": []}
    assert replay_weights(ages_N, torch.zeros(0)).shape == (0,)


def test_a_killed_run_replays_the_same_groups(tmp_path):
    whole, resumed = filled(), ReplayBuffer(9, 2)
    rollouts = [t for group in whole.state_dict()["groups"] for t in group]
    save_trajectories(tmp_path / "replay.parquet", rollouts)
    loaded = load_trajectories(tmp_path / "replay.parquet")
    resumed.load_state_dict({"groups": [loaded[i : i + 2] for i in range(0, len(loaded), 2)]})
    for now in (5, 6, 7):
        ours, theirs = (b.draw(2, now, random.Random(now), worlds={"w"}) for b in (whole, resumed))
        assert list(map(repr, ours[0])) == list(map(repr, theirs[0]))
        assert torch.equal(ours[1], theirs[1])
        for buffer in (whole, resumed):
            buffer.add(a_group(f"new{now}", now))
    assert repr(whole.state) == repr(resumed.state)


def test_weights_by_hand():
    ages_N, log_ratio_N = torch.tensor([0, 1, 2, 3]), torch.log(torch.tensor([1.0, 0.5, 1.5, 9.0]))
    weights_N = replay_weights(ages_N, log_ratio_N, decay=0.5, cap=2.0)
    assert torch.allclose(weights_N, torch.tensor([1.0, 0.25, 0.375, 0.25]) / 1.875 * 4)


def test_weights_are_one_on_policy_and_carry_no_gradient():
    log_ratio_N = torch.zeros(7, requires_grad=True)
    weights_N = replay_weights(torch.zeros(7, dtype=torch.int64), log_ratio_N)
    assert torch.equal(weights_N, torch.ones(7)) and not weights_N.requires_grad


def test_capped_weights_neither_overflow_nor_vanish_unseen():
    extreme_N = torch.tensor([500.0, -500.0])
    ages_N = torch.zeros(2, dtype=torch.int64)
    assert torch.allclose(replay_weights(ages_N, extreme_N, cap=2.0), torch.tensor([2.0, 0.0]))
    with pytest.raises(ValueError, match="too old"):
        replay_weights(ages_N, torch.tensor([-500.0, -500.0]))


BAD = [
    (torch.tensor([0]), torch.zeros(2), {}, "one age and one ratio"),
    (torch.tensor([-1]), torch.zeros(1), {}, "below 0"),
    (torch.tensor([0]), torch.tensor([math.nan]), {}, "not finite"),
    (torch.tensor([0]), torch.zeros(1), {"decay": 0.0}, "decay"),
    (torch.tensor([0]), torch.zeros(1), {"cap": math.inf}, "cap"),
]


@pytest.mark.parametrize(("ages_N", "log_ratio_N", "kwargs", "words"), BAD)
def test_bad_weights_are_refused(ages_N, log_ratio_N, kwargs, words):
    with pytest.raises(ValueError, match=words):
        replay_weights(ages_N, log_ratio_N, **kwargs)


def test_bad_settings_and_mixed_groups_are_refused():
    with pytest.raises(ValueError, match="max_age"):
        StalenessFilter(-1)
    with pytest.raises(ValueError, match="capacity"):
        ReplayBuffer(-1)
    with pytest.raises(ValueError, match="one group"):
        ReplayBuffer(1).add([a_rollout(group="a"), a_rollout(group="b")])
