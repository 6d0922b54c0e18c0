"""Rewards built from other rewards: weighted, gated, thresholds, by task, and from judges.

Each term is a name of `REWARDS`, with arguments of its own in `arguments`. If a term could not be
judged (None), neither can the whole, so a broken judge is never a score of 0.
"""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from drlib.rewards.functions import (
    REWARDS,
    Reward,
    RewardResult,
    has_env_fault,
    make_reward,
    training_progress,
)
from drlib.rewards.judges import JUDGES, Verdict
from drlib.task import Task
from drlib.trajectory import Trajectory
from drlib.validation import require

Arguments = Mapping[str, Mapping[str, Any]]  # name of a term -> its arguments


@REWARDS.register("judged")
def judged(
    judge: str = "rules",
    graded: bool = False,
    threshold: float = 0.0,
    arguments: Mapping[str, Any] | None = None,
    threads: int = 1,
) -> Reward:
    """Create the reward of a judge: 1 if the answer is correct, else 0.

    Args:
        judge: key of `JUDGES`, such as "math", "squad" or "llm" (a generative judge).
        graded: reward the judge's score, such as F1, instead of its verdict.
        threshold: with `graded`, lower scores are 0.
        arguments: of the judge, such as {"url": "http://host:8000/v1", "model": "name"} of "llm".
        threads: rollouts judged at the same time, for judges that wait for a server.

    Raises:
        ValueError: unknown judge or arguments, or a threshold without `graded` or outside 0..1.
    """
    require(0 <= threshold <= 1, f"threshold={threshold} must be in [0, 1]")
    require(graded or not threshold, "threshold needs graded=true: a verdict is 0 or 1")
    if judge == "llm":
        from drlib.rewards import llm_judge  # noqa: F401 - registers it; needs a client of servers
    try:
        decide = JUDGES[judge](**(arguments or {}))
    except TypeError as error:
        raise ValueError(f"judge {judge!r} cannot be made with {arguments}: {error}") from error

    def reward(trajectory: Trajectory, task: Task) -> RewardResult:
        if has_env_fault(trajectory):
            return RewardResult(None)
        found = decide(task.question, trajectory.answer, (task.answer, *task.aliases))
        if found.verdict is Verdict.JUDGE_ERROR:
            return RewardResult(None)
        score = found.score if graded else float(found.verdict is Verdict.CORRECT)
        score = score if score >= threshold else 0.0
        return RewardResult(score, {judge: score})

    vars(reward)["threads"] = threads  # read by `make_reward`
    return reward


@REWARDS.register("weighted")
def weighted(weights: Mapping[str, float], arguments: Arguments | None = None) -> Reward:
    """Create the weighted mean of several rewards (V-Triune, arXiv 2505.18129).

    Args:
        weights: name of each reward -> weight above 0, relative to the sum of all.

    Raises:
        ValueError: no weights, a weight that is not positive, or arguments of another name.
    """
    require(bool(weights), 'weighted needs weights, such as {"exact_match": 1, "format": 0.1}')
    wrong = {name: weight for name, weight in weights.items() if not weight > 0}
    require(not wrong, f"weights must be above 0, got {wrong}")
    terms = _make_terms(list(weights), arguments)
    total = sum(weights.values())

    def reward(trajectory: Trajectory, task: Task) -> RewardResult:
        values, parts = _judge_terms(terms, trajectory, task)
        if values is None:
            return RewardResult(None, parts)
        mean = sum(weights[name] * value for name, value in values.items()) / total
        return RewardResult(mean, parts)

    return reward


