"""Losses and advantages against the trainers of TRL 1.16, on one tiny Qwen3-MoE and one batch.

TRL's methods are called, not re-implemented: `GRPOTrainer.compute_loss` for every option that both
libraries have, and the trl_advantages batch of `RLOOTrainer` for the leave-one-out baseline.
"""

import math

import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from drlib.models.moe import PolicyShape, build_policy, load_policy, save_policy
from drlib.rl.advantages import group_mean, leave_one_out
from drlib.rl.losses import LossConfig, loss_denominator, policy_loss
from tests.trl_examples import ON_A_CPU

SHAPE = PolicyShape(
    vocab_size=64, hidden=32, layers=2, heads=4, head_dim=8, experts=4, expert_hidden=16
)
ROWS, PROMPT, COMPLETION = 4, 3, 6
GRPO = dict(loss_type="grpo")
CASES = {  # TRL's options and the equivalent LossConfig
    "grpo": (GRPO, dict(aggregate="sequence")),
    "dapo": (dict(loss_type="dapo"), dict()),
    "bnpo": (dict(loss_type="bnpo"), dict()),
    "dr_grpo": (dict(loss_type="dr_grpo"), dict(aggregate="constant", constant_tokens=COMPLETION)),
    "cispo": (dict(loss_type="cispo", epsilon_high=1.1), dict(clip="cispo", epsilon_high=0.1)),
    "gspo": (
        GRPO | dict(importance_sampling_level="sequence"),
        dict(aggregate="sequence", level="sequence"),
    ),
    "gspo, token mean": (
        dict(loss_type="dapo", importance_sampling_level="sequence"),
        dict(level="sequence"),
    ),
    "top entropy": (
        dict(loss_type="dapo", top_entropy_quantile=0.4),
        dict(top_entropy=0.4, denominator="all"),
    ),
    "kl": (dict(loss_type="dapo", beta=0.3), dict(kl_coef=0.3, kl_unbiased=True)),
    "plain kl": (
        GRPO | dict(beta=0.3, use_bias_correction_kl=False),
        dict(aggregate="sequence", kl_coef=0.3),
    ),
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Return a folder with the tiny policy and a tokenizer of 64 words, for TRL."""
    folder = tmp_path_factory.mktemp("policy") / "tiny"
    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(64)}, unk_token="t0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="t0", eos_token="t1", pad_token="t2"
    )
    model = build_policy(SHAPE, seed=0, init="plain", eos_id=1, pad_id=2)
    save_policy(model, tokenizer, folder)
    return folder


def trainer(
    kind, arguments, checkpoint, tmp_path, reward=lambda completions, **_: [0.0] * ROWS, **settings
):
    model, tokenizer = load_policy(checkpoint)
    trl_trainer = kind(
        model=model,
        processing_class=tokenizer,
        reward_funcs=reward,
        train_dataset=Dataset.from_dict({"prompt": ["t3 t4 t5"] * ROWS}),
        args=arguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=ROWS,
            max_completion_length=COMPLETION,
            **ON_A_CPU,
            **{"num_generations": 2} | settings,
        ),
    )
    trl_trainer.model.train()
    trl_trainer.current_gradient_accumulation_steps = trl_trainer.args.gradient_accumulation_steps
    return trl_trainer


def trl_batch(model, mask_counts=(6, 6, 5, 6)):
    """Return TRL's inputs: ragged completions with tool tokens, off-policy old log-probs."""
    rng = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 64, (ROWS, PROMPT + COMPLETION), generator=rng)
    prompt_mask = torch.ones(ROWS, PROMPT, dtype=torch.long)
    prompt_mask[1, 0] = 0  # padded on the left
    completion_mask = (torch.arange(COMPLETION) < torch.tensor(mask_counts)[:, None]).long()
    tool_mask = torch.ones_like(completion_mask)
    tool_mask[0, 2:4] = tool_mask[3, 1] = 0
    with torch.no_grad():
        logp_BT, _ = score(model, ids, prompt_mask, completion_mask)
    noise = torch.randn(2, ROWS, COMPLETION, generator=rng)
    return {
        "prompt_ids": ids[:, :PROMPT],
        "prompt_mask": prompt_mask,
        "completion_ids": ids[:, PROMPT:],
        "completion_mask": completion_mask,
        "tool_mask": tool_mask,
        "old_per_token_logps": logp_BT + 0.4 * noise[0],
        "ref_per_token_logps": logp_BT + 0.4 * noise[1],
        "advantages": torch.tensor([1.0, -1.0, 0.5, -0.5]),
        "num_items_in_batch": (completion_mask * tool_mask).sum(),
    }


