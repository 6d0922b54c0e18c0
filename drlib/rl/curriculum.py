"""Which questions to try next, and under which limits: four state machines without I/O.

A group whose rollouts all have the same reward carries no gradient, so questions that are always
or never solved are wasted work. `Curriculum`, the tour's, draws a skill of solve rate p in
proportion to p(1 - p), plus a little so that nothing is ever forgotten. `DataCuration` is Tongyi
DeepResearch's automatic data curation (report, section on RL data), `StagedCurriculum`
rStar2-Agent's stages (arXiv 2508.20722, section 4), `TaskMixture` ProRL's mixture (2505.24864).

Each gives its state as JSON values and takes it back, so that a killed run goes on to the same
draws. Left out: the background process that tries questions, and weights that learn (bandits).
"""

from __future__ import annotations

import copy
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from drlib.rl.checks import require
from drlib.rl.staleness import Machine

FLOOR = 0.04
START = 0.3  # assumed solve rate before anything was tried
MEMORY = 0.7  # of the running solve rate, a step


class Curriculum:
    """A running solve rate for each skill."""

    def __init__(self, skills: Sequence[str], state: dict[str, float] | None = None):
        self.rates = {skill: START for skill in skills} | (state or {})

    def draw(self, among: Sequence[str], rng: random.Random) -> str:
        """One of the skills `among`, in proportion to p(1 - p) + 0.04."""
        weights = [self.rates[s] * (1 - self.rates[s]) + FLOOR for s in among]
        return rng.choices(list(among), weights)[0]

    def update(self, outcomes: Iterable[tuple[str, float]]) -> None:
        """Take in (skill, solved) of a step's rollouts."""
        seen = defaultdict(list)
        for skill, solved in outcomes:
            seen[skill].append(solved)
        for skill, solved in seen.items():
            mean = sum(solved) / len(solved)
            self.rates[skill] = MEMORY * self.rates[skill] + (1 - MEMORY) * mean

    def state_dict(self) -> dict[str, float]:
        return dict(self.rates)


class Refresh(NamedTuple):
    """An exchange: why ("steps", "live_share" or "asked"), and the question ids, sorted."""

    cause: str
    mastered: tuple[str, ...]
    hopeless: tuple[str, ...]
    added: tuple[str, ...]


class DataCuration:
    """An active set of questions of medium difficulty, renewed from a background pool.

    Args:
        solve_rates: share solved by the starting policy, for every question. Those strictly
            between 0 and 1 are the first active set; its size is what refreshes aim at.
        window: a question leaves when that many outcomes in a row are all 1 (mastered) or all 0.
        every: steps after which to refresh. live_below: the `live_share` below which to. Or None.

    ValueError (of all methods): unknown questions, rates outside 0..1, settings without sense.
    """

    def __init__(
        self, solve_rates: Mapping[str, float], *, window: int = 8,
        every: int | None = None, live_below: float | None = None,
    ):  # fmt: skip
        counted = window >= 2 and (every is None or every >= 1)
        require(counted, f"window must be at least 2 and every 1, got {window} and {every}")
        share = live_below is None or 0 < live_below <= 1
        require(share, f"live_below is a share in (0, 1], got {live_below}")
        self.window, self.every, self.live_below = window, every, live_below
        self.known = frozenset(solve_rates)
        self.active = {q for q, rate in self._checked(solve_rates.items()) if 0 < rate < 1}
        mixed = bool(self.active)
        require(mixed, "every question is always or never solved; add easier or harder ones")
        self.size, self.steps = len(self.active), 0
        self.pool: dict[str, float] = {}
        self.outcomes: dict[str, list[float]] = {}

    def draw(self, n: int, rng: random.Random) -> list[str]:
        """`n` active questions, each one once before any comes twice."""
        drawn: list[str] = []
        while len(drawn) < n:
            drawn += rng.sample(sorted(self.active), min(n - len(drawn), len(self.active)))
        return drawn

    def observe(self, outcomes: Iterable[tuple[str, float]]) -> None:
        """Take in (question, reward in 0..1) of a step's judged rollouts, late ones too."""
        for question, solved in self._checked(outcomes):
            if question in self.active:
                seen = self.outcomes.setdefault(question, [])
                seen.append(solved)
                del seen[: -self.window]

    def probe(self, solve_rates: Mapping[str, float]) -> None:
        """Take in what the background process measured: what is medium enters the pool."""
        for question, rate in self._checked(solve_rates.items()):
            self.pool.pop(question, None)
            if question not in self.active and 0 < rate < 1:
                self.pool[question] = rate

    def live_share(self) -> float:
        """Of the active questions with a full window, those with a signal; 1 before there are."""
        full = [q for q in self.active if len(self.outcomes.get(q, ())) >= self.window]
        return sum(not self._settled(q) for q in full) / len(full) if full else 1.0

    def end_step(self, *, ask: bool = False) -> Refresh | None:
        """Count a step; refresh if a trigger fires (or `ask`: a reward plateau seen outside).

        Questions nearest to a half fill the set up to its first size. It is never left empty;
        None where nothing changed.
        """
        self.steps += 1
        low = self.live_below is not None and self.live_share() < self.live_below
        due = self.every is not None and self.steps >= self.every
        if not (ask or due or low):
            return None
        self.steps = 0
        settled = sorted(q for q in self.active if self._settled(q))
        if len(settled) == len(self.active) and not self.pool:
            settled = []
        room = self.size - len(self.active) + len(settled)
        added = sorted(self.pool, key=lambda q: (abs(self.pool[q] - 0.5), q))[:room]
        if not settled and not added:
            return None
        self.active = (self.active - {*settled}) | {*added}
        self.pool = {q: rate for q, rate in self.pool.items() if q not in added}
        last = {question: self.outcomes.pop(question)[-1] for question in settled}
        mastered = tuple(q for q in settled if last[q] > 0)
        hopeless = tuple(q for q in settled if last[q] <= 0)
        cause = "asked" if ask else "steps" if due else "live_share"
        return Refresh(cause, mastered, hopeless, tuple(sorted(added)))

    def state_dict(self) -> dict:
        kept = ("active", "size", "steps", "pool", "outcomes")
        state = {name: copy.deepcopy(getattr(self, name)) for name in kept}
        return state | {"active": sorted(self.active)}

    def load_state_dict(self, state: dict) -> None:
        self._checked((question, 0) for name in ("active", "outcomes") for question in state[name])
        self.pool = dict(self._checked(state["pool"].items()))
        self.outcomes = {question: list(seen) for question, seen in state["outcomes"].items()}
        self.active, self.size, self.steps = set(state["active"]), state["size"], state["steps"]

    def _settled(self, question: str) -> bool:
        """All of a full window solved, or none."""
        seen = self.outcomes.get(question, [])
        return len(seen) >= self.window and (min(seen) >= 1 or max(seen) <= 0)

    def _checked(self, rates: Iterable[tuple[str, float]]) -> list[tuple[str, float]]:
        rates = [(question, float(rate)) for question, rate in rates]
        for question, rate in rates:
            known = question in self.known
            require(known, f"unknown question {question!r}; name it in solve_rates first")
            share = 0 <= rate <= 1
            require(share, f"the solve rate of {question!r} must be in 0..1, got {rate}")
        return rates


