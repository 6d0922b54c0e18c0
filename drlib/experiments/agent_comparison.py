"""Compare several agents of one policy on the same questions: answers and token costs.

A trial is an agent (`drlib.agents.agent_spec`) with a set of questions and limits. A ledger keeps
the answer and token cost of every rollout. Accuracy, majority votes of any size and pass@n follow
without new rollouts. `at_equal_tokens` matches the number of samples to the cost of another trial.

Not measured: time, which depends on the machine, and money.
"""

import json
import random
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from drlib.agents import Limits, create_agent
from drlib.agents.heavy import vote
from drlib.agents.rollout_state import COUNTS, count_costs
from drlib.chat.template import ChatIds
from drlib.files import write_atomic
from drlib.models.engine import Engine
from drlib.questions.chains import chain_questions, make_trail
from drlib.task import Task, is_correct, normalise_answer
from drlib.tools import Toolbox
from drlib.validation import require
from drlib.worlds import Names, SmallWorld, World

HEAD = b"drlib"  # key of the schema metadata
SCHEMA = pa.schema(
    [
        ("trial", pa.string()),
        ("policy", pa.string()),
        ("seed", pa.int32()),
        ("record", pa.string()),  # rollout or step
        ("question", pa.string()),
        ("sample", pa.int32()),
        ("answer", pa.string()),
        ("right", pa.bool_()),
        ("ended", pa.string()),
        *((name, pa.int32()) for name in COUNTS),
        ("values", pa.string()),  # JSON: the metrics of a step
    ]
)


@dataclass(frozen=True)
class Trial:
    """An agent on a set of questions.

    questions: "search" or "python" (held out), or "trail:PAGES" (invented), `n` of them, each
    `samples` times. stage: whose policy. context_tokens, turn_tokens, calls: `Limits`.
    """

    name: str
    agent: str
    questions: str = "search"
    n: int = 200
    samples: int = 1
    temperature: float = 1.0
    stage: str = "rl"
    context_tokens: int = 448
    turn_tokens: int = 72
    calls: int = 6

    @property
    def limits(self) -> Limits:
        return Limits(self.calls, self.turn_tokens, self.context_tokens)


@dataclass
class Ledger:
    """Outcomes of a trial with one seed: one row per question, one column per sample.

    answers: normalised, None without an answer. right: True for accepted answers. ended: reasons of
    `Termination`. counts: as in `drlib.agents.rollout_state.count_costs`.
    """

    trial: Trial
    seed: int
    tasks: list[str] = field(default_factory=list)
    answers: list[list[str | None]] = field(default_factory=list)
    right: list[list[bool]] = field(default_factory=list)
    ended: list[list[str]] = field(default_factory=list)
    counts: dict[str, list[list[int]]] = field(default_factory=lambda: {n: [] for n in COUNTS})

    def mean(self, count: str) -> float:
        """Return the mean per rollout."""
        return float(np.mean(self.counts[count]))

    def accuracy_Q(self) -> np.ndarray:
        """Return the share of right samples of each question, [Q]."""
        return np.array(self.right, float).mean(axis=1)

    def voted_Q(self, n: int) -> np.ndarray:
        """Return 1 where the majority of the first `n` samples is right, else 0, [Q].

        Ties go to the answer given first. ValueError: there are fewer samples.
        """
        samples = len(self.right[0])
        require(1 <= n <= samples, f"{self.trial.name}: {n} of {samples} samples")
        found = []
        for answers, right in zip(self.answers, self.right):
            chosen = vote(answers[:n])
            found.append(chosen is not None and right[answers.index(chosen)])
        return np.array(found, float)

    def passed_Q(self, n: int) -> np.ndarray:
        """Return 1 where any of the first `n` samples is right, else 0, [Q]."""
        return np.array([any(right[:n]) for right in self.right], float)


def at_equal_tokens(one: Ledger, other: Ledger, count: str = "sampled") -> int:
    """Return the number of samples of `one` that cost as many tokens as one rollout of `other`,
    between 1 and the number available.
    """
    samples = round(other.mean(count) / one.mean(count))
    return max(1, min(samples, len(one.right[0])))


def questions_of(trial: Trial, world: SmallWorld, seed: int) -> tuple[list[Task], dict[str, World]]:
    """Return (tasks, worlds of the tasks that bring one), equal for all agents and policies."""
    kind, _, pages = trial.questions.partition(":")
    if kind == "trail":
        rng = random.Random(f"trials-{seed}-{trial.questions}")
        names = Names.from_world(world)
        pairs = [make_trail(rng.getrandbits(60), names, int(pages)) for _ in range(trial.n)]
        return [task for task, _ in pairs], {task.world: small for task, small in pairs}
    require(kind in ("search", "python"), f"trial {trial.name}: no questions {trial.questions!r}")
    return chain_questions(world, trial.n, seed, "test", kind, results=2, at_least=1), {}


