"""The RL loop: updates with and without gradients, engine synchronisation and resuming.

Run: python -m pytest tests/test_training_grpo.py
"""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from drlib.config import Config
from drlib.training import grpo, stages
from drlib.training.batch import RolloutBatch, compute_advantages
from drlib.training.distributed import Ranks
from drlib.training.learner import (
    accumulate_gradients,
    micro_batch_tokens,
    record,
    split_micro_batches,
)
from drlib.training.packing import PackedBatch, score
from drlib.training.rollouts import summarise_rollouts
from drlib.training.run_folder import read_metrics
from drlib.trajectory import load_trajectories, with_reward
from tests.loop_examples import (
    build_world,
    cold_start,
    few_rollouts,
    flat,
    gradient_of,
    learned,
    prepare,
    quick_settings,
    settings,
    train_on,
    whole_and_resumed,
    without_sampling,
    zero_rewards,
)

start = cold_start
batch = few_rollouts


# ---------------------------------------------------------------- a step learns


def test_ci_profile_steps_have_gradients(start, tmp_path):
    build_world(tmp_path)
    config = Config.load("ci", processes=1)
    folder = stages.folder("rl", config, tmp_path)
    grpo.grpo(config, folder, Ranks())
    rows = read_metrics(folder)
    live = [row for row in rows if row["live_groups"] > 0]
    assert len(live) >= 2
    assert all(row["updates"] == 1 and row["grad_norm"] > 0.01 for row in live)
    assert all(row["trained_share"] > 0.05 for row in live)


def reference_advantages(trajectories):
    """Return the reward minus the mean reward of the other rollouts of the group."""
    groups = {}
    for t in trajectories:
        groups.setdefault(t.group_id, []).append(t.reward)
    return [
        t.reward - (sum(group) - t.reward) / (len(group) - 1)
        for t in trajectories
        for group in [groups[t.group_id]]
    ]


def test_one_step_matches_plain_pytorch(start, batch, tmp_path):
    """Leave-one-out advantages, mean loss over tokens and AdamW, without packing or batching."""
    # Adam's first step amplifies rounding differences, so its check uses the trainer's gradients.
    config = settings(trainer__balance_coef=0.0, trainer__micro_batch_tokens=500)
    assert len(list(split_micro_batches(range(12), batch[0], micro_batch_tokens(config)))) > 1
    trainer = without_sampling(start.step(config, tmp_path / "run"), batch)
    model = copy.deepcopy(trainer.model).train()
    seen = []
    step_optimizer = trainer.learner.optimizers.step
    trainer.learner.optimizers.step = lambda factor: (
        seen.append(([p.grad.clone() for p in trainer.model.parameters()], factor)),
        step_optimizer(factor),
    )
    metrics, rollouts = trainer.step(0)

    # Tongyi's filter: truncated failures stay in the baseline but not in the loss
    pairs = [
        (t, advantage)
        for t, advantage in zip(rollouts, reference_advantages(rollouts), strict=True)
        if not (t.termination == "length" and t.reward == 0)
    ]
    tokens = sum(int(t.generated.sum()) for t, _ in pairs)
    for t, advantage in pairs:
        ids_1T = torch.as_tensor(t.token_ids, dtype=torch.long)[None]
        logp_TV = model(input_ids=ids_1T).logits[0, :-1].float().log_softmax(-1)
        logp_T = logp_TV.gather(-1, ids_1T[0, 1:, None])[:, 0]
        logp_T = logp_T[torch.as_tensor(t.generated[1:])]
        ratio_T = torch.exp(logp_T - logp_T.detach())
        (-advantage * ratio_T.sum() / tokens).backward()

    ((found, factor),) = seen
    expected = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    norm = sum((b**2).sum() for b in expected).sqrt()
    assert metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-5)
    expected = [b / max(norm, 1.0) for b in expected]  # clipped at a norm of 1
    distance = sum(((a - b) ** 2).sum() for a, b in zip(found, expected, strict=True)).sqrt()
    assert distance < 1e-5 * min(norm, 1.0)

    for p, gradient in zip(model.parameters(), found):
        p.grad = gradient
    lr = config.rl.lr * factor
    torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.0).step()
    assert torch.equal(flat(model), flat(trainer.model))


