"""Rewards: functions from a finished trajectory and its task to a number.

A reward is a function `(trajectory, task) -> RewardResult`. The default is `exact_match`: 1 if the
answer is right, else 0, without a format term (Tongyi DeepResearch section 3.4). `random_reward` is
its control: any gain from training with it is not due to the reward (Spurious Rewards, arXiv
2506.10947). `format_and_answer` is the reward of related papers with a format term. `REWARDS` maps
setting names to factories; register your own there.

A trajectory with an environment fault cannot be judged. Its value is None, never 0, which would
punish the policy for a broken search engine. That also holds for right answers: judging only the
successful part of the faulty trajectories would raise the mean.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from drlib.registry import Registry
from drlib.task import Task, is_correct, normalise_answer
from drlib.trajectory import Termination, Trajectory
from drlib.validation import require


@dataclass(frozen=True)
class RewardResult:
    """The reward of a trajectory, None if it cannot be judged, and its terms."""

    value: float | None
    parts: dict[str, float] = field(default_factory=dict)


Reward = Callable[[Trajectory, Task], RewardResult]
REWARDS = Registry("reward")  # name -> factory(**settings) -> Reward


@REWARDS.register("exact_match")
def exact_match() -> Reward:
    """Create the reward that is 1 if `trajectory.answer` is the answer or an alias, else 0."""

    def reward(trajectory: Trajectory, task: Task) -> RewardResult:
        if has_env_fault(trajectory):
            return RewardResult(None)
        accepted = all(normalise_answer(text) for text in (task.answer, *task.aliases))
        require(accepted, f"task {task.id} accepts an empty answer: set a non-empty one")
        right = is_correct(trajectory.answer, task)
        return RewardResult(float(right), {"exact_match": float(right)})

    return reward


@REWARDS.register("format_and_answer")
def format_and_answer(weight: float = 0.2) -> Reward:
    """Create the reward R = w r_f + (1 - w) r_a: format of all turns, and answer, both 0 or 1.

    r_f is 1 if the rollout ended with an answer and no turn was refused for its format; r_a is
    `exact_match`.

    Args:
        weight: w in [0, 1]; 0.2 in WebWatcher (arXiv 2508.05748), 0.1 in WebDancer and WebSailor.

    Raises:
        ValueError: weight out of range.
    """
    require(0 <= weight <= 1, f"weight={weight} must be in [0, 1]")
    answer_reward = exact_match()

    def reward(trajectory: Trajectory, task: Task) -> RewardResult:
        right = answer_reward(trajectory, task).value
        if right is None:
            return RewardResult(None)
        refused = any(result.error == "format" for result in trajectory.tool_results)
        formed = float(trajectory.termination == Termination.ANSWERED and not refused)
        parts = {"format": formed, "exact_match": right}
        return RewardResult(weight * formed + (1 - weight) * right, parts)

    return reward


@REWARDS.register("gain_beyond_rag")
def gain_beyond_rag() -> Reward:
    """Create s3's reward of a searcher (arXiv 2505.14146): -1, 0 or 1.

    1 if the generator is right with the gathered documents, minus 1 if it is right with the
    question's own search results.

    Raises:
        ValueError: (the reward) the trajectory has no "rag_answer", which `drlib.agents.S3` with a
            generator records.
    """
    answer_reward = exact_match()

    def reward(trajectory: Trajectory, task: Task) -> RewardResult:
        require(
            "rag_answer" in trajectory.metadata,
            f"trajectory {trajectory.id} has no answer of plain RAG: gain_beyond_rag needs s3 with "
            "a frozen generator (s3:generate=reader)",
        )
        right = answer_reward(trajectory, task).value
        if right is None:
            return RewardResult(None)
        plain = float(is_correct(trajectory.metadata["rag_answer"], task))
        return RewardResult(right - plain, {"exact_match": right, "rag": plain})

    return reward


@REWARDS.register("random")
def random_reward(seed: int = 0) -> Reward:
    """Create the control reward: a fair coin keyed by (seed, trajectory id).

    It does not depend on order, batch or process. Ids must differ between steps, otherwise the
    coins repeat.
    """

    def reward(trajectory: Trajectory, task: Task) -> RewardResult:
        if has_env_fault(trajectory):
            return RewardResult(None)
        key = f"random_reward|{seed}|{trajectory.id}".encode("utf-8", "surrogatepass")
        coin = float(hashlib.sha256(key).digest()[0] & 1)
        return RewardResult(coin, {"random": coin})

    return reward


def make_reward(name: str, **settings) -> Reward:
    """Create the reward registered as `name`. ValueError: unknown name, with the nearest one."""
    return REWARDS[name](**settings)


def has_env_fault(trajectory: Trajectory) -> bool:
    """Return True if the environment failed during the trajectory."""
    failed = any(result.env_fault for result in trajectory.tool_results)
    return failed or trajectory.termination == Termination.ENV_FAULT


def soft_overlong_penalty(lengths_N: Tensor, limit: int, buffer: int) -> Tensor:
    """Return DAPO's length penalty (arXiv 2503.14476): 0, then linear, then -1.

    0 up to `limit - buffer` tokens, ((limit - buffer) - length) / buffer within the buffer, -1
    beyond `limit`. Add it to the rewards; DAPO uses limit 20,480 and buffer 4,096.

    Args:
        lengths_N: int, generated tokens of each rollout.
        limit, buffer: tokens.

    Returns:
        penalties_N, float in [-1, 0].

    Raises:
        ValueError: not 0 < buffer <= limit, or a negative length.

    >>> soft_overlong_penalty(torch.tensor([50, 90, 120]), limit=100, buffer=20).tolist()
    [0.0, -0.5, -1.0]
    """
    require(0 < buffer <= limit, f"need 0 < buffer <= limit, got {buffer} and {limit}")
    lengths_N = torch.as_tensor(lengths_N).to(torch.get_default_dtype())
    require(not bool((lengths_N < 0).any()), "lengths_N must be >= 0")
    return ((limit - buffer - lengths_N) / buffer).clamp(-1.0, 0.0)
