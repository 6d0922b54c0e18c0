"""Rewards: what a finished trajectory is worth on its task.

A reward is a function `(trajectory, task) -> RewardResult`. The recipe's is `exact_match`: 1 when
the answer is right, else 0, and nothing for format (Tongyi DeepResearch section 3.4). Its control
is `random_reward`, which looks at nothing: whatever training with it gains is not learning from
reward (Spurious Rewards, arXiv 2506.10947). `REWARDS` has a factory of each by the name that
settings use; register yours there.

A trajectory that an environment fault ran through cannot be judged. Its value is None, never 0:
a 0 would punish the policy for a broken search engine. That holds for a right answer too, since
judging only the lucky half of the faulty trajectories would raise the mean.

Left out: judge models, format rewards, weighted sums and gates of several rewards.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from drlib.checks import require
from drlib.registry import Registry
from drlib.task import Task, is_correct, normalise_answer
from drlib.trajectory import Termination, Trajectory


@dataclass(frozen=True)
class RewardResult:
    """A trajectory's reward, None when it cannot be judged, and the terms that made it up."""

    value: float | None
    parts: dict[str, float] = field(default_factory=dict)


Reward = Callable[[Trajectory, Task], RewardResult]
REWARDS = Registry("reward")  # name -> factory(**settings) -> Reward


@REWARDS.register("exact_match")
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


@REWARDS.register("random")
def random_reward(seed: int = 0) -> Reward:
    """The control: a fair coin keyed by (seed, trajectory id).

    It falls the same in any order, batch and process. Ids must differ between steps or the coins
    repeat.
    """

    def reward(trajectory: Trajectory, task: Task) -> RewardResult:
        if has_env_fault(trajectory):
            return RewardResult(None)
        key = f"random_reward|{seed}|{trajectory.id}".encode("utf-8", "surrogatepass")
        coin = float(hashlib.sha256(key).digest()[0] & 1)
        return RewardResult(coin, {"random": coin})

    return reward


def make_reward(name: str, **settings) -> Reward:
    """The reward registered as `name`; ValueError, with the nearest name, when there is none."""
    return REWARDS[name](**settings)


def has_env_fault(trajectory: Trajectory) -> bool:
    """Whether the environment, not the policy, failed somewhere in the trajectory."""
    failed = any(result.env_fault for result in trajectory.tool_results)
    return failed or trajectory.termination == Termination.ENV_FAULT


def soft_overlong_penalty(lengths_N: Tensor, limit: int, buffer: int) -> Tensor:
    """DAPO's reward term for length (arXiv 2503.14476): 0, then linear, then -1.

    0 up to `limit - buffer` tokens, ((limit - buffer) - length) / buffer within the buffer, -1
    beyond `limit`. Add it to the rewards; DAPO's own numbers are limit 20,480 and buffer 4,096.
    Function only: no run uses it yet.

    lengths_N: generated tokens of each rollout (ints). limit, buffer: tokens. Returns penalties_N,
    float in [-1, 0]. ValueError: not 0 < buffer <= limit, or a negative length.
    """
    require(0 < buffer <= limit, f"need 0 < buffer <= limit, got {buffer} and {limit}")
    lengths_N = torch.as_tensor(lengths_N).to(torch.get_default_dtype())
    require(not bool((lengths_N < 0).any()), "lengths_N must be >= 0, numbers of tokens")
    return ((limit - buffer - lengths_N) / buffer).clamp(-1.0, 0.0)
