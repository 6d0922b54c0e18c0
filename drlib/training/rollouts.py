"""A step's rollouts: each question tried by a group with the tools, judged, and those trained on.

Both trainers roll out here. Every group has random numbers of its own, so what a question's
rollouts do depends neither on the other questions nor on who runs them.
"""

import hashlib
from collections import defaultdict

import torch

from drlib.agents import Agent, Limits
from drlib.config import Config
from drlib.rl.resampling import resample_on_correct
from drlib.task import Task
from drlib.training.question_scheduler import source_of
from drlib.training.distributed import SHARDS, Ranks
from drlib.training.rewarding import judged, reward_of, rewarded
from drlib.trajectory import Trajectory
from drlib.worlds import SmallWorld
from drlib.worlds.perturbed import perturb_worlds


def limits_of(config: Config) -> Limits:
    return Limits(
        config.rollout.max_calls, config.rollout.max_turn_tokens, config.rollout.max_context_tokens
    )


def rollout(
    agent: Agent,
    tasks: list[Task],
    worlds: dict[str, SmallWorld],
    config: Config,
    step: int,
    shard: int | None = None,
    draw: int = 0,
    ranks: Ranks | None = None,
) -> list[Trajectory]:
    """The groups of one shard's questions (None: of all of them), rewarded.

    draw: how often the step has drawn questions already; these get other random numbers. ranks:
    where more processes share a shard, this one's part of it.

    Every SHARDS-th question belongs to a shard. A shard's rollouts run together and apart from the
    others', so they have the same bits whether another process makes the rest or this one does.
    """
    mine = list(range(len(tasks))) if shard is None else list(range(shard, len(tasks), SHARDS))
    if ranks is not None:
        mine = mine[ranks.part :: ranks.parts]
    return tried(agent, tasks, mine, worlds, config, step, draw * config.rl.questions)


def tried(
    agent: Agent,
    tasks: list[Task],
    mine: list[int],
    worlds: dict[str, SmallWorld],
    config: Config,
    step: int,
    first_key: int = 0,
) -> list[Trajectory]:
    """The groups of the questions with the numbers `mine`, rewarded.

    first_key: with a question's number it fixes the group's name and random numbers in the step.

    With `rl.sampling.adaptive_group` the second half of a group is made only where the rewards of the first
    half differ; the rollouts that are made are those that the whole group would have had
    (but for rounding, as fewer run beside each other).
    """
    sources = [source_of(task, worlds) for task in tasks]  # before the real world is among them
    if has_changed(config, step):
        tasks, worlds = perturb_worlds(tasks, worlds, agent.toolbox.world)
    tries = config.rl.group * config.rl.sampling.oversample
    half = tries // 2 if config.rl.sampling.adaptive_group else tries
    judge = reward_of(config)

    def run(some: list[int], numbers: range) -> dict[int, list[Trajectory]]:
        """Question -> its rollouts with these numbers, judged."""
        some_of_them = {"numbers": numbers} if half < tries else {}  # not every agent can
        made = agent.run(
            [tasks[i] for i in some],
            samples=tries,
            **some_of_them,
            temperature=config.rl.temperature,
            seed=step_seed(config.seed, step),
            keys=[first_key + i for i in some],
            worlds=worlds,
        )
        n = len(numbers)
        for at, trajectory in enumerate(made):
            trajectory.metadata["source"] = sources[some[at // n]]
        return {
            i: [judged(t, tasks[i], judge) for t in made[at * n : (at + 1) * n]]
            for at, i in enumerate(some)
        }

    groups = run(mine, range(half))
    if half < tries:
        undecided = [i for i in mine if _differ(groups[i])]
        for i, rest in run(undecided, range(half, tries)).items():
            groups[i] += rest
    return [
        t for i in mine for t in rewarded(groups[i], tasks[i], config, _chance(i, config, step))
    ]


def _differ(group: list[Trajectory]) -> bool:
    """Whether the rewards of those that could be judged are not all the same."""
    return len({t.reward for t in group if t.reward is not None}) > 1


def _chance(key: int, config: Config, step: int) -> torch.Generator:
    """Of the control that shuffles a question's rewards."""
    return torch.Generator().manual_seed(step_seed(f"{config.seed}-labels-{key}", step))


def has_changed(config: Config, step: int) -> bool:
    """Whether the world is another one by now (`rl.callbacks.world_change`); `step` counts from 0."""
    return 0 < config.rl.callbacks.world_change <= step


def first_live(shards: list[list[Trajectory]], want: int, ranks: Ranks) -> set[str]:
    """The names of the first `want` groups, or of all there are, whose rewards differ, over all
    ranks; the order is that in which their questions were drawn."""
    facts = ranks.gather([(t.group_id, t.reward) for shard in shards for t in shard])
    rewards = defaultdict(set)
    for name, reward in facts:
        rewards[name] |= set() if reward is None else {reward}
    live = [name for name, different in rewards.items() if len(different) > 1]
    live.sort(key=lambda name: int(name.rpartition("-")[2]))  # a group's name ends with its key
    return {*live[:want]}


def step_seed(seed: int | str, step: int) -> int:
    """Of a step's random numbers."""
    return int(hashlib.sha256(f"rollout-{seed}-{step}".encode()).hexdigest()[:12], 16)


def choose(trajectories: list[Trajectory], config: Config, step: int) -> list[Trajectory]:
    """The rollouts to train on: all, or `rl.group` of each oversampled group (GRPO-RoC)."""
    if config.rl.sampling.resample == "none":
        return trajectories
    chosen = []
    for name in dict.fromkeys(t.group_id for t in trajectories):
        group = [t for t in trajectories if t.group_id == name]
        generator = torch.Generator().manual_seed(step_seed(f"{config.seed}-{name}", step))
        kept = resample_on_correct(
            group, config.rl.group, config.rl.sampling.resample, generator=generator
        )
        chosen += [group[i] for i in kept]
    return chosen
