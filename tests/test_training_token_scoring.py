"""Chunked log-probabilities in TRL's step: TRL's values and gradients without an N x V tensor.

Uses random models of several families; the reference is TRL's own head on the same batch.

Run: python -m pytest tests/test_training_token_scoring.py
"""

import pytest
import torch
from peft import LoraConfig
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    PhiConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)
from trl import GRPOTrainer

from drlib.training.token_scoring import find_heads, score_tokens
from tests.trl_examples import (
    COMPLETION,
    GROUP,
    VOCABULARY,
    named_gradients,
    save_checkpoint,
    trainer,
)

TINY = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 32,
    "head_dim": 4,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "bos_token_id": None,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
FAMILIES = {
    "qwen3": Qwen3Config(**TINY, tie_word_embeddings=True),
    "llama": LlamaConfig(**TINY, tie_word_embeddings=False),
    "qwen3_moe": Qwen3MoeConfig(**TINY, **EXPERTS),
    "gpt2": GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=16,
        n_layer=2,
        n_head=4,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
        eos_token_id=1,
        bos_token_id=1,
    ),
}
LORA = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return save_checkpoint(tmp_path_factory.mktemp("policy") / "tiny")


def random_model(config, std=0.5):
    """Build a model with weights large enough that log-probabilities differ by nats."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(0, std) if p.dim() > 1 else p
    return model


def make_trainer(checkpoint, tmp_path, model, **options):
    ours = {"peft_config": options.pop("peft_config", None)}
    options = {"router_aux_loss_coef": None, "temperature": 0.7} | options
    return trainer(checkpoint, tmp_path, lambda **_: None, options, model=model, **ours)


def batch():
    """Return (ids, attention mask, selected completion tokens); prompts of 3, 1, 5 and 2 tokens."""
    g = torch.Generator().manual_seed(5)
    ids_BT = torch.randint(3, VOCABULARY, (GROUP, 5 + COMPLETION), generator=g)
    seen_BT = torch.ones_like(ids_BT)
    for row, (prompt, completion) in enumerate([(3, 8), (1, 5), (5, 2), (2, 7)]):
        seen_BT[row, : 5 - prompt] = 0
        seen_BT[row, 5 + completion :] = 0
    chosen_BC = seen_BT[:, 5:].bool()
    chosen_BC[:, 2:4] = False  # what a tool returned
    return ids_BT.where(seen_BT > 0, 2), seen_BT, chosen_BC


def score_with_both_heads(grpo_trainer, model=None):
    """Return (logp, entropies, gradients) of the chunked head and of TRL's, for a weighted loss."""
    model = model or grpo_trainer.model
    ids_BT, seen_BT, chosen_BC = batch()
    weights_BC = torch.randn(chosen_BC.shape, generator=torch.Generator().manual_seed(6))
    found = []
    for ours in (True, False):
        grpo_trainer.model.zero_grad()
        if ours:
            logp_BC, entropies_BC, *_ = grpo_trainer._score(model, ids_BT, seen_BT, chosen_BC)
        else:
            base = GRPOTrainer._get_per_token_logps_and_entropies
            width = chosen_BC.size(1)
            logp_BC, entropies_BC, _ = base(
                grpo_trainer, model, ids_BT, seen_BT, width, compute_entropy=True
            )
        (logp_BC * weights_BC * chosen_BC).sum().backward()
        found.append(
            (logp_BC[chosen_BC], entropies_BC[chosen_BC], named_gradients(grpo_trainer.model))
        )
    return found


def assert_same_scores(found, expected, atol=5e-6):
    assert expected[0].std() > 0.3 and expected[1].std() > 0.05  # tokens that differ
    for one, other in zip(found[:2], expected[:2]):
        torch.testing.assert_close(one, other.to(one.dtype), rtol=0, atol=atol)
    assert found[2].keys() == expected[2].keys()
    for name, gradient in expected[2].items():
        scale = max(1.0, float(gradient.abs().max()))
        torch.testing.assert_close(found[2][name], gradient, rtol=0, atol=atol * scale, msg=name)


