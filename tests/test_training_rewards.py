"""Alternative rewards, dynamic sampling, duplicated groups and the filter pipeline.

Run: python -m pytest tests/test_training_rewards.py
"""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from drlib.rewards.controls import majority_answer, majority_wrong_answer, shuffle_rewards
from drlib.rl.resampling import drop_zero_variance_groups
from drlib.task import Task, normalise_answer
from drlib.training.batch import build_filter, compute_advantages
from drlib.training.distributed import Ranks
from drlib.training.rollouts import (
    adjust_rewards,
    build_reward,
    find_live_groups,
    judge_rollout,
    sample_rollouts,
)
from drlib.trajectory import Termination, with_reward
from tests.loop_examples import cold_start, collect, flat, learned, rollout_shards, settings

start = cold_start
batch = rollout_shards
TASK = Task("t", "What is the capital of Gabon?", "Libreville", "search", "1 look-up")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def group_by_id(trajectories) -> dict[str, list]:
    groups = {}
    for trajectory in trajectories:
        groups.setdefault(trajectory.group_id, []).append(trajectory)
    return groups


@pytest.fixture(scope="module")
def sample_step(start, tmp_path_factory):
    """Return a function that samples a step: (rollouts, questions)."""

    def make(number: int = 1, **changes):
        config = settings(**changes)
        step = start.step(config, tmp_path_factory.mktemp("runs") / "made")
        tasks, worlds = step.scheduler.draw(number, step.curriculum)
        return sample_rollouts(step.agent, tasks, worlds, config, number), tasks

    return make


@pytest.fixture(scope="module")
def default_step(sample_step):
    return sample_step()


# ------------------------------------------------------------------ controls


def test_shuffle_rewards_permutes_judged_rewards():
    rewards = [1.0, None, 0.0, 0.0, 2.0, None]
    seen = set()
    for seed in range(200):
        found = shuffle_rewards(rewards, generator(seed))
        assert [i for i, reward in enumerate(found) if reward is None] == [1, 5]
        assert Counter(found) == Counter(rewards)
        seen.add(tuple(found))
    assert len(seen) == 12  # 4! / 2!, the two zeros being alike


def test_majority_wrong_answer_prefers_the_first_tie():
    answers = ["Oslo", "Libreville", None, "oslo.", "Rome", "", "Libreville", "Libreville"]
    assert majority_wrong_answer(answers, TASK) == "oslo"
    assert majority_wrong_answer(["Rome", "Oslo"], TASK) == "rome"
    assert majority_wrong_answer(["Libreville", None, ""], TASK) is None


def test_majority_answer_may_be_right():
    assert majority_answer(["Oslo", "Libreville", None, "libreville.", "Rome", ""]) == "libreville"
    assert majority_answer(["Rome", "Oslo", "oslo", "rome"]) == "rome", "the first one in a tie"
    assert majority_answer([None, "", None]) is None


def test_shuffled_rewards_keep_groups_and_tokens(default_step, sample_step):
    """Rollouts and group variances are unchanged; rewards are permuted within groups."""
    right, _ = default_step
    control, _ = sample_step(rl__reward__labels="shuffled")
    assert [t.id for t in right] == [t.id for t in control]
    n_changed = 0
    ours, theirs = group_by_id(right), group_by_id(control)
    for name, group in ours.items():
        assert [(a.token_ids == b.token_ids).all() for a, b in zip(group, theirs[name])]
        rewards = [t.reward for t in group]
        other = [t.reward for t in theirs[name]]
        assert Counter(rewards) == Counter(other)
        n_changed += rewards != other
        assert [t.reward_parts["correct"] for t in theirs[name]] == rewards
    assert n_changed >= 2
    again, _ = sample_step(rl__reward__labels="shuffled")
    assert [t.reward for t in again] == [t.reward for t in control]
    another, _ = sample_step(rl__reward__labels="shuffled", seed=0, rl__lr=1e-3)
    assert [t.reward for t in another] == [t.reward for t in control]


def test_wrong_labels_reward_the_majority_wrong_answer(default_step, sample_step):
    right, tasks = default_step
    control, _ = sample_step(rl__reward__labels="wrong")
    n_rewarded = 0
    for task, group in zip(tasks, group_by_id(control).values()):
        label = majority_wrong_answer([t.answer for t in group], task)
        for trajectory in group:
            given = trajectory.answer is not None and normalise_answer(trajectory.answer) == label
            assert trajectory.reward == float(label is not None and given)
            assert not (trajectory.reward and trajectory.reward_parts["correct"])
            n_rewarded += trajectory.reward
    assert n_rewarded >= 4
    assert [t.reward_parts["correct"] for t in control] == [t.reward for t in right]


