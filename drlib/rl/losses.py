"""The policy-gradient loss of the recipe and the supervised loss, over padded batches.

`policy_loss` is eq. 4 of the Tongyi DeepResearch report: a clipped surrogate over the tokens that
the model generated, summed over the batch and divided by one global number of tokens. The switches
of `LossConfig` are orthogonal. Three choices that implementations get wrong in silence:

- The denominator is an argument. A micro-batch or a data-parallel rank sees part of the step's
  tokens; given the step's count (sum `loss_denominator` over the parts), the gradients of the
  parts add up to the gradient of the whole. Dividing each part by its own count does not.
- An excluded sequence (weight 0) is in neither the sum nor the count, so leaving rollouts out does
  not shrink the step. A weight of 2 equals two copies of the sequence.
- Positions outside the mask never enter the arithmetic. Whatever stands there (NaN too), the loss
  and the gradient keep their bits.

Left out: KL terms, sequence-level ratios, importance corrections, token selection.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

__all__ = ["LossConfig", "loss_denominator", "merge_metrics", "policy_loss", "sft_loss"]

MAX_LOG_RATIO = 80.0  # exp overflows float32 a little above; a real policy stays below 5


@dataclass(frozen=True)
class LossConfig:
    """The switches of `policy_loss`; the defaults are the recipe.

    clip: "ppo" is min(r A, clip(r, 1 - epsilon_low, 1 + epsilon_high) A) per token (Tongyi eq. 4;
        the asymmetric range is DAPO's clip-higher). "none" is r A: plain importance sampling.
        On policy r is 1 and both have the gradient of REINFORCE.
    aggregate: "token" divides the sum over tokens by the number of tokens (Tongyi, DAPO);
        "sequence" takes each sequence's mean first (GRPO), so a token of a long sequence counts
        less; "constant" divides by sequences times `constant_tokens` (Dr.GRPO).
    """

    clip: Literal["ppo", "none"] = "ppo"
    aggregate: Literal["token", "sequence", "constant"] = "token"
    epsilon_low: float = 0.2
    epsilon_high: float = 0.28
    constant_tokens: int | None = None

    def __post_init__(self):
        if self.clip not in ("ppo", "none"):
            raise ValueError(f'clip must be "ppo" or "none", got {self.clip!r}')
        if self.aggregate not in ("token", "sequence", "constant"):
            raise ValueError(
                f'aggregate must be "token", "sequence" or "constant", got {self.aggregate!r}'
            )
        if not 0 <= self.epsilon_low < 1:
            raise ValueError(f"epsilon_low must be in [0, 1), got {self.epsilon_low}")
        if not (self.epsilon_high >= 0 and math.isfinite(self.epsilon_high)):
            raise ValueError(f"epsilon_high must be finite and >= 0, got {self.epsilon_high}")
        if (self.aggregate == "constant") != (self.constant_tokens is not None):
            raise ValueError(
                'constant_tokens (the longest allowed sequence) goes with aggregate="constant"'
            )
        if self.constant_tokens is not None and self.constant_tokens < 1:
            raise ValueError(f"constant_tokens must be at least 1, got {self.constant_tokens}")


def policy_loss(
    logp_BT: Tensor,
    behaviour_logp_BT: Tensor,
    advantages_B: Tensor,
    mask_BT: Tensor,
    config: LossConfig | None = None,
    *,
    weights_B: Tensor | None = None,
    denominator: float | Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """The clipped policy-gradient loss (Tongyi DeepResearch eq. 4), to be minimised.

    Args:
        logp_BT: float, log-probability in nats of each token under the policy being trained.
        behaviour_logp_BT: float, the same under the policy that sampled them; no gradient.
        advantages_B: float, one per sequence, shared by its tokens; no gradient.
        mask_BT: bool, True on tokens that the model generated.
        config: switches; the recipe's when None.
        weights_B: float >= 0, a sequence's weight; 0 leaves it out of the loss. 1 each when None.
        denominator: what `loss_denominator` gives, summed over all micro-batches and ranks of the
            step; this batch's own when None.

    Returns:
        (loss, metrics): a scalar tensor, and floats over the tokens with weight > 0 (unweighted):
        tokens, ratio_mean/min/max, abs_dlogp (mean |log r|), clip_high (share of tokens that lost
        their gradient above the range, advantage > 0), clip_low (below it, advantage < 0).
        Combine several batches' with `merge_metrics`.

    Raises:
        ValueError: shapes or dtypes do not fit, a value used is not finite, or the denominator is
            not positive though there are tokens.
    """
    config = config or LossConfig()
    _check_tokens(logp_BT, mask_BT, behaviour_logp_BT)
    weights_B = _check_weights(weights_B, logp_BT)
    used_BT = mask_BT & (weights_B > 0)[:, None]
    advantages_B = _check_advantages(advantages_B, used_BT).to(logp_BT.dtype)
    delta_BT = _log_ratio(logp_BT, behaviour_logp_BT, used_BT)
    ratio_BT = delta_BT.exp()
    gain_BT = ratio_BT * advantages_B[:, None]
    if config.clip == "ppo":
        clipped_BT = ratio_BT.clamp(1 - config.epsilon_low, 1 + config.epsilon_high)
        gain_BT = torch.minimum(gain_BT, clipped_BT * advantages_B[:, None])
    loss = _aggregate(-gain_BT, used_BT, weights_B, config, denominator)
    return loss, _ratio_metrics(delta_BT.detach(), advantages_B, used_BT, config)


def sft_loss(
    logp_BT: Tensor, mask_BT: Tensor, denominator: float | Tensor | None = None
) -> tuple[Tensor, dict[str, float]]:
    """Mean negative log-likelihood in nats per token of `mask_BT` (next-token loss).

    Args:
        logp_BT: float, log-probability of each token.
        mask_BT: bool, True on the tokens to learn (the model's own in SFT, all in CPT).
        denominator: tokens of the whole step over micro-batches and ranks; this batch's when None.

    Returns:
        (loss, metrics): a scalar tensor; floats `tokens` and `nll` (this batch's own mean).

    Raises:
        ValueError: as `policy_loss`.
    """
    _check_tokens(logp_BT, mask_BT)
    weights_B = _check_weights(None, logp_BT)
    nll_BT = -logp_BT.masked_fill(~mask_BT, 0.0)
    _check_finite("logp_BT", nll_BT)
    loss = _aggregate(nll_BT, mask_BT, weights_B, LossConfig(), denominator)
    tokens = int(mask_BT.sum())
    return loss, {"tokens": float(tokens), "nll": nll_BT.detach().sum().item() / max(tokens, 1)}


def loss_denominator(
    mask_BT: Tensor, weights_B: Tensor | None = None, config: LossConfig | None = None
) -> float:
    """What the loss of a batch is divided by: its (weighted) tokens or sequences.

    Sum it over the micro-batches and ranks of a step and give the sum to each of them. Sequences
    without any masked token are not counted.

    Args:
        mask_BT: bool, True on generated tokens. weights_B: float or None. config: for `aggregate`.
    """
    config = config or LossConfig()
    weights_B = _check_weights(weights_B, mask_BT)
    tokens_B = mask_BT.sum(dim=1)
    counts_B = tokens_B if config.aggregate == "token" else (tokens_B > 0)
    return float((counts_B * weights_B.double()).sum())


def merge_metrics(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    """One dict for several: token-weighted means, smallest _min, largest _max, summed tokens.

    Raises ValueError on an empty list or on dicts with different keys.
    """
    if not parts or any(part.keys() != parts[0].keys() for part in parts):
        raise ValueError("merge_metrics needs at least one dict, all with the same keys")
    tokens = sum(part["tokens"] for part in parts)
    live = [part for part in parts if part["tokens"] > 0] or list(parts[:1])
    merged = {}
    for key in parts[0]:
        if key == "tokens":
            merged[key] = tokens
        elif key.endswith(("_min", "_max")):
            merged[key] = (min if key.endswith("_min") else max)(part[key] for part in live)
        else:
            weighted = sum(part[key] * part["tokens"] for part in live)
            merged[key] = weighted / tokens if tokens else parts[0][key]
    return merged


def _aggregate(
    losses_BT: Tensor,
    used_BT: Tensor,
    weights_B: Tensor,
    config: LossConfig,
    denominator: float | Tensor | None,
) -> Tensor:
    """Sum the per-token losses with their sequences' weights and divide by the denominator."""
    if denominator is None:
        denominator = loss_denominator(used_BT, weights_B, config)
        if denominator == 0:  # nothing to learn from: a loss of 0 that still has a (zero) gradient
            denominator = 1.0
    elif not 0 < float(denominator) < math.inf:
        if used_BT.any():
            raise ValueError(
                f"denominator is {float(denominator)}, but the batch has tokens in the loss; sum "
                "loss_denominator over the micro-batches and ranks of the step"
            )
        denominator = 1.0
    sums_B = (losses_BT * used_BT).sum(dim=1) * weights_B
    if config.aggregate == "sequence":
        sums_B = sums_B / used_BT.sum(dim=1).clamp(min=1)
    elif config.aggregate == "constant":
        sums_B = sums_B / config.constant_tokens
    return sums_B.sum() / denominator


def _log_ratio(logp_BT: Tensor, behaviour_logp_BT: Tensor, used_BT: Tensor) -> Tensor:
    """log r where used, 0 elsewhere; masked first, so that no NaN passes into the gradient."""
    logp_BT = logp_BT.masked_fill(~used_BT, 0.0)
    behaviour_BT = behaviour_logp_BT.detach().masked_fill(~used_BT, 0.0)
    _check_finite("logp_BT", logp_BT)
    _check_finite("behaviour_logp_BT", behaviour_BT)
    delta_BT = logp_BT - behaviour_BT.to(logp_BT.dtype)
    largest = delta_BT.detach().abs().max().item() if delta_BT.numel() else 0.0
    if largest > MAX_LOG_RATIO:
        raise ValueError(
            f"|logp - behaviour_logp| reaches {largest:.0f} nats; are both of the same tokens, "
            "shifted alike and at the same temperature?"
        )
    return delta_BT


@torch.no_grad()
def _ratio_metrics(
    delta_BT: Tensor, advantages_B: Tensor, used_BT: Tensor, config: LossConfig
) -> dict[str, float]:
    delta_K = delta_BT[used_BT].double()  # K tokens in the loss
    if not len(delta_K):
        delta_K = torch.zeros(1, dtype=torch.float64)
    ratio_BT = delta_BT.exp()
    advantages_BT = advantages_B[:, None].expand_as(ratio_BT)
    high_BT = (ratio_BT > 1 + config.epsilon_high) & (advantages_BT > 0) & used_BT
    low_BT = (ratio_BT < 1 - config.epsilon_low) & (advantages_BT < 0) & used_BT
    clips = config.clip == "ppo"
    tokens = float(used_BT.sum())
    return {
        "tokens": tokens,
        "ratio_mean": delta_K.exp().mean().item(),
        "ratio_min": delta_K.min().exp().item(),
        "ratio_max": delta_K.max().exp().item(),
        "abs_dlogp": delta_K.abs().mean().item(),
        "clip_high": float(high_BT.sum()) / max(tokens, 1.0) if clips else 0.0,
        "clip_low": float(low_BT.sum()) / max(tokens, 1.0) if clips else 0.0,
    }


def _check_tokens(logp_BT: Tensor, mask_BT: Tensor, behaviour_logp_BT: Tensor | None = None):
    if logp_BT.dim() != 2 or not logp_BT.is_floating_point():
        raise ValueError(
            f"logp_BT must be float of shape [B, T], got {logp_BT.dtype} {tuple(logp_BT.shape)}"
        )
    if mask_BT.dtype != torch.bool:
        raise ValueError(f"mask_BT must be boolean, got {mask_BT.dtype}; pass mask_BT.bool()")
    for name, other in (("mask_BT", mask_BT), ("behaviour_logp_BT", behaviour_logp_BT)):
        if other is not None and other.shape != logp_BT.shape:
            raise ValueError(
                f"{name} has shape {tuple(other.shape)}, logp_BT {tuple(logp_BT.shape)}; they "
                "must be equal (drop the first token of both, or of neither)"
            )


def _check_weights(weights_B: Tensor | None, like_BT: Tensor) -> Tensor:
    dtype = like_BT.dtype if like_BT.is_floating_point() else torch.float64
    if weights_B is None:
        return torch.ones(like_BT.shape[0], dtype=dtype, device=like_BT.device)
    if tuple(weights_B.shape) != (like_BT.shape[0],):
        raise ValueError(
            f"weights_B needs one weight per sequence, shape [{like_BT.shape[0]}], "
            f"got {tuple(weights_B.shape)}"
        )
    if not bool(((weights_B >= 0) & torch.isfinite(weights_B)).all()):
        raise ValueError("weights_B must be finite and >= 0; 0 leaves a sequence out")
    return weights_B.detach().to(device=like_BT.device, dtype=dtype)


def _check_advantages(advantages_B: Tensor, used_BT: Tensor) -> Tensor:
    if tuple(advantages_B.shape) != (used_BT.shape[0],):
        raise ValueError(
            f"advantages_B needs one value per sequence, shape [{used_BT.shape[0]}], "
            f"got {tuple(advantages_B.shape)}"
        )
    advantages_B = advantages_B.detach().to(used_BT.device)
    advantages_B = advantages_B.masked_fill(~used_BT.any(dim=1), 0.0)
    _check_finite("advantages_B", advantages_B)
    return advantages_B


def _check_finite(name: str, values: Tensor):
    if not bool(torch.isfinite(values).all()):
        raise ValueError(f"{name} is NaN or infinite where the loss uses it")
