"""Packed batches of samples, and log-probabilities of the tokens in the loss.

Samples are concatenated without padding; `drlib.models.packed` keeps their attention separate. A
prompt shared by several samples is stored once. Only positions whose next token is in the loss
reach the vocabulary-sized output layer.
"""

import bisect
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from drlib.models.chunked_logprobs import token_logprobs
from drlib.models.packed import Prefix, is_sparse, packed_forward
from drlib.models.router_bias import get_router_biases, select_biased_experts


@dataclass(frozen=True)
class PackedBatch:
    """A packed batch of B samples with N tokens in all.

    A sample with a prefix stores only its own tokens and shares the first ones of an earlier
    sample.
    """

    ids_N: Tensor
    lengths: tuple[int, ...]  # stored tokens of each sample
    prefixes: tuple[Prefix | None, ...]  # per sample

    @classmethod
    def pack(
        cls, samples: Sequence[Sequence[int] | np.ndarray], prompts: Sequence[int] | None = None
    ) -> "PackedBatch":
        """Pack samples.

        Args:
            prompts: number of prompt tokens of each sample; equal prompts are stored once. None: no
                sharing.

        Raises:
            ValueError: there are no samples, or one is empty.
        """
        lengths = tuple(map(len, samples))
        if not lengths or min(lengths) == 0:
            raise ValueError(f"samples must have at least one token, got lengths {lengths}")
        ids = [torch.as_tensor(sample).long() for sample in samples]
        prefixes = _prefixes(ids, [0] * len(ids) if prompts is None else prompts)
        own = [ids_T[p.length :] if p else ids_T for ids_T, p in zip(ids, prefixes)]
        return cls(torch.cat(own), tuple(map(len, own)), tuple(prefixes))

    def starts(self) -> list[int]:
        """Return the position of the first own token of each sample."""
        return [end - n for end, n in zip(itertools.accumulate(self.lengths), self.lengths)]

    def spread(self, values: Sequence, dtype: torch.dtype) -> Tensor:
        """Return `values` per token, [N], from one value per token or one per sample.

        A shared token takes the value of the first sample that has it.
        """
        whole = [
            torch.as_tensor(value, dtype=dtype).expand(n + (prefix.length if prefix else 0))
            for value, n, prefix in zip(values, self.lengths, self.prefixes, strict=True)
        ]
        return torch.cat(self.own(whole))

    def own(self, values: Sequence) -> list:
        """Drop the values of shared prefixes from per-token values of each sample."""
        return [part[p.length :] if p else part for part, p in zip(values, self.prefixes)]

    def split(self, values_N: Tensor) -> list[Tensor]:
        """Split values_N by sample; a shared prefix is included in each."""
        own = values_N.split(self.lengths)
        return [
            torch.cat([own[prefix.owner][: prefix.length], part]) if prefix else part
            for part, prefix in zip(own, self.prefixes)
        ]

    def times(self) -> Tensor:
        """Return the number of samples that each token belongs to, [N]."""
        times_N = torch.ones(len(self.ids_N))
        starts = self.starts()
        for prefix in filter(None, self.prefixes):
            times_N[starts[prefix.owner] :][: prefix.length] += 1
        return times_N


def _prefixes(ids: Sequence[Tensor], prompts: Sequence[int]) -> list[Prefix | None]:
    """Return for each sample the earlier sample with the same prompt, or None.

    A sample keeps at least one token of its own.
    """
    lenders: dict[bytes, int] = {}
    prefixes: list[Prefix | None] = []
    for i, (ids_T, n) in enumerate(zip(ids, prompts, strict=True)):
        lender = lenders.setdefault(ids_T[:n].numpy().tobytes(), i)
        prefixes.append(Prefix(lender, n) if lender != i and 0 < n < len(ids_T) else None)
    return prefixes


def split_by_size(items: Iterable, size: Callable[[Any], int], limit: float) -> Iterator[list]:
    """Split `items` into lists with a total size of at most `limit`, at least one item each."""
    part, total = [], 0
    for item in items:
        if part and total + size(item) > limit:
            yield part
            part, total = [], 0
        part.append(item)
        total += size(item)
    if part:
        yield part


@dataclass(frozen=True)
class Scored:
    """M scored tokens: log-probabilities and positions among the N tokens."""

    logp_M: Tensor
    at_M: Tensor
    balance: Tensor  # load-balancing loss, a scalar
    logits_MV: Tensor | None = None  # divided by the temperature; only if requested


def score(
    model,
    batch: PackedBatch,
    loss_N: Tensor,
    temperature: float = 1.0,
    frugal: bool = False,
    dtype: str = "float32",
    keep_logits: bool = False,
) -> Scored:
    """Compute the log-probabilities of the tokens marked in `loss_N`, given their context.

    The first token of a sample has no context and is not scored.

    Args:
        frugal: compute them in chunks, without an [M, V] matrix (`drlib.models.chunked_logprobs`).
        keep_logits: return the logits too; `frugal` is then ignored.
        dtype: "bfloat16" computes matrix products in bfloat16 (autocast) from float32 weights.
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
    half = dtype == "bfloat16"
    products = torch.autocast(batch.ids_N.device.type, torch.bfloat16, enabled=half)
    with products:
        hidden_NH, router_logits = packed_forward(model, batch.ids_N, batch.lengths, batch.prefixes)
    head, hidden_MH, ids_M = model.lm_head, hidden_NH[before_N[at_M]], batch.ids_N[at_M]
    logits_MV = None
    if frugal and not keep_logits:
        weight_VH = head.weight.bfloat16() if half else head.weight
        hidden_MH = hidden_MH.to(weight_VH.dtype)
        logp_M, _ = token_logprobs(hidden_MH, weight_VH, ids_M, temperature=temperature)
    else:
        with products:
            logits_MV = head(hidden_MH)
        if temperature != 1.0:
            logits_MV = logits_MV / temperature
        logp_M = -F.cross_entropy(logits_MV.float(), ids_M, reduction="none")
    balance = torch.zeros(())
    if is_sparse(model.config):
        k = model.config.num_experts_per_tok
        balance = balance_loss(router_logits, k, get_router_biases(model), batch.times())
    return Scored(logp_M, at_M, balance, logits_MV if keep_logits else None)


def balance_loss(
    router_logits: Sequence[Tensor],
    k: int,
    biases_LE: Tensor | None = None,
    times_N: Tensor | None = None,
) -> Tensor:
    """Compute the load-balancing loss of Switch Transformers, mean over layers.

    It is E * sum_e f_e p_e, and 1 if perfectly balanced. f_e is the share of the tokens' k choices
    that went to expert e, p_e its mean probability. Source: Fedus et al., Switch Transformers, eq.
    4-6.

    Args:
        router_logits: [N, E] per layer.
        biases_LE: router biases that affect only the choice.
        times_N: weight of each token; None: 1.
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
    """Yield samples without end, each from a stream drawn by `shares`; the last stream takes the
    rest.
    """
    bounds = list(itertools.accumulate(shares))
    while True:
        yield next(streams[bisect.bisect(bounds, rng.random())])
