"""Small policies for tests: the MoE in one small shape, and other architectures."""

from dataclasses import replace

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from drlib.models.moe import PolicyShape, build_policy

SMALL = PolicyShape(
    vocab_size=64,
    hidden=32,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=8,
    experts=8,
    experts_per_token=2,
    expert_hidden=16,
    max_positions=128,
)


def small(**changes) -> PolicyShape:
    """Return the small shape with other sizes, such as layers=3."""
    return replace(SMALL, **changes)


def real_model(name):
    """Build a model with 64 tokens: "moe", "gpt2", "window" (sliding attention) or "llama"."""
    if name == "moe":  # its output matrix is the embedding
        return build_policy(SMALL, seed=3, init="plain").eval()
    sizes = dict(vocab_size=64, max_position_embeddings=128)
    torch.manual_seed(3)
    if name == "gpt2":
        return GPT2LMHeadModel(
            GPT2Config(n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0, **sizes)
        ).eval()
    sizes |= dict(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    if name == "window":
        return MistralForCausalLM(MistralConfig(sliding_window=8, **sizes)).eval()
    return LlamaForCausalLM(LlamaConfig(**sizes)).eval()