@pytest.mark.parametrize("name", FAMILIES)
def test_values_and_gradients_match_trl(name, checkpoint, tmp_path):
    grpo_trainer = make_trainer(checkpoint, tmp_path, random_model(FAMILIES[name]))
    assert find_heads(grpo_trainer.model)
    assert_same_scores(*score_with_both_heads(grpo_trainer))


@pytest.mark.parametrize("whole_head", [False, True], ids=["adapters", "head trained whole"])
def test_peft_models_match_trl(whole_head, checkpoint, tmp_path):
    config = LoraConfig(**LORA.to_dict() | {"modules_to_save": ["lm_head"] if whole_head else None})
    grpo_trainer = make_trainer(
        checkpoint, tmp_path, random_model(FAMILIES["llama"]), peft_config=config
    )
    with torch.no_grad():
        for name, p in grpo_trainer.model.named_parameters():
            if p.requires_grad:
                p += 0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(len(name)))
    assert len(find_heads(grpo_trainer.model)) == (2 if whole_head else 1)
    ours, theirs = score_with_both_heads(grpo_trainer)
    assert any("lm_head" in name for name in ours[2]) == whole_head
    assert_same_scores(ours, theirs)


def test_adapter_on_the_head_is_rejected(checkpoint, tmp_path):
    config = LoraConfig(r=2, target_modules=["q_proj", "lm_head"], task_type="CAUSAL_LM")
    with pytest.raises(ValueError, match="PEFT adapter to `lm_head` is not supported"):
        make_trainer(checkpoint, tmp_path, random_model(FAMILIES["llama"]), peft_config=config)


@pytest.mark.parametrize(
    "config", [Gemma2Config(**TINY), PhiConfig(**TINY)], ids=["softcap", "bias"]
)
def test_unsupported_heads_use_trl(config, checkpoint, tmp_path):
    grpo_trainer = make_trainer(checkpoint, tmp_path, random_model(config))
    assert find_heads(grpo_trainer.model) == []
    ours, theirs = score_with_both_heads(grpo_trainer)
    assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])


def test_reference_is_scored_by_the_chunked_head(checkpoint, tmp_path):
    """TRL's own call passes no mask of sampled tokens, so all completion tokens are scored."""
    grpo_trainer = make_trainer(checkpoint, tmp_path, random_model(FAMILIES["qwen3"]))
    ids_BT, seen_BT, chosen_BC = batch()
    width = chosen_BC.size(1)
    theirs = GRPOTrainer._get_per_token_logps_and_entropies(
        grpo_trainer, grpo_trainer.model, ids_BT, seen_BT, width
    )
    ours = grpo_trainer._get_per_token_logps_and_entropies(
        grpo_trainer.model, ids_BT, seen_BT, width, batch_size=3
    )
    torch.testing.assert_close(ours[0], theirs[0], rtol=0, atol=5e-6)
    assert ours[1] is None and (ours[0] != 0).sum() == seen_BT[:, 5:].sum() > chosen_BC.sum()


# ---------------------------------------------------------------- memory