def score(model, ids, prompt_mask, completion_mask):
    """Return log-probabilities and entropies [B, T] of the completions from plain logits."""
    mask = torch.cat([prompt_mask, completion_mask], dim=1)
    logits = model(input_ids=ids, attention_mask=mask).logits[:, PROMPT - 1 : -1]
    logp_BTV = logits.log_softmax(-1)
    entropies_BT = -(logp_BTV.exp() * logp_BTV).sum(-1)
    return logp_BTV.gather(-1, ids[:, PROMPT:, None])[..., 0], entropies_BT


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])


def drlib_loss(model, inputs, config, denominator=None):
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    logp_BT, entropies_BT = score(model, ids, inputs["prompt_mask"], inputs["completion_mask"])
    loss, metrics = policy_loss(
        logp_BT,
        inputs["old_per_token_logps"],
        inputs["advantages"],
        (inputs["completion_mask"] * inputs["tool_mask"]).bool(),
        config,
        reference_logp_BT=inputs["ref_per_token_logps"],
        entropies_BT=entropies_BT.detach(),
        denominator=denominator,
    )
    return loss.item(), gradients(model, loss), metrics


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_match_trl(name, checkpoint, tmp_path):
    trl_settings, settings = CASES[name]
    grpo = trainer(
        GRPOTrainer,
        GRPOConfig,
        checkpoint,
        tmp_path,
        **{"epsilon_high": 0.28, "steps_per_generation": 1} | trl_settings,
    )
    inputs = trl_batch(grpo.model)
    trl_loss = grpo.compute_loss(grpo.model, inputs)
    expected = gradients(grpo.model, trl_loss)
    loss, gradient, metrics = drlib_loss(grpo.model, inputs, LossConfig(**settings))
    assert loss == pytest.approx(trl_loss.item(), abs=1e-6)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-6)
    assert expected.abs().max() > 1e-3  # the comparison is not trivial
    logged = grpo._metrics["train"]
    if "clip_ratio/low_mean" in logged and "gspo" not in name:  # TRL counts sequences there
        assert metrics["clip_low"] == pytest.approx(logged["clip_ratio/low_mean"][0])
        assert metrics["clip_high"] == pytest.approx(logged["clip_ratio/high_mean"][0])
        assert metrics["clip_low"] > 0 and metrics["clip_high"] > 0
    if name == "plain kl":
        assert metrics["kl"] == pytest.approx(logged["kl"][0], abs=1e-6)


def test_accumulated_micro_batches_match_trl(checkpoint, tmp_path):
    grpo = trainer(
        GRPOTrainer,
        GRPOConfig,
        checkpoint,
        tmp_path,
        loss_type="dapo",
        epsilon_high=0.28,
        gradient_accumulation_steps=2,
    )
    assert grpo.args.steps_per_generation == 2
    inputs = trl_batch(grpo.model, mask_counts=(6, 6, 2, 3))  # halves of 10 and 4 tokens
    halves = [
        {k: v if v.dim() == 0 else v[rows] for k, v in inputs.items()}
        for rows in (slice(0, 2), slice(2, 4))
    ]
    expected = sum(gradients(grpo.model, grpo.compute_loss(grpo.model, half)) for half in halves)
    masks = [(half["completion_mask"] * half["tool_mask"]).bool() for half in halves]
    total = sum(loss_denominator(mask) for mask in masks)
    assert total == inputs["num_items_in_batch"] == 14
    found = sum(drlib_loss(grpo.model, half, LossConfig(), total)[1] for half in halves)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(
        drlib_loss(grpo.model, inputs, LossConfig())[1], found, rtol=0, atol=1e-6
    )


def trl_advantages(kind, arguments, rewards, checkpoint, tmp_path, **settings):
    """Return a TRL trainer's advantages for rollouts with these rewards."""
    trl_trainer = trainer(
        kind,
        arguments,
        checkpoint,
        tmp_path,
        reward=lambda completions, **_: rewards,
        steps_per_generation=1,
        **settings,
    )
    batch = trl_trainer._generate_and_score_completions([{"prompt": "t3 t4"}] * ROWS)
    return batch["advantages"]


@pytest.mark.parametrize("rewards", [[1.0, 0.0, 0.25, 0.25], [0.3, 0.9, None, 0.7]])
def test_leave_one_out_matches_trl_rloo(rewards, checkpoint, tmp_path):
    given = torch.tensor([math.nan if r is None else r for r in rewards])
    valid = ~given.isnan()
    for size in (2, 4):
        expected = trl_advantages(
            RLOOTrainer, RLOOConfig, rewards, checkpoint, tmp_path, num_generations=size
        )
        groups = torch.arange(ROWS) // size
        torch.testing.assert_close(leave_one_out(given, groups, valid), expected)


def test_group_mean_matches_trl_grpo_without_scaling(checkpoint, tmp_path):
    rewards = [1.0, 0.0, 0.25, 0.5]
    expected = trl_advantages(
        GRPOTrainer, GRPOConfig, rewards, checkpoint, tmp_path, scale_rewards="none"
    )
    torch.testing.assert_close(group_mean(rewards, [0, 0, 1, 1]), expected)
