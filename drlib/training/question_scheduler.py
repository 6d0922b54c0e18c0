"""Training questions of each RL step: calculations, chains of hops, questions with conditions.

The curriculum draws the skill of each question. The same seed and step draw the same questions on
every process. The sources are calculations (`python`), trails, documents (rl.curriculum.documents),
task environments (rl.curriculum.environments), the real world and fictional worlds. Questions about
documents are drawn uniformly from a pool per world, made at the start. The sources' shares hold on
average, or exactly (rl.curriculum.mixture, ProRL). Within a source, skills are drawn by the
curriculum or uniformly (rl.curriculum.weighting).

Each step has new questions, or those of a fixed pool in shuffled epochs (rl.curriculum.pool), which
`question_selection` needs. Source shares are not restored after curation of a pool.
"""

import random
from collections.abc import Mapping
from fractions import Fraction

from drlib.config import Config, split_worlds
from drlib.demonstrations.document_teacher import draw_document_questions
from drlib.environments import Environment, load_environments
from drlib.environments.environment import environment_names
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
from drlib.worlds import Library, Names, SmallWorld, World, fictional_world, load_world

TRAIL = "trail"
SKILLS = (*sorted(PYTHON_KINDS), *CHAINS, *CONDITIONS, TRAIL)
# sources, in addition to TRAIL
PYTHON, REAL, FICTIONAL, DOCUMENTS = "python", "real", "fictional", "documents"
DOCUMENT_POOL = 500  # questions about each world of documents


def question_source(task: Task, worlds: Mapping[str, World]) -> str:
    """Return the source of a question: PYTHON, TRAIL, DOCUMENTS, FICTIONAL, REAL or the name of
    an environment.

    Args:
        worlds: other worlds drawn with it, by version.
    """
    if task.kind != "search":
        return task.kind  # with an environment, its name
    if isinstance(worlds.get(task.world), Library):
        return DOCUMENTS
    return FICTIONAL if task.world in worlds else REAL


def source_shares(config: Config) -> dict[str, Fraction]:
    """Return the share of each source, as exact fractions; sources with share 0 are omitted."""
    trails, sums, read, invented = (
        Fraction(str(share))
        for share in (
            config.rl.curriculum.trail_share,
            config.rl.curriculum.python_share,
            config.rl.curriculum.document_share if config.rl.curriculum.documents else 0,
            config.rl.curriculum.fictional_share,
        )
    )
    names = environment_names(config.rl.curriculum.environments)
    posed = Fraction(str(config.rl.curriculum.environment_share)) if names else Fraction(0)
    others = 1 - posed
    searches = others * (1 - trails) * (1 - sums) * (1 - read)
    shares = {
        **{name: posed / len(names) for name in names},
        TRAIL: others * trails,
        PYTHON: others * (1 - trails) * sums,
        DOCUMENTS: others * (1 - trails) * (1 - sums) * read,
        REAL: searches * (1 - invented),
        FICTIONAL: searches * invented,
    }
    return {source: share for source, share in shares.items() if share > 0}


def check_question_settings(config: Config) -> None:
    """Raise ValueError for question settings in conflict."""
    pool, a_step = config.rl.curriculum.pool, config.rl.questions
    require(
        pool == 0 or pool >= a_step,
        f"rl.curriculum.pool={pool} is smaller than rl.questions={a_step}: raise "
        "rl.curriculum.pool",
    )
    require(
        pool > 0 or config.rl.curriculum.curation_every == 0,
        "rl.curriculum.curation_every selects from a pool: set rl.curriculum.pool",
    )
    staged = config.rl.curriculum.stages != "one"
    require(
        pool > 0 or not staged,
        f'rl.curriculum.stages="{config.rl.curriculum.stages}" selects from a pool: '
        "set rl.curriculum.pool",
    )
    require(
        not (config.rl.curriculum.documents and config.rl.callbacks.world_change),
        "rl.callbacks.world_change changes small worlds only: leave out rl.curriculum.documents",
    )
    require(
        not (config.rl.curriculum.environments and config.rl.callbacks.world_change),
        "rl.callbacks.world_change changes small worlds only: leave out rl.curriculum.environments",
    )
    require(
        config.rl.steps >= 3 or not staged,
        f'rl.curriculum.stages="{config.rl.curriculum.stages}" needs a step per stage: '
        "set rl.steps to 3 or more",
    )


