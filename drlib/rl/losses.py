"""The policy-gradient loss, its published relatives as switches, and losses that imitate.

`policy_loss` is eq. 4 of the Tongyi DeepResearch report: a clipped surrogate over the tokens that
the model generated, summed over the batch and divided by one global number of tokens. The switches
of `LossConfig` are orthogonal. Three choices that implementations get wrong in silence:

- The denominator is an argument. A micro-batch or a data-parallel rank sees part of the step's
  tokens; given the step's count (sum `loss_denominator` over the parts), the gradients of the
  parts add up to the gradient of the whole. Dividing each part by its own count does not.
- An excluded sequence (weight 0) is in neither the sum nor the count, so leaving rollouts out does
  not shrink the step. A weight of 2 equals two copies of the sequence.
- Positions outside the mask never enter the arithmetic, whatever stands there (NaN too).

Imitation is a policy gradient in disguise, and the tests hold that: SFT is REINFORCE on the
demonstration with advantage 1 / pi hidden in it, DFT takes that 1 / pi out again, and on-policy
distillation is `policy_loss` with the teacher's opinion of each token as its advantage.

Left out: an entropy bonus, dual clipping of negative advantages, value losses; divergences from a
teacher over the whole vocabulary, teachers with another tokenizer.
"""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from drlib.checks import Coefficient, Count, check_fields, require
from drlib.rl.divergences import (
    check_tokens,
    check_weights,
    correction_bounds,
    importance_correction,
    in_loss,
    kl_estimate,
    log_ratio,
    mean_per_row,
    mismatch_metrics,
    top_entropy_mask,
    weight_metrics,
)


