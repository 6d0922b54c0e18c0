"""Non-finite gradients never reach the weights, in any trainer.

Also checks that the attention kernel known to produce them is disabled. A hook on one weight
corrupts real gradients until it is removed.

Run: python -m pytest tests/test_training_finite.py
"""

import math
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from transformers import TrainerState

from drlib.config import ROOT
from drlib.demonstrations.actions import Sample
from drlib.files import append_json_line
from drlib.training import build, grpo_trl, pretrain
from drlib.training.distributed import Ranks
from drlib.training.optim import MOST_SKIPPED, SKIPPED, GradientWatch
from drlib.training.run_folder import METRICS, NotFinite, RunFolder, read_metrics
from drlib.training.sft_trl import IGNORED, create_sft_trainer, sft_dataset
from drlib.training.trl import RunCallback, disable_cudnn_attention, gradient_is_finite
from tests.loop_examples import cold_start, flat, rollout_shards, settings, train_on
from tests.real_examples import built, max_difference, weights
from tests.test_training_real import TOUR_SFT
from tests.test_training_sft_trl import ROWS

start = cold_start
batch = rollout_shards


def corrupt_gradient(model, factor: float):
    """Multiply one element of one gradient by `factor` until the returned handle is removed."""
    weight = model.model.layers[0].self_attn.q_proj.weight

    def corrupt(gradient):
        gradient = gradient.clone()
        gradient.view(-1)[3] = factor * gradient.view(-1)[3].abs().clamp_min(1e-12)
        return gradient

    return weight.register_hook(corrupt)


@pytest.mark.parametrize("factor", [math.nan, math.inf])
def test_local_loop_skips_non_finite_steps(start, batch, tmp_path, factor):
    step = start.step(settings(), tmp_path / "run")
    assert "skipped" not in train_on(step, batch, 0)
    before, moments = (
        flat(step.model),
        step.learner.optimizers.state_dict()["adam"]["state"][0]["step"] + 0,
    )
    handle = corrupt_gradient(step.model, factor)
    row = train_on(step, batch, 1)
    assert row["skipped"] == SKIPPED and row["updates"] == 0
    assert not math.isfinite(row["grad_norm"])
    assert torch.equal(flat(step.model), before)
    assert step.learner.optimizers.state_dict()["adam"]["state"][0]["step"] == moments
    handle.remove()
    row = train_on(step, batch, 2)
    assert row["updates"] == 1 and "skipped" not in row and math.isfinite(row["grad_norm"])
    assert not torch.equal(flat(step.model), before) and flat(step.model).isfinite().all()


def test_supervised_training_skips_non_finite_steps(start, tmp_path):
    config, model = settings(), start.step(settings(), tmp_path / "made").model
    rows = sft_dataset(ROWS, start.chat)
    before, handles = flat(model), [corrupt_gradient(model, math.nan)]
    samples = [
        Sample(tuple(row["input_ids"]), tuple(label != IGNORED for label in row["labels"]))
        for row in rows
    ]

    def draw(step, shard):
        if step == 1 and handles:
            assert torch.equal(flat(model), before), "nothing has moved it"
            handles.pop().remove()
        while True:
            yield from samples

    run = RunFolder(tmp_path / "runs" / "cpt-1", {}, Ranks())
    pretrain.train_supervised(
        run,
        model,
        config,
        draw,
        steps=2,
        batch_tokens=400,
        lrs=(1e-3, 1e-3),
        warmup=0,
        decay_share=0.5,
    )
    first, second = read_metrics(run.path)
    assert first["skipped"] == SKIPPED and math.isnan(first["grad_norm"])
    assert "skipped" not in second
    assert not torch.equal(flat(model), before) and flat(model).isfinite().all()


def test_trl_loop_skips_non_finite_steps(tmp_path, monkeypatch):
    """With a corrupted first step, only the second step changes the policy."""
    load_model = grpo_trl.load_trainable_model
    handles, before = [], []

    def load(*arguments):
        model = load_model(*arguments)
        handles.append(corrupt_gradient(model, math.nan))
        before.append(flat(model))
        return model

    log_row = grpo_trl.AgenticGRPOTrainer.log

    def log(self, *arguments, **options):
        if handles:
            assert torch.equal(flat(self.model), before[0]), "the first step was not taken"
            handles.pop().remove()
        return log_row(self, *arguments, **options)

    monkeypatch.setattr(grpo_trl, "load_trainable_model", load)
    monkeypatch.setattr(grpo_trl.AgenticGRPOTrainer, "log", log)
    torch.backends.cuda.enable_cudnn_sdp(True)
    folder = built("rl", settings(trainer__backend="trl", rl__steps=2, rl__lr=1e-2), tmp_path)
    first, second = read_metrics(folder)
    assert first["live_groups"] > 0 and first["skipped"] == SKIPPED
    assert "skipped" not in second and math.isfinite(second["grad_norm"])
    after = weights(folder / "policy")
    assert all(tensor.isfinite().all() for tensor in after.values())
    assert max_difference(after, weights(ROOT / TOUR_SFT)) > 1e-3
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_five_consecutive_skips_end_the_stage():
    watch = GradientWatch()
    for _ in range(3):  # a finite step resets the count
        assert [watch.usable(False) for _ in range(MOST_SKIPPED - 1)] == [False] * 4
        assert watch.usable(True)
    for _ in range(MOST_SKIPPED - 1):
        watch.usable(False)
    with pytest.raises(NotFinite, match="5 consecutive steps .* set model.dtype=float32"):
        watch.usable(False)


