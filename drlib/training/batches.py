"""Samples end to end, and the log-probabilities of the tokens that carry loss.

A batch is one line of tokens, sample behind sample, with no padding; `drlib.policy.flat` keeps
samples from seeing each other. Only positions whose *next* token carries loss reach the
vocabulary-sized output layer.
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

from drlib.policy.flat import flat_pass
from drlib.policy.kernels import token_logprobs
from drlib.policy.router_bias import biased_choice, router_biases


@dataclass(frozen=True)
class Flat:
    """B samples, N tokens in all, one sample behind the other."""

    ids_N: Tensor
    lengths: tuple[int, ...]  # of each sample

    @classmethod
    def of(cls, samples: Sequence[Sequence[int]]) -> "Flat":
        """Raises ValueError for no samples, or an empty one."""
        lengths = tuple(map(len, samples))
        if not lengths or min(lengths) == 0:
            raise ValueError(f"a batch needs samples of a token at least, got lengths {lengths}")
        return cls(torch.cat([torch.as_tensor(sample) for sample in samples]).long(), lengths)

    def spread(self, values: Sequence, dtype: torch.dtype) -> Tensor:
        """`values` of each sample (one a token, or one for all of its tokens), [N]."""
        return torch.cat(
            [
                torch.as_tensor(value, dtype=dtype).expand(n)
                for value, n in zip(values, self.lengths, strict=True)
            ]
        )

    def split(self, values_N: Tensor) -> tuple[Tensor, ...]:
        """The part of each sample."""
        return values_N.split(self.lengths)


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
    """M scored tokens: their log-probabilities, and which of the N tokens they are."""

    logp_M: Tensor
    at_M: Tensor
    balance: Tensor  # load-balancing loss, a scalar


def score(
    model, batch: Flat, loss_N: Tensor, temperature: float = 1.0, frugal: bool = False
) -> Scored:
    """Log-probabilities of the tokens marked in `loss_N`, each given its sample up to it.

    A sample's first token has no predecessor and is never scored. frugal: no [M, V] matrix is held
    (`drlib.policy.kernels`), which pays where V is large.
    """
    starts_B = [end - n for end, n in zip(itertools.accumulate(batch.lengths), batch.lengths)]
    scored_N = loss_N.clone()
    scored_N[starts_B] = False
    at_M = scored_N.nonzero()[:, 0]
    hidden_NH, router_logits = flat_pass(model, batch.ids_N, batch.lengths)
    head, hidden_MH, ids_M = model.lm_head, hidden_NH[at_M - 1], batch.ids_N[at_M]
    if frugal:
        logp_M, _ = token_logprobs(hidden_MH, head.weight, ids_M, temperature=temperature)
    else:
        logits_MV = head(hidden_MH)
        if temperature != 1.0:
            logits_MV = logits_MV / temperature
        logp_M = -F.cross_entropy(logits_MV.float(), ids_M, reduction="none")
    k = model.config.num_experts_per_tok
    return Scored(logp_M, at_M, balance_loss(router_logits, k, router_biases(model)))


def balance_loss(
    router_logits: Sequence[Tensor], k: int, biases_LE: Tensor | None = None
) -> Tensor:
    """Switch-style load balancing, mean over layers: E * sum_e f_e p_e, 1 when perfectly even.

    f_e is the share of the tokens' k choices that went to expert e, p_e its mean probability.
    router_logits: of each layer [N, E]. biases_LE: what the routers add where they choose.
    Source: Fedus et al., Switch Transformers, eq. 4-6.
    """
    if biases_LE is None:
        biases_LE = torch.zeros(len(router_logits), router_logits[0].size(-1))
    losses = []
    for logits_NE, bias_E in zip(router_logits, biases_LE):
        p_NE = logits_NE.softmax(-1)
        top_Nk = biased_choice(logits_NE, bias_E, k)
        f_E = torch.bincount(top_Nk.reshape(-1), minlength=p_NE.size(-1)) / top_Nk.numel()
        losses.append(p_NE.size(-1) * (f_E * p_NE.mean(0)).sum())
    return torch.stack(losses).mean()


def mixed(
    rng: random.Random, streams: Sequence[Iterator[Any]], shares: Sequence[float]
) -> Iterator[Any]:
    """Samples of each stream by its share, and of the last one what is left, for ever."""
    bounds = list(itertools.accumulate(shares))
    while True:
        yield next(streams[bisect.bisect(bounds, rng.random())])
