"""Sets of questions and attempts under the field names that others released, and theirs as ours.

    WebDancer   sample_qa.jsonl     question, answer, tag
                sample_traj.jsonl   type, task, messages, functions, tool_calls, answer, tag
    WebSailor   sailorfog-QA.jsonl  question, answer
    WebShaper   webshaper.500.jsonl id, question, formalization, answer, urls

`write` makes the JSONL file and gives the same rows as a `datasets.Dataset`. Arrow wants one type a
column, and arguments differ from tool to tool: `functions` and `tool_calls` hold JSON texts.

Left out: a query that triples cannot say (counts, ranges) has no WebShaper row, which is counted.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from datasets import Dataset

from drlib.files import iter_json_lines, write_json_lines
from drlib.synthesis.families.webshaper import read_loosely, to_triples
from drlib.synthesis.queries import depth, from_text, required, to_text
from drlib.synthesis.questions import short_digest
from drlib.task import Task


def questions(tasks: Iterable[Task], tag: str = "") -> list[dict]:
    """Rows of WebSailor; with `tag`, the family's name ("crawlqa", "e2hqa"), of WebDancer."""
    family = {"tag": tag} if tag else {}
    return [{"question": task.question, "answer": task.answer} | family for task in tasks]


def formal_questions(tasks: Iterable[Task], world) -> tuple[list[dict], int]:
    """Rows of WebShaper, and how many tasks have none because triples cannot say their query.
    `urls` are the pages of `world` by which the query is evaluated."""
    rows = []
    tasks = list(tasks)
    for task in tasks:
        try:
            query = from_text(task.query)
            triples = to_triples(query)
        except ValueError:
            continue
        pages = [title for title in sorted(required(query, world.graph)) if world.find(title)]
        rows.append(
            {
                "id": task.id,
                "question": task.question,
                "formalization": triples,
                "answer": task.answer,
                "urls": [world.page(title).url for title in pages],
            }
        )
    return rows, len(tasks) - len(rows)


def write(rows: Sequence[dict], path: str | Path) -> Dataset:
    """One JSON object a line, under the final name when all is written; the rows as a data set.
    ValueError: no rows."""
    if not rows:
        raise ValueError(f"no rows for {path}: a data set needs one at least")
    write_json_lines(path, rows)
    return Dataset.from_list(list(rows))


def read_rows(path: str | Path, fields: Iterable[str] = ("question", "answer")) -> list[dict]:
    """The rows of a JSONL file; ValueError names the first that is no object or lacks a field."""
    rows = []
    for number, row in iter_json_lines(path):
        known = row if isinstance(row, dict) else {}
        missing = [name for name in fields if known.get(name) in (None, "", [])]
        if missing:
            raise ValueError(f"{path}, line {number} lacks {', '.join(missing)}")
        rows.append(row)
    return rows


def read_tasks(path: str | Path, world: str = "") -> tuple[list[Task], int]:
    """Questions of any of the released files, and how many have a formalization that says nothing
    of what is asked: their `query` is empty, as of files without one. Rows that are no triples are
    read as predicates. Function only: no run uses it yet."""
    tasks = []
    unread = 0
    for row in read_rows(path):
        query = None
        triples = row.get("formalization")
        try:
            query = read_loosely(triples) if triples else None
        except ValueError:
            unread += 1
        tasks.append(
            Task(
                str(row.get("id", short_digest(row["question"]))),
                row["question"],
                str(row["answer"]),
                "search",
                world,
                hops=depth(query) if query else 0,
                query=to_text(query) if query else "",
            )
        )
    return tasks, unread
