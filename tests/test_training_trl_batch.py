"""Rows without a gradient are dropped, which changes no gradient.

Run: python -m pytest tests/test_training_trl_batch.py
"""

import pytest
import torch

from drlib.models.moe import load_policy
from drlib.rl.losses import LossConfig
from drlib.training import trl
from drlib.training.trl import ROUTES, count_live_tokens, drop_dead_rows, weighted_mask
from tests.trl_examples import (
    COMPLETION,
    EOS,
    GROUP,
    GradientRecorder,
    assert_equal_gradients,
    named_gradients,
    save_checkpoint,
    trainer,
)

PROMPTS = [[3, 4, 5]] * GROUP + [[6]] * GROUP
LENGTHS = (2, 3, 5, 4, 7, 3, 2, 6)
REWARDS = [1.0, 0.0, 0.0, 1.0] + [1.0] * GROUP  # the second group is dead


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return save_checkpoint(tmp_path_factory.mktemp("policy") / "tiny", std=0.3)


def completions():
    generator = torch.Generator().manual_seed(1)
    found = [torch.randint(3, 12, (n,), generator=generator).tolist() for n in LENGTHS]
    return [[*ids[:-1], EOS] for ids in found]


def fixed_rollouts(prompts, trainer):
    return {
        "prompt_ids": [list(prompt) for prompt in PROMPTS],
        "completion_ids": completions(),
        "logprobs": [[-1.0] * n for n in LENGTHS],
    }


class PassRecorder:
    """Record the shape [rows, tokens] and the number of unpadded tokens of forward passes."""

    def __init__(self, model):
        self.shapes, self.seen = [], []
        model.register_forward_pre_hook(self._see, with_kwargs=True)

    def _see(self, module, args, options):
        self.shapes.append(tuple(options["input_ids"].shape))
        self.seen.append(int(options["attention_mask"].sum()))


def run_step(checkpoint, folder, rewards, options=None, **ours):
    """Run a real step; return (gradients, log line, passes)."""
    watch = GradientRecorder()
    grpo_trainer = trainer(
        checkpoint, folder, lambda **_: rewards, options, rollout_func=fixed_rollouts, **ours
    )
    passes = PassRecorder(grpo_trainer.model)
    grpo_trainer.add_callback(watch)
    grpo_trainer.train()
    return watch.gradients, grpo_trainer.state.log_history[0], passes


def batch(**changes):
    """Return three rows: prompts of two columns, completions of four."""
    return {
        "prompt_ids": torch.tensor([[2, 3], [4, 5], [2, 6]]),
        "prompt_mask": torch.tensor([[0, 1], [1, 1], [0, 1]]),
        "completion_ids": torch.tensor([[7, 8, 2, 2], [7, 8, 9, 7], [8, 8, 9, 2]]),
        "completion_mask": torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 0]]),
        "tool_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 1, 1], [1, 0, 1, 1]]),
        "old_per_token_logps": torch.arange(12.0).view(3, 4),
        ROUTES: torch.arange(18).view(3, 6, 1, 1),
        "advantages": torch.tensor([0.5, 0.0, -0.5]),
        "loss_weights": torch.tensor([1.0, 1.0, 1.0]),
        "num_items_in_batch": torch.tensor(9.0),
    } | changes


def test_drop_dead_rows_by_hand():
    whole = batch()
    assert count_live_tokens(whole, kl=False).tolist() == [2, 0, 2]
    assert count_live_tokens(whole, kl=True).tolist() == [2, 4, 2]
    kept = drop_dead_rows(whole, kl=False)
    assert kept["prompt_ids"].tolist() == [[3], [6]]
    assert kept["completion_ids"].tolist() == [[7, 8, 2], [8, 8, 9]]
    assert kept["tool_mask"].tolist() == [[1, 1, 1], [1, 0, 1]]
    assert kept["old_per_token_logps"].tolist() == [[0, 1, 2], [8, 9, 10]]
    assert kept[ROUTES].flatten(1).tolist() == [[1, 2, 3, 4], [13, 14, 15, 16]]
    assert kept["advantages"].tolist() == [0.5, -0.5] and kept["num_items_in_batch"] == 9
    assert whole["prompt_ids"].shape == (3, 2)  # the batch itself is as it was
    assert weighted_mask(kept).tolist() == [[True, True, False], [True, False, True]]


