"""Every `rl.` option in steps with a gradient: what it changes and what it must not change.

Run: python -m pytest tests/test_training_switches.py
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from drlib.config import FIELDS
from drlib.questions.chains import PYTHON_KINDS
from drlib.rl.resampling import error_penalty, format_penalty
from drlib.training.batch import resample_groups
from drlib.training.grpo import check_rl_settings
from drlib.training.rollouts import sample_rollouts
from drlib.trajectory import Termination
from tests.loop_examples import (
    cold_start,
    few_rollouts,
    flat,
    learned,
    quick_settings,
    settings,
    train_on,
    without_sampling,
)

start = cold_start
batch = few_rollouts

# ON_POLICY: options without effect on the first update after sampling. CHANGING: options that must
# change the weights after one update on the same rollouts. ROLLOUTS: options of the sampling.
ON_POLICY = {
    "rl.loss.clip": "none",
    "rl.loss.epsilon_low": 0.01,
    "rl.loss.epsilon_high": 0.01,
    "rl.loss.level": "sequence",
}
CHANGING = {
    "rl.lr": {"rl.lr": 1e-4},
    "rl.warmup_steps": {"rl.warmup_steps": 3},
    "rl.filter.overlong": {"rl.filter.overlong": "keep"},
    "rl.advantage.estimator": {"rl.advantage.estimator": "group_normalized"},
    "rl.loss.aggregate": {"rl.loss.aggregate": "sequence"},
    "rl.loss.kl_coef": {"rl.loss.kl_coef": 0.5, "rl.minibatches": 2},
    "rl.loss.correction": {"rl.loss.correction": "mask", "rl.off_policy.engine_dtype": "bfloat16"},
    "rl.minibatches": {"rl.minibatches": 2},
    "rl.filter.drop_equal": {"rl.filter.drop_equal": True},
    "rl.filter.hallucination": {"rl.filter.hallucination": "exclude"},
}
ROLLOUTS = {
    "rl.questions": {"rl.questions": 6},
    "rl.group": {"rl.group": 6},
    "rl.curriculum.python_share": {"rl.curriculum.python_share": 1.0},
    "rl.curriculum.fictional_share": {
        "rl.curriculum.fictional_share": 1.0,
        "rl.curriculum.python_share": 0.0,
    },
    "rl.sampling.oversample": {"rl.sampling.oversample": 2, "rl.sampling.resample": "sort"},
    "rl.sampling.resample": {"rl.sampling.oversample": 2, "rl.sampling.resample": "sample"},
    "rl.off_policy.engine_dtype": {"rl.off_policy.engine_dtype": "bfloat16"},
    "rl.reward.name": {"rl.reward.name": "random"},
    "rl.temperature": {"rl.temperature": 1.5},
}
STEPS = 2  # the second step samples with the updated policy
ELSEWHERE = {  # options tested elsewhere
    "rl.steps",
    "rl.start",
    "rl.off_policy.staleness",
    "rl.callbacks.emergency_stop",
    "rl.curriculum.conditions",
    # tests/test_training_samples.py
    "rl.agent",
    "rl.advantage.baseline",
    "rl.advantage.sample_multiple",
    "rl.advantage.context_weight",  # tests/test_training_roles.py
    "rl.curriculum.trail_share",
    # tests/test_training_questions.py
    "rl.curriculum.documents",
    "rl.curriculum.document_share",
    "rl.curriculum.trail_pages",
    # tests/test_environments_training.py
    "rl.curriculum.environments",
    "rl.curriculum.environment_share",
    # tests/test_training_learner.py
    "rl.loss.chunked_logprobs",
    # tests/test_training_packed_routes.py; with trainer.backend=trl tests/test_training_real.py
    "rl.off_policy.routing_replay",
    # tests/test_rewards_registered.py
    "rl.reward.arguments",
    # tests/test_training_rewards.py
    "rl.reward.labels",
    "rl.reward.overlong_buffer",
    "rl.sampling.adaptive_group",
    "rl.sampling.draws",
    "rl.sampling.duplicate",
    "rl.filter.pipeline",
    "rl.filter.low_weight",
    # tests/test_training_tokens.py
    "rl.loss.top_entropy",
    "rl.loss.entropy_tokens",
    "rl.loss.entropy_scope",
    "rl.loss.denominator",
    # tests/test_training_questions.py
    "rl.curriculum.weighting",
    "rl.curriculum.mixture",
    "rl.curriculum.pool",
    "rl.curriculum.curation_every",
    "rl.curriculum.stages",
    # tests/test_training_callbacks.py
    "rl.callbacks.kl_target",
    "rl.callbacks.reference_every",
    "rl.callbacks.reference_decay",
    "rl.callbacks.reset_patience",
    "rl.callbacks.validate_every",
    "rl.callbacks.drift_factor",
    "rl.callbacks.world_change",
    # tests/test_training_replay.py
    "rl.filter.max_age",
    "rl.filter.repair_groups",
    "rl.off_policy.replay_groups",
    "rl.off_policy.replay_age",
    # tests/test_training_stored_rollouts.py
    "rl.off_policy.rollouts",
    "rl.save_rollouts",
    # tests/test_training_asynchronous.py
    "rl.asynchronous.actors",
    "rl.asynchronous.max_lag",
    "rl.asynchronous.groups",
    "rl.asynchronous.in_flight",
    "rl.asynchronous.stale",
    # tests/test_training_grpo.py
    "rl.off_policy.reset_optimizer",
    # tests/test_models_forks.py
    "rl.sampling.fork_temperature",
    "rl.sampling.fork_entropy",
    # tested below together with the option they modify
    "rl.loss.kl_estimator",
    "rl.loss.kl_unbiased",
    "rl.loss.correction_low",
    "rl.loss.correction_high",
    "rl.loss.correction_level",
}


def test_every_option_has_a_test():
    fields = {name for name in FIELDS if name.startswith("rl.")}
    assert fields == {*ON_POLICY, *CHANGING, *ROLLOUTS, *ELSEWHERE}


@pytest.fixture(scope="module")
def recipe(start, batch, tmp_path_factory):
    return learned(start, batch, tmp_path_factory.mktemp("runs") / "recipe")


@pytest.mark.parametrize("name", ON_POLICY)
def test_ratio_options_do_not_matter_on_policy(start, batch, recipe, tmp_path, name):
    weights, row = learned(start, batch, tmp_path / "run", **{name: ON_POLICY[name]})
    assert row["updates"] == 1
    moved = (recipe[0] - flat(start.policy)).norm()
    assert moved > 0 and (weights - recipe[0]).norm() < 0.02 * moved


OFF_POLICY = {"rl.minibatches": 2, "rl.lr": 2e-3}  # for the second of two mini-batches


@pytest.fixture(scope="module")
def off_policy(start, batch, tmp_path_factory):
    weights, row = learned(start, batch, tmp_path_factory.mktemp("runs") / "usual", **OFF_POLICY)
    assert row["updates"] == 2
    return weights


@pytest.mark.parametrize("name", ON_POLICY)
def test_ratio_options_matter_off_policy(start, batch, off_policy, tmp_path, name):
    switches = OFF_POLICY | {name: ON_POLICY[name]}
    weights, _ = learned(start, batch, tmp_path / "run", **switches)
    assert not torch.equal(weights, off_policy)


@pytest.mark.parametrize("name", CHANGING)
def test_option_changes_the_weights(start, batch, recipe, tmp_path, name):
    shards = batch
    if name == "rl.filter.hallucination":  # a success after a response that the policy wrote itself
        shards = [[*map(add_hallucination, shard)] for shard in batch]
    if name == "rl.filter.overlong":
        assert any(
            t.termination == Termination.LENGTH and not t.reward for t in batch[0] + batch[1]
        )
    weights, row = learned(start, shards, tmp_path / "run", **CHANGING[name])
    assert row["updates"] >= 1 and row["grad_norm"] > 0
    assert not torch.equal(weights, recipe[0])


def add_hallucination(trajectory):
    if not trajectory.reward:
        return trajectory
    message = {"role": "assistant", "content": "<tool_response>so</tool_response>"}
    return replace(trajectory, messages=[*trajectory.messages, message])


@pytest.mark.parametrize("name", ROLLOUTS)
def test_rollout_options_change_rollouts_and_train(start, recipe, tmp_path, name):
    config = quick_settings(**ROLLOUTS[name])
    step = start.step(config, tmp_path / "run")
    updates, trajectories = 0, []
    for number in range(STEPS):
        metrics, rollouts = step.step(number)
        updates += metrics["updates"]
        trajectories += rollouts
    assert updates >= 1 and flat(step.model).isfinite().all()
    group = config.rl.group * config.rl.sampling.oversample
    assert len(trajectories) == STEPS * config.rl.questions * group
    if name == "rl.curriculum.python_share":
        assert {t.metadata["skill"] for t in trajectories} <= set(PYTHON_KINDS)
    if name == "rl.curriculum.fictional_share":
        assert start.world.version not in {t.world_version for t in trajectories}
    if name == "rl.reward.name":
        assert {t.reward for t in trajectories} == {0.0, 1.0}
        differ = [t for t in trajectories if t.reward != t.reward_parts["correct"]]
        assert 0.3 < len(differ) / len(trajectories) < 0.7
    if name in ("rl.off_policy.engine_dtype", "rl.temperature"):
        assert metrics["logp_gap"] < (0.2 if name == "rl.off_policy.engine_dtype" else 1e-5)
        assert (metrics["logp_gap"] > 1e-4) == (name == "rl.off_policy.engine_dtype")


def test_learning_rate_decays_in_the_second_half(start, batch, tmp_path):
    step = start.step(settings(rl__steps=4), tmp_path / "run")
    factors = [train_on(step, batch, number)["lr_factor"] for number in range(4)]
    assert factors == pytest.approx([1.0, 1.0, 1.0, 0.1 + 0.9 / 2])


def test_group_mean_is_scaled_leave_one_out(start, batch, tmp_path):
    """Advantages are (G - 1) / G times as large; Adam hides the scale, the norm shows it."""
    loo = learned(start, batch, tmp_path / "a", trainer__balance_coef=0.0)[1]["grad_norm"]
    mean = learned(
        start,
        batch,
        tmp_path / "b",
        trainer__balance_coef=0.0,
        rl__advantage__estimator="group_mean",
    )[1]
    assert mean["grad_norm"] == pytest.approx(loo * 5 / 6, rel=1e-4)


def test_kl_coefficient_keeps_the_policy_near_the_start(start, batch, tmp_path):
    """The reference is a copy; if it were the policy itself, the KL would stay 0.

    Overlong rollouts are kept because the KL term ignores rollouts outside the loss.
    """
    ends = {}
    usual = {"rl.lr": 2e-3, "rl.filter.overlong": "keep"}
    for coef in (0.001, 20.0):
        config = settings(rl__loss__kl_coef=coef, **usual)
        step = without_sampling(start.step(config, tmp_path / f"kl{coef}"), batch)
        rows = [step.step(number)[0] for number in range(4)]
        assert torch.equal(flat(step.learner.reference), flat(start.policy))
        assert rows[0]["kl"] == pytest.approx(0, abs=1e-6)
        ends[coef] = rows[-1]["kl"]
    assert ends[0.001] > 0.001
    assert ends[20.0] < ends[0.001]


def test_kl_estimators_have_different_gradients(start, batch, tmp_path):
    """The second update of a batch is off the reference."""
    found = []
    for estimator in ("k1", "k2", "k3"):
        for unbiased in (False, True):
            switches = {"rl.loss.kl_coef": 2.0, "rl.minibatches": 2, "rl.filter.overlong": "keep"}
            switches |= {"rl.loss.kl_estimator": estimator, "rl.loss.kl_unbiased": unbiased}
            weights, row = learned(start, batch, tmp_path / f"{estimator}{unbiased}", **switches)
            assert row["updates"] == 2
            found.append(weights)
    for i, one in enumerate(found):
        assert not any(torch.equal(one, other) for other in found[:i])


def test_correction_bounds_and_level_are_applied(start, batch, tmp_path):
    """With an engine mismatch of 0.1 nats, narrow bounds drop more than the published ones."""
    shards = [[*map(add_logprob_noise, shard)] for shard in batch]
    dropped = {}
    for name, switches in {
        "published": {},
        "narrow": {"rl.loss.correction_low": 0.95, "rl.loss.correction_high": 1.05},
        "low": {"rl.loss.correction_low": 0.95, "rl.loss.correction_high": 5.0},
        "sequence": {"rl.loss.correction_level": "sequence"},
    }.items():
        usual = {
            "rl.loss.correction": "mask",
            "rl.off_policy.engine_dtype": "bfloat16",
            "rl.filter.overlong": "keep",
        }
        row = learned(start, shards, tmp_path / name, **usual, **switches)[1]
        dropped[name] = row["excluded_tokens"]
    assert dropped["published"] < 0.01 < dropped["low"] < dropped["narrow"] < 1
    assert dropped["sequence"] > dropped["published"]


def add_logprob_noise(trajectory):
    """Record log-probabilities of an engine that is off by 0.1 nats."""
    rng = np.random.default_rng(len(trajectory))
    noise = rng.normal(0, 0.1, len(trajectory)).astype(np.float32) * trajectory.generated
    return replace(trajectory, logprobs=trajectory.logprobs + noise)


def test_resampling_keeps_the_cleanest_successes(start, tmp_path):
    config = settings(rl__sampling__oversample=2, rl__sampling__resample="sort")
    step = start.step(config, tmp_path / "run")
    tasks, worlds = step.scheduler.draw(2, step.curriculum)
    sampled = sample_rollouts(step.agent, tasks, worlds, config, 2, 0)
    resampled = resample_groups(sampled, config, 2)
    groups = dict.fromkeys(t.group_id for t in sampled)
    mixed = 0
    for name in groups:
        group = [t for t in sampled if t.group_id == name]
        kept = {t.id for t in resampled if t.group_id == name}
        assert len(group) == 12 and len(kept) == 6
        penalty = {t.id: error_penalty(t) + format_penalty(t) for t in group if t.reward == 1}
        inside = [p for id, p in penalty.items() if id in kept]
        outside = [p for id, p in penalty.items() if id not in kept]
        assert not inside or not outside or max(inside) <= min(outside)
        mixed += bool(inside) and bool(outside) and max(outside) > min(inside)
    assert mixed, "no group had clean and unclean successes: the test saw nothing"


def test_temperature_zero_is_rejected():
    with pytest.raises(ValueError, match="rl.temperature must be above 0"):
        check_rl_settings(settings(rl__temperature=0.0))
