"""Group replay: train again on earlier groups, in addition to the rollouts of the step.

With rl.off_policy.replay_groups each shard keeps the groups it has trained on until they are
rl.off_policy.replay_age updates old (or rl.filter.max_age, if lower). Each step draws among them by
mean |advantage| (prioritised experience replay, arXiv 1511.05952), from unchanged worlds only.

A replayed group keeps its advantages. Its loss weights are multiplied by the importance weight of
the draw and by `replay_weights`: age, and the capped mean ratio of the current policy to the one
that sampled it. The loss is divided by the sum of all weights. Token ratios are those of the loss.

Each shard has its own buffer, so replay does not depend on the number of processes. Groups without
reward variance are not kept, and neither are fields that no update reads.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from drlib.config import Config
from drlib.rl.staleness import ReplayBuffer, TrainedGroup, age, replay_weights
from drlib.training.batch import RolloutBatch
from drlib.training.callbacks import CALLBACKS, Callback, StepState
from drlib.training.distributed import SHARDS, Ranks
from drlib.training.policy_age import Clock
from drlib.training.rollouts import has_changed, step_seed
from drlib.trajectory import Termination, Trajectory
from drlib.worlds.perturbed import perturbed_version

COLUMNS = ("token_ids", "generated", "logprobs", "entropies", "versions", "routed_experts")
FIELDS = ("id", "task_id", "group_id", "world_version", "policy_version", "reward")
NO_WORLD = "python"  # version of calculations, which have no world

BuildBatch = Callable[[list[Trajectory], Tensor, Tensor], RolloutBatch]


class GroupReplay(Callback):
    """Replay buffers of this process's shards.

    Args:
        state: result of `state_dict` on any number of processes; None: empty buffers.
    """

    def __init__(self, config: Config, ranks: Ranks, state: Sequence | None = None):
        self.config, self.ranks = config, ranks
        limits = [
            limit
            for limit in (config.rl.off_policy.replay_age, config.rl.filter.max_age)
            if limit > 0
        ]
        self.buffers = {shard: ReplayBuffer(min(limits, default=0)) for shard in ranks.shards}
        if state:
            self.load_state_dict(state)

    def add_replayed(
        self,
        shares: Sequence[RolloutBatch],
        step: int,
        clock: Clock,
        build_batch: BuildBatch,
    ) -> tuple[list[RolloutBatch], dict[str, float]]:
        """Append replayed groups to each share, then store the groups of this step.

        Args:
            build_batch: builds a batch with the recorded log-probabilities ("old") from rollouts,
                advantages_N and weights_N.

        Returns:
            The shares, and the metrics replayed (groups), replay_age (updates) and replay_weight;
            the last two are means over replayed rollouts, 0 if there are none.
        """
        if self.config.rl.off_policy.replay_groups == 0:
            return list(shares), {}
        joined, counts, learned = [], [], []
        for shard, share in zip(self.buffers, shares, strict=True):
            drawn = self._draw(shard, step, clock)
            again, ages, weights = prepare_replay(drawn, clock, build_batch)
            joined.append(_concatenate(share, again))
            counts.append((len(drawn), len(ages), sum(ages), sum(weights)))
            learned += [(shard, group) for group in select_trained_groups(share, clock)]
        self._keep(learned)
        names = ("groups", "rollouts", "age", "weight")
        sums = self.ranks.sum(dict(zip(names, map(float, map(sum, zip(*counts))))))
        rollouts = max(sums["rollouts"], 1.0)
        return joined, {
            "replayed": sums["groups"],
            "replay_age": sums["age"] / rollouts,
            "replay_weight": sums["weight"] / rollouts,
        }

    def _draw(self, shard: int, step: int, clock: Clock) -> list[tuple[TrainedGroup, float]]:
        buffer = self.buffers[shard]
        worlds = None
        if has_changed(self.config.rl.callbacks.world_change, step):
            seen = {t.world_version for g in buffer.state["groups"] for t in g.rollouts}
            worlds = {name for name in seen if is_world_current(name)}
        rng = random.Random(step_seed(f"{self.config.seed}-replay-{shard}", step))
        n = self.config.rl.off_policy.replay_groups // SHARDS
        drawn = buffer.draw(n, clock.now, rng, worlds=worlds)
        return drawn[self.ranks.part :: self.ranks.parts]

    def _keep(self, learned: list[tuple[int, TrainedGroup]]) -> None:
        """Store each group in its shard's buffer, in the order of questions on every process."""
        if self.ranks.parts > 1:
            learned = self.ranks.gather(learned)
            # a group's name ends with its question's number
            learned.sort(key=lambda kept: int(kept[1].rollouts[0].group_id.rpartition("-")[2]))
        for shard, group in learned:
            if shard in self.buffers:
                self.buffers[shard].add(group)

    def on_batch(self, trainer, state: StepState) -> None:
        """Add replayed groups to the batch and keep the groups of this step."""

        def record(samples: list[Trajectory], advantages_N: Tensor, weights_N: Tensor):
            batch = RolloutBatch(samples, advantages_N, weights_N)
            return trainer.learner.record(batch, old=True)

        state.batch, metrics = self.add_replayed(state.batch, state.step, trainer.clock, record)
        state.metrics |= metrics

    def state_dict(self) -> list:
        """Return the groups of each shard of all processes, in plain types and tensors."""
        own = [(s, [pack_group(g) for g in b.state["groups"]]) for s, b in self.buffers.items()]
        groups = dict(self.ranks.gather(own))  # processes that share a shard have equal groups
        return [groups[shard] for shard in range(SHARDS)]

    def load_state_dict(self, state: Sequence) -> None:
        """Restore the state saved by state_dict() on any number of processes."""
        for shard, buffer in self.buffers.items():
            for kept in state[shard]:
                buffer.add(unpack_group(kept))


