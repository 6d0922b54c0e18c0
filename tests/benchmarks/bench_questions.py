"""The question engine: verified questions a second, and what two engines say about all of them.

For each world: CPU time of `--timed` questions of `--depth` look-ups (every one of them checked
while it is made), in few words and by the checks that every world can pass, and once more in
sentences and by all checks (`timed_in_sentences`). Then `--questions` of the train split at mixed
depths, whose faults are counted by sets and by SQLite; answers, split and work; and the edges that
the three orders of expansion make (WebShaper, arXiv 2507.15061, figure 4). Before the clock starts
the world is loaded, its graph's tables are made, and one question is made and said. A list of JSON
objects, one a world; CPU seconds, one core. `loop_s` is the CPU time of a fixed loop, taken before
and after: it says how busy the machine was.

Run: OMP_NUM_THREADS=1 python tests/benchmarks/bench_questions.py [--worlds cldr pydocs]
Committed: figures/reference/data/questions.json (--timed 1000: pydocs has no 2,000 of depth 3)
"""

import argparse
import hashlib
import json
import random
import time
from collections import Counter
from statistics import quantiles

from drlib.questions.checks import (
    count_constant_edges,
    count_target_edges,
    find_faults,
    measure_effort,
)
from drlib.questions.expansion import expand, explain, find_known_facts
from drlib.questions.queries import (
    canonicalise,
    from_text,
    list_constants,
    measure_depth,
    to_text,
    walk,
)
from drlib.questions.question_engine import choose_side, synthesize_questions
from drlib.questions.sql_engine import SqlEngine
from drlib.worlds import load_world

FAULTS = ("not unique", "not minimal", "shortcut", "leak", "redundant", "shallow")


def timed(world, n: int, depth: int, **how) -> dict:
    """Questions of exactly `measure_depth` look-ups, verified by sets; `how`: of "
    "`synthesize_questions`."""
    graph = world.graph
    _ = graph.relations, graph.neighbours, graph.kinds
    synthesize_questions(world, 1, "warm", hops={depth: 1}, **how)
    loop_before = fixed_loop()
    started = time.process_time()
    synthesize_questions(world, n, "timed", hops={depth: 1}, at_least=n, **how)
    seconds = time.process_time() - started
    return {
        "questions": n,
        "depth": depth,
        "cpu_s": round(seconds, 2),
        "a_second": round(n / seconds),
        "loop_s": [loop_before, fixed_loop()],
    }


def fixed_loop() -> float:
    started = time.process_time()
    total = 0
    for i in range(3_000_000):
        total += i
    return round(time.process_time() - started, 3)


def verified(tasks, graph) -> dict:
    """Share of the questions with each fault, by both engines."""
    rows = {}
    queries = [from_text(task.query) for task in tasks]
    for name, engine in (("sets", None), ("sql", SqlEngine(graph))):
        started = time.process_time()
        found = Counter(fault for query in queries for fault in find_faults(query, graph, engine))
        rows[name] = {fault: found[fault] / len(tasks) for fault in FAULTS}
        rows[name]["checked_a_second"] = round(len(tasks) / (time.process_time() - started))
    return rows


def described(tasks, graph) -> dict:
    queries = [from_text(task.query) for task in tasks]
    work = quantiles([measure_effort(query, graph) for query in queries], n=10)
    kinds = Counter(kind.__name__ for query in queries for kind in {type(p) for p in walk(query)})
    return {
        "different": len({to_text(canonicalise(query)) for query in queries}),
        "answers": len({task.answer for task in tasks}),
        "largest_answer_share": max(Counter(t.answer for t in tasks).values()) / len(tasks),
        "answers_of_the_other_side": sum(choose_side(task.answer) != "train" for task in tasks),
        "depth": dict(sorted(Counter(map(measure_depth, queries)).items())),
        "constants": dict(sorted(Counter(len(list_constants(q)) for q in queries).items())),
        "questions_with": dict(sorted(kinds.items())),
        "pages_p10_p50_p90": [work[0], work[4], work[8]],
        "digest": hashlib.sha256("".join(t.id + t.question for t in tasks).encode()).hexdigest(),
    }


def orders(graph, n: int = 300) -> dict:
    """Edges a query after two expansions in each order, from the same starts."""
    rows = {}
    for order in ("layer", "sequential", "random"):
        rng = random.Random("orders")
        found = []
        titles = [t for t in sorted(graph.nodes) if len(find_known_facts(t, graph)) > 2]
        while len(found) < n:
            answer = rng.choice(titles)
            query = explain(answer, graph, rng, frozenset((answer,)), 2, 3)
            for _ in range(2):
                query = query and expand(query, graph, rng, order)
            found += [query] if query else []
        rows[order] = {
            "constant_constant": sum(count_constant_edges(q, graph) for q in found) / n,
            "constant_target": sum(map(count_target_edges, found)) / n,
        }
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", nargs="+", default=["cldr", "pydocs"])
    parser.add_argument("--questions", type=int, default=5000)
    parser.add_argument("--timed", type=int, default=2000)
    parser.add_argument("--depth", type=int, default=3)
    args = parser.parse_args()
    rows = []
    for name in args.worlds:
        world = load_world(name)
        row = {
            "world": name,
            "version": world.version,
            "nodes": len(world.graph),
            "facts": len(world.graph.facts),
            "timed": timed(world, args.timed, args.depth, wording="brackets", strict=False),
            "timed_in_sentences": timed(world, args.timed, args.depth),
        }
        n, depth = args.questions, args.depth
        tasks = synthesize_questions(world, n, 0, depth=depth, split="train", at_least=n)
        row |= {"verified": verified(tasks, world.graph)} | described(tasks, world.graph)
        rows.append(row | {"edges_after_expansion": orders(world.graph)})
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
