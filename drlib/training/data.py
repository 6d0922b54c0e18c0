"""Stages `world` and `demonstrations`: a world and its tokenizer, and the teacher's attempts.

Whatever world is named, a small policy learns in a small one: the tour's as it is, of any other a
selection (`drlib.worlds.selection`). The stage keeps it as a file, and all stages after it read
that file: nobody's folder changes under a run. The tokenizer is trained on the world's words, the
questions' wording and the tools' scaffolding: a name is one token a word, the same in page,
question, query and answer. Demonstrations are a fixed pool of an imperfect teacher's attempts at
*easy* questions (sums, one and two look-ups) with real tools; nothing is filtered here, so that the
pool's own success rate can be reported.
"""

import random
from pathlib import Path

from drlib.chat import train_tokenizer
from drlib.config import Config
from drlib.files import read_json_lines, write_json_lines
from drlib.sandbox import Sandbox
from drlib.synthesis.funnel import Funnel
from drlib.synthesis.oracle import (
    AGAIN,
    COMPUTE,
    COMPUTED,
    FIRST,
    LAST,
    NEXT,
    Demonstrator,
    DemonstratorFaults,
    Episode,
)
from drlib.synthesis.questions import PYTHON_KINDS, SEARCH_WORDINGS, SearchQuestions, python_task
from drlib.task import Task
from drlib.tools import Toolbox
from drlib.training import stages
from drlib.training.run import RunFolder
from drlib.worlds import Names, SmallWorld, fictional_world, load_world, select

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
DEMONSTRATION_MIX = ((0, 0.36), (1, 0.37), (2, 0.27))  # look-ups (0: a sum), share


# Of the vocabulary: bytes, tags, phrases and common words; the rest may be pieces of names.
PIECES_NOT_OF_NAMES = 1000
WORLD_FILE = "world.json"


def training_world(config: Config) -> tuple[SmallWorld, dict[str, int]]:
    """The world that a policy learns in, and how much of the named one it is (the stage's metrics).

    A path in `config.world` is relative to the repository unless absolute. ValueError: there is no
    such world, or it lacks what questions are made from; the message says what.
    """
    world = load_world(config.world_name)
    if isinstance(world, SmallWorld):
        return world, {"pages": len(world)}
    pieces = config.vocabulary - PIECES_NOT_OF_NAMES
    small, candidates, too_long = select(world, config.world_pages, pieces)
    counts = {
        "pages": len(small),
        "pages_with_facts": candidates,
        "facts_with_long_names": too_long,
    }
    return small, counts


def world_texts(world: SmallWorld, seed: int = 0) -> list[str]:
    """The text that the tokenizer's common words come from; no fact of the world is in it."""
    rng = random.Random(f"tokenizer-{seed}")
    relations = sorted({r for e in world.entities.values() for r in e.facts})
    texts = [w.format(relations=r, start="X") for w in SEARCH_WORDINGS for r in relations]
    texts += [t.format(r=r, v="X") for t in (*FIRST, *NEXT, *LAST) for r in relations]
    texts += [*COMPUTE, *COMPUTED, *AGAIN, "No results.", "Error: query must be a list of strings."]
    texts += ["I know this.", "Look again.", "Goal: ", *relations]
    for kind in PYTHON_KINDS:
        for task in (python_task(rng, kind) for _ in range(4)):
            texts += [task.question, task.code]
    errors = ("SyntaxError: '(' was never closed", "NameError: name 'prin' is not defined")
    return texts * 20 + [*errors] * 4


def build_world(config: Config, run_dir: Path, ranks) -> dict:
    """Stage `world`: `world.json` and the tokenizer's folder."""
    run = RunFolder(run_dir, stages.settings_of("world", config), ranks)
    world, counts = training_world(config)
    titles = sorted({t for e in world.entities.values() for t in (e.title, *e.facts.values())})
    texts = world_texts(world)
    names = Names.of(world)
    texts += [title for seed in range(60) for title in fictional_world(seed, names).entities]
    phrases = (*PHRASES, f"]({world.scheme}:")
    tokenizer = train_tokenizer(texts, config.vocabulary, names=titles, phrases=phrases)
    tokenizer.save_pretrained(run.path / "tokenizer")
    world.save(run.path / WORLD_FILE)
    return run.finish({"version": world.version, **counts})


def demonstration_tasks(world: SmallWorld, n: int, seed: int) -> list[Task]:
    """`n` easy questions with train answers, in the pool's fixed mix."""
    rng = random.Random(f"demonstrations-{seed}")
    source = SearchQuestions(world, "train", max_hops=2)
    tasks = [
        source.draw(hops, rng) if hops else python_task(rng)
        for hops, share in DEMONSTRATION_MIX
        for _ in range(round(n * share))
    ]
    rng.shuffle(tasks)
    return tasks


def build_demonstrations(config: Config, run_dir: Path, ranks) -> dict:
    """Stage `demonstrations`: `episodes.jsonl`, a line an attempt, right or wrong."""
    run = RunFolder(run_dir, stages.settings_of("demonstrations", config), ranks)
    folder = stages.input_folder("demonstrations", "world", config, run_dir.parents[1])
    world = SmallWorld.load(folder / WORLD_FILE)
    tasks = demonstration_tasks(world, config.demonstrations, config.seed)
    with Sandbox() as sandbox, Toolbox(world, sandbox, results=config.search_results) as toolbox:
        teacher = Demonstrator(DemonstratorFaults(), sorted(world.entities))
        funnel = Funnel()
        rows = []
        for i, task in enumerate(tasks):
            rng = random.Random(f"teacher-{config.seed}-{i}")
            episode = teacher.play(task, toolbox, rng)
            rows.append(_pool_row(task, episode, funnel))
    write_json_lines(run.path / "episodes.jsonl", rows)
    correct = sum(row["correct"] for row in rows)
    passed = sum(row["fault"] is None for row in rows)
    return run.finish({"episodes": len(rows), "correct": correct, "passed": passed})


def _pool_row(task: Task, episode: Episode, funnel: Funnel) -> dict:
    return {
        "kind": task.kind,
        "hops": task.hops,
        "task": task.id,
        "correct": episode.correct,
        "fault": funnel.fault(episode),  # the stage that rejects it and why, or None
        "errors": sum(not result.ok for result in episode.tool_results),
        "calls": len(episode.tool_results),
        "messages": episode.messages,
    }


def read_episodes(path: Path, keep: str) -> list[dict]:
    """The pool's rows: the correct ones, those that pass the whole funnel, or all of them.

    keep: as the setting `demonstration_filter`.
    """
    rows = read_json_lines(path / "episodes.jsonl")
    passes = {
        "correct": lambda row: row["correct"],
        "funnel": lambda row: row["fault"] is None,
        "none": lambda row: True,
    }
    return [row for row in rows if passes[keep](row)]