@CALLBACKS.register("group_replay")
def _build_group_replay(config: Config, trainer) -> Callback | None:
    is_on = config.rl.off_policy.replay_groups > 0
    return GroupReplay(config, trainer.ranks) if is_on else None


def is_world_current(world: str) -> bool:
    """Return True if a world version is not from before rl.callbacks.world_change."""
    return world == NO_WORLD or world.endswith(perturbed_version(""))


def prepare_replay(
    drawn: Sequence[tuple[TrainedGroup, float]],
    clock: Clock,
    build_batch: BuildBatch,
) -> tuple[RolloutBatch, list[int], list[float]]:
    """Return the replayed batch, and the age and weight factor of each rollout."""
    rollouts = [t for group, _ in drawn for t in group.rollouts]
    advantages_N = torch.tensor([a for group, _ in drawn for a in group.advantages])
    weights_N = torch.tensor([w for group, _ in drawn for w in group.weights])
    share = build_batch(rollouts, advantages_N, weights_N)

    ages = [age(t, clock.now) for t in rollouts]
    gaps = [
        float((now - t.logprobs)[t.generated].mean())
        for now, t in zip(share.recorded["old"], rollouts)
    ]
    chances_N = torch.tensor([chance for group, chance in drawn for _ in group.rollouts])
    factors_N = replay_weights(torch.tensor(ages, dtype=torch.int64), torch.tensor(gaps))
    factors_N = factors_N * chances_N
    return replace(share, weights_N=weights_N * factors_N), ages, factors_N.tolist()


def select_trained_groups(share: RolloutBatch, clock: Clock) -> list[TrainedGroup]:
    """Return the groups with a gradient, without rollouts excluded from the loss."""
    groups: dict[str, list[int]] = {}
    for i, trajectory in enumerate(share.trajectories):
        if share.weights_N[i] > 0 and trajectory.generated.any():
            groups.setdefault(trajectory.group_id, []).append(i)
    kept = []
    for some in groups.values():
        advantages = share.advantages_N[some].tolist()
        if any(advantages):
            rollouts = [_strip(clock.stamped(share.trajectories[i])) for i in some]
            kept.append(TrainedGroup(rollouts, advantages, share.weights_N[some].tolist()))
    return kept


def _concatenate(share: RolloutBatch, again: RolloutBatch) -> RolloutBatch:
    """Concatenate two batches, with the recorded log-probabilities and routes of the first."""
    return RolloutBatch(
        share.trajectories + again.trajectories,
        torch.cat([share.advantages_N, again.advantages_N]),
        torch.cat([share.weights_N, again.weights_N]),
        {name: values + again.recorded[name] for name, values in share.recorded.items()},
        routes=None if share.routes is None else [*share.routes, *again.routes],
    )


# ---------------------------------------------------------------- the checkpoint


def pack_group(group: TrainedGroup) -> dict:
    """Convert a group to types that torch.load(weights_only=True) reads."""
    rollouts = [_pack(trajectory) for trajectory in group.rollouts]
    return {"rollouts": rollouts, "advantages": group.advantages, "weights": group.weights}


def unpack_group(kept: dict) -> TrainedGroup:
    """Convert the result of `pack_group` back to the same group."""
    rollouts = [_unpack(values) for values in kept["rollouts"]]
    return TrainedGroup(rollouts, kept["advantages"], kept["weights"])


def _pack(trajectory: Trajectory) -> dict:
    """Return the fields that an update reads, as plain types and tensors."""
    columns = {name: getattr(trajectory, name) for name in COLUMNS}
    return {
        **{name: getattr(trajectory, name) for name in FIELDS},
        "termination": str(trajectory.termination),
        **{name: None if c is None else torch.tensor(c) for name, c in columns.items()},
    }


def _unpack(values: dict) -> Trajectory:
    """Build a trajectory from the result of `_pack`."""
    columns = {name: values[name] for name in COLUMNS}
    n = len(columns["token_ids"])
    return Trajectory(
        **{name: values[name] for name in FIELDS},
        **{name: None if c is None else c.numpy() for name, c in columns.items()},
        termination=Termination(values["termination"]),
        segments=np.zeros(n, np.uint8),
        turns=np.zeros(n, np.uint16),
        tool_results=[],
        answer=None,
        reward_parts={},
        messages=[],
        metadata={},
    )


def _strip(trajectory: Trajectory) -> Trajectory:
    """Return the trajectory as restored from a checkpoint."""
    return _unpack(_pack(trajectory))
