"""Questions drawn to be read by a person, and what readers said of them.

    python -m tests.benchmarks.make_readings --draw     writes drawn.jsonl: questions without labels
    python -m tests.benchmarks.make_readings --sample   writes what a second reader reads
    python -m tests.benchmarks.make_readings            the share that passes, by world and label

Worlds are `cldr`, `pydocs` and three folders that `tests.folder_makers` makes: what people keep.
The seeds were fixed before the questions were read; what earlier drafts came to stands in the
rubric.

Labels are set by hand in readings.jsonl (the rubric lies beside it): a line a question, with one
true or false for each label. second.jsonl has a second reader's, of some of the same questions.

Committed: figures/reference/data/readings
"""

import argparse
import json
import random
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from drlib.files import read_json_lines, write_json_lines
from drlib.questions.question_engine import synthesize_questions
from drlib.worlds import load_world
from tests.folder_makers import MAKERS, written

FOLDER = Path("figures/reference/data/readings")
PUBLIC = ("cldr", "pydocs")
WORLDS = (*PUBLIC, *MAKERS)
LABELS = ("grammatical", "natural", "one_meaning", "multi_hop", "no_giveaway")
SEED = "readings, fourth draft"  # of the folders
SEEDS = dict.fromkeys(WORLDS, "readings, thirteenth draft") | {"cldr": "readings, sixteenth draft"}
# With one answer, at most: one question of sixty, of pydocs four, of cldr five. With fewer there,
# what filled them up was not plain.
SHARES = dict.fromkeys(WORLDS, 0.02) | {"cldr": 0.084, "pydocs": 0.067}
SECOND = 12  # questions of each world that a second reader reads


@contextmanager
def world_of(name: str) -> Iterator:
    """The world `name`, a folder's in a directory that is removed afterwards."""
    if name not in MAKERS:
        yield load_world(name)
        return
    with tempfile.TemporaryDirectory() as place:
        yield load_world(f"folder:{written(MAKERS[name](SEED), Path(place))}")


def drawn(n: int, worlds: Iterable[str]) -> list[dict]:
    """`n` questions of each of the `worlds` as rows without labels."""
    rows = []
    for name in worlds:
        with world_of(name) as world:
            tasks = synthesize_questions(
                world,
                n,
                SEEDS[name],
                depth=3,
                max_share=SHARES[name],
                at_least=n,
                plain=True,
            )
            for task in tasks:
                row = {"id": task.id, "world": name, "question": task.question}
                rows.append(row | {"answer": task.answer, "query": json.loads(task.query)})
    return rows


def sample(rows: list[dict]) -> list[dict]:
    """`SECOND` rows of each world for a second reader: question and answer, no label, no query."""
    found = []
    for place, name in enumerate(WORLDS):
        some = [row for row in rows if row["world"] == name]
        rng = random.Random(SEEDS[name])
        for _ in range(place + 1):  # one generator goes through the worlds of a draft
            chosen = rng.sample(some, SECOND)
        found += [{key: row[key] for key in ("id", "question", "answer")} for row in chosen]
    return found


def passes(row: dict) -> bool:
    return all(row[label] for label in LABELS)


def summary(rows: list[dict], again: list[dict]) -> dict:
    """Shares of the questions that pass, and how far two readers agree."""
    found = {}
    for name in WORLDS:
        some = [row for row in rows if row["world"] == name]
        shares = {label: sum(row[label] for row in some) for label in LABELS}
        found[name] = {"n": len(some), "passed": sum(map(passes, some)), **shares}
    first = {row["id"]: row for row in rows}
    both = [(first[row["id"]], row) for row in again]
    found["two readers"] = {
        "n": len(both),
        "agree": sum(passes(a) == passes(b) for a, b in both),
        "second passed": sum(passes(b) for _, b in both),
        **{label: sum(a[label] == b[label] for a, b in both) for label in LABELS},
    }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--draw", action="store_true", help="draw questions to be labelled")
    parser.add_argument("--sample", action="store_true", help="write the second reader's questions")
    parser.add_argument("-n", type=int, default=60, help="questions of each world")
    parser.add_argument("--worlds", nargs="+", default=WORLDS, choices=WORLDS)
    args = parser.parse_args()
    if args.draw:
        write_json_lines(FOLDER / "drawn.jsonl", drawn(args.n, args.worlds))
        return
    rows = read_json_lines(FOLDER / "readings.jsonl")
    if args.sample:
        write_json_lines(FOLDER / "sample_for_second.jsonl", sample(rows))
        return
    second = FOLDER / "second.jsonl"
    again = read_json_lines(second) if second.exists() else []
    print(json.dumps(summary(rows, again), indent=1))


if __name__ == "__main__":
    main()