@REWARDS.register("gated")
def gated(
    *,
    gate: str = "exact_match",
    weights: Mapping[str, float],
    share: float = 0.2,
    arguments: Arguments | None = None,
) -> Reward:
    """Create a reward whose gate no other term can outvote (GLM-5, arXiv 2602.15763, section 3.4).

    R = g (1 - share + share m), with the gate g in {0, 1} and the weighted mean m of the other
    terms, in [0, 1]. A rollout that fails the gate gets 0, any other at least 1 - share.

    Args:
        gate: name of a reward that is 0 or 1.
        weights: see `weighted`.
        share: in [0, 1).

    Raises:
        ValueError: share out of range; (the reward) a gate or a mean out of range.
    """
    require(0 <= share < 1, f"share={share} must be in [0, 1): at 1 the gate could be outvoted")
    names = [gate, *weights]
    require(len(set(names)) == len(names), f"{gate!r} is the gate: leave it out of weights")
    known = dict(arguments or {})
    _check_arguments(names, known)
    opens = make_reward(gate, **known.pop(gate, {}))
    rest = weighted(weights, known)

    def reward(trajectory: Trajectory, task: Task) -> RewardResult:
        first, others = opens(trajectory, task), rest(trajectory, task)
        parts = {**others.parts, **first.parts}
        if first.value is None or others.value is None:
            return RewardResult(None, parts)
        require(
            first.value in (0, 1) and 0 <= others.value <= 1,
            f"gated: the gate {gate} is {first.value}, the mean of the others {others.value} for "
            f"{trajectory.id}: the gate must be 0 or 1, the mean within 0..1",
        )
        return RewardResult(first.value * (1 - share + share * others.value), parts)

    return reward


@REWARDS.register("all_of")
def all_of(rewards: Sequence[str], arguments: Arguments | None = None) -> Reward:
    """Create the smallest of several rewards; with rewards of 0 and 1, their conjunction."""
    require(bool(rewards), 'all_of needs rewards, such as ["exact_match", "format"]')
    terms = _make_terms(rewards, arguments)

    def reward(trajectory: Trajectory, task: Task) -> RewardResult:
        values, parts = _judge_terms(terms, trajectory, task)
        return RewardResult(None if values is None else min(values.values()), parts)

    return reward


@REWARDS.register("inverse")
def inverse(reward: str = "exact_match", arguments: Arguments | None = None) -> Reward:
    """Create the control 1 - R of a reward (Spurious Rewards, arXiv 2506.10947)."""
    (term,) = _make_terms([reward], arguments).values()

    def inverted(trajectory: Trajectory, task: Task) -> RewardResult:
        found = term(trajectory, task)
        return RewardResult(None if found.value is None else 1 - found.value, found.parts)

    return inverted


@REWARDS.register("by_kind")
def by_kind(rewards: Mapping[str, str], arguments: Arguments | None = None) -> Reward:
    """Create a reward that each kind of task selects (verifiers by sample of V-Triune).

    The terms are logged as KIND/TERM, so the curves of different kinds stay apart.

    Args:
        rewards: `Task.kind` -> name of its reward.

    Raises:
        ValueError: no rewards; (the reward) a task of another kind.
    """
    require(bool(rewards), 'by_kind needs rewards, such as {"python": "judged"}')
    terms = _make_terms(list(dict.fromkeys(rewards.values())), arguments)

    def reward(trajectory: Trajectory, task: Task) -> RewardResult:
        require(
            task.kind in rewards,
            f"by_kind has no reward for task {task.id} of kind {task.kind!r}, only for "
            f"{', '.join(rewards)}",
        )
        found = terms[rewards[task.kind]](trajectory, task)
        parts = {f"{task.kind}/{name}": value for name, value in found.parts.items()}
        return RewardResult(found.value, parts)

    return reward


