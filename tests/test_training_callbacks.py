"""Training callbacks: schedules, effects on the update, and resuming.

Drift has a file of its own: tests/test_training_drift.py. All callbacks on two processes:
tests/test_training_stages.py.

Run: python -m pytest tests/test_training_callbacks.py
"""

import pytest
import torch

from drlib.training.callbacks import CALLBACKS, Callback, Validation, check_callbacks
from drlib.trajectory import with_reward
from tests.loop_examples import (
    CALLED_BACK,
    cold_start,
    end_step,
    few_rollouts,
    flat,
    learned,
    quick_settings,
    settings,
    train_on,
    whole_and_resumed,
    without_sampling,
)

start = cold_start
batch = few_rollouts

TRAINED = {"trained_share": 1.0}


def build_trainer(start, folder, **changes):
    return start.step(settings(**{"rl.lr": 2e-3} | changes), folder / "run")


def end_step_metrics(step, outcomes=(), **row):
    """Return the callback metrics of a step with these values, without rollouts."""
    return end_step(step, 0, TRAINED | row, [], outcomes)


# ---------------------------------------------------------------- the KL's weight


def test_adaptive_kl_applies_from_the_next_step(start, tmp_path):
    step = build_trainer(start, tmp_path, rl__loss__kl_coef=0.1, rl__callbacks__kl_target=0.02)
    seen = [
        end_step_metrics(step, kl=kl)["kl_coef"]
        for kl in (0.03, 0.031, 0.02, 0.0134, 0.0133, -0.001)
    ]
    assert seen == pytest.approx([0.1, 0.1, 0.2, 0.2, 0.2, 0.1])
    assert step.callbacks.parts["adaptive_kl"].controller.state["coef"] == pytest.approx(0.05)


def test_kl_coefficient_is_kept_without_training(start, tmp_path):
    step = build_trainer(start, tmp_path, rl__loss__kl_coef=0.1, rl__callbacks__kl_target=0.02)
    assert end_step_metrics(step, kl=0.0, trained_share=0.0) == {"kl_coef": 0.1}
    assert step.callbacks.parts["adaptive_kl"].controller.state["coef"] == 0.1


@pytest.mark.parametrize(("target", "factor"), [(10.0, 0.5), (1e-9, 2.0)])
def test_adaptive_kl_follows_the_logged_kl(start, batch, tmp_path, target, factor):
    """The KL stays below a target of 10 nats and exceeds a target of 1e-9 after training."""
    step = build_trainer(
        start,
        tmp_path,
        rl__loss__kl_coef=0.1,
        rl__callbacks__kl_target=target,
        rl__filter__overlong="keep",
        rl__lr=2e-4,
    )
    without_sampling(step, batch)
    rows = [step.step(number)[0] for number in range(3)]
    for one, following in zip(rows, rows[1:]):
        change = 2.0 if one["kl"] > 1.5 * target else 0.5 if one["kl"] < target / 1.5 else 1.0
        assert following["kl_coef"] == pytest.approx(one["kl_coef"] * change)
    assert rows[2]["kl_coef"] == pytest.approx(rows[1]["kl_coef"] * factor)


def test_adapted_kl_coefficient_is_used_in_the_loss(start, batch, tmp_path):
    switches = {"rl.minibatches": 2, "rl.lr": 2e-3}
    half, _ = learned(start, batch, tmp_path / "half", rl__loss__kl_coef=2.0, **switches)
    config = settings(rl__loss__kl_coef=4.0, rl__callbacks__kl_target=1.0, **switches)
    step = start.step(config, tmp_path / "steered")
    end_step_metrics(step, kl=0.0)
    train_on(step, batch, 0)
    assert torch.equal(flat(step.model), half)
    whole, _ = learned(start, batch, tmp_path / "whole", rl__loss__kl_coef=4.0, **switches)
    assert not torch.equal(whole, half)


# ---------------------------------------------------------------- the reference


def test_reference_is_updated_on_schedule(start, batch, tmp_path):
    step = build_trainer(start, tmp_path, rl__loss__kl_coef=0.01, rl__callbacks__reference_every=2)
    without_sampling(step, batch)
    expected, ages = flat(start.policy), []
    for number in range(4):
        ages.append(step.step(number)[0]["reference_age"])
        assert torch.equal(flat(step.learner.reference), expected) == (number != 1 and number != 3)
        if number in (1, 3):
            assert torch.equal(flat(step.learner.reference), flat(step.model))
            assert not torch.equal(flat(step.model), expected)
            expected = flat(step.learner.reference)
    assert ages == [0, 1, 0, 1]


