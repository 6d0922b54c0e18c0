"""Routing statistics of a mixture of experts: load, specialisation, router entropy, agreement.

All functions except `compute_router_entropies` use `Trajectory.routed_experts`, which
`rescoring.rescore(model, trajectories, experts=True)` records. A token counts once for each of its
k experts; observed tokens count too.

Specialisation is the mutual information of the segment and the expert of a token. Its null
distribution uses circular shifts of the segments within each trajectory, which keep run lengths.
Limitations: the null does not control for vocabulary (a segment with its own words specialises
experts too); co-activation of experts and routers without softmax are not supported.
"""

from collections.abc import Iterable

import numpy as np
import torch

from drlib.models.routing_replay import agreement, router_entropy
from drlib.trajectory import NO_RECORD, Segment, Trajectory
from drlib.validation import require


def compute_load(trajectories: Iterable[Trajectory], experts: int) -> np.ndarray:
    """Compute the share of tokens routed to each expert, by segment and layer.

    Args:
        trajectories: trajectories with `routed_experts`.
        experts: E, number of experts.

    Returns:
        Shares [S, L, E] that sum to 1 over E; S as in `Segment`. NaN for a segment without tokens.

    Raises:
        ValueError: no trajectories, no recorded experts, or an expert index of at least `experts`.

    """
    counts_SLE = sum(_count_choices(t, t.segments, experts) for t in trajectories)
    require(np.ndim(counts_SLE) == 3, "no trajectories to analyse")
    with np.errstate(invalid="ignore"):
        return counts_SLE / counts_SLE.sum(axis=2, keepdims=True)


def compute_specialisation(
    trajectories: Iterable[Trajectory], experts: int, *, draws: int = 200, seed: int = 0
) -> dict[str, np.ndarray]:
    """Compute the mutual information of expert and segment, per layer.

    Args:
        trajectories: trajectories with `routed_experts`.
        experts: E, number of experts.
        draws: circular shifts of the null distribution.
        seed: seed of the shifts.

    Returns:
        Arrays [L]: "nats" (mutual information), "share" (of the entropy of segments; 1 if the
        expert determines the segment), "null_mean" and "null_high" (mean and 95% quantile of the
        share under circular shifts).

    Raises:
        ValueError: no trajectories, no recorded experts, an expert index of at least `experts`,
            or all tokens in one segment.

    """
    rng = np.random.default_rng(seed)
    counts_DSLE = 0  # D: original segments, then the draws
    for t in trajectories:
        shifted = [np.roll(t.segments, rng.integers(len(t))) for _ in range(draws)]
        orders = [t.segments, *shifted]
        counts_DSLE = counts_DSLE + np.stack(
            [_count_choices(t, order, experts) for order in orders]
        )
    require(np.ndim(counts_DSLE) == 4, "no trajectories to analyse")
    # mutual information: H(segment) + H(expert) - H(both)
    joint_DSLE = counts_DSLE / counts_DSLE.sum(axis=(1, 3), keepdims=True)
    joint_DLSE = np.moveaxis(joint_DSLE, 1, 2)
    segment_DL = _compute_entropy(joint_DLSE.sum(axis=3))
    expert_DL = _compute_entropy(joint_DLSE.sum(axis=2))
    both_DL = _compute_entropy(joint_DLSE.reshape(*segment_DL.shape, -1))
    require(
        segment_DL.min() > 0, "all tokens are in one segment; specialisation needs at least two"
    )
    nats_DL = segment_DL + expert_DL - both_DL
    share_DL = nats_DL / segment_DL
    return {
        "nats": nats_DL[0],
        "share": share_DL[0],
        "null_mean": share_DL[1:].mean(axis=0),
        "null_high": np.quantile(share_DL[1:], 0.95, axis=0),
    }


