"""Check thousands of generated questions with an evaluator independent of the engine.

`tests.independent_evaluator` reads each query as JSON and the world as raw facts. A mismatch: the
members are not the one answer. Within one fact: something that the question names (a constant, or
the number of a range of one) is joined with the answer by any fact. `all_within_two_facts` is the
share of questions, by depth, all of whose names are at most two facts away; `nearest` counts the
questions by the distance of the nearest name, and `nearest_past_values` does where no path leads
through a thing that has no facts of its own (a year, a number, a code).

Questions come from seeds 0, 1, .. of `synthesize_questions`, `--a-seed` each, until there are
`--questions` different ones or two seeds in a row gave no new one. A small world is asked with
max_share=1, as its few answers would else have one question each. `nearness` compares the
engine's `is_near` with the distances, on questions that were made without that check. `speed` is of
verified questions in sentences, CPU seconds of one core, after a first call that makes the tables.

Run: OMP_NUM_THREADS=1 PYTHONPATH=. python tests/benchmarks/make_evaluations.py
"""

import argparse
import json
import time
import warnings
from collections import Counter
from functools import lru_cache
from pathlib import Path

from drlib.config import ROOT
from drlib.files import write_atomic
from drlib.questions.checks import is_near
from drlib.questions.queries import from_text
from drlib.questions.question_engine import synthesize_questions
from drlib.worlds import load_world
from tests.benchmarks.bench_questions import fixed_loop
from tests.independent_evaluator import RawFacts, count_hops, names_in_query

OUT = ROOT / "figures" / "reference" / "data" / "evaluations.json"
COMMAND = "OMP_NUM_THREADS=1 PYTHONPATH=. python tests/benchmarks/make_evaluations.py"
WORLDS = ("cldr", "pydocs", "folder:notebooks/tern")
SMALL = 1000  # nodes; a world with fewer is asked with max_share=1


def drawn(world, n: int, a_seed: int, max_share: float) -> tuple[list, int, int]:
    """(different questions, seeds used, questions drawn before repetitions were taken out)."""
    found, seeds, total, idle = {}, 0, 0, 0
    while len(found) < n and idle < 2:
        before = len(found)
        tasks = synthesize_questions(world, a_seed, seeds, max_share=max_share)
        found |= {task.query: task for task in tasks}
        seeds, total = seeds + 1, total + len(tasks)
        idle = idle + 1 if len(found) == before else 0
    return list(found.values())[:n], seeds, total


class Distances:
    """Facts between an answer and everything; the last few answers are kept."""

    def __init__(self, raw: RawFacts):
        values = raw.beside.keys() - raw.subjects
        self.plain = lru_cache(maxsize=4096)(lambda answer: raw.facts_away(answer))
        self.past_values = lru_cache(maxsize=4096)(lambda answer: raw.facts_away(answer, values))


def nearest(names, away: dict[str, int]) -> int | None:
    return min((away[name] for name in names if name in away), default=None)


def judged(tasks, raw: RawFacts, distances: Distances) -> dict:
    """Mismatches and distances of `tasks`, with the query of each fault."""
    mismatches, close, tight = [], [], Counter()
    plain, past = Counter(), Counter()
    depths, names_close = Counter(), 0
    for task in tasks:
        query = json.loads(task.query)
        told, depth = names_in_query(query), count_hops(query)
        away = distances.plain(task.answer)
        depths[depth] += 1
        plain[str(nearest(told, away))] += 1
        past[str(nearest(told, distances.past_values(task.answer)))] += 1
        if raw.members(task.query) != {task.answer}:
            mismatches.append(task.query)
        within_one = sum(away.get(name, 9) <= 1 for name in told)
        names_close += within_one
        close += [task.query] if within_one else []
        tight[depth] += bool(told) and all(away.get(name, 9) <= 2 for name in told)
    return {
        "mismatches": len(mismatches),
        "names_within_one_fact": names_close,
        "questions_with_a_name_within_one_fact": len(close),
        "depths": dict(sorted(depths.items())),
        "all_within_two_facts": {d: round(tight[d] / depths[d], 4) for d in sorted(depths)},
        "nearest": dict(sorted(plain.items())),
        "nearest_past_values": dict(sorted(past.items())),
        "faulty": (mismatches + close)[:20],
    }


def nearness(world, distances: Distances, n: int) -> dict:
    """`is_near` beside the distances, on questions that were made without that check."""
    seen, differ = Counter(), []
    for task in synthesize_questions(world, n, "nearness", strict=False, max_share=1):
        query = json.loads(task.query)
        away, told = distances.plain(task.answer), names_in_query(query)
        steps = [away.get(name, 9) for name in told]
        ours = min(steps, default=9) <= 1 or (count_hops(query) > 2 and max(steps, default=9) <= 2)
        theirs = is_near(from_text(task.query), task.answer, world.graph)
        seen[f"engine {'near' if theirs else 'far'}, facts {'near' if ours else 'far'}"] += 1
        differ += [task.query] if ours != theirs else []
    return {**dict(sorted(seen.items())), "differ": differ[:5]}


def speed(world, n: int, repeats: int) -> dict:
    """Verified questions in sentences a second, by depth; the tables are there already. The best of
    `repeats`, as neighbours on a machine only slow down; `loop_s` is of a fixed loop there."""
    depths = {"depth_2": {2: 1}, "depth_3": {3: 1}, "depths_2_and_3": None}
    rates: dict[str, list[float]] = {name: [] for name in depths}
    loops = []
    for repeat in range(repeats):
        for name, hops in depths.items():
            started = time.process_time()
            made = len(synthesize_questions(world, n, f"speed-{repeat}", hops=hops))
            rates[name].append(made / (time.process_time() - started))
        loops.append(fixed_loop())
    best = {name: round(max(some)) for name, some in rates.items()}
    return best | {"of": n, "repeats": repeats, "loop_s": min(loops)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", nargs="+", default=WORLDS)
    parser.add_argument("--questions", type=int, default=5000)
    parser.add_argument("--a-seed", type=int, default=1000)
    parser.add_argument("--timed", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)  # a seed that gives fewer is counted
    rows = []
    for name in args.worlds:
        world = load_world(name)
        facts = world.graph.facts
        small = len(world.graph.nodes) < SMALL
        max_share = 1 if small else 0.02
        tasks, seeds, total = drawn(world, args.questions, args.a_seed, max_share)
        raw = RawFacts(facts)
        distances = Distances(raw)
        row = {"world": name, "version": world.version, "facts": len(facts)}
        row |= {"different_questions": len(tasks), "seeds": seeds, "drawn": total}
        row |= {"max_share": max_share, "answers": len({task.answer for task in tasks})}
        row |= judged(tasks, raw, distances)
        row["nearness"] = nearness(world, distances, 500)
        row["speed"] = None if small else speed(world, args.timed, args.repeats)
        print(json.dumps(row, indent=1))
        rows.append(row)
    write_atomic(args.out, json.dumps({"command": COMMAND, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
