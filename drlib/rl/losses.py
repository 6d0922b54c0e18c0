"""Policy-gradient losses: PPO, GSPO, CISPO, double-sided IS and their corrections.

`policy_loss` is eq. 4 of the Tongyi DeepResearch report: a clipped surrogate over the generated
tokens, summed over the batch and divided by one global number of tokens. The options of
`LossConfig` are orthogonal. Three details that implementations often get wrong:

- The denominator is an argument. A micro-batch or a data-parallel rank sees part of the step's
  tokens; with the step's count (the sum of `loss_denominator` over the parts), the gradients of
  the parts add up to the gradient of the whole. Dividing each part by its own count does not.
- An excluded sequence (weight 0) is in neither the sum nor the count, so excluding rollouts does
  not shrink the step. A weight of 2 equals two copies of the sequence.
- Positions outside the mask never enter the arithmetic, whatever their values (also NaN).
"""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from drlib.rl.clips import CLIPS
from drlib.rl.divergences import (
    check_tokens,
    check_weights,
    correction_bounds,
    importance_correction,
    kl_estimate,
    log_ratio,
    mask_values,
    mean_per_row,
    mismatch_metrics,
    top_entropy_mask,
    weight_metrics,
)
from drlib.validation import AtLeastOne, Coefficient, check_fields, require, require_one_of


@dataclass(frozen=True)
class LossConfig:
    """Options of `policy_loss`; the defaults are the Tongyi recipe.

    Args:
        clip: treatment of a token whose ratio r to the sampling policy leaves the range
            1 - epsilon_low .. 1 + epsilon_high: a name in `drlib.rl.clips.CLIPS` ("ppo",
            "double_sided", "cispo", "none"), where your own can be registered.
        aggregate: "token" divides the sum over tokens by the number of tokens (Tongyi, DAPO);
            "sequence" takes each sequence's mean first (GRPO), so a token of a long sequence counts
            less; "constant" divides by sequences times `constant_tokens` (Dr.GRPO).
        epsilon_low, epsilon_high: clip range; DAPO's clip-higher has epsilon_high > epsilon_low.
        constant_tokens: longest allowed sequence, for aggregate "constant".
        level: "sequence" replaces r by its geometric mean over the sequence (GSPO, arXiv
            2507.18071).
        correction: corrects engine mismatch, see `importance_correction`; needs `old_logp_BT`.
        correction_bounds: (low, high), the published ones when None.
        correction_level: as `level` of `importance_correction`.
        kl_coef: weight of KL(pi || reference) per token; needs `reference_logp_BT`.
        kl_estimator: see `kl_estimate`.
        kl_unbiased: weight the estimate by pi / pi_behaviour, so that its gradient is that of the
            KL (DeepSeek-V3.2; TRL); the weight of k2 is held constant.
        top_entropy: share of tokens that learn, those of highest entropy (80/20 rule: 0.2); needs
            `entropies_BT`.
        entropy_scope: select them per "batch" passed, or per "sequence".
        denominator: "kept" removes tokens dropped by `correction` or `top_entropy` from the loss
            and from its count (the 80/20 code); with "all" they lose their surrogate but still
            count (TRL, whose step is then 5 times smaller at top_entropy 0.2).

    Raises:
        ValueError: a value out of range, or inconsistent options.
    """

    clip: str = "ppo"
    aggregate: Literal["token", "sequence", "constant"] = "token"
    epsilon_low: Annotated[float, "[0, 1)"] = 0.2
    epsilon_high: Coefficient = 0.28
    constant_tokens: AtLeastOne | None = None
    _: KW_ONLY
    level: Literal["token", "sequence"] = "token"
    correction: Literal["none", "truncate", "mask", "icepop", "geometric"] = "none"
    correction_bounds: tuple[float, float] | None = None
    correction_level: Literal["token", "sequence"] = "token"
    kl_coef: Coefficient = 0.0
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    kl_unbiased: bool = False
    top_entropy: Annotated[float, "(0, 1]"] = 1.0
    entropy_scope: Literal["batch", "sequence"] = "batch"
    denominator: Literal["kept", "all"] = "kept"

    def __post_init__(self):
        check_fields(self)
        require_one_of(self.clip, tuple(CLIPS), "clip")
        if self.clip == "double_sided":
            both = min(self.epsilon_low, self.epsilon_high) > 0
            require(both, 'clip="double_sided" needs both epsilons above 0, or no token is kept')
        paired = (self.aggregate == "constant") == (self.constant_tokens is not None)
        require(
            paired, 'set constant_tokens (longest allowed sequence) with aggregate="constant" only'
        )
        if self.correction == "none":
            require(
                self.correction_bounds is None,
                "correction_bounds need a correction: set both or neither",
            )
            return
        correction_bounds(self.correction, self.correction_bounds)
        twice = 'clip="double_sided" and a correction both correct the mismatch: use another clip'
        require(self.clip != "double_sided", twice)


