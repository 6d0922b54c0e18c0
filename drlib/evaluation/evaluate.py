"""Stages `evaluate_*`: accuracy on held-out questions, with the outcome of every question.

Answers of held-out search questions are answers of no training question; their facts may be
intermediate hops of one, and small calculations repeat (`drlib evaluate overlap`). All stages
answer the same questions: once greedily and `evaluation.samples` times at temperature 1, with the
real tools (or, closed book, with tools that find nothing). `outcomes.jsonl` has one line per
question, `rows.json` the sums. With `evaluation.shift`, the search questions are asked once more in
a realistic environment of the same world, as outcomes of the kind "realistic" with the same ids.
"""

import json
import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from drlib.agents import Agent, create_agent
from drlib.agents.agent_spec import AgentMixture
from drlib.agents.rollout_state import count_costs
from drlib.config import NO_WORLD, Config, split_worlds
from drlib.demonstrations.document_teacher import draw_document_questions
from drlib.environments import Environment, load_environments
from drlib.evaluation.environment_shift import RealisticEnvironment
from drlib.files import read_json_lines, write_atomic, write_json_lines
from drlib.questions.chains import Split, chain_questions
from drlib.rewards.functions import has_env_fault, is_solved
from drlib.sandbox import Sandbox
from drlib.task import Task
from drlib.tools import Toolbox
from drlib.training import stages
from drlib.training.data import WORLD_FILE, build_condition_questions, load_training_world
from drlib.training.distributed import Ranks
from drlib.training.model_setup import open_policy
from drlib.training.rollouts import rollout_limits
from drlib.training.run_folder import RunFolder
from drlib.trajectory import Trajectory, save_trajectories
from drlib.validation import require
from drlib.worlds import SmallWorld, World
from drlib.worlds.perturbed import perturb_worlds

REALISTIC = "realistic"  # kind of the search questions that are asked again with evaluation.shift
ATTEMPTS = 3  # runs of a question whose environment fails
KEPT_TRAJECTORIES = 48  # of each decoding, for reading and plotting


@dataclass(frozen=True)
class Outcome:
    """Outcome of one question.

    Attributes:
        greedy: the greedy answer is correct; `greedy_calls`, `greedy_errors` and `greedy_tokens`
            count its tool calls, their errors, and the tokens that the policy wrote.
        samples: correctness of each sampled answer; `calls`, `errors` and `tokens` are sums over
            the samples, `no_answer` the number of samples without an answer.
    """

    task: str
    kind: str
    hops: int
    greedy: bool
    samples: list[bool]
    calls: int
    errors: int
    greedy_calls: int
    greedy_errors: int
    no_answer: int
    greedy_tokens: int | None = None  # None in results that were packed without them
    tokens: int | None = None


def held_out(world: SmallWorld, config: Config, split: Split | None = "test") -> list[Task]:
    """Draw `evaluation.questions` of each kind with `evaluation.seed`, fewer if the world has
    fewer.

    split: None asks about all facts of a world that was not trained on.

    No search question has a shortcut. The question engine adds as many questions of several
    conditions, in equal parts.
    """
    count, seed = config.evaluation.questions, config.evaluation.seed
    python = chain_questions(world, count, seed, split, "python")
    results = config.rollout.search_results
    search = chain_questions(world, count, seed, split, "search", results=results, at_least=1)
    conditions = build_condition_questions(world, config, split)
    if conditions is None:
        return python + search
    rng = random.Random(f"conditions-{seed}")
    share = count // len(conditions.skills)
    several = []
    for skill in conditions.skills:
        pool = conditions.all(skill)
        several += rng.sample(pool, min(share, len(pool)))
    return python + search + several