def test_reference_decay_mixes_weights(start, batch, tmp_path):
    step = build_trainer(
        start,
        tmp_path,
        rl__loss__kl_coef=0.01,
        rl__callbacks__reference_every=1,
        rl__callbacks__reference_decay=0.75,
    )
    without_sampling(step, batch).step(0)
    mean = 0.75 * flat(start.policy) + 0.25 * flat(step.model)
    assert not torch.equal(flat(step.model), flat(start.policy))
    assert torch.allclose(flat(step.learner.reference), mean, atol=1e-7)


RESUME_CASES = {
    "everything": CALLED_BACK,
    "resets and rubrics": {
        "rl.callbacks.reset_patience": 2,
        "rl.callbacks.validate_every": 1,
        "rl.reward.name": "evolving_rubrics",
        "rl.reward.arguments": '{"window": 1}',
    },
}


@pytest.mark.parametrize("name", RESUME_CASES)
def test_resumed_run_is_bit_identical(start, tmp_path, name):
    config = quick_settings(**RESUME_CASES[name])

    def reference(trainer):
        return None if trainer.learner.reference is None else flat(trainer.learner.reference)

    (whole, before), (resumed, again) = whole_and_resumed(start, config, tmp_path, reference)
    state, other = whole.extra(), resumed.extra()
    if config.rl.callbacks.reference_every:
        assert not torch.equal(again[0], flat(start.policy))
        assert torch.equal(again[0], before[0])
        assert torch.equal(reference(resumed), reference(whole))
        for key, value in state["learner"].pop("reference").items():
            assert torch.equal(other["learner"]["reference"][key], value), key
        other["learner"].pop("reference")
    assert other == state


# ---------------------------------------------------------------- the hard reset


def test_validation_is_the_mean_over_skills():
    validation = Validation(2)
    assert validation.update([("h1", 1.0), ("h1", 0.0), ("power", 1.0)]) is None
    assert validation.update([("h1", 0.0), ("h1", 0.0)]) == pytest.approx((1 / 4 + 1) / 2)
    # "power" is not sampled now and keeps its last score
    assert validation.update([]) is None
    assert validation.update([("h1", 1.0)]) == pytest.approx(1.0)
    assert validation.update([]) is None
    assert validation.update([("power", 0.0)]) == pytest.approx(0.5)


@pytest.mark.parametrize("coef", [0.0, 0.05])
def test_reset_clears_adam_when_patience_ends(start, batch, tmp_path, coef):
    config = settings(
        rl__loss__kl_coef=coef,
        rl__callbacks__reset_patience=2,
        rl__callbacks__validate_every=1,
        rl__lr=2e-3,
    )
    step = start.step(config, tmp_path / "run")
    train_on(step, batch, 0)
    adam = step.learner.optimizers.parts["adam"]
    n_states = len(adam.state)
    assert n_states > 0
    observed = []
    for right in (0.5, 0.6, 0.55):
        row = end_step_metrics(step, [("h1", right)], kl=0.0)
        observed.append((row["reset"], row["validation"], len(adam.state)))
    assert observed == [(0.0, 0.5, n_states), (0.0, 0.6, n_states), (0.0, 0.55, n_states)]
    assert (
        end_step_metrics(step, [("h1", 0.6)], kl=0.0)["reset"] == 1.0
    )  # no better, the second time
    assert len(adam.state) == 0
    if coef:
        assert torch.equal(flat(step.learner.reference), flat(step.model))
        assert step.learner.reference_age == 0
    # the patience restarts, and the best score is the one at the reset
    resets = [
        end_step_metrics(step, [("h1", right)], kl=0.0)["reset"] for right in (0.6, 0.61, 0.6, 0.6)
    ]
    assert resets == [0.0, 0.0, 0.0, 1.0]


def test_adam_after_a_reset_equals_a_new_one(start, batch, tmp_path):
    config = settings(rl__callbacks__reset_patience=1, rl__callbacks__validate_every=1)
    step = start.step(config, tmp_path / "run")
    train_on(step, batch, 0)
    twin = start.step(config, tmp_path / "twin", step.model)
    for score in (0.5, 0.5):
        end_step_metrics(step, [("h1", score)])
    for one in (step, twin):
        train_on(one, batch, 1)
    assert torch.equal(flat(step.model), flat(twin.model))


