"""What reinforcement learning asks: sums, chains of look-ups, questions of several conditions.

The curriculum says which skill a question needs, half of the search questions are of worlds that
are invented on the spot, and the same seed and step draw the same questions on every process.
"""

import random

from drlib.config import Config
from drlib.rl.curriculum import Curriculum
from drlib.synthesis.conditions import CHAINS, CONDITIONS
from drlib.synthesis.questions import PYTHON_KINDS, SearchQuestions, python_task
from drlib.synthesis.trails import trail
from drlib.task import Task
from drlib.training.data import engine_questions
from drlib.worlds import Names, SmallWorld, fictional_world

TRAIL = "trail"
SKILLS = (*sorted(PYTHON_KINDS), *CHAINS, *CONDITIONS, TRAIL)


class Questions:
    """Sums, and search questions of the real world (train answers) and of fictional ones made on
    the spot, so that what is learned is looking up and not the facts. Chains of one to three
    look-ups; with the engine also questions of up to `rl_conditions` conditions; and trails."""

    def __init__(self, config: Config, world: SmallWorld, names: Names):
        self.config, self.names = config, names
        self.real = SearchQuestions(world, "train")
        self.skills = list(CHAINS)
        self.conditions = None
        if config.rl_conditions > 1:
            self.conditions = engine_questions(world, config, "train")
        if self.conditions:
            wanted = CONDITIONS[: config.rl_conditions - 1]
            self.skills += [skill for skill in wanted if skill in self.conditions.skills]

    def draw(self, step: int, curriculum: Curriculum) -> tuple[list[Task], dict[str, SmallWorld]]:
        """The tasks of `step`, of skills that the curriculum draws, and the fictional worlds."""
        rng = random.Random(f"rl-{self.config.seed}-{step}")
        tasks, worlds = [], {}
        for _ in range(self.config.rl_questions):
            if self.config.rl_trail_share > 0 and rng.random() < self.config.rl_trail_share:
                pages = rng.randint(1, self.config.rl_trail_pages)
                task, world = trail(rng.getrandbits(60), self.names, pages)
                worlds[world.version] = world
                tasks.append(task)
                continue
            if rng.random() < self.config.rl_python_share:
                tasks.append(python_task(rng, curriculum.draw(sorted(PYTHON_KINDS), rng)))
                continue
            skill = curriculum.draw(self.skills, rng)
            if rng.random() < self.config.rl_fictional_share:
                world = fictional_world(rng.getrandbits(60), self.names)
                worlds[world.version] = world
                tasks.append(self._invented(world, skill, rng))
            elif skill in CONDITIONS:
                tasks.append(self.conditions.draw(skill, rng))
            else:
                tasks.append(self.real.draw(CHAINS.index(skill) + 1, rng))
        return tasks, worlds

    def _invented(self, world: SmallWorld, skill: str, rng: random.Random) -> Task:
        """A question of a fictional world, or where it has none of this skill, an easier one."""
        if skill in CONDITIONS:
            found = engine_questions(world, self.config, None)
            easier = [one for one in found.skills if one <= skill]
            if easier:
                return found.draw(easier[-1], rng)
        source = SearchQuestions(world, None)
        most = CHAINS.index(skill) + 1 if skill in CHAINS else len(CHAINS)
        hops = min(most, max(h for h in (1, 2, 3) if source.answers(h)))
        return source.draw(hops, rng)
