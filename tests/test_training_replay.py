"""Replay of earlier groups in the real loop: selection, weights and gradients.

Replay on two processes: tests/test_training_stages.py.

Run: python -m pytest tests/test_training_replay.py
"""

import copy
import random

import numpy as np
import pytest
import torch

from drlib.rl.staleness import TrainedGroup
from drlib.training.distributed import Ranks
from drlib.training.group_replay import GroupReplay, is_world_current, pack_group, unpack_group
from drlib.training.grpo import check_rl_settings
from drlib.training.learner import accumulate_gradients, record
from drlib.training.packing import PackedBatch, score
from drlib.training.rollouts import step_seed
from drlib.training.run_folder import read_metrics
from drlib.trajectory import Termination, with_reward
from drlib.worlds.perturbed import perturbed_version
from tests.loop_examples import (
    REPLAYED,
    cold_start,
    few_rollouts,
    gradient_of,
    live_groups,
    prepare,
    quick_settings,
    record_part,
    settings,
    train_on,
    whole_and_resumed,
    without_sampling,
    zero_rewards,
)

start = cold_start
batch = few_rollouts


REPLAYING = {"rl.off_policy.replay_groups": 2, "rl.lr": 2e-3, "trainer.balance_coef": 0.0}


@pytest.fixture(scope="module")
def varied_batch(batch):
    """Return the batch with one flipped reward per group, so that every group has variance."""
    shards = []
    for shard in batch:
        dead = {t.group_id for t in shard} - {*live_groups(shard)}
        changed = []
        for t in shard:
            if t.group_id in dead and t.termination != Termination.LENGTH:
                dead.remove(t.group_id)
                t = with_reward(t, 1.0 - t.reward, t.reward_parts)
            changed.append(t)
        shards.append(changed)
    return shards


def test_steps_replay_recent_groups(start, varied_batch, tmp_path):
    """With a stale engine, ages count updates and never exceed the limit."""
    config = settings(
        rl__off_policy__replay_groups=4,
        rl__off_policy__replay_age=2,
        rl__off_policy__staleness=1,
        rl__lr=1e-3,
    )
    step = without_sampling(start.step(config, tmp_path / "run"), varied_batch)
    rows = []
    for number in range(4):
        before = {
            shard: len(b.state["groups"])
            for shard, b in step.callbacks.parts["group_replay"].buffers.items()
        }
        rows.append(step.step(number)[0])
        assert rows[-1]["replayed"] <= sum(min(2, n) for n in before.values())
        now = step.clock.now - rows[-1]["updates"]
        stored = [
            g
            for b in step.callbacks.parts["group_replay"].buffers.values()
            for g in b.state["groups"]
        ]
        assert all(now - t.policy_version <= 2 for g in stored for t in g.rollouts)
    assert rows[0]["replayed"] == rows[0]["replay_age"] == rows[0]["replay_weight"] == 0
    later = [row for row in rows[1:] if row["replayed"]]
    assert len(later) >= 2 and max(row["replayed"] for row in later) >= 3
    assert all(0 < row["replay_age"] <= 2 and 0 < row["replay_weight"] < 2 for row in later)
    for buffer in step.callbacks.parts["group_replay"].buffers.values():
        for group in buffer.state["groups"]:
            assert any(group.advantages) and all(weight > 0 for weight in group.weights)
            assert {t.policy_version for t in group.rollouts} <= {0, 2}  # of 0, 0, 2, 2 updates


def reference_gradient(model, drawn, rest):
    """Return (gradient, weight factors) of the drawn groups one update later.

    The clipped surrogate is summed by weight and divided by the weighted tokens of the drawn groups
    and of `rest`.
    """
    rollouts = [t for group, _ in drawn for t in group.rollouts]
    batch = PackedBatch.pack([t.token_ids for t in rollouts])
    scored = score(model, batch, batch.spread([t.generated for t in rollouts], torch.bool))
    of_each = scored.logp_M.split([int(t.generated.sum()) for t in rollouts])
    facts = [
        (chance, advantage, weight)
        for group, chance in drawn
        for advantage, weight in zip(group.advantages, group.weights)
    ]
    total, factors = 0.0, []
    tokens = sum(int(t.generated.sum()) for t in rest)
    for logp_T, t, (chance, advantage, weight) in zip(of_each, rollouts, facts, strict=True):
        gap_T = logp_T - torch.tensor(t.logprobs[t.generated])
        # decay for one update of age; the mean ratio, capped at 2; the importance weight
        mean_ratio = float(gap_T.detach().mean().exp())
        factors.append(0.9 * min(2.0, mean_ratio) * chance)
        ratio_T = gap_T.exp()
        surrogate_T = torch.minimum(ratio_T * advantage, ratio_T.clamp(0.8, 1.28) * advantage)
        total = total - weight * factors[-1] * surrogate_T.sum()
        tokens += weight * factors[-1] * len(gap_T)
    (total / tokens).backward()
    return gradient_of(model), factors


