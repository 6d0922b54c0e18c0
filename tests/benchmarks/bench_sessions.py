"""Branching from a held state beside replaying its cells, over prefixes of growing cost; no test.

In every round each prefix's branches are run both ways in turn, so that a busy machine slows both
alike; the ratio (replay / held) is the median of the rounds' own, above 1 where holding is faster.
Both go through one worker of one sandbox, and every answer is checked.

Run: OMP_NUM_THREADS=1 python tests/benchmarks/bench_sessions.py \
    --out figures/reference/sandbox/sessions.json
"""

import argparse
import json
import platform
import statistics
import time
from functools import partial
from pathlib import Path

from drlib.sandbox import Sandbox

COMMAND = "python tests/benchmarks/bench_sessions.py --out figures/reference/sandbox/sessions.json"
# Cells of the prefix, the branch's code, its answer.
PREFIXES = {
    "one assignment": (["x = 1"], "print(x)", "1"),
    "twenty cells": (["x = 0"] + ["x += 1"] * 19, "print(x)", "19"),
    "import of sympy": (["import sympy\nx = sympy.Symbol('x')"], "print(x + x)", "2*x"),
    "sorting 300,000 numbers": (
        ["import random\nx = sorted(random.random() for _ in range(300_000))"],
        "print(len(x))",
        "300000",
    ),
    "an integral by sympy": (
        ["import sympy\nx = sympy.Symbol('x')\ny = sympy.integrate(sympy.exp(-x) * x**3, x)"],
        "print(sympy.simplify(y.diff(x)))",
        "x**3*exp(-x)",
    ),
}


def main() -> None:
    """Measure and print; write JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--branches", type=int, default=16)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    with Sandbox(workers=1, timeout_s=20.0) as sandbox:
        if sandbox.isolation != "strong":
            parser.error(f"states are held at level strong alone; here it is {sandbox.isolation}")
        rows = [measure(sandbox, name, asked) for name in PREFIXES]
    found = {"command": COMMAND, "machine": platform.machine(), "rows": rows}
    if asked.out:
        asked.out.write_text(json.dumps(found, indent=1) + "\n")


def measure(sandbox: Sandbox, name: str, asked: argparse.Namespace) -> dict:
    """One row: milliseconds a branch held and replayed, and to hold the prefix."""
    cells, code, answer = PREFIXES[name]
    held_ms, replay_ms, hold_ms = [], [], []
    for _ in range(asked.rounds):
        with sandbox.session() as start:
            began = time.perf_counter()
            state = start
            for number, cell in enumerate(cells):
                last, state = state, state.then(cell)
                if number:  # a session holds 16 states; the first is the session itself
                    last.close()
            hold_ms.append((time.perf_counter() - began) * 1e3)
            assert state.live, name
            held_ms.append(timed(partial(state.run, code), answer, asked.branches))
            replay = partial(sandbox.run, code, history=cells)
            replay_ms.append(timed(replay, answer, asked.branches))
    ratios = [replay / held for replay, held in zip(replay_ms, held_ms, strict=True)]
    row = {
        "prefix": name,
        "held_ms": round(statistics.median(held_ms), 2),
        "replay_ms": round(statistics.median(replay_ms), 2),
        "hold_ms": round(statistics.median(hold_ms), 2),
        "replay_over_held": round(statistics.median(ratios), 2),
        "low": round(min(ratios), 2),
        "high": round(max(ratios), 2),
        "rounds": asked.rounds,
        "branches": asked.branches,
    }
    print(row)
    return row


def timed(run, answer: str, times: int) -> float:
    """Milliseconds of one call, the mean over `times`."""
    began = time.perf_counter()
    for _ in range(times):
        result = run()
        assert result.text == answer, result
    return (time.perf_counter() - began) * 1e3 / times


if __name__ == "__main__":
    main()
