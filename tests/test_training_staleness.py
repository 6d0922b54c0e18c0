"""Rollout ages in the real loop, exclusion of stale rollouts and group repair.

Run: python -m pytest tests/test_training_staleness.py
"""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from drlib.training.batch import RolloutBatch, compute_advantages, exclude_stale_rollouts
from drlib.training.distributed import Ranks
from drlib.training.grpo import check_rl_settings
from drlib.training.learner import accumulate_gradients
from drlib.training.policy_age import Clock
from drlib.trajectory import Termination, with_reward
from tests.loop_examples import (
    cold_start,
    flat,
    gradient_of,
    live_groups,
    rollout_shards,
    settings,
    train_on,
    zero_rewards,
)

start = cold_start
batch = rollout_shards


def set_version(trajectory, version):
    versions = np.where(trajectory.generated, version, 0).astype(np.int32)
    return replace(trajectory, versions=versions, policy_version=version)


# ---------------------------------------------------------------- age


def test_clock_maps_engine_versions_to_updates(batch):
    clock = Clock()
    clock.add_updates(1)
    clock.add_updates(0)  # a step without reward variance
    clock.add_updates(2)
    clock.on_sync()
    clock.add_updates(4)
    clock.on_sync()
    assert clock.now == 7 and clock.state["versions"] == [0, 3, 7]
    mixed = set_version(batch[0][0], 1)
    mixed.versions[np.flatnonzero(mixed.generated)[-1]] = 2
    stamped = clock.stamped(mixed)
    at = mixed.generated
    assert set(stamped.versions[at][:-1]) == {3} and stamped.versions[at][-1] == 7
    assert not stamped.versions[~at].any() and stamped.policy_version == 3
    with pytest.raises(ValueError, match="has version 3, but the engine knows versions below 3"):
        clock.stamped(set_version(mixed, 3))


def test_rollout_age_counts_updates(start, tmp_path):
    """With two stale steps the engine has the weights of steps 0, 0, 0 and 3.

    Rollouts more than one update old are not trained on.
    """
    step = start.step(
        settings(rl__off_policy__staleness=2, rl__filter__max_age=1, rl__lr=2e-3), tmp_path / "run"
    )
    ages, updates = [], 0
    for number in range(4):
        before, now = flat(step.model), step.clock.now
        assert now == updates
        row, trajectories = step.step(number)
        ages.append(now - step.clock.stamped(trajectories[0]).policy_version)
        stale = ages[-1] > 1
        assert row["filtered_stale"] == (len(trajectories) if stale else 0)
        assert torch.equal(flat(step.model), before) == (row["updates"] == 0)
        if stale:
            assert row["updates"] == 0 and row["tokens"] == 1 and row["grad_norm"] == 0
        updates += row["updates"]
    assert ages == [0, 1, 2, 0]
    assert updates == 3 and step.clock.state["versions"] == [0, 2]


def test_steps_without_updates_do_not_age_rollouts(start, batch, tmp_path):
    step = start.step(settings(rl__minibatches=2), tmp_path / "run")
    train_on(step, zero_rewards(batch), 0)
    assert step.clock.now == 0
    row = train_on(step, batch, 1)
    assert step.clock.now == row["updates"] == 2


def test_stale_rollouts_are_excluded_from_loss_and_baseline(start, batch, tmp_path):
    """The update is bit-identical to one on the remaining rollouts alone."""
    config = settings(rl__off_policy__staleness=4, rl__filter__max_age=2)
    stale = [{*range(0, len(shard), 5)} for shard in batch]
    assert any(batch[0][i].reward for i in stale[0])
    mixed = [
        [set_version(t, 1 if i in some else 2) for i, t in enumerate(shard)]
        for shard, some in zip(batch, stale)
    ]
    young = [[t for i, t in enumerate(s) if i not in some] for s, some in zip(mixed, stale)]

    def learned(name, shards):
        step = start.step(config, tmp_path / name)
        step.clock.load_state_dict({"updates": 7, "versions": [0, 4, 5]})
        row = train_on(step, shards, 0)
        return flat(step.model), row

    weights, row = learned("mixed", mixed)
    alone, others = learned("young", young)
    assert row["filtered_stale"] == sum(map(len, stale)) and others["filtered_stale"] == 0
    assert torch.equal(weights, alone) and not torch.equal(weights, flat(start.policy))
    unfiltered, _ = learned("all", [[set_version(t, 2) for t in shard] for shard in mixed])
    assert not torch.equal(weights, unfiltered)


# ---------------------------------------------------------------- repair


