"""Rewards of a trained outcome model: its probability, and the mixed reward of VLAA-Thinking.

`drlib rewards train` trains the model on judged rollouts. The model reads the token ids of the
rollout, so it needs the policy's tokenizer. A learned reward can be exploited: gate it (`gated`),
and compare it with the accuracy during training.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from drlib.chat.template import ChatIds, load_tokenizer
from drlib.rewards.functions import REWARDS, Reward, RewardResult, has_env_fault
from drlib.task import Task
from drlib.trajectory import Segment, Trajectory
from drlib.validation import require

if TYPE_CHECKING:
    from drlib.models.outcome_scorer import OutcomeScorer


def load_scorer(path: str) -> "OutcomeScorer":
    from drlib.models.outcome_scorer import load_outcome_scorer  # imports transformers: slow

    return load_outcome_scorer(path)


def last_context(trajectory: Trajectory) -> list[int]:
    """Return the token ids that the policy saw when it answered."""
    ids_T = trajectory.token_ids
    if trajectory.contexts is not None:
        ids_T = ids_T[trajectory.contexts == trajectory.contexts.max()]
    return ids_T.tolist()


@REWARDS.register("outcome_model")
def outcome_model(*, path: str) -> Reward:
    """Create the reward of an outcome model: the probability that the rollout is right.

    Args:
        path: folder of the model.

    Raises:
        ValueError: no outcome model there.
    """
    scorer = load_scorer(path)

    def reward(trajectory: Trajectory, task: Task) -> RewardResult:
        if has_env_fault(trajectory):
            return RewardResult(None)
        chance = 1 / (1 + math.exp(-scorer.score(last_context(trajectory))))
        return RewardResult(chance, {"outcome_model": chance})

    return reward


def replace_answer(trajectory: Trajectory, answer_ids: Sequence[int]) -> list[int]:
    """Return the last context with other tokens in its last answer."""
    ids, segments_T = last_context(trajectory), trajectory.segments
    if trajectory.contexts is not None:
        segments_T = segments_T[trajectory.contexts == trajectory.contexts.max()]
    places = np.flatnonzero(segments_T == Segment.ANSWER)
    require(len(places) > 0, f"{trajectory.id} has no answer tokens")
    end = int(places[-1]) + 1
    breaks = np.flatnonzero(np.diff(places) > 1)  # a refused turn may have an answer too
    start = int(places[breaks[-1] + 1]) if len(breaks) else int(places[0])
    return [*ids[:start], *answer_ids, *ids[end:]]


@REWARDS.register("open_answer")
def open_answer(*, path: str, beta: float = 1.0) -> Reward:
    """Create VLAA-Thinking's reward of open answers (arXiv 2504.11468).

    R = 1 - exp(-beta (S - S*)) if S > S*, else 0. S is the outcome model's score of the rollout, S*
    that of the same rollout with the correct answer. A rollout without a readable answer gets 0.

    Args:
        path: folder of the outcome model.
        beta: above 0.

    Raises:
        ValueError: no outcome model there, or beta out of range.
    """
    require(beta > 0, f"beta={beta} must be above 0")
    scorer = load_scorer(path)
    chat = ChatIds(load_tokenizer(scorer.folder))

    def reward(trajectory: Trajectory, task: Task) -> RewardResult:
        if has_env_fault(trajectory):
            return RewardResult(None)
        if trajectory.answer is None or Segment.ANSWER not in trajectory.segments:
            return RewardResult(0.0, {"open_answer": 0.0})
        given = scorer.score(last_context(trajectory))
        correct = scorer.score(replace_answer(trajectory, chat.plain(task.answer)))
        value = 1 - math.exp(-beta * max(given - correct, 0.0))
        return RewardResult(value, {"open_answer": value})

    return reward