def policy_loss(
    logp_BT: Tensor,
    behaviour_logp_BT: Tensor,
    advantages_B: Tensor,
    mask_BT: Tensor,
    config: LossConfig | None = None,
    *,
    old_logp_BT: Tensor | None = None,
    reference_logp_BT: Tensor | None = None,
    entropies_BT: Tensor | None = None,
    learning_BT: Tensor | None = None,
    weights_B: Tensor | None = None,
    denominator: float | Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """Return the clipped policy-gradient loss (Tongyi DeepResearch eq. 4), to be minimised.

    Args:
        logp_BT: float, log-probability in nats of each token under the policy in training.
        behaviour_logp_BT: float, as recorded by the rollout engine; no gradient.
        advantages_B: float, one per sequence, shared by its tokens, or one per token [B, T].
        mask_BT: bool, True on generated tokens.
        old_logp_BT: float, the same tokens under the training engine before the update. The clip
            ratio is then relative to it instead of the behaviour (except clip "double_sided").
        reference_logp_BT: float, under the reference policy.
        entropies_BT: float, nats.
        learning_BT: bool, instead of entropies_BT: the tokens that `top_entropy` selected over a
            larger set than this batch (a whole step's).
        weights_B: float >= 0, weight of a sequence; 0 excludes it from the loss. 1 each when None.
        denominator: `loss_denominator` summed over all micro-batches and ranks of the step; this
            batch's own when None.

    Returns:
        (loss, metrics): a scalar tensor, and floats over the tokens with weight > 0 (unweighted;
        combine batches with `merge_metrics`): tokens, ratio_mean/min/max (at `level`), abs_dlogp
        (mean |log r|), clip_high and clip_low (shares above and below the range that lost their
        gradient; cispo: above, capped), and those of `weight_metrics` for pi / pi_behaviour. With
        the corresponding arguments or options: mismatch_kl, mismatch_max (behaviour and old), kl,
        dropped_correction, dropped_entropy, clip_high_positive (share with A > 0),
        clip_low_positive.

    Raises:
        ValueError: shapes or dtypes do not fit, a used value is not finite, an option lacks its
            argument, or the denominator is not positive although there are tokens.

    >>> logp_BT = torch.tensor([[-1.0, -2.0]])
    >>> loss, metrics = policy_loss(logp_BT, logp_BT, torch.tensor([0.5]), logp_BT < 0)
    >>> loss.item(), metrics["tokens"]
    (-0.5, 2.0)
    """
    config = config or LossConfig()
    check_tokens(
        logp_BT,
        mask_BT,
        behaviour_logp_BT=behaviour_logp_BT,
        old_logp_BT=old_logp_BT,
        reference_logp_BT=reference_logp_BT,
        entropies_BT=entropies_BT,
        learning_BT=learning_BT,
    )
    _check_needs(config, old_logp_BT, reference_logp_BT, entropies_BT, learning_BT)

    weights_B = check_weights(weights_B, logp_BT)
    # used tokens: in the mask, of sequences with a weight > 0
    used_BT = mask_BT & (weights_B > 0)[:, None]
    advantages_BT = _check_advantages(advantages_B, used_BT).to(logp_BT.dtype)
    logp_BT = mask_values("logp_BT", logp_BT, used_BT)
    behaviour_BT = mask_values("behaviour_logp_BT", behaviour_logp_BT.detach(), used_BT)
    old_BT = _mask_constant("old_logp_BT", old_logp_BT, used_BT)

    # the clipped surrogate of each token
    log_weight_BT = log_ratio(logp_BT, behaviour_BT)
    log_ratio_BT = _log_ratio(log_weight_BT, logp_BT, old_BT, used_BT, config)
    loss_BT = -CLIPS[config.clip](logp_BT, log_ratio_BT, advantages_BT, config)
    metrics = ratio_metrics(log_ratio_BT, advantages_BT, used_BT, config)
    metrics |= engine_metrics(log_weight_BT, old_BT, behaviour_BT, used_BT)

    # correction and token selection, then the KL to the reference
    selected = _select(used_BT, config, behaviour_BT, old_BT, entropies_BT, learning_BT)
    loss_BT = selected.apply(loss_BT)
    if reference_logp_BT is not None:
        kl_BT = _kl(logp_BT, reference_logp_BT, used_BT, config)
        metrics["kl"] = _mean_over(kl_BT, used_BT)
        loss_BT = loss_BT + _kl_weighted(kl_BT, log_weight_BT, config)
    loss = _aggregate(loss_BT, selected.counted_BT, weights_B, config, denominator)
    return loss, metrics | selected.dropped


def kept_tokens(
    mask_BT: Tensor,
    config: LossConfig,
    *,
    behaviour_logp_BT: Tensor | None = None,
    old_logp_BT: Tensor | None = None,
    entropies_BT: Tensor | None = None,
    learning_BT: Tensor | None = None,
) -> Tensor:
    """Return the tokens of `mask_BT` that `correction` and `top_entropy` keep in the loss.

    It needs no gradient, so it can be computed for all micro-batches before the step: with
    `denominator` "kept", pass it to `loss_denominator`.

    Args:
        mask_BT: bool, generated tokens of sequences with weight > 0.
        behaviour_logp_BT, old_logp_BT, entropies_BT, learning_BT: as for `policy_loss`.

    Returns:
        bool [B, T].

    Raises:
        ValueError: an enabled option lacks its argument.
    """
    _check_needs(config, old_logp_BT, True, entropies_BT, learning_BT, behaviour_logp_BT)
    selected = _select(mask_BT, config, behaviour_logp_BT, old_logp_BT, entropies_BT, learning_BT)
    return selected.kept_BT


def loss_denominator(mask_BT: Tensor, weights_B=None, config: LossConfig | None = None) -> float:
    """Return the divisor of a batch's loss: its weighted tokens, or its non-empty sequences.

    Sum it over the micro-batches and ranks of a step and pass the sum to each of them.

    Args:
        mask_BT: bool, generated tokens (`kept_tokens` of them if an option drops some).
        weights_B: float >= 0, or None for 1 each.
        config: for `aggregate`.

    Raises:
        ValueError: wrong shape or weights.
    """
    config = config or LossConfig()
    weights_B = check_weights(weights_B, mask_BT)
    tokens_B = mask_BT.sum(dim=1)
    counts_B = tokens_B if config.aggregate == "token" else (tokens_B > 0)
    return float((counts_B * weights_B.double()).sum())


def _log_ratio(
    log_weight_BT: Tensor, logp_BT: Tensor, old_BT: Tensor | None, used_BT: Tensor, config
) -> Tensor:
    """Return log r per token or per sequence, relative to `old_BT` if given, else to the engine.

    log_weight_BT: log of pi / pi_behaviour.
    """
    log_ratio_BT = log_weight_BT
    if old_BT is not None and config.clip != "double_sided":
        log_ratio_BT = log_ratio(logp_BT, old_BT, "old_logp")
    if config.level == "sequence":
        # value of the sequence, gradient of each token, so dropped tokens get no gradient
        mean_BT = mean_per_row(log_ratio_BT.detach(), used_BT)
        log_ratio_BT = mean_BT + log_ratio_BT - log_ratio_BT.detach()
    return log_ratio_BT


def _mask_constant(name: str, logp_BT: Tensor | None, used_BT: Tensor) -> Tensor | None:
    """Return a constant tensor, 0 where not used; None stays None."""
    return None if logp_BT is None else mask_values(name, logp_BT.detach(), used_BT)


def _kl(logp_BT: Tensor, reference_logp_BT: Tensor, used_BT: Tensor, config) -> Tensor:
    reference_BT = _mask_constant("reference_logp_BT", reference_logp_BT, used_BT)
    return kl_estimate(logp_BT, reference_BT, config.kl_estimator)


def _mean_over(values_BT: Tensor, used_BT: Tensor) -> float:
    """Return the mean over the used tokens; 0 without any."""
    return values_BT.detach()[used_BT].double().sum().item() / max(float(used_BT.sum()), 1.0)


def _kl_weighted(kl_BT: Tensor, log_weight_BT: Tensor, config: LossConfig) -> Tensor | float:
    """Return kl_coef times the estimate, times pi / pi_behaviour with `kl_unbiased`."""
    if not config.kl_coef:
        return 0.0
    kl_BT = config.kl_coef * kl_BT
    if not config.kl_unbiased:
        return kl_BT
    weight_BT = log_weight_BT.exp()
    if config.kl_estimator == "k2":
        weight_BT = weight_BT.detach()
    return kl_BT * weight_BT


class _Selection(NamedTuple):
    weights_BT: Tensor | None  # of the correction, None without one
    kept_BT: Tensor  # tokens that stay in the loss
    counted_BT: Tensor  # tokens that the denominator counts
    dropped: dict[str, float]  # share of tokens dropped by each enabled option

    def apply(self, loss_BT: Tensor) -> Tensor:
        """Apply the selection and the correction weights to per-token losses."""
        if self.dropped:
            loss_BT = loss_BT * self.kept_BT
        return loss_BT if self.weights_BT is None else loss_BT * self.weights_BT


def _select(
    used_BT: Tensor, config: LossConfig, behaviour_BT, old_BT, entropies_BT, learning_BT=None
) -> _Selection:
    """Apply `correction` and `top_entropy` to the tokens `used_BT`."""
    weights_BT = None
    selected = {}
    if config.correction != "none":
        weights_BT = importance_correction(
            old_BT,
            behaviour_BT,
            used_BT,
            config.correction,
            bounds=config.correction_bounds,
            level=config.correction_level,
        )
        selected["dropped_correction"] = weights_BT > 0
    if config.top_entropy < 1 and learning_BT is not None:
        selected["dropped_entropy"] = learning_BT
    elif config.top_entropy < 1:
        selected["dropped_entropy"] = top_entropy_mask(
            entropies_BT, used_BT, config.top_entropy, config.entropy_scope
        )
    tokens = max(float(used_BT.sum()), 1.0)
    kept_BT = used_BT
    dropped = {}
    for name, selected_BT in selected.items():
        kept_BT = kept_BT & selected_BT
        dropped[name] = float((used_BT & ~selected_BT).sum()) / tokens
    counted_BT = kept_BT if config.denominator == "kept" else used_BT
    return _Selection(weights_BT, kept_BT, counted_BT, dropped)


def _aggregate(losses_BT, used_BT, weights_B, config: LossConfig, denominator) -> Tensor:
    """Sum the per-token losses with their sequences' weights and divide by the denominator."""
    if denominator is None:  # without tokens: a loss of 0 that still has a (zero) gradient
        denominator = loss_denominator(used_BT, weights_B, config) or 1.0
    elif not 0 < float(denominator) < math.inf:
        problem = f"denominator is {float(denominator)}; sum loss_denominator over the step's parts"
        require(not used_BT.any(), problem)
        denominator = 1.0
    sums_B = (losses_BT * used_BT).sum(dim=1) * weights_B
    if config.aggregate == "sequence":
        sums_B = sums_B / used_BT.sum(dim=1).clamp(min=1)
    elif config.aggregate == "constant":
        sums_B = sums_B / config.constant_tokens
    return sums_B.sum() / denominator


def _check_needs(
    config: LossConfig, old_BT, reference_BT, entropies_BT, learning_BT, behaviour_BT=True
):
    """Raise ValueError if the argument of an enabled option is missing."""
    correction = {"old_logp_BT": old_BT, "behaviour_logp_BT": behaviour_BT}
    if config.correction != "none":
        _check_argument("correction", config, correction)
    if config.kl_coef > 0:
        _check_argument("kl_coef", config, {"reference_logp_BT": reference_BT})
    if config.top_entropy < 1 and learning_BT is None:
        _check_argument("top_entropy", config, {"entropies_BT": entropies_BT})


def _check_argument(option: str, config: LossConfig, arguments: dict) -> None:
    for name, given in arguments.items():
        message = f"{option}={getattr(config, option)!r} needs {name}: pass it or disable it"
        require(given is not None, message)


def _check_advantages(advantages: Tensor, used_BT: Tensor) -> Tensor:
    """Expand [B] or [B, T] to [B, 1] or [B, T], 0 where nothing is used."""
    got = list(advantages.shape)
    need = list(used_BT.shape)
    require(got in (need[:1], need), f"advantages_B needs shape {need[:1]} or {need}, got {got}")
    if advantages.dim() == 1:
        advantages = advantages[:, None]
        used_BT = used_BT.any(dim=1, keepdim=True)
    return mask_values("advantages_B", advantages.detach().to(used_BT.device), used_BT)


def merge_metrics(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    """Merge the metrics of several `policy_loss` calls.

    `tokens` are summed; `_min` and `_max` keys take the extreme, all others the mean over tokens.

    Raises:
        ValueError: an empty list, or dicts with different keys.
    """
    alike = len(parts) > 0 and all(part.keys() == parts[0].keys() for part in parts)
    require(alike, "merge_metrics needs at least one dict, all with the same keys")
    tokens = sum(part["tokens"] for part in parts)
    counted = [part for part in parts if part["tokens"] > 0] or list(parts[:1])
    merged = {**parts[0], "tokens": tokens}
    for key in parts[0]:
        if key.endswith("_min"):
            merged[key] = min(part[key] for part in counted)
        elif key.endswith("_max"):
            merged[key] = max(part[key] for part in counted)
        elif tokens and key != "tokens":
            merged[key] = sum(part[key] * part["tokens"] for part in counted) / tokens
    if "ess" in merged:  # a ratio of means, not a mean
        merged["ess"] = merged["weight_mean"] ** 2 / merged["weight_square_mean"]
    return merged


@torch.no_grad()
def ratio_metrics(log_ratio_BT, advantages_BT, used_BT, config) -> dict[str, float]:
    """Return mean and extremes of the ratio, and the shares of clipped tokens."""
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
    """Return importance-weight metrics, and mismatch metrics if `old_BT` is given."""
    metrics = weight_metrics(log_weight_BT, used_BT)
    if old_BT is not None:
        metrics |= mismatch_metrics(old_BT, behaviour_BT, used_BT)
    return metrics


def _clipped(ratio_BT, advantages_BT, config) -> dict[str, Tensor]:
    """Return masks of the tokens above and below the range that lost (part of) their gradient.

    Empty under "none" and under clips registered elsewhere.
    """
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
