"""Benchmark of the sandbox and other ways to run code: calls per second, latency, CPU time.

In every round each arm runs one block of calls, in rotating order, so that other load affects all
arms equally. Ratios are medians over rounds. CPU time includes all ended and living descendants
(the templates). Every result is checked.

- sandbox, standard: `Sandbox` at this machine's best level, and at "standard" if that is lower
- subprocess: `subprocess.run([python, "-c", code])`, which imports anew each time
- pool: `multiprocessing.Pool`, imports done, state shared, no isolation
- smolagents: its interpreter in this process, no isolation; skipped if not installed

Further parts: `--queue` calls queued at once (none lost or duplicated),
`--memory` calls with the memory of this process and its templates, `--fuzz` random programs.

Run: OMP_NUM_THREADS=1 python tests/benchmarks/bench_sandbox.py \
    --memory 20000 --out figures/reference/sandbox/bench.json
Short: add --rounds 1 --scale 0.1 --queue 200
smolagents needs no installation into the environment: pip install --no-deps --target DIR smolagents
python-dotenv, and DIR on PYTHONPATH.
"""

import argparse
import contextlib
import importlib.metadata
import importlib.util
import io
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
from sandbox_load import CODES, fuzz, quantile, queue_many, warm, watch_memory

from drlib.sandbox import Sandbox, probe

ARMS = ("sandbox", "standard", "subprocess", "pool", "smolagents")


# Calls of one block, before --scale; a multiple of every concurrency.
BLOCKS = {"print": 200, "sympy": 64}


SLOWER = {("subprocess", "print"): 4, ("subprocess", "sympy"): 8}


CONCURRENCIES = (1, 8)