def test_loop_resets_on_stagnating_validation(start, batch, tmp_path):
    """All rollouts of the second window are correct; the third is like the first."""
    step = build_trainer(
        start,
        tmp_path,
        rl__callbacks__reset_patience=1,
        rl__callbacks__validate_every=2,
        rl__steps=6,
    )
    best, resets = None, []
    window, accuracies = {}, {}
    perfect = [[with_reward(t, 1.0, {"correct": 1.0}) for t in shard] for shard in batch]
    for number, shards in enumerate((batch, batch, perfect, perfect, batch, batch)):
        without_sampling(step, shards)
        row, trajectories = step.step(number)
        for t in trajectories:
            window.setdefault(t.metadata["skill"], []).append(t.reward_parts["correct"])
        assert ("validation" in row) == (number % 2 == 1)
        if number % 2 == 0:
            assert row["reset"] == 0.0
            continue
        accuracies |= {skill: sum(right) / len(right) for skill, right in window.items()}
        assert row["validation"] == pytest.approx(sum(accuracies.values()) / len(accuracies))
        stagnates = best is not None and row["validation"] <= best
        assert row["reset"] == stagnates
        assert (len(step.learner.optimizers.parts["adam"].state) == 0) == stagnates
        best, window = row["validation"], {}
        resets.append(stagnates)
    assert resets == [False, False, True]


# ---------------------------------------------------------------- off


def test_inactive_callbacks_do_not_change_training(start, batch, tmp_path):
    observers = {
        "rl.callbacks.drift_factor": 0.5,
        "rl.callbacks.reset_patience": 100,
        "rl.callbacks.world_change": 100,
        "rl.callbacks.validate_every": 1,
    }
    ends, columns = [], []
    for name, switches in {"off": {}, "watching": observers}.items():
        step = without_sampling(build_trainer(start, tmp_path / name, **switches), batch)
        rows = [step.step(number)[0] for number in range(2)]
        ends.append(flat(step.model))
        columns.append({*rows[-1]})
    assert torch.equal(*ends)
    added = columns[1] - columns[0]
    assert {"drift_alarms", "lr_scale", "reset", "validation", "state_reward"} <= added
    steered = ("kl_coef", "reference_age", "drift", "lr_scale", "reset", "validation", "state_")
    assert not [name for name in columns[0] if name.startswith(steered)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rl.callbacks.kl_target": 0.1}, "rl.callbacks.kl_target adapts rl.loss.kl_coef"),
        (
            {"rl.callbacks.kl_target": 0.1, "rl.loss.kl_coef": 1e-7},
            r"rl.loss.kl_coef, adapted by rl.callbacks.kl_target.* \[1e-6",
        ),
        (
            {"rl.callbacks.reference_every": 5},
            "rl.callbacks.reference_every updates the KL reference.*set rl.loss.kl_coef",
        ),
        (
            {"rl.callbacks.reference_decay": 0.5},
            "rl.callbacks.reference_decay has no effect without rl.callbacks.reference_every",
        ),
        (
            {"rl.callbacks.reference_decay": 1.0},
            r"rl.callbacks.reference_decay must be in \[0, 1\)",
        ),
        ({"rl.callbacks.validate_every": 0}, "rl.callbacks.validate_every must be at least 1"),
        ({"rl.callbacks.drift_factor": 0.0}, r"rl.callbacks.drift_factor must be in \(0, 1\]"),
        ({"rl.callbacks.drift_factor": 1.5}, r"rl.callbacks.drift_factor must be in \(0, 1\]"),
    ],
)
def test_incompatible_settings_are_rejected(changes, message):
    with pytest.raises(ValueError, match=message):
        check_callbacks(settings(**changes))


# ---------------------------------------------------------------- callbacks of plugins


class Counter(Callback):
    """Record the hook calls and halve the learning rate."""

    def __init__(self):
        self.calls = []

    def on_step_begin(self, trainer, state):
        self.calls.append(("begin", state.step))

    def on_batch(self, trainer, state):
        assert state.batch and state.rollouts and "loss" not in state.metrics
        trainer.learner.lr_scale = 0.5
        self.calls.append(("batch", state.step))

    def on_step_end(self, trainer, state):
        state.metrics["seen"] = len(self.calls)
        self.calls.append(("end", state.step))

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state):
        self.calls = state["calls"]


def test_registered_callback_runs_and_changes_the_update(start, batch, tmp_path, monkeypatch):
    monkeypatch.setitem(CALLBACKS, "counter", lambda *_: Counter())
    step = without_sampling(build_trainer(start, tmp_path), batch)
    row, _ = step.step(0)
    assert row["seen"] == 2 and row["lr_factor"] == 0.5
    assert step.callbacks.parts["counter"].calls == [("begin", 0), ("batch", 0), ("end", 0)]
    assert step.extra()["callbacks"]["counter"]["calls"][-1] == ("end", 0)
