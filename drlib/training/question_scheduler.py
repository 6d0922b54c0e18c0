"""What reinforcement learning asks: sums, chains of look-ups, questions of several conditions.

The curriculum says which skill a question needs, half of the search questions are of worlds that
are invented on the spot, and the same seed and step draw the same questions on every process.

Questions have four sources: sums (`python`), trails, the real world and fictional ones. Their
shares are met in the mean, or without chance (`rl.curriculum.mixture`, ProRL's mixture); a source's skills
are drawn by the curriculum, or evenly (`rl.curriculum.weighting`). Every step has new questions, or with
`rl.curriculum.pool` those of a fixed set, in shuffled epochs: the same question again is what curation and
stages need (`drlib.training.question_selection`). Left out: a mixture of the questions that curation has left
(the shares are those of the whole set).
"""

import random
from collections.abc import Container
from fractions import Fraction

from drlib.config import Config
from drlib.questions.chains import (
    MAX_MISSES,
    PYTHON_KINDS,
    SearchQuestions,
    make_python_task,
    make_trail,
)
from drlib.questions.question_engine import CHAINS, CONDITIONS
from drlib.rl.curriculum import Curriculum, Epochs, TaskMixture
from drlib.task import Task
from drlib.training.data import build_condition_questions
from drlib.validation import require
from drlib.worlds import Names, SmallWorld, fictional_world

TRAIL = "trail"
SKILLS = (*sorted(PYTHON_KINDS), *CHAINS, *CONDITIONS, TRAIL)
PYTHON, REAL, FICTIONAL = "python", "real", "fictional"  # sources, beside TRAIL


def question_source(task: Task, worlds: Container[str]) -> str:
    """Where a question is from: PYTHON, TRAIL, FICTIONAL or REAL.

    worlds: the versions of the invented worlds that were drawn with it.
    """
    if task.kind != "search":
        return task.kind
    return FICTIONAL if task.world in worlds else REAL


def source_shares(config: Config) -> dict[str, Fraction]:
    """Source -> its share of the questions, exactly as the settings are written; none of 0."""
    trails, sums, invented = (
        Fraction(str(share))
        for share in (
            config.rl.curriculum.trail_share,
            config.rl.curriculum.python_share,
            config.rl.curriculum.fictional_share,
        )
    )
    searches = (1 - trails) * (1 - sums)
    shares = {
        TRAIL: trails,
        PYTHON: (1 - trails) * sums,
        REAL: searches * (1 - invented),
        FICTIONAL: searches * invented,
    }
    return {source: share for source, share in shares.items() if share > 0}


def check_question_settings(config: Config) -> None:
    """ValueError for settings of what is asked that do not go together."""
    pool, a_step = config.rl.curriculum.pool, config.rl.questions
    require(
        pool == 0 or pool >= a_step,
        f"rl.curriculum.pool={pool} is less than a step asks: set it to rl.questions={a_step} or more",
    )
    require(
        pool > 0 or config.rl.curriculum.curation_every == 0,
        "rl.curriculum.curation_every exchanges the questions of a fixed set: set rl.curriculum.pool",
    )
    staged = config.rl.curriculum.stages != "one"
    require(
        pool > 0 or not staged,
        f'rl.curriculum.stages="{config.rl.curriculum.stages}" ends with the hard questions of a fixed set: set rl.curriculum.pool',
    )
    require(
        config.rl.steps >= 3 or not staged,
        f'rl.curriculum.stages="{config.rl.curriculum.stages}" needs a step for each stage: set rl.steps to 3 or more',
    )


