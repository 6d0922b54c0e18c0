"""Batches of one GRPO step: filter, resample, advantages and loss weights.

`prepare_batch` runs no model and draws random numbers from its arguments alone. Both learners take
what it returns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from drlib.config import Config
from drlib.rewards.functions import has_env_fault
from drlib.rl.advantages import ADVANTAGES, share_over_segments
from drlib.rl.filtering import FilterConfig, Pipeline, filter_rollouts
from drlib.rl.resampling import (
    drop_zero_variance_groups,
    replace_zero_variance_groups,
    resample_on_correct,
    truncate_to_multiple,
)
from drlib.rl.staleness import StalenessFilter, repair_groups
from drlib.training.distributed import Ranks
from drlib.training.packed_routes import Routes
from drlib.training.policy_age import Clock
from drlib.training.rollouts import split_all_contexts, split_roles, step_seed
from drlib.trajectory import Trajectory
from drlib.validation import require, require_within

FILTERED = ("overlong", "env_fault", "unjudged", "hallucination")  # reasons of the default filter
LOW_QUALITY = ("format", "no_answer", "duplicate")  # further reasons of rl.filter.pipeline
# Log-probabilities under other policies ("old", "reference"): one array [T] per trajectory.
Recorded = dict[str, list[np.ndarray]]


@dataclass(frozen=True)
class RolloutBatch:
    """N samples of one shard with the inputs of the loss for each."""

    trajectories: list[Trajectory]
    advantages_N: Tensor
    weights_N: Tensor  # loss weights: 0 excludes a sample, 2 counts it twice
    recorded: Recorded = field(default_factory=dict)
    learning: list[np.ndarray] | None = None  # bool [T] each: tokens in the loss; None: all
    routes: Routes | None = None  # experts to replay in the update; None: no routing replay
    teachers: list[Any] | None = None  # model that each sample is distilled from; None: RL

    def __post_init__(self):
        usable = bool(((self.weights_N >= 0) & self.weights_N.isfinite()).all())
        require(usable, "loss weights must be finite and at least 0")

    def of(self, some: list[int]) -> "RolloutBatch":
        """Return the samples with these indices."""
        return RolloutBatch(
            [self.trajectories[i] for i in some],
            self.advantages_N[some],
            self.weights_N[some],
            {name: [values[i] for i in some] for name, values in self.recorded.items()},
            None if self.learning is None else [self.learning[i] for i in some],
            None if self.routes is None else [self.routes[i] for i in some],
            None if self.teachers is None else [self.teachers[i] for i in some],
        )


class PreparedBatch(NamedTuple):
    """The samples of one update and the rollouts that they come from."""

    parts: list[RolloutBatch]  # one per shard of this process
    selected: list[Trajectory]  # rollouts kept by resampling
    metrics: dict[str, float]  # excluded rollouts by reason, summed over ranks


def prepare_batch(
    shards: Sequence[list[Trajectory]], config: Config, step: int, ranks: Ranks, clock: Clock
) -> PreparedBatch:
    """Turn judged rollouts into samples with advantages and loss weights.

    Args:
        shards: trainable rollouts of each shard of this process.
        clock: update counter of the policy, for ages of rollouts.
    """
    # resample oversampled groups (GRPO-RoC)
    shards = [resample_groups(shard, config, step) for shard in shards]
    selected = [t for shard in shards for t in shard]
    # compare rewards over contexts instead of rollouts (WebResearcher), or role by role
    if config.rl.advantage.baseline == "samples":
        shards = [split_all_contexts(shard)[0] for shard in shards]
    elif config.rl.advantage.baseline == "roles":
        shards = [[part for t in shard for part in split_roles(t)] for shard in shards]
    # filter, compute advantages and loss weights; group statistics need all shards
    everything = [t for shard in shards for t in shard]
    advantages_N, weights_N, report = compute_advantages(everything, config, ranks, clock)
    # split each rollout into its contexts, which share its advantage and weight
    parts, before = [], 0
    for shard in shards:
        mine = slice(before, before + len(shard))
        before += len(shard)
        samples, owners = split_all_contexts(shard)
        weights_S = share_over_segments(weights_N[mine], owners)
        if config.rl.advantage.context_weight == "shared":
            weights_S = weights_S / torch.tensor([t.metadata.get("same_role", 1) for t in samples])
        parts.append(
            RolloutBatch(samples, share_over_segments(advantages_N[mine], owners), weights_S)
        )
    names = (*FILTERED, *LOW_QUALITY) if config.rl.filter.pipeline else FILTERED
    reasons = {f"filtered_{name}": float(report["reasons"].get(name, 0)) for name in names}
    return PreparedBatch(parts, selected, ranks.sum(reasons | report["lost"]))


def truncate_batch(parts: Sequence[RolloutBatch], config: Config, step: int) -> list[RolloutBatch]:
    """Drop samples at random until each part divides by rl.advantage.sample_multiple."""
    return [
        part.of(_kept(part.trajectories, config.rl.advantage.sample_multiple, config.seed, step))
        for part in parts
    ]


def compute_advantages(
    trajectories: list[Trajectory],
    config: Config,
    ranks: Ranks | None = None,
    clock: Clock | None = None,
) -> tuple[torch.Tensor, torch.Tensor, dict]:
    """Return (advantages_N, loss weights_N, report); by default leave-one-out after the filter.

    The estimator gets the rewards of all ranks, because `batch_normalized` divides by their
    standard deviation.

    Args:
        clock: update counter of the trained policy; None before its first update.
    """
    ranks = ranks or Ranks()
    weights_N, in_baseline_N, report = filter_rollouts(trajectories, build_filter(config))
    weights_N, in_baseline_N, report["lost"] = exclude_stale_rollouts(
        trajectories, weights_N, in_baseline_N, config, clock or Clock()
    )
    own = [
        (0.0 if t.reward is None else t.reward, _compared_group(t, config), bool(valid))
        for t, valid in zip(trajectories, in_baseline_N)
    ]
    parts = ranks.gather_parts(own)
    before = sum(len(part) for part in parts[: ranks.rank])
    mine = slice(before, before + len(own))
    rewards, names, valid = zip(*(row for part in parts for row in part))
    rewards_N, valid_N = torch.tensor(rewards), torch.tensor(valid)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    groups_N = torch.tensor([numbers[name] for name in names])
    advantages_N = ADVANTAGES[config.rl.advantage.estimator](rewards_N, groups_N, valid_N)[mine]
    weights_N = torch.as_tensor(weights_N, dtype=torch.float32)
    if config.rl.filter.drop_equal:
        weights_N = weights_N * drop_zero_variance_groups(rewards_N, groups_N, valid_N)[mine]
    if config.rl.sampling.duplicate:
        # a copied group is stored once, with twice the loss weight
        generator = torch.Generator().manual_seed(step_seed(f"{config.seed}-{names[0]}", 0))
        copies_M, _ = replace_zero_variance_groups(
            rewards_N, groups_N, valid_N, generator=generator
        )
        weights_N = weights_N * torch.bincount(copies_M, minlength=len(names))[mine]
    return advantages_N, weights_N, report


def _compared_group(trajectory: Trajectory, config: Config) -> str:
    """Return the name of the rollouts, contexts or parts whose rewards are compared."""
    if config.rl.advantage.baseline == "roles":
        return f"{trajectory.group_id}/{trajectory.metadata.get('role', '')}"
    return trajectory.group_id


def resample_groups(trajectories: list[Trajectory], config: Config, step: int) -> list[Trajectory]:
    """Return all rollouts, or rl.group of each oversampled group (GRPO-RoC, arXiv 2508.20722)."""
    if config.rl.sampling.resample == "none":
        return trajectories
    selected = []
    for name in dict.fromkeys(t.group_id for t in trajectories):
        group = [t for t in trajectories if t.group_id == name]
        generator = torch.Generator().manual_seed(step_seed(f"{config.seed}-{name}", step))
        kept = resample_on_correct(
            group, config.rl.group, config.rl.sampling.resample, generator=generator
        )
        selected += [group[i] for i in kept]
    return selected


def _kept(samples: list[Trajectory], multiple: int, seed: int, step: int) -> list[int]:
    """Return indices of a random subset of the samples, as many as the largest multiple."""
    key = step_seed(f"{seed}-{samples[0].id}-fewest", step) if samples else 0
    generator = torch.Generator().manual_seed(key)
    return truncate_to_multiple(len(samples), multiple, generator=generator).tolist()


def minibatch_indices(batch: RolloutBatch, part: int, parts: int) -> list[int]:
    """Return indices of the samples whose groups belong to mini-batch `part` of `parts`."""
    names = list(dict.fromkeys(t.group_id for t in batch.trajectories))
    selected = set(names[part::parts])
    return [i for i, t in enumerate(batch.trajectories) if t.group_id in selected]


def build_filter(config: Config) -> FilterConfig:
    """Build the rollout filter from rl.filter."""
    pipeline = (
        Pipeline(low_weight=config.rl.filter.low_weight) if config.rl.filter.pipeline else None
    )
    return FilterConfig(
        config.rl.filter.overlong, hallucination=config.rl.filter.hallucination, pipeline=pipeline
    )


def exclude_stale_rollouts(
    trajectories: Sequence[Trajectory],
    weights_N: Tensor,
    in_baseline_N: Tensor,
    config: Config,
    clock: Clock,
) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Exclude rollouts older than rl.filter.max_age and repair groups (GLM-5, arXiv 2602.15763).

    A group that lost rollouts is filled with copies (weight 2) if more than half remain, and is
    excluded otherwise. The baseline uses distinct rollouts: a copy would be its own sibling.

    Args:
        weights_N, in_baseline_N: float and bool, as returned by `filter_rollouts`.

    Returns:
        The changed weights_N and in_baseline_N, and metrics: filtered_stale (rollouts),
        repaired_groups (filled with copies), lost_groups (excluded).
    """
    columns = {}
    if config.rl.filter.max_age > 0:
        young_N, columns["filtered_stale"] = _young(trajectories, config.rl.filter.max_age, clock)
        weights_N = weights_N * young_N
        in_baseline_N = in_baseline_N & young_N
    if config.rl.filter.repair_groups:
        names = [trajectory.group_id for trajectory in trajectories]
        times_N, counts = _repaired(names, in_baseline_N)
        weights_N = weights_N * times_N
        in_baseline_N = in_baseline_N & (times_N > 0)
        columns |= counts
    return weights_N, in_baseline_N, columns


