"""Packing samples into rows, and the log-probabilities of the tokens that carry loss.

Several short samples share a row; `position_ids` start again at each, and with the cache off and
no attention mask transformers keeps them from seeing each other (with an all-ones mask, or with
the cache on, they leak: a test holds both). At the lengths of the supervised stages a packed row
is about 95% real tokens where a padded one is 65%.

Only positions whose *next* token carries loss reach the vocabulary-sized output layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """R packed rows of T tokens. `where` of each sample: (row, first token, length)."""

    ids_RT: Tensor
    positions_RT: Tensor
    real_RT: Tensor  # False on the rest of a row that no sample filled
    where: list[tuple[int, int, int]]


def pack(samples: Sequence[Sequence[int]], width: int, pad_id: int) -> Rows:
    """First-fit, longest first. Raises ValueError for a sample longer than `width`."""
    if not samples:
        raise ValueError("nothing to pack")
    free: list[int] = []
    where: list[tuple[int, int, int]] = [(0, 0, 0)] * len(samples)
    for i in sorted(range(len(samples)), key=lambda i: -len(samples[i])):
        n = len(samples[i])
        if n > width:
            raise ValueError(f"a sample of {n} tokens does not fit into rows of {width}")
        row = next((r for r, space in enumerate(free) if space >= n), len(free))
        if row == len(free):
            free.append(width)
        where[i] = (row, width - free[row], n)
        free[row] -= n
    used = width - min(free)  # no row is longer than the fullest
    ids = torch.full((len(free), used), pad_id, dtype=torch.long)
    positions = torch.zeros((len(free), used), dtype=torch.long)
    real = torch.zeros((len(free), used), dtype=torch.bool)
    for (row, at, n), sample in zip(where, samples):
        ids[row, at : at + n] = torch.as_tensor(sample, dtype=torch.long)
        positions[row, at : at + n] = torch.arange(n)
        real[row, at : at + n] = True
    for row, space in enumerate(free):  # the tail is one more (ignored) document
        tail = space - min(free)
        if tail:
            positions[row, used - tail :] = torch.arange(tail)
    return Rows(ids, positions, real, where)


def spread(rows: Rows, values: Sequence[Sequence], dtype: torch.dtype) -> Tensor:
    """Per-token `values` of each sample laid out like the rows, zero elsewhere: [R, T]."""
    out = torch.zeros(rows.ids_RT.shape, dtype=dtype)
    for (row, at, n), value in zip(rows.where, values):
        out[row, at : at + n] = torch.as_tensor(value, dtype=dtype)
    return out


@dataclass(frozen=True)
class Scored:
    """M scored tokens: their log-probabilities, and where they lie in [R, T]."""

    logp_M: Tensor
    at: tuple[Tensor, Tensor]  # (row, column) of the token itself
    balance: Tensor  # load-balancing loss, a scalar


def score(model, rows: Rows, loss_RT: Tensor, temperature: float = 1.0) -> Scored:
    """Log-probabilities of the tokens marked in `loss_RT`, each given its sample up to it.

    A sample's first token has no predecessor and is never scored.
    """
    chosen = loss_RT & (rows.positions_RT > 0)
    row, column = chosen.nonzero(as_tuple=True)
    out = model.model(
        input_ids=rows.ids_RT, position_ids=rows.positions_RT, use_cache=False,
        output_router_logits=True,
    )  # fmt: skip
    hidden_MH = out.last_hidden_state[row, column - 1]
    logits_MV = model.lm_head(hidden_MH)
    if temperature != 1.0:
        logits_MV = logits_MV / temperature
    logp_M = -F.cross_entropy(logits_MV.float(), rows.ids_RT[row, column], reduction="none")
    balance = balance_loss(out.router_logits, rows.real_RT, model.config.num_experts_per_tok)
    return Scored(logp_M, (row, column), balance)


def balance_loss(router_logits: Sequence[Tensor], real_RT: Tensor, k: int) -> Tensor:
    """Switch-style load balancing, mean over layers: E * sum_e f_e p_e, 1 when perfectly even.

    f_e is the share of (real) tokens' k choices that went to expert e, p_e its mean probability.
    Source: Fedus et al., Switch Transformers, eq. 4-6.
    """
    real_N = real_RT.reshape(-1)
    losses = []
    for logits in router_logits:
        logits_NE = logits.reshape(real_N.numel(), -1)[real_N]
        p_NE = logits_NE.softmax(-1)
        top = p_NE.topk(k, dim=-1).indices
        f_E = torch.bincount(top.reshape(-1), minlength=p_NE.size(-1)) / top.numel()
        losses.append(p_NE.size(-1) * (f_E * p_NE.mean(0)).sum())
    return torch.stack(losses).mean()
