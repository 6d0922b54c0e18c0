"""Rewards: what a finished trajectory is worth on its task.

A reward is a function `(trajectory, task) -> RewardResult`. The recipe's is `exact_match`: 1 when
the answer is right, else 0, and nothing for format (Tongyi DeepResearch section 3.4). Its control
is `random_reward`, which looks at nothing: whatever training with it gains is not learning from
reward (Spurious Rewards, arXiv 2506.10947). `format_and_answer` is that of the family's papers
which do pay for form. `REWARDS` has a factory of each by the name that settings use; register yours
there.

A trajectory that an environment fault ran through cannot be judged. Its value is None, never 0:
a 0 would punish the policy for a broken search engine. That holds for a right answer too, since
judging only the lucky half of the faulty trajectories would raise the mean.

Left out: judge models, sums and gates of other rewards.
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


@REWARDS.register("format_and_answer")
def format_and_answer(weight: float = 0.2) -> Reward:
    """R = w r_f + (1 - w) r_a, both 0 or 1: the form of all turns, and the answer.

    r_f is 1 when the attempt ended with an answer and no turn before was refused for its form; r_a
    is `exact_match`. weight: w, in 0..1: 0.2 in WebWatcher (arXiv 2508.05748), 0.1 in WebDancer and
    WebSailor. ValueError: it is outside.
    """
    require(0 <= weight <= 1, f"weight is {weight}: give a share, from 0 to 1")
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
    """s3's reward of a searcher (arXiv 2505.14146): whether the generator is right with what was
    gathered, less whether it is right with the question's own search results; -1, 0 or 1.

    ValueError: the attempt has no "rag_answer" (`drlib.agents.S3` with a generator writes it).
    """
    answer_reward = exact_match()

    def reward(trajectory: Trajectory, task: Task) -> RewardResult:
        require(
            "rag_answer" in trajectory.metadata,
            f"trajectory {trajectory.id} has no answer of plain RAG: rl_reward=gain_beyond_rag is "
            "for s3 with a frozen generator (rl_agent=s3:generate=reader)",
        )
        right = answer_reward(trajectory, task).value
        if right is None:
            return RewardResult(None)
        plain = float(is_correct(trajectory.metadata["rag_answer"], task))
        return RewardResult(right - plain, {"exact_match": right, "rag": plain})

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

    lengths_N: generated tokens of each rollout (ints). limit, buffer: tokens. Returns penalties_N,
    float in [-1, 0]. ValueError: not 0 < buffer <= limit, or a negative length.
    """
    require(0 < buffer <= limit, f"need 0 < buffer <= limit, got {buffer} and {limit}")
    lengths_N = torch.as_tensor(lengths_N).to(torch.get_default_dtype())
    require(not bool((lengths_N < 0).any()), "lengths_N must be >= 0, numbers of tokens")
    return ((limit - buffer - lengths_N) / buffer).clamp(-1.0, 0.0)
