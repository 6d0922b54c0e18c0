"""Compare several agents of one policy on the same questions: answers and token costs.

A trial is an agent (`drlib.agents.agent_spec`) with a set of questions and limits. A ledger keeps
the answer and token cost of every rollout. Accuracy, majority votes of any size and pass@n follow
without new rollouts. `at_equal_tokens` matches the number of samples to the cost of another trial.

Not measured: time, which depends on the machine, and money.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

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
from drlib.worlds import Names, SmallWorld


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
        """The share of right samples of each question, [Q]."""
        return np.array(self.right, float).mean(axis=1)

    def voted_Q(self, n: int) -> np.ndarray:
        """Return whether the majority of the first `n` samples is right, [Q]; first given wins
        ties.
        ValueError: there are not so many."""
        samples = len(self.right[0])
        require(1 <= n <= samples, f"{self.trial.name}: {n} of {samples} samples")
        found = []
        for answers, right in zip(self.answers, self.right):
            chosen = vote(answers[:n])
            found.append(chosen is not None and right[answers.index(chosen)])
        return np.array(found, float)

    def passed_Q(self, n: int) -> np.ndarray:
        """Return whether any of the first `n` samples is right, [Q]."""
        return np.array([any(right[:n]) for right in self.right], float)


def at_equal_tokens(one: Ledger, other: Ledger, count: str = "sampled") -> int:
    """Return the number of samples of `one` that cost as many tokens as one rollout of `other`,
    between 1 and the number available.
    """
    samples = round(other.mean(count) / one.mean(count))
    return max(1, min(samples, len(one.right[0])))


def questions_of(
    trial: Trial, world: SmallWorld, seed: int
) -> tuple[list[Task], dict[str, SmallWorld]]:
    """Return (tasks, worlds of the tasks that bring one), equal for all agents and policies."""
    kind, _, pages = trial.questions.partition(":")
    if kind == "trail":
        rng = random.Random(f"trials-{seed}-{trial.questions}")
        names = Names.from_world(world)
        pairs = [make_trail(rng.getrandbits(60), names, int(pages)) for _ in range(trial.n)]
        return [task for task, _ in pairs], {task.world: small for task, small in pairs}
    require(kind in ("search", "python"), f"trial {trial.name}: no questions {trial.questions!r}")
    return chain_questions(world, trial.n, seed, "test", kind, results=2, at_least=1), {}


def attempt(
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


def save_ledgers(path: Path, head: dict, ledgers: Sequence[Ledger]) -> Path:
    """Write one JSON file: `head` (command, profile, ..), then one line per ledger."""
    lines = [json.dumps(asdict(ledger), ensure_ascii=False) for ledger in ledgers]
    text = f'{json.dumps(head)[:-1]}, "ledgers": [\n' + ",\n".join(lines) + "\n]}\n"
    return write_atomic(path, text)


def load_ledgers(path: Path) -> tuple[dict, list[Ledger]]:
    """Load (head, ledgers) written by `save_ledgers`; ValueError if unreadable."""
    try:
        head = json.loads(path.read_text(encoding="utf-8"))
        rows = head.pop("ledgers")
        return head, [Ledger(**row | {"trial": Trial(**row["trial"])}) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise ValueError(f"no readable ledgers in {path}: {fault!r}") from fault