def ask(
    agent: Agent | AgentMixture,
    tasks: list[Task],
    keys: list[int],
    config: Config,
    realistic: RealisticEnvironment | None = None,
):
    """Return (outcomes, trajectories) of the tasks; `keys` fix each question's random streams.

    realistic: the environment of the tasks if it is not the simulator; the random streams of the
    policy are the same in both.
    """
    k = config.evaluation.samples
    seed = config.evaluation.seed

    def run(samples: int, temperature: float) -> list[Trajectory]:
        options: dict[str, Any] = {"temperature": temperature, "seed": seed}
        if realistic is None:
            return run_judged(agent, tasks, keys, samples=samples, **options)
        # one task per rollout, because each has its own faults
        rollouts, worlds = realistic.expand(tasks, samples, f"T={temperature}")
        streams = [key * samples + number for key in keys for number in range(samples)]
        return run_judged(agent, rollouts, streams, worlds=worlds, **options)

    greedy, sampled = run(1, 0.0), run(k, 1.0)
    outcomes = []
    for i, (task, first) in enumerate(zip(tasks, greedy)):
        tries = sampled[i * k : (i + 1) * k]
        calls = [result for t in tries for result in t.tool_results]
        outcomes.append(
            Outcome(
                task=task.id,
                kind=task.category,
                hops=task.hops,
                greedy=is_solved(first, task),
                samples=[is_solved(t, task) for t in tries],
                calls=len(calls),
                errors=sum(not call.ok for call in calls),
                greedy_calls=len(first.tool_results),
                greedy_errors=sum(not call.ok for call in first.tool_results),
                no_answer=sum(t.answer is None for t in tries),
                greedy_tokens=count_costs(first)["sampled"],
                tokens=sum(count_costs(t)["sampled"] for t in tries),
            )
        )
    return outcomes, greedy, sampled[::k]


