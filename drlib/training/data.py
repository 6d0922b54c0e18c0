"""Stages `world` and `demonstrations`: a world with its tokenizer, and the teacher's rollouts.

The stage stores a small world as a file, either the tour's or a selection from a larger one
(`drlib.worlds.selection`). Later stages read this file, so changes of the source do not affect a
run. The tokenizer is trained on the words of the world, the questions and the tools: a name has
one token per word. Demonstrations are a fixed pool of rollouts of an imperfect teacher on easy
questions with real tools. They are not filtered here, so that the success rate can be reported.
"""

import math
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from drlib.chat.prompts import DELEGATION_PHRASES
from drlib.chat.prompts import PHRASES as MEMORY_PHRASES
from drlib.chat.template import train_tokenizer
from drlib.config import Config, split_worlds
from drlib.demonstrations.document_teacher import draw_document_questions, read_documents
from drlib.demonstrations.funnel import Funnel
from drlib.demonstrations.oracle import (
    AGAIN,
    COMPUTE,
    COMPUTED,
    FIRST,
    FOLLOW,
    FOUND,
    HOLDER,
    LAST,
    NEXT,
    ONWARD,
    Demonstrator,
    DemonstratorFaults,
    Episode,
)
from drlib.demonstrations.skills import NOTHING, WEIGHED
from drlib.environments import load_environments
from drlib.environments.environment import demonstrate
from drlib.files import read_json_lines, write_json_lines
from drlib.questions.chains import (
    END,
    NEXT_PAGE,
    PYTHON_KINDS,
    SEARCH_WORDINGS,
    TRAIL_WORDINGS,
    TREASURE,
    SearchQuestions,
    Split,
    make_python_task,
    make_trail,
)
from drlib.questions.question_engine import (
    CONDITIONS,
    POOL_SIZE,
    SMALL_POOL_SIZE,
    ConditionQuestions,
    Wording,
)
from drlib.sandbox import Sandbox
from drlib.task import Task
from drlib.tools import Toolbox
from drlib.training import stages
from drlib.training.run_folder import RunFolder
from drlib.validation import require
from drlib.worlds import Names, SmallWorld, fictional_world, load_world, merge_worlds, select

PHRASES = (
    '{"name": "search", "arguments": {"query": ["',
    '"]}}',
    '", "',
    '{"name": "python", "arguments": {"code": "',
    '"}}',
    "system\n",
    "user\n",
    "assistant\n",
    "1. [",
    "2. [",
    "3. [",
    ")\n",
    "; ",
    ".\n",
    "import sympy; ",
    "import math; ",
    "print(",
    "sympy.prime(",
    "sympy.primefactors(",
    "sympy.Symbol('x'); ",
    "sympy.solve(",
    "math.gcd(",
    "max(",
    "x=",
    ")[0])",
)
# Skill ("sum": of any kind) -> its share; harder skills are left to RL.
DEMONSTRATION_MIX = {
    "chains": {"sum": 0.36, "h1": 0.37, "h2": 0.27},
    "engine": {"sum": 0.28, "h1": 0.22, "h2": 0.20, "c2": 0.30},
    "memory": {"sum": 0.28, "h1": 0.27, "h2": 0.20},  # and trails
}
DEMONSTRATED_TRAILS = 0.25  # share of trails if questions.skills=memory
DEMONSTRATED_PAGES = 6  # maximum length of such a trail
# Error rates of the teachers; the solver corrects an error with its next call.
TEACHERS = {
    "flawed": DemonstratorFaults(),
    "solver": DemonstratorFaults(guess=0, stop_early=0, bad_code=0, bad_query=0.1, loop=0),
}
INVENTED = 40  # fictional worlds whose questions train the tokenizer
# Vocabulary for bytes, tags, phrases and common words; the rest is for names.
PIECES_NOT_OF_NAMES = 1000
READ_TASKS = 100  # tasks of each environment that train the tokenizer
WORLD_FILE = "world.json"


