"""Which questions to try next: those that are neither always solved nor never.

A group in which every rollout has the same reward carries no gradient, so a skill with solve rate
p is drawn in proportion to p(1 - p), plus a little so that nothing is ever forgotten. This is the
smallest form of Tongyi DeepResearch's automatic data curation (report, section on RL data).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

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
        seen: dict[str, list[float]] = {}
        for skill, solved in outcomes:
            seen.setdefault(skill, []).append(solved)
        for skill, solved in seen.items():
            mean = sum(solved) / len(solved)
            self.rates[skill] = MEMORY * self.rates[skill] + (1 - MEMORY) * mean

    def state_dict(self) -> dict[str, float]:
        return dict(self.rates)
