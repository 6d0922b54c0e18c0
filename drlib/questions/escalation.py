"""How hard a question is for a model: how often it is solved from memory, and with tools.

WebResearcher's data engine (arXiv 2509.13309) has two gates. What a solver without tools gets right
is too easy and is dropped; of the rest, only what a solver with tools gets right is kept. `rate_tasks`
measures both rates, `filter_by_gates` is the gates. The rates go with the task (`Task.closed_book`,
`Task.with_tools`), and data curation takes them as they are:
`DataCuration({task.id: task.with_tools for task in kept})` begins with what is solved sometimes.

An attempt is a function of tasks and a number, so that any policy can be measured: `make_agent_solver` for
an agent and its engine, `make_closed_book_solver` for a prompt without tools. An attempt that the environment
broke says nothing about the question and does not count.

Left out: curation's own start (`drlib.training.question_selection`), which tries all questions with the policy
that is trained: the rates of another model are not its own.

Questions made harder, round by round, until a solver needs its tools for them.

WebResearcher's data engine (arXiv 2509.13309, section 3) has an ItemWriter whose questions pass two
gates. What a solver gets right without tools is too easy: the question is upgraded, and what comes
of it is the seed of the next round. What a solver never gets right with tools is out; what it gets
right with them is kept. A similarity scorer takes out what was asked before.

There a model writes and upgrades. Here the upgrades are the operators of
`drlib.questions.upgrades`, executed and checked, so a question keeps its one answer however often
it is made harder, and the solvers are any two attempts. Asked before means the same query: two
texts of one query are one question here.

Left out: operators that a model proposes, seeds from texts without facts.
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

# (tasks, n) -> for each task, whether each of n attempts was right; None: nobody can say
Solver = Callable[[Sequence[Task], int], Sequence[Sequence[bool | None]]]
BATCH = 16  # tasks whose attempts are lost with a killed run
CLOSED_BOOK_PROMPT = (
    "Answer the user's question from what you know. Reply with the answer alone: a name or a "
    "number. If you do not know, guess."
)


def make_agent_solver(agent, **how) -> Solver:
    """Attempts of an agent (`drlib.agents.Agent`), closed book where its toolbox is.

    how: of `Agent.run`, such as temperature and worlds. A task's random numbers depend on its id
    and not on what is asked beside it.
    """

    def attempt(tasks: Sequence[Task], n: int) -> list[list[bool | None]]:
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
    """Attempts of a model that has the question and no tool; each has a seed of its own."""

    def one(asked: tuple[Task, int]) -> bool | None:
        task, number = asked
        reply = replies.ask(make_prompt(CLOSED_BOOK_PROMPT, task.question), seed=number)
        answer = reply.text.rpartition("</think>")[2].strip()
        return None if reply.failed else is_correct(answer, task)

    def attempt(tasks: Sequence[Task], n: int) -> list[list[bool | None]]:
        judged = replies.each(one, [(task, number) for task in tasks for number in range(n)])
        return [judged[i : i + n] for i in range(0, len(judged), n)]

    return attempt


def measure_pass_rates(
    tasks: Sequence[Task], attempt: Solver, n: int, path: str | Path | None = None
) -> list[float | None]:
    """The share of `n` attempts at each task that are right, None where nobody could judge one.

    path: a file of JSON lines that keeps what was tried, for this attempt alone: a killed run goes
    on behind the last `BATCH` of tasks. What nobody could judge is tried again.
    ValueError: n below 1, a line of `path` is none of ours, or the attempt gave other than `n`.
    """
    require(n >= 1, f"{n=} attempts: give 1 or more")
    known = _load_rates(Path(path)) if path is not None else {}
    keys = [digest_text(f"{n}|{task.id}|{task.question}|{task.answer}") for task in tasks]
    todo = list({key: task for key, task in zip(keys, tasks) if key not in known}.items())
    for start in range(0, len(todo), BATCH):
        some = todo[start : start + BATCH]
        tries = attempt([task for _, task in some], n)
        sizes = {len(each) for each in tries}
        require(len(tries) == len(some) and sizes == {n}, f"not {n} attempts of each task: {sizes}")
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
    """The tasks with their rates. What is solved closed book more often than `easy` is not tried
    with tools, which is what costs. folder: keeps what was tried; one for each pair of solvers."""
    files = [None if folder is None else Path(folder) / f"{of}.jsonl" for of in ("closed", "tools")]
    rates = measure_pass_rates(tasks, closed_book, n, files[0])
    found = [replace(task, closed_book=rate) for task, rate in zip(tasks, rates)]
    hard = [i for i, rate in enumerate(rates) if rate is not None and rate <= easy]
    for i, rate in zip(hard, measure_pass_rates([found[i] for i in hard], with_tools, n, files[1])):
        found[i] = replace(found[i], with_tools=rate)
    return found


def check_gates(task: Task, easy: float = 0.0) -> str:
    """Why a rated task is out, "" for kept. easy: the closed-book rate that is still hard enough.

    ValueError: `easy` is no rate.
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
    """The rated tasks that both gates keep, and how many came to what end."""
    kept, counts = [], Counter()
    for task in tasks:
        why = check_gates(task, easy)
        counts[why or "kept"] += 1
        kept += [] if why else [task]
    return kept, dict(counts.most_common())


def _load_rates(path: Path) -> dict[str, float | None]:
    """The rates of earlier runs."""
    rates = {}
    for number, row in resume_json_lines(path):
        try:
            rates[row["tried"]] = row["right"] / row["judged"]
        except (LookupError, TypeError, ZeroDivisionError) as error:
            raise ValueError(f"{path}, line {number} is no rate of ours ({error!r})") from error
    return rates


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
    closed_book: Solver,
    with_tools: Solver,
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
    """Those whose query is not in `asked`; it is now."""
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
    """The task after the first upgrade of a round that succeeds and can be said; None: none does.
    Its draws depend on the task and not on what is upgraded beside it."""
    rng = random.Random(f"escalate-{seed}-{task.id}")
    grammar = load_grammar(world.graph, world.scheme)
    for stage, query in run_upgrade_rounds(from_text(task.query), world.graph, rng, 1):
        text = word_question(query, grammar, rng.choice(STYLES))
        if text:
            harder = make_question_task(world, task.answer, canonicalise(query), text)
            done.stages[harder.id] = (*done.stages[task.id], stage)
            return harder
    return None