def test_majority_labels_reward_the_most_frequent_answer(default_step, sample_step):
    """Without the correct answer: all that give the group's answer, whether it is right or not."""
    right, tasks = default_step
    rollouts, _ = sample_step(rl__reward__labels="majority")
    counts = Counter()
    for group in group_by_id(rollouts).values():
        answers = Counter(normalise_answer(t.answer) for t in group if t.answer)
        if not answers:
            assert [t.reward for t in group] == [0.0] * len(group)
            continue
        most = max(answers.values())
        rewarded = {normalise_answer(t.answer) for t in group if t.reward}
        assert len(rewarded) == 1 and answers[rewarded.pop()] == most
        assert sum(t.reward for t in group) == most
        counts.update((t.reward, t.reward_parts["correct"]) for t in group)
    assert counts[1.0, 1.0] and counts[1.0, 0.0], "right and wrong majorities occur"
    assert [t.reward_parts["correct"] for t in rollouts] == [t.reward for t in right]


def test_unjudged_rollouts_have_no_reward(default_step):
    right, tasks = default_step
    group = [*right[:3], with_reward(right[3], None, {"correct": 0.0})]
    for labels in ("right", "shuffled", "wrong", "majority"):
        config = settings(rl__reward__labels=labels, rl__reward__overlong_buffer=20)
        found = adjust_rewards(group, tasks[0], config, generator())
        assert found[3].reward is None and None not in [t.reward for t in found[:3]]


def test_overlong_penalty_by_hand(default_step):
    """DAPO, eq. 13: no penalty up to limit - buffer, then linear down to -1."""
    right, tasks = default_step
    config = settings()
    limit = config.rollout.max_context_tokens
    ended = next(t for t in right if t.termination == Termination.ANSWERED)
    cut = next(t for t in right if t.termination == Termination.LENGTH)
    buffer = limit - len(ended) + 10  # its last 10 tokens lie within
    config = settings(rl__reward__overlong_buffer=buffer)
    rewarded = [with_reward(t, 1.0, {"correct": 1.0}) for t in (ended, cut)]
    one, two = adjust_rewards(rewarded, tasks[0], config, generator())
    assert one.reward == pytest.approx(1 - 10 / buffer) and two.reward == 0.0
    assert one.reward_parts == {"correct": 1.0, "length": pytest.approx(-10 / buffer)}
    (free,) = adjust_rewards(
        rewarded[:1], tasks[0], settings(rl__reward__overlong_buffer=5), generator()
    )
    assert free.reward == (1.0 if len(ended) <= limit - 5 else pytest.approx(free.reward))


# ------------------------------------------------------------------ groups


def test_adaptive_group_extends_mixed_groups(default_step, sample_step):
    """The result equals the full group up to rounding, as fewer rollouts run at once."""
    whole, _ = default_step
    trajectories, _ = sample_step(rl__sampling__adaptive_group=True)
    by_id = {t.id: t for t in whole}
    sizes = set()
    for name, group in group_by_id(trajectories).items():
        first = {t.reward for t in group_by_id(whole)[name][:3]}
        expected_size = 6 if len(first) > 1 else 3
        assert [t.id for t in group] == [t.id for t in group_by_id(whole)[name][:expected_size]]
        sizes.add(len(group))
        for t in group:
            assert (t.token_ids == by_id[t.id].token_ids).all()
            assert t.logprobs == pytest.approx(by_id[t.id].logprobs, abs=1e-3)
            assert t.reward == by_id[t.id].reward
    assert sizes == {3, 6}


def test_groups_of_two_sizes_are_trained_on(start, tmp_path):
    step = start.step(settings(rl__sampling__adaptive_group=True), tmp_path / "run")
    row, trajectories = step.step(1)
    assert 8 * 3 < row["rollouts"] < 8 * 6 and row["rollouts"] == len(trajectories)
    assert row["updates"] == 1 and not torch.equal(flat(step.model), flat(start.policy))


def test_dynamic_sampling_draws_until_enough_groups_vary(start, tmp_path):
    """DAPO: train on eight groups with reward variance; the others leave the denominator."""
    config = settings(rl__sampling__draws=4, rl__filter__overlong="keep")
    step = start.step(config, tmp_path / "run")
    sample_step, kept, draws = collect(step, 1)
    groups = group_by_id(sample_step[0] + sample_step[1])
    assert 1 < draws <= 4 and len(groups) == draws * 8
    live = [name for name, group in groups.items() if len({t.reward for t in group}) > 1]
    live.sort(key=lambda name: int(name.rpartition("-")[2]))
    assert len(live) >= 8 and {*group_by_id(kept[0] + kept[1])} == {*live[:8]}
    assert [int(name.rpartition("-")[2]) % 2 for name in group_by_id(kept[0])] == [0] * len(
        group_by_id(kept[0])
    )
    row, _ = start.step(config, tmp_path / "again").step(1)
    tokens = sum(int(t.generated.sum()) for shard in kept for t in shard)
    assert row["draws"] == draws and row["tokens"] == tokens and row["trained_share"] == 1.0
    assert row["rollouts"] == draws * 48


