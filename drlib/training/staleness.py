"""How old the rollouts of a step are, which of them are too old, and groups that lost some.

The engine numbers the weights that it was handed, and that is what `Trajectory.versions` holds.
Between two of these numbers the policy may have taken several updates (`rl.off_policy.staleness`,
`rl.minibatches`) or none (all groups were dead), so they say nothing of how far it has moved.
`Clock` knows how many updates each of them had behind it: ages are counted in updates. All updates
of a step count from the policy at its beginning.

`without_lost` is what GLM-5 does with asynchronous rollouts (arXiv 2602.15763, section 4.1). What
is too old leaves loss and baseline (`rl.filter.max_age`). A group that lost rollouts (to age, a fault of
the environment, a judge that gave nothing) is filled with copies of the others where these are
more than half, and left out otherwise (`rl.filter.repair_groups`). A copy is a weight of 2; the baseline
is over the distinct rollouts, where GLM-5's is the mean of the filled group: a copy is no further
evidence of how hard the question is, and would be its own sibling in a leave-one-out baseline.

Left out: GLM-5's reset of the optimizer after each push of weights, and rollouts that run on while
the weights change: the local engine takes new weights between steps only, so all rollouts of a
step are of one age, and `rl.filter.max_age` drops whole steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from drlib.config import Config
from drlib.rewards.functions import has_env_fault
from drlib.rl.staleness import StalenessFilter, repair_groups
from drlib.rl.state_machine import StateMachine, initial_state
from drlib.training.distributed import SHARDS
from drlib.trajectory import Trajectory
from drlib.validation import require


def check_staleness(config: Config) -> None:
    """ValueError for settings of older samples that would do nothing, or cannot be."""
    older = config.rl.off_policy.staleness > 0 or config.rl.off_policy.replay_groups > 0
    require(
        config.rl.filter.max_age == 0 or older,
        f"rl.filter.max_age={config.rl.filter.max_age}: every rollout is of the policy that it trains: set "
        "rl.off_policy.staleness or rl.off_policy.replay_groups too",
    )
    require(
        config.rl.off_policy.replay_groups % SHARDS == 0,
        f"rl.off_policy.replay_groups={config.rl.off_policy.replay_groups}: each of {SHARDS} shards replays as many: set "
        f"a multiple of {SHARDS}",
    )
    require(
        config.rl.off_policy.replay_age >= 1 or config.rl.off_policy.replay_groups == 0,
        "rl.off_policy.replay_age must be at least 1: what can be replayed is an update old",
    )


@dataclass(frozen=True)
class Clock(StateMachine):
    """The policy's updates so far, and those behind each of the engine's versions."""

    state: dict = initial_state(updates=0, versions=[0])

    @property
    def now(self) -> int:
        return self.state["updates"]

    def updated(self, updates: int) -> None:
        """The policy has taken so many more."""
        self.state["updates"] += updates

    def handed_over(self) -> None:
        """The engine's next version is the policy as it is now."""
        self.state["versions"].append(self.now)

    def stamped(self, trajectory: Trajectory) -> Trajectory:
        """With versions that count updates. ValueError: the engine has no such version."""
        known = np.array(self.state["versions"], np.int32)
        versions = np.where(trajectory.generated, trajectory.versions, 0)
        newest = max(trajectory.policy_version, int(versions.max(initial=0)))
        unknown = f"trajectory {trajectory.id} is of version {newest}, the engine has {len(known)}"
        require(newest < len(known), unknown)
        begun = int(known[trajectory.policy_version])
        return replace(trajectory, versions=known[versions], policy_version=begun)


def without_lost(
    trajectories: Sequence[Trajectory],
    weights_N: Tensor,
    in_baseline_N: Tensor,
    config: Config,
    clock: Clock,
) -> tuple[Tensor, Tensor, dict[str, float]]:
    """(loss weights_N, in_baseline_N, the row's columns), with what is too old left out and groups
    repaired, where the settings say so.

    weights_N: float; in_baseline_N: bool; as `filter_rollouts` gives them. Columns: filtered_stale
    (rollouts), repaired_groups (filled with copies), lost_groups (left out).
    """
    columns = {}
    if config.rl.filter.max_age > 0:
        young_N, columns["filtered_stale"] = _young(trajectories, config, clock)
        weights_N = weights_N * young_N
        in_baseline_N = in_baseline_N & young_N
    if config.rl.filter.repair_groups:
        names = [trajectory.group_id for trajectory in trajectories]
        times_N, counts = _repaired(names, in_baseline_N)
        weights_N = weights_N * times_N
        in_baseline_N = in_baseline_N & (times_N > 0)
        columns |= counts
    return weights_N, in_baseline_N, columns


def _young(
    trajectories: Sequence[Trajectory], config: Config, clock: Clock
) -> tuple[Tensor, float]:
    """(bool_N: begun no more than `rl.filter.max_age` updates ago, how many were not).

    Faults of the environment are counted as such, whatever their age.
    """
    stamped = [clock.stamped(trajectory) for trajectory in trajectories]
    young = StalenessFilter(config.rl.filter.max_age).update(stamped, clock.now)
    stale = [not keep and not has_env_fault(t) for t, keep in zip(trajectories, young)]
    return torch.tensor(young, dtype=torch.bool), float(sum(stale))


def _repaired(names: Sequence[str], valid_N: Tensor) -> tuple[Tensor, dict[str, float]]:
    """(how often each rollout is in its repaired group, groups repaired and lost).

    A group is as large as it was rolled out: all of it is here, lost rollouts included.
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