class QuestionScheduler:
    """Draws the questions of each step.

    Search questions are about the real world (train answers) and about fictional worlds, so that
    the policy learns to search instead of facts. Chains have one to three hops; the question engine
    adds up to rl.curriculum.conditions conditions.

    Attributes:
        documents: (question, its world) of rl.curriculum.documents.
        environments: those of rl.curriculum.environments, by name.
        pool: id -> (question, its own world or None); empty without rl.curriculum.pool.
        epochs: order of the pool's questions; None without a pool.

    Raises:
        ValueError: settings are in conflict, rl.curriculum.pool exceeds the number of questions, or
            a world of documents has no question.
    """

    def __init__(self, config: Config, world: SmallWorld, names: Names):
        check_question_settings(config)
        self.config, self.names = config, names
        self.real = SearchQuestions(world, "train")
        self.documents = _draw_documents(config)
        self.environments = load_environments(config.rl.curriculum.environments)
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
        self.pool = self._collect_pool(config.rl.curriculum.pool)
        self.epochs = Epochs(self.pool, config.seed) if self.pool else None

    def draw(
        self, step: int, curriculum: Curriculum, again: int = 0
    ) -> tuple[list[Task], dict[str, World]]:
        """Return the tasks of a step and their own worlds by version.

        Args:
            again: number of earlier draws of this step; each returns other questions.
        """
        n = self.config.rl.questions
        if self.epochs is not None:
            return self.pool_questions(self.epochs.draw(n))
        rng = random.Random(f"rl-{self.config.seed}-{step}" + (f"-{again}" if again else ""))
        drawn = [
            self._draw_question(rng, curriculum, source) for source in self._draw_sources(n, rng)
        ]
        worlds = {world.version: world for _, world in drawn if world is not None}
        return [task for task, _ in drawn], worlds

    def pool_questions(self, ids: list[str]) -> tuple[list[Task], dict[str, World]]:
        """Return the pool's questions with these ids and their own worlds."""
        some = [self.pool[name] for name in ids]
        return [task for task, _ in some], {w.version: w for _, w in some if w is not None}

    def state_dict(self) -> dict:
        """Return the state of mixture and epochs."""
        parts = {"mixture": self.mixture, "epochs": self.epochs}
        return {name: part.state_dict() for name, part in parts.items() if part is not None}

    def load_state_dict(self, state: dict) -> None:
        """Restore the state saved by state_dict()."""
        for name, value in state.items():
            getattr(self, name).load_state_dict(value)

    def _collect_pool(self, n: int) -> dict[str, tuple[Task, World | None]]:
        """Collect `n` different questions by id, with sources by share and skills uniformly."""
        rng = random.Random(f"rl-pool-{self.config.seed}")
        found = {}
        for source in self._draw_sources(n, rng):
            for _ in range(MAX_MISSES):
                task, world = self._draw_question(rng, None, source)
                if task.id not in found:
                    found[task.id] = task, world
                    break
            else:
                raise ValueError(
                    f"rl.curriculum.pool={n} exceeds the {len(found)} different questions: lower it"
                )
        return found

    def _draw_sources(self, n: int, rng: random.Random) -> list[str | None]:
        """Return the sources of the next `n` questions; None: drawn at random.

        They are shuffled, so that no process gets all questions of a source.
        """
        if self.mixture is None:
            return [None] * n
        sources = self.mixture.draw(n)
        rng.shuffle(sources)
        return sources

    def _draw_question(
        self, rng: random.Random, curriculum: Curriculum | None, source: str | None
    ) -> tuple[Task, World | None]:
        """Return a question and its own world, if it has one."""
        config = self.config
        environment = self._draw_environment(source, rng)
        if environment is not None:
            return environment.draw_split(rng), None
        if config.rl.curriculum.trail_share > 0 and _is_from(
            TRAIL, config.rl.curriculum.trail_share, source, rng
        ):
            pages = rng.randint(1, config.rl.curriculum.trail_pages)
            return make_trail(rng.getrandbits(60), self.names, pages)
        if _is_from(PYTHON, config.rl.curriculum.python_share, source, rng):
            return make_python_task(
                rng, self._draw_skill(sorted(PYTHON_KINDS), curriculum, rng)
            ), None
        if self.documents and _is_from(DOCUMENTS, config.rl.curriculum.document_share, source, rng):
            return rng.choice(self.documents)
        skill = self._draw_skill(self.skills, curriculum, rng)
        if _is_from(FICTIONAL, config.rl.curriculum.fictional_share, source, rng):
            world = fictional_world(rng.getrandbits(60), self.names)
            return self._draw_fictional(world, skill, rng), world
        if skill in CONDITIONS:
            return self.conditions.draw(skill, rng), None
        return self.real.draw(CHAINS.index(skill) + 1, rng), None

    def _draw_environment(self, source: str | None, rng: random.Random) -> Environment | None:
        """Return the environment of the next question; None for another source."""
        if not self.environments or source is not None:
            return self.environments.get(source or "")
        if rng.random() >= self.config.rl.curriculum.environment_share:
            return None
        return self.environments[rng.choice(list(self.environments))]

    def _draw_skill(
        self, among: list[str], curriculum: Curriculum | None, rng: random.Random
    ) -> str:
        """Draw a skill by the curriculum, or uniformly without one."""
        if curriculum is None or self.config.rl.curriculum.weighting == "none":
            return rng.choice(among)
        return curriculum.draw(among, rng)

    def _draw_fictional(self, world: SmallWorld, skill: str, rng: random.Random) -> Task:
        """Return a question about a fictional world, easier if the world lacks the skill."""
        if skill in CONDITIONS:
            found = build_condition_questions(world, self.config, None)
            easier = [one for one in found.skills if one <= skill]
            if easier:
                return found.draw(easier[-1], rng)
        source = SearchQuestions(world, None)
        most = CHAINS.index(skill) + 1 if skill in CHAINS else len(CHAINS)
        hops = min(most, max(h for h in (1, 2, 3) if source.answers(h)))
        return source.draw(hops, rng)


def load_documents(config: Config) -> dict[str, World]:
    """Load the worlds of rl.curriculum.documents, by version."""
    loaded = [load_world(name) for name in split_worlds(config.rl.curriculum.documents)]
    return {world.version: world for world in loaded}


def _draw_documents(config: Config) -> list[tuple[Task, World]]:
    """Return the questions about each world of rl.curriculum.documents, with the world."""
    found = []
    for name in split_worlds(config.rl.curriculum.documents):
        world, questions = draw_document_questions(name, DOCUMENT_POOL, config.seed)
        require(len(questions) > 0, f"rl.curriculum.documents: there is no question about {name}")
        found += [(question.task, world) for question in questions]
    return found


def _is_from(source: str, share: float, wanted: str | None, rng: random.Random) -> bool:
    """Return True if a question is from `source`: it is `wanted`, or drawn if None is wanted."""
    return rng.random() < share if wanted is None else source == wanted
