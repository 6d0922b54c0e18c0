"""Curricula: select questions and rollout limits; five state machines without I/O.

A group whose rollouts all have the same reward carries no gradient, so questions that are always
or never solved waste samples. `Curriculum` (the tour's) draws a skill of solve rate p in proportion
to p(1 - p) plus a constant. `DataCuration` is Tongyi DeepResearch's automatic data curation
(section on RL data), `StagedCurriculum` the stages of rStar2-Agent (arXiv 2508.20722, section 4),
`TaskMixture` the mixture of ProRL (arXiv 2505.24864). `Epochs` iterates over a fixed set.

Each saves its state as JSON values and restores it, so a resumed run makes the same draws.
"""

import math
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from drlib.rl.state_machine import StateMachine
from drlib.validation import require, require_within

_FLOOR = 0.04  # minimum weight: every skill is drawn from time to time
_START = 0.3  # solve rate assumed before the first rollout
_MEMORY = 0.7  # decay of the running solve rate, per step


class Curriculum:
    """A running solve rate p per skill, drawn in proportion to p(1 - p) + 0.04."""

    def __init__(self, skills: Sequence[str], state: dict[str, float] | None = None):
        self.rates = dict.fromkeys(skills, _START) | (state or {})

    def draw(self, among: Sequence[str], rng: random.Random) -> str:
        """Draw one of the skills `among`, in proportion to p(1 - p) + 0.04."""
        return rng.choices(list(among), self._weights(among))[0]

    def chances(self, among: Sequence[str]) -> list[float]:
        """Return the probability with which each of the skills `among` is drawn."""
        weights = self._weights(among)
        return [weight / sum(weights) for weight in weights]

    def _weights(self, among: Sequence[str]) -> list[float]:
        return [self.rates[s] * (1 - self.rates[s]) + _FLOOR for s in among]

    def update(self, outcomes: Iterable[tuple[str, float]]) -> None:
        """Update the rates with a step's (skill, solved) pairs."""
        seen = defaultdict(list)
        for skill, solved in outcomes:
            seen[skill].append(solved)
        for skill, solved in seen.items():
            mean = sum(solved) / len(solved)
            before = self.rates.get(skill, _START)  # environments are skills, too
            self.rates[skill] = _MEMORY * before + (1 - _MEMORY) * mean

    def state_dict(self) -> dict[str, float]:
        """Return the solve rates."""
        return dict(self.rates)


class Epochs(StateMachine):
    """Questions of a fixed set in shuffled epochs: each is drawn once before any repeats.

    `state["among"]` is the set, sorted.

    Raises:
        ValueError: the set is empty.
    """

    def __init__(self, questions: Iterable[str], seed: int):
        self.seed = seed
        self.state = {"among": [], "left": [], "epoch": 0}
        self.keep(questions)

    def keep(self, questions: Iterable[str]) -> None:
        """Restrict the set to these questions; new ones enter with the next epoch."""
        among = {*questions}
        require(len(among) > 0, "the set of questions is empty")
        self.state["among"] = sorted(among)
        self.state["left"] = [q for q in self.state["left"] if q in among]

    def draw(self, n: int) -> list[str]:
        """Draw the next `n` questions, all different if the set is large enough."""
        state = self.state
        drawn = []
        while len(drawn) < n:
            if not state["left"]:
                state["left"] = self._shuffled(drawn)
                state["epoch"] += 1
            drawn.append(state["left"].pop(0))
        return drawn

    def _shuffled(self, just_drawn: list[str]) -> list[str]:
        """Return the next epoch, with the questions already in this draw last."""
        order = list(self.state["among"])
        random.Random(f"epoch-{self.seed}-{self.state['epoch']}").shuffle(order)
        return sorted(order, key=lambda q: q in just_drawn)


class Refresh(NamedTuple):
    """Questions exchanged by a refresh of the active set: sorted ids."""

    mastered: tuple[str, ...]
    hopeless: tuple[str, ...]
    added: tuple[str, ...]


