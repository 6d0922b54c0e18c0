"""RL with agents that use several contexts: each context is one sample.

Run: python -m pytest tests/test_training_samples.py
"""

import dataclasses
from collections import Counter

import numpy as np
import pytest
import torch

from drlib.questions.chains import NEXT_PAGE
from drlib.rl.curriculum import Curriculum
from drlib.rl.resampling import truncate_to_multiple
from drlib.training.grpo import check_rl_settings
from drlib.training.question_scheduler import SKILLS, QuestionScheduler
from drlib.training.rollouts import split_all_contexts, split_contexts
from drlib.worlds import Names
from tests.loop_examples import cold_start, flat, prepare, rollout_shards, settings, train_on

start = cold_start
batch = rollout_shards


def split_into_contexts(trajectory, *lengths):
    """Return the same tokens split into contexts of these lengths."""
    assert sum(lengths) == len(trajectory)
    numbers = np.repeat(np.arange(len(lengths)), lengths).astype(np.uint16)
    return dataclasses.replace(trajectory, contexts=numbers)


def split_at_second_turn(trajectory):
    """Split before the second turn, if there is one."""
    second = np.flatnonzero(trajectory.turns == 1)
    if not len(second):
        return trajectory
    return split_into_contexts(trajectory, second[0], len(trajectory) - second[0])


@pytest.fixture
def rollouts(batch):
    return [t for shard in batch for t in shard]


def test_split_contexts_concatenate_to_the_rollout(rollouts):
    whole = next(t for t in rollouts if t.turns.max() >= 1)
    parts = split_contexts(split_at_second_turn(whole))
    assert len(parts) == 2 and all(part.contexts is None for part in parts)
    for name in ("token_ids", "generated", "logprobs", "segments", "versions"):
        joined = np.concatenate([getattr(part, name) for part in parts])
        assert joined.tolist() == getattr(whole, name).tolist()
    assert {part.group_id for part in parts} == {whole.group_id}
    assert {part.reward for part in parts} == {whole.reward}
    assert [part.id for part in parts] == [f"{whole.id}/0", f"{whole.id}/1"]


def test_contexts_without_sampled_tokens_are_dropped(rollouts):
    assert all(split_contexts(one) == [one] for one in rollouts)
    one = rollouts[0]
    prompt = int(np.argmax(one.generated))
    (spoken,) = split_contexts(split_into_contexts(one, prompt, len(one) - prompt))
    assert spoken.token_ids.tolist() == one.token_ids[prompt:].tolist()


def test_split_all_contexts_returns_owners(rollouts):
    samples, owners = split_all_contexts([split_at_second_turn(t) for t in rollouts[:6]])
    for sample, owner in zip(samples, owners):
        assert sample.id.partition("/")[0] == rollouts[owner].id
    assert sorted({*owners}) == list(range(6))


def train_once(start, tasks_shards, folder, **changes):
    """Return (weights, metrics, batches) after one update on these shards."""
    step = start.step(settings(rl__lr=1e-3, **changes), folder)
    shares, _ = prepare(step, tasks_shards, 0)
    row = train_on(step, tasks_shards, 0)
    return flat(step.model), row, shares


def test_single_context_update_is_bit_identical(start, batch, tmp_path):
    """With K = 0 resets, training on contexts is bit-identical to plain GRPO."""
    shards = batch
    whole, *_ = train_once(start, shards, tmp_path / "whole")
    one_context = [[split_into_contexts(t, len(t)) for t in shard] for shard in shards]
    same, *_ = train_once(start, one_context, tmp_path / "same")
    assert torch.equal(whole, same)
    assert not torch.equal(whole, flat(start.policy))


def test_segments_share_the_advantage_of_their_rollout(start, batch, tmp_path):
    shards = batch
    split = [[split_at_second_turn(t) for t in shard] for shard in shards]
    _, plain_row, plain = train_once(start, shards, tmp_path / "plain")
    weights, row, shares = train_once(start, split, tmp_path / "split")
    for before, after in zip(plain, shares):
        of_rollout = dict(zip((t.id for t in before.trajectories), before.advantages_N.tolist()))
        found = [of_rollout[t.id.partition("/")[0]] for t in after.trajectories]
        assert after.advantages_N.tolist() == found
        assert len(after.trajectories) > len(before.trajectories)
    assert row["tokens"] == plain_row["tokens"], "every sampled token, once"
    # a later context does not attend to earlier ones, so its gradient differs
    assert not torch.equal(weights, train_once(start, shards, tmp_path / "again")[0])


