"""A data set's folder: the same questions for whoever trains on them.

    data/SPLIT.jsonl        all that is known of a question, a JSON object a line
    trl/SPLIT.jsonl         prompt (a message), answer, aliases: TRL hands columns to the reward
    verl/SPLIT.parquet      data_source, prompt, ability, reward_model, extra_info, as verl reads
    released/*_SPLIT.jsonl  the field names of WebDancer and of WebShaper (`drlib.synthesis.export`)
    hf/                     the `data` rows for `datasets.load_from_disk`

The same rows give the same bytes: `datasets` takes its fingerprint from the rows where they come
from no file. Left out: a query that triples cannot say has no WebShaper row, which is counted.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from datasets import Dataset, DatasetDict

from drlib.files import write_atomic
from drlib.synthesis.dataset import task_of
from drlib.synthesis.export import formal_questions, questions, write

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
        tasks = [task_of(row) for row in some]
        formal, skipped = formal_questions(tasks, world)
        tagged = [questions([task], row["family"])[0] for task, row in zip(tasks, some)]
        unsaid += skipped
        for config, found in (
            ("default", some),
            ("trl", [_for_trl(row) for row in some]),
            ("webdancer", tagged),
            ("webshaper", formal),
        ):
            if found:
                write(found, folder / CONFIGS[config].format(split=side))
        verl = Dataset.from_list([_for_verl(row, place) for place, row in enumerate(some)])
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


def _for_trl(row: dict) -> dict:
    return {
        "prompt": [{"role": "user", "content": row["question"]}],
        "answer": row["answer"],
        "aliases": row["aliases"],
        "id": row["id"],
    }


def _for_verl(row: dict, place: int) -> dict:
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