class QuestionScheduler:
    """Sums, and search questions of the real world (train answers) and of fictional ones made on
    the spot, so that what is learned is looking up and not the facts. Chains of one to three
    look-ups; with the engine also questions of up to `rl.curriculum.conditions` conditions; and trails.

    pool: with `rl.curriculum.pool` the fixed set, id -> question and its invented world (None: it has none);
    else empty. epochs: which of them are asked next; None without a pool.
    ValueError: settings that do not go together, or there are fewer questions than `rl.curriculum.pool` wants.
    """

    def __init__(self, config: Config, world: SmallWorld, names: Names):
        check_question_settings(config)
        self.config, self.names = config, names
        self.real = SearchQuestions(world, "train")
        self.skills = list(CHAINS)
        self.conditions = None
        if config.rl.curriculum.conditions > 1:
            self.conditions = build_condition_questions(world, config, "train")
        if self.conditions:
            wanted = CONDITIONS[: config.rl.curriculum.conditions - 1]
            self.skills += [skill for skill in wanted if skill in self.conditions.skills]
        self.mixture = (
            TaskMixture(source_shares(config)) if config.rl.curriculum.mixture == "exact" else None
        )
        self.pool = self._collected(config.rl.curriculum.pool)
        self.epochs = Epochs(self.pool, config.seed) if self.pool else None

    def draw(
        self, step: int, curriculum: Curriculum, again: int = 0
    ) -> tuple[list[Task], dict[str, SmallWorld]]:
        """The tasks of `step`, of skills that the curriculum draws, and the fictional worlds.

        again: how often this step has drawn already; each time gives others.
        """
        n = self.config.rl.questions
        if self.epochs is not None:
            return self.pool_questions(self.epochs.draw(n))
        rng = random.Random(f"rl-{self.config.seed}-{step}" + (f"-{again}" if again else ""))
        drawn = [self._one(rng, curriculum, source) for source in self._sources(n, rng)]
        worlds = {world.version: world for _, world in drawn if world is not None}
        return [task for task, _ in drawn], worlds

    def pool_questions(self, ids: list[str]) -> tuple[list[Task], dict[str, SmallWorld]]:
        """The pool's questions with these ids, and their fictional worlds."""
        some = [self.pool[name] for name in ids]
        return [task for task, _ in some], {w.version: w for _, w in some if w is not None}

    def state_dict(self) -> dict:
        """What the next draw depends on, besides the step and the curriculum."""
        parts = {"mixture": self.mixture, "epochs": self.epochs}
        return {name: part.state_dict() for name, part in parts.items() if part is not None}

    def load_state_dict(self, state: dict) -> None:
        """Of a checkpoint of a run with the same settings."""
        for name, of_part in state.items():
            getattr(self, name).load_state_dict(of_part)

    def _collected(self, n: int) -> dict[str, tuple[Task, SmallWorld | None]]:
        """`n` different questions with their worlds, by id: the sources by their shares, the skills
        of each evenly."""
        rng = random.Random(f"rl-pool-{self.config.seed}")
        found = {}
        for source in self._sources(n, rng):
            for _ in range(MAX_MISSES):
                task, world = self._one(rng, None, source)
                if task.id not in found:
                    found[task.id] = task, world
                    break
            else:
                raise ValueError(
                    f"rl.curriculum.pool={n}: only {len(found)} different questions were found; lower it"
                )
        return found

    def _sources(self, n: int, rng: random.Random) -> list[str | None]:
        """The next `n` questions' sources, None where chance is to say; in any order, so that no
        source falls to one process or one agent."""
        if self.mixture is None:
            return [None] * n
        sources = self.mixture.draw(n)
        rng.shuffle(sources)
        return sources

    def _one(
        self, rng: random.Random, curriculum: Curriculum | None, source: str | None
    ) -> tuple[Task, SmallWorld | None]:
        """A question and the world that was invented for it."""
        config = self.config
        if config.rl.curriculum.trail_share > 0 and _falls_to(
            TRAIL, config.rl.curriculum.trail_share, source, rng
        ):
            pages = rng.randint(1, config.rl.curriculum.trail_pages)
            return make_trail(rng.getrandbits(60), self.names, pages)
        if _falls_to(PYTHON, config.rl.curriculum.python_share, source, rng):
            return make_python_task(rng, self._skill(sorted(PYTHON_KINDS), curriculum, rng)), None
        skill = self._skill(self.skills, curriculum, rng)
        if _falls_to(FICTIONAL, config.rl.curriculum.fictional_share, source, rng):
            world = fictional_world(rng.getrandbits(60), self.names)
            return self._invented(world, skill, rng), world
        if skill in CONDITIONS:
            return self.conditions.draw(skill, rng), None
        return self.real.draw(CHAINS.index(skill) + 1, rng), None

    def _skill(self, among: list[str], curriculum: Curriculum | None, rng: random.Random) -> str:
        """As the curriculum draws; evenly without one."""
        if curriculum is None or self.config.rl.curriculum.weighting == "none":
            return rng.choice(among)
        return curriculum.draw(among, rng)

    def _invented(self, world: SmallWorld, skill: str, rng: random.Random) -> Task:
        """A question of a fictional world, or where it has none of this skill, an easier one."""
        if skill in CONDITIONS:
            found = build_condition_questions(world, self.config, None)
            easier = [one for one in found.skills if one <= skill]
            if easier:
                return found.draw(easier[-1], rng)
        source = SearchQuestions(world, None)
        most = CHAINS.index(skill) + 1 if skill in CHAINS else len(CHAINS)
        hops = min(most, max(h for h in (1, 2, 3) if source.answers(h)))
        return source.draw(hops, rng)


def _falls_to(source: str, share: float, wanted: str | None, rng: random.Random) -> bool:
    """Whether a question is of `source`: as is `wanted`, or by chance where nothing is."""
    return rng.random() < share if wanted is None else source == wanted