def test_skipped_steps_are_counted_over_an_interruption_of_supervised_training(start, tmp_path):
    """Three steps are skipped before the interruption and two after it."""
    config, model = settings(), start.step(settings(), tmp_path / "made").model
    corrupt_gradient(model, math.nan)
    samples = [
        Sample(tuple(row["input_ids"]), tuple(label != IGNORED for label in row["labels"]))
        for row in sft_dataset(ROWS, start.chat)
    ]
    options = dict(batch_tokens=400, lrs=(1e-3, 1e-3), warmup=0, decay_share=0.5)

    def draw(step, shard):
        while True:
            yield from samples

    for steps, error in ((3, None), (9, NotFinite)):
        run = RunFolder(tmp_path / "runs" / "cpt-1", {}, Ranks())
        with pytest.raises(error) if error else nullcontext():
            pretrain.train_supervised(run, model, config, draw, steps=steps, **options)
    assert len(read_metrics(run.path)) == 4  # the fifth skipped step raises


def test_skipped_steps_are_in_the_learner_s_state(start, tmp_path):
    learner = start.step(settings(), tmp_path).learner
    learner.watch.usable(False)
    learner.watch.usable(False)
    other = start.step(settings(), tmp_path).learner
    other.load_state_dict(learner.state_dict())
    assert other.watch.skipped == 2


def test_skipped_steps_are_counted_over_an_interruption_of_trl(tmp_path, monkeypatch):
    run = RunFolder(tmp_path / "runs" / "rl-1", {}, Ranks())
    rows = [{"step": 1, "skipped": SKIPPED}, {"step": 2}] + [
        {"step": step, "skipped": SKIPPED} for step in (3, 4, 5)
    ]
    for row in rows:
        append_json_line(run.path / METRICS, row)
    callback = RunCallback(run, lambda: False)
    callback.on_train_begin(None, TrainerState(global_step=4), None)  # the checkpoint's step
    callback.on_train_end(None, None, None)
    assert callback._watch.skipped == 2


def test_non_finite_error_is_one_line(monkeypatch, tmp_path):
    def fail(*_):
        raise NotFinite("it was lost")

    monkeypatch.setattr(build, "build", fail)
    monkeypatch.setattr("sys.argv", ["build", "rl", "--profile", "ci", "--runs", str(tmp_path)])
    with pytest.raises(SystemExit, match="^error: it was lost$"):
        build.main()


def test_non_finite_gradient_of_another_rank_counts():
    """Simulates another process's part of a sharded model."""

    class Others(Ranks):
        def sum(self, values):
            return {name: value + 1 for name, value in values.items()}

    assert not gradient_is_finite(torch.nn.Linear(2, 2), Others())


def test_gradient_is_finite_by_hand():
    layer = torch.nn.Linear(2, 2)
    assert gradient_is_finite(layer, Ranks())
    layer(torch.ones(1, 2)).sum().backward()
    assert gradient_is_finite(layer, Ranks())
    layer.bias.grad[1] = math.inf
    assert not gradient_is_finite(layer, Ranks())


def test_trl_sft_disables_cudnn_attention(start, tmp_path):
    torch.backends.cuda.enable_cudnn_sdp(True)
    model = start.step(settings(), tmp_path / "made").model
    create_sft_trainer(
        model, start.chat.tokenizer, sft_dataset(ROWS, start.chat), 400, str(tmp_path)
    )
    assert not torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch.cuda.is_available() is False")
def test_masked_attention_has_finite_gradients_on_a_gpu():
    """Covers scores of -128, for which cuDNN's backward pass returns NaN at this length."""
    disable_cudnn_attention()
    q, k, v = (
        torch.full((1, 2, 192, 64), value, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for value in (4.0, -4.0, 1.0)
    )
    mask = torch.ones(192, 192, dtype=torch.bool, device="cuda").tril()
    F.scaled_dot_product_attention(q, k, v, attn_mask=mask).sum().backward()
    assert all(each.grad.isfinite().all() for each in (q, k, v))
