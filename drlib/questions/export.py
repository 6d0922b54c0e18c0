"""Export of questions in the file formats of WebDancer, WebSailor, WebShaper, TRL and verl.

data/SPLIT.jsonl        complete rows, one JSON object per line
trl/SPLIT.jsonl         prompt, answer, aliases (TRL passes columns to the reward)
verl/SPLIT.parquet      data_source, prompt, ability, reward_model, extra_info
released/*_SPLIT.jsonl  WebDancer: question, answer, tag; WebShaper: formalization, urls
hf/                     the `data` rows for `datasets.load_from_disk`
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from drlib.files import iter_json_lines, write_atomic, write_json_lines
from drlib.questions.queries import find_required, from_text
from drlib.questions.question_set import row_to_task
from drlib.questions.webshaper import to_triples
from drlib.task import Task

if TYPE_CHECKING:
    from datasets import Dataset


def to_question_rows(tasks: Iterable[Task], tag: str = "") -> list[dict]:
    """Return WebSailor rows; with a family name as `tag` ("crawlqa", "e2hqa"), WebDancer rows."""
    family = {"tag": tag} if tag else {}
    return [{"question": task.question, "answer": task.answer} | family for task in tasks]


def to_webshaper_rows(tasks: Iterable[Task], world) -> tuple[list[dict], int]:
    """Return WebShaper rows and the number of tasks without one.

    A query with counts or ranges cannot be written as triples and is skipped. `urls` are the pages
    of `world` that the query needs.
    """
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
    """Write one JSON object per line, atomically, and return the rows as a data set.

    Raises:
        ValueError: there are no rows.
    """
    if not rows:
        raise ValueError(f"no rows for {path}: pass at least one")
    from datasets import Dataset  # slow to import, and training only reads rows

    write_json_lines(path, rows)
    return Dataset.from_list(list(rows))


def read_rows(path: str | Path, fields: Iterable[str] = ("question", "answer")) -> list[dict]:
    """Return the rows of a JSON-lines file.

    Raises:
        ValueError: a row is no object or lacks one of `fields`.
    """
    rows = []
    for number, row in iter_json_lines(path):
        known = row if isinstance(row, dict) else {}
        missing = [name for name in fields if known.get(name) in (None, "", [])]
        if missing:
            raise ValueError(f"{path}, line {number} lacks {', '.join(missing)}")
        rows.append(row)
    return rows


# Config -> file of a split, named in the data card. All must be JSON lines, since `datasets` reads
# all configs of a folder in the same way.
CONFIGS = {
    "default": "data/{split}.jsonl",
    "trl": "trl/{split}.jsonl",
    "webdancer": "released/webdancer_{split}.jsonl",
    "webshaper": "released/webshaper_{split}.jsonl",
}
VERL = "verl/{split}.parquet"


def write_folder(rows: Mapping[str, Sequence[dict]], folder: Path, world) -> int:
    """Write the files of all splits; each split has at least one row.

    Returns:
        The number of questions that cannot be written as WebShaper triples.
    """
    from datasets import Dataset

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
    """Write the folder for `datasets.load_from_disk` atomically."""
    from datasets import Dataset, DatasetDict

    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    sides = {side: Dataset.from_list(list(some)) for side, some in rows.items()}
    DatasetDict(sides).save_to_disk(partial)
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)


def _to_trl_row(row: dict) -> dict:
    """Return a row in TRL's format."""
    return {
        "prompt": [{"role": "user", "content": row["question"]}],
        "answer": row["answer"],
        "aliases": row["aliases"],
        "id": row["id"],
    }


def _to_verl_row(row: dict, place: int) -> dict:
    """Return a row in verl's format."""
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