def run_judged(
    agent: Agent | AgentMixture, tasks: list[Task], keys: list[int], samples: int = 1, **options
) -> list[Trajectory]:
    """Run the tasks; repeat those with a fault of the environment, which is no wrong answer.

    Raises:
        RuntimeError: a task has a fault in each of `ATTEMPTS` runs.
    """
    found = agent.run(tasks, samples=samples, keys=keys, **options)
    for _ in range(ATTEMPTS - 1):
        faulty = {n // samples for n, t in enumerate(found) if has_env_fault(t)}
        for number in sorted(faulty):
            some = slice(number * samples, (number + 1) * samples)
            found[some] = agent.run(
                [tasks[number]], samples=samples, keys=[keys[number]], **options
            )
    faults = [t for t in found if has_env_fault(t)]
    if faults:
        cause = faults[0].metadata.get("fault") or faults[0].tool_results[-1].source
        raise RuntimeError(
            f"{len(faults)} of {len(found)} rollouts ended with a fault of the environment in "
            f"{ATTEMPTS} runs, for example {faults[0].task_id}: {cause}. They cannot be judged; "
            "correct the cause and run the command again"
        )
    return found


def rows_of(outcomes: list[Outcome], stage: str, seed: int) -> list[dict]:
    """Return sums by kind and number of hops.

    `sample` counts answers; `greedy` and `pass@k` count questions.
    """
    rows = []
    for kind, hops in sorted({(o.kind, o.hops) for o in outcomes}):
        some = [o for o in outcomes if (o.kind, o.hops) == (kind, hops)]
        k = len(some[0].samples)
        asked = {
            "greedy": [o.greedy for o in some],
            "sample": [s for o in some for s in o.samples],
            f"pass@{k}": [any(o.samples) for o in some],
        }
        rows += [
            {
                "stage": stage,
                "kind": kind,
                "hops": hops,
                "decoding": decoding,
                "seed": seed,
                "n": len(each),
                "correct": sum(each),
            }
            for decoding, each in asked.items()
        ]
    return rows


def evaluate(config: Config, run_dir: Path, ranks: Ranks, *, of: str) -> None:
    """Build stage `evaluate_<of>`."""
    closed = of == "closed_book"
    name, runs = f"evaluate_{of}", run_dir.parents[1]
    run = RunFolder(run_dir, stages.stage_settings(name, config), ranks)
    asked = stages.require_input(name, "rl" if closed else of, config, runs)
    world: SmallWorld | None = None
    tasks: list[Task] = []
    if config.evaluation.world == NO_WORLD:
        require(
            bool(config.evaluation.documents or config.evaluation.environments),
            "evaluation.world=none asks nothing: set evaluation.documents or .environments",
        )
    elif config.evaluation.world:  # nothing of it was trained on
        world, _ = load_training_world(config, name=config.evaluation.world)
        tasks = held_out(world, config, split=None)
    else:
        world = SmallWorld.load(stages.require_input(name, "world", config, runs) / WORLD_FILE)
        tasks = held_out(world, config)
    if config.rl.callbacks.world_change and world is not None:
        # the same questions in the world that training ended with
        tasks, changed = perturb_worlds(tasks, {}, world)
        (world,) = changed.values()
    realistic = None if closed else build_realistic(tasks, world, config)
    outcomes: list[Outcome] = []
    with Sandbox() as sandbox, open_policy(asked, config) as (engine, chat, system):
        environments = {} if closed else load_environments(config.evaluation.environments)
        parts: list[tuple[str, World | None, list[Task]]] = []
        if tasks:
            parts.append(("", world, tasks))
        parts += document_tasks(config)
        parts += environment_tasks(environments, config)
        if realistic:
            parts.append((REALISTIC, realistic.world, realistic.questions.tasks))
        numbers = {task.id: number for number, task in enumerate(tasks)}
        for kind, place, some in parts:
            mine = list(range(ranks.rank, len(some), ranks.size))
            shifted = realistic if kind == REALISTIC else None
            # a question has the same random streams in both environments
            keys = [numbers[some[i].id] for i in mine] if shifted else mine
            with Toolbox(
                place,
                sandbox,
                results=config.rollout.search_results,
                closed_book=closed,
                environments=environments,
                policies=shifted.policies if shifted else None,
                clock=shifted.clock if shifted else time,
            ) as toolbox:
                limits, spec = rollout_limits(config), config.evaluation.agent
                agent = create_agent(spec, engine, toolbox, chat, limits, system)
                found, greedy, sampled = ask(agent, [some[i] for i in mine], keys, config, shifted)
            if ranks.first:
                safe = re.sub(r"\W+", "_", kind)
                end = f"_{safe}.parquet" if kind else ".parquet"
                save_trajectories(run.path / f"greedy{end}", greedy[-KEPT_TRAJECTORIES:])
                save_trajectories(run.path / f"sampled{end}", sampled[-KEPT_TRAJECTORIES:])
            pairs = sorted(ranks.gather(list(zip(mine, found))), key=lambda pair: pair[0])
            outcomes += [replace(each, kind=kind) if kind else each for _, each in pairs]
    if ranks.first:
        rows = rows_of(outcomes, of, config.seed)
        write_json_lines(run.path / "outcomes.jsonl", map(vars, outcomes))
        write_atomic(run.path / "rows.json", json.dumps(rows, indent=0))
    counts = {REALISTIC: realistic.questions.summary()} if realistic else {}
    run.finish({"questions": len(outcomes), **counts})


def build_realistic(
    tasks: list[Task], world: World | None, config: Config
) -> RealisticEnvironment | None:
    """Return the environment of `evaluation.shift` with the search questions; None without one.

    Raises:
        ValueError: no questions about a world are asked, or training changes that world.
    """
    shift = config.evaluation.shift
    if not shift.is_active:
        return None
    require(
        world is not None and not config.rl.callbacks.world_change,
        "evaluation.shift changes the world of the held-out questions: it excludes "
        "evaluation.world=none and rl.callbacks.world_change",
    )
    searches = [task for task in tasks if task.category == "search"]
    results = config.rollout.search_results
    return RealisticEnvironment(searches, cast(SmallWorld, world), shift, results)


def document_tasks(config: Config) -> list[tuple[str, World, list[Task]]]:
    """Return (short name, world, tasks) of each world in evaluation.documents.

    Raises:
        ValueError: one of them was trained on.
    """
    whole = config.unrestricted()
    trained = {
        *split_worlds(whole.demonstrations.documents),
        *split_worlds(whole.rl.curriculum.documents),
    }
    both = sorted(trained.intersection(split_worlds(config.evaluation.documents)))
    require(
        not both,
        f"evaluation.documents={both[:1]} is also trained on, so its answers are not held out: "
        "leave it out of one of them",
    )
    count, seed = config.evaluation.questions, config.evaluation.seed
    parts = []
    for name in split_worlds(config.evaluation.documents):
        world, questions = draw_document_questions(name, count, seed)
        short = Path(name.partition(":")[2] or name).name
        parts.append((short, world, [question.task for question in questions]))
    return parts


def environment_tasks(
    environments: Mapping[str, Environment], config: Config
) -> list[tuple[str, None, list[Task]]]:
    """Return (name, no world, tasks of the test split) of each environment."""
    count, seed = config.evaluation.questions, config.evaluation.seed
    return [
        (name, None, environment.tasks(count, seed, "test"))
        for name, environment in environments.items()
    ]


def read_outcomes(folder: Path) -> list[Outcome]:
    """Return the outcomes of a finished evaluation."""
    return [Outcome(**row) for row in read_json_lines(folder / "outcomes.jsonl")]
