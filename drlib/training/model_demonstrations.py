"""Stage `demonstrations` with demonstrations.teacher=model: rollouts of a model.

The teacher is the initial model itself, or the policy in demonstrations.policy. In the second case
stage `sft` is off-policy distillation: it trains on the correct rollouts of another policy.

Rejection sampling as in Tongyi DeepResearch (report, section 3.3) and STaR: the model answers every
question several times with real tools, and the cold start trains on what sft.filter keeps. The
pool stores the sampled token ids, so nothing is re-tokenised.

Questions are processed in blocks. A killed stage resumes at the last complete block, because random
numbers depend on the seed and the question only.
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
    build_condition_questions,
    build_demonstrations,
    demonstration_tasks,
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
from drlib.validation import require
from drlib.worlds import SmallWorld

BLOCK = 16  # questions that are processed together
POOL = "episodes.jsonl"


def demonstrate(config: Config, run_dir: Path, ranks: Ranks | None = None) -> dict:
    """Write `episodes.jsonl`, one row per rollout; return the numbers of rollouts and correct
    ones.
    """
    if config.demonstrations.teacher != "model":
        return build_demonstrations(config, run_dir, ranks)
    given = stages.policy_folders("demonstrations.policy", config)
    require(
        bool(given or config.model.path),
        "demonstrations.teacher=model needs a trained policy: set demonstrations.policy=FOLDER, or "
        "model.path=FOLDER",
    )
    require(
        not config.demonstrations.environments,
        "demonstrations.environments are solved by scripts: set demonstrations.teacher=solver or "
        "flawed, or leave them out",
    )
    run = RunFolder(run_dir, stages.stage_settings("demonstrations", config), ranks)
    runs = run_dir.parents[1]
    folder = stages.require_input("demonstrations", "world", config, runs)
    world = SmallWorld.load(folder / WORLD_FILE)
    if given:
        where = str(given[0][1])
        student = config.model_path or str(folder / "tokenizer")
        require(
            load_model_tokenizer(where).get_vocab() == load_model_tokenizer(student).get_vocab(),
            f"demonstrations.policy={where} has another tokenizer than the student: its tokens "
            "cannot be trained on",
        )
    else:
        where = find_policy(stages.require_input("demonstrations", "untrained", config, runs))
    conditions = build_condition_questions(world, config, "train")
    tasks = demonstration_tasks(world, config.demonstrations.count, config.seed, conditions)
    chat, system = build_chat(load_model_tokenizer(where), config.model.tool_format)
    model = load_model(where, getattr(torch, config.model.dtype)).eval()
    funnel = Funnel()
    with (
        Sandbox() as sandbox,
        Toolbox(world, sandbox, results=config.rollout.search_results) as toolbox,
        create_engine(model, where, config) as engine,
    ):
        agent = ReAct(engine, toolbox, chat, rollout_limits(config), system)
        for first in range(_count_done(run.path / POOL, config), len(tasks), BLOCK):
            block = tasks[first : first + BLOCK]
            tried = agent.run(
                block,
                samples=config.demonstrations.rollouts,
                seed=config.seed,
                keys=range(first, first + len(block)),
            )
            for number, trajectory in enumerate(tried):
                task = block[number // config.demonstrations.rollouts]
                episode = _build_episode(task, trajectory, toolbox)
                row = pool_row(task, episode, funnel)
                row["ids"] = trajectory.token_ids.tolist()
                row["generated"] = trajectory.generated.tolist()
                append_json_line(run.path / POOL, row)
    rows = read_json_lines(run.path / POOL)
    correct = sum(row["correct"] for row in rows)
    return run.finish({"episodes": len(rows), "correct": correct})


def _count_done(pool: Path, config: Config) -> int:
    """Return the number of questions in complete blocks; drop an incomplete one."""
    if not pool.exists():
        return 0
    lines = [line for line in pool.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    whole = len(lines) // (BLOCK * config.demonstrations.rollouts) * BLOCK
    write_atomic(pool, b"".join(lines[: whole * config.demonstrations.rollouts]))
    return whole


def _build_episode(task: Task, trajectory: Trajectory, toolbox: Toolbox) -> Episode:
    """Convert a rollout to the episode that the funnel filters."""
    episode = Episode(task, toolbox, None)
    episode.messages = [m for m in trajectory.messages if m["role"] != "system"]
    episode.tool_results = trajectory.tool_results
    episode.answer = trajectory.answer
    return episode