def load_training_world(
    config: Config, replies_path: Path | None = None, name: str = ""
) -> tuple[SmallWorld, dict[str, int]]:
    """Load the world of a run, or `name` if given; return it with the metrics of its selection.

    Relative paths in world.name start at the working directory. The key of an endpoint is read from
    DRLIB_API_KEY. Its replies are stored at `replies_path`, so a restarted stage reuses them.

    Raises:
        ValueError: the world does not exist, or it lacks the facts that questions need.
    """
    options: dict[str, Any] = {}
    if config.world.endpoint:
        if not config.world.name.startswith("folder:"):
            raise ValueError(
                f"world.endpoint supports folders only, not world.name={config.world.name!r}: set "
                "world.name=folder:PATH"
            )
        key = os.environ.get("DRLIB_API_KEY", "")
        options = dict(endpoint=config.world.endpoint, model=config.world.reader, api_key=key)
        options |= {"replies_path": replies_path}
    limit = config.world.vocabulary
    pieces = limit - PIECES_NOT_OF_NAMES if limit else math.inf
    names = split_worlds(name or config.world_name)
    counts: Counter[str] = Counter()
    worlds = []
    for part in names:
        world: Any = load_world(part, **options)
        if not isinstance(world, SmallWorld):
            large = world
            pages, share = config.world.pages // len(names), pieces / len(names)
            world, candidates, left_out = select(large, pages, share, config.world.relations)
            counts.update(pages_with_facts=candidates, **left_out)
            if config.world.endpoint:
                counts.update({f"triples_{key}": n for key, n in large.extraction.items()})
        counts["pages"] += len(world)
        worlds.append(world)
    return merge_worlds(worlds), dict(counts)


def world_texts(world: SmallWorld, seed: int = 0) -> list[str]:
    """Return texts for the tokenizer's common words; they contain no fact of the world."""
    rng = random.Random(f"tokenizer-{seed}")
    relations = sorted({r for e in world.entities.values() for r in e.facts})
    texts = [w.format(relations=r, start="X") for w in SEARCH_WORDINGS for r in relations]
    texts += [t.format(r=r, v="X") for t in (*FIRST, *NEXT, *LAST) for r in relations]
    texts += [*COMPUTE, *COMPUTED, *AGAIN, "No results.", "Error: query must be a list of strings."]
    texts += ["I know this.", "Look again.", "Goal: ", *relations]
    for kind in PYTHON_KINDS:
        for task in (make_python_task(rng, kind) for _ in range(4)):
            texts += [task.question, task.code]
    errors = ("SyntaxError: '(' was never closed", "NameError: name 'prin' is not defined")
    return texts * 20 + [*errors] * 4


def engine_texts(world: SmallWorld, wording: Wording = "brackets") -> list[str]:
    """Return questions of fictional worlds in the engine's wording, and thoughts about them."""
    names = Names.from_world(world)
    texts = []
    for seed in range(INVENTED):
        invented = fictional_world(f"wordings-{seed}", names)
        asked = ConditionQuestions(
            invented, None, drawn=SMALL_POOL_SIZE, seed=seed, wording=wording
        )
        texts += [task.question for task in asked.all()]
    relations = sorted({r for e in world.entities.values() for r in e.facts})
    return texts + [t.format(r=r, v="X") for t in (*HOLDER, *FOUND) for r in relations] * 4


def memory_texts() -> list[str]:
    """Return the texts that trails and agents with managed contexts add."""
    questions = [wording.format(start="X") for wording in TRAIL_WORDINGS]
    thoughts = [FOLLOW, ONWARD, WEIGHED]  # counted are a template's words, not what fills it
    reports = [NOTHING, "output", *(t.format(r=TREASURE, v="X") for t in LAST)]
    rounds = [NEXT_PAGE, END, "empty", "none", "<tool_call></tool_call>"]
    return [*questions, *thoughts, *reports, *rounds] * 20


def environment_texts(names: str) -> list[str]:
    """Return questions, actions and observations of environments' scripted solutions."""
    environments = load_environments(names)
    if not environments:
        return []
    texts = []
    with Sandbox() as sandbox, Toolbox(None, sandbox, environments=environments) as toolbox:
        for environment in environments.values():
            for task in environment.tasks(READ_TASKS, "tokenizer"):
                played = demonstrate(environment, task, toolbox)
                texts += [message["content"] for message in played.messages]
    return texts