def _count_choices(trajectory: Trajectory, segments_T: np.ndarray, experts: int) -> np.ndarray:
    """Count routed tokens by segment, layer and expert: [S, L, E]."""
    routes_TLK = _get_routes(trajectory)
    known_T = routes_TLK[:, 0, 0] >= 0
    routes_TLK, segments_T = routes_TLK[known_T], segments_T[known_T]
    highest = routes_TLK.max(initial=0)
    require(highest < experts, f"trajectory {trajectory.id} has expert {highest} of {experts}")
    # count with flat indices of (segment, layer, expert)
    layers = routes_TLK.shape[1]
    shape = (len(Segment), layers, experts)
    segment_T11 = segments_T[:, None, None].astype(int)
    layer_L1 = np.arange(layers)[:, None]
    choices = np.broadcast_arrays(segment_T11, layer_L1, routes_TLK)
    cells = np.ravel_multi_index(choices, shape).ravel()
    return np.bincount(cells, minlength=np.prod(shape)).reshape(shape)


def _get_routes(trajectory: Trajectory) -> np.ndarray:
    """Return the recorded experts [T, L, k]; -1 for tokens without a record."""
    require(
        trajectory.routed_experts is not None,
        f"trajectory {trajectory.id} has no record of its experts; "
        "run rescoring.rescore(model, ..., experts=True)",
    )
    routes_TLK = trajectory.routed_experts.astype(np.int64)
    return np.where(routes_TLK == NO_RECORD, -1, routes_TLK)


def _compute_entropy(p: np.ndarray) -> np.ndarray:
    """Return the entropy of distributions along the last axis, nats."""
    return -(p * np.log(np.where(p > 0, p, 1))).sum(axis=-1)


@torch.no_grad()
def compute_router_entropies(model, trajectories: Iterable[Trajectory]) -> np.ndarray:
    """Compute the mean entropy of the router distributions, by segment and layer.

    Args:
        model: Hugging Face mixture-of-experts model.
        trajectories: trajectories; each is one forward pass.

    Returns:
        Nats [S, L], at most log E; NaN for a segment without tokens.

    Raises:
        ValueError: no tokens, or a model without routers.

    """
    totals = dict.fromkeys(Segment, 0.0)  # [L], sums of token entropies
    tokens = dict.fromkeys(Segment, 0)
    for t in trajectories:
        ids_1T = torch.from_numpy(t.token_ids).long().to(model.device)[None]
        out = model.get_decoder()(input_ids=ids_1T, use_cache=False, output_router_logits=True)
        require(bool(out.get("router_logits")), f"{type(model).__name__} has no routers")
        for segment in np.unique(t.segments):
            mask_T = torch.from_numpy(t.segments == segment).to(model.device)
            mean_L = router_entropy([logits_TE[mask_T] for logits_TE in out.router_logits])
            count = int(mask_T.sum())
            totals[segment] = totals[segment] + mean_L.double().cpu().numpy() * count
            tokens[segment] += count
    require(any(tokens.values()), "no trajectories to analyse")
    means = [totals[s] / tokens[s] if tokens[s] else np.nan for s in Segment]
    return np.stack(np.broadcast_arrays(*means))


def compute_agreement(a: Iterable[Trajectory], b: Iterable[Trajectory]) -> np.ndarray:
    """Compute the share of tokens that two checkpoints route to the same set of experts: [L].

    Args:
        a: trajectories rescored with one checkpoint.
        b: the same trajectories rescored with the other checkpoint.

    Raises:
        ValueError: different ids, tokens, shapes or numbers of trajectories, or no recorded
            experts.

    """
    same_L = np.zeros((), np.float32)  # tokens with the same experts, by layer
    tokens = 0
    for one, other in zip(a, b, strict=True):
        require(
            one.id == other.id and np.array_equal(one.token_ids, other.token_ids),
            f"trajectories {one.id} and {other.id} have different tokens; rescore one file with "
            "both checkpoints",
        )
        one_LTK = torch.from_numpy(_get_routes(one)).transpose(0, 1)
        other_LTK = torch.from_numpy(_get_routes(other)).transpose(0, 1)
        known = int(((one_LTK[0, :, 0] >= 0) & (other_LTK[0, :, 0] >= 0)).sum())
        if known:
            same_L = same_L + agreement(one_LTK, other_LTK).numpy() * known
        tokens += known
    require(tokens > 0, "no trajectories to compare")
    return same_L / tokens
