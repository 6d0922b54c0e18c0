"""Milliseconds of draw, reset, call and verify of the environments that run programs.

    python -m tests.benchmarks.bench_environments --tasks 20

Each tier plays its scripted solutions, one call after the other, then with 16 rollouts at once.
"""

import argparse
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

from drlib.environments import load_environment

NAMES = tuple(
    f"{kind}:{tier}" for kind in ("swe", "terminal") for tier in ("easy", "medium", "hard")
)


def play(environment, task, times):
    """Play the solution and add (operation, seconds) to `times`; return the score."""

    def measure(name, function, *arguments):
        started = time.perf_counter()
        result = function(*arguments)
        times.append((name, time.perf_counter() - started))
        return result

    with measure("reset", environment.reset, task) as episode:
        steps = environment.solve(task)
        shown = None
        while True:
            try:
                _, call = steps.send(shown)
            except StopIteration as end:
                return measure("verify", episode.verify, end.value[1])
            runs = call.name in ("run", "shell")
            done = measure("run" if runs else "edit", episode.call, call.name, call.arguments)
            shown = done.text


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=20)
    options = parser.parse_args()
    print("environment       draw  reset   edit    run  verify (median ms)  rollouts/s at 16")
    for name in NAMES:
        environment = load_environment(name)
        started = time.perf_counter()
        tasks = environment.tasks(options.tasks, seed=0)
        times = [("draw", (time.perf_counter() - started) / len(tasks))]
        assert all(play(environment, task, times) == 1 for task in tasks)
        row = []
        for operation in ("draw", "reset", "edit", "run", "verify"):
            found = [seconds for each, seconds in times if each == operation]
            row.append(f"{1000 * statistics.median(found):6.1f}" if found else "     -")
        started = time.perf_counter()
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda task: play(environment, task, []), tasks))  # noqa: B023 - at once
        rate = len(tasks) / (time.perf_counter() - started)
        print(f"{name:<16}", *row, f"{rate:24.1f}")


if __name__ == "__main__":
    main()