def _count_conditions(world: SmallWorld) -> dict[str, int]:
    """Count the questions with conditions per split; raise ValueError if a split has none."""
    counts = {}
    for split in ("train", "test"):
        asked = ConditionQuestions(world, split)
        counts |= {f"{split}_{skill}": len(asked.all(skill)) for skill in asked.skills}
        if not asked.skills:
            raise ValueError(
                f"world {world.name!r} has no question of two conditions on its {split} side: a "
                "page needs two facts that it shares with other pages, but no other page may "
                "have both. "
                "Add such pages, or set questions.source=chains"
            )
    return counts


def build_world(config: Config, run_dir: Path, ranks) -> dict:
    """Build stage `world`: `world.json` and the tokenizer."""
    run = RunFolder(run_dir, stages.stage_settings("world", config), ranks)
    world, counts = load_training_world(config, run.path / "replies.jsonl")
    titles = sorted({t for e in world.entities.values() for t in (e.title, *e.facts.values())})
    texts = world_texts(world)
    names = Names.from_world(world)
    if config.questions.source == "engine":
        counts |= _count_conditions(world)
        texts += engine_texts(world, config.questions.wording)
    texts += [title for seed in range(60) for title in fictional_world(seed, names).entities]
    phrases = (*PHRASES, f"]({world.scheme}:")
    if config.questions.skills == "delegation":
        require(
            config.questions.source == "chains",
            "questions.skills=delegation splits chains into hops: set questions.source=chains",
        )
        phrases += DELEGATION_PHRASES
    if config.questions.skills == "memory":
        require(
            config.questions.source == "chains",
            "questions.skills=memory reports one fact per relation, but questions with "
            "conditions need "
            "two: set questions.source=chains",
        )
        texts += memory_texts()
        phrases += MEMORY_PHRASES
    if config.world.vocabulary:
        texts += environment_texts(config.demonstrations.environments)
        size = config.world.vocabulary
        tokenizer = train_tokenizer(texts, size, names=titles, phrases=phrases)
        tokenizer.save_pretrained(run.path / "tokenizer")
    world.save(run.path / WORLD_FILE)
    return run.finish({"version": world.version, **counts})


def build_condition_questions(
    world: SmallWorld, config: Config, split: Split | None
) -> ConditionQuestions | None:
    """Build the questions with conditions of a split.

    For a fictional world (`split` None) the pool is small. Returns None if
    questions.source="chains".
    """
    if config.questions.source == "chains":
        return None
    drawn = POOL_SIZE if split else SMALL_POOL_SIZE
    return ConditionQuestions(
        world,
        split,
        config.rollout.search_results,
        config.rollout.max_calls,
        drawn,
        wording=config.questions.wording,
    )


def demonstration_tasks(
    world: SmallWorld,
    n: int,
    seed: int,
    conditions: ConditionQuestions | None = None,
    mix: str = "",
) -> list[Task]:
    """Return `n` easy questions with train answers in a fixed mix.

    Args:
        conditions: source of questions with conditions; None: none.
        mix: key of `DEMONSTRATION_MIX`; default: by the available questions.
    """
    rng = random.Random(f"demonstrations-{seed}")
    source = SearchQuestions(world, "train", max_hops=2)

    def draw(skill: str) -> Task:
        if skill == "sum":
            return make_python_task(rng)
        if skill in CONDITIONS:
            return conditions.draw(skill, rng)
        return source.draw(int(skill.removeprefix("h")), rng)

    shares = DEMONSTRATION_MIX[mix or ("engine" if conditions else "chains")]
    tasks = [draw(skill) for skill, share in shares.items() for _ in range(round(n * share))]
    rng.shuffle(tasks)
    return tasks


def demonstration_trails(world: SmallWorld, n: int, seed: int) -> list[tuple[Task, SmallWorld]]:
    """Return `n` short trails, each with its own world."""
    rng = random.Random(f"trails-{seed}")
    names = Names.from_world(world)
    return [
        make_trail(rng.getrandbits(60), names, rng.randint(1, DEMONSTRATED_PAGES)) for _ in range(n)
    ]