def test_update_raises_better_rollouts_of_a_group(start, batch, tmp_path):
    """To first order, the sum of advantage times change of log-probability must grow."""
    config = settings(rl__lr=2e-5, trainer__balance_coef=0.0)
    step = start.step(config, tmp_path / "run")
    train_on(step, batch, 0)
    everything = batch[0] + batch[1]
    advantages, weights, _ = compute_advantages(everything, config)
    assert (advantages > 0).any() and (advantages < 0).any()
    before = record(start.policy, everything, config)
    after = record(step.model, everything, config)
    change = np.array([(b - a).sum() for a, b in zip(before, after, strict=True)])
    push = (advantages * weights).numpy()
    assert (push * change).sum() > 0
    assert change[push > 0].mean() > 0 > change[push < 0].mean()


def test_shards_have_their_own_advantages(start, batch, tmp_path):
    """Leave-one-out uses one group at a time, so a shard gives the same numbers alone."""
    step = start.step(settings(), tmp_path / "run")
    shares, _ = prepare(step, batch, 0)
    for share, shard in zip(shares, batch, strict=True):
        alone, weights, _ = compute_advantages(shard, settings())
        assert share.trajectories == shard
        assert torch.equal(share.advantages_N, alone) and torch.equal(share.weights_N, weights)
    assert not torch.equal(shares[0].advantages_N, shares[1].advantages_N)


def test_rewards_are_assigned_to_their_rollouts(start, batch):
    """With one correct rollout, only its group has non-zero advantages."""
    everything = zero_rewards(batch)[0] + zero_rewards(batch)[1]
    lucky = 8
    everything[lucky] = with_reward(everything[lucky], 1.0, {})
    advantages, _, _ = compute_advantages(everything, settings())
    group = everything[lucky].group_id
    for i, trajectory in enumerate(everything):
        expected = 1.0 if i == lucky else -1 / 5 if trajectory.group_id == group else 0.0
        assert advantages[i].item() == pytest.approx(expected)


def test_engine_has_the_latest_weights(start, tmp_path):
    """Engine log-probabilities equal the trainer's with the weights of that step."""
    step = start.step(quick_settings(), tmp_path / "run")
    for number in range(3):
        before = flat(step.model)
        metrics, trajectories = step.step(number)
        assert metrics["logp_gap"] < 1e-5 and metrics["logp_gap_max"] < 1e-2
        assert {t.policy_version for t in trajectories} == {number}
        moved = not torch.equal(flat(step.model), before)
        assert moved == (metrics["live_groups"] > 0) == (metrics["updates"] == 1)
    assert step.agent.engine.version == 3
    assert not torch.equal(flat(step.model), flat(start.policy))


@pytest.mark.parametrize("reset", [False, True])
def test_new_weights_clear_the_optimizer_on_request(start, batch, tmp_path, reset):
    config = settings(**{"rl.off_policy.reset_optimizer": reset})
    trainer = start.step(config, tmp_path)
    train_on(trainer, batch, 0)
    (adam,) = trainer.learner.optimizers.parts.values()
    assert len(adam.state) > 0
    trainer._update_engine()
    assert (len(adam.state) == 0) == reset


def test_stale_engine_keeps_old_weights(start, tmp_path):
    """With one stale step the engine has the weights of steps 0, 0, 2, 2."""
    step = start.step(quick_settings(rl__off_policy__staleness=1), tmp_path / "run")
    versions, current_gaps, stale_gaps = [], [], []
    for number in range(4):
        moved = not torch.equal(flat(step.model), flat(step.sampler))
        metrics, trajectories = step.step(number)
        versions += {t.policy_version for t in trajectories}
        if metrics["updates"]:
            (stale_gaps if moved else current_gaps).append(metrics["logp_gap"])
    assert versions == [0, 0, 1, 1]
    assert current_gaps and max(current_gaps) < 1e-5
    assert stale_gaps and min(stale_gaps) > 1e-4


