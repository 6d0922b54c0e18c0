"""Gradients of an update with default and optional settings, against padded references.

Uses real rollouts of a small untrained policy with real tools; rewards are set by hand.

Run: python -m pytest tests/test_training_learner.py
"""

import copy
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from drlib.agents import Limits, ReAct
from drlib.chat.template import ChatIds, train_tokenizer
from drlib.config import Config
from drlib.models import chunked_logprobs as kernels
from drlib.models.local_engine import LocalEngine
from drlib.models.moe import PolicyShape, build_policy
from drlib.rl import stability, staleness
from drlib.rl.losses import policy_loss
from drlib.sandbox import Sandbox
from drlib.task import Task
from drlib.tools import Toolbox
from drlib.training import learner
from drlib.training.batch import RolloutBatch, compute_advantages, resample_groups
from drlib.training.callbacks import StepState, emergency_stop
from drlib.training.data import PHRASES, world_texts
from drlib.training.distributed import Ranks
from drlib.training.grpo import GRPOTrainer, check_rl_settings, engine_weights
from drlib.training.learner import accumulate_gradients, loss_config, record, split_micro_batches
from drlib.training.optim import Optimizers
from drlib.training.policies import StageStart
from drlib.training.question_scheduler import QuestionScheduler
from drlib.training.run_folder import Interrupted, RunFolder
from drlib.trajectory import with_reward
from drlib.worlds import Names, load_world
from tests.loop_examples import train_on

CONTEXT = 160
TASKS = [Task(str(i), f"What is {i} times 7?", str(7 * i), "python", "python") for i in range(4)]


@pytest.fixture(scope="module")
def policy():
    shape = PolicyShape(
        hidden=32, layers=2, heads=4, head_dim=8, experts=4, expert_hidden=16, max_positions=256
    )
    return build_policy(shape, 0, init="plain")


@pytest.fixture(scope="module")
def world():
    return load_world("tour")


@pytest.fixture(scope="module")
def chat(world):
    titles = sorted({t for e in world.entities.values() for t in (e.title, *e.facts.values())})
    return ChatIds(train_tokenizer(world_texts(world), 2048, names=titles, phrases=PHRASES))


@pytest.fixture(scope="module")
def rollouts(policy, world, chat):
    """Return four groups of four rollouts with one, two, no and four correct answers."""
    with Sandbox() as sandbox, Toolbox(world, sandbox, results=2) as toolbox:
        engine = LocalEngine(policy, max_context=200, lockstep=True)
        agent = ReAct(engine, toolbox, chat, Limits(2, 24, CONTEXT))
        trajectories = agent.run(TASKS, samples=4, seed=1)
    rewards = [1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1]
    return [with_reward(t, float(r), {"correct": float(r)}) for t, r in zip(trajectories, rewards)]


def settings(**changes) -> Config:
    """Return ci settings that keep overlong rollouts, which an untrained policy always produces."""
    usual = {"rollout.max_context_tokens": CONTEXT, "rl.group": 4, "trainer.balance_coef": 0.0}
    return Config.load("ci", **{**usual, "rl.filter.overlong": "keep", **changes})


def gradients(policy, rollouts, config, recorded=None):
    """Return (metrics, all gradients in one vector) of one update."""
    model = copy.deepcopy(policy)
    advantages, weights, _ = compute_advantages(rollouts, config)
    share = RolloutBatch(rollouts, advantages, weights, recorded or {})
    metrics = accumulate_gradients(model, [share], config, Ranks())
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return metrics, torch.cat([g.flatten() for g in grads])


