"""Rewards: what a finished trajectory is worth on its task.

A reward is a function `(trajectory, task) -> RewardResult`. The recipe's is `exact_match`: 1 when
the answer is right, else 0, and nothing for format (Tongyi DeepResearch section 3.4). Its control
is `random_reward`, which looks at nothing: whatever training with it gains is not learning from
reward (Spurious Rewards, arXiv 2506.10947). `REWARDS` names the factories for settings files.

A trajectory that an environment fault ran through cannot be judged. Its value is None, never 0:
a 0 would punish the policy for a broken search engine. That holds for a right answer too, since
judging only the lucky half of the faulty trajectories would raise the mean.

Left out: judge models, format rewards, weighted sums and gates of several rewards.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

from drlib.checks import require
from drlib.task import Task, is_correct, normalise_answer
from drlib.trajectory import Termination, Trajectory


@dataclass(frozen=True)
class RewardResult:
    """A trajectory's reward, None when it cannot be judged, and the terms that made it up."""

    value: float | None
    parts: dict[str, float] = field(default_factory=dict)


Reward = Callable[[Trajectory, Task], RewardResult]


def exact_match() -> Reward:
    """1 when `trajectory.answer` is the task's answer or an alias, else 0."""

    def reward(trajectory: Trajectory, task: Task) -> RewardResult:
        if has_env_fault(trajectory):
            return RewardResult(None)
        accepted = all(normalise_answer(text) for text in (task.answer, *task.aliases))
        require(accepted, f"task {task.id} accepts an empty answer; give it a real one")
        right = is_correct(trajectory.answer, task)
        return RewardResult(float(right), {"exact_match": float(right)})

    return reward


def random_reward(seed: int = 0) -> Reward:
    """The control: a fair coin keyed by (seed, trajectory id), the same in any order, batch and
    process. Ids must differ between steps or the coins repeat."""

    def reward(trajectory: Trajectory, task: Task) -> RewardResult:
        if has_env_fault(trajectory):
            return RewardResult(None)
        key = f"random_reward|{seed}|{trajectory.id}".encode("utf-8", "surrogatepass")
        coin = float(hashlib.sha256(key).digest()[0] & 1)
        return RewardResult(coin, {"random": coin})

    return reward


REWARDS: dict[str, Callable[..., Reward]] = {"exact_match": exact_match, "random": random_reward}


def make_reward(name: str, **settings) -> Reward:
    """The reward called `name` in REWARDS; ValueError listing the names when there is none."""
    require(name in REWARDS, f"no reward is called {name!r}; there are {', '.join(REWARDS)}")
    return REWARDS[name](**settings)


def has_env_fault(trajectory: Trajectory) -> bool:
    """Whether the environment, not the policy, failed somewhere in the trajectory."""
    failed = any(result.env_fault for result in trajectory.tool_results)
    return failed or trajectory.termination == Termination.ENV_FAULT
