"""Sets of questions and attempts under the field names that others released, and theirs as ours.

    WebDancer   sample_qa.jsonl     question, answer, tag
                sample_traj.jsonl   type, task, messages, functions, tool_calls, answer, tag
    WebSailor   sailorfog-QA.jsonl  question, answer
    WebShaper   webshaper.500.jsonl id, question, formalization, answer, urls

`write_rows` makes the JSONL file and gives the same rows as a `datasets.Dataset`. Arrow wants one type a
column, and arguments differ from tool to tool: `functions` and `tool_calls` hold JSON texts.

Left out: a query that triples cannot say (counts, ranges) has no WebShaper row, which is counted.

A data set's folder: the same questions for whoever trains on them.

    data/SPLIT.jsonl        all that is known of a question, a JSON object a line
    trl/SPLIT.jsonl         prompt (a message), answer, aliases: TRL hands columns to the reward
    verl/SPLIT.parquet      data_source, prompt, ability, reward_model, extra_info, as verl reads
    released/*_SPLIT.jsonl  the field names of WebDancer and of WebShaper (`drlib.questions.export`)
    hf/                     the `data` rows for `datasets.load_from_disk`

The same rows give the same bytes: `datasets` takes its fingerprint from the rows where they come
from no file. Left out: a query that triples cannot say has no WebShaper row, which is counted.
"""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from datasets import Dataset, DatasetDict

from drlib.files import iter_json_lines, write_atomic, write_json_lines
from drlib.questions.chains import digest_text
from drlib.questions.queries import find_required, from_text, measure_depth, to_text
from drlib.questions.question_set import row_to_task
from drlib.questions.webshaper import read_loosely, to_triples
from drlib.task import Task


def to_question_rows(tasks: Iterable[Task], tag: str = "") -> list[dict]:
    """Rows of WebSailor; with `tag`, the family's name ("crawlqa", "e2hqa"), of WebDancer."""
    family = {"tag": tag} if tag else {}
    return [{"question": task.question, "answer": task.answer} | family for task in tasks]


def to_webshaper_rows(tasks: Iterable[Task], world) -> tuple[list[dict], int]:
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
        pages = [title for title in sorted(find_required(query, world.graph)) if world.find(title)]
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


def write_rows(rows: Sequence[dict], path: str | Path) -> Dataset:
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
                str(row.get("id", digest_text(row["question"]))),
                row["question"],
                str(row["answer"]),
                "search",
                world,
                hops=measure_depth(query) if query else 0,
                query=to_text(query) if query else "",
            )
        )
    return tasks, unread


# Config -> where a split's file is; the card names them. What is not JSON lines cannot be one:
# `datasets` reads all configs of a folder in the same way.
CONFIGS = {
    "default": "data/{split}.jsonl",
    "trl": "trl/{split}.jsonl",
    "webdancer": "released/webdancer_{split}.jsonl",
    "webshaper": "released/webshaper_{split}.jsonl",
}
VERL = "verl/{split}.parquet"


def write_folder(rows: Mapping[str, Sequence[dict]], folder: Path, world) -> int:
    """Write the files of the splits in `rows`, none of which is empty; gives how many questions
    WebShaper's triples cannot say."""
    unsaid = 0
    for side, some in rows.items():
        tasks = [row_to_task(row) for row in some]
        formal, skipped = to_webshaper_rows(tasks, world)
        tagged = [to_question_rows([task], row["family"])[0] for task, row in zip(tasks, some)]
        unsaid += skipped
        for config, found in (
            ("default", some),
            ("trl", [_to_trl_row(row) for row in some]),
            ("webdancer", tagged),
            ("webshaper", formal),
        ):
            if found:
                write_rows(found, folder / CONFIGS[config].format(split=side))
        verl = Dataset.from_list([_to_verl_row(row, place) for place, row in enumerate(some)])
        write_atomic(folder / VERL.format(split=side), verl.to_parquet)
    _save_to_disk(rows, folder / "hf")
    return unsaid


def _save_to_disk(rows: Mapping[str, Sequence[dict]], target: Path) -> None:
    """What `datasets.load_from_disk` reads; the folder is there when all of it is."""
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    sides = {side: Dataset.from_list(list(some)) for side, some in rows.items()}
    DatasetDict(sides).save_to_disk(partial)
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)


def _to_trl_row(row: dict) -> dict:
    return {
        "prompt": [{"role": "user", "content": row["question"]}],
        "answer": row["answer"],
        "aliases": row["aliases"],
        "id": row["id"],
    }


def _to_verl_row(row: dict, place: int) -> dict:
    return {
        "data_source": f"drlib/{row['family']}",
        "prompt": [{"role": "user", "content": row["question"]}],
        "ability": "search",
        "reward_model": {"style": "rule", "ground_truth": row["answer"]},
        "extra_info": {
            "split": row["split"],
            "index": place,
            "id": row["id"],
            "aliases": row["aliases"],
            "query": row["query"],
        },
    }