def run_here(code):
    """In a worker of the pool: return the output of `exec`."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, {"__name__": "__main__"})
    return out.getvalue()


def import_sympy():
    import sympy  # noqa: F401 - so that later imports cost nothing


def run_subprocess(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def smolagents_runner():
    from smolagents.local_python_executor import LocalPythonExecutor

    def run(code):
        executor = LocalPythonExecutor(["sympy"])
        executor.send_tools({})
        return executor(code).logs

    return run


def make_arms(stack, workers):
    """Return {name: function from code to its output}, all warm."""
    import_sympy()  # smolagents runs here; and all pay for it alike
    best = warm(stack.enter_context(Sandbox(workers=workers, timeout_s=30.0)))
    arms = {"sandbox": lambda code: best.run(code).stdout}
    if best.isolation == "strong":
        less = Sandbox(workers=workers, timeout_s=30.0, found=probe().without("namespaces"))
        standard = warm(stack.enter_context(less))
        arms["standard"] = lambda code: standard.run(code).stdout
    arms["subprocess"] = run_subprocess
    context = multiprocessing.get_context("spawn")
    pool = stack.enter_context(context.Pool(workers, import_sympy))
    arms["pool"] = lambda code: pool.apply(run_here, (code,))
    if importlib.util.find_spec("smolagents"):
        arms["smolagents"] = smolagents_runner()
    return arms, best


def cpu_seconds():
    """Return user and system time of this process and all its descendants."""
    total = sum(os.times()[:4])
    for process in psutil.Process().children(recursive=True):
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return total


def block(run, code, expected, calls, concurrency):
    """Run one block: {"calls_s", "cpu_ms", "latencies_ms"}."""
    latencies = []

    def one(_):
        start = time.perf_counter()
        text = run(code)
        latencies.append((time.perf_counter() - start) * 1000)
        if text.strip() != expected:
            raise SystemExit(f"wrong answer: {text!r}, expected {expected!r}")

    with ThreadPoolExecutor(concurrency) as threads:
        list(threads.map(one, range(concurrency)))  # starts threads, templates, executors
        latencies.clear()
        cpu_before = cpu_seconds()
        start = time.perf_counter()
        list(threads.map(one, range(calls)))
        wall = time.perf_counter() - start
        cpu = cpu_seconds() - cpu_before
    latencies = [round(value, 3) for value in latencies]
    return {"calls_s": calls / wall, "cpu_ms": cpu / calls * 1000, "latencies_ms": latencies}


def compare(arms, args):
    """Run every arm on every (code, concurrency): a list of rows, one per block."""
    rows = []
    names = list(arms)
    for turn in range(args.rounds):
        first = turn % len(names)
        in_turn = names[first:] + names[:first]
        for kind, (code, expected) in CODES.items():
            for concurrency in CONCURRENCIES:
                for name in in_turn:
                    share = args.scale / SLOWER.get((name, kind), 1)
                    calls = max(concurrency, round(BLOCKS[kind] * share))
                    found = block(arms[name], code, expected, calls, concurrency)
                    rows.append(
                        {
                            "arm": name,
                            "code": kind,
                            "concurrency": concurrency,
                            "round": turn,
                            "calls": calls,
                            **found,
                        }
                    )
    return rows


def select_rows(rows, kind, concurrency, arm):
    """Return the rows of one arm on one (code, concurrency), in round order."""
    wanted = (kind, concurrency, arm)
    return [row for row in rows if (row["code"], row["concurrency"], row["arm"]) == wanted]


def summarize(rows):
    """Summarise each arm, code and concurrency: medians over rounds, ratios to subprocess."""
    summary = []
    keys = sorted({(r["code"], r["concurrency"], ARMS.index(r["arm"])) for r in rows})
    for kind, concurrency, index in keys:
        own = select_rows(rows, kind, concurrency, ARMS[index])
        base = select_rows(rows, kind, concurrency, "subprocess")
        latencies = [value for r in own for value in r["latencies_ms"]]
        speed = [a["calls_s"] / b["calls_s"] for a, b in zip(own, base, strict=True)]
        # Little CPU time is measured in ticks of 10 ms: at least one tick.
        cpu = [
            b["cpu_ms"] / max(a["cpu_ms"], 10 / a["calls"]) for a, b in zip(own, base, strict=True)
        ]
        rates = [r["calls_s"] for r in own]
        summary.append(
            {
                "code": kind,
                "concurrency": concurrency,
                "arm": ARMS[index],
                "calls": len(latencies),
                "calls_s": statistics.median(rates),
                "calls_s_range": [min(rates), max(rates)],
                "p50_ms": quantile(latencies, 0.5),
                "p99_ms": quantile(latencies, 0.99),
                "cpu_ms": statistics.median(r["cpu_ms"] for r in own),
                "times_subprocess": statistics.median(speed),
                "times_range": [min(speed), max(speed)],
                "cpu_times_less": statistics.median(cpu),
            }
        )
    return summary


def report(summary, level):
    print(f"isolation of sandbox: {level}; ratios against subprocess, medians (least-most)")
    print(
        f"{'code':7}{'at once':>8}  {'':12}{'calls/s':>9}{'p50 ms':>9}{'p99 ms':>9}{'CPU ms':>8}"
        f"{'times calls/s':>24}{'times less CPU':>16}"
    )
    for row in summary:
        low, high = row["times_range"]
        times = f"{row['times_subprocess']:.1f} ({low:.1f}-{high:.1f})"
        print(
            f"{row['code']:7}{row['concurrency']:8}  {row['arm']:12}{row['calls_s']:9.1f}"
            f"{row['p50_ms']:9.2f}{row['p99_ms']:9.2f}{row['cpu_ms']:8.2f}{times:>24}"
            f"{row['cpu_times_less']:16.1f}"
        )


def versions():
    found = {"python": platform.python_version(), "kernel": platform.release()}
    for name in ("drlib", "numpy", "sympy", "smolagents"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def show_parts(result):
    if queue := result.get("queue"):
        print(
            f"queue: {queue['calls']} calls, 0 lost, 0 twice, {queue['calls_s']:.0f}/s, wait p50 "
            f"{queue['wait_p50_s']:.2f} s, p99 {queue['wait_p99_s']:.2f} s"
        )
    if memory := result.get("memory"):
        last, growth = memory["samples"][-1], memory["growth"]
        print(
            f"memory: {memory['calls']} calls, parent {last['parent_mb']:.0f} MB "
            f"({growth['parent_mb']:+.1f}), templates {last['children_mb']:.0f} MB "
            f"({growth['children_mb']:+.1f}), open files {growth['files']:+.0f}"
        )
    if found := result.get("fuzz"):
        print(f"fuzz: {found['calls']} programs, {found['statuses']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="of the calls in a block")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--queue", type=int, default=10_000, help="calls queued at once; 0: none")
    parser.add_argument("--memory", type=int, default=0, help="calls with memory sampled")
    parser.add_argument("--fuzz", type=int, default=0, help="random programs")
    parser.add_argument("--out", type=Path, help="write every measurement there, as JSON")
    args = parser.parse_args()
    result = {
        "command": " ".join(["python tests/benchmarks/bench_sandbox.py", *sys.argv[1:]]),
        "versions": versions(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "load_before": os.getloadavg(),
    }
    if args.rounds:
        with contextlib.ExitStack() as stack:
            arms, best = make_arms(stack, args.workers)
            result["level"] = best.isolation
            for name in set(ARMS) - set(arms):
                print(f"{name}: skipped, not here")
            result["rows"] = compare(arms, args)
        result["summary"] = summarize(result["rows"])
        report(result["summary"], result["level"])
    with Sandbox(workers=args.workers) as sandbox:
        result["level"] = sandbox.isolation
        if args.queue:
            result["queue"] = queue_many(sandbox, args.queue)
    if args.memory:
        result["memory"] = watch_memory(args.workers, args.memory)
    if args.fuzz:
        result["fuzz"] = fuzz(args.workers, args.fuzz)
    show_parts(result)
    result["load_after"] = os.getloadavg()
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        partial = args.out.with_name(args.out.name + ".partial")
        partial.write_text(json.dumps(result, indent=1) + "\n")
        partial.replace(args.out)


if __name__ == "__main__":
    main()
