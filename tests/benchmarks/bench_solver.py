"""Share of generated questions that the tools alone can solve, and the number of calls.

`Solver` reads only what `search` and `visit` return, in at most `--calls` calls; a row has the
share that it solved, the calls of those (median, 90th percentile), its wrong answers (it should
have none: a solver that does not know says nothing), what the funnel keeps, and the mean ISR and
ISE of what it keeps. `with_mistakes` is the same hand with the usual rate of mistakes. Seconds are
of this process's CPU.

Run: OMP_NUM_THREADS=1 python tests/benchmarks/bench_solver.py [--world cldr] [--questions 500]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from drlib.demonstrations.funnel import Funnel, seeking
from drlib.demonstrations.solver import MISTAKES, Solver
from drlib.questions.queries import find_required, from_text
from drlib.questions.question_engine import synthesize_questions
from drlib.tools import Toolbox
from drlib.worlds import load_world


def measure(solver: Solver, tasks, world) -> dict:
    """One row: every task once."""
    started = time.process_time()
    episodes = [solver.solve(task) for task in tasks]
    seconds = time.process_time() - started
    calls = sorted(len(e.tool_results) for e in episodes if e.correct)
    kept, report = Funnel().run(episodes)
    rates = [seeking(e, find_required(from_text(e.task.query), world.graph)) for e in kept]
    return {
        "solved": round(len(calls) / len(tasks), 4),
        "calls_p50": statistics.median(calls),
        "calls_p90": calls[int(0.9 * len(calls))],
        "calls_max": calls[-1],
        "wrong": sum(e.answer is not None and not e.correct for e in episodes),
        "kept": len(kept),
        "rejected": {s: r["reasons"] for s, r in report.items() if r["reasons"]},
        "isr": round(statistics.mean(isr for isr, _ in rates), 3),
        "ise": round(statistics.mean(ise for _, ise in rates), 3),
        "cpu_s_a_question": round(seconds / len(tasks), 4),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world", default="cldr")
    parser.add_argument("--questions", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--calls", type=int, default=60)
    args = parser.parse_args()
    world = load_world(args.world)
    tasks = synthesize_questions(world, args.questions, args.seed, at_least=args.questions)
    rows = {}
    with Toolbox(world, calculator=True) as toolbox:
        for name, options in {
            "batches_of_5": {},
            "one_page_a_call": {"batch": 1},
            "with_mistakes": {"mistakes": MISTAKES},
        }.items():
            rows[name] = measure(Solver(toolbox, args.calls, **options), tasks, world)
    print(json.dumps(vars(args) | {"version": world.version, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
