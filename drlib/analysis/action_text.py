"""Text about actions from invented worlds: rows, right plans, shortcuts, a short training run.

Used by the notebook on agentic pre-training; stages use `agentfounder.ActionRows`.
"""

import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from drlib.chat.template import ChatIds
from drlib.chat.tool_calls import END, ToolCall, parse, render_call
from drlib.config import Config
from drlib.demonstrations import actions, agentfounder
from drlib.demonstrations.agentfounder import CptRow, Teacher
from drlib.demonstrations.oracle import Demonstrator, DemonstratorFaults, Episode
from drlib.models.moe import PolicyShape, build_policy
from drlib.questions.chains import SearchQuestions, make_python_task
from drlib.questions.entity_memory import EntityMemory
from drlib.task import Task
from drlib.tools import Toolbox
from drlib.training import pretrain, run_folder, sft
from drlib.worlds import Names, fictional_world

FAULTS = DemonstratorFaults(guess=0.1, stop_early=0.15, bad_code=0.3, bad_query=0.2, loop=0.02)
FIRST_STAGE = 0.6  # share of the steps
REPLAY_SHARE = 0.5


class InventedWorld(NamedTuple):
    """Facts of an invented world, and finished trajectories of an imperfect teacher."""

    memory: EntityMemory
    titles: list[str]
    relations: set[str]
    episodes: list[Episode]


def invent_worlds(
    count: int, questions: int, names: Names, toolbox: Toolbox, seed: int
) -> list[InventedWorld]:
    """Invent worlds and let an imperfect teacher answer questions with real tools.

    Args:
        count: number of worlds.
        questions: per world: sums, and search questions of one or two hops, equally often.
        names: source of the names.
        toolbox: tools of the teacher.
        seed: the same seed gives the same worlds.
    """
    found = []
    for number in range(count):
        rng = random.Random(f"{seed}-{number}")
        world = fictional_world(f"03-{seed}-{number}", names)
        titles = sorted(world.entities)
        draw = SearchQuestions(world, None, max_hops=2).draw
        hops = rng.choices((0, 1, 2), k=questions)
        tasks = [draw(h, rng) if h else make_python_task(rng) for h in hops]
        teacher = Demonstrator(FAULTS, titles)
        episodes = [teacher.play(task, toolbox, rng, world) for task in tasks]
        relations = {relation for one in world.entities.values() for relation in one.facts}
        found.append(InventedWorld(agentfounder.memory_of(world), titles, relations, episodes))
    return found


def write_rows(
    world: InventedWorld, plans: int, alternatives: int, rng: random.Random
) -> Iterator[CptRow]:
    """Yield plans, a refined answer and decisions of each trajectory; no tool is called.

    Args:
        world: facts and trajectories.
        plans: plans per search question.
        alternatives: options beside each real step.
        rng: source of randomness.
    """
    teacher = Teacher(world.titles, world.relations)
    for e in world.episodes:
        if e.task.kind == "search":
            yield from agentfounder.plans(e.task, world.memory, teacher, plans, rng)
            yield agentfounder.reasoning(e.task, world.memory, teacher, rng)
        if e.tool_results:
            yield agentfounder.higher_order(
                e.messages, e.correct, e.task.id, teacher, alternatives, rng
            )


def is_right_plan(row: CptRow, task: Task) -> bool:
    """Return True if a plan starts at the task's start with the task's first relation."""
    thought, _, call = row.parts[1][1].removesuffix(END).partition("</think>")
    expected = render_call("search", {"query": [task.start]})
    return call == expected and f"the {task.relations[0]}." in thought


def measure_shortcut(row: CptRow) -> list[float]:
    """Return the probability of the real step under a rule that ignores the question's meaning.

    The rule keeps the options that search for a name which was read before, and guesses among
    them; without such an option it guesses among all. One value per decision.
    """
    found = []
    for read, options, real in agentfounder.list_decisions(row):
        steps = [parse(option) for option in options]
        queries = [s.arguments.get("query") if isinstance(s, ToolCall) else None for s in steps]
        text = "\n".join(read)
        fits = [isinstance(q, list) and bool(q) and str(q[0]) in text for q in queries]
        found.append(fits[real] / sum(fits) if any(fits) else 1 / len(options))
    return found


def train_on_stages(
    stages: Sequence[Sequence[actions.Sample]], config: Config, names: Names, chat: ChatIds
) -> list[float]:
    """Pre-train a new policy on two stages of samples, half of them replay; return the losses.

    Args:
        stages: samples of the first 60% of the steps, and of the rest.
        config: steps, batch size and learning rates of pre-training; seed.
        names: source of the names in general text.
        chat: tokenizer and template.
    """
    settings, general = (
        config.pretrain,
        actions.ActionData(names, chat, config.rollout.search_results),
    )

    def draw(step: int, shard: int) -> Iterator[actions.Sample]:
        key = f"{config.seed}-{step}-{shard}"
        own = sft.shuffled(list(stages[step >= round(FIRST_STAGE * settings.steps)]), key)
        replay = general.stream(key, actions.REPLAY)
        return agentfounder.with_replay(own, replay, REPLAY_SHARE, random.Random(key))

    policy = build_policy(PolicyShape(config.world.vocabulary), config.seed)
    with tempfile.TemporaryDirectory() as place:
        folder = run_folder.RunFolder(Path(place) / "cpt", {})
        pretrain.train_supervised(
            folder,
            policy,
            config,
            draw,
            steps=settings.steps,
            batch_tokens=settings.batch_tokens,
            lrs=(settings.muon_lr, settings.adam_lr),
            warmup=settings.warmup_steps,
            decay_share=1.0,
        )
        return [row["loss"] for row in run_folder.read_metrics(folder.path)]


def get_cold_starts(rows: Sequence[Mapping], arm: str, at: int, measure: str) -> list[float]:
    """Return a measure of one cold start of an arm, per seed.

    Args:
        rows: `rows` of figures/reference/cpt/results.json.
        arm: key of `pretraining_plots.ARMS`.
        at: index of the cold start.
        measure: "loss" or "held_out_loss", nats per token.
    """
    return [row["arms"][arm]["cold_starts"][at][measure] for row in rows]
