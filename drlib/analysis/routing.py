"""Routing statistics of a mixture of experts: load, specialisation, entropy, change.

All but `router_entropies` read `Trajectory.routed_experts`, which `rescoring.rescore(model,
trajectories, experts=True)` fills. A token counts once for each of its k experts, observations too.

Specialisation is the mutual information of a token's segment and its expert. Finitely many tokens
have some by chance, so a null stands beside it: each trajectory's segments turned round it, which
keeps the runs that segments and experts come in. Left out: a null that keeps words in place (a
segment that has words of its own specialises experts too), experts chosen together, routers without
a softmax.
"""

from collections.abc import Iterable

import numpy as np
import torch

from drlib.models.routing_replay import agreement, router_entropy
from drlib.trajectory import NO_RECORD, Segment, Trajectory
from drlib.validation import require


def compute_load(trajectories: Iterable[Trajectory], experts: int) -> np.ndarray:
    """Share of a segment's choices that each expert got: [S, L, E], rows sum to 1.

    S as in `Segment`; NaN for one without tokens. ValueError: no trajectory or no record of its
    experts, or one beyond `experts`.
    """
    counts_SLE = sum(_count_choices(t, t.segments, experts) for t in trajectories)
    require(np.ndim(counts_SLE) == 3, "no trajectories to analyse")
    with np.errstate(invalid="ignore"):
        return counts_SLE / counts_SLE.sum(axis=2, keepdims=True)


def compute_specialisation(
    trajectories: Iterable[Trajectory], experts: int, *, draws: int = 200, seed: int = 0
) -> dict[str, np.ndarray]:
    """Measure how well an expert predicts a token's segment, per layer: arrays [L] by name.

    "nats": mutual information. "share": of the segments' entropy; at 1 the expert gives the segment
    away. "null_mean", "null_high": mean and 95% quantile of the share with turned segments.
    ValueError: no trajectory or no record of its experts, an expert beyond `experts`, or tokens
    that are all of one segment.
    """
    rng = np.random.default_rng(seed)
    counts_DSLE = 0  # D: segments as they are, then the draws
    for t in trajectories:
        turned = [np.roll(t.segments, rng.integers(len(t))) for _ in range(draws)]
        orders = [t.segments, *turned]
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
    require(segment_DL.min() > 0, "all tokens are of one segment: nothing to tell apart")
    nats_DL = segment_DL + expert_DL - both_DL
    share_DL = nats_DL / segment_DL
    return {
        "nats": nats_DL[0],
        "share": share_DL[0],
        "null_mean": share_DL[1:].mean(axis=0),
        "null_high": np.quantile(share_DL[1:], 0.95, axis=0),
    }


def _count_choices(trajectory: Trajectory, segments_T: np.ndarray, experts: int) -> np.ndarray:
    """Choices by segment, layer and expert: [S, L, E]."""
    routes_TLK = _get_routes(trajectory)
    known_T = routes_TLK[:, 0, 0] >= 0
    routes_TLK, segments_T = routes_TLK[known_T], segments_T[known_T]
    highest = routes_TLK.max(initial=0)
    require(highest < experts, f"trajectory {trajectory.id} names expert {highest} of {experts}")
    # one cell for each segment, layer and expert; each choice falls into one
    layers = routes_TLK.shape[1]
    shape = (len(Segment), layers, experts)
    segment_T11 = segments_T[:, None, None].astype(int)
    layer_L1 = np.arange(layers)[:, None]
    choices = np.broadcast_arrays(segment_T11, layer_L1, routes_TLK)
    cells = np.ravel_multi_index(choices, shape).ravel()
    return np.bincount(cells, minlength=np.prod(shape)).reshape(shape)


def _get_routes(trajectory: Trajectory) -> np.ndarray:
    """The record [T, L, k], -1 for tokens that nothing has read."""
    require(
        trajectory.routed_experts is not None,
        f"trajectory {trajectory.id} has no record of "
        "its experts; fill it with rescoring.rescore(model, ..., experts=True)",
    )
    routes_TLK = trajectory.routed_experts.astype(np.int64)
    return np.where(routes_TLK == NO_RECORD, -1, routes_TLK)


def _compute_entropy(p: np.ndarray) -> np.ndarray:
    """Return the entropy of distributions along the last axis, nats."""
    return -(p * np.log(np.where(p > 0, p, 1))).sum(axis=-1)


@torch.no_grad()
def compute_router_entropies(model, trajectories: Iterable[Trajectory]) -> np.ndarray:
    """Mean entropy of the routers' distributions by segment and layer: [S, L], nats.

    log E where a router is undecided; NaN for a segment without tokens. One trajectory a forward
    pass. ValueError: no tokens, or a model without routers.
    """
    totals = dict.fromkeys(Segment, 0.0)  # [L], of the tokens' entropies
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
    """Share of the tokens that two checkpoints send to the same set of experts: [L].

    a, b: the same trajectories after `rescore` with either. ValueError: other ids, tokens, shapes
    or numbers of trajectories, or no records.
    """
    same_L = 0.0  # tokens that both send alike, by layer
    tokens = 0
    for one, other in zip(a, b, strict=True):
        require(
            one.id == other.id and np.array_equal(one.token_ids, other.token_ids),
            f"trajectories {one.id} and {other.id} are not the same tokens; rescore one file "
            "with both checkpoints",
        )
        one_LTK = torch.from_numpy(_get_routes(one)).transpose(0, 1)
        other_LTK = torch.from_numpy(_get_routes(other)).transpose(0, 1)
        known = int(((one_LTK[0, :, 0] >= 0) & (other_LTK[0, :, 0] >= 0)).sum())
        if known:
            same_L = same_L + agreement(one_LTK, other_LTK).numpy() * known
        tokens += known
    require(tokens > 0, "no trajectories to compare")
    return same_L / tokens
