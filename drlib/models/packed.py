"""The trainer's forward pass over samples that lie end to end: no rows, no padding, no masks.

A step's samples have many lengths. In padded rows a third of all positions is nothing; in packed
rows, which several samples share, attention is computed over the whole row under a mask that throws
most of it away. Here all tokens stand in one line. What works token by token (projections, norms,
experts, the head) sees the line as it is, and attention alone runs sample by sample, causal, with
no mask. Packed rows take about a third as long again for forward and backward pass (measured:
tests/benchmarks/bench_step.py).

The rollouts of a group begin with one prompt. It stands in the line once, with the first of them;
the others read its keys and values there, and their gradients add up in it. What comes out is what
copies of the prompt would give, up to rounding.

The model stays transformers' own. Its two registries get an entry each: this attention, and experts
sorted as transformers' `grouped_mm` sorts them, without the masks that it needs where experts are
spread over devices. Both are in force for one pass; whoever else calls the model finds it as it
was.

Left out: gradient checkpointing (its second pass would come after the entries are put back),
dropout, sliding windows. The small policy has none of them.
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
    """What a sample reads before its own tokens: the first `length` tokens of sample `lender`."""

    lender: int
    length: int


def packed_forward(
    model, ids_N: Tensor, lengths: Sequence[int], prefixes: Sequence[Prefix | None] | None = None
) -> tuple[Tensor, Sequence[Tensor]]:
    """(last hidden states [N, H], router logits [N, E] of each sparse layer) of the decoder of
    `model`, over samples of these lengths that lie end to end in `ids_N`.

    prefixes: of each sample, what it goes on from; None: it begins with its own first token. A
    lender has no prefix itself.
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
    before = config._attn_implementation, config._experts_implementation
    config._attn_implementation, config._experts_implementation = ATTENTION, EXPERTS
    try:
        yield
    finally:
        config._attn_implementation, config._experts_implementation = before


def _causal(before: int, own: int) -> Tensor:
    """What `own` tokens see of `before` tokens and of themselves, additive [own, before + own]."""
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
    """Causal attention within each sample and its prefix; K key heads serve H query heads in
    groups.

    The signature is that of transformers' attention functions; [1, N, H, D] comes back.
    """
    queries, keys, values = (
        states.split(sample_lengths, dim=2) for states in (query_1HND, key_1KND, value_1KND)
    )

    def readable(states: tuple[Tensor, ...], sample: int) -> Tensor:
        prefix = sample_prefixes[sample]
        if prefix is None:
            return states[sample]
        return torch.cat([states[prefix.lender][:, :, : prefix.length], states[sample]], dim=2)

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


def sorted_experts(module, x_NH: Tensor, chosen_Nk: Tensor, gates_Nk: Tensor) -> Tensor:
    """The chosen experts' outputs, weighted by their gates and added up: [N, H].

    Each token stands once for each of its experts, sorted by expert, so that an expert's tokens are
    one matrix.
    """
    k = chosen_Nk.shape[-1]
    expert_M, order_M = torch.sort(chosen_Nk.reshape(-1))
    ends_E = torch.bincount(expert_M, minlength=module.num_experts).cumsum(0).to(torch.int32)
    gate_up = F.grouped_mm(x_NH[order_M // k], module.gate_up_proj.transpose(1, 2), offs=ends_E)
    gate, up = gate_up.chunk(2, dim=-1)
    inner = module.act_fn(gate) * up * gates_Nk.reshape(-1)[order_M, None]
    out_MH = F.grouped_mm(inner, module.down_proj.transpose(1, 2), offs=ends_E)
    back_M = torch.empty_like(order_M)
    back_M[order_M] = torch.arange(len(order_M), device=order_M.device)
    return out_MH[back_M].view(*chosen_Nk.shape, -1).sum(dim=1)


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, attention_by_sample)
ALL_EXPERTS_FUNCTIONS.register(EXPERTS, sorted_experts)
