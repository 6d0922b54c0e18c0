"""KL estimates, importance corrections and entropy masks of sampled tokens.

Three policies score each sampled token: the policy in training (theta), the same weights in the
rollout engine (behaviour: other kernels, precision and expert routing), and the training engine
before the update (old). pi_theta / pi_behaviour is the product of staleness (theta / old) and
engine mismatch (old / behaviour). Clipping handles the first, `importance_correction` the second;
`kl_estimate` ties theta to a fourth policy, the reference. `top_entropy_mask` selects the tokens
that receive a gradient.
"""

import math
from fractions import Fraction
from typing import Literal

import torch
from torch import Tensor

from drlib.validation import require, require_one_of, require_within

_MAX_LOG_RATIO = 80.0  # exp overflows float32 slightly above; real policies stay below 5
_KL_ESTIMATORS = ("k1", "k2", "k3")
CORRECTION_BOUNDS = {  # published ranges of old / behaviour: TIS, MIS, GLM-5 (3.2), SkyRL
    "truncate": (0.0, 2.0),
    "mask": (0.0, 2.0),
    "icepop": (0.5, 2.0),
    "geometric": (0.99, 1.01),
}


def log_ratio(logp_BT: Tensor, other_logp_BT: Tensor, name: str = "behaviour_logp") -> Tensor:
    """Return log (pi / pi_other) of each token in nats, with the gradient of `logp_BT` alone.

    Raises:
        ValueError: NaN or more than 80 nats, which means that the tokens differ.
    """
    delta_BT = logp_BT - other_logp_BT.detach().to(logp_BT.dtype)
    largest = delta_BT.detach().abs().max().item() if delta_BT.numel() else 0.0
    require(
        largest <= _MAX_LOG_RATIO,
        f"|logp - {name}| reaches {largest:.0f} nats; check that both are "
        "of the same tokens, shifted alike and at the same temperature",
    )
    return delta_BT


def kl_estimate(
    logp_BT: Tensor, reference_logp_BT: Tensor, estimator: Literal["k1", "k2", "k3"] = "k3"
) -> Tensor:
    """Estimate KL(pi || reference) per token from one sample of pi (Schulman 2020).

    With d = log pi - log reference: k1 = d (unbiased, may be negative), k2 = d^2 / 2 (biased, but
    its gradient d grad log pi is the KL's own), k3 = exp(-d) - 1 + d (unbiased, never negative). As
    a loss on samples of pi, k1 has zero expected gradient and k3 that of KL(reference || pi);
    `kl_unbiased` of `LossConfig` corrects this.

    Args:
        logp_BT: float, nats, any shape, of tokens sampled from this policy.
        reference_logp_BT: the same tokens under the reference; no gradient.
        estimator: "k1", "k2" or "k3".

    Returns:
        kl_BT, float, nats.

    Raises:
        ValueError: unknown estimator, or values more than 80 nats apart.

    >>> kl_estimate(torch.tensor([-1.0]), torch.tensor([-2.0]), "k2").item()
    0.5
    """
    require_one_of(estimator, _KL_ESTIMATORS, "kl_estimator")
    delta_BT = log_ratio(logp_BT, reference_logp_BT, "reference_logp")
    if estimator == "k1":
        return delta_BT
    if estimator == "k2":
        return delta_BT.square() / 2
    return torch.expm1(-delta_BT) + delta_BT


