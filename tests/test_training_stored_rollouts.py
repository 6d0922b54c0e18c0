"""Offline RL: rollouts that a run wrote, read back, checked and trained on without an engine.

Run: python -m pytest tests/test_training_stored_rollouts.py
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from drlib.config import FIELDS, list_rollout_files
from drlib.rl.losses import LossConfig, policy_loss
from drlib.training import stages
from drlib.training.distributed import Ranks
from drlib.training.grpo import check_rl_settings
from drlib.training.learner import record
from drlib.training.stored_rollouts import (
    UNUSED,
    StoredRolloutError,
    StoredRollouts,
    check_stored_rollouts,
    read_rollouts,
)
from drlib.trajectory import load_trajectories, save_trajectories
from tests.loop_examples import cold_start, flat, settings

start = cold_start
VOCABULARY = 2048


@pytest.fixture(scope="module")
def online(start, tmp_path_factory):
    """Return a run of two steps that saved its rollouts, and the weights after the first step."""
    folder = tmp_path_factory.mktemp("runs") / "online"
    trainer = start.step(settings(rl__save_rollouts=True), folder)
    trainer(0)
    weights = flat(trainer.model)
    trainer(1)
    return trainer, weights


@pytest.fixture(scope="module")
def folder(online):
    return online[0].run.path


def offline(start, where, folder, **changes):
    """Return a trainer on stored rollouts, before its first step."""
    return start.step(settings(rl__off_policy__rollouts=str(where), **changes), folder)


def names(shards):
    return [t.group_id for shard in shards for t in shard]


# ---------------------------------------------------------------- writing


def test_a_run_saves_every_rollout_of_every_step(online, folder):
    files = list_rollout_files(str(folder))
    assert [file.name for file in files] == [
        "trajectories_0001.parquet",
        "trajectories_0002.parquet",
    ]
    config = online[0].config
    for file in files:
        stored = load_trajectories(file)
        assert len(stored) == config.rl.questions * config.rl.group
        numbers = [int(t.group_id.rpartition("-")[2]) for t in stored]
        assert numbers == sorted(numbers)  # the same file on any number of processes
    assert len({t.reward for t in stored}) == 2


def test_without_the_setting_a_few_rollouts_of_three_steps_are_saved(start, tmp_path):
    trainer = start.step(settings(**{"rl.questions": 5, "rl.group": 2}), tmp_path / "run")
    for step in range(4):
        trainer(step)
    files = list_rollout_files(str(trainer.run.path))
    assert [file.stem[-1] for file in files] == ["1", "3", "4"]
    assert [len(load_trajectories(file)) for file in files] == [8, 8, 8]


# ---------------------------------------------------------------- training


@pytest.mark.parametrize("clip", ["none", "ppo"])
def test_offline_step_on_fresh_rollouts_equals_the_online_step(start, online, tmp_path, clip):
    """The first epoch is the on-policy gradient: rollouts of the starting policy, ratio 1."""
    file = list_rollout_files(str(online[0].run.path))[0]
    trainer = offline(start, file, tmp_path / "run", rl__loss__clip=clip)
    row = trainer(0)
    before = flat(start.policy)
    moved = (online[1] - before).norm()
    assert row["updates"] == 1 and row["ratio_mean"] == pytest.approx(1, abs=1e-4)
    assert moved > 0 and (flat(trainer.model) - online[1]).norm() < 0.02 * moved


def test_second_epoch_is_corrected_for_the_changed_policy(start, folder, tmp_path):
    """Old groups keep the log-probabilities of the policy that sampled them."""
    file = list_rollout_files(str(folder))[0]
    for clip in ("none", "ppo"):
        trainer = offline(start, file, tmp_path / clip, rl__loss__clip=clip, rl__lr=2e-3)
        rows = [trainer(step) for step in range(3)]
        assert [row["rollouts"] for row in rows] == [48, 48, 48]
        assert rows[0]["logp_gap"] < 1e-4 < 1e-2 < rows[-1]["logp_gap"]
        assert (rows[-1]["clip_high"] + rows[-1]["clip_low"] > 0) == (clip == "ppo")


def test_groups_are_used_once_per_epoch(folder):
    config = settings(rl__off_policy__rollouts=str(folder))  # 16 groups, 8 per step
    stored = StoredRollouts(config, VOCABULARY)
    rollouts = [names(stored.draw(Ranks()).sampled) for _ in range(4)]
    assert all(len(some) == 8 * 6 for some in rollouts)
    drawn = [{*some} for some in rollouts]
    assert all(len(some) == 8 for some in drawn)
    assert len(drawn[0] | drawn[1]) == len(drawn[2] | drawn[3]) == 16
    assert drawn[0] != drawn[2]
    # the groups of two steps keep their own rollouts
    assert all(len(group) == 6 for group in stored.groups.values())
    assert all(len({t.task_id for t in group}) == 1 for group in stored.groups.values())


def test_a_killed_offline_run_resumes_to_the_same_weights(start, folder, tmp_path):
    whole = offline(start, folder, tmp_path / "whole")
    whole.run.loop(whole, 3, 1, whole.extra)
    first = offline(start, folder, tmp_path / "parts")
    with pytest.raises(KeyboardInterrupt):
        first.run.loop(interrupt_at(first, 2), 3, 1, first.extra)
    second = offline(start, folder, tmp_path / "parts")
    second.run.loop(second, 3, 1, second.extra)
    assert torch.equal(flat(second.model), flat(whole.model))


def interrupt_at(trainer, last):
    def step(number):
        if number == last:
            raise KeyboardInterrupt
        return trainer(number)

    return step


def test_cloning_raises_the_likelihood_of_what_it_clones(start, folder, tmp_path):
    """Filtered cloning raises that of correct rollouts; cloning of all raises both."""
    stored = [t for file in list_rollout_files(str(folder)) for t in read_rollouts(file, 2048)]
    correct = [t for t in stored if t.reward == 1]
    wrong = [t for t in stored if t.reward == 0]
    gains = {}
    for estimator in ("uniform", "reward"):
        trainer = offline(
            start,
            folder,
            tmp_path / estimator,
            rl__loss__clip="log_likelihood",
            rl__advantage__estimator=estimator,
            rl__filter__overlong="keep",
            rl__questions=16,
            rl__steps=4,
        )
        before = [likelihood(trainer, some) for some in (correct, wrong)]
        for step in range(4):
            row = trainer(step)
        assert row["trained_share"] == pytest.approx(1 if estimator == "uniform" else share(stored))
        after = [likelihood(trainer, some) for some in (correct, wrong)]
        gains[estimator] = [b - a for a, b in zip(before, after)]
    assert gains["uniform"][0] > 0 < gains["uniform"][1]
    assert gains["reward"][0] > 0
    assert gains["reward"][1] < gains["uniform"][1]


def share(stored):
    """Return the share of generated tokens that belong to correct rollouts."""
    tokens = [int(t.generated.sum()) for t in stored]
    return sum(n for n, t in zip(tokens, stored) if t.reward == 1) / sum(tokens)


def likelihood(trainer, some):
    logps = record(trainer.model.eval(), some, trainer.config)
    return float(np.concatenate([x[t.generated] for x, t in zip(logps, some)]).mean())


def test_importance_weighted_gradient_is_unbiased_by_enumeration():
    """E over the behaviour policy of r A grad log pi is the gradient of the expected reward."""
    theta_V = torch.tensor([0.3, -0.2, 0.9], dtype=torch.float64, requires_grad=True)
    behaviour_V = torch.log_softmax(torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64), 0)
    rewards_V = torch.tensor([1.0, 0.0, 0.5], dtype=torch.float64)

    expected = (theta_V.softmax(0) * rewards_V).sum()
    (exact_V,) = torch.autograd.grad(expected, theta_V)
    loss, _ = policy_loss(
        torch.log_softmax(theta_V, 0)[:, None],
        behaviour_V[:, None],
        rewards_V,
        torch.ones(3, 1, dtype=torch.bool),
        LossConfig(clip="none"),
        weights_B=behaviour_V.exp(),
        denominator=1.0,
    )
    (gradient_V,) = torch.autograd.grad(-loss, theta_V)
    assert torch.allclose(gradient_V, exact_V, atol=1e-12)


# ---------------------------------------------------------------- faults


def test_missing_and_empty_files_are_named(start, tmp_path):
    with pytest.raises(
        StoredRolloutError, match="nowhere.*there is no rollout file.*save_rollouts"
    ):
        offline(start, tmp_path / "nowhere", tmp_path / "run")
    save_trajectories(tmp_path / "trajectories_0001.parquet", [])
    with pytest.raises(StoredRolloutError, match="the files have no rows"):
        offline(start, tmp_path, tmp_path / "run")


def test_damaged_file_is_named(folder, tmp_path):
    data = list_rollout_files(str(folder))[0].read_bytes()
    path = tmp_path / "cut.parquet"
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(StoredRolloutError, match=r"cut.parquet, row 1: .*truncated or damaged"):
        read_rollouts(path, VOCABULARY)


FAULTS = {
    "log-probability of the policy that sampled": lambda t: replace(
        t, logprobs=np.where(t.generated, np.float32("nan"), t.logprobs)
    ),
    "no metadata 'skill'": lambda t: replace(t, metadata={"source": "python"}),
    "no reward part 'correct'": lambda t: replace(t, reward_parts={}),
    "no entropies": lambda t: replace(t, entropies=None),
    "outside the policy's vocabulary of 2048": lambda t: replace(t, token_ids=t.token_ids + 2000),
    "has the reward nan": lambda t: replace(t, reward=float("nan")),
}


@pytest.mark.parametrize("message", FAULTS)
def test_bad_row_is_named_with_its_file(folder, tmp_path, message):
    rollouts = load_trajectories(list_rollout_files(str(folder))[0])[:5]
    rollouts[3] = FAULTS[message](rollouts[3])
    path = tmp_path / "bad.parquet"
    save_trajectories(path, rollouts)
    with pytest.raises(StoredRolloutError, match=f"bad.parquet, row 4: .*{message}"):
        read_rollouts(path, VOCABULARY)


def test_rollouts_without_a_reward_are_read_and_do_not_train(start, folder, tmp_path):
    rollouts = load_trajectories(list_rollout_files(str(folder))[0])
    rollouts[0] = replace(rollouts[0], reward=None)
    save_trajectories(tmp_path / "some.parquet", rollouts)
    row = offline(start, tmp_path / "some.parquet", tmp_path / "run")(0)
    assert row["filtered_unjudged"] == 1


@pytest.mark.parametrize("name", UNUSED)
def test_settings_without_effect_offline_are_refused(name):
    usual = FIELDS[name].default
    others = {
        "engine.name": "hf",
        "rl.off_policy.engine_dtype": "bfloat16",
        "rl.off_policy.routing_replay": "r2",
        "rl.sampling.resample": "sort",
        "rl.reward.name": "format",
        "rl.reward.labels": "shuffled",
    }
    other = others.get(name, "heavy:n=2" if isinstance(usual, str) else type(usual)(usual + 1))
    with pytest.raises(ValueError, match=f"^{name}=.* has no effect on the stored rollouts"):
        check_stored_rollouts(settings(**{"rl.off_policy.rollouts": "some", name: other}))
    check_stored_rollouts(settings(**{name: other}))
    check_rl_settings(settings(**{"rl.off_policy.rollouts": "some"}))


def test_stage_folder_depends_on_the_contents_of_the_files(folder, tmp_path):
    one, two = list_rollout_files(str(folder))
    (tmp_path / "copy.parquet").write_bytes(one.read_bytes())

    def hashed(path):
        config = settings(rl__off_policy__rollouts=str(path))
        return stages.folder("rl", config, tmp_path).name

    assert hashed(one) == hashed(tmp_path / "copy.parquet") != hashed(two)
    assert hashed(folder) not in (hashed(one), hashed(two))
