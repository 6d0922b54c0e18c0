"""BrowseConf: an answer below a confidence is tried again (arXiv 2510.23458).

After an attempt the confidence of its answer is measured. Below a threshold, calibrated on other
questions (`calibrate_threshold`), another attempt is made, up to a budget. The answer with the
highest confidence is returned. An easy question takes one attempt; a vote makes all attempts for
every question.

In the paper the model states the confidence with its answer (0 to 100). Here it is stated in a turn
of its own, or it is computed from the log-probabilities of the sampled tokens, which needs no
further turn.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from drlib.agents.agent import AGENTS, Agent, rollout_id
from drlib.agents.heavy import with_runs, without_ends
from drlib.agents.react import ReAct
from drlib.agents.resum import extract_facts
from drlib.agents.rollout_state import RolloutState, Steps, count_costs
from drlib.chat.prompts import CONFIDENCE, NEGATIVE, RESUME
from drlib.chat.tool_calls import Answer
from drlib.task import Task
from drlib.trajectory import Segment, Termination, Trajectory
from drlib.validation import require

RETRIES = ("fresh", "summary", "negative")
CONFIDENCES = ("answer", "rollout", "stated")


@AGENTS.register("browseconf")
class BrowseConf(Agent):
    """Attempts of `researcher` (None: ReAct) until the confidence reaches `threshold`.

    The trajectory is that of the returned attempt. `metadata["runs"]` has the answers,
    confidences and costs of all attempts.

    Args:
        threshold: confidence in [0, 1] from which an answer is returned at once.
        attempts: budget per question.
        retry: what another attempt reads: "fresh", the question; "summary", also the facts that
            the last attempt found; "negative", also that the earlier answers are wrong.
        confidence: "answer", the probability of the answer's tokens; "rollout", the geometric mean
            over all sampled tokens; "stated", asked for. None: "answer", or "stated" with an
            engine that reads messages.
        researcher: an agent.

    Raises:
        ValueError: a value out of range, log-probabilities that the engine does not return, or (by
            `run`) greedy attempts that would all be equal.
    """

    def __init__(
        self,
        *args,
        threshold: float = 0.8,
        attempts: int = 4,
        retry: str = "summary",
        confidence: str | None = None,
        researcher=None,
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        default = "answer" if self.engine.reads == "ids" else "stated"
        confidence = confidence or default
        require(0 <= threshold <= 1, f"threshold={threshold} must be in [0, 1]")
        require(attempts >= 1, f"attempts={attempts} must be at least 1")
        require(retry in RETRIES, f"retry={retry!r} must be one of {', '.join(RETRIES)}")
        require(
            confidence in CONFIDENCES,
            f"confidence={confidence!r} must be one of {', '.join(CONFIDENCES)}",
        )
        require(
            confidence == "stated" or self.engine.reads == "ids",
            f"confidence={confidence} needs log-probabilities, which a server of messages does not "
            "return: use confidence=stated",
        )
        self.threshold = threshold
        self.attempts = attempts
        self.retry = retry
        self.confidence = confidence
        self.researcher = researcher or ReAct(*args, **kwargs)

    def run(
        self,
        tasks: Sequence[Task],
        *,
        samples: int = 1,
        numbers: Sequence[int] | None = None,
        keys: Sequence[int] | None = None,
        watch=None,
        **options,
    ) -> list[Trajectory]:
        """Run the tasks as `Agent.run`; end events are those of the returned attempts."""
        require(
            self.retry != "fresh" or self.attempts == 1 or options.get("temperature", 1.0) > 0,
            "greedy attempts at the same question are equal: use a temperature above 0, or "
            "retry=summary",
        )
        keys = list(range(len(tasks))) if keys is None else list(keys)
        numbers = list(range(samples)) if numbers is None else list(numbers)
        slots = [(task, key, number) for task, key in zip(tasks, keys) for number in numbers]
        runs: list[list[Trajectory]] = [[] for _ in slots]
        scores: list[list[float | None]] = [[] for _ in slots]
        costs: list[list[dict]] = [[] for _ in slots]
        quiet: dict[str, Any] = {} if watch is None else {"watch": without_ends(watch)}
        below = list(range(len(slots)))
        for attempt in range(self.attempts):
            asked = [self._pose(slots[i][0], runs[i]) for i in below]
            # every attempt has a random stream of its own
            streams = [
                (slots[i][1] * samples + slots[i][2]) * self.attempts + attempt for i in below
            ]
            done = self.researcher.run(asked, keys=streams, **quiet, **options)
            rated = self._rate([slots[i][0] for i in below], done, streams, quiet | options)
            for i, run, (score, cost) in zip(below, done, rated):
                runs[i].append(run)
                scores[i].append(score)
                costs[i] += [count_costs(run), *cost]
            below = [i for i in below if not _reaches(scores[i][-1], self.threshold)]
            if not below:
                break
        found = []
        for (task, key, number), tried, rating, cost in zip(slots, runs, scores, costs):
            name = rollout_id(options.get("seed", 0), key, number)
            best = replace(
                tried[select_attempt(tried, rating)], id=name, group_id=name.rsplit("-", 1)[0]
            )
            best.metadata["question"] = task.question  # of another attempt, it is longer
            parts = {"confidences": rating, "costs": cost}
            found.append(with_runs(best, tried, "confidence", **parts))
        for trajectory in found if watch else ():
            watch("end", None, trajectory)
        return found

    def run_task(self, state: RolloutState) -> Steps:
        """Request the turn that states a confidence."""
        turn = yield state.begin()
        return turn.action.text if isinstance(turn.action, Answer) else None

    def _pose(self, task: Task, runs: Sequence[Trajectory]) -> Task:
        """Return the task of the next attempt."""
        if not runs or self.retry == "fresh":
            return task
        if self.retry == "summary":
            facts = extract_facts(task.question, runs[-1].messages, "")
            text = RESUME.format(question=task.question, summary=facts) if facts else task.question
        else:
            wrong = dict.fromkeys(run.answer for run in runs if run.answer)
            text = NEGATIVE.format(question=task.question, answers=", ".join(wrong))
        return replace(task, question=text)

    def _rate(self, tasks, runs, streams, options) -> list[tuple[float | None, list[dict]]]:
        """Return the confidence of each run, None without an answer, and its cost."""
        if self.confidence != "stated":
            return [(rate_answer(run, self.confidence), []) for run in runs]
        answered = [i for i, run in enumerate(runs) if run.answer is not None]
        asked = [
            replace(
                tasks[i],
                environment="",
                question=CONFIDENCE.format(
                    question=tasks[i].question,
                    facts=extract_facts(tasks[i].question, runs[i].messages, "") or "nothing",
                    answer=runs[i].answer,
                ),
            )
            for i in answered
        ]
        turns = super().run(asked, keys=[streams[i] for i in answered], **options) if asked else []
        rated: list[tuple[float | None, list[dict]]] = [(None, [])] * len(runs)
        for i, turn in zip(answered, turns):
            rated[i] = parse_confidence(turn.answer), [count_costs(turn)]
        return rated


def rate_answer(run: Trajectory, what: str = "answer") -> float | None:
    """Return the confidence of a run's answer from its log-probabilities.

    Args:
        run: a trajectory with token ids.
        what: "answer", exp of the sum over the answer's tokens; "rollout", exp of the mean over all
            sampled tokens.

    Returns:
        A number in [0, 1]; None without an answer.
    """
    if run.answer is None:
        return None
    if what == "rollout":
        return float(np.exp(run.logprobs[run.generated].mean()))
    return float(np.exp(run.logprobs[run.generated & (run.segments == Segment.ANSWER)].sum()))


def parse_confidence(text: str | None) -> float | None:
    """Return the first number from 0 to 100 as a share, None without one.

    >>> parse_confidence("about 85%"), parse_confidence("sure"), parse_confidence("850")
    (0.85, None, None)
    """
    match = re.search(r"\d+(\.\d+)?", text or "")
    value = float(match[0]) / 100 if match else 2.0
    return value if value <= 1 else None


def select_attempt(runs: Sequence[Trajectory], scores: Sequence[float | None]) -> int:
    """Return the number of the answer with the highest confidence, the first of them in a tie.

    Answers without a confidence follow those with one, then runs without an answer. Faults of the
    environment are last, because they say nothing about the policy.
    """

    def rank(i: int) -> tuple:
        score = scores[i]
        is_fault = runs[i].termination is Termination.ENV_FAULT
        return not is_fault, runs[i].answer is not None, -1.0 if score is None else score

    return max(range(len(runs)), key=rank)


def calibrate_threshold(
    confidences: Sequence[float | None], right: Sequence[bool], target: float, least: int = 20
) -> float:
    """Return the lowest confidence from which on answers have at least the target accuracy.

    Args:
        confidences: of answers to questions other than those that are asked later; None (no
            confidence) is left out.
        right: True for correct answers.
        target: accuracy.
        least: answers at or above the threshold, at least.

    Raises:
        ValueError: no threshold reaches the target.
    """
    rated = [(score, is_right) for score, is_right in zip(confidences, right) if score is not None]
    for threshold in sorted({score for score, _ in rated}):
        above = [is_right for score, is_right in rated if score >= threshold]
        if len(above) < least:
            break
        if np.mean(above) >= target:
            return threshold
    raise ValueError(
        f"no threshold with {least} answers above it reaches an accuracy of {target:.0%}: lower "
        "the target, or calibrate on more questions"
    )


def _reaches(score: float | None, threshold: float) -> bool:
    return score is not None and score >= threshold