class DataCuration(StateMachine):
    """An active set of medium-difficulty questions, refreshed from a background pool.

    Tongyi DeepResearch's automatic data curation.

    Args:
        solve_rates: share solved by the starting policy, for every question. Those strictly
            between 0 and 1 form the first active set; its size is the target of later refreshes.
        window: a question leaves when that many outcomes in a row are all 1 (mastered) or all 0
            (hopeless).
        every: steps between refreshes; None: only when requested.

    `state["active"]` is the set, sorted.

    Raises:
        ValueError: (all methods) unknown questions, rates outside 0..1, or invalid settings.
    """

    def __init__(
        self, solve_rates: Mapping[str, float], *, window: int = 8, every: int | None = None
    ):
        require_within(window, "[2, inf)", "window")
        self.window = window
        self.every = math.inf if every is None else every
        require_within(self.every, "[1, inf]", "every")
        self.known = frozenset(solve_rates)
        active = sorted(q for q, rate in self._checked(solve_rates.items()) if 0 < rate < 1)
        require(
            len(active) > 0,
            "every question is always or never solved: add questions of medium difficulty",
        )
        self.size = len(active)
        self.state = {"active": active, "steps": 0, "pool": {}, "outcomes": {}}

    def observe(self, outcomes: Iterable[tuple[str, float]]) -> None:
        """Record (question, reward in 0..1) of a step's judged rollouts, late ones too."""
        active = set(self.state["active"])
        seen = self.state["outcomes"]
        for question, solved in self._checked(outcomes):
            if question in active:
                seen[question] = [*seen.get(question, ()), solved][-self.window :]

    def probe(self, solve_rates: Mapping[str, float]) -> None:
        """Record solve rates measured in the background; medium ones enter the pool."""
        active = set(self.state["active"])
        pool = self.state["pool"]
        for question, rate in self._checked(solve_rates.items()):
            pool.pop(question, None)
            if question not in active and 0 < rate < 1:
                pool[question] = rate

    def end_step(self, *, ask: bool = False) -> Refresh | None:
        """Count a step and refresh after `every` steps, or if `ask` (a reward plateau).

        Questions with solve rates nearest to 0.5 fill the set up to its first size. It is never
        empty.
        """
        state = self.state
        state["steps"] += 1
        if not ask and state["steps"] < self.every:
            return None
        state["steps"] = 0

        # remove questions whose last outcomes are all 1 or all 0
        full = {q: seen for q, seen in state["outcomes"].items() if len(seen) >= self.window}
        mastered = sorted(q for q, seen in full.items() if min(seen) >= 1)
        hopeless = sorted(q for q, seen in full.items() if max(seen) <= 0)
        left = {*mastered, *hopeless}
        kept = sorted(q for q in state["active"] if q not in left)

        # add questions from the pool, nearest to 0.5
        pool = state["pool"]
        by_difficulty = sorted(pool, key=lambda q: (abs(pool[q] - 0.5), q))
        added = sorted(by_difficulty[: self.size - len(kept)])
        if not added and kept in ([], state["active"]):
            return None

        state["active"] = sorted([*kept, *added])
        state["pool"] = {q: rate for q, rate in pool.items() if q not in added}
        state["outcomes"] = {q: seen for q, seen in state["outcomes"].items() if q not in left}
        return Refresh(tuple(mastered), tuple(hopeless), tuple(added))

    def load_state_dict(self, state: Mapping) -> None:
        """Restore a saved state. ValueError: it names unknown questions."""
        named = [*state["active"], *state["pool"], *state["outcomes"]]
        self._checked((question, 0) for question in named)
        super().load_state_dict(state)

    def _checked(self, rates: Iterable[tuple[str, float]]) -> list[tuple[str, float]]:
        rates = [(question, float(rate)) for question, rate in rates]
        for question, rate in rates:
            require(question in self.known, f"unknown question {question!r}: not in solve_rates")
            require_within(rate, "[0, 1]", f"the solve rate of {question!r}")
        return rates


class RolloutStage(NamedTuple):
    """A stage of training with rollout limits `tokens` and `turns`."""

    steps: int
    tokens: int
    turns: int
    hard_only: bool = False  # only questions that are not solved in every rollout
    reset: bool = False  # reset the optimizer and set the reference to the policy


