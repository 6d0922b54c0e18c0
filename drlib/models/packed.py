"""The trainer's forward pass over packed samples: no rows, no padding, no masks.

The samples of a step have many lengths. In padded rows a third of all positions is padding; in
packed rows shared by samples, attention is computed over the whole row under a mask that discards
most of it. Here all tokens form one sequence. Token-wise layers (projections, norms, experts, the
head) process it directly, and attention runs sample by sample, causal, without a mask. Masked
packed rows take about a third longer (measured: tests/benchmarks/bench_step.py).

The rollouts of a group share one prompt. It is stored once, with the first rollout; the others
read its keys and values there, and their gradients accumulate in it. The result equals that of
copied prompts up to rounding.

The model is unmodified: transformers' registries get an entry each, for this attention and for
experts sorted as in `grouped_mm` without the masks for expert parallelism. Both are active during
one pass only. Gradient checkpointing (whose second pass runs after the entries are inactive),
dropout and sliding windows are not supported.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

ATTENTION = "drlib_by_sample"
EXPERTS = "drlib_sorted"


@dataclass(frozen=True)
class Prefix:
    """Tokens that a sample reads first: the first `length` tokens of sample `owner`."""

    owner: int
    length: int


def packed_forward(
    model, ids_N: Tensor, lengths: Sequence[int], prefixes: Sequence[Prefix | None] | None = None
) -> tuple[Tensor, Sequence[Tensor]]:
    """Run the decoder of `model` over packed samples.

    Args:
        ids_N: int, token ids of all samples.
        lengths: tokens of each sample.
        prefixes: prefix of each sample; None: it starts with its own first token. An owner has no
            prefix itself.

    Returns:
        (hidden_NH, router_logits): last hidden states, and router logits [N, E] of each sparse
        layer.
    """
    prefixes = [None] * len(lengths) if prefixes is None else prefixes
    before = [prefix.length if prefix else 0 for prefix in prefixes]
    positions_N = torch.cat([torch.arange(b, b + n) for b, n in zip(before, lengths)])
    with _in_force(model.config):
        out = model.model(
            input_ids=ids_N[None],
            position_ids=positions_N[None],
            use_cache=False,
            output_router_logits=True,
            sample_lengths=list(lengths),
            sample_prefixes=list(prefixes),
            sample_masks=[_causal(b, n) if b else None for b, n in zip(before, lengths)],
        )
    return out.last_hidden_state[0], out.router_logits


@contextmanager
def _in_force(config) -> Iterator[None]:
    """Activate this attention and these experts for one pass."""
    before = config._attn_implementation, config._experts_implementation
    config._attn_implementation, config._experts_implementation = ATTENTION, EXPERTS
    try:
        yield
    finally:
        config._attn_implementation, config._experts_implementation = before


def _causal(before: int, own: int) -> Tensor:
    """Return the additive mask [own, before + own] of `own` tokens after `before` others."""
    visible = torch.ones(own, before + own, dtype=torch.bool).tril(before)
    return torch.zeros(visible.shape).masked_fill_(~visible, -torch.inf)


def attention_by_sample(
    module,
    query_1HND: Tensor,
    key_1KND: Tensor,
    value_1KND: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    sample_lengths: list[int],
    sample_prefixes: list[Prefix | None],
    sample_masks: list[Tensor | None],
    **unused,
) -> tuple[Tensor, None]:
    """Causal attention within each sample and its prefix; K key heads serve H query heads.

    The signature is that of transformers' attention functions; returns [1, N, H, D].
    """
    queries, keys, values = (
        states.split(sample_lengths, dim=2) for states in (query_1HND, key_1KND, value_1KND)
    )

    def readable(states: tuple[Tensor, ...], sample: int) -> Tensor:
        prefix = sample_prefixes[sample]
        if prefix is None:
            return states[sample]
        return torch.cat([states[prefix.owner][:, :, : prefix.length], states[sample]], dim=2)

    attended = [
        F.scaled_dot_product_attention(
            queries[i],
            readable(keys, i),
            readable(values, i),
            attn_mask=mask,
            is_causal=mask is None,
            scale=scaling,
            enable_gqa=True,
        )
        for i, mask in enumerate(sample_masks)
    ]
    return torch.cat(attended, dim=2).transpose(1, 2), None


def sorted_experts(module, x_NH: Tensor, experts_Nk: Tensor, gates_Nk: Tensor) -> Tensor:
    """Return the weighted sum of the selected experts' outputs, [N, H].

    Each token is repeated once per expert, sorted by expert, so an expert's tokens form one matrix.
    """
    k = experts_Nk.shape[-1]
    expert_M, order_M = torch.sort(experts_Nk.reshape(-1))
    ends_E = torch.bincount(expert_M, minlength=module.num_experts).cumsum(0).to(torch.int32)
    gate_up = F.grouped_mm(x_NH[order_M // k], module.gate_up_proj.transpose(1, 2), offs=ends_E)
    gate, up = gate_up.chunk(2, dim=-1)
    inner = module.act_fn(gate) * up * gates_Nk.reshape(-1)[order_M, None]
    out_MH = F.grouped_mm(inner, module.down_proj.transpose(1, 2), offs=ends_E)
    back_M = torch.empty_like(order_M)
    back_M[order_M] = torch.arange(len(order_M), device=order_M.device)
    return out_MH[back_M].view(*experts_Nk.shape, -1).sum(dim=1)


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, attention_by_sample)
ALL_EXPERTS_FUNCTIONS.register(EXPERTS, sorted_experts)
