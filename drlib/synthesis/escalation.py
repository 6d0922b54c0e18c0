"""Questions made harder, round by round, until a solver needs its tools for them.

WebResearcher's data engine (arXiv 2509.13309, section 3) has an ItemWriter whose questions pass two
gates. What a solver gets right without tools is too easy: the question is upgraded, and what comes
of it is the seed of the next round. What a solver never gets right with tools is out; what it gets
right with them is kept. A similarity scorer takes out what was asked before.

There a model writes and upgrades. Here the upgrades are the operators of
`drlib.synthesis.upgrades`, executed and checked, so a question keeps its one answer however often
it is made harder, and the solvers are any two attempts. Asked before means the same query: two
texts of one query are one question here.

Left out: operators that a model proposes, seeds from texts without facts.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from drlib.synthesis.engine import question_task
from drlib.synthesis.pass_rates import Attempt, gate, rated
from drlib.synthesis.proven import word_question
from drlib.synthesis.queries import canonical, from_text, to_text
from drlib.synthesis.read_back import grammar_of
from drlib.synthesis.sentences import STYLES
from drlib.synthesis.upgrades import upgrade_rounds
from drlib.task import Task
from drlib.validation import require

NO_UPGRADE = "too easy, and no operator makes it harder"
ASKED_BEFORE = "asked before"
TOO_EASY = "too easy after the last round"


@dataclass
class Escalation:
    """What came of seeds.

    kept: rated tasks that both gates keep. out: task and why it is out, in the order in which that
    was seen. stages: id of a task -> the upgrades on its way, first one first; none for a seed.
    rounds: for each, how many of its tasks came to what end ("upgraded" is one).
    """

    kept: list[Task] = field(default_factory=list)
    out: list[tuple[Task, str]] = field(default_factory=list)
    stages: dict[str, tuple[str, ...]] = field(default_factory=dict)
    rounds: list[dict[str, int]] = field(default_factory=list)


def escalate(
    tasks: Sequence[Task],
    world,
    n: int,
    rounds: int,
    *,
    closed_book: Attempt,
    with_tools: Attempt,
    seed: int | str,
    easy: float = 0.0,
    folder: str | Path | None = None,
) -> Escalation:
    """The questions of `world` that come of `tasks` in at most `rounds` upgrades of each.

    n: attempts at each question, of either kind. easy: the closed-book rate that is hard enough.
    folder: keeps what was tried, so that a killed run tries nothing twice; one for each pair of
    solvers.
    ValueError: a task without a query, or `rounds` below 0.
    """
    require(rounds >= 0, f"{rounds=} starts at 0")
    for task in tasks:
        require(bool(task.query), f"task {task.id!r} has no query: nothing can be upgraded")
    done, asked, waiting = Escalation(), set(), [*tasks]
    done.stages = {task.id: () for task in tasks}
    for number in range(rounds + 1):
        waiting = _new(waiting, asked, done)
        if not waiting:
            break
        solvers = {"closed_book": closed_book, "with_tools": with_tools}
        judged = rated(waiting, n, **solvers, folder=folder, easy=easy)
        waiting, ends = [], Counter()
        for task in judged:
            why = gate(task, easy)
            if task.closed_book is not None and task.closed_book > easy:
                harder = _upgraded(task, world, seed, done) if number < rounds else None
                why = "upgraded" if harder else TOO_EASY if number == rounds else NO_UPGRADE
                waiting += [harder] if harder else []
            if not why:
                done.kept.append(task)
            elif why != "upgraded":
                done.out.append((task, why))
            ends[why or "kept"] += 1
        done.rounds.append(dict(ends.most_common()))
    return done


def _new(tasks: Sequence[Task], asked: set[str], done: Escalation) -> list[Task]:
    """Those whose query is not in `asked`; it is now."""
    found = []
    for task in tasks:
        text = to_text(canonical(from_text(task.query)))
        if text in asked:
            done.out.append((task, ASKED_BEFORE))
        else:
            found.append(task)
        asked.add(text)
    return found


def _upgraded(task: Task, world, seed: int | str, done: Escalation) -> Task | None:
    """The task after the first upgrade of a round that succeeds and can be said; None: none does.
    Its draws depend on the task and not on what is upgraded beside it."""
    rng = random.Random(f"escalate-{seed}-{task.id}")
    grammar = grammar_of(world.graph, world.scheme)
    for stage, query in upgrade_rounds(from_text(task.query), world.graph, rng, 1):
        text = word_question(query, grammar, rng.choice(STYLES))
        if text:
            harder = question_task(world, task.answer, canonical(query), text)
            done.stages[harder.id] = (*done.stages[task.id], stage)
            return harder
    return None
