"""Rewards: functions from a finished trajectory and its task to a number.

A reward is a function of a finished trajectory and its task that returns a number. A factory is
called with the settings of the reward and returns a function `(trajectory, task) -> RewardResult`,
which can also report the terms.

The default is `exact_match`: 1 if the answer is right, else 0, without a format term (Tongyi
DeepResearch section 3.4). `random_reward` is its control: any gain from training with it is not due
to the reward (Spurious Rewards, arXiv 2506.10947). `format_and_answer` is the reward of related
papers with a format term. `REWARDS` maps setting names to functions and factories; register your
own there.

A trajectory with an environment fault cannot be judged. Its value is None, never 0, which would
punish the policy for a broken search engine. That also holds for right answers: judging only the
successful part of the faulty trajectories would raise the mean.
"""

import hashlib
import inspect
import math
import numbers
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from drlib.registry import Registry
from drlib.task import Task, is_correct, normalise_answer
from drlib.trajectory import Termination, ToolResult, Trajectory
from drlib.validation import require

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class RewardResult:
    """The reward of a trajectory, None if it cannot be judged, and its terms."""

    value: float | None
    parts: dict[str, float] = field(default_factory=dict)


Reward = Callable[[Trajectory, Task], RewardResult]
REWARDS = Registry("reward")  # name -> function(trajectory, task) or factory(**settings)
# Rewards that depend on the other rollouts of a question: name -> function from the judged group
# to its rewards. Without an entry, a rollout's reward is its own.
GROUP_REWARDS: dict[str, Callable[[Sequence[Trajectory]], list[float | None]]] = {}


@REWARDS.register("exact_match")
def exact_match() -> Reward:
    """Create the reward that is 1 if the task is solved, else 0 (`is_solved`)."""

    def reward(trajectory: Trajectory, task: Task) -> RewardResult:
        if has_env_fault(trajectory):
            return RewardResult(None)
        accepted = all(normalise_answer(text) for text in (task.answer, *task.aliases))
        require(
            accepted or bool(task.environment),
            f"task {task.id} accepts an empty answer: set a non-empty one",
        )
        right = is_solved(trajectory, task)
        return RewardResult(float(right), {"exact_match": float(right)})

    return reward


@REWARDS.register("verified")
def verified() -> Reward:
    """Create the reward that is the score of the task's environment, in [0, 1].

    For a task without an environment it is `exact_match`.
    """

    def reward(trajectory: Trajectory, task: Task) -> RewardResult:
        if has_env_fault(trajectory):
            return RewardResult(None)
        if task.environment:
            score = verification_score(trajectory, task)
        else:
            score = float(is_solved(trajectory, task))
        return RewardResult(score, {"verified": score})

    return reward


@REWARDS.register("format")
def well_formed() -> Reward:
    """Create the control reward of the format alone (Spurious Rewards, arXiv 2506.10947).

    1 if the rollout ended with an answer, right or wrong, and no turn was refused for its format.
    """

    def reward(trajectory: Trajectory, task: Task) -> RewardResult:
        if has_env_fault(trajectory):
            return RewardResult(None)
        formed = is_well_formed(trajectory)
        return RewardResult(formed, {"format": formed})

    return reward