def run_trial(
    trial: Trial,
    engine: Engine,
    toolbox: Toolbox,
    chat: ChatIds | None,
    world: SmallWorld,
    question_seed: int,
    seed: int,
) -> Ledger:
    """Run the trial. question_seed: of questions and answers; seed: the policy's, recorded."""
    tasks, worlds = questions_of(trial, world, question_seed)
    agent = create_agent(trial.agent, engine, toolbox, chat, trial.limits)
    done = agent.run(
        tasks,
        samples=trial.samples,
        temperature=trial.temperature,
        seed=question_seed,
        worlds=worlds,
    )
    ledger = Ledger(trial, seed, [task.id for task in tasks])
    for i, task in enumerate(tasks):
        some = done[i * trial.samples : (i + 1) * trial.samples]
        ledger.answers.append([t.answer and normalise_answer(t.answer) for t in some])
        ledger.right.append([is_correct(t.answer, task) for t in some])
        ledger.ended.append([str(t.termination) for t in some])
        costs = [count_costs(t) for t in some]
        for name in COUNTS:
            ledger.counts[name].append([cost[name] for cost in costs])
    return ledger


@dataclass
class AgentRecords:
    """The results of a comparison of agents, kept as one Parquet file.

    Rows are rollouts (one per trial, seed, question and sample) and training steps of the policies.
    The schema metadata holds what was run.

    Attributes:
        head: command, profile, policies, trials, seeds, seed of the questions, commits.
        ledgers: by (trial, seed).
        curves: rows of metrics.jsonl by (policy, seed).
    """

    head: dict
    ledgers: dict[tuple[str, int], Ledger] = field(default_factory=dict)
    curves: dict[tuple[str, int], list[dict]] = field(default_factory=dict)

    def by_trial(self) -> dict[str, list[Ledger]]:
        """Return the ledgers of each trial, sorted by seed."""
        found: dict[str, list[Ledger]] = {name: [] for name in self.head["trials"]}
        for name, seed in sorted(self.ledgers, key=lambda at: at[1]):
            found[name].append(self.ledgers[name, seed])
        return found

    def save(self, path: Path) -> Path:
        """Write the file atomically."""
        rows = [
            {"trial": name, "seed": seed, "record": "rollout", **row}
            for (name, seed), ledger in self.ledgers.items()
            for row in _rows(ledger)
        ]
        rows += [
            {"policy": name, "seed": seed, "record": "step", "values": json.dumps(step)}
            for (name, seed), steps in self.curves.items()
            for step in steps
        ]
        table = pa.Table.from_pylist(rows, SCHEMA.with_metadata({HEAD: json.dumps(self.head)}))
        path.parent.mkdir(parents=True, exist_ok=True)
        return write_atomic(path, lambda p: pq.write_table(table, p, compression="zstd"))

    @staticmethod
    def load(path: Path) -> "AgentRecords":
        """Read the file; ValueError if it does not exist or cannot be read."""
        try:
            table = pq.read_table(path)
            head = json.loads(table.schema.metadata[HEAD])
            trials = {name: Trial(**one) for name, one in head["trials"].items()}
        except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"no readable results in {path}: run the experiment first") from error
        records = AgentRecords(head)
        for row in table.to_pylist():
            seed = row["seed"]
            if row["record"] == "step":
                steps = records.curves.setdefault((row["policy"], seed), [])
                steps.append(json.loads(row["values"]))
                continue
            trial = trials[row["trial"]]
            ledger = records.ledgers.setdefault((trial.name, seed), Ledger(trial, seed))
            if row["sample"] == 0:
                ledger.tasks.append(row["question"])
                ledger.answers.append([])
                ledger.right.append([])
                ledger.ended.append([])
                for counts in ledger.counts.values():
                    counts.append([])
            ledger.answers[-1].append(row["answer"])
            ledger.right[-1].append(row["right"])
            ledger.ended[-1].append(row["ended"])
            for name, counts in ledger.counts.items():
                counts[-1].append(row[name])
        return records


def _rows(ledger: Ledger) -> list[dict]:
    """Return one row per rollout, question by question."""
    return [
        {
            "question": task,
            "sample": sample,
            "answer": ledger.answers[i][sample],
            "right": ledger.right[i][sample],
            "ended": ledger.ended[i][sample],
            **{name: counts[i][sample] for name, counts in ledger.counts.items()},
        }
        for i, task in enumerate(ledger.tasks)
        for sample in range(len(ledger.answers[i]))
    ]
