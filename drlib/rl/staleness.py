"""Stale samples: age filters, group repair, and prioritised replay with importance weights.

A long rollout may start with an older policy than the one that it trains. `StalenessFilter` and
`repair_groups` are GLM-5's rules for asynchronous rollouts (arXiv 2602.15763, section 4.1): drop
rollouts that started more than tau versions ago, drop environment crashes, and pad a group with
copies while more than half of it is valid. `ReplayBuffer` and `replay_weights` implement the
replay, temporal consistency check and re-weighting that Tongyi DeepResearch's architecture page
draws without a formula (its report has none; strictly on-policy training needs none). Groups are
drawn as in prioritised experience replay (Schaul et al., arXiv 1511.05952, section 3): in
proportion to a priority, with weights that correct for it.

Ages are counted in the units of the rollouts' `versions`; `drlib.training.policy_age` counts
updates. The token-level correction is in `policy_loss`.
"""

import math
import random
from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from drlib.rewards.functions import has_env_fault
from drlib.rl.state_machine import StateMachine, initial_state
from drlib.trajectory import Trajectory
from drlib.validation import require, require_within

Age = Annotated[int, "[0, inf)"]
Exponent = Annotated[float, "[0, 1]"]


def age(trajectory: Trajectory, now: int) -> int:
    """Return the policy versions between the first sampled token and `now`.

    Raises:
        ValueError: the trajectory is newer than `now`.
    """
    sampled = trajectory.versions[trajectory.generated]
    first = int(sampled.min()) if len(sampled) else trajectory.policy_version
    require(
        first <= now,
        f"trajectory {trajectory.id} is of version {first}, newer than the policy ({now})",
    )
    return now - first


def rejection_reason(
    trajectory: Trajectory, now: int, max_age: int, worlds: Collection[str] | None
) -> str | None:
    """Return the reason not to train on it: "env_fault", "stale", "world" (None: any), or None."""
    if has_env_fault(trajectory):
        return "env_fault"
    if age(trajectory, now) > max_age:
        return "stale"
    return "world" if worlds is not None and trajectory.world_version not in worlds else None


@dataclass(frozen=True)
class StalenessFilter(StateMachine):
    """Drops rollouts older than `max_age` versions (tau; 0: strictly on-policy; None: off)."""

    max_age: Age | None = None
    state: dict = initial_state()

    def update(
        self, trajectories: Sequence[Trajectory], now: int, worlds: Collection[str] | None = None
    ) -> list[bool]:
        """Return True for each trajectory that may train version `now`; see `rejection_reason`."""
        if self.max_age is None:
            return [True] * len(trajectories)
        return [rejection_reason(t, now, self.max_age, worlds) is None for t in trajectories]


def admission_capacity(
    concurrency: int, max_lag: int, version: int, batch: int, accepted: int, running: int
) -> int:
    """Return the number of groups that may start now (AReaL, arXiv 2505.24298, section 5.1, eq. 3).

    Groups are trained `batch` at a time, so the group that starts as number n is trained by update
    n // batch, at the earliest. It may start if that update is at most `max_lag` after `version`.

    Args:
        concurrency: groups that may run at once.
        max_lag: largest age of a trained group, in updates.
        version: updates so far.
        accepted: groups finished so far, trained ones included.
        running: groups in progress.

    >>> admission_capacity(concurrency=8, max_lag=1, version=0, batch=4, accepted=2, running=1)
    5
    """
    return min(concurrency - running, (max_lag + version + 1) * batch - accepted - running)


def repair_groups(groups: Sequence[Hashable], valid: Sequence[bool], size: int) -> list[int]:
    """Restore groups of `size` (GLM-5, 4.1): pad with copies if more than half is valid, else drop.

    For the baseline use the distinct valid rollouts: GLM-5 takes the mean of the padded group,
    where leave-one-out would keep the copy of a sample in its own baseline.

    Args:
        groups: group of each of N samples; lost samples may be absent.
        valid: True if the sample may train.
        size: rollouts per group.

    Returns:
        Indices of the samples to train on, group by group, copies last.

    Raises:
        ValueError: a group has more than `size` samples, or the lengths differ.

    >>> repair_groups(["a", "a", "a", "b", "b", "b"], [True, True, False, True, False, False], 3)
    [0, 1, 0]
    """
    require(len(groups) == len(valid), f"{len(groups)} groups for {len(valid)} samples")
    indices = []
    for name, n in Counter(groups).items():
        require(n <= size, f"a group has {n} samples, size is {size}")
        members = [i for i, group in enumerate(groups) if group == name and valid[i]]
        if 2 * len(members) > size:
            indices += (members + members)[:size]
    return indices


