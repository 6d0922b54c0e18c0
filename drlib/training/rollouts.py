"""Rollouts of one GRPO step: sample groups with tools, reward them, draw again if needed.

Both learners use this module. The random numbers of a group depend only on the seed, the step and
the group's key, so a rollout is the same on any number of processes.

A context is a token sequence that the policy saw as a whole. Agents that start several contexts
(rounds of IterResearch, arXiv 2509.13309; segments between two summaries of ReSum, 2509.13313)
train on each context as a separate sample. So does a planner with its workers (MATPO, 2510.04678),
whose contexts also have roles.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import repeat
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from drlib.agents import Agent, Limits
from drlib.agents.agent_spec import AgentMixture
from drlib.config import FIELDS, Config
from drlib.environments import Environment
from drlib.questions.chains import PYTHON_KINDS
from drlib.questions.question_engine import CHAINS, CONDITIONS
from drlib.rewards.controls import majority_answer, majority_wrong_answer, shuffle_rewards
from drlib.rewards.functions import (
    GROUP_REWARDS,
    Reward,
    is_solved,
    make_reward,
    soft_overlong_penalty,
)
from drlib.rl.curriculum import Curriculum
from drlib.sandbox import Sandbox
from drlib.task import Task, normalise_answer
from drlib.tools import Toolbox
from drlib.training.distributed import SHARDS, Ranks
from drlib.training.question_scheduler import (
    DOCUMENTS,
    FICTIONAL,
    REAL,
    TRAIL,
    QuestionScheduler,
    question_source,
)
from drlib.trajectory import Termination, Trajectory, select_tokens, with_reward
from drlib.validation import require
from drlib.worlds import SmallWorld, World
from drlib.worlds.perturbed import perturb_worlds


class Rollouts(NamedTuple):
    """Rollouts of one step on this process, one list per shard."""

    sampled: list[list[Trajectory]]  # everything that was sampled and paid for
    trainable: list[list[Trajectory]]  # the groups that may enter the batch
    draws: int  # how often questions were drawn

    @property
    def everything(self) -> list[Trajectory]:
        """All sampled rollouts of this process."""
        return [trajectory for shard in self.sampled for trajectory in shard]


def collect_rollouts(
    agent: Agent | AgentMixture,
    scheduler: QuestionScheduler,
    curriculum: Curriculum,
    config: Config,
    step: int,
    ranks: Ranks,
) -> Rollouts:
    """Sample and judge the groups of one step.

    With rl.sampling.draws > 1, questions are drawn again until rl.questions groups have non-zero
    reward variance, and only these are trainable (dynamic sampling of DAPO, arXiv 2503.14476). If
    no group has any, all of them are.
    """
    sampled: list[list[Trajectory]] = [[] for _ in ranks.shards]
    for draw in range(config.rl.sampling.draws):
        tasks, worlds = scheduler.draw(step, curriculum, draw)
        for shard, trajectories in zip(ranks.shards, sampled):
            trajectories += sample_rollouts(agent, tasks, worlds, config, step, shard, draw, ranks)
        if config.rl.sampling.draws == 1:
            return Rollouts(sampled, sampled, 1)
        live = find_live_groups(sampled, config.rl.questions, ranks)
        if len(live) == config.rl.questions:
            break
    trainable = [[t for t in shard if t.group_id in live] for shard in sampled]
    return Rollouts(sampled, trainable if live else sampled, draw + 1)


def open_toolbox(
    config: Config,
    world: World,
    sandbox: Sandbox,
    environments: Mapping[str, Environment] | None = None,
) -> Toolbox:
    """Create the tools of the rollouts."""
    return Toolbox(
        world,
        sandbox,
        results=config.rollout.search_results,
        environments=environments,
        delay_s=config.rollout.tool_latency_ms / 1000,
    )


def rollout_limits(config: Config) -> Limits:
    """Return the limits of a rollout: calls, tokens per turn and tokens per context."""
    return Limits(
        config.rollout.max_calls, config.rollout.max_turn_tokens, config.rollout.max_context_tokens
    )


def sample_rollouts(
    agent: Agent | AgentMixture,
    tasks: list[Task],
    worlds: dict[str, World],
    config: Config,
    step: int,
    shard: int | None = None,
    draw: int = 0,
    ranks: Ranks | None = None,
) -> list[Trajectory]:
    """Sample and reward the groups of one shard.

    Every SHARDS-th question belongs to a shard. A shard is sampled separately from the others, so
    its rollouts are bit-identical on any number of processes.

    Args:
        shard: number of the shard; None: all questions.
        draw: number of earlier draws of this step; each draw uses other random numbers.
        ranks: if several processes share a shard, only the part of this one is sampled.
    """
    if ranks is not None:
        mine = ranks.assign(len(tasks), shard)
    else:
        mine = list(range(len(tasks)) if shard is None else range(shard, len(tasks), SHARDS))
    return sample_groups(agent, tasks, mine, worlds, config, step, draw * config.rl.questions)


def sample_groups(
    agent: Agent | AgentMixture,
    tasks: list[Task],
    mine: list[int],
    worlds: dict[str, World],
    config: Config,
    step: int,
    first_key: int = 0,
) -> list[Trajectory]:
    """Sample and reward the groups of the tasks with the indices `mine`.

    With rl.sampling.adaptive_group the second half of a group is sampled only if the rewards of the
    first half differ. The sampled rollouts equal those of the whole group up to rounding.

    Args:
        first_key: added to a task's index; the sum names the group and selects its random numbers.
    """
    sources = [
        question_source(task, worlds) for task in tasks
    ]  # before the real world is among them
    if has_changed(config.rl.callbacks.world_change, step):
        small = cast(dict[str, SmallWorld], worlds)  # documents exclude changes
        tasks, changed = perturb_worlds(tasks, small, cast(SmallWorld, agent.toolbox.world))
        worlds = {**changed}
    tries = config.rl.group * config.rl.sampling.oversample
    half = tries // 2 if config.rl.sampling.adaptive_group else tries
    judge = build_reward(config)

    def run(some: list[int], numbers: range) -> dict[int, list[Trajectory]]:
        """Sample the rollouts with these numbers for some tasks; return them by task."""
        # only some agents can sample a part of a group
        part: dict[str, Any] = {"numbers": numbers} if half < tries else {}
        made = agent.run(
            [tasks[i] for i in some],
            samples=tries,
            **part,
            temperature=config.rl.temperature,
            seed=step_seed(config.seed, step),
            keys=[first_key + i for i in some],
            worlds=dict(worlds),
        )
        n = len(numbers)
        for at, trajectory in enumerate(made):
            trajectory.metadata["source"] = sources[some[at // n]]
            trajectory.metadata["progress"] = step / config.rl.steps  # for threshold schedules
        judged = judge_rollouts(made, [tasks[i] for i in some for _ in numbers], judge)
        return {i: judged[at * n : (at + 1) * n] for at, i in enumerate(some)}

    groups = run(mine, range(half))
    if half < tries:
        undecided = [i for i in mine if _differ(groups[i])]
        for i, rest in run(undecided, range(half, tries)).items():
            groups[i] += rest
    return [
        t
        for i in mine
        for t in adjust_rewards(groups[i], tasks[i], config, _chance(i, config.seed, step))
    ]


def _differ(group: list[Trajectory]) -> bool:
    """Return True if the known rewards are not all equal."""
    return len({t.reward for t in group if t.reward is not None}) > 1


def _chance(key: int, seed: int, step: int) -> torch.Generator:
    """Build the generator that shuffles the rewards of one question."""
    return torch.Generator().manual_seed(step_seed(f"{seed}-labels-{key}", step))


def has_changed(world_change: int, step: int) -> bool:
    """Return True if the world has changed (rl.callbacks.world_change); `step` counts from 0."""
    return 0 < world_change <= step


def find_live_groups(shards: list[list[Trajectory]], want: int, ranks: Ranks) -> set[str]:
    """Return the names of the first `want` groups with reward variance over all ranks, in the
    order of their questions.
    """
    facts = ranks.gather([(t.group_id, t.reward) for shard in shards for t in shard])
    rewards = defaultdict(set)
    for name, reward in facts:
        rewards[name] |= set() if reward is None else {reward}
    live = [name for name, different in rewards.items() if len(different) > 1]
    live.sort(key=lambda name: int(name.rpartition("-")[2]))  # a group's name ends with its key
    return {*live[:want]}


def step_seed(seed: int | str, step: int) -> int:
    """Derive the random seed of a step."""
    return int(hashlib.sha256(f"rollout-{seed}-{step}".encode()).hexdigest()[:12], 16)


# ---------------------------------------------------------------- rewards


def build_reward(config: Config) -> Reward:
    """Build the reward of a run; "random" also takes the seed."""
    settings = {"seed": config.seed} if config.rl.reward.name == "random" else {}
    return make_reward(config.rl.reward.name, **settings, **reward_arguments(config))


def reward_arguments(config: Config) -> dict[str, Any]:
    """Return the arguments of rl.reward.arguments; raise ValueError unless it is a JSON object."""
    text = config.rl.reward.arguments
    try:
        arguments = json.loads(text or "{}")
    except ValueError as error:
        raise ValueError(f"rl.reward.arguments={text!r} is not JSON: {error}") from None
    require(
        isinstance(arguments, dict),
        f'rl.reward.arguments={text!r} must be a JSON object, such as {{"price": 0.2}}',
    )
    return arguments


def judge_rollout(trajectory: Trajectory, task: Task, reward: Reward) -> Trajectory:
    """Return the rollout with its reward, and with the correctness of its answer."""
    result = reward(trajectory, task)
    right = is_solved(trajectory, task)
    trajectory.metadata["skill"] = task.skill
    return with_reward(trajectory, result.value, {**result.parts, "correct": float(right)})


def judge_rollouts(
    trajectories: Sequence[Trajectory], tasks: Sequence[Task], reward: Reward
) -> list[Trajectory]:
    """Judge rollouts, several at once if the reward waits for a server."""
    threads = getattr(reward, "threads", 1)
    if threads == 1:
        return [judge_rollout(t, task, reward) for t, task in zip(trajectories, tasks)]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(judge_rollout, trajectories, tasks, repeat(reward)))


def adjust_rewards(
    group: Sequence[Trajectory], task: Task, config: Config, generator: torch.Generator
) -> list[Trajectory]:
    """Return a question's rollouts with the rewards used in training.

    Args:
        generator: random numbers of rl.reward.labels="shuffled".
    """
    rewards = [trajectory.reward for trajectory in group]
    if config.rl.reward.name in GROUP_REWARDS:
        rewards = GROUP_REWARDS[config.rl.reward.name](group)
    if config.rl.reward.labels == "shuffled":
        rewards = shuffle_rewards(rewards, generator)
    elif config.rl.reward.labels in ("wrong", "majority"):
        answers = [trajectory.answer for trajectory in group]
        is_wrong = config.rl.reward.labels == "wrong"
        label = majority_wrong_answer(answers, task) if is_wrong else majority_answer(answers)
        rewards = _by_label(group, label)
    terms = [{} for _ in group]
    if config.rl.reward.overlong_buffer > 0:
        limit, buffer = config.rollout.max_context_tokens, config.rl.reward.overlong_buffer
        penalties = [_length_penalty(trajectory, limit, buffer) for trajectory in group]
        terms = [{"length": penalty} for penalty in penalties]
        rewards = [r if r is None else r + p for r, p in zip(rewards, penalties)]
    return [
        with_reward(trajectory, reward, {**trajectory.reward_parts, **term})
        for trajectory, reward, term in zip(group, rewards, terms)
    ]


def _by_label(group: Sequence[Trajectory], label: str | None) -> list[float | None]:
    """Reward answers that equal the label with 1, others with 0; all 0 without a label."""

    def reward(trajectory: Trajectory) -> float | None:
        if trajectory.reward is None:
            return None
        answer = trajectory.answer
        return float(label is not None and answer is not None and normalise_answer(answer) == label)

    return [reward(trajectory) for trajectory in group]


def _length_penalty(trajectory: Trajectory, limit: int, buffer: int) -> float:
    """Compute DAPO's overlong penalty for the longest context.

    A rollout that ended at the limit counts as long as the limit, although its last turn is
    missing.
    """
    length = limit
    if trajectory.termination != Termination.LENGTH:
        length = max(len(context) for context in split_contexts(trajectory))
    penalty = soft_overlong_penalty(torch.tensor([length]), limit, buffer)
    return float(penalty)


# ---------------------------------------------------------------- contexts


def split_contexts(trajectory: Trajectory) -> list[Trajectory]:
    """Split a rollout into the contexts with generated tokens.

    Each has the reward and the group of the rollout. A rollout with one context is returned as it
    is. Otherwise `metadata` of a context has its "role", and as "same_role" the number of contexts
    of the rollout with this role.
    """
    if trajectory.contexts is None:
        return [trajectory]
    found = []
    for number in np.unique(trajectory.contexts):
        inside_T = trajectory.contexts == number
        if trajectory.generated[inside_T].any():
            name = f"{trajectory.id}/{number}"
            metadata = trajectory.metadata | {"role": _role(trajectory, number)}
            changes = {"id": name, "contexts": None, "metadata": metadata}
            found.append(select_tokens(trajectory, inside_T, **changes))
    counts = Counter(part.metadata["role"] for part in found)
    for part in found:
        part.metadata["same_role"] = counts[part.metadata["role"]]
    return found


def split_roles(trajectory: Trajectory) -> list[Trajectory]:
    """Split a rollout into one part per role, with all contexts in which this role generated.

    The role of each context is in `metadata["roles"]` (`drlib.agents.planner_worker`); `metadata`
    of a part has its "role". A rollout of an agent without roles is one part.
    """
    numbers_T = trajectory.contexts
    if numbers_T is None:
        return [replace(trajectory, metadata=trajectory.metadata | {"role": _role(trajectory, 0)})]
    parts = []
    roles = {number: _role(trajectory, number) for number in np.unique(numbers_T)}
    for role in dict.fromkeys(roles.values()):
        inside_T = np.isin(numbers_T, [number for number, other in roles.items() if other == role])
        if trajectory.generated[inside_T].any():
            metadata = trajectory.metadata | {"role": role}
            parts.append(select_tokens(trajectory, inside_T, metadata=metadata))
    return parts


def _role(trajectory: Trajectory, number: int) -> str:
    """Return the role of a context, "" for an agent without roles."""
    roles = trajectory.metadata.get("roles")
    return roles[number] if roles else ""


def split_all_contexts(trajectories: Iterable[Trajectory]) -> tuple[list[Trajectory], list[int]]:
    """Return the contexts of all rollouts and the index of the rollout of each."""
    samples, owners = [], []
    for index, trajectory in enumerate(trajectories):
        some = split_contexts(trajectory)
        samples += some
        owners += [index] * len(some)
    return samples, owners


# ---------------------------------------------------------------- metrics


def summarise_rollouts(
    trajectories: list[Trajectory], selected: list[Trajectory], ranks: Ranks
) -> tuple[dict, list]:
    """Summarise the rollouts of a step over all processes.

    Args:
        trajectories: all rollouts of this process.
        selected: its rollouts that resampling kept.

    Returns:
        The metrics known before the update, and (skill, 1.0 if correct else 0.0) of each rollout of
        all processes. Correctness does not depend on the reward, which may be random.
        `live_groups` is the share of groups with reward variance, `zero_variance` of the others;
        `reward` and `rewards/NAME/mean` are means of the reward and its terms over judged rollouts,
        `reward_std` is the mean standard deviation within a group. `positive_tool_errors` is the
        share of failed calls in selected successful rollouts (rStar2-Agent, fig. 4).
    """
    positive = {t.id for t in selected if (t.reward or 0.0) > 0.5}
    facts = ranks.gather([_rollout_facts(t, t.id in positive) for t in trajectories])
    row = _accuracies(facts) | {
        "accuracy": _mean("accuracy", facts),
        "generated": _mean("generated", facts),
        "contexts": _mean("contexts", facts),
        "calls": _mean("calls", facts),
        "rollouts": len(facts),
        "tool_errors": _ratio("errors", "calls", facts),
        "env_faults": sum(f["ended"] == Termination.ENV_FAULT for f in facts),
        "positive_tool_errors": _ratio("errors", "calls", [f for f in facts if f["positive"]]),
        "entropy": _ratio("entropy", "generated", facts),
        "live_groups": _live_share(facts),
        "zero_variance": 1 - _live_share(facts),
        **_reward_terms(facts),
        "no_call": _mean("no_call", facts),
        "overlong": _mean("overlong", facts),
        "out_of_turns": _mean("out_of_turns", facts),
    }
    return row, [(f["skill"], f["accuracy"]) for f in facts]


def _rollout_facts(trajectory: Trajectory, positive: bool) -> dict:
    """Return the fields of a rollout that enter the metrics of a step."""
    return {
        "skill": trajectory.metadata["skill"],
        "source": trajectory.metadata["source"],
        "environment": "verification" in trajectory.metadata,
        "accuracy": trajectory.reward_parts["correct"],
        "reward": trajectory.reward,
        "terms": trajectory.reward_parts,
        "group": trajectory.group_id,
        "positive": positive,
        "ended": trajectory.termination,
        "overlong": trajectory.termination == Termination.LENGTH,
        "out_of_turns": trajectory.termination == Termination.TURNS,
        "calls": len(trajectory.tool_results),
        "no_call": not trajectory.tool_results,
        "errors": sum(not result.ok for result in trajectory.tool_results),
        "generated": int(trajectory.generated.sum()),
        "contexts": len(split_contexts(trajectory)),
        "entropy": float(trajectory.entropies.sum()),
    }


def _mean(name: str, facts: list[dict]) -> float:
    return sum(f[name] for f in facts) / len(facts)


def _ratio(top: str, bottom: str, facts: list[dict]) -> float:
    return sum(f[top] for f in facts) / max(sum(f[bottom] for f in facts), 1)


def _accuracies(facts: list[dict]) -> dict[str, float]:
    """Return the accuracy by kind of question, number of hops and source of the world."""
    kinds = {"python": PYTHON_KINDS, "search": CHAINS, "conditions": CONDITIONS}
    kinds |= {name: (name,) for name in (*CHAINS, *CONDITIONS, TRAIL)}
    by_kind = {kind: [f for f in facts if f["skill"] in skills] for kind, skills in kinds.items()}
    environments = sorted({f["source"] for f in facts if f["environment"]})
    by_kind |= {
        name: [f for f in facts if f["source"] == name]
        for name in (REAL, FICTIONAL, DOCUMENTS, *environments)
    }
    return {f"accuracy_{kind}": _mean("accuracy", some) for kind, some in by_kind.items() if some}


def _reward_terms(facts: list[dict]) -> dict[str, float]:
    """Return the means of reward and terms, and the mean standard deviation within a group."""
    judged = [f for f in facts if f["reward"] is not None]
    if not judged:
        return {}
    groups = defaultdict(list)
    for f in judged:
        groups[f["group"]].append(f["reward"])
    row = {
        "reward": _mean("reward", judged),
        "reward_std": float(np.mean([np.std(rewards) for rewards in groups.values()])),
    }
    names = sorted({name for f in judged for name in f["terms"]} - {"correct"})
    for name in names:
        row[f"rewards/{name}/mean"] = float(
            np.mean([f["terms"][name] for f in judged if name in f["terms"]])
        )
    return row


def _live_share(facts: list[dict]) -> float:
    """Return the share of groups with reward variance; rollouts without reward are ignored."""
    rewards = defaultdict(set)
    for f in facts:
        rewards[f["group"]] |= set() if f["reward"] is None else {f["reward"]}
    return sum(len(different) > 1 for different in rewards.values()) / len(rewards)


# ---------------------------------------------------------------- settings


def check_rollouts(config: Config) -> None:
    """Raise ValueError for sampling and reward settings without effect or in conflict."""
    sampling, reward = config.rl.sampling, config.rl.reward
    for name in ("rl.sampling.oversample", "rl.sampling.draws"):
        require(config.get(name) >= 1, f"{name} must be at least 1")
    require(
        config.rl.temperature > 0,
        "rl.temperature must be above 0: greedy rollouts have no sampling probability to train",
    )
    usual = FIELDS["rl.sampling.fork_entropy"].default
    require(
        sampling.fork_temperature > 0 or sampling.fork_entropy == usual,
        "rl.sampling.fork_entropy has no effect without rl.sampling.fork_temperature: set both",
    )
    require(
        sampling.fork_temperature == 0 or not config.model.path,
        "rl.sampling.fork_temperature is an option of the tiny policy's engine: leave out "
        "model.path, or set rl.temperature",
    )
    require(
        reward.labels not in ("wrong", "majority") or reward.name == "exact_match",
        f'rl.reward.labels="{reward.labels}" replaces the correct answer: set '
        "rl.reward.name=exact_match",
    )
    require(
        reward.overlong_buffer <= config.rollout.max_context_tokens,
        f"rl.reward.overlong_buffer={reward.overlong_buffer} exceeds "
        f"rollout.max_context_tokens={config.rollout.max_context_tokens}: lower it",
    )
    halves = config.rl.group * sampling.oversample >= 4 and sampling.resample == "none"
    require(
        halves or not sampling.adaptive_group,
        "rl.sampling.adaptive_group samples groups in two halves: set rl.group to 4 or more, and "
        "rl.sampling.resample=none",
    )
    is_single = "+" not in config.rl.agent and not config.rl.agent.startswith("heavy")
    require(
        is_single or not sampling.adaptive_group,
        f'rl.agent="{config.rl.agent}" cannot sample half a group (rl.sampling.adaptive_group): '
        "set a single agent",
    )
    require(
        (sampling.oversample > 1) == (sampling.resample != "none"),
        "rl.sampling.oversample (2 or more) and rl.sampling.resample need each other: set both",
    )
