"""Questions drawn to be read by a person, and what readers said of them.

    python tests/benchmarks/make_readings.py --draw     writes drawn.jsonl: questions without labels
    python tests/benchmarks/make_readings.py            the share that passes, by world and label

Labels are set by hand in readings.jsonl (the rubric lies beside it): a line a question, with one
true or false for each label. second.jsonl has a second reader's, of some of the same questions.

Committed: figures/reference/data/readings
"""

import argparse
import json
import warnings
from pathlib import Path

from drlib.files import read_json_lines, write_json_lines
from drlib.synthesis.engine import synthesize_questions
from drlib.worlds import load_world

FOLDER = Path("figures/reference/data/readings")
WORLDS = ("cldr", "pydocs", "folder:notebooks/tern")
LABELS = ("grammatical", "natural", "one_meaning", "multi_hop", "no_giveaway")
SEED = "readings"


def drawn(n: int) -> list[dict]:
    """`n` questions of each world as rows without labels."""
    rows = []
    for name in WORLDS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a small folder gives fewer
            tasks = synthesize_questions(load_world(name), n, SEED, depth=3)
        for task in tasks:
            row = {"id": task.id, "world": name, "question": task.question}
            rows.append(row | {"answer": task.answer, "query": json.loads(task.query)})
    return rows


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
    parser.add_argument("-n", type=int, default=50, help="questions of each world")
    args = parser.parse_args()
    if args.draw:
        write_json_lines(FOLDER / "drawn.jsonl", drawn(args.n))
        return
    rows, again = (read_json_lines(FOLDER / name) for name in ("readings.jsonl", "second.jsonl"))
    print(json.dumps(summary(rows, again), indent=1))


if __name__ == "__main__":
    main()
