"""What the guard of paraphrases keeps and catches, by kind; a script, not a test.

`--each` faithful and as many perturbed texts by rules (tests/paraphrase_examples.py and
tests/paraphrase_changes.py), half of them about CLDR and half about Python's library, and those
that a person wrote by hand before there was a guard (tests/paraphrases_held_out.jsonl). The guard's
words were settled on seeds 0, 1, 2 and 5 of the rules, so others are reported; `first_measured` is
what the guard said of the held-out texts before any change was made to it.

Run: PYTHONPATH=. python tests/benchmarks/make_paraphrases.py
"""

import argparse
import json
from collections import Counter, defaultdict
from pathlib import Path

from drlib.config import ROOT
from drlib.files import read_json_lines, write_atomic
from drlib.synthesis.guard import Guard
from drlib.synthesis.queries import from_text
from drlib.synthesis.rewriting import hidden_names
from drlib.synthesis.wording import flaw
from drlib.task import Task
from drlib.worlds import load_world
from tests.paraphrase_changes import paraphrases, tasks_of

OUT = ROOT / "figures" / "reference" / "data" / "paraphrases.json"
HELD_OUT = ROOT / "tests" / "paraphrases_held_out.jsonl"
COMMAND = "PYTHONPATH=. python tests/benchmarks/make_paraphrases.py"
WORLDS = ("cldr", "pydocs")
# of the held-out texts, at the guard's first run: (kept of the faithful, refused of the perturbed)
FIRST_MEASURED = {"faithful_kept": "47 of 61", "perturbed_refused": "66 of 71"}


def refusal(guard: Guard, task: Task, text: str) -> str:
    query = from_text(task.query)
    return guard.refusal(text, task.question, query, hidden_names(task, query, guard.graph))


def table(rows: list[tuple[str, bool, str, str]]) -> dict:
    """Of (kind, whether the meaning was kept, why it was refused, text): counts by kind."""
    kinds, mistakes = defaultdict(Counter), []
    for kind, kept, why, text in rows:
        kinds[kind]["refused" if why else "kept"] += 1
        mistakes += [{"kind": kind, "reason": why, "text": text}] if kept == bool(why) else []
    faithful = [not why for _, kept, why, _ in rows if kept]
    perturbed = [bool(why) for _, kept, why, _ in rows if not kept]
    return {
        "faithful": len(faithful),
        "faithful_kept": round(sum(faithful) / len(faithful), 4),
        "perturbed": len(perturbed),
        "perturbed_refused": round(sum(perturbed) / len(perturbed), 4),
        "kinds": {kind: dict(kinds[kind]) for kind in sorted(kinds)},
        "mistakes": mistakes,
    }


def by_rules(worlds, guards, each: int, seed: int) -> dict:
    rows = []
    for name, world in worlds.items():
        for made in paraphrases(world, name, tasks_of(world, 120, seed), each // 2, seed):
            why = refusal(guards[name], made.task, made.text)
            rows.append((made.kind, made.kind == "faithful", why, made.text))
    return {"seed": seed} | table(rows)


def by_hand(guards) -> dict:
    """The held-out texts, and how many of the perturbed the older check `flaw` refused."""
    rows, older = [], 0
    for row in read_json_lines(HELD_OUT):
        graph = guards[row["world"]].graph
        node = graph.nodes.get(row["answer"])
        task = Task(
            "held-out",
            row["question"],
            row["answer"],
            "search",
            graph.version,
            aliases=node.aliases if node else (),
            query=row["query"],
        )
        why = refusal(guards[row["world"]], task, row["text"])
        kept = row["meaning"] == "kept"
        rows.append((row["kind"], kept, why, row["text"]))
        hidden = hidden_names(task, from_text(task.query), graph)
        older += not kept and bool(flaw(row["text"], row["question"], (), hidden))
    return {"first_measured": FIRST_MEASURED} | table(rows) | {"perturbed_refused_by_flaw": older}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--each", type=int, default=500)
    parser.add_argument("--seeds", type=int, nargs="+", default=[3, 4])
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    worlds = {name: load_world(name) for name in WORLDS}
    guards = {name: Guard(world.graph, world.scheme) for name, world in worlds.items()}
    found = {"command": COMMAND, "held_out": by_hand(guards)}
    found["by_rules"] = [by_rules(worlds, guards, args.each, seed) for seed in args.seeds]
    for row in (found["held_out"], *found["by_rules"]):
        print({key: value for key, value in row.items() if key not in ("mistakes", "kinds")})
    write_atomic(args.out, json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