def test_replayed_gradient_uses_stored_logprobs(start, varied_batch, tmp_path):
    """The step's own groups have no variance, so only the replayed groups have a gradient."""
    config = settings(**REPLAYING)
    step = start.step(config, tmp_path / "run")
    train_on(step, varied_batch, 0)
    dead = zero_rewards(varied_batch)
    drawn = []
    for shard, buffer in copy.deepcopy(step.callbacks.parts["group_replay"].buffers).items():
        rng = random.Random(step_seed(f"{config.seed}-replay-{shard}", 1))
        drawn += buffer.draw(1, 1, rng, worlds=None)
    assert len(drawn) == 2
    rest = [t for shard in dead for t in shard if t.termination != Termination.LENGTH]
    expected, factors = reference_gradient(copy.deepcopy(step.model), drawn, rest)

    # the gradient before clipping, with buffers restored from a checkpoint
    model = copy.deepcopy(step.model)
    stored = GroupReplay(config, Ranks(), step.callbacks.parts["group_replay"].state_dict())
    own, _ = prepare(step, dead, 1)
    shares, _ = stored.add_replayed(own, 1, step.clock, lambda *of: record_part(step, *of))
    row = accumulate_gradients(model, shares, config, Ranks())
    assert (gradient_of(model) - expected).norm() < 1e-3 * expected.norm()
    assert row["logp_gap"] > 0.01  # the policy has moved: no ratio is 1

    row = train_on(step, dead, 1)
    assert row["grad_norm"] == pytest.approx(float(expected.norm()), rel=1e-3)
    assert (row["replayed"], row["replay_age"], row["updates"]) == (2, 1, 1)
    assert row["replay_weight"] == pytest.approx(np.mean(factors), rel=1e-3)


def test_replay_age_is_limited_by_max_age():
    for max_age, limit in ((0, 5), (3, 3), (9, 5)):
        config = settings(
            rl__off_policy__replay_groups=2,
            rl__off_policy__replay_age=5,
            rl__filter__max_age=max_age,
        )
        buffers = GroupReplay(config, Ranks()).buffers
        assert [buffer.max_age for buffer in buffers.values()] == [limit, limit]


def test_replay_keeps_the_step_own_advantages(start, varied_batch, tmp_path):
    step = start.step(settings(**REPLAYING), tmp_path / "run")
    train_on(step, varied_batch, 0)
    own, _ = prepare(step, varied_batch, 1)
    joined, row = step.callbacks.parts["group_replay"].add_replayed(
        own, 1, step.clock, lambda *of: record_part(step, *of)
    )
    assert row["replayed"] == 2
    for share, more in zip(own, joined, strict=True):
        n = len(share.trajectories)
        assert more.trajectories[:n] == share.trajectories and len(more.trajectories) > n
        assert torch.equal(more.weights_N[:n], share.weights_N)
        assert torch.equal(more.advantages_N[:n], share.advantages_N)


def test_groups_without_variance_are_not_stored(start, varied_batch, tmp_path):
    step = start.step(settings(**REPLAYING), tmp_path / "run")
    train_on(step, varied_batch, 0)
    for shard, buffer in zip(varied_batch, step.callbacks.parts["group_replay"].buffers.values()):
        stored = [group.rollouts[0].group_id for group in buffer.state["groups"]]
        assert stored == live_groups([t for t in shard if t.reward or t.termination != "length"])
    train_on(step, zero_rewards(varied_batch), 1)
    assert [
        len(b.state["groups"]) for b in step.callbacks.parts["group_replay"].buffers.values()
    ] != [0, 0]
    again = start.step(settings(**REPLAYING), tmp_path / "dead")
    train_on(again, zero_rewards(varied_batch), 0)
    assert [b.state["groups"] for b in again.callbacks.parts["group_replay"].buffers.values()] == [
        [],
        [],
    ]


def test_groups_of_a_changed_world_are_not_replayed(start, varied_batch, tmp_path):
    """Python tasks have no world, and groups sampled after the change are kept."""
    assert is_world_current("python") and is_world_current(perturbed_version("tour-1"))
    assert not is_world_current("tour-1")
    config = settings(
        **{**REPLAYING, "rl.off_policy.replay_groups": 40}, rl__callbacks__world_change=2
    )
    step = start.step(config, tmp_path / "run")
    train_on(step, varied_batch, 0)
    drawn = {
        number: step.callbacks.parts["group_replay"]._draw(0, number, step.clock)
        for number in (1, 2)
    }
    worlds = {
        n: {t.world_version for g, _ in some for t in g.rollouts} for n, some in drawn.items()
    }
    assert any(world != "python" for world in worlds[1])
    assert worlds[2] <= {"python"}


def test_pack_group_round_trip(batch):
    rollouts = batch[0][:3]
    assert len({t.group_id for t in rollouts}) == 1
    group = TrainedGroup(rollouts, [1 / 3, 0.0, -0.1], [1.0, 2.0, 0.5])
    back = unpack_group(pack_group(group))
    assert back.advantages == group.advantages and back.weights == group.weights
    for one, other in zip(rollouts, back.rollouts, strict=True):
        for name in ("token_ids", "generated", "logprobs", "entropies", "versions"):
            found, expected = getattr(other, name), getattr(one, name)
            assert found.dtype == expected.dtype and np.array_equal(found, expected)
        assert (other.reward, other.group_id, other.id) == (one.reward, one.group_id, one.id)
        assert other.messages == [] and other.tool_results == []
    assert unpack_group(pack_group(back)) == back