@dataclass(frozen=True)
class TrainedGroup:
    """Rollouts of one group with the advantage and loss weight (> 0) that each was trained with.

    Raises:
        ValueError: rollouts of several groups, lists of different lengths, or only zero advantages.
    """

    rollouts: list[Trajectory]
    advantages: list[float]
    weights: list[float]

    def __post_init__(self):
        names = {trajectory.group_id for trajectory in self.rollouts}
        require(len(names) == 1, f"pass rollouts of one group, got those of {sorted(names)}")
        lengths = {len(self.rollouts), len(self.advantages), len(self.weights)}
        require(len(lengths) == 1, "pass one advantage and one weight per rollout")
        require(
            self.priority > 0, f"group {names.pop()} has only advantages of 0: nothing to learn"
        )

    @property
    def priority(self) -> float:
        """Mean |advantage|, in place of the paper's temporal-difference error."""
        return sum(map(abs, self.advantages)) / len(self.advantages)


@dataclass(frozen=True)
class ReplayBuffer(StateMachine):
    """Groups of rollouts to train on again, until they are more than `max_age` versions old.

    Groups are drawn as a whole, because a rollout's baseline is computed over them, and only if
    every rollout passes `rejection_reason` (temporal consistency). The defaults are those of the
    paper's proportional variant, whose beta then grows to 1 over a run.

    Args:
        max_age: versions.
        alpha: exponent of the priority, 0: uniform.
        beta: exponent of the importance weight, 1: full correction.
    """

    max_age: Age = 1
    alpha: Exponent = 0.6
    beta: Exponent = 0.4
    state: dict = initial_state(groups=[])

    def add(self, group: TrainedGroup) -> None:
        """Add a trained group."""
        self.state["groups"].append(group)

    def draw(
        self, n: int, now: int, rng: random.Random, *, worlds: Collection[str] | None
    ) -> list[tuple[TrainedGroup, float]]:
        """Draw `n` groups with their importance weights; groups too old for `now` are removed.

        Each draw takes group i of N with probability P(i) = p_i^alpha / sum of p^alpha, so a group
        may be drawn twice; there are at most as many draws as eligible groups. A weight is (N
        P(i))^-beta over
        the largest in the buffer: 1 for the least probable group and smaller for all others
        (section 3.4, algorithm 1).

        Args:
            now: version of the policy in training.
            worlds: world versions that are still valid; None: all.
        """
        recent = []
        eligible = []
        for group in self.state["groups"]:
            reasons = {rejection_reason(t, now, self.max_age, worlds) for t in group.rollouts}
            if "stale" not in reasons:
                recent.append(group)
            if reasons == {None}:
                eligible.append(group)
        self.state["groups"] = recent
        if not eligible:
            return []
        chances = [group.priority**self.alpha for group in eligible]
        drawn = rng.choices(range(len(eligible)), chances, k=min(n, len(eligible)))
        # N and the sum cancel in the ratio to the largest weight
        return [(eligible[i], (min(chances) / chances[i]) ** self.beta) for i in drawn]


def replay_weights(
    ages_N: Tensor, log_ratio_N: Tensor, *, decay: float = 0.9, cap: float = 2.0
) -> Tensor:
    """Return loss weights min(cap, exp(log_ratio)) * decay^age, without gradient.

    A rollout of the current policy has weight 1. `policy_loss` normalises by their sum.

    Args:
        ages_N: versions, see `age`.
        log_ratio_N: mean over generated tokens of the current policy's minus the sampling policy's
            log-probability, nats (a mean, so there is no length bias).

    Returns:
        weights_N, float >= 0.

    Raises:
        ValueError: shapes differ, a negative age, a ratio not finite, or decay or cap out of range.
    """
    ages = list(ages_N.shape)
    ratios = list(log_ratio_N.shape)
    require(
        len(ages) == 1 and ages == ratios,
        f"pass one age and one ratio per rollout, got {ages} and {ratios}",
    )
    require_within(decay, "(0, 1]", "decay")
    require_within(cap, "(0, inf)", "cap")
    require(bool((ages_N >= 0).all()), "negative age: count versions from the first one")
    require(bool(log_ratio_N.isfinite().all()), "log_ratio_N is not finite: drop these rollouts")
    ratio_N = log_ratio_N.detach().clamp(max=math.log(cap)).exp()
    return ratio_N * decay ** ages_N.to(ratio_N.dtype)