def build_demonstrations(config: Config, run_dir: Path, ranks) -> dict:
    """Build stage `demonstrations`: `episodes.jsonl`, one line per rollout, correct or not."""
    run = RunFolder(run_dir, stages.stage_settings("demonstrations", config), ranks)
    folder = stages.require_input("demonstrations", "world", config, run_dir.parents[1])
    world = SmallWorld.load(folder / WORLD_FILE)
    conditions = build_condition_questions(world, config, "train")
    n = config.demonstrations.count
    mix = "memory" if config.questions.skills == "memory" else ""
    asked = demonstration_tasks(world, n, config.seed, conditions, mix)
    tasks: list[tuple[Task, SmallWorld | None]] = [(task, None) for task in asked]
    if config.questions.skills == "memory":
        tasks += demonstration_trails(world, round(DEMONSTRATED_TRAILS * n), config.seed)
    with (
        Sandbox() as sandbox,
        Toolbox(world, sandbox, results=config.rollout.search_results) as toolbox,
    ):
        teacher = Demonstrator(TEACHERS[config.demonstrations.teacher], sorted(world.entities))
        funnel = Funnel()
        rows = []
        for i, (task, invented) in enumerate(tasks):
            rng = random.Random(f"teacher-{config.seed}-{i}")
            episode = teacher.play(task, toolbox, rng, invented)
            rows.append(pool_row(task, episode, funnel))
        unread = 0
        for episode in _read_documents(config, sandbox):
            if episode is None:
                unread += 1
            else:
                rows.append(pool_row(episode.task, episode, funnel))
        rows += [pool_row(e.task, e, funnel) for e in _demonstrate_environments(config, sandbox)]
    write_json_lines(run.path / "episodes.jsonl", rows)
    correct = sum(row["correct"] for row in rows)
    passed = sum(row["fault"] is None for row in rows)
    counts = {"episodes": len(rows), "correct": correct, "passed": passed}
    if config.demonstrations.documents:
        counts["unread"] = unread
    return run.finish(counts)


def _read_documents(config: Config, sandbox: Sandbox) -> Iterator[Episode | None]:
    """Yield an episode per question about demonstrations.documents; None if it cannot be read."""
    count, results = config.demonstrations.document_questions, config.rollout.search_results
    for name in split_worlds(config.demonstrations.documents):
        world, questions = draw_document_questions(name, count, config.seed)
        with Toolbox(world, sandbox, results=results) as toolbox:
            for question in questions:
                rng = random.Random(f"documents-{config.seed}-{question.task.id}")
                try:
                    yield read_documents(question, toolbox, world, rng)
                except LookupError:
                    yield None


def _demonstrate_environments(config: Config, sandbox: Sandbox) -> Iterator[Episode]:
    """Yield the scripted solution of each task of demonstrations.environments."""
    environments = load_environments(config.demonstrations.environments)
    with Toolbox(None, sandbox, environments=environments) as toolbox:
        for environment in environments.values():
            for task in environment.tasks(config.demonstrations.environment_tasks, config.seed):
                yield demonstrate(environment, task, toolbox)


def pool_row(task: Task, episode: Episode, funnel: Funnel) -> dict:
    """Return the line of a rollout in `episodes.jsonl`."""
    return {
        "kind": task.category,
        "hops": task.hops,
        "task": task.id,
        "correct": episode.correct,
        "fault": funnel.fault(episode),  # reason for rejection; None: accepted
        "errors": sum(not result.ok for result in episode.tool_results),
        "calls": len(episode.tool_results),
        "known_before": episode.known_before,
        "messages": episode.messages,
        **({} if episode.tools is None else {"tools": episode.tools}),
    }


def read_episodes(path: Path, keep: str) -> list[dict]:
    """Return the pool's rows that pass a filter.

    Args:
        keep: value of `sft.filter`: "correct", "funnel" or "none".
    """
    rows = read_json_lines(path / "episodes.jsonl")
    passes = {
        "correct": lambda row: row["correct"],
        "funnel": lambda row: row["fault"] is None,
        "none": lambda row: True,
    }
    return [row for row in rows if passes[keep](row)]