ROUTED = {"rl.off_policy.replay_groups": 4, "rl.off_policy.routing_replay": "r3"}


# one update per step: after two, the first groups are not too old for the third step
ONCE = REPLAYED | {"rl.minibatches": 1}


@pytest.mark.parametrize("switches", [ROUTED, ONCE], ids=["routed", "everything"])
def test_resumed_run_replays_the_same_groups(start, tmp_path, switches):
    config = quick_settings(**switches)

    def are_stored(trainer):
        buffers = trainer.callbacks.parts["group_replay"].buffers.values()
        return [bool(buffer.state["groups"]) for buffer in buffers]

    (whole, stored), (cut, _) = whole_and_resumed(start, config, tmp_path, are_stored)
    assert stored == [[True, True]], "a shard has nothing to replay"
    assert cut.clock.state == whole.clock.state
    for shard, buffer in whole.callbacks.parts["group_replay"].buffers.items():
        assert cut.callbacks.parts["group_replay"].buffers[shard].state == buffer.state
    assert read_metrics(whole.run.path)[-1]["replayed"] > 0


def test_shards_replay_independently(start, varied_batch, tmp_path):
    """A process with one shard draws the same after resuming from both shards' checkpoint."""
    config = settings(**REPLAYING)
    step = start.step(config, tmp_path / "run")
    train_on(step, varied_batch, 0)
    state = step.callbacks.parts["group_replay"].state_dict()
    own, _ = prepare(step, varied_batch, 1)

    def build_batch(*what):
        return record_part(step, *what)

    both, row = step.callbacks.parts["group_replay"].add_replayed(own, 1, step.clock, build_batch)
    found = []
    for shard in (0, 1):
        ranks = Ranks()
        ranks.shards = range(shard, 2, 2)
        alone = GroupReplay(config, ranks, state)
        ((share,), part) = alone.add_replayed(own[shard : shard + 1], 1, step.clock, build_batch)
        found.append(part)
        assert share.trajectories == both[shard].trajectories
        assert torch.equal(share.weights_N, both[shard].weights_N)
        assert (
            alone.buffers[shard].state == step.callbacks.parts["group_replay"].buffers[shard].state
        )
    assert row["replayed"] == sum(part["replayed"] for part in found) == 2


def test_replayed_rollouts_keep_their_routes(start, tmp_path):
    step = start.step(quick_settings(**ROUTED), tmp_path / "run")
    _, trajectories = step.step(0)
    half = len(trajectories) // 2
    own, _ = prepare(step, [trajectories[:half], trajectories[half:]], 1)
    joined, row = step.callbacks.parts["group_replay"].add_replayed(
        own, 1, step.clock, lambda *of: record_part(step, *of)
    )
    assert row["replayed"] > 0
    for share in joined:
        for t, routes in zip(share.trajectories, share.routes, strict=True):
            assert routes.shape[0] == len(t) and routes is t.routed_experts


def test_replayed_rollouts_have_reference_and_old_logprobs(start, varied_batch, tmp_path):
    config = settings(**REPLAYING, rl__loss__kl_coef=0.5, rl__loss__correction="truncate")
    step = start.step(config, tmp_path / "run")
    train_on(step, varied_batch, 0)
    before = copy.deepcopy(step.model)
    own, _ = prepare(step, varied_batch, 1)
    joined, _ = step.callbacks.parts["group_replay"].add_replayed(
        own, 1, step.clock, lambda *of: record_part(step, *of)
    )
    for share in joined:
        for name, model in (("old", before), ("reference", start.policy)):
            expected = record(model, share.trajectories, config)
            found = share.recorded[name]
            gaps = [np.abs(a - b).max() for a, b in zip(found, expected, strict=True)]
            assert max(gaps) < 1e-4
    row = train_on(step, varied_batch, 2)
    assert row["kl"] > 0 and row["updates"] == 1


BAD = [
    (
        {"rl.off_policy.replay_groups": 3},
        "rl.off_policy.replay_groups=3 does not divide into 2 shards: set a multiple of 2",
    ),
    (
        {"rl.off_policy.replay_groups": 2, "rl.off_policy.replay_age": 0},
        "rl.off_policy.replay_age must be at least 1",
    ),
]


@pytest.mark.parametrize(("switches", "words"), BAD)
def test_incompatible_settings_are_rejected(switches, words):
    with pytest.raises(ValueError, match=words):
        check_rl_settings(settings(**switches))


def test_compatible_settings_are_accepted():
    check_rl_settings(settings(rl__off_policy__replay_age=9))
    check_rl_settings(
        settings(
            rl__off_policy__replay_groups=2, rl__filter__max_age=3, rl__loss__correction="icepop"
        )
    )
    check_rl_settings(settings(**REPLAYED))