def test_second_draw_has_new_questions_and_seeds(start, tmp_path):
    step = start.step(settings(rl__sampling__draws=2, rl__questions=4), tmp_path / "run")
    sample_step, _, draws = collect(step, 2)
    everything = sample_step[0] + sample_step[1]
    assert draws == 2 and len({t.id for t in everything}) == 2 * 4 * 6
    assert len({t.group_id for t in everything}) == 8
    assert len({t.task_id for t in everything}) >= 7


def test_live_groups_are_selected_in_draw_order(batch):
    one = batch[0][0]

    def group(key: int, *rewards) -> list:
        trajectories = [with_reward(one, reward, {}) for reward in rewards]
        return [
            replace(t, group_id=f"7-{key}", id=f"7-{key}-{i}") for i, t in enumerate(trajectories)
        ]

    shards = [
        group(0, 1.0, 1.0) + group(12, 1.0, 0.0) + group(2, 0.0, 1.0),
        group(1, None, 1.0) + group(9, 0.5, 1.0),
    ]
    assert find_live_groups(shards, 2, Ranks()) == {"7-2", "7-9"}
    assert find_live_groups(shards, 9, Ranks()) == {"7-2", "7-9", "7-12"}
    assert find_live_groups([group(1, 1.0, None)], 3, Ranks()) == set()


def test_step_without_reward_variance_keeps_all_rollouts(start, tmp_path):
    config = settings(
        rl__sampling__draws=2,
        rl__reward__name="format_and_answer",
        rollout__max_calls=1,
        rollout__max_turn_tokens=2,
    )
    step = start.step(config, tmp_path / "run")
    row, trajectories = step.step(0)
    assert row["live_groups"] == 0 and row["draws"] == 2 and row["updates"] == 0
    assert len(trajectories) == 2 * 48
    assert torch.equal(flat(step.model), flat(start.policy))


def test_duplicated_groups_replace_zero_variance_groups(batch):
    trajectories = batch[0] + batch[1]
    config = settings(rl__filter__overlong="keep")
    advantages, weights, _ = compute_advantages(trajectories, config)
    same, copies, _ = compute_advantages(trajectories, config.derive(rl__sampling__duplicate=True))
    assert torch.equal(advantages, same) and (weights == 1).all()
    rewards = torch.tensor([t.reward for t in trajectories])
    groups = torch.arange(len(trajectories)) // 6
    live = drop_zero_variance_groups(rewards, groups)
    assert 0 < live.sum() < len(trajectories)
    assert (copies[~live] == 0).all() and (copies[live] >= 1).all()
    assert copies.sum() == len(trajectories)  # every place is filled
    assert all(len(set(copies[groups == g].tolist())) == 1 for g in range(8))  # whole groups


def test_nothing_is_duplicated_without_reward_variance(batch):
    dead = [with_reward(t, 0.0, t.reward_parts) for t in batch[0]]
    _, weights, _ = compute_advantages(dead, settings(rl__sampling__duplicate=True))
    assert (weights == 0).all()


def test_pipeline_weights_low_quality_rollouts(batch):
    config = settings(rl__filter__pipeline=True, rl__filter__low_weight=0.25)
    trajectories = batch[0] + batch[1]
    clumsy = next(i for i, t in enumerate(trajectories) if t.answer is not None)
    refused = replace(trajectories[clumsy], termination=Termination.FORMAT)
    trajectories[clumsy] = refused
    _, weights, report = compute_advantages(trajectories, config)
    assert weights[clumsy] == 0.25
    assert set(weights.tolist()) <= {0.0, 0.25, 1.0} and report["labels"]["low"] >= 1
    assert (
        build_filter(config).pipeline.low_weight == 0.25
        and build_filter(settings()).pipeline is None
    )


def test_pipeline_affects_the_update(start, batch, tmp_path):
    shards = [[replace(t, termination=Termination.FORMAT) for t in batch[0]], batch[1]]
    weights = {}
    for low in (1.0, 0.1):
        changes = {"rl.filter.pipeline": True, "rl.filter.low_weight": low}
        weights[low], row = learned(start, shards, tmp_path / str(low), **changes)
        assert row["updates"] == 1 and row["filtered_format"] > 0
    assert not torch.equal(weights[1.0], weights[0.1])


def test_judged_rollouts_record_correctness(default_step):
    right, tasks = default_step
    coin = build_reward(settings(rl__reward__name="random"))
    found = [judge_rollout(t, tasks[i // 6], coin) for i, t in enumerate(right)]
    assert [t.reward_parts["correct"] for t in found] == [t.reward for t in right]
    assert [t.reward for t in found] != [t.reward for t in right]