def test_sample_baseline_weights_long_rollouts_more(start, batch, tmp_path):
    """With rewards 1 (two contexts), 0 and 0 the mean over samples is 1/2, not 1/3."""
    shards = batch
    long = next(t for shard in shards for t in shard if t.turns.max() >= 1)
    group = [
        dataclasses.replace(long, id=f"x-{i}", group_id="x", reward=reward)
        for i, reward in enumerate((1.0, 0.0, 0.0))
    ]
    group[0] = split_at_second_turn(group[0])
    changes = {"rl.advantage.estimator": "group_mean"}
    _, _, (share,) = train_once(start, [group], tmp_path / "a", **changes)
    assert np.allclose(share.advantages_N, [2 / 3, 2 / 3, -1 / 3, -1 / 3])
    changes["rl.advantage.baseline"] = "samples"
    _, _, (share,) = train_once(start, [group], tmp_path / "b", **changes)
    assert np.allclose(share.advantages_N, [1 / 2, 1 / 2, -1 / 2, -1 / 2])


@pytest.mark.parametrize(("n", "multiple"), [(10, 4), (8, 4), (3, 4), (7, 1), (0, 4)])
def test_truncate_to_multiple_keeps_the_largest_multiple(n, multiple):
    kept = truncate_to_multiple(n, multiple, generator=torch.Generator().manual_seed(0)).tolist()
    assert len(kept) % multiple == 0 and n - len(kept) < multiple
    assert kept == sorted(set(kept)) and all(0 <= i < n for i in kept)


def test_truncate_to_multiple_is_random_and_validated():
    found = Counter()
    for seed in range(200):
        kept = truncate_to_multiple(5, 4, generator=torch.Generator().manual_seed(seed))
        found.update({*range(5)} - {*kept.tolist()})
    assert {*found} == {*range(5)} and max(found.values()) < 70
    with pytest.raises(ValueError, match="multiple=0"):
        truncate_to_multiple(5, 0)
    with pytest.raises(ValueError, match="rl.advantage.sample_multiple must be at least 1"):
        check_rl_settings(settings(rl__advantage__sample_multiple=0))


def test_update_uses_a_multiple_of_samples(start, batch, tmp_path):
    shards = batch
    split = [[split_at_second_turn(t) for t in shard] for shard in shards]
    _, row, shares = train_once(start, split, tmp_path / "run", rl__advantage__sample_multiple=13)
    for shard, share in zip(split, shares):
        n = len(split_all_contexts(shard)[0])
        assert len(share.trajectories) == n // 13 * 13 < n


# ---------------------------------------------------------------- questions


def test_trails_are_drawn_by_share_with_own_worlds(start):
    config = settings(
        rl__curriculum__trail_share=0.4, rl__curriculum__trail_pages=5, rl__questions=200
    )
    questions = QuestionScheduler(config, start.world, Names.from_world(start.world))
    tasks, worlds = questions.draw(0, Curriculum(SKILLS))
    trails = [task for task in tasks if task.kind == "trail"]
    assert 55 < len(trails) < 105
    assert {task.hops for task in trails} == {1, 2, 3, 4, 5}
    for task in trails:
        assert NEXT_PAGE in worlds[task.world].entities[task.start].facts
    assert tasks == questions.draw(0, Curriculum(SKILLS))[0]


def test_trail_settings_without_share_change_nothing(start):
    """With a share of 0 the draws match the committed runs."""
    names = Names.from_world(start.world)
    curriculum = Curriculum(SKILLS)
    plain = QuestionScheduler(settings(), start.world, names).draw(3, curriculum)[0]
    other = QuestionScheduler(settings(rl__curriculum__trail_pages=99), start.world, names).draw(
        3, curriculum
    )[0]
    assert plain == other and not any(task.kind == "trail" for task in plain)
