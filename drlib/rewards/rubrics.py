"""Rubrics as reward: short criteria of a question, of which a rollout meets some (RLER of DR Tulu).

The criteria come from the question's chain and from the tool calls, and are checked by rules.
Within a group, criteria that all or no rollouts meet are dropped, and of the others the ACTIVE ones
with the largest standard deviation are kept. DR Tulu writes and scores its criteria with a language
model and keeps them in a buffer per question; here they are selected anew for each group.

Criteria do not check the answer. Put them behind a gate: {"gate": "exact_match", "weights":
{"rubrics": 1}}.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from drlib.rewards.entity_credit import named_share
from drlib.rewards.functions import GROUP_REWARDS, REWARDS, RewardResult
from drlib.task import Task, normalise_answer
from drlib.trajectory import Trajectory

ACTIVE = 5  # criteria of a group that are rewarded
PREFIX = "rubric/"  # of their names in `reward_parts`


class Rubric(NamedTuple):
    """A criterion: its name, its text, and its check."""

    name: str
    text: str
    is_met: Callable[[Trajectory], bool]


def write_rubrics(task: Task) -> list[Rubric]:
    """Return the criteria of a question: the entities of its chain, and sound research."""
    entities = [
        Rubric(f"entity_{i}", f"The thoughts name {entity}.", _names(entity))
        for i, entity in enumerate(task.entities[:-1], 1)
    ]
    return [
        *entities,
        Rubric("searches", "At least one tool call succeeds.", _searches),
        Rubric("supported", "A tool response contains the answer.", _is_supported),
        Rubric("no_error", "No tool call fails.", lambda t: all(r.ok for r in t.tool_results)),
        Rubric("no_repeat", "No tool call is repeated.", _repeats_nothing),
    ]


def _names(entity: str) -> Callable[[Trajectory], bool]:
    return lambda trajectory: named_share(trajectory, [entity]) == 1


def _searches(trajectory: Trajectory) -> bool:
    return any(result.ok for result in trajectory.tool_results)


def _is_supported(trajectory: Trajectory) -> bool:
    answer = normalise_answer(trajectory.answer or "")
    texts = [normalise_answer(result.text) for result in trajectory.tool_results]
    return bool(answer) and any(answer in text for text in texts)


def _repeats_nothing(trajectory: Trajectory) -> bool:
    calls = [repr((result.tool, result.arguments)) for result in trajectory.tool_results]
    return len(set(calls)) == len(calls)


@REWARDS.register("rubrics")
def rubrics(trajectory: Trajectory, task: Task) -> RewardResult:
    """Return the share of the question's criteria that the rollout meets; terms: rubric/NAME."""
    parts = {PREFIX + r.name: float(r.is_met(trajectory)) for r in write_rubrics(task)}
    return RewardResult(sum(parts.values()) / len(parts), parts)


def select_rubrics(scores_NR: np.ndarray, active: int = ACTIVE) -> np.ndarray:
    """Return the columns with the largest standard deviation, without those that have none.

    Args:
        scores_NR: 0 or 1, R criteria of N rollouts.
        active: maximum number of columns.

    >>> select_rubrics(np.array([[1, 0, 1], [1, 1, 1], [1, 1, 0], [1, 0, 1]]), 2).tolist()
    [1, 2]
    """
    spread_R = scores_NR.std(axis=0)
    order_R = np.argsort(-spread_R, kind="stable")[:active]
    return np.sort(order_R[spread_R[order_R] > 0])


def reward_discriminating(group: Sequence[Trajectory]) -> list[float | None]:
    """Return the share of the selected criteria that each rollout of a judged group meets."""
    judged = [t for t in group if t.reward is not None]
    if not judged:
        return [None] * len(group)
    names = [name for name in judged[0].reward_parts if name.startswith(PREFIX)]
    scores_NR = np.array([[t.reward_parts[name] for name in names] for t in judged])
    kept = select_rubrics(scores_NR)
    if not len(kept):
        return [t.reward for t in group]
    means = iter(scores_NR[:, kept].mean(axis=1).tolist())
    return [None if t.reward is None else next(means) for t in group]


GROUP_REWARDS["rubrics"] = reward_discriminating
