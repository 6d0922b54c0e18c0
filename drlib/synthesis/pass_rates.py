"""How hard a question is for a model: how often it is solved from memory, and with tools.

WebResearcher's data engine (arXiv 2509.13309) has two gates. What a solver without tools gets right
is too easy and is dropped; of the rest, only what a solver with tools gets right is kept. `rated`
measures both rates, `gated` is the gates. The rates go with the task (`Task.closed_book`,
`Task.with_tools`), and data curation takes them as they are:
`DataCuration({task.id: task.with_tools for task in kept})` begins with what is solved sometimes.

An attempt is a function of tasks and a number, so that any policy can be measured: `by_agent` for
an agent and its engine, `by_heart` for a prompt without tools. An attempt that the environment
broke says nothing about the question and does not count.

Left out: curation's own start (`drlib.training.asking`), which tries all questions with the policy
that is trained: the rates of another model are not its own.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from drlib.files import append_json_line, resume_json_lines
from drlib.synthesis.questions import short_digest
from drlib.synthesis.replies import Replies, prompt
from drlib.task import Task, is_correct
from drlib.trajectory import Termination
from drlib.validation import require, require_within

# (tasks, n) -> for each task, whether each of n attempts was right; None: nobody can say
Attempt = Callable[[Sequence[Task], int], Sequence[Sequence[bool | None]]]
BATCH = 16  # tasks whose attempts are lost with a killed run
BY_HEART = (
    "Answer the user's question from what you know. Reply with the answer alone: a name or a "
    "number. If you do not know, guess."
)


def by_agent(agent, **how) -> Attempt:
    """Attempts of an agent (`drlib.agents.Agent`), closed book where its toolbox is.

    how: of `Agent.run`, such as temperature and worlds. A task's random numbers depend on its id
    and not on what is asked beside it.
    """

    def attempt(tasks: Sequence[Task], n: int) -> list[list[bool | None]]:
        keys = [int(short_digest(task.id)[:7], 16) for task in tasks]
        done = agent.run(tasks, samples=n, keys=keys, **how)
        judged = [
            None
            if one.termination == Termination.ENV_FAULT
            else is_correct(one.answer, tasks[i // n])
            for i, one in enumerate(done)
        ]
        return [judged[i : i + n] for i in range(0, len(judged), n)]

    return attempt


def by_heart(replies: Replies) -> Attempt:
    """Attempts of a model that has the question and no tool; each has a seed of its own."""

    def one(asked: tuple[Task, int]) -> bool | None:
        task, number = asked
        reply = replies.ask(prompt(BY_HEART, task.question), seed=number)
        answer = reply.text.rpartition("</think>")[2].strip()
        return None if reply.failed else is_correct(answer, task)

    def attempt(tasks: Sequence[Task], n: int) -> list[list[bool | None]]:
        judged = replies.each(one, [(task, number) for task in tasks for number in range(n)])
        return [judged[i : i + n] for i in range(0, len(judged), n)]

    return attempt


def pass_rates(
    tasks: Sequence[Task], attempt: Attempt, n: int, path: str | Path | None = None
) -> list[float | None]:
    """The share of `n` attempts at each task that are right, None where nobody could judge one.

    path: a file of JSON lines that keeps what was tried, for this attempt alone: a killed run goes
    on behind the last `BATCH` of tasks. What nobody could judge is tried again.
    ValueError: n below 1, a line of `path` is none of ours, or the attempt gave other than `n`.
    """
    require(n >= 1, f"{n=} attempts: give 1 or more")
    known = _read(Path(path)) if path is not None else {}
    keys = [short_digest(f"{n}|{task.id}|{task.question}|{task.answer}") for task in tasks]
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


def rated(
    tasks: Sequence[Task],
    n: int,
    *,
    closed_book: Attempt,
    with_tools: Attempt,
    folder: str | Path | None = None,
    easy: float = 0.0,
) -> list[Task]:
    """The tasks with their rates. What is solved closed book more often than `easy` is not tried
    with tools, which is what costs. folder: keeps what was tried; one for each pair of solvers."""
    files = [None if folder is None else Path(folder) / f"{of}.jsonl" for of in ("closed", "tools")]
    rates = pass_rates(tasks, closed_book, n, files[0])
    found = [replace(task, closed_book=rate) for task, rate in zip(tasks, rates)]
    hard = [i for i, rate in enumerate(rates) if rate is not None and rate <= easy]
    for i, rate in zip(hard, pass_rates([found[i] for i in hard], with_tools, n, files[1])):
        found[i] = replace(found[i], with_tools=rate)
    return found


def gate(task: Task, easy: float = 0.0) -> str:
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


def gated(tasks: Iterable[Task], easy: float = 0.0) -> tuple[list[Task], dict[str, int]]:
    """The rated tasks that both gates keep, and how many came to what end."""
    kept, counts = [], Counter()
    for task in tasks:
        why = gate(task, easy)
        counts[why or "kept"] += 1
        kept += [] if why else [task]
    return kept, dict(counts.most_common())


def _read(path: Path) -> dict[str, float | None]:
    """The rates of earlier runs."""
    rates = {}
    for number, row in resume_json_lines(path):
        try:
            rates[row["tried"]] = row["right"] / row["judged"]
        except (LookupError, TypeError, ZeroDivisionError) as error:
            raise ValueError(f"{path}, line {number} is no rate of ours ({error!r})") from error
    return rates