# ---------------------------------------------------------------- nothing to learn from


def test_step_without_reward_variance_changes_nothing(start, batch, tmp_path):
    """The optimizer step is skipped; otherwise Adam's momentum would still move the weights."""
    step = start.step(settings(), tmp_path / "run")
    assert train_on(step, batch, 0)["updates"] == 1
    weights = flat(step.model)
    state = copy.deepcopy(step.learner.optimizers.state_dict())
    row = train_on(step, zero_rewards(batch), 1)
    assert row["updates"] == 0 and row["grad_norm"] == 0 and row["trained_share"] == 0
    assert torch.equal(flat(step.model), weights)
    for found, before in zip(
        step.learner.optimizers.state_dict()["adam"]["state"].values(),
        state["adam"]["state"].values(),
    ):
        assert all(torch.equal(found[name], before[name]) for name in before)
    assert train_on(step, batch, 2)["updates"] == 1


@pytest.mark.parametrize("correction", ["none", "truncate", "mask", "icepop", "geometric"])
def test_empty_mini_batch_changes_nothing(start, batch, tmp_path, correction):
    """Two groups in three mini-batches: the last mini-batch is empty on both shards."""
    assert [len({t.group_id for t in shard}) for shard in batch] == [2, 2]
    switches = {"rl.minibatches": 3, "rl.loss.correction": correction}
    weights, row = learned(start, batch, tmp_path / "run", **switches)
    assert row["tokens"] == 1 and row["updates"] <= 2
    assert weights.isfinite().all()


def test_unjudged_groups_are_not_counted_as_live(batch):
    group = [replace(t, reward=reward) for t, reward in zip(batch[0][:3], (None, 0.0, 0.0))]
    assert len({t.group_id for t in group}) == 1
    assert summarise_rollouts(group, [], Ranks())[0]["live_groups"] == 0.0
    group[0] = replace(group[0], reward=1.0)
    assert summarise_rollouts(group, [], Ranks())[0]["live_groups"] == 1.0
    unjudged = [replace(t, reward=None) for t in group]
    assert summarise_rollouts(unjudged, [], Ranks())[0]["live_groups"] == 0.0


# ---------------------------------------------------------------- the balance loss


def balance_gradient(model, trajectories) -> torch.Tensor:
    """Return the gradient of the balance loss of one batch."""
    model = copy.deepcopy(model)
    tokens = PackedBatch.pack([t.token_ids for t in trajectories])
    mask_N = tokens.spread([t.generated for t in trajectories], torch.bool)
    score(model, tokens, mask_N).balance.backward()
    return gradient_of(model)


def gradient(model, shards, config, recorded=None):
    model = copy.deepcopy(model)
    shares = []
    for shard in shards:
        advantages, weights, _ = compute_advantages(shard, config)
        shares.append(RolloutBatch(shard, advantages, weights, recorded(shard) if recorded else {}))
    accumulate_gradients(model, shares, config, Ranks())
    return gradient_of(model)


def live_and_dead(batch):
    """Return a group with reward variance and the rollouts of all groups without it."""
    groups = {}
    for t in batch[0] + batch[1]:
        groups.setdefault(t.group_id, []).append(t)
    live = [g for g in groups.values() if len({t.reward for t in g}) > 1]
    dead = [g for g in groups.values() if len({t.reward for t in g}) == 1]
    return live[0], [t for group in dead for t in group]


def test_balance_loss_ignores_zero_variance_groups(start, batch):
    live, dead = live_and_dead(batch)
    on, off = settings(trainer__balance_coef=0.5), settings(trainer__balance_coef=0.0)
    by_hand = 0.5 * balance_gradient(start.policy, live)
    for shards in ([live], [live + dead]):
        found = gradient(start.policy, shards, on)
        without = gradient(start.policy, shards, off)
        assert (found - without - by_hand).norm() < 1e-3 * by_hand.norm()


