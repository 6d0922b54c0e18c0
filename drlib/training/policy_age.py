"""Ages of rollouts, counted in updates of the policy.

The engine numbers the weights that it received (`Trajectory.versions`). Between two numbers the
policy may have taken several updates (rl.off_policy.staleness, rl.minibatches) or none, so ages
are counted in updates. All updates of a step count from the policy at its beginning.
"""

from dataclasses import dataclass, replace

import numpy as np

from drlib.config import Config
from drlib.rl.state_machine import StateMachine, initial_state
from drlib.training.distributed import SHARDS
from drlib.trajectory import Trajectory
from drlib.validation import require


def check_policy_age(config: Config) -> None:
    """Raise ValueError for settings of stale samples that have no effect."""
    older = config.rl.off_policy.staleness > 0 or config.rl.off_policy.replay_groups > 0
    older = older or config.rl.asynchronous.actors > 0
    require(
        config.rl.filter.max_age == 0 or older,
        f"rl.filter.max_age={config.rl.filter.max_age} has no effect, as all rollouts "
        "have age 0: set "
        "rl.off_policy.staleness or rl.off_policy.replay_groups too",
    )
    require(
        config.rl.off_policy.replay_groups % SHARDS == 0,
        f"rl.off_policy.replay_groups={config.rl.off_policy.replay_groups} does not divide into "
        f"{SHARDS} shards: set a multiple of {SHARDS}",
    )
    require(
        config.rl.off_policy.replay_age >= 1 or config.rl.off_policy.replay_groups == 0,
        "rl.off_policy.replay_age must be at least 1: replayed groups are one update old",
    )


@dataclass(frozen=True)
class Clock(StateMachine):
    """Number of updates of the policy, and the number behind each engine version."""

    state: dict = initial_state(updates=0, versions=[0])

    @property
    def now(self) -> int:
        """Number of updates so far."""
        return self.state["updates"]

    def add_updates(self, updates: int) -> None:
        """Add `updates` to the count."""
        self.state["updates"] += updates

    def on_sync(self) -> None:
        """Record that the engine received the current weights."""
        self.state["versions"].append(self.now)

    def stamped(self, trajectory: Trajectory) -> Trajectory:
        """Return the trajectory with versions that count updates."""
        known = np.array(self.state["versions"], np.int32)
        versions = np.where(trajectory.generated, trajectory.versions, 0)
        newest = max(trajectory.policy_version, int(versions.max(initial=0)))
        unknown = (
            f"trajectory {trajectory.id} has version {newest}, but the engine knows versions below "
            f"{len(known)}: pass rollouts of this run's engine"
        )
        require(newest < len(known), unknown)
        first = int(known[trajectory.policy_version])
        return replace(trajectory, versions=known[versions], policy_version=first)
