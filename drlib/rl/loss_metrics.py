"""What a loss tells of itself, for the log: ratios, clipped shares, weights, engine mismatch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from drlib.rl.divergences import mismatch_metrics, weight_metrics
from drlib.validation import require


def merge_metrics(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    """One dict of `policy_loss` for those of several batches.

    `tokens` are summed, of `_min` and `_max` the smallest and largest are taken, all others are
    means over tokens. ValueError: an empty list, or dicts with different keys.
    """
    alike = parts and all(part.keys() == parts[0].keys() for part in parts)
    require(alike, "merge_metrics needs at least one dict, all with the same keys")
    tokens = sum(part["tokens"] for part in parts)
    live = [part for part in parts if part["tokens"] > 0] or list(parts[:1])
    merged = {**parts[0], "tokens": tokens}
    for key in parts[0]:
        if key.endswith("_min"):
            merged[key] = min(part[key] for part in live)
        elif key.endswith("_max"):
            merged[key] = max(part[key] for part in live)
        elif tokens and key != "tokens":
            merged[key] = sum(part[key] * part["tokens"] for part in live) / tokens
    if "ess" in merged:  # a ratio of means, not a mean
        merged["ess"] = merged["weight_mean"] ** 2 / merged["weight_square_mean"]
    return merged


@torch.no_grad()
def ratio_metrics(log_ratio_BT, advantages_BT, used_BT, config) -> dict[str, float]:
    """Mean and extremes of the ratio, and the shares of tokens that the clip took hold of."""
    log_ratio_K = log_ratio_BT[used_BT].double()  # K tokens in the loss
    if not len(log_ratio_K):
        log_ratio_K = log_ratio_K.new_zeros(1)
    tokens = float(used_BT.sum())
    metrics = {
        "tokens": tokens,
        "ratio_mean": log_ratio_K.exp().mean().item(),
        "ratio_min": log_ratio_K.min().exp().item(),
        "ratio_max": log_ratio_K.max().exp().item(),
        "abs_dlogp": log_ratio_K.abs().mean().item(),
    }
    for name, clipped_BT in _clipped(log_ratio_BT.exp(), advantages_BT, config).items():
        metrics[name] = float((used_BT & clipped_BT).sum()) / max(tokens, 1.0)
    return metrics


def engine_metrics(log_weight_BT, old_BT, behaviour_BT, used_BT) -> dict[str, float]:
    """What the rollout engine's log-probabilities say: weights, and the mismatch where known."""
    metrics = weight_metrics(log_weight_BT, used_BT)
    if old_BT is not None:
        metrics |= mismatch_metrics(old_BT, behaviour_BT, used_BT)
    return metrics


def _clipped(ratio_BT, advantages_BT, config) -> dict[str, Tensor]:
    """Which tokens are above and below the range and lost (part of) their gradient there; none
    under "none" and under a clip that is registered elsewhere."""
    low = 1 - config.epsilon_low
    high = 1 + config.epsilon_high
    positive_BT = advantages_BT > 0
    if config.clip == "double_sided":
        above_BT = ratio_BT >= high
        below_BT = ratio_BT <= low
        return {
            "clip_high": above_BT,
            "clip_low": below_BT,
            "clip_high_positive": above_BT & positive_BT,
            "clip_low_positive": below_BT & positive_BT,
        }
    nothing_BT = torch.zeros_like(ratio_BT, dtype=torch.bool)
    if config.clip == "ppo":
        return {
            "clip_high": (ratio_BT > high) & positive_BT,
            "clip_low": (ratio_BT < low) & (advantages_BT < 0),
        }
    above_BT = ratio_BT > high if config.clip == "cispo" else nothing_BT
    return {"clip_high": above_BT, "clip_low": nothing_BT}
