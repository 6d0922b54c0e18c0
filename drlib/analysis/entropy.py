"""Token entropies: bounds from top-k, high-entropy tokens, change between checkpoints.

- `entropy_bounds` is for servers that return only top-k log-probabilities. The remaining
  probability mass can dominate the entropy, so the result is an interval. Use
  `rescoring.rescore` for exact entropies.
- `high_entropy` marks the top share of tokens per trajectory (rStar2-Agent, section 5.4), over all
  tokens (Beyond the 80/20 rule, arXiv 2506.01939), or above a fixed value.

Limitation: percentiles are computed in memory (10 million tokens fit).
"""

import math
from typing import Literal

import numpy as np
import torch

from drlib.analysis.token_table import TokenTable
from drlib.rl.divergences import top_entropy_mask
from drlib.validation import require

EntropyScope = Literal["trajectory", "batch", "fixed"]
FIXED_NATS = 0.672  # the 80th percentile of Qwen3-8B (arXiv 2506.01939); differs between models


def entropy_bounds(top_logprobs_NK: np.ndarray, vocabulary: int) -> tuple[np.ndarray, ...]:
    """Return bounds of the entropy from the K most probable tokens.

    The lower bound concentrates the tail on as few tokens as possible, none above the K-th. The
    upper bound spreads it evenly over the other V - K tokens. With a tail of 5% the bounds often
    differ by one nat.

    Args:
        top_logprobs_NK: log-probabilities in descending order, at temperature 1, without top-p or
            top-k truncation.
        vocabulary: V, size of the vocabulary.

    Returns:
        (lowest_N, highest_N, tail_N): bounds in nats, and the probability of the other tokens.

    Raises:
        ValueError: positive or NaN values, a sum of probabilities above 1, or K above V.

    """
    logp_NK = np.asarray(top_logprobs_NK, np.float64)
    p_NK = np.exp(logp_NK)
    require(
        logp_NK.ndim == 2 and 1 <= logp_NK.shape[1] <= vocabulary,
        f"top_logprobs must have shape [N, K] with K in 1..{vocabulary} (vocabulary), "
        f"got {logp_NK.shape}",
    )
    require(bool((logp_NK <= 1e-6).all()), "top_logprobs must not be NaN or positive")
    require(
        bool((p_NK.sum(-1) <= 1.001).all()),
        "top_logprobs sum to more than 1; remove duplicate tokens",
    )
    others = vocabulary - logp_NK.shape[1]
    known_N = _entropy_terms(p_NK).sum(-1)
    tail_N = np.clip(1 - p_NK.sum(-1), 0, 1) * (others > 0)
    # lower bound: tokens as probable as the K-th, and one with the remaining probability
    cap_N = np.minimum(p_NK[:, -1], tail_N)
    full_N = np.floor(tail_N / np.where(cap_N > 0, cap_N, np.inf))
    left_N = np.clip(tail_N - full_N * cap_N, 0, None)
    fewest_N = full_N * _entropy_terms(cap_N) + _entropy_terms(left_N)
    # upper bound: each other token has the same share of the tail
    alike_N = _entropy_terms(tail_N) + tail_N * math.log(max(1, others))
    return known_N + np.minimum(fewest_N, alike_N), known_N + alike_N, tail_N


def _entropy_terms(p: np.ndarray) -> np.ndarray:
    """Return -p log p; 0 at p = 0."""
    return -p * np.log(np.where(p > 0, p, 1))


def high_entropy(
    table: TokenTable,
    share: float = 0.2,
    scope: EntropyScope = "batch",
    *,
    within: np.ndarray | None = None,
    threshold: float = FIXED_NATS,
) -> np.ndarray:
    """Mark the tokens with the highest entropies.

    Args:
        table: N sampled tokens.
        share: share of tokens to mark; exactly ceil(share n) of n, ties to the earlier token.
        scope: "trajectory" marks the top share of each trajectory (rStar2-Agent), "batch" the top
            share of all tokens (80/20 rule), "fixed" the tokens at or above `threshold`.
        within: bool [N], the tokens to choose from; default: all.
        threshold: nats, used with "fixed" only.

    Returns:
        Mask of the marked tokens, bool [N].

    Raises:
        ValueError: `share` outside 0..1, or a token without entropy.

    """
    require(0 <= share <= 1, f"share must be in 0..1, got {share}")
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
    """Return the ascending indices of the ceil(share n) largest of n values, ties to the first.

    Uses `rl.divergences.top_entropy_mask`, which selects the tokens of the training loss.
    """
    if share == 0:
        return np.empty(0, np.int64)
    values_1N = torch.from_numpy(np.ascontiguousarray(values))[None]
    everywhere_1N = torch.ones_like(values_1N, dtype=torch.bool)
    chosen_1N = top_entropy_mask(values_1N, everywhere_1N, share)
    return np.flatnonzero(chosen_1N[0].numpy())


def high_entropy_overlap(
    base: TokenTable, other: TokenTable, share: float = 0.2, bins: int = 10
) -> dict:
    """Compare the high-entropy tokens of two models on the same tokens (arXiv 2506.01939, sec. 3).

    Args:
        base: tokens with entropies of the base model.
        other: the same tokens with entropies of the other model.
        share: share of high-entropy tokens, over all tokens.
        bins: number of bins with equal numbers of tokens, ordered by entropy under the base.

    Returns:
        `overlap`: |top(base) and top(other)| / |top(base)|; expected `share` by chance. Lists with
        one value per bin: `base` (mean entropy, nats), `change` (mean change, nats), `tokens`.

    Raises:
        ValueError: the tables have different tokens, or a token has no entropy.

    """
    columns = ("names", "row", "position", "token_id")
    same = all(np.array_equal(getattr(base, name), getattr(other, name)) for name in columns)
    require(
        same,
        "the two tables have different tokens: run one file through both models with "
        "rescoring.rescore",
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
    """Summarise entropies: sizes, mean and 80th percentiles (nats), shares by threshold."""
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
