"""Packing samples into rows, and the log-probabilities of the tokens that carry loss.

Several short samples share a row; `position_ids` start again at each, and with the cache off and
no attention mask transformers keeps them from seeing each other (with an all-ones mask, or with
the cache on, they leak: a test holds both). At the lengths of the supervised stages a packed row
is about 95% real tokens where a padded one is 65%.

Only positions whose *next* token carries loss reach the vocabulary-sized output layer.
"""

import bisect
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

FILL = 0.93  # how full first-fit packing gets the rows


@dataclass(frozen=True)
class Rows:
    """R packed rows of T tokens."""

    ids_RT: Tensor
    positions_RT: Tensor
    real_RT: Tensor  # False on the rest of a row that no sample filled
    where: list[tuple[int, int, int]]  # of each sample: row, first token, length


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
    shape = (len(free), width - min(free))  # no row is longer than the fullest
    tails = [(row, width - space, space - min(free)) for row, space in enumerate(free)]
    places = [*where, *tails]  # the tail of a row is one more (ignored) document
    ids = _laid_out(shape, places, [*samples, *([pad_id] * n for *_, n in tails)], torch.long)
    positions = _laid_out(shape, places, [torch.arange(n) for *_, n in places], torch.long)
    return Rows(ids, positions, _laid_out(shape, where, [True] * len(where), torch.bool), where)


def spread(rows: Rows, values: Sequence, dtype: torch.dtype) -> Tensor:
    """`values` of each sample (one a token, or one) laid out like the rows, zero elsewhere."""
    return _laid_out(rows.ids_RT.shape, rows.where, values, dtype)


def _laid_out(shape, where: list[tuple[int, int, int]], values, dtype: torch.dtype) -> Tensor:
    out = torch.zeros(shape, dtype=dtype)
    for (row, at, n), value in zip(where, values):
        out[row, at : at + n] = torch.as_tensor(value, dtype=dtype)
    return out


def portions(items: Iterable, size: Callable[[Any], int], limit: float) -> Iterator[list]:
    """Runs of `items` whose sizes add up to no more than `limit`, an item at least."""
    chosen, total = [], 0
    for item in items:
        if chosen and total + size(item) > limit:
            yield chosen
            chosen, total = [], 0
        chosen.append(item)
        total += size(item)
    if chosen:
        yield chosen


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
        input_ids=rows.ids_RT,
        position_ids=rows.positions_RT,
        use_cache=False,
        output_router_logits=True,
    )
    logits_MV = model.lm_head(out.last_hidden_state[row, column - 1])
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
    real_N, losses = real_RT.reshape(-1), []
    for logits in router_logits:
        p_NE = logits.reshape(real_N.numel(), -1)[real_N].softmax(-1)
        top = p_NE.topk(k, dim=-1).indices
        f_E = torch.bincount(top.reshape(-1), minlength=p_NE.size(-1)) / top.numel()
        losses.append(p_NE.size(-1) * (f_E * p_NE.mean(0)).sum())
    return torch.stack(losses).mean()


def mixed(
    rng: random.Random, streams: Sequence[Iterator[Any]], shares: Sequence[float]
) -> Iterator[Any]:
    """Samples of each stream by its share, and of the last one what is left, for ever."""
    bounds = list(itertools.accumulate(shares))
    while True:
        yield next(streams[bisect.bisect(bounds, rng.random())])