class Stage(NamedTuple):
    """steps: how long; tokens, turns: a rollout's limits; hard_only: only unmastered questions;
    reset: start with a fresh optimizer and the policy as its own reference."""

    steps: int
    tokens: int
    turns: int
    hard_only: bool = False
    reset: bool = False


RSTAR2_STAGES = (  # section 4: 510 steps in all
    Stage(300, 8_000, 10), Stage(85, 12_000, 10), Stage(125, 12_000, 15, True, True),
)  # fmt: skip


class StagedStep(NamedTuple):
    """questions: the hard ones, None for all; reset: renew optimizer and reference first."""

    index: int
    stage: Stage
    questions: tuple[str, ...] | None
    reset: bool


class StagedCurriculum(Machine):
    """Stages one after another: `begin_step` once a step, `keep_hard` whenever `filter_due`."""

    def __init__(self, stages: Sequence[Stage] = RSTAR2_STAGES):
        usable = stages and min(min(s.steps, s.tokens, s.turns) for s in stages) >= 1
        require(usable, f"stages need at least 1 step, token and turn each, got {stages}")
        self.stages = tuple(stages)
        self.state = {"step": 0, "hard": {}}  # hard: index of the stage, as text -> questions

    def _place(self) -> tuple[int, int]:
        """(stage, step within it) of the next step; (len(stages), _) when all is done."""
        inside = self.state["step"]
        for at, stage in enumerate(self.stages):
            if inside < stage.steps:
                return at, inside
            inside -= stage.steps
        return len(self.stages), inside

    @property
    def filter_due(self) -> bool:
        """Whether `keep_hard` must be called before the next step."""
        at, _ = self._place()
        hard_only = at < len(self.stages) and self.stages[at].hard_only
        return hard_only and str(at) not in self.state["hard"]

    def keep_hard(self, outcomes: Mapping[str, Sequence[float]]) -> tuple[str, ...]:
        """Drop what the latest policy solved in every try (8 of 8 in the paper); the rest stays."""
        require(self.filter_due, "the next step is not the first of a stage of hard questions")
        tried = all(len(solved) for solved in outcomes.values())
        require(tried, "a question was not tried; roll it out or leave it out")
        hard = tuple(sorted(q for q, solved in outcomes.items() if min(solved) < 1))
        require(bool(hard), "the policy solves every question every time; bring harder ones")
        self.state["hard"][str(self._place()[0])] = list(hard)
        return hard

    def begin_step(self) -> StagedStep | None:
        """What the next step is to do; None after the last one."""
        due = self.filter_due
        require(not due, "the stage trains on hard questions only: call keep_hard first")
        at, inside = self._place()
        if at == len(self.stages):
            return None
        self.state["step"] += 1
        stage, hard = self.stages[at], self.state["hard"].get(str(at))
        return StagedStep(at, stage, hard and tuple(hard), stage.reset and inside == 0)


class TaskMixture(Machine):
    """Fixed shares of the kinds of task, drawn without chance: the kind furthest behind is next.

    No kind runs ahead by a whole draw; whole-number weights are met exactly after each
    sum(weights) draws. ProRL: math 40, code 24, stem 25, logic 37, instructions 10.
    """

    def __init__(self, weights: Mapping[str, float]):
        bad = [kind for kind, weight in weights.items() if not 0 < weight < float("inf")]
        require(weights and not bad, f"weights must be positive and finite, got {dict(weights)}")
        self.weights = dict(weights)
        self.state = dict.fromkeys(weights, 0)  # how often each was drawn

    def draw(self, n: int) -> list[str]:
        """The next `n` kinds; ties go to the kind named first."""
        total, counts, drawn = sum(self.weights.values()), self.state, []
        for nth in range(sum(counts.values()) + 1, sum(counts.values()) + n + 1):
            behind = {k: w * nth - counts[k] * total for k, w in self.weights.items()}
            drawn.append(max(behind, key=behind.__getitem__))
            counts[drawn[-1]] += 1
        return drawn