@dataclass(frozen=True)
class LossConfig:
    """The switches of `policy_loss`; the defaults are the recipe.

    clip: what happens to a token (A its advantage, r its ratio) outside the range.
        "ppo": min(r A, clip(r, 1 - epsilon_low, 1 + epsilon_high) A), so the gradient stops where
        r has moved in A's favour (Tongyi eq. 4; the asymmetric range is DAPO's clip-higher).
        "double_sided": gradient r A grad log pi strictly inside the range and none outside,
        whatever A's sign (GLM-5 eq. 3-5); r is against the rollout engine, never `old_logp_BT`.
        "cispo": gradient min(r, 1 + epsilon_high) A grad log pi everywhere (MiniMax-M1).
        "none": r A, plain importance sampling. On policy all have the gradient of REINFORCE.
    aggregate: "token" divides the sum over tokens by the number of tokens (Tongyi, DAPO);
        "sequence" takes each sequence's mean first (GRPO), so a token of a long sequence counts
        less; "constant" divides by sequences times `constant_tokens` (Dr.GRPO).
    level: "sequence" replaces r by its geometric mean over the sequence (GSPO, arXiv 2507.18071).
    correction: the rollout engine's mismatch, see `importance_correction`; needs `old_logp_BT`.
        correction_bounds: (low, high), the published ones when None. correction_level: as there.
    kl_coef: weight of KL(pi || reference) per token; needs `reference_logp_BT`. kl_estimator: see
        `kl_estimate`. kl_unbiased: weigh it by pi / pi_behaviour, so that its gradient is that of
        the KL (DeepSeek-V3.2; TRL), with k2's weight held constant.
    top_entropy: share of tokens that learn, those of highest entropy (80/20 rule: 0.2); needs
        `entropies_BT`. entropy_scope: of the batch passed, or of each sequence.
    denominator: tokens dropped by `correction` or `top_entropy` are out of the loss and of its
        count ("kept", the 80/20 code), or lose their surrogate but still count ("all", TRL, whose
        step is then 5 times smaller at top_entropy 0.2).
    """

    clip: Literal["ppo", "double_sided", "cispo", "none"] = "ppo"
    aggregate: Literal["token", "sequence", "constant"] = "token"
    epsilon_low: Annotated[float, "[0, 1)"] = 0.2
    epsilon_high: Coefficient = 0.28
    constant_tokens: Count | None = None
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
        both = self.clip != "double_sided" or min(self.epsilon_low, self.epsilon_high) > 0
        require(both, 'clip="double_sided" needs both epsilons above 0: at 0 it masks every token')
        paired = (self.aggregate == "constant") == (self.constant_tokens is not None)
        require(paired, 'constant_tokens (longest allowed sequence) go with aggregate="constant"')
        if self.correction == "none":
            require(self.correction_bounds is None, "correction_bounds go with a correction")
            return
        correction_bounds(self.correction, self.correction_bounds)
        twice = 'clip="double_sided" and a correction count the mismatch twice: use another clip'
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
    weights_B: Tensor | None = None,
    denominator: float | Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """The clipped policy-gradient loss (Tongyi DeepResearch eq. 4), to be minimised.

    Args:
        logp_BT: float, log-probability in nats of each token under the policy being trained.
        behaviour_logp_BT: float, as the rollout engine recorded them; no gradient.
        advantages_B: float, one per sequence, shared by its tokens, or one per token [B, T].
        mask_BT: bool, True on tokens that the model generated.
        old_logp_BT: float, the same tokens under the training engine before the update. The clip
            ratio is then against it instead of the behaviour (except clip "double_sided").
        reference_logp_BT: float, under the reference policy. entropies_BT: float, nats.
        weights_B: float >= 0, a sequence's weight; 0 leaves it out of the loss. 1 each when None.
        denominator: what `loss_denominator` gives, summed over all micro-batches and ranks of the
            step; this batch's own when None.

    Returns (loss, metrics): a scalar tensor, and floats over the tokens with weight > 0
    (unweighted; several batches': `merge_metrics`): tokens, ratio_mean/min/max (at `level`),
    abs_dlogp (mean |log r|), clip_high and clip_low: shares above and below the range that lost
    their gradient (cispo: above, capped); those of `weight_metrics` for pi / pi_behaviour. With the
    arguments or switches concerned: mismatch_kl, mismatch_max (behaviour against old), kl,
    dropped_correction, dropped_entropy, clip_high_positive (share with A > 0), clip_low_positive.

    Raises:
        ValueError: shapes or dtypes do not fit, a value used is not finite, a switch lacks its
            argument, or the denominator is not positive though there are tokens.
    """
    config = config or LossConfig()
    check_tokens(
        logp_BT,
        mask_BT,
        behaviour_logp_BT=behaviour_logp_BT,
        old_logp_BT=old_logp_BT,
        reference_logp_BT=reference_logp_BT,
        entropies_BT=entropies_BT,
    )
    _check_needs(config, old_logp_BT, reference_logp_BT, entropies_BT)
    weights_B = check_weights(weights_B, logp_BT)
    used_BT = mask_BT & (weights_B > 0)[:, None]
    advantages_BT = _check_advantages(advantages_B, used_BT).to(logp_BT.dtype)
    logp_BT = in_loss("logp_BT", logp_BT, used_BT)
    behaviour_BT = in_loss("behaviour_logp_BT", behaviour_logp_BT.detach(), used_BT)
    weight_BT = delta_BT = log_ratio(logp_BT, behaviour_BT)  # in logarithms
    old_BT = None
    if old_logp_BT is not None:
        old_BT = in_loss("old_logp_BT", old_logp_BT.detach(), used_BT)
        if config.clip != "double_sided":
            delta_BT = log_ratio(logp_BT, old_BT, "old_logp")
    if config.level == "sequence":  # its value; each token's own gradient, so dropped ones get none
        mean_BT = mean_per_row(delta_BT.detach(), used_BT)
        delta_BT = mean_BT + delta_BT - delta_BT.detach()
    loss_BT = -_surrogate(logp_BT, delta_BT, advantages_BT, config)
    metrics = _ratio_metrics(delta_BT, advantages_BT, used_BT, config)
    metrics |= weight_metrics(weight_BT, used_BT)
    if old_BT is not None:
        metrics |= mismatch_metrics(old_BT, behaviour_BT, used_BT)
    correction_BT, kept_BT, dropped = _select(used_BT, config, behaviour_BT, old_BT, entropies_BT)
    if dropped:  # a switch is on
        loss_BT = loss_BT * kept_BT * (1.0 if correction_BT is None else correction_BT)
    if reference_logp_BT is not None:
        reference_BT = in_loss("reference_logp_BT", reference_logp_BT.detach(), used_BT)
        kl_BT = kl_estimate(logp_BT, reference_BT, config.kl_estimator)
        metrics["kl"] = kl_BT.detach()[used_BT].double().sum().item() / max(metrics["tokens"], 1.0)
        if config.kl_coef:
            loss_BT = loss_BT + config.kl_coef * _kl_weighted(kl_BT, weight_BT, config)
    counted_BT = kept_BT if config.denominator == "kept" else used_BT
    loss = _aggregate(loss_BT, counted_BT, weights_B, config, denominator)
    return loss, metrics | dropped