@torch.no_grad()
def importance_correction(
    old_logp_BT: Tensor,
    behaviour_logp_BT: Tensor,
    mask_BT: Tensor,
    kind: Literal["truncate", "mask", "icepop", "geometric"],
    *,
    bounds: tuple[float, float] | None = None,
    level: Literal["token", "sequence"] = "token",
) -> Tensor:
    """Return the weight that corrects engine mismatch, from rho = pi_old / pi_behaviour.

    "truncate" (TIS): min(max(rho, low), high). "mask" (MIS): rho up to `high`, 0 beyond; "icepop"
    (GLM-5, section 3.2): rho within [low, high], 0 outside; the two differ only in the published
    low end. "geometric" (SkyRL): 1 if the geometric mean of rho over the sequence is within [low,
    high], else 0 for the whole sequence; it does not re-weight.

    At `level` "sequence", rho is the product over the sequence, the exact weight of its
    probability. Its spread grows with the length, so fixed bounds reject long sequences whatever
    their mismatch per token; the geometric mean has no such bias.

    Args:
        old_logp_BT, behaviour_logp_BT: float, nats, of the same tokens.
        mask_BT: bool.
        bounds: (low, high) of rho; `CORRECTION_BOUNDS[kind]` when None.

    Returns:
        weights_BT, float, no gradient; 0 outside the mask.

    Raises:
        ValueError: unknown kind or level, bounds out of order, values not finite.
    """
    low, high = correction_bounds(kind, bounds)
    require_one_of(level, ("token", "sequence"), "level")
    check_tokens(old_logp_BT, mask_BT, behaviour_logp_BT=behaviour_logp_BT)
    old_BT = mask_values("old_logp_BT", old_logp_BT, mask_BT)
    behaviour_BT = mask_values("behaviour_logp_BT", behaviour_logp_BT, mask_BT)
    delta_BT = log_ratio(old_BT, behaviour_BT)
    if kind == "geometric":
        delta_BT = mean_per_row(delta_BT, mask_BT)
    elif level == "sequence":
        # the product over the sequence
        summed_B1 = delta_BT.sum(dim=1, keepdim=True)
        delta_BT = summed_B1.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).expand_as(delta_BT)
    rho_BT = delta_BT.exp()
    if kind == "truncate":
        return rho_BT.clamp(low, high) * mask_BT
    inside_BT = ((rho_BT >= low) & (rho_BT <= high) & mask_BT).to(rho_BT.dtype)
    return inside_BT if kind == "geometric" else inside_BT * rho_BT


def correction_bounds(kind: str, bounds: tuple[float, float] | None) -> tuple[float, float]:
    """Return (low, high) of a correction, the published ones when None. ValueError: no range."""
    require_one_of(kind, tuple(CORRECTION_BOUNDS), "correction")
    low, high = CORRECTION_BOUNDS[kind] if bounds is None else bounds
    require(
        0 <= low <= 1 <= high < math.inf,
        "correction_bounds must be (low, high) with 0 <= low "
        f"<= 1 <= high, got {bounds}; identical engines have a ratio of 1",
    )
    return low, high


@torch.no_grad()
def top_entropy_mask(
    entropies_BT: Tensor, mask_BT: Tensor, share: float, scope: str = "batch"
) -> Tensor:
    """Select the `share` of the masked tokens with the highest entropy (arXiv 2506.01939, "80/20").

    Exactly ceil(share n) of n tokens, ties to the earlier position (row by row). A quantile
    threshold would keep every tied token, and `torch.quantile` refuses more than 2^24 of them.

    Args:
        entropies_BT: float, nats.
        mask_BT: bool.
        share: in (0, 1], read as the decimal it is written as (0.28 of 25 is 7, not 8).
        scope: "batch" counts n over the arguments (a micro-batch by itself), "sequence" per row.

    Returns:
        bool [B, T], a subset of `mask_BT`.

    Raises:
        ValueError: share out of range, unknown scope, wrong shapes, an entropy not finite.
    """
    require_within(share, "(0, 1]", "share (top_entropy)")
    require_one_of(scope, ("batch", "sequence"), "entropy_scope")
    check_tokens(entropies_BT, mask_BT, name="entropies_BT")
    mask_values("entropies_BT", entropies_BT, mask_BT)
    shape = (1, -1) if scope == "batch" and mask_BT.numel() else mask_BT.shape
    mask_RK = mask_BT.reshape(shape)
    entropies_RK = entropies_BT.reshape(shape).masked_fill(~mask_RK, -torch.inf)
    counts = [math.ceil(Fraction(str(share)) * n) for n in mask_RK.sum(dim=1).tolist()]
    if not any(counts):
        return torch.zeros_like(mask_BT)
    counts_R1 = torch.tensor(counts, device=mask_BT.device)[:, None]
    # smallest selected entropy of each row, and the number of ties with it to select
    top_RJ = entropies_RK.topk(max(counts), dim=1).values
    least_R1 = top_RJ.gather(1, (counts_R1 - 1).clamp(min=0))
    above_RK = entropies_RK > least_R1
    tied_RK = (entropies_RK == least_R1) & mask_RK
    room_R1 = counts_R1 - above_RK.sum(dim=1, keepdim=True)
    # a boolean mask: an integer one would index tokens 0 and 1, as an early public version did
    selected_RK = above_RK | (tied_RK & (tied_RK.cumsum(dim=1) <= room_R1))
    return selected_RK.reshape(mask_BT.shape)