def test_kl_term_does_not_scale_the_balance_loss(start, batch):
    """At the reference the KL gradient is 0, so only the balance loss over all tokens remains."""
    everything = [t for shard in zero_rewards(batch) for t in shard]
    config = settings(
        trainer__balance_coef=0.5,
        rl__loss__kl_coef=0.1,
        rl__filter__overlong="keep",
        trainer__micro_batch_tokens=1000,
    )

    def at_the_reference(shard):
        return {"reference": record(start.policy, shard, config)}

    found = gradient(start.policy, [everything], config, at_the_reference)
    by_hand, tokens = torch.zeros_like(found), 0
    in_order = list(range(len(everything)))
    parts = list(split_micro_batches(in_order, everything, micro_batch_tokens(config)))
    assert len(parts) > 1
    for some in parts:
        part = [everything[i] for i in some]
        n = sum(int(t.generated.sum()) for t in part)
        by_hand += n * balance_gradient(start.policy, part)
        tokens += n
    by_hand *= 0.5 / tokens
    assert (found - by_hand).norm() < 1e-3 * by_hand.norm()


# ---------------------------------------------------------------- killed and resumed


RESUME_CASES = {
    "recipe": {},
    "stale engine, reference, corrections, mini-batches": {
        "rl.off_policy.staleness": 2,
        "rl.loss.kl_coef": 0.05,
        "rl.minibatches": 2,
        "rl.loss.correction": "icepop",
        "rl.advantage.estimator": "batch_normalized",
    },
    "curation, stages, resampling, mixture": {
        "rl.curriculum.pool": 8,
        "rl.curriculum.curation_every": 1,
        "rl.curriculum.stages": "three",
        "rl.curriculum.mixture": "exact",
        "rl.curriculum.weighting": "none",
        "rl.sampling.oversample": 2,
        "rl.sampling.resample": "sample",
        "rl.off_policy.engine_dtype": "bfloat16",
        "rl.lr": 3e-4,  # a collapsed policy solves nothing in the pool
    },
}


@pytest.mark.parametrize("name", RESUME_CASES)
def test_resumed_run_is_bit_identical(start, tmp_path, name):
    config = quick_settings(**RESUME_CASES[name])
    (_, versions), (_, later) = whole_and_resumed(
        start, config, tmp_path, lambda trainer: trainer.agent.engine.version
    )
    assert later == versions == [0 if config.rl.off_policy.staleness else 2]
    last = [f"{folder}.partial/trajectories_0003.parquet" for folder in ("whole", "cut")]
    one, other = (load_trajectories(tmp_path / path) for path in last)
    assert [t.policy_version for t in one] == [t.policy_version for t in other]
    assert all(np.array_equal(a.token_ids, b.token_ids) for a, b in zip(one, other, strict=True))


# ---------------------------------------------------------------- another cold start


def test_rl_start_is_validated_and_hashed_by_weights(tmp_path):
    with pytest.raises(ValueError, match="rl.start='nowhere'.*no policy"):
        stages.stage_settings("rl", settings(rl__start="nowhere"))
    own, committed = settings(rl__start=""), settings()
    assert stages.stage_settings("rl", own)["inputs"].keys() == {"sft"}
    assert stages.stage_settings("rl", committed)["inputs"].keys() == {"world"}
    copied = tmp_path / "copy"
    copied.mkdir()
    weights = stages.start_folder("rl", committed) / stages.WEIGHTS
    (copied / stages.WEIGHTS).write_bytes(weights.read_bytes())
    same = stages.folder("rl", settings(rl__start=str(copied)), tmp_path)
    assert same == stages.folder("rl", committed, tmp_path)
    (copied / stages.WEIGHTS).write_bytes(weights.read_bytes() + b" ")
    assert same != stages.folder("rl", settings(rl__start=str(copied)), tmp_path)
