"""Difficulty of questions: closed-book and with-tools pass rates, and rounds of upgrades.

WebResearcher's data engine (arXiv 2509.13309, section 3) keeps a question if a solver without tools
fails and a solver with tools succeeds. `rate_tasks` measures both rates, `filter_by_gates` applies
the gates, and `escalate` upgrades questions that are too easy. In the paper a model upgrades; here
the executed operators of `drlib.questions.upgrades` do, so the answer stays verified.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from drlib.files import append_json_line, resume_json_lines
from drlib.questions.chains import digest_text
from drlib.questions.queries import canonicalise, from_text, to_text
from drlib.questions.question_engine import make_question_task
from drlib.questions.read_back import load_grammar, word_question
from drlib.questions.replies import Replies, make_prompt
from drlib.questions.sentences import STYLES
from drlib.questions.upgrades import run_upgrade_rounds
from drlib.task import Task, is_correct
from drlib.trajectory import Termination
from drlib.validation import require, require_within

# (tasks, n) -> for each task, n results: correct, wrong, or None if it could not be judged
Solver = Callable[[Sequence[Task], int], Sequence[Sequence[bool | None]]]
BATCH = 16  # tasks whose rollouts are lost if the run is killed
CLOSED_BOOK_PROMPT = (
    "Answer the user's question from what you know. Reply with the answer alone: a name or a "
    "number. If you do not know, guess."
)


def make_agent_solver(agent, **how) -> Solver:
    """Return a solver that runs an agent (`drlib.agents.Agent`).

    Args:
        agent: the agent; it is closed book if its toolbox is empty.
        how: arguments of `Agent.run`, such as temperature and worlds.

    Random numbers depend on a task's id only, not on the other tasks of the call.
    """

    def attempt(tasks: Sequence[Task], n: int) -> list[list[bool | None]]:
        """Sample `n` rollouts of each task and judge the answers."""
        keys = [int(digest_text(task.id)[:7], 16) for task in tasks]
        done = agent.run(tasks, samples=n, keys=keys, **how)
        judged = [
            None
            if one.termination == Termination.ENV_FAULT
            else is_correct(one.answer, tasks[i // n])
            for i, one in enumerate(done)
        ]
        return [judged[i : i + n] for i in range(0, len(judged), n)]

    return attempt


def make_closed_book_solver(replies: Replies) -> Solver:
    """Return a solver that prompts a model without tools; each rollout has its own seed."""

    def one(item: tuple[Task, int]) -> bool | None:
        """Request and judge one answer."""
        task, number = item
        reply = replies.ask(make_prompt(CLOSED_BOOK_PROMPT, task.question), seed=number)
        answer = reply.text.rpartition("</think>")[2].strip()
        return None if reply.failed else is_correct(answer, task)

    def attempt(tasks: Sequence[Task], n: int) -> list[list[bool | None]]:
        """Sample `n` answers of each task and judge them."""
        judged = replies.each(one, [(task, number) for task in tasks for number in range(n)])
        return [judged[i : i + n] for i in range(0, len(judged), n)]

    return attempt


def measure_pass_rates(
    tasks: Sequence[Task], attempt: Solver, n: int, path: str | Path | None = None
) -> list[float | None]:
    """Return the share of correct rollouts of each task; None if no rollout could be judged.

    Args:
        tasks: the questions.
        attempt: the solver.
        n: rollouts per task.
        path: JSON-lines file that stores the rates of this solver. A resumed run repeats at most
            the last `BATCH` tasks; tasks that could not be judged are tried again.

    Raises:
        ValueError: `n` is below 1, a line of `path` is invalid, or the solver did not return `n`
            results per task.
    """
    require(n >= 1, f"{n=} rollouts: use 1 or more")
    known = _load_rates(Path(path)) if path is not None else {}
    keys = [digest_text(f"{n}|{task.id}|{task.question}|{task.answer}") for task in tasks]
    todo = list({key: task for key, task in zip(keys, tasks) if key not in known}.items())
    for start in range(0, len(todo), BATCH):
        some = todo[start : start + BATCH]
        tries = attempt([task for _, task in some], n)
        sizes = {len(each) for each in tries}
        require(
            len(tries) == len(some) and sizes == {n},
            f"the solver returned {sizes} results per task instead of {n}",
        )
        for (key, task), each in zip(some, tries):
            judged = [bool(right) for right in each if right is not None]
            known[key] = sum(judged) / len(judged) if judged else None
            if judged and path is not None:
                row = {"tried": key, "task": task.id, "right": sum(judged), "judged": len(judged)}
                append_json_line(path, row)
    return [known[key] for key in keys]


def rate_tasks(
    tasks: Sequence[Task],
    n: int,
    *,
    closed_book: Solver,
    with_tools: Solver,
    folder: str | Path | None = None,
    easy: float = 0.0,
) -> list[Task]:
    """Return the tasks with their closed-book and with-tools pass rates.

    Args:
        tasks: the questions.
        n: rollouts per task and solver.
        closed_book: solver without tools.
        with_tools: solver with tools; used only for tasks whose closed-book rate is at most `easy`.
        folder: stores the rates; use one folder per pair of solvers.
        easy: largest closed-book rate, in [0, 1], of a hard task.
    """
    files = [None if folder is None else Path(folder) / f"{of}.jsonl" for of in ("closed", "tools")]
    rates = measure_pass_rates(tasks, closed_book, n, files[0])
    found = [replace(task, closed_book=rate) for task, rate in zip(tasks, rates)]
    hard = [i for i, rate in enumerate(rates) if rate is not None and rate <= easy]
    for i, rate in zip(hard, measure_pass_rates([found[i] for i in hard], with_tools, n, files[1])):
        found[i] = replace(found[i], with_tools=rate)
    return found


def check_gates(task: Task, easy: float = 0.0) -> str:
    """Return why a rated task is rejected, or an empty string.

    Args:
        task: a task with pass rates.
        easy: largest closed-book rate, in [0, 1], of a hard task.

    Raises:
        ValueError: `easy` is outside [0, 1].
    """
    require_within(easy, "[0, 1]", "easy")
    if task.closed_book is None:
        return "not judged closed book"
    if task.closed_book > easy:
        return "too easy: solved without tools"
    if task.with_tools is None:
        return "not judged with tools"
    return "" if task.with_tools > 0 else "never solved with tools"


def filter_by_gates(tasks: Iterable[Task], easy: float = 0.0) -> tuple[list[Task], dict[str, int]]:
    """Return the tasks that pass both gates, and the count of each outcome."""
    kept, counts = [], Counter()
    for task in tasks:
        why = check_gates(task, easy)
        counts[why or "kept"] += 1
        kept += [] if why else [task]
    return kept, dict(counts.most_common())


def _load_rates(path: Path) -> dict[str, float | None]:
    """Return the rates stored by earlier runs.

    Raises:
        ValueError: a line is invalid.
    """
    rates = {}
    for number, row in resume_json_lines(path):
        try:
            rates[row["tried"]] = row["right"] / row["judged"]
        except (LookupError, TypeError, ZeroDivisionError) as error:
            raise ValueError(f"{path}, line {number}, is no rate ({error!r}): delete it") from error
    return rates


def keep_solvable(
    tasks: Sequence[Task],
    attempt: Solver,
    n: int = 5,
    least: int = 1,
    path: str | Path | None = None,
) -> tuple[list[Task], dict[str, int]]:
    """Return the tasks that the solver answers in at least `least` of `n` rollouts.

    WebShaper keeps a seed question if one of five rollouts is right (arXiv 2507.15061): nothing is
    built on questions that cannot be answered. Tasks that could not be judged are not kept, and
    counted apart.

    Args:
        tasks: the questions.
        attempt: the solver.
        n: rollouts per task.
        least: right rollouts, at least. Where some could not be judged, their share counts.
        path: stores the rates (see `measure_pass_rates`).

    Returns:
        The kept tasks with their pass rates (`Task.with_tools`), and the count of each outcome.

    Raises:
        ValueError: `least` is outside 1 to `n`.
    """
    require(1 <= least <= n, f"{least=} must be between 1 and {n=}")
    kept, counts = [], Counter()
    for task, rate in zip(tasks, measure_pass_rates(tasks, attempt, n, path)):
        if rate is None:
            outcome = "not judged"
        else:
            outcome = "kept" if rate * n >= least - 1e-9 else "too few right rollouts"
        counts[outcome] += 1
        kept += [replace(task, with_tools=rate)] if outcome == "kept" else []
    return kept, dict(counts.most_common())


NO_UPGRADE = "too easy, and no operator makes it harder"
ASKED_BEFORE = "asked before"
TOO_EASY = "too easy after the last round"


@dataclass
class Escalation:
    """Result of `escalate`.

    Attributes:
        kept: rated tasks that pass both gates.
        out: rejected tasks with their reasons, in order.
        stages: task id -> upgrades applied to it, in order; empty for a seed question.
        rounds: outcome counts of each round, with "upgraded" as one outcome.
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
    closed_book: Solver,
    with_tools: Solver,
    seed: int | str,
    easy: float = 0.0,
    folder: str | Path | None = None,
) -> Escalation:
    """Upgrade the questions that are too easy, for at most `rounds` rounds, and filter all of them.

    Args:
        tasks: seed questions with queries.
        world: the world of the questions.
        n: rollouts per question and solver.
        rounds: largest number of upgrades of a question.
        closed_book: solver without tools.
        with_tools: solver with tools.
        seed: seed of the upgrades.
        easy: largest closed-book rate, in [0, 1], of a hard question.
        folder: stores the rates, so that a resumed run repeats nothing.

    Raises:
        ValueError: a task has no query, or `rounds` is negative.
    """
    require(rounds >= 0, f"{rounds=} starts at 0")
    for task in tasks:
        require(bool(task.query), f"task {task.id!r} has no query: nothing can be upgraded")
    done, asked, waiting = Escalation(), set(), [*tasks]
    done.stages = {task.id: () for task in tasks}
    for number in range(rounds + 1):
        waiting = _drop_repeats(waiting, asked, done)
        if not waiting:
            break
        solvers = {"closed_book": closed_book, "with_tools": with_tools}
        judged = rate_tasks(waiting, n, **solvers, folder=folder, easy=easy)
        waiting, ends = [], Counter()
        for task in judged:
            why = check_gates(task, easy)
            if task.closed_book is not None and task.closed_book > easy:
                harder = _upgrade_task(task, world, seed, done) if number < rounds else None
                why = "upgraded" if harder else TOO_EASY if number == rounds else NO_UPGRADE
                waiting += [harder] if harder else []
            if not why:
                done.kept.append(task)
            elif why != "upgraded":
                done.out.append((task, why))
            ends[why or "kept"] += 1
        done.rounds.append(dict(ends.most_common()))
    return done


def _drop_repeats(tasks: Sequence[Task], asked: set[str], done: Escalation) -> list[Task]:
    """Return the tasks whose query is not in `asked`, and add their queries to it."""
    found = []
    for task in tasks:
        text = to_text(canonicalise(from_text(task.query)))
        if text in asked:
            done.out.append((task, ASKED_BEFORE))
        else:
            found.append(task)
        asked.add(text)
    return found


def _upgrade_task(task: Task, world, seed: int | str, done: Escalation) -> Task | None:
    """Return the task after the first upgrade that succeeds and can be worded, or None."""
    rng = random.Random(f"escalate-{seed}-{task.id}")
    grammar = load_grammar(world.graph, world.scheme)
    for stage, query in run_upgrade_rounds(from_text(task.query), world.graph, rng, 1):
        text = word_question(query, grammar, rng.choice(STYLES))
        if text:
            harder = make_question_task(world, task.target, canonicalise(query), text)
            done.stages[harder.id] = (*done.stages[task.id], stage)
            return harder
    return None