def test_kl_term_keeps_zero_advantage_rows():
    kept = drop_dead_rows(batch(loss_weights=torch.tensor([1.0, 1.0, 0.0])), kl=True)
    assert kept["advantages"].tolist() == [0.5, 0.0] and kept["prompt_ids"].shape == (2, 2)


def test_batch_without_gradient_keeps_its_shortest_row():
    kept = drop_dead_rows(batch(advantages=torch.zeros(3)), kl=False)
    assert kept["completion_ids"].tolist() == [[7, 8]] and kept["prompt_ids"].tolist() == [[3]]


def test_batch_with_images_is_unchanged():
    whole = batch(pixel_values=torch.zeros(5, 3))
    assert drop_dead_rows(whole, kl=False) is whole


@pytest.mark.parametrize("kl", [0.0, 0.1])
def test_gradients_match_the_full_batch(kl, checkpoint, tmp_path, monkeypatch):
    recipe = {"loss": LossConfig(kl_coef=kl), "options": {"beta": kl}}
    found, line, passes = run_step(checkpoint, tmp_path / "some", REWARDS, **recipe)
    monkeypatch.setattr(trl, "drop_dead_rows", lambda inputs, kl: inputs)
    expected, full_line, whole = run_step(checkpoint, tmp_path / "all", REWARDS, **recipe)
    assert_equal_gradients(found, expected)
    assert line["train_loss"] == pytest.approx(full_line["train_loss"], abs=1e-6)
    trained, untrimmed = passes.shapes[-2:], whole.shapes[-2:]  # the last two are the loss's own
    assert {shape[0] for shape in untrimmed} == {GROUP}
    assert sum(rows for rows, _ in untrimmed) == 2 * GROUP
    if kl == 0:
        assert sum(rows for rows, _ in trained) == GROUP  # those of the group that is alive
        assert max(tokens for _, tokens in trained) <= 3 + 5 < 3 + 7


def test_batch_without_gradient_still_runs_its_passes(checkpoint, tmp_path):
    gradients, _, passes = run_step(checkpoint, tmp_path, [1.0] * 2 * GROUP)
    assert [rows for rows, _ in passes.shapes] == [1, 1]
    assert all(gradient.abs().max() == 0 for gradient in gradients.values())


def test_balance_loss_is_the_mean_over_live_tokens(checkpoint, tmp_path):
    """With one row per micro-batch, rows count by their tokens, and rows without gradient as 0."""
    options = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2 * GROUP}
    (plain, _, _), (balanced, _, passes) = (
        run_step(checkpoint, tmp_path, REWARDS, options | {"router_aux_loss_coef": coefficient})
        for coefficient in (0.0, 0.5)
    )
    assert passes.shapes == [(1, tokens) for tokens in passes.seen]  # a row alone: no padding
    model, _ = load_policy(checkpoint)
    live = [(p + c, len(c)) for p, c in zip(PROMPTS[:GROUP], completions())]
    for ids, tokens in live:
        out = model(input_ids=torch.tensor([ids]), output_router_logits=True)
        (out.aux_loss * tokens / sum(n for _, n in live)).backward()
    expected = named_gradients(model)
    for layer in range(2):
        name = f"model.layers.{layer}.mlp.gate.weight"
        assert expected[name].abs().max() > 1e-4
        torch.testing.assert_close(
            balanced[name] - plain[name], 0.5 * expected[name], rtol=0, atol=1e-6
        )


def test_completions_fit_the_batch():
    assert max(LENGTHS) < COMPLETION  # no row is cut off, so the filter leaves all of them in
