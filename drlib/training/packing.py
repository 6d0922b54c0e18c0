"""Samples end to end, and the log-probabilities of the tokens that carry loss.

A batch is one line of tokens, sample behind sample, with no padding; `drlib.models.packed` keeps
samples from seeing each other. A prompt that several samples begin with stands in the line once.
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

from drlib.models.chunked_logprobs import token_logprobs
from drlib.models.packed import Prefix, packed_forward
from drlib.models.router_bias import get_router_biases, select_biased_experts


@dataclass(frozen=True)
class Flat:
    """B samples, N tokens in all, one sample behind the other.

    A sample with a prefix stands there without it: it goes on from the first tokens of another.
    """

    ids_N: Tensor
    lengths: tuple[int, ...]  # of each sample, as it stands there
    prefixes: tuple[Prefix | None, ...]  # of each sample

    @classmethod
    def of(cls, samples: Sequence[Sequence[int]], prompts: Sequence[int] | None = None) -> "Flat":
        """prompts: of each sample, how many tokens at its beginning are a prompt: equal ones stand
        once. None: every sample stands there whole.

        Raises ValueError for no samples, or an empty one.
        """
        lengths = tuple(map(len, samples))
        if not lengths or min(lengths) == 0:
            raise ValueError(f"a batch needs samples of a token at least, got lengths {lengths}")
        ids = [torch.as_tensor(sample).long() for sample in samples]
        prefixes = _prefixes(ids, [0] * len(ids) if prompts is None else prompts)
        own = [ids_T[p.length :] if p else ids_T for ids_T, p in zip(ids, prefixes)]
        return cls(torch.cat(own), tuple(map(len, own)), tuple(prefixes))

    def starts(self) -> list[int]:
        """Where each sample's own tokens begin in the line."""
        return [end - n for end, n in zip(itertools.accumulate(self.lengths), self.lengths)]

    def spread(self, values: Sequence, dtype: torch.dtype) -> Tensor:
        """`values` of each sample (one a token, or one for all of its tokens), [N]. What stands
        once takes the value of the first sample that has it."""
        whole = [
            torch.as_tensor(value, dtype=dtype).expand(n + (prefix.length if prefix else 0))
            for value, n, prefix in zip(values, self.lengths, self.prefixes, strict=True)
        ]
        return torch.cat(self.own(whole))

    def own(self, values: Sequence) -> list:
        """Of each sample's values, one a token, those of the tokens that stand for it."""
        return [part[p.length :] if p else part for part, p in zip(values, self.prefixes)]

    def split(self, values_N: Tensor) -> list[Tensor]:
        """The part of each sample, its prefix's before its own."""
        own = values_N.split(self.lengths)
        return [
            torch.cat([own[prefix.owner][: prefix.length], part]) if prefix else part
            for part, prefix in zip(own, self.prefixes)
        ]

    def times(self) -> Tensor:
        """How many samples each token belongs to, [N]: 1, and more where it stands for several."""
        times_N = torch.ones(len(self.ids_N))
        starts = self.starts()
        for prefix in filter(None, self.prefixes):
            times_N[starts[prefix.owner] :][: prefix.length] += 1
        return times_N


def _prefixes(ids: Sequence[Tensor], prompts: Sequence[int]) -> list[Prefix | None]:
    """Of each sample, the earlier one that begins with the same prompt. It keeps a token at least
    for itself."""
    lenders: dict[bytes, int] = {}
    prefixes: list[Prefix | None] = []
    for i, (ids_T, n) in enumerate(zip(ids, prompts, strict=True)):
        lender = lenders.setdefault(ids_T[:n].numpy().tobytes(), i)
        prefixes.append(Prefix(lender, n) if lender != i and 0 < n < len(ids_T) else None)
    return prefixes


def split_by_size(items: Iterable, size: Callable[[Any], int], limit: float) -> Iterator[list]:
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
    (`drlib.models.chunked_logprobs`), which pays where V is large.
    """
    before_N = torch.arange(len(batch.ids_N)) - 1  # the token that each is predicted from
    scored_N = loss_N.clone()
    starts = batch.starts()
    for start, prefix in zip(starts, batch.prefixes):
        if prefix is None:
            scored_N[start] = False
        else:
            before_N[start] = starts[prefix.owner] + prefix.length - 1
    at_M = scored_N.nonzero()[:, 0]
    hidden_NH, router_logits = packed_forward(model, batch.ids_N, batch.lengths, batch.prefixes)
    head, hidden_MH, ids_M = model.lm_head, hidden_NH[before_N[at_M]], batch.ids_N[at_M]
    if frugal:
        logp_M, _ = token_logprobs(hidden_MH, head.weight, ids_M, temperature=temperature)
    else:
        logits_MV = head(hidden_MH)
        if temperature != 1.0:
            logits_MV = logits_MV / temperature
        logp_M = -F.cross_entropy(logits_MV.float(), ids_M, reduction="none")
    k = model.config.num_experts_per_tok
    balance = balance_loss(router_logits, k, get_router_biases(model), batch.times())
    return Scored(logp_M, at_M, balance)


def balance_loss(
    router_logits: Sequence[Tensor],
    k: int,
    biases_LE: Tensor | None = None,
    times_N: Tensor | None = None,
) -> Tensor:
    """Switch-style load balancing, mean over layers: E * sum_e f_e p_e, 1 when perfectly even.

    f_e is the share of the tokens' k choices that went to expert e, p_e its mean probability.
    router_logits: of each layer [N, E]. biases_LE: what the routers add where they choose.
    times_N: how often each token counts; None: once.
    Source: Fedus et al., Switch Transformers, eq. 4-6.
    """
    n, n_experts = router_logits[0].shape
    if biases_LE is None:
        biases_LE = torch.zeros(len(router_logits), n_experts)
    share_N = torch.full((n,), 1 / n) if times_N is None else times_N / times_N.sum()
    losses = []
    for logits_NE, bias_E in zip(router_logits, biases_LE):
        top_Nk = select_biased_experts(logits_NE, bias_E, k)
        each_M = share_N.repeat_interleave(k) / k
        f_E = torch.bincount(top_Nk.reshape(-1), weights=each_M, minlength=n_experts)
        p_E = share_N @ logits_NE.softmax(-1)
        losses.append(n_experts * (f_E * p_E).sum())
    return torch.stack(losses).mean()


def mix_streams(
    rng: random.Random, streams: Sequence[Iterator[Any]], shares: Sequence[float]
) -> Iterator[Any]:
    """Samples of each stream by its share, and of the last one what is left, for ever."""
    bounds = list(itertools.accumulate(shares))
    while True:
        yield next(streams[bisect.bisect(bounds, rng.random())])
