"""Token entropies: bounds from top-k, high-entropy tokens, change between checkpoints.

- `entropy_bounds` is for servers that return only the most probable tokens. The rest of the mass
  decides the entropy of just those tokens that one looks for, so the result is an interval.
  (`rescoring.rescore` makes exact entropies from a model.)
- `high_entropy` marks the top share, by trajectory (rStar2-Agent, section 5.4), over all tokens
  (Beyond the 80/20 rule, arXiv 2506.01939) or above a fixed value. Ties go to the earlier token, so
  that exactly ceil(share n) are marked.

Left out: a streaming percentile (10 million tokens fit).
"""

import math
from typing import Literal

import numpy as np
import torch

from drlib.analysis.token_table import TokenTable
from drlib.rl.divergences import top_entropy_mask
from drlib.validation import require

FIXED_NATS = 0.672  # the 80th percentile of Qwen3-8B (arXiv 2506.01939), and of no other model


def entropy_bounds(top_logprobs_NK: np.ndarray, vocabulary: int) -> tuple[np.ndarray, ...]:
    """(lowest_N, highest_N, tail_N): what the K most probable tokens say about the entropy, nats.

    top_logprobs_NK: best first, at temperature 1 and not cut by top-p or top-k. vocabulary: V.
    tail_N is the probability of the others: as few as can hold it (none is above the K-th) give the
    lower bound, all V - K alike the upper. At a tail of 5% the two are often a nat apart.

    ValueError: positive or NaN values, probabilities that add up to more than 1, K above V.
    """
    logp_NK = np.asarray(top_logprobs_NK, np.float64)
    p_NK = np.exp(logp_NK)
    require(
        logp_NK.ndim == 2 and 1 <= logp_NK.shape[1] <= vocabulary,
        "top_logprobs: need [N, K] with K "
        f"from 1 to the vocabulary of {vocabulary}, got {logp_NK.shape}",
    )
    require((logp_NK <= 1e-6).all(), "top_logprobs must not be NaN or positive")
    require((p_NK.sum(-1) <= 1.001).all(), "top_logprobs add up to more than 1: a token twice?")
    others = vocabulary - logp_NK.shape[1]
    known_N = _entropy_terms(p_NK).sum(-1)
    tail_N = np.clip(1 - p_NK.sum(-1), 0, 1) * (others > 0)
    # the fewest: as many tokens as probable as the K-th, and one with what is left
    cap_N = np.minimum(p_NK[:, -1], tail_N)
    full_N = np.floor(tail_N / np.where(cap_N > 0, cap_N, np.inf))
    left_N = np.clip(tail_N - full_N * cap_N, 0, None)
    fewest_N = full_N * _entropy_terms(cap_N) + _entropy_terms(left_N)
    # all alike: each of the others has its share of the tail
    alike_N = _entropy_terms(tail_N) + tail_N * math.log(max(1, others))
    return known_N + np.minimum(fewest_N, alike_N), known_N + alike_N, tail_N


def _entropy_terms(p: np.ndarray) -> np.ndarray:
    """-p log p, which is 0 at 0."""
    return -p * np.log(np.where(p > 0, p, 1))


def high_entropy(
    table: TokenTable,
    share: float = 0.2,
    scope: Literal["trajectory", "batch", "fixed"] = "batch",
    *,
    within: np.ndarray | None = None,
    threshold: float = FIXED_NATS,
) -> np.ndarray:
    """bool_N: the tokens of high entropy, among those of `within` (bool_N; all when None).

    scope: the top `share` of each trajectory's tokens (rStar2-Agent), or of all ("batch", 80/20):
    exactly ceil(share n) of them, ties to the earlier one; or "fixed": entropy at or above
    `threshold` nats. ValueError: a share outside 0..1, an entropy that is not known.
    """
    require(0 <= share <= 1, f"share must lie in 0..1, got {share}")
    entropy = table.known("entropy")
    within = np.ones(len(table), bool) if within is None else within
    if scope == "fixed":
        return within & (entropy >= threshold)
    chosen = np.flatnonzero(within)
    groups = [(0, len(chosen))]
    if scope == "trajectory":
        cuts = np.searchsorted(table.row[chosen], np.arange(len(table.names) + 1))
        groups = zip(cuts, cuts[1:])
    mask = np.zeros(len(table), bool)
    for start, end in groups:
        part = chosen[start:end]
        mask[part[select_top_share(entropy[part], share)]] = True
    return mask


def select_top_share(values: np.ndarray, share: float) -> np.ndarray:
    """Indices of the ceil(share n) largest values of a float column, in order; of equal ones the
    first: as `rl.divergences.top_entropy_mask` chooses the tokens that learn."""
    if share == 0:
        return np.empty(0, np.int64)
    values_1N = torch.from_numpy(np.ascontiguousarray(values))[None]
    everywhere_1N = torch.ones_like(values_1N, dtype=torch.bool)
    chosen_1N = top_entropy_mask(values_1N, everywhere_1N, share)
    return np.flatnonzero(chosen_1N[0].numpy())


def high_entropy_overlap(
    base: TokenTable, other: TokenTable, share: float = 0.2, bins: int = 10
) -> dict:
    """Return the share of high-entropy tokens common to two models, on the same tokens.

    Returns `overlap`: |top(base) and top(other)| / |top(base)| by batch (`share` of the tokens
    each; chance gives `share`), and `base`, `change`, `tokens`: mean entropy under the base, mean
    change and number of tokens in `bins` bins of equally many, ordered by entropy under the base.

    Source: arXiv 2506.01939, section 3. ValueError: the tables hold other tokens.
    """
    columns = ("names", "row", "position", "token_id")
    same = all(np.array_equal(getattr(base, name), getattr(other, name)) for name in columns)
    require(
        same,
        "the two tables hold different tokens: run one file through both models "
        "(rescoring.rescore); samples of two policies cannot be compared by place",
    )
    base_top, other_top = high_entropy(base, share), high_entropy(other, share)
    before, after = base.known("entropy"), other.known("entropy")
    order = np.array_split(np.argsort(before, kind="stable"), min(bins, len(before)))
    return {
        "overlap": float((base_top & other_top).sum() / max(1, base_top.sum())),
        "base": [float(before[some].mean()) for some in order],
        "change": [float((after[some] - before[some]).mean()) for some in order],
        "tokens": [len(some) for some in order],
    }


def summarize_entropy(table: TokenTable) -> dict[str, float]:
    """Summarise a set of tokens: sizes, mean, 80th percentiles, share near zero."""
    entropy = table.known("entropy")
    starts = table.starts()
    own_p80 = [np.quantile(entropy[a:b], 0.8) for a, b in zip(starts, starts[1:]) if b > a]
    return {
        "trajectories": len(table.names),
        "tokens": len(table),
        "mean_entropy": float(entropy.mean(dtype=np.float64)),
        "p80_batch": float(np.quantile(entropy, 0.8)),
        "p80_trajectory": float(np.median(own_p80)),
        "share_above_fixed": float((entropy >= FIXED_NATS).mean()),
        "share_below_0.01": float((entropy < 0.01).mean()),
    }
