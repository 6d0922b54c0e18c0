"""Samples of older policies: which may still train, what fills their places, how much they count.

A rollout that took long was begun by an older policy than the one it trains. `StalenessFilter` and
`repair_groups` are GLM-5's rules for asynchronous rollouts (arXiv 2602.15763, section 4.1): drop
what began more than tau versions ago, drop crashes of the environment, and refill a group with
copies as long as more than half of it is left. `ReplayBuffer` and `replay_weights` are the
replay, temporal consistency check and re-weighting that Tongyi DeepResearch's architecture page
draws without a formula (its report has none of them; strictly on-policy training needs none).
Which groups come back is decided as in prioritised experience replay (Schaul et al., arXiv
1511.05952, section 3): in proportion to a priority, and what is drawn more often counts less.

Ages are counted in whatever the `versions` of the rollouts are; `drlib.training.staleness` counts
updates. Left out: queues and partial rollouts (the engine's), priorities that change with what is
learned (a group's rewards stay), the token-level correction (`policy_loss` has it). `StateMachine` is
the base of `drlib.rl.stability` and of the curricula as well.
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
    """Policy versions between its first sampled token and `now`; ValueError if from the future."""
    sampled = trajectory.versions[trajectory.generated]
    first = int(sampled.min()) if len(sampled) else trajectory.policy_version
    require(first <= now, f"trajectory {trajectory.id} is of version {first}, the policy of {now}")
    return now - first


def refusal(
    trajectory: Trajectory, now: int, max_age: int, worlds: Collection[str] | None
) -> str | None:
    """Why it may not train: "env_fault", "stale", "world" (of none of `worlds`; None: any)."""
    if has_env_fault(trajectory):
        return "env_fault"
    if age(trajectory, now) > max_age:
        return "stale"
    return "world" if worlds is not None and trajectory.world_version not in worlds else None


@dataclass(frozen=True)
class StalenessFilter(StateMachine):
    """Drops what is more than `max_age` versions old (tau; 0: strictly on-policy; None: off)."""

    max_age: Age | None = None
    state: dict = initial_state()

    def update(
        self, trajectories: Sequence[Trajectory], now: int, worlds: Collection[str] | None = None
    ) -> list[bool]:
        """Whether each may train the policy of version `now` (see `refusal` and `age`)."""
        if self.max_age is None:
            return [True] * len(trajectories)
        return [refusal(t, now, self.max_age, worlds) is None for t in trajectories]


def repair_groups(groups: Sequence[Hashable], valid: Sequence[bool], size: int) -> list[int]:
    """Whole groups of `size` again (GLM-5, 4.1): more than half valid: pad with copies of the
    valid ones, in turn; otherwise drop the group.

    groups: of each of N samples; those lost on the way need not be among them. valid: whether it
    may train. Returns the indices of those that train, group after group, copies last. Take the
    baseline over the distinct valid ones: GLM-5's is the mean of the filled group, and over that
    leave-one-out would leave the copy of a sample in its own baseline.

    ValueError: a group has more than `size` samples, or the lengths differ.
    """
    require(len(groups) == len(valid), f"{len(groups)} groups for {len(valid)} samples")
    indices = []
    for name, n in Counter(groups).items():
        require(n <= size, f"a group has {n} samples, size is {size}")
        mine = [i for i, group in enumerate(groups) if group == name and valid[i]]
        if 2 * len(mine) > size:
            indices += (mine + mine)[:size]
    return indices


@dataclass(frozen=True)
class TrainedGroup:
    """The rollouts of one group, and what each was trained with: its advantage, and its weight in
    the loss (> 0).

    ValueError: rollouts of several groups, lists of different lengths, or no advantage but 0, from
    which nothing could be learned.
    """

    rollouts: list[Trajectory]
    advantages: list[float]
    weights: list[float]

    def __post_init__(self):
        names = {trajectory.group_id for trajectory in self.rollouts}
        require(len(names) == 1, f"rollouts of one group are needed, got those of {sorted(names)}")
        lengths = {len(self.rollouts), len(self.advantages), len(self.weights)}
        require(len(lengths) == 1, "a rollout has one advantage and one weight")
        require(self.priority > 0, f"group {names.pop()} is dead: all of its advantages are 0")

    @property
    def priority(self) -> float:
        """The mean |advantage|: in the place of the temporal-difference error of the paper."""
        return sum(map(abs, self.advantages)) / len(self.advantages)


@dataclass(frozen=True)
class ReplayBuffer(StateMachine):
    """Groups of rollouts to train on again, until they are more than `max_age` versions old.

    Whole groups, as a rollout's baseline is made of those sampled with it. Only groups of which
    every rollout passes `refusal` are drawn (temporal consistency). alpha: how much the priority
    decides, 0 not at all. beta: how much of that the weights take back, 1 all of it. The defaults
    are the paper's proportional variant's, whose beta then grows to 1 over a run.
    """

    max_age: Age = 1
    alpha: Exponent = 0.6
    beta: Exponent = 0.4
    state: dict = initial_state(groups=[])

    def add(self, group: TrainedGroup) -> None:
        self.state["groups"].append(group)

    def draw(
        self, n: int, now: int, rng: random.Random, *, worlds: Collection[str] | None
    ) -> list[tuple[TrainedGroup, float]]:
        """`n` groups and their importance weights; what is too old for `now` is forgotten.

        Each draw takes group i of N with probability P(i) = p_i^alpha / sum of p^alpha, so a group
        may come twice; there are no more draws than groups that fit. A weight is (N P(i))^-beta
        over the largest of those in the buffer, so it is 1 for the least probable group and smaller
        for all others (section 3.4, algorithm 1). worlds: the versions that still answer as they
        did; None if none ever changes.
        """
        fresh_enough = []
        fitting = []
        for group in self.state["groups"]:
            reasons = {refusal(t, now, self.max_age, worlds) for t in group.rollouts}
            if "stale" not in reasons:
                fresh_enough.append(group)
            if reasons == {None}:
                fitting.append(group)
        self.state["groups"] = fresh_enough
        if not fitting:
            return []
        chances = [group.priority**self.alpha for group in fitting]
        drawn = rng.choices(range(len(fitting)), chances, k=min(n, len(fitting)))
        # N and the sum are the same for all groups: they leave the ratio to the largest weight
        return [(fitting[i], (min(chances) / chances[i]) ** self.beta) for i in drawn]


def replay_weights(
    ages_N: Tensor, log_ratio_N: Tensor, *, decay: float = 0.9, cap: float = 2.0
) -> Tensor:
    """Loss weights min(cap, exp(log_ratio)) * decay^age, without gradient.

    ages_N: versions, `age`. log_ratio_N: mean over generated tokens of the current policy's minus
    the sampling policy's log-probability, nats (a mean: no length bias). A rollout of the policy
    itself has weight 1. They are normalised where the loss is divided by the weights' sum.

    Returns weights_N float, >= 0. ValueError: shapes differ, an age below 0, a ratio that is not
    finite, decay or cap out of range.
    """
    ages = list(ages_N.shape)
    ratios = list(log_ratio_N.shape)
    require(len(ages) == 1 and ages == ratios, f"one age and one ratio a rollout: {ages}, {ratios}")
    require_within(decay, "(0, 1]", "decay")
    require_within(cap, "(0, inf)", "cap")
    require(bool((ages_N >= 0).all()), "an age is below 0; count from the first version")
    require(bool(log_ratio_N.isfinite().all()), "log_ratio_N is not finite; drop broken rollouts")
    ratio_N = log_ratio_N.detach().clamp(max=math.log(cap)).exp()
    return ratio_N * decay ** ages_N.to(ratio_N.dtype)
