"""Stage `demonstrations` where the model demonstrates: its own attempts, right or wrong.

Rejection sampling, as in Tongyi DeepResearch (report, section 3.3) and STaR before it: the model
tries every question `attempts` times with the real tools, and the cold start trains on what
`sft.filter` keeps. The pool has the token ids that were sampled, so nothing is tokenised
again.

A block of questions after the other is written, so that a stage that was killed goes on where it
was: random numbers depend on the seed and the question alone.
"""

from pathlib import Path

import torch

from drlib.agents import ReAct
from drlib.config import Config
from drlib.demonstrations.funnel import Funnel
from drlib.demonstrations.oracle import Episode
from drlib.files import append_json_line, read_json_lines, write_atomic
from drlib.sandbox import Sandbox
from drlib.task import Task
from drlib.tools import Toolbox
from drlib.training import stages
from drlib.training.data import (
    WORLD_FILE,
    build_demonstrations,
    demonstration_tasks,
    build_condition_questions,
    pool_row,
)
from drlib.training.distributed import Ranks
from drlib.training.model_setup import (
    build_chat,
    create_engine,
    find_policy,
    load_model,
    load_model_tokenizer,
)
from drlib.training.rollouts import rollout_limits
from drlib.training.run_folder import RunFolder
from drlib.trajectory import Trajectory
from drlib.worlds import SmallWorld

BLOCK = 16  # questions that are tried together
POOL = "episodes.jsonl"


def demonstrate(config: Config, run_dir: Path, ranks: Ranks | None = None) -> dict:
    """`episodes.jsonl`, a line an attempt; how many there are, and how many of them are right."""
    if config.demonstrations.teacher != "model":
        return build_demonstrations(config, run_dir, ranks)
    run = RunFolder(run_dir, stages.stage_settings("demonstrations", config), ranks)
    runs = run_dir.parents[1]
    folder = stages.require_input("demonstrations", "world", config, runs)
    world = SmallWorld.load(folder / WORLD_FILE)
    where = find_policy(stages.require_input("demonstrations", "untrained", config, runs))
    conditions = build_condition_questions(world, config, "train")
    tasks = demonstration_tasks(world, config.demonstrations.count, config.seed, conditions)
    chat, system = build_chat(load_model_tokenizer(where), config)
    model = load_model(where, getattr(torch, config.model.dtype)).eval()
    funnel = Funnel()
    with (
        Sandbox() as sandbox,
        Toolbox(world, sandbox, results=config.rollout.search_results) as toolbox,
        create_engine(model, where, config) as engine,
    ):
        agent = ReAct(engine, toolbox, chat, rollout_limits(config), system)
        for first in range(_done(run.path / POOL, config), len(tasks), BLOCK):
            block = tasks[first : first + BLOCK]
            tried = agent.run(
                block,
                samples=config.demonstrations.rollouts,
                seed=config.seed,
                keys=range(first, first + len(block)),
            )
            for number, trajectory in enumerate(tried):
                task = block[number // config.demonstrations.rollouts]
                episode = _episode(task, trajectory, toolbox)
                row = pool_row(task, episode, funnel)
                row["ids"] = trajectory.token_ids.tolist()
                row["generated"] = trajectory.generated.tolist()
                append_json_line(run.path / POOL, row)
    rows = read_json_lines(run.path / POOL)
    correct = sum(row["correct"] for row in rows)
    return run.finish({"episodes": len(rows), "correct": correct})


def _done(pool: Path, config: Config) -> int:
    """Questions whose attempts are all written; a block that a kill cut short is made again."""
    if not pool.exists():
        return 0
    lines = [line for line in pool.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    whole = len(lines) // (BLOCK * config.demonstrations.rollouts) * BLOCK
    write_atomic(pool, b"".join(lines[: whole * config.demonstrations.rollouts]))
    return whole


def _episode(task: Task, trajectory: Trajectory, toolbox: Toolbox) -> Episode:
    """The attempt as the funnel judges it."""
    episode = Episode(task, toolbox, None)
    episode.messages = [m for m in trajectory.messages if m["role"] != "system"]
    episode.tool_results = trajectory.tool_results
    episode.answer = trajectory.answer
    return episode
