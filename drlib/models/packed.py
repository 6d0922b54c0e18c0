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

Models without experts run the same way, in bfloat16 under autocast. torch's fused attention has a
slow backward pass for bfloat16 on CPUs, so there the samples' attention is three matrix products
(half the time for 250 tokens, measured: tests/benchmarks/bench_dense.py).
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
    by_products = _is_by_products(ids_N.device.type)
    masks = {(b, n): _causal(b, n) if b or by_products else None for b, n in zip(before, lengths)}
    options = {"output_router_logits": True} if is_sparse(model.config) else {}
    with _in_force(model.config):
        out = model.model(
            input_ids=ids_N[None],
            position_ids=positions_N[None],
            use_cache=False,
            sample_lengths=list(lengths),
            sample_prefixes=list(prefixes),
            sample_masks=[masks[b, n] for b, n in zip(before, lengths)],
            **options,
        )
    return out.last_hidden_state[0], getattr(out, "router_logits", ())


def is_sparse(config) -> bool:
    """Return True for the configuration of a mixture of experts."""
    return hasattr(config, "num_experts_per_tok")


def _is_by_products(device: str) -> bool:
    """Return True if attention is computed by matrix products instead of torch's fused kernel."""
    if device != "cpu" or not torch.is_autocast_enabled(device):
        return False
    return torch.is_grad_enabled() and torch.get_autocast_dtype(device) == torch.bfloat16


@contextmanager
def _in_force(config) -> Iterator[None]:
    """Activate this attention and these experts for one pass."""
    names = {"_attn_implementation": ATTENTION}
    if is_sparse(config):
        names["_experts_implementation"] = EXPERTS
    before = {name: getattr(config, name) for name in names}
    for name, value in names.items():
        setattr(config, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(config, name, value)


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

    def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        if _is_by_products(query.device.type):
            return _attention_by_products(query, key, value, mask, scaling)
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            is_causal=mask is None,
            scale=scaling,
            enable_gqa=True,
        )

    attended = [
        attend(queries[i], readable(keys, i), readable(values, i), mask)
        for i, mask in enumerate(sample_masks)
    ]
    return torch.cat(attended, dim=2).transpose(1, 2), None


def _attention_by_products(
    query_1HND: Tensor, key_1KTD: Tensor, value_1KTD: Tensor, mask_NT: Tensor, scaling: float
) -> Tensor:
    """Attention of N queries to T keys; the query heads of a key head are rows of one matrix."""
    _, heads, n, dim = query_1HND.shape
    groups = key_1KTD.shape[1]
    query_KMD = query_1HND.reshape(groups, heads // groups * n, dim)
    mask_MT = mask_NT.to(query_KMD.dtype).repeat(heads // groups, 1)
    scores_KMT = torch.baddbmm(mask_MT, query_KMD, key_1KTD[0].transpose(1, 2), alpha=scaling)
    weights_KMT = torch.softmax(scores_KMT, dim=-1, dtype=torch.float32).to(value_1KTD.dtype)
    return (weights_KMT @ value_1KTD[0]).view(1, heads, n, dim)


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