@torch.no_grad()
def weight_metrics(log_weight_BT: Tensor, mask_BT: Tensor) -> dict[str, float]:
    """Return weight_mean, weight_square_mean and ess of importance weights given as logarithms.

    ess = mean^2 / mean of squares is the effective share of the sample (1: equal weights; 1 / n:
    one of n tokens has all the weight). All are 1 for an empty mask.
    """
    weight_K = log_weight_BT[mask_BT].double().exp()
    if not len(weight_K):
        weight_K = torch.ones(1, dtype=torch.float64)
    mean = weight_K.mean().item()
    mean_square = weight_K.square().mean().item()
    return {"weight_mean": mean, "weight_square_mean": mean_square, "ess": mean**2 / mean_square}


@torch.no_grad()
def mismatch_metrics(old_BT: Tensor, behaviour_BT: Tensor, mask_BT: Tensor) -> dict[str, float]:
    """Return the mismatch of rollout engine and trainer.

    `mismatch_kl`: KL(behaviour || old) in nats, by k3 on the behaviour's samples; `mismatch_max`:
    the largest pi_old / pi_behaviour.
    """
    delta_K = log_ratio(old_BT[mask_BT], behaviour_BT[mask_BT]).double()
    delta_K = delta_K if len(delta_K) else delta_K.new_zeros(1)
    kl = kl_estimate(-delta_K, torch.zeros_like(delta_K), "k3").mean().item()
    return {"mismatch_kl": kl, "mismatch_max": delta_K.max().exp().item()}


def mean_per_row(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Repeat each sequence's mean over its masked tokens at all its positions; 0 without any."""
    count_B1 = mask_BT.sum(dim=1, keepdim=True).clamp(min=1)
    mean_B1 = (values_BT * mask_BT).sum(dim=1, keepdim=True) / count_B1
    return mean_B1.expand_as(values_BT)


def mask_values(name: str, values_BT: Tensor, used_BT: Tensor) -> Tensor:
    """Return `values_BT` where used and 0 elsewhere. ValueError: a used value is not finite."""
    values_BT = values_BT.masked_fill(~used_BT, 0.0)  # 0 * NaN would let it into the gradient
    require(bool(values_BT.isfinite().all()), f"{name} is NaN or infinite where the loss uses it")
    return values_BT


def check_tokens(logp_BT: Tensor, mask_BT: Tensor, *, name="logp_BT", **others) -> None:
    """Raise ValueError unless `logp_BT` is float [B, T], `mask_BT` bool, and all shapes are equal.

    others: tensors by name, or None.
    """
    shape = tuple(logp_BT.shape)
    floats = len(shape) == 2 and logp_BT.dtype in (torch.float32, torch.float64)
    require(
        floats,
        f"{name} must be float32 or float64 of shape [B, T], got {logp_BT.dtype} "
        f"{shape}; a ratio of 1.001 is 1 in bfloat16: pass {name}.float()",
    )
    boolean = mask_BT.dtype == torch.bool
    require(boolean, f"mask_BT must be boolean, got {mask_BT.dtype}; pass mask_BT.bool()")
    for other_name, other in {"mask_BT": mask_BT, **others}.items():
        got = shape if other is None else tuple(other.shape)
        require(
            got == shape,
            f"{other_name} has shape {got}, {name} {shape}; they must be equal "
            "(drop the first token of both, or of neither)",
        )


def check_weights(weights_B: Tensor | None, like_BT: Tensor) -> Tensor:
    """Return one weight per row, 1 each when None. ValueError: wrong shape or negative."""
    dtype = like_BT.dtype if like_BT.is_floating_point() else torch.float64
    if weights_B is None:
        return torch.ones(like_BT.shape[0], dtype=dtype, device=like_BT.device)
    got = list(weights_B.shape)
    need = list(like_BT.shape[:1])
    require(got == need, f"weights_B needs one weight per sequence, shape {need}, got {got}")
    usable = bool(((weights_B >= 0) & weights_B.isfinite()).all())
    require(usable, "weights_B must be finite and >= 0; 0 excludes a sequence")
    return weights_B.detach().to(device=like_BT.device, dtype=dtype)