def is_well_formed(trajectory: Trajectory) -> float:
    """Return 1 if the rollout ended with an answer and no turn was refused for its format."""
    refused = any(result.error == "format" for result in trajectory.tool_results)
    return float(trajectory.termination == Termination.ANSWERED and not refused)


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
        formed = is_well_formed(trajectory)
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
    """Create the reward registered as `name`.

    Args:
        settings: of the factory, or further arguments of the function.

    Raises:
        ValueError: unknown name, with the nearest one, or settings that the reward does not have.
    """
    entry = REWARDS[name]
    required = [p for p in inspect.signature(entry).parameters.values() if p.default is p.empty]
    plain = [p for p in required if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    is_function = len(plain) == 2
    try:
        if is_function:
            inspect.signature(entry).bind(None, None, **settings)
            return partial(_judge, name, partial(entry, **settings))
        made = entry(**settings)
    except TypeError as error:
        known = [p for p in inspect.signature(entry).parameters if p not in {q.name for q in plain}]
        raise ValueError(
            f"reward {name!r} cannot be made with {settings}: {error}; "
            f"its arguments: {', '.join(known) or 'none'}"
        ) from error
    if not callable(made):
        raise ValueError(
            f"reward {name!r} returned {made!r} instead of a function: register a function of "
            "(trajectory, task), or a factory that returns one"
        )
    checked = partial(_check, name, made)
    vars(checked)["threads"] = getattr(made, "threads", 1)  # rollouts that it can judge at once
    return checked


def _judge(name: str, function: Callable, trajectory: Trajectory, task: Task) -> RewardResult:
    """Call a reward function; environment faults are not judged."""
    if has_env_fault(trajectory):
        return RewardResult(None)
    return _check(name, function, trajectory, task)


def _check(name: str, function: Callable, trajectory: Trajectory, task: Task) -> RewardResult:
    """Return the result of a reward; a number is its only term.

    Raises:
        TypeError: not a number, None or `RewardResult`.
        ValueError: NaN or infinity.
    """
    result = function(trajectory, task)
    if _is_number(result):
        result = RewardResult(float(result), {name: float(result)})
    elif result is None:
        result = RewardResult(None)
    if not isinstance(result, RewardResult):
        raise TypeError(
            f"reward {name!r} returned {type(result).__name__} for {trajectory.id}: return a "
            "number, None if the rollout cannot be judged, or a RewardResult"
        )
    for term, value in ((name, result.value), *result.parts.items()):
        if value is not None and not math.isfinite(value):
            raise ValueError(
                f"reward {name!r}: {term} is {value} for {trajectory.id} of task {task.id}"
            )
    return result


def _is_number(result: object) -> bool:
    """Return True for a number or a tensor."""
    torch = sys.modules.get("torch")  # a tensor exists only if somebody has imported torch
    is_tensor = torch is not None and isinstance(result, torch.Tensor)
    return is_tensor or isinstance(result, numbers.Real | np.number | np.bool_)


def check_reward(name: str, **settings) -> None:
    """Call a reward with a right, a wrong and a missing answer, before a run starts.

    Raises:
        ValueError: the reward raised an error, or its arguments are wrong.
    """
    reward = make_reward(name, **settings)
    task = Task("check", "What is the capital of Norway?", "Oslo", "search", "check")
    for answer in ("Oslo", "Bergen", None):
        try:
            reward(_example(answer), task)
        except Exception as error:  # of any type: it is the user's code
            frame = traceback.extract_tb(error.__traceback__)[-1]
            raise ValueError(
                f"reward {name!r} fails for an example rollout ({Path(frame.filename).name}, line "
                f"{frame.lineno}): {type(error).__name__}: {error}"
            ) from error


def _example(answer: str | None) -> Trajectory:
    """Return a rollout of one search and one answer."""
    n = 4
    text = f"<think>I know.</think><answer>{answer}</answer>"
    return Trajectory(
        id="0-0-0",
        task_id="check",
        group_id="0-0",
        world_version="check",
        policy_version=0,
        token_ids=np.arange(n, dtype=np.int32),
        generated=np.array([False, True, False, True]),
        logprobs=np.zeros(n, np.float32),
        entropies=np.zeros(n, np.float32),
        segments=np.zeros(n, np.uint8),
        turns=np.array([0, 0, 1, 1], np.uint16),
        versions=np.zeros(n, np.int32),
        routed_experts=None,
        tool_results=[ToolResult("search", {"query": ["Norway"]}, "1. [Norway](x)", True, "")],
        termination=Termination.TURNS if answer is None else Termination.ANSWERED,
        answer=answer,
        reward=None,
        reward_parts={},
        messages=[
            {"role": "user", "content": "What is the capital of Norway?"},
            {"role": "assistant", "content": "<think>Look.</think>"},
            {"role": "tool", "content": "1. [Norway](x)"},
            {"role": "assistant", "content": text},
        ],
        metadata={"rag_answer": answer, "question": "What is the capital of Norway?"},
    )


def verification_score(trajectory: Trajectory, task: Task) -> float:
    """Return the score in [0, 1] that the task's environment gave the rollout.

    Raises:
        ValueError: the rollout was not verified.
    """
    found = trajectory.metadata.get("verification")
    if found is None:
        raise ValueError(
            f"rollout {trajectory.id} of task {task.id} was not verified: run it with a toolbox "
            f"that has the environment {task.kind!r}"
        )
    return found["score"]


def is_solved(trajectory: Trajectory, task: Task) -> bool:
    """Return True if the answer is correct, or the task's environment gave the full score.

    A rollout with an environment fault is not solved.
    """
    if not task.environment:
        return is_correct(trajectory.answer, task)
    if trajectory.termination == Termination.ENV_FAULT:
        return False
    return verification_score(trajectory, task) >= 1


def has_env_fault(trajectory: Trajectory) -> bool:
    """Return True if the environment failed during the trajectory."""
    failed = any(result.env_fault for result in trajectory.tool_results)
    return failed or trajectory.termination == Termination.ENV_FAULT


def training_progress(trajectory: Trajectory) -> float:
    """Return the share of training done when the rollout was sampled; 1 outside training."""
    return trajectory.metadata.get("progress", 1.0)


def soft_overlong_penalty(lengths_N: "Tensor", limit: int, buffer: int) -> "Tensor":
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

    >>> import torch
    >>> soft_overlong_penalty(torch.tensor([50, 90, 120]), limit=100, buffer=20).tolist()
    [0.0, -0.5, -1.0]
    """
    import torch  # the only reward that needs it

    require(0 < buffer <= limit, f"need 0 < buffer <= limit, got {buffer} and {limit}")
    lengths_N = torch.as_tensor(lengths_N).to(torch.get_default_dtype())
    require(not bool((lengths_N < 0).any()), "lengths_N must be >= 0")
    return ((limit - buffer - lengths_N) / buffer).clamp(-1.0, 0.0)
