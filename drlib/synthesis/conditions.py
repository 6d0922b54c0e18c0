"""Search questions of one side of a small world: chains, and the engine's with several conditions.

"Which boat has the harbour of Left Glove and the hull of Third Cousin?" names two things and needs
three searches: both are looked up, and then the one page is found that has the two facts. The
engine (`drlib.synthesis.engine`) proves that it has one answer and that no condition is idle;
`lookups.solves` proves that searches as short as a rollout's find it. A chain has one condition.

A skill is what `Task.skill` says: h1 to h3, chains by their look-ups; c2 and c3, by their
conditions. All of a side's questions keep to one split by answer.

Left out: questions deeper than two look-ups (they do not fit a rollout), and what `lookups` leaves
out; both are drawn again.
"""

import random
import warnings
from collections import defaultdict

from drlib.synthesis.engine import Wording, side_of, synthesize_questions
from drlib.synthesis.lookups import solves
from drlib.synthesis.questions import Split, split_answers
from drlib.task import Task
from drlib.worlds import SmallWorld

CHAINS = ("h1", "h2", "h3")
CONDITIONS = ("c2", "c3")
DEPTH = 2  # look-ups that follow each other
DRAWN = 1500  # questions that the engine is asked for in a whole world,
DRAWN_AT_ONCE = 16  # and in one that is soon thrown away
MAX_SHARE = 0.02  # of a whole world's questions may have the same answer
MAX_EFFORT = 30  # pages


def _side(title: str, of_value: dict[str, Split]) -> Split:
    """The side on which `title` is an answer: that of chains, or where no chain ends, its own."""
    return of_value.get(title) or side_of(title)


class ConditionQuestions:
    """The engine's questions of a world, by their conditions and answers, all of which searches of
    `results` pages answer in `max_calls`; `drawn`: how many the engine is asked for. In either
    `wording` they are the same questions where all can be said in sentences, as in the tour."""

    def __init__(
        self,
        world: SmallWorld,
        split: Split | None,
        results: int = 2,
        max_calls: int = 6,
        drawn: int = DRAWN,
        seed: int | str = 0,
        wording: Wording = "brackets",
    ):
        of_value = split_answers(world) if split else {}
        asked = {title for title in world.entities if _side(title, of_value) == split}
        with warnings.catch_warnings():
            # that there are fewer is no news: as many are wanted as there are
            warnings.simplefilter("ignore")
            found = synthesize_questions(
                world,
                drawn,
                seed,
                depth=DEPTH,
                max_share=max(MAX_SHARE, 2 / drawn),
                max_effort=MAX_EFFORT,
                asked=asked if split else None,
                wording=wording,
                strict=False,  # in so small a world nearly all things are near each other
                structure=True,
            )
        self.refused = 0  # questions that such searches do not answer
        self._tasks: dict[str, dict[str, list[Task]]] = defaultdict(lambda: defaultdict(list))
        for task in found:
            if task.skill in CONDITIONS and solves(task, world, results, max_calls):
                self._tasks[task.skill][task.answer].append(task)
            else:
                self.refused += 1

    @property
    def skills(self) -> list[str]:
        """Of `CONDITIONS`, those that the world has."""
        return sorted(self._tasks)

    def all(self, skill: str | None = None) -> list[Task]:
        """All questions, or those of one skill."""
        skills = self.skills if skill is None else [skill]
        by_answer = [self._tasks.get(name, {}) for name in skills]
        return [task for some in by_answer for tasks in some.values() for task in tasks]

    def draw(self, skill: str, rng: random.Random) -> Task:
        """One question: an answer, then a question for it."""
        answer = rng.choice(sorted(self._tasks[skill]))
        return rng.choice(self._tasks[skill][answer])
