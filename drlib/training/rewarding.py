"""What rollouts are rewarded by, and which of them a policy gradient may learn from.

The reward of a rollout is its own (`drlib.rewards.functions`); then a control may take its group's labels
away (`rl.reward.labels`), and length may cost something (`rl.reward.overlong_buffer`). Whether an answer is right
is recorded beside it whatever is rewarded: the curve of a control shows it.
"""

from collections.abc import Sequence

import torch

from drlib.config import Config
from drlib.rewards.controls import majority_wrong_answer, shuffle_rewards
from drlib.rewards.functions import Reward, make_reward, soft_overlong_penalty
from drlib.rl.filtering import FilterConfig, Pipeline
from drlib.task import Task, is_correct, normalise_answer
from drlib.training.samples import contexts_of
from drlib.trajectory import Termination, Trajectory, with_reward


def reward_of(config: Config) -> Reward:
    """The reward that `rl.reward.name` names."""
    settings = {"seed": config.seed} if config.rl.reward.name == "random" else {}
    return make_reward(config.rl.reward.name, **settings)


def judged(trajectory: Trajectory, task: Task, reward: Reward) -> Trajectory:
    """With its reward, and whether its answer is right."""
    result = reward(trajectory, task)
    right = is_correct(trajectory.answer, task)
    trajectory.metadata["skill"] = task.skill
    return with_reward(trajectory, result.value, {**result.parts, "correct": float(right)})


def rewarded(
    group: Sequence[Trajectory], task: Task, config: Config, generator: torch.Generator
) -> list[Trajectory]:
    """A question's judged rollouts with the rewards that are trained on.

    generator: of the permutation of `rl.reward.labels=shuffled`.
    """
    rewards = [trajectory.reward for trajectory in group]
    if config.rl.reward.labels == "shuffled":
        rewards = shuffle_rewards(rewards, generator)
    elif config.rl.reward.labels == "wrong":
        rewards = _by_wrong_label(group, task)
    terms = [{} for _ in group]
    if config.rl.reward.overlong_buffer > 0:
        penalties = [_length_penalty(trajectory, config) for trajectory in group]
        terms = [{"length": penalty} for penalty in penalties]
        rewards = [r if r is None else r + p for r, p in zip(rewards, penalties)]
    return [
        with_reward(trajectory, reward, {**trajectory.reward_parts, **term})
        for trajectory, reward, term in zip(group, rewards, terms)
    ]


def _by_wrong_label(group: Sequence[Trajectory], task: Task) -> list[float | None]:
    """1 for the group's most frequent wrong answer; all 0 where it has none."""
    label = majority_wrong_answer([trajectory.answer for trajectory in group], task)

    def reward(trajectory: Trajectory) -> float | None:
        if trajectory.reward is None:
            return None
        answer = trajectory.answer
        return float(label is not None and answer is not None and normalise_answer(answer) == label)

    return [reward(trajectory) for trajectory in group]


def _length_penalty(trajectory: Trajectory, config: Config) -> float:
    """DAPO's, of the longest context: what ended at the limit is as long as the limit, though its
    last turn did not fit into it."""
    limit = config.rollout.max_context_tokens
    length = limit
    if trajectory.termination != Termination.LENGTH:
        length = max(len(context) for context in contexts_of(trajectory))
    penalty = soft_overlong_penalty(torch.tensor([length]), limit, config.rl.reward.overlong_buffer)
    return float(penalty)


def filter_of(config: Config) -> FilterConfig:
    """The filter that the `rl_` switches describe."""
    pipeline = (
        Pipeline(low_weight=config.rl.filter.low_weight) if config.rl.filter.pipeline else None
    )
    return FilterConfig(
        config.rl.filter.overlong, hallucination=config.rl.filter.hallucination, pipeline=pipeline
    )