def sft_loss(
    logp_BT: Tensor, mask_BT: Tensor, denominator: float | Tensor | None = None
) -> tuple[Tensor, dict[str, float]]:
    """Mean negative log-likelihood in nats per token of `mask_BT` (next-token loss).

    logp_BT: float, of each token. mask_BT: bool, the tokens to learn (the model's own in SFT, all
    in CPT). denominator: tokens of the whole step; this batch's when None. Returns (loss, metrics):
    a scalar, and floats `tokens` and `nll` (this batch's own mean). ValueError as `policy_loss`.
    """
    check_tokens(logp_BT, mask_BT)
    nll_BT = -in_loss("logp_BT", logp_BT, mask_BT)
    loss = _aggregate(nll_BT, mask_BT, check_weights(None, logp_BT), LossConfig(), denominator)
    tokens = int(mask_BT.sum())
    return loss, {"tokens": float(tokens), "nll": nll_BT.detach().sum().item() / max(tokens, 1)}


def dft_loss(
    logp_BT: Tensor, mask_BT: Tensor, denominator: float | Tensor | None = None
) -> tuple[Tensor, dict[str, float]]:
    """Dynamic fine-tuning (arXiv 2508.05629): each token's NLL times its constant probability.

    The gradient is - p grad log p = - grad p: a token that the model holds impossible pulls little.
    Arguments, returns and errors as `sft_loss`; `nll` is the mean without that factor.
    """
    _, metrics = sft_loss(logp_BT.detach(), mask_BT)
    probability_BT = logp_BT.detach().exp().masked_fill(~mask_BT, 0.0)
    loss, _ = sft_loss(probability_BT * in_loss("logp_BT", logp_BT, mask_BT), mask_BT, denominator)
    return loss, metrics