def _young(trajectories: Sequence[Trajectory], max_age: int, clock: Clock) -> tuple[Tensor, float]:
    """Return (bool_N: at most `max_age` updates old, number of older rollouts).

    Rollouts with environment faults are counted under that reason only.
    """
    stamped = [clock.stamped(trajectory) for trajectory in trajectories]
    young = StalenessFilter(max_age).update(stamped, clock.now)
    stale = [not keep and not has_env_fault(t) for t, keep in zip(trajectories, young)]
    return torch.tensor(young, dtype=torch.bool), float(sum(stale))


def _repaired(names: Sequence[str], valid_N: Tensor) -> tuple[Tensor, dict[str, float]]:
    """Return (copies of each rollout in its repaired group, counts of repaired and lost groups).

    names: group of each rollout, excluded rollouts included: they define the group size.
    """
    times_N = torch.zeros(len(names))
    counts = {"repaired_groups": 0.0, "lost_groups": 0.0}
    for name in dict.fromkeys(names):
        mine = [i for i, other in enumerate(names) if other == name]
        valid = [bool(valid_N[i]) for i in mine]
        kept = repair_groups([name] * len(mine), valid, len(mine))
        for at in kept:
            times_N[mine[at]] += 1
        counts["lost_groups"] += not kept
        counts["repaired_groups"] += bool(kept) and not all(valid)
    return times_N, counts


def check_batch(config: Config) -> None:
    """Raise ValueError for invalid filter and advantage settings."""
    require(
        config.rl.advantage.sample_multiple >= 1, "rl.advantage.sample_multiple must be at least 1"
    )
    require_within(config.rl.filter.low_weight, "(0, 1]", "rl.filter.low_weight")
    copies = config.rl.sampling.duplicate or config.rl.filter.repair_groups
    require(
        config.rl.advantage.baseline != "roles" or not copies,
        "rl.advantage.baseline=roles compares parts of rollouts, but rl.sampling.duplicate and "
        "rl.filter.repair_groups copy whole ones: set rl.advantage.baseline=trajectories",
    )