@REWARDS.register("by_task")
def by_task(default: str = "exact_match", arguments: Mapping[str, Any] | None = None) -> Reward:
    """Create a reward that each task chooses (rewards as data, V-Triune, arXiv 2505.18129).

    `Task.verifier` is JSON: {"reward": NAME, "arguments": {...}}. The reward and its terms are
    logged as KIND/NAME, so there are curves for each kind of task.

    Args:
        default: name of the reward of tasks without a verifier.
        arguments: of `default`.

    Raises:
        ValueError: (the reward) the verifier is unknown, lacks an argument or fails; the message
            names the task.
    """
    fallback = make_reward(default, **(arguments or {}))
    make_verifier = lru_cache(maxsize=256)(_make_verifier)  # tasks share most verifiers

    def reward(trajectory: Trajectory, task: Task) -> RewardResult:
        try:
            name, judge = make_verifier(task.verifier) if task.verifier else (default, fallback)
            found = judge(trajectory, task)
        except Exception as error:  # of any type: a verifier may be the user's code
            raise ValueError(
                f"task {task.id}, verifier {task.verifier or default!r}: "
                f"{type(error).__name__}: {error}"
            ) from error
        terms = found.parts if found.value is None else {**found.parts, name: found.value}
        return RewardResult(found.value, {f"{task.kind}/{key}": x for key, x in terms.items()})

    return reward


def _make_verifier(text: str) -> tuple[str, Reward]:
    """Create the reward described by `Task.verifier`; return its name and the reward."""
    verifier = json.loads(text)
    is_form = isinstance(verifier, dict) and {"reward"} <= {*verifier} <= {"reward", "arguments"}
    require(is_form, 'a verifier is {"reward": name, "arguments": {...}}')
    require(verifier["reward"] != "by_task", "a verifier cannot be by_task itself")
    return verifier["reward"], make_reward(verifier["reward"], **verifier.get("arguments", {}))


@REWARDS.register("threshold")
def above_threshold(
    *,
    schedule: Sequence[Sequence[float]],
    reward: str = "judged",
    arguments: Arguments | None = None,
) -> Reward:
    """Create a graded reward that is 0 below a threshold that rises (V-Triune's dynamic IoU).

    Args:
        schedule: [share, threshold] pairs with rising shares; the first pair whose share is not
            exceeded by the share of training done is in force. V-Triune uses
            [[0.1, 0.85], [0.25, 0.95], [1, 0.99]].
        reward: name of the graded reward.

    Raises:
        ValueError: the shares do not rise to 1.
    """
    pairs = [(float(share), float(least)) for share, least in schedule]
    shares = [0.0, *(share for share, _ in pairs)]
    is_rising = all(low < high for low, high in zip(shares, shares[1:]))
    require(
        bool(pairs) and is_rising and shares[-1] == 1,
        f"schedule={schedule}: the shares must rise from above 0 to 1, such as [[0.1, 0.5], [1, "
        "0.9]]",
    )
    (term,) = _make_terms([reward], arguments).values()

    def graded(trajectory: Trajectory, task: Task) -> RewardResult:
        done = training_progress(trajectory)
        least = next(least for share, least in pairs if done <= share)
        found = term(trajectory, task)
        if found.value is None:
            return found
        kept = found.value if found.value >= least else 0.0
        return RewardResult(kept, {**found.parts, "threshold": least})

    return graded


def _make_terms(names: Sequence[str], arguments: Arguments | None) -> dict[str, Reward]:
    """Create the rewards of the terms; ValueError for repeated names or arguments of others."""
    require(len(set(names)) == len(names), f"rewards must differ, got {', '.join(names)}")
    known = dict(arguments or {})
    _check_arguments(names, known)
    return {name: make_reward(name, **known.get(name, {})) for name in names}


def _check_arguments(names: Sequence[str], arguments: Arguments) -> None:
    others = sorted({*arguments} - {*names})
    require(
        not others, f"arguments for {', '.join(others)}, but the rewards are {', '.join(names)}"
    )


def _judge_terms(
    terms: Mapping[str, Reward], trajectory: Trajectory, task: Task
) -> tuple[dict[str, float] | None, dict[str, float]]:
    """Return the value of each term (None if one could not be judged), and all their parts."""
    found = {name: term(trajectory, task) for name, term in terms.items()}
    parts = {name: part for result in found.values() for name, part in result.parts.items()}
    values = {name: result.value for name, result in found.items() if result.value is not None}
    return (values if len(values) == len(found) else None), parts
