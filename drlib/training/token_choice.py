"""Which tokens learn: a share of them, those of the highest entropy (80/20 rule, arXiv 2506.01939).

The entropies are those of the policy that sampled the tokens, as the engine recorded them; in the
recipe it is the policy that learns. They are compared over a whole batch, over an update's part of
it (`rl.minibatches`), or over a micro-batch, as the published code does. A batch and an update are
those of all processes, so the choice does not depend on how many there are.

Two controls choose as many tokens in another way: those of the lowest entropy, and any.

Left out: entropies computed afresh before each update of a batch.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from drlib.config import Config
from drlib.rl.divergences import top_entropy_mask
from drlib.training.distributed import Ranks
from drlib.trajectory import Trajectory

if TYPE_CHECKING:
    from drlib.training.learner import Share


def choosing_tokens(
    shares: "Sequence[Share]", scope: str, config: Config, ranks: Ranks
) -> "list[Share]":
    """The shares with the tokens that learn, where `rl.loss.entropy_scope` is `scope`; else as they are.

    ranks: whose tokens are compared, all of them in the scopes "batch" and "mini".
    """
    if config.rl.loss.top_entropy == 1 or config.rl.loss.entropy_scope != scope:
        return list(shares)
    parts = ranks.gather_parts([_scores(share, config) for share in shares])
    flat = [score for part in parts for share in part for score in share]
    before = sum(len(share) for part in parts[: ranks.rank] for share in part)
    chosen = chosen_tokens(flat, config.rl.loss.top_entropy)
    found = []
    for share in shares:
        n = len(share.trajectories)
        found.append(replace(share, learning=_laid_out(share, chosen[before : before + n])))
        before += n
    return found


def learning_tokens(share: "Share", config: Config) -> list[np.ndarray]:
    """The tokens that learn, chosen among this share's alone: bool [T] a trajectory."""
    return _laid_out(share, chosen_tokens(_scores(share, config), config.rl.loss.top_entropy))


def chosen_tokens(scores: Sequence[np.ndarray], share: float) -> list[np.ndarray]:
    """Which of N sequences' scores are among the highest `share` of all: bool, shaped like them.

    Exactly ceil(share n) of n, ties to the earlier one.
    """
    lengths = [len(score) for score in scores]
    if not sum(lengths):
        return [np.zeros(0, bool) for _ in scores]
    flat_1M = torch.from_numpy(np.concatenate(scores))[None]
    mask_1M = top_entropy_mask(flat_1M, torch.ones_like(flat_1M, dtype=torch.bool), share)
    return np.split(mask_1M[0].numpy(), np.cumsum(lengths)[:-1])


def _scores(share: "Share", config: Config) -> list[np.ndarray]:
    """Of each trajectory, one a generated token; none where it is not in the loss."""
    weights = share.weights_N.tolist()
    nothing = np.zeros(0, np.float32)
    return [
        _score(trajectory, config) if weight > 0 else nothing
        for trajectory, weight in zip(share.trajectories, weights)
    ]


def _score(trajectory: Trajectory, config: Config) -> np.ndarray:
    """What is compared: the highest are chosen."""
    entropies = trajectory.entropies[trajectory.generated]
    if config.rl.loss.entropy_tokens == "bottom":
        return -entropies
    if config.rl.loss.entropy_tokens == "random":
        key = hashlib.sha256(f"tokens-{config.seed}-{trajectory.id}".encode()).digest()
        rng = np.random.default_rng(int.from_bytes(key[:8], "little"))
        return rng.random(len(entropies), np.float32)
    return entropies


def _laid_out(share: "Share", chosen: Sequence[np.ndarray]) -> list[np.ndarray]:
    """One bool [T] a trajectory, False on all that it did not generate."""
    found = []
    for trajectory, some in zip(share.trajectories, chosen):
        mask = np.zeros(len(trajectory), bool)
        if len(some):
            mask[trajectory.generated] = some
        found.append(mask)
    return found