class TensorSizeRecorder(TorchDispatchMode):
    """Record the largest tensor of any operation and the maximum number of rows of V columns."""

    def __init__(self, columns):
        super().__init__()
        self.columns, self.numbers, self.rows = columns, 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor):
                self.numbers = max(self.numbers, x.numel())
                if x.dim() and x.size(-1) == self.columns:
                    self.rows = max(self.rows, x.numel() // x.size(-1))
        return out


def test_full_logits_are_never_built():
    vocabulary, hidden = 151_936, 4
    small = {"hidden_size": hidden, "num_attention_heads": 1, "num_key_value_heads": 1}
    options = TINY | small | {"vocab_size": vocabulary, "num_hidden_layers": 1}
    model = random_model(LlamaConfig(**options, tie_word_embeddings=False))
    g = torch.Generator().manual_seed(1)
    ids_BT = torch.randint(0, vocabulary, (2, 200), generator=g)
    seen_BT, chosen_BT = torch.ones_like(ids_BT), torch.arange(400).view(2, 200) % 4 > 0
    rows = int(chosen_BT[:, 1:].sum())
    with TensorSizeRecorder(vocabulary) as seen:
        found = score_tokens(model, find_heads(model), ids_BT, seen_BT, chosen_BT)
        found.logp_BT.sum().backward()
    assert seen.rows == 0  # and no tensor is larger than the matrix itself or a tile
    assert seen.numbers == max(vocabulary * hidden, 256 * 4096) < rows * vocabulary / 40
    with TensorSizeRecorder(vocabulary) as full_head, torch.no_grad():
        model(input_ids=ids_BT)
    assert full_head.numbers == ids_BT.numel() * vocabulary  # control: the recorder detects it


def test_only_selected_tokens_reach_the_head(monkeypatch):
    model = random_model(FAMILIES["qwen3"])
    ids_BT, seen_BT, chosen_BC = batch()
    chosen_BT = torch.nn.functional.pad(chosen_BC, (5, 0))
    chosen_BT[0, 0] = True  # without a predecessor
    with TensorSizeRecorder(VOCABULARY) as seen, torch.no_grad():
        found = score_tokens(model, find_heads(model), ids_BT, seen_BT, chosen_BT)
    assert seen.rows < ids_BT.numel() and seen.rows == max(int(chosen_BC.sum()), 16)  # V x H
    assert ((found.logp_BT != 0) == torch.nn.functional.pad(chosen_BC, (5, 0))).all()


# ---------------------------------------------------------------- precision and wrappers


class RoundingWrapper(nn.Module):
    """Wrapper that rounds the model's outputs, like FSDP2's mixed precision."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, **inputs):
        out = self.model(**inputs)
        out.logits = out.logits.bfloat16()
        return out


def test_rounding_wrapper_keeps_exact_logprobs(checkpoint, tmp_path):
    model = random_model(FAMILIES["qwen3"])
    ids_BT, seen_BT, chosen_BC = batch()
    arguments = find_heads(model), ids_BT, seen_BT, torch.nn.functional.pad(chosen_BC, (5, 0))
    exact, wrapped = (
        score_tokens(model, *arguments),
        score_tokens(RoundingWrapper(model), *arguments),
    )
    assert not torch.equal(exact.logp_BT, exact.logp_BT.bfloat16().float())
    torch.testing.assert_close(wrapped.logp_BT, exact.logp_BT, rtol=0, atol=1e-6)
    gradients = []
    for found in (exact, wrapped):
        model.zero_grad()
        found.logp_BT.sum().backward()
        gradients.append(named_gradients(model)["model.norm.weight"])
    torch.testing.assert_close(*gradients)


def test_autocast_matches_trl_with_float32_logprobs(checkpoint, tmp_path):
    grpo_trainer = make_trainer(checkpoint, tmp_path, random_model(FAMILIES["llama"]), bf16=True)
    ours, theirs = score_with_both_heads(grpo_trainer)
    assert ours[0].dtype == torch.float32
    torch.testing.assert_close(ours[0], theirs[0].float(), rtol=0, atol=0.05)
    grpo_trainer = make_trainer(
        checkpoint,
        tmp_path,
        random_model(FAMILIES["llama"]),
        bf16=True,
        cast_lm_head_to_fp32=True,
    )
    in_float32, _ = score_with_both_heads(grpo_trainer)
    assert not torch.equal(ours[0], in_float32[0])


def test_batch_without_loss_tokens_has_zero_gradients():
    model = random_model(FAMILIES["qwen3_moe"])
    ids_BT, seen_BT, _ = batch()
    found = score_tokens(model, find_heads(model), ids_BT, seen_BT, torch.zeros_like(ids_BT) > 0)
    found.logp_BT.sum().backward()
    assert set(named_gradients(model)) == {name for name, _ in model.named_parameters()}
    assert not any(gradient.any() for gradient in named_gradients(model).values())


def test_head_is_restored_and_must_be_called():
    model = random_model(FAMILIES["qwen3"])
    ids_BT, seen_BT, _ = batch()
    chosen_BT = seen_BT > 0
    before = model(input_ids=ids_BT).logits
    score_tokens(model, find_heads(model), ids_BT, seen_BT, chosen_BT)
    assert torch.equal(model(input_ids=ids_BT).logits, before)
    with pytest.raises(RuntimeError, match="called its output matrix 0 times"):
        score_tokens(model, [nn.Linear(16, VOCABULARY)], ids_BT, seen_BT, chosen_BT)
    assert "forward" not in vars(model.lm_head)