@torch.no_grad()
def distillation_advantages(logp_BT: Tensor, teacher_logp_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """A_t = log pi_teacher - log pi, without gradient (GLM-5, section 3.5, eq. 2); 0 outside.

    In expectation over the policy's own tokens, A grad log pi is - grad KL(pi || teacher): no
    group and no baseline is needed, every token is judged by itself. Arguments: float, nats, of
    the same tokens, and bool. ValueError as `policy_loss`.
    """
    check_tokens(logp_BT, mask_BT, teacher_logp_BT=teacher_logp_BT)
    teacher_BT = in_loss("teacher_logp_BT", teacher_logp_BT, mask_BT)
    return -log_ratio(in_loss("logp_BT", logp_BT, mask_BT), teacher_BT, "teacher_logp")


def distillation_loss(
    logp_BT: Tensor,
    behaviour_logp_BT: Tensor,
    teacher_logp_BT: Tensor,
    mask_BT: Tensor,
    config: LossConfig | None = None,
    **arguments,
) -> tuple[Tensor, dict[str, float]]:
    """On-policy distillation: `policy_loss` with `distillation_advantages` (GLM-5, section 3.5).

    Arguments and errors as there. Returns (loss, metrics), and among these `teacher_kl`: the k1
    estimate of KL(pi || teacher), nats per token of the mask.
    """
    check_tokens(logp_BT, mask_BT)
    mask_BT = mask_BT & (check_weights(arguments.get("weights_B"), logp_BT) > 0)[:, None]
    advantages_BT = distillation_advantages(logp_BT, teacher_logp_BT, mask_BT)
    tensors = logp_BT, behaviour_logp_BT, advantages_BT, mask_BT
    loss, metrics = policy_loss(*tensors, config, **arguments)
    total = advantages_BT[mask_BT].double().sum().item()
    return loss, metrics | {"teacher_kl": -total / max(int(mask_BT.sum()), 1)}


def soft_overlong_penalty(lengths_N: Tensor, limit: int, buffer: int) -> Tensor:
    """DAPO's reward term for length (arXiv 2503.14476): 0, then linear, then -1.

    0 up to `limit - buffer` tokens, ((limit - buffer) - length) / buffer within the buffer, -1
    beyond `limit`. Add it to the rewards; DAPO's own numbers are limit 20,480 and buffer 4,096.

    lengths_N: generated tokens of each rollout (ints). limit, buffer: tokens. Returns penalties_N,
    float in [-1, 0]. ValueError: not 0 < buffer <= limit, or a negative length.
    """
    require(0 < buffer <= limit, f"need 0 < buffer <= limit, got {buffer} and {limit}")
    lengths_N = torch.as_tensor(lengths_N).to(torch.get_default_dtype())
    require(not bool((lengths_N < 0).any()), "lengths_N must be >= 0, numbers of tokens")
    return ((limit - buffer - lengths_N) / buffer).clamp(-1.0, 0.0)


def kept_tokens(
    mask_BT: Tensor,
    config: LossConfig,
    *,
    behaviour_logp_BT: Tensor | None = None,
    old_logp_BT: Tensor | None = None,
    entropies_BT: Tensor | None = None,
) -> Tensor:
    """The tokens of `mask_BT` that `correction` and `top_entropy` leave in the loss; bool [B, T].

    It needs no gradient, so it can be had for all micro-batches before the step: with `denominator`
    "kept", pass it to `loss_denominator`. As `policy_loss`; leave weights of 0 out of the mask.
    """
    _check_needs(config, old_logp_BT, True, entropies_BT, behaviour_logp_BT)
    return _select(mask_BT, config, behaviour_logp_BT, old_logp_BT, entropies_BT)[1]


def loss_denominator(mask_BT: Tensor, weights_B=None, config: LossConfig | None = None) -> float:
    """What the loss of a batch is divided by: its (weighted) tokens, or sequences that have any.

    Sum it over the micro-batches and ranks of a step and give the sum to each of them.
    mask_BT: bool, generated tokens (`kept_tokens` of them where a switch drops some). weights_B:
    float or None. config: for `aggregate`.
    """
    config = config or LossConfig()
    weights_B = check_weights(weights_B, mask_BT)
    tokens_B = mask_BT.sum(dim=1)
    counts_B = tokens_B if config.aggregate == "token" else (tokens_B > 0)
    return float((counts_B * weights_B.double()).sum())


def merge_metrics(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    """One dict for several: token-weighted means, smallest _min, largest _max, summed tokens;
    ValueError on an empty list or on dicts with different keys."""
    alike = parts and all(part.keys() == parts[0].keys() for part in parts)
    require(alike, "merge_metrics needs at least one dict, all with the same keys")
    tokens = sum(part["tokens"] for part in parts)
    live = [part for part in parts if part["tokens"] > 0] or list(parts[:1])
    merged = {**parts[0], "tokens": tokens}
    for key in parts[0]:
        if key.endswith(("_min", "_max")):
            merged[key] = (min if key.endswith("_min") else max)(part[key] for part in live)
        elif tokens and key != "tokens":
            merged[key] = sum(part[key] * part["tokens"] for part in live) / tokens
    if "ess" in merged:  # a ratio of means, not a mean
        merged["ess"] = merged["weight_mean"] ** 2 / merged["weight_square_mean"]
    return merged


def _surrogate(logp_BT: Tensor, delta_BT: Tensor, advantages_BT: Tensor, config) -> Tensor:
    """What each token adds to the objective, before correction; `delta_BT` is log r."""
    ratio_BT = delta_BT.exp()
    low, high = 1 - config.epsilon_low, 1 + config.epsilon_high
    if config.clip == "double_sided":
        ratio_BT = ratio_BT.detach()  # without it: gradient r A (1 + log pi), of the wrong sign
        weight_BT = ratio_BT * ((ratio_BT > low) & (ratio_BT < high))
        return weight_BT * advantages_BT * logp_BT
    if config.clip == "cispo":
        return ratio_BT.detach().clamp(max=high) * advantages_BT * logp_BT
    gain_BT = ratio_BT * advantages_BT
    if config.clip == "ppo":
        gain_BT = torch.minimum(gain_BT, ratio_BT.clamp(low, high) * advantages_BT)
    return gain_BT


def _kl_weighted(kl_BT: Tensor, weight_BT: Tensor, config: LossConfig) -> Tensor:
    """The estimate, times pi / pi_behaviour where its gradient is to be the KL's own."""
    if not config.kl_unbiased:
        return kl_BT
    ratio_BT = weight_BT.exp()
    return kl_BT * (ratio_BT.detach() if config.kl_estimator == "k2" else ratio_BT)


def _select(used_BT: Tensor, config: LossConfig, behaviour_BT, old_BT, entropies_BT) -> tuple:
    """(correction weights or None, tokens kept, share of the tokens dropped by each switch on)."""
    correction_BT, chosen = None, {}
    if config.correction != "none":
        correction_BT = importance_correction(
            old_BT,
            behaviour_BT,
            used_BT,
            config.correction,
            bounds=config.correction_bounds,
            level=config.correction_level,
        )
        chosen["dropped_correction"] = correction_BT > 0
    if config.top_entropy < 1:
        share, scope = config.top_entropy, config.entropy_scope
        chosen["dropped_entropy"] = top_entropy_mask(entropies_BT, used_BT, share, scope)
    tokens = max(float(used_BT.sum()), 1.0)
    shares = {name: float((used_BT & ~some_BT).sum()) / tokens for name, some_BT in chosen.items()}
    return correction_BT, torch.stack([used_BT, *chosen.values()]).all(dim=0), shares


def _aggregate(losses_BT, used_BT, weights_B, config: LossConfig, denominator) -> Tensor:
    """Sum the per-token losses with their sequences' weights and divide by the denominator."""
    if denominator is None:  # nothing to learn from: a loss of 0 that still has a (zero) gradient
        denominator = loss_denominator(used_BT, weights_B, config) or 1.0
    elif not 0 < float(denominator) < math.inf:
        wrong = f"denominator is {float(denominator)}; sum loss_denominator over the step's parts"
        require(not used_BT.any(), wrong)
        denominator = 1.0
    sums_B = (losses_BT * used_BT).sum(dim=1) * weights_B
    if config.aggregate == "sequence":
        sums_B = sums_B / used_BT.sum(dim=1).clamp(min=1)
    elif config.aggregate == "constant":
        sums_B = sums_B / config.constant_tokens
    return sums_B.sum() / denominator


@torch.no_grad()
def _ratio_metrics(delta_BT, advantages_BT, used_BT, config: LossConfig) -> dict[str, float]:
    delta_K = delta_BT[used_BT].double()  # K tokens in the loss
    delta_K = delta_K if len(delta_K) else delta_K.new_zeros(1)
    ratio_BT, ppo, positive_BT = delta_BT.exp(), config.clip == "ppo", advantages_BT > 0
    low, high = 1 - config.epsilon_low, 1 + config.epsilon_high
    out = {
        "clip_high": (ratio_BT > high) & (positive_BT if ppo else config.clip == "cispo"),
        "clip_low": (ratio_BT < low) & (advantages_BT < 0) & ppo,
    }
    if config.clip == "double_sided":
        out = {"clip_high": ratio_BT >= high, "clip_low": ratio_BT <= low}
        out |= {f"{key}_positive": out_BT & positive_BT for key, out_BT in out.items()}
    tokens = float(used_BT.sum())
    return {
        "tokens": tokens,
        "ratio_mean": delta_K.exp().mean().item(),
        "ratio_min": delta_K.min().exp().item(),
        "ratio_max": delta_K.max().exp().item(),
        "abs_dlogp": delta_K.abs().mean().item(),
    } | {key: float((used_BT & out_BT).sum()) / max(tokens, 1.0) for key, out_BT in out.items()}


def _check_needs(config: LossConfig, old_BT, reference_BT, entropies_BT, behaviour_BT=True):
    """ValueError for a switch whose argument is missing."""
    for on, switch, name, given in (
        (config.correction != "none", "correction", "old_logp_BT", old_BT),
        (config.correction != "none", "correction", "behaviour_logp_BT", behaviour_BT),
        (config.kl_coef > 0, "kl_coef", "reference_logp_BT", reference_BT),
        (config.top_entropy < 1, "top_entropy", "entropies_BT", entropies_BT),
    ):
        message = f"{switch}={getattr(config, switch)!r} needs {name}; pass it or switch it off"
        require(not on or given is not None, message)


def _check_advantages(advantages: Tensor, used_BT: Tensor) -> Tensor:
    """[B] or [B, T] -> [B, 1] or [B, T], 0 where nothing is used."""
    got, need = list(advantages.shape), list(used_BT.shape)
    require(got in (need[:1], need), f"advantages_B needs shape {need[:1]} or {need}, got {got}")
    if advantages.dim() == 1:
        advantages, used_BT = advantages[:, None], used_BT.any(dim=1, keepdim=True)
    return in_loss("advantages_B", advantages.detach().to(used_BT.device), used_BT)


CLIPS = ("ppo", "double_sided", "cispo", "none")
