"""The tour here and in another checkout, seed by seed in turn: time and what it came to; no test.

Each run is that of `make run`, after its install, in a fresh clone of the checkout's commit: the
notebook 00 in the laptop profile by `drlib.notebook run`, with this interpreter. Wall time is until
it ends; CPU time is of it and of all that it starts, for which this process waits (what a finished
run leaves running is ended first). `right` are the shares of held-out questions that the policy
after RL answers, sampled and greedy.

The two sides of a pair run one after the other and nothing else may run beside them. Ratios are of
the other commit's time to this one's, one a seed. The same command goes on where it was stopped:
its runs are not made again, unless the file holds one of another commit: then all of them are.

Run: PYTHONPATH=. python -m tests.benchmarks.bench_run COMMIT --seeds 0 1 2 --pairs 3 [--out FILE]
"""

import argparse
import ctypes
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil

from drlib.config import ROOT
from drlib.files import write_atomic

OUT = ROOT / "figures" / "reference" / "speed" / "run.json"
TOUR = ("-m", "drlib.cli", "run", "00", "--profile", "laptop", "-p", "seed")
KINDS = {
    "search, sampled": ("search", "sample", None),
    "search, greedy": ("search", "greedy", None),
    "three look-ups, greedy": ("search", "greedy", 3),
    "python, sampled": ("python", "sample", None),
}
BECOME_SUBREAPER = 36  # prctl's: whoever loses its parent below becomes our child, to be waited for


def cloned(commit: str, place: Path) -> tuple[Path, str]:
    """(a clone of this repository at the commit, the commit's whole name)."""
    subprocess.run(["git", "clone", "--quiet", ROOT, place], check=True)
    subprocess.run(["git", "checkout", "--quiet", commit], cwd=place, check=True)
    name = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=place, check=True, capture_output=True, text=True
    )
    return place, name.stdout.strip()


def cpu_seconds() -> float:
    """Return the CPU seconds of all finished child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def end_the_rest() -> None:
    """Ask what is still there to end, and wait for it: its time counts."""
    rest = psutil.Process().children(recursive=True)
    for process in rest:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, deaf = psutil.wait_procs(rest, timeout=20)
    for process in deaf:
        process.kill()
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def timed_tour(place: Path, seed: int) -> dict:
    """One run: {"wall_s", "cpu_s", "right"}. RuntimeError: it failed."""
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    environment["PYTHONPATH"] = str(place)
    before, began = cpu_seconds(), time.monotonic()
    command = [sys.executable, *TOUR, str(seed)]
    ended = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)
    wall_s = time.monotonic() - began
    end_the_rest()
    if ended.returncode:
        raise RuntimeError(f"seed {seed} in {place}: {ended.stderr[-2000:]}")
    cpu_s = cpu_seconds() - before
    return {"wall_s": round(wall_s, 1), "cpu_s": round(cpu_s, 1), "right": right(place, seed)}


def right(place: Path, seed: int) -> dict[str, float]:
    """Shares of the run's held-out questions that the policy after RL answers."""
    rows = [
        row
        for file in sorted((place / "runs" / "laptop").glob("evaluate_rl-*/rows.json"))
        for row in json.loads(file.read_text())
        if row["stage"] == "rl" and row["seed"] == seed
    ]
    found = {}
    for name, (kind, decoding, hops) in KINDS.items():
        some = [
            row
            for row in rows
            if (row["kind"], row["decoding"]) == (kind, decoding) and hops in (None, row["hops"])
        ]
        found[name] = sum(row["correct"] for row in some) / sum(row["n"] for row in some)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="time the tour here and in another commit")
    parser.add_argument("other", help="a commit of this repository")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--pairs", type=int, default=3, help="of so many seeds the other, too")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    ctypes.CDLL(None, use_errno=True).prctl(BECOME_SUBREAPER, 1, 0, 0, 0)
    before = json.loads(args.out.read_text())["runs"] if args.out.exists() else []
    wanted = [("here", seed) for seed in args.seeds]
    wanted += [("other", seed) for seed in args.seeds[: args.pairs]]
    with tempfile.TemporaryDirectory() as folder:
        places = {
            name: cloned(commit, Path(folder, name))
            for name, commit in (("here", "HEAD"), ("other", args.other))
        }
        runs = of_commits(before, {name: commit for name, (_, commit) in places.items()})
        there = {(run["where"], run["seed"]) for run in runs}
        print(f"{len(runs)} of the {len(before)} runs in {args.out.name} are of these commits")
        for name, seed in sorted(wanted, key=lambda one: args.seeds.index(one[1])):
            if (name, seed) not in there:
                place, commit = places[name]
                run = {"where": name, "commit": commit, "seed": seed, **timed_tour(place, seed)}
                runs.append(run)
                print(json.dumps(run), flush=True)
                found = {"runs": runs, "ratios": ratios(runs)}
                write_atomic(args.out, json.dumps(found, indent=1) + "\n")


def of_commits(runs: list[dict], commits: dict[str, str]) -> list[dict]:
    """The runs, where all are of the commits which "here" and "other" now stand for; else none: one
    side's runs of an earlier day are no pair of the other's."""
    stand = all(run["commit"] == commits[run["where"]] for run in runs)
    return runs if stand else []


def ratios(runs: list[dict]) -> dict[str, dict[str, float]]:
    """The other checkout's time over this one's, the median of the pairs with least and most."""
    found = {}
    for clock in ("wall_s", "cpu_s"):
        here, other = (
            {run["seed"]: run[clock] for run in runs if run["where"] == name}
            for name in ("here", "other")
        )
        both = sorted(here.keys() & other.keys())
        pairs = [other[seed] / here[seed] for seed in both]
        if pairs:
            middle = statistics.median(pairs)
            found[clock] = {"median": middle, "least": min(pairs), "most": max(pairs)}
    return found


if __name__ == "__main__":
    main()