RSTAR2_STAGES = (  # section 4: 510 steps in all
    RolloutStage(steps=300, tokens=8_000, turns=10),
    RolloutStage(steps=85, tokens=12_000, turns=10),
    RolloutStage(steps=125, tokens=12_000, turns=15, hard_only=True, reset=True),
)


class StagedCurriculum(StateMachine):
    """Consecutive training stages (rStar2-Agent, arXiv 2508.20722, section 4).

    Call `begin_step` once per step, and `keep_hard` whenever `filter_due`.
    """

    def __init__(self, stages: Sequence[RolloutStage] = RSTAR2_STAGES):
        usable = len(stages) > 0 and min(min(s.steps, s.tokens, s.turns) for s in stages) >= 1
        require(usable, f"each stage needs at least 1 step, token and turn, got {stages}")
        self.stages = tuple(stages)
        self.plan = [at for at, stage in enumerate(stages) for _ in range(stage.steps)]
        self.state = {"step": 0, "hard": {}}  # hard: stage index (text, for JSON) -> questions

    @property
    def next_stage(self) -> RolloutStage:
        """Stage of the next step. IndexError after the last one."""
        return self.stages[self.plan[self.state["step"]]]

    @property
    def filter_due(self) -> bool:
        """True if `keep_hard` must be called before the next step."""
        step = self.state["step"]
        if step == len(self.plan):
            return False
        at = self.plan[step]
        return self.stages[at].hard_only and str(at) not in self.state["hard"]

    def keep_hard(self, outcomes: Mapping[str, Sequence[float]]) -> tuple[str, ...]:
        """Drop questions solved in every rollout (8 of 8 in the paper); return the others."""
        require(self.filter_due, "the next step does not start a hard-only stage")
        require(all(outcomes.values()), "a question was not tried: roll it out or remove it")
        hard = sorted(q for q, solved in outcomes.items() if min(solved) < 1)
        require(bool(hard), "the policy solves every question every time: add harder ones")
        self.state["hard"][str(self.plan[self.state["step"]])] = hard
        return tuple(hard)

    def begin_step(self) -> tuple[RolloutStage, tuple[str, ...] | None] | None:
        """Return the next step's (stage, hard questions), None after the last step.

        `stage.reset` is set at the first step of its stage only; the questions are None for all.
        """
        require(not self.filter_due, "the next stage is hard-only: call keep_hard first")
        step = self.state["step"]
        if step == len(self.plan):
            return None
        self.state["step"] += 1
        at = self.plan[step]
        stage = self.stages[at]
        first = at not in self.plan[:step]
        hard = self.state["hard"].get(str(at))
        return stage._replace(reset=stage.reset and first), hard and tuple(hard)


class TaskMixture(StateMachine):
    """Fixed shares of task kinds without randomness: the kind furthest behind its share is next.

    No kind is ahead by a whole draw, and whole-number weights are met exactly after each
    sum(weights) draws. Use `fractions.Fraction` for fractional weights; float rounding would decide
    ties. ProRL: math 40, code 24, stem 25, logic 37, instructions 10.

    >>> TaskMixture({"math": 2, "code": 1}).draw(3)
    ['math', 'code', 'math']
    """

    def __init__(self, weights: Mapping[str, float | Fraction]):
        bad = [kind for kind, weight in weights.items() if not 0 < weight < float("inf")]
        require(
            bool(weights) and not bad, f"weights must be positive and finite, got {dict(weights)}"
        )
        self.weights = dict(weights)
        self.state = dict.fromkeys(weights, 0)  # number of draws per kind

    def draw(self, n: int) -> list[str]:
        """Draw the next `n` kinds; ties go to the kind named first."""
        total = sum(self.weights.values())
        counts = self.state
        before = sum(counts.values())
        drawn = []
        for nth in range(before + 1, before + n + 1):
            behind = {k: w * nth - counts[k] * total for k, w in self.weights.items()}
            kind = max(behind, key=behind.__getitem__)
            counts[kind] += 1
            drawn.append(kind)
        return drawn
