"""Load tests of one sandbox for `bench_sandbox.py`: many calls at once, memory, random code."""

import math
import random
import statistics
import sys
import time
from pathlib import Path

import psutil

from drlib.sandbox import Sandbox

CODES = {
    "print": ("print(6 * 7)", "42"),
    "sympy": (
        "from sympy import Symbol, diff, factor, solve\nx = Symbol('x')\n"
        "print(solve(x**2 - 5 * x + 6, x), factor(x**3 - 1), diff(x**5 + x, x))",
        "[2, 3] (x - 1)*(x**2 + x + 1) 5*x**4 + 1",
    ),
}


def warm(sandbox):
    """Start both templates of every worker by one call each."""
    for code, _ in CODES.values():
        sandbox.map([f"{code}\nimport time\ntime.sleep(0.4)"] * sandbox.workers)
    return sandbox


def quantile(values, share):
    """Return the smallest value that at least this share does not exceed."""
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * share) - 1, 0)]


def queue_many(sandbox, count):
    """Queue `count` numbered calls at once; each must return its own number once."""
    ended = []  # (number, seconds), in the order in which they ended
    answers = [0] * count
    start = time.perf_counter()

    def note(index):
        def done(_):
            answers[index] += 1
            ended.append((index, time.perf_counter() - start))

        return done

    futures = []
    for index in range(count):
        futures.append(sandbox.submit(f"print({index})"))
        futures[-1].add_done_callback(note(index))
    results = [future.result() for future in futures]
    wall = time.perf_counter() - start
    wrong = [i for i, result in enumerate(results) if result.text != str(i)]
    lost = answers.count(0)
    twice = sum(number > 1 for number in answers)
    if wrong or lost or twice:
        raise SystemExit(f"queue: {len(wrong)} wrong, {lost} lost, {twice} answered twice")
    waits = [seconds for _, seconds in ended]
    service = [result.duration_s * 1000 for result in results]
    return {
        "calls": count,
        "wrong": 0,
        "lost": 0,
        "answered_twice": 0,
        "calls_s": count / wall,
        "wait_p50_s": quantile(waits, 0.5),
        "wait_p99_s": quantile(waits, 0.99),
        "code_p50_ms": quantile(service, 0.5),
        "code_p99_ms": quantile(service, 0.99),
        # Two workers end calls nearly in the order in which they were queued.
        "most_places_from_order": max(abs(i - place) for place, (i, _) in enumerate(ended)),
    }


MIXED = (
    "print('x' * 500_000)",
    "1 / 0",
    "x = bytearray(60_000_000)",
    "raise MemoryError",
    "open('f', 'wb').write(bytes(5_000_000))",
    CODES["sympy"][0],
    "import os\nos.abort()",
)


def resident_mb(process):
    try:
        return process.memory_info().rss / 2**20
    except psutil.NoSuchProcess:
        return 0.0


def watch_memory(workers, count):
    """Sample memory 100 times over `count` calls, of which 5% are large, wrong or die."""
    generator = random.Random(0)
    samples = []
    step = max(count // 100, 1)

    def program(number):
        return generator.choice(MIXED) if generator.random() < 0.05 else f"print({number})"

    with Sandbox(workers=workers, timeout_s=10.0) as sandbox:
        warm(sandbox)
        for first in range(0, count, step):
            sandbox.map([program(number) for number in range(first, min(first + step, count))])
            own = psutil.Process()
            kept = own.children(recursive=True)
            samples.append(
                {
                    "calls": min(first + step, count),
                    "parent_mb": resident_mb(own),
                    "children_mb": sum(map(resident_mb, kept)),
                    "processes": len(kept),
                    "files": own.num_fds(),
                }
            )
    early = samples[len(samples) // 10 : len(samples) // 3] or samples
    late = samples[-len(early) :]
    growth = {
        key: statistics.median(s[key] for s in late) - statistics.median(s[key] for s in early)
        for key in ("parent_mb", "children_mb", "files")
    }
    return {"calls": count, "growth": growth, "samples": samples}


def fuzz(workers, count):
    """Run random programs and count each status."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from tests.test_sandbox_fuzz import fuzz_codes

    with Sandbox(workers=workers, timeout_s=1.0, memory_mb=128) as sandbox:
        start = time.perf_counter()
        counts = fuzz_codes(sandbox, count, seed=0)
        wall = time.perf_counter() - start
        return {"calls": count, "statuses": counts, "calls_s": count / wall}