@pytest.fixture(scope="module")
def damaged(batch):
    """Return (shard, indices of group 1, indices of group 2).

    The first group with variance lost its last two of six rollouts, the next one its first three.
    """
    shard = list(batch[0])
    first = live_groups(shard)[0]
    second = next(t.group_id for t in shard if t.group_id != first)
    mine = {
        name: [i for i, t in enumerate(shard) if t.group_id == name] for name in (first, second)
    }
    for i in mine[first][-2:]:
        shard[i] = replace(shard[i], termination=Termination.ENV_FAULT, reward=None)
    for i in mine[second][:3]:
        shard[i] = replace(shard[i], reward=None)
    for one, other in (mine[first][:2], mine[second][3:5]):
        shard[one] = with_reward(shard[one], 1.0 - shard[other].reward, {})
    return shard, mine[first], mine[second]


def test_groups_are_repaired_or_dropped(damaged):
    shard, filled, lost = damaged
    config = settings(rl__filter__overlong="keep", rl__filter__repair_groups=True)
    advantages, weights, report = compute_advantages(shard, config)
    rest = [i for i in range(len(shard)) if i not in {*filled, *lost}]
    assert weights[filled].tolist() == [2, 2, 1, 1, 0, 0]  # as many as the group had
    assert not weights[lost].any() and not advantages[lost].any()
    assert set(weights[rest].tolist()) == {1}
    assert report["lost"] == {"repaired_groups": 1, "lost_groups": 1}

    # copies do not enter the baseline, which uses the three other rollouts
    rewards = [shard[i].reward for i in filled[:4]]
    by_hand = [r - (sum(rewards) - r) / 3 for r in rewards]
    assert any(by_hand)
    assert advantages[filled].tolist() == pytest.approx([*by_hand, 0, 0])

    # without repair both groups train on their remaining rollouts
    _, usual, report = compute_advantages(shard, config.derive(rl__filter__repair_groups=False))
    assert usual[filled].tolist() == [1, 1, 1, 1, 0, 0] and usual[lost].sum() == 3
    assert report["lost"] == {}


def test_weight_two_matches_a_copied_rollout(start, damaged):
    shard, filled, _ = damaged
    config = settings(
        rl__filter__overlong="keep", rl__filter__repair_groups=True, trainer__balance_coef=0.0
    )
    advantages, weights, _ = compute_advantages(shard, config)
    twice = [*range(len(shard)), *filled[:2]]
    ones = (weights > 0).float()
    found = []
    for share in (
        RolloutBatch(shard, advantages, weights),
        RolloutBatch([shard[i] for i in twice], advantages[twice], ones[twice]),
    ):
        model = copy.deepcopy(start.policy)
        row = accumulate_gradients(
            model, [share], config, Ranks(), start.chat.tokenizer.pad_token_id
        )
        assert row["trained_share"] > 0
        found.append(gradient_of(model))
    assert found[0].norm() > 0
    assert (found[0] - found[1]).norm() < 1e-4 * found[0].norm()


def test_stale_rollouts_count_as_lost(batch):
    clock = Clock()
    clock.load_state_dict({"updates": 6, "versions": [0, 6]})
    config = settings(
        rl__off_policy__staleness=1, rl__filter__max_age=1, rl__filter__repair_groups=True
    )
    shard = [set_version(t, int(i not in (0, 6, 7, 8))) for i, t in enumerate(batch[0])]
    ones = torch.ones(len(shard))
    weights, valid, columns = exclude_stale_rollouts(shard, ones, ones > 0, config, clock)
    assert columns == {"filtered_stale": 4, "repaired_groups": 1, "lost_groups": 1}
    assert weights[:6].tolist() == [0, 2, 1, 1, 1, 1] and not weights[6:12].any()
    assert valid.tolist() == (weights > 0).tolist() and set(weights[12:].tolist()) == {1}


def test_metrics_count_repaired_groups(start, damaged, batch, tmp_path):
    step = start.step(settings(rl__filter__repair_groups=True), tmp_path / "run")
    row = train_on(step, [damaged[0], batch[1]], 0)
    assert (row["repaired_groups"], row["lost_groups"], row["updates"]) == (1, 1, 1)


def test_max_age_without_staleness_is_rejected():
    with pytest.raises(
        ValueError,
        match="rl.filter.max_age=2 has no effect.*set rl.off_policy.staleness or "
        "rl.off_policy.replay_groups",
    ):
        check_rl_settings(settings(rl__filter__max_age=2))
    check_rl_settings(settings(rl__filter__max_age=2, rl__off_policy__staleness=1))
    check_rl_settings(settings(rl__filter__max_age=2, rl__off_policy__replay_groups=2))