def reference_gradient(policy, rollouts, config, old=None):
    """Return the same gradient from one padded forward pass without micro-batches."""
    model = copy.deepcopy(policy)
    n, width = len(rollouts), max(len(t.token_ids) for t in rollouts)
    ids, mask = torch.zeros(n, width, dtype=torch.long), torch.zeros(n, width, dtype=torch.bool)
    behaviour, before = torch.zeros(n, width), torch.zeros(n, width)
    for i, t in enumerate(rollouts):
        ids[i, : len(t.token_ids)] = torch.as_tensor(t.token_ids)
        mask[i, : len(t.token_ids)] = torch.as_tensor(t.generated)
        behaviour[i, : len(t.token_ids)] = torch.as_tensor(t.logprobs)
        before[i, : len(t.token_ids)] = torch.as_tensor(old[i]) if old else 0
    logp = model(input_ids=ids, use_cache=False).logits.log_softmax(-1)
    logp = logp[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
    advantages, weights, _ = compute_advantages(rollouts, config)
    loss, _ = policy_loss(
        logp,
        behaviour[:, 1:],
        advantages,
        mask[:, 1:],
        loss_config(config),
        weights_B=weights,
        old_logp_BT=before[:, 1:] if old else None,
    )
    loss.backward()
    return torch.cat(
        [torch.zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in model.parameters()]
    )


@pytest.mark.parametrize(
    "switches",
    [
        {},
        {"rl.loss.aggregate": "sequence"},
        {"rl.loss.aggregate": "constant"},
        {"rl.loss.clip": "double_sided", "rl.off_policy.staleness": 1},
        {
            "rl.loss.level": "sequence",
            "rl.loss.aggregate": "sequence",
            "rl.off_policy.staleness": 1,
        },
        {"rl.advantage.estimator": "group_normalized"},
        {"rl.filter.drop_equal": True},
    ],
    ids=str,
)
def test_packed_gradient_matches_the_padded_batch(policy, rollouts, switches):
    config = settings(**switches)
    _, packed = gradients(policy, rollouts, config)
    whole = reference_gradient(policy, rollouts, config)
    assert whole.norm() > 0
    assert (packed - whole).norm() < 2e-5 * whole.norm()


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_correction_level_matches_the_padded_batch(policy, rollouts, level):
    """A sequence weight is the product over its tokens, so it needs the whole sequence."""
    config = settings(
        rl__loss__correction="truncate",
        rl__loss__correction_level=level,
        rl__loss__correction_low=0.2,
        rl__loss__correction_high=5.0,
        rl__off_policy__engine_dtype="bfloat16",
    )
    rng = np.random.default_rng(0)
    old = [
        (t.logprobs + rng.normal(0, 0.05, len(t)) * t.generated).astype(np.float32)
        for t in rollouts
    ]
    _, packed = gradients(policy, rollouts, config, {"old": old})
    whole = reference_gradient(policy, rollouts, config, old)
    assert whole.norm() > 0
    assert (packed - whole).norm() < 2e-5 * whole.norm()


def test_recorded_logprobs_match_the_engine(policy, rollouts):
    found = record(policy, rollouts, settings())
    for values, trajectory in zip(found, rollouts, strict=True):
        assert values.shape == trajectory.logprobs.shape
        assert np.abs(values - trajectory.logprobs).max() < 1e-4
        assert not values[~trajectory.generated].any()


def test_kl_gradient_without_advantages_and_at_reference(policy, rollouts):
    dead = rollouts[8:12]
    config = settings(rl__loss__kl_coef=0.1)
    at_reference = {"reference": record(policy, dead, config)}
    metrics, gradient = gradients(policy, dead, config, at_reference)
    assert metrics["kl"] == pytest.approx(0, abs=1e-9) and gradient.norm() < 1e-6
    off_reference = {
        "reference": [
            np.where(t.generated, r - 0.5, 0).astype(np.float32)
            for t, r in zip(dead, at_reference["reference"])
        ]
    }
    metrics, gradient = gradients(policy, dead, config, off_reference)
    assert metrics["kl"] == pytest.approx(np.exp(-0.5) - 1 + 0.5, rel=1e-4)
    assert gradient.norm() > 1e-3


def test_kl_term_pulls_the_policy_to_its_reference(policy, rollouts):
    """Gradient descent on the KL term alone reduces the measured KL."""
    dead = rollouts[8:12]
    config = settings(rl__loss__kl_coef=1.0)
    at_reference = record(policy, dead, config)
    noise = np.random.default_rng(0)
    off_reference = [
        np.where(t.generated, r + noise.normal(size=len(r)), 0).astype(np.float32)
        for t, r in zip(dead, at_reference)
    ]
    model = copy.deepcopy(policy)
    share = RolloutBatch(dead, torch.zeros(4), torch.ones(4), {"reference": off_reference})
    before = accumulate_gradients(model, [share], config, Ranks())["kl"]
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.02 * p.grad
    after = accumulate_gradients(model, [share], config, Ranks())["kl"]
    assert after < before - 1e-4


def test_correction_weights_by_engine_mismatch(policy, rollouts):
    """Engine log-probabilities are lower by log 3 everywhere: the ratio is 3, truncated at 2."""
    config = settings(rl__loss__correction="truncate", rl__off_policy__engine_dtype="bfloat16")
    old = record(policy, rollouts, config)
    shifted = [
        replace(t, logprobs=np.where(t.generated, o - np.log(3), 0).astype(np.float32))
        for t, o in zip(rollouts, old)
    ]
    metrics, corrected = gradients(policy, shifted, config, {"old": old})
    _, plain = gradients(policy, rollouts, settings())
    assert metrics["weight_mean"] == pytest.approx(3, rel=1e-3)
    assert (corrected - 2 * plain).norm() < 1e-3 * plain.norm()


@pytest.mark.parametrize("aggregate", ["token", "sequence"])
@pytest.mark.parametrize("kind", ["mask", "icepop", "geometric"])
def test_dropped_tokens_leave_the_denominator(policy, rollouts, kind, aggregate):
    """Random noise on the engine's log-probabilities drops some tokens or rollouts."""
    config = settings(
        rl__loss__correction=kind,
        rl__off_policy__engine_dtype="bfloat16",
        rl__loss__aggregate=aggregate,
    )
    old, random = record(policy, rollouts, config), np.random.default_rng(0)
    size = 0.15 if kind == "geometric" else 1.0

    def shift_logprobs(t, logprobs):
        shift_logprobs = logprobs + size * random.normal(size=len(t))
        return replace(t, logprobs=np.where(t.generated, shift_logprobs, 0).astype(np.float32))

    shifted = [shift_logprobs(t, logprobs) for t, logprobs in zip(rollouts, old)]
    metrics, packed = gradients(policy, shifted, config, {"old": old})
    whole = reference_gradient(policy, shifted, config, old)
    sampled = sum(int(t.generated.sum()) for t in rollouts)
    assert 0 < metrics["tokens"] < sampled and metrics["dropped_correction"] > 0
    assert (packed - whole).norm() < 2e-5 * whole.norm()


def test_settings_without_effect_are_rejected():
    for changes, word in (
        (
            {"rl.loss.correction": "icepop"},
            'rl.loss.correction="icepop" .* set rl.off_policy.engine_dtype',
        ),
        ({"rl.minibatches": 0}, "rl.minibatches must be at least 1"),
        ({"rl.sampling.oversample": 0}, "rl.sampling.oversample must be at least 1"),
        ({"rl.sampling.oversample": 2}, "rl.sampling.resample"),
        ({"rl.sampling.resample": "sort"}, "rl.sampling.oversample"),
    ):
        with pytest.raises(ValueError, match=word):
            check_rl_settings(settings(**changes))
    check_rl_settings(
        settings(rl__loss__correction="icepop", rl__off_policy__staleness=1, rl__minibatches=2)
    )


def test_disabled_stabilisers_keep_bit_identical_steps(policy, rollouts):
    def step_weights(config, rollouts, factor):
        model = copy.deepcopy(policy)
        optimizers = Optimizers.adam(model, 1e-3)
        advantages, weights, _ = compute_advantages(rollouts, config)
        accumulate_gradients(model, [RolloutBatch(rollouts, advantages, weights)], config, Ranks())
        if stability.ReferenceReset().update(0.1):
            stability.sync_reference(model, policy, *optimizers.parts.values())
        optimizers.step(factor)
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    coef = stability.KLController().update(5.0)
    valid = staleness.StalenessFilter().update(rollouts, 1_000)
    kept = [t for t, may_train in zip(rollouts, valid, strict=True) if may_train]
    scale = stability.AdaptiveLearningRate().update(True)
    assert not stability.DriftDetector().update({"reward": 0.0})
    stabilised = step_weights(settings(rl__loss__kl_coef=coef), kept, 1.0 * scale)
    assert torch.equal(stabilised, step_weights(settings(), rollouts, 1.0))


def test_chunked_logprobs_never_build_full_logits(policy, rollouts, monkeypatch):
    """The gradient is unchanged, and no tensor has one vocabulary row per token."""
    monkeypatch.setitem(kernels.TILES, "cpu", (32, 64))
    seen = {}
    for chunked in (False, True):
        shapes = set()

        class Shapes(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None, shapes=shapes):
                out = function(*args, **(kwargs or {}))
                if isinstance(out, torch.Tensor):
                    shapes.add(tuple(out.shape))
                return out

        with Shapes():
            _, gradient = gradients(policy, rollouts, settings(rl__loss__chunked_logprobs=chunked))
        seen[chunked] = shapes, gradient
    vocabulary = policy.config.vocab_size
    rows = {
        name: max((s[0] for s in shapes if s[1:] == (vocabulary,)), default=0)
        for name, (shapes, _) in seen.items()
    }
    assert rows[False] == 192 and rows[True] <= policy.config.hidden_size < 192
    assert (seen[True][1] - seen[False][1]).norm() < 1e-4 * seen[False][1].norm()


def test_micro_batches_are_complete_and_bounded(rollouts):
    order = [*reversed(range(len(rollouts)))]
    parts = list(split_micro_batches(order, rollouts, 180))
    assert sum(parts, []) == order and len(parts) > 1
    prompt = {t.task_id: int(t.generated.argmax()) for t in rollouts}

    def size(part):  # tokens, a prompt once
        own = sum(len(rollouts[i]) - prompt[rollouts[i].task_id] for i in part)
        return own + sum(prompt[name] for name in {rollouts[i].task_id for i in part})

    assert all(size(part) <= 180 or len(part) == 1 for part in parts)
    assert all(size([*part, later[0]]) > 180 for part, later in zip(parts, parts[1:]))


def test_smaller_micro_batches_give_the_same_gradient(policy, rollouts):
    default = settings()
    longest = max(map(len, rollouts))
    small = settings(trainer__micro_batch_tokens=longest)
    everything = range(len(rollouts))
    counts = [len(list(learner._batches(rollouts, everything, each))) for each in (default, small)]
    assert counts[0] < counts[1] and learner.micro_batch_tokens(small) == longest
    _, whole = gradients(policy, rollouts, default)
    _, parts = gradients(policy, rollouts, small)
    assert (whole - parts).norm() < 1e-5 * whole.norm()


def test_resample_groups_is_deterministic(rollouts):
    config = settings(rl__sampling__oversample=2, rl__sampling__resample="sort").derive(rl__group=2)
    kept = resample_groups(rollouts, config, 3)
    groups = [t.group_id for t in kept]
    assert {groups.count(g) for g in groups} == {2} and len(kept) == 8
    assert [t.id for t in kept] == [t.id for t in resample_groups(rollouts, config, 3)]
    assert resample_groups(rollouts, settings(), 3) is rollouts


def test_drop_equal_removes_tokens_from_the_count(policy, rollouts):
    everything, _ = gradients(policy, rollouts, settings())
    live, _ = gradients(policy, rollouts, settings(rl__filter__drop_equal=True))
    dead = sum(int(t.generated.sum()) for t in rollouts[8:])
    assert everything["tokens"] - live["tokens"] == dead
    assert live["excluded_tokens"] == pytest.approx(dead / everything["tokens"])


def test_each_minibatch_is_one_update(policy, rollouts, chat, tmp_path):
    def updates(name, **switches):
        run, model = RunFolder(tmp_path / name, {}), copy.deepcopy(policy)
        start = StageStart(run, "", model, chat, None, None, None)
        step = GRPOTrainer(settings(**switches), start, None, None)
        train_on(step, [rollouts], 0)
        return int(next(iter(step.learner.optimizers.parts["adam"].state.values()))["step"])

    assert updates("one") == 1 and updates("two", rl__minibatches=2) == 2


def test_engine_weights_are_rounded_copies(policy):
    rounded = engine_weights(policy, "bfloat16")
    assert engine_weights(policy, "float32") is policy
    assert next(rounded.parameters()).dtype == torch.bfloat16
    assert next(policy.parameters()).dtype == torch.float32


def test_emergency_stop_only_after_a_collapse():
    stop, never = (emergency_stop(True) for _ in range(2))
    healthy, dead = [{"unanswered": 0.1}] * 3, [{"unanswered": 1.0}] * 30
    reasons = [stop.update(s) for s in healthy + dead]
    first = next(i for i, reason in enumerate(reasons) if reason)
    assert first + 1 == 3 + 4 + 5, "the last healthy one leaves the mean, then five steps"
    assert not any(never.update(s) for s in dead), "a policy that never could is no collapse"
    switched_off = emergency_stop(False)
    assert not any(switched_off.update(s) for s in healthy + dead)


class ScriptedTrainer(GRPOTrainer):
    """Trainer whose rollouts lack answers from step 4 on; Ctrl-C after `stop_after` steps."""

    def step(self, step):
        self.taken.append(step)
        self.curriculum.update([("h1", float(step % 2))])
        if step + 1 == self.stop_after:
            signal.raise_signal(signal.SIGINT)
        row = {"step": step + 1, "overlong": float(step > 2), "out_of_turns": 0.0}
        state = StepState(step, self.config, metrics=row)
        self.callbacks.on_step_end(self, state)
        return state.metrics, self.rollouts


@pytest.mark.parametrize("interrupted_after", [2, 5, 9])
def test_resumed_run_stops_at_the_same_step(
    policy, rollouts, chat, world, tmp_path, interrupted_after
):
    config = settings(rl__steps=40)
    questions = QuestionScheduler(config, world, Names.from_world(world))

    def resume(name, stop_after):
        run = RunFolder(tmp_path / name, {})
        start = StageStart(run, "", copy.deepcopy(policy), chat, None, world, None)
        step = ScriptedTrainer(config, start, None, questions)
        step.rollouts, step.stop_after, step.taken = rollouts, stop_after, []
        try:
            return run.loop(step, 40, 1000, step.extra), step.taken
        except Interrupted:
            return None, step.taken

    handler = signal.getsignal(signal.SIGINT)
    whole, steps = resume("whole", None)
    assert "unanswered" in whole["stopped"] and len(steps) == 12
    assert resume("cut", interrupted_after) == (None, steps[:interrupted_after])
    assert signal.getsignal(signal.SIGINT) is handler
    assert resume("cut", None) == (whole, steps[interrupted_after:])
    written = {(tmp_path / f"{n}.partial/metrics.jsonl").read_text() for n in ("whole", "cut")}
    assert len(written) == 1
    assert resume("cut", None) == (whole, []), "killed after the stop, before the end: no new step"
