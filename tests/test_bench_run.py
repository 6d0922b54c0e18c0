"""The benchmark of the whole tour: counts by hand, and the committed measurement.

Not tested: a run, which takes an hour: PYTHONPATH=. python -m tests.benchmarks.bench_run COMMIT.

Run: python -m pytest tests/test_bench_run.py
"""

import json
import subprocess
import sys

import pytest

from tests.benchmarks.bench_run import OUT, ROOT, of_commits, ratios, right
from tests.waiting import HANG_S

COUNTING = """
import os, subprocess, sys, time
from tests.benchmarks import bench_run as bench
bench.ctypes.CDLL(None).prctl(bench.BECOME_SUBREAPER, 1, 0, 0, 0)
busy = "import time\\nend = time.process_time() + 0.4\\nwhile time.process_time() < end: pass\\n"
left = busy + "time.sleep(600)"  # its parent ends before it, as a server's does
lost = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {left!r}])"
subprocess.run([sys.executable, "-c", lost + "; time.sleep(1.5)"])
before = bench.cpu_seconds()
bench.end_the_rest()
print(bench.cpu_seconds() - before, len(bench.psutil.Process().children()))
"""


def test_ratios_are_paired():
    times = {("here", 0): 10, ("other", 0): 20, ("here", 1): 10, ("other", 1): 40}
    runs = [
        {"where": where, "seed": seed, "wall_s": t, "cpu_s": 2 * t}
        for (where, seed), t in times.items()
    ]
    runs.append({"where": "here", "seed": 2, "wall_s": 1, "cpu_s": 1})  # its pair was cut off
    assert ratios(runs)["wall_s"] == {"median": 3, "least": 2, "most": 4}


def test_runs_of_another_commit_are_not_resumed():
    runs = [{"where": w, "commit": c} for w in ("here", "other") for c in ("new", "old")]
    commits = {"here": "new", "other": "old"}
    assert of_commits(runs, commits) == []
    assert of_commits([runs[0], runs[3]], commits) == [runs[0], runs[3]]


def test_shares_use_only_the_rows_of_the_seed(tmp_path):
    rows = [("search", "sample", 2, 0, 10, 4), ("search", "sample", 3, 0, 30, 8)]
    rows += [("search", "greedy", 2, 0, 5, 5), ("search", "greedy", 3, 0, 20, 5)]
    rows += [("python", "sample", 0, 0, 50, 40), ("search", "sample", 2, 1, 77, 77)]
    keys = ("kind", "decoding", "hops", "seed", "n", "correct")
    folder = tmp_path / "runs" / "laptop" / "evaluate_rl-0"
    folder.mkdir(parents=True)
    json_rows = [{"stage": "rl"} | dict(zip(keys, row, strict=True)) for row in rows]
    (folder / "rows.json").write_text(json.dumps(json_rows))
    found = right(tmp_path, 0)
    shares = {"search, sampled": 0.3, "search, greedy": 0.4, "three look-ups, greedy": 0.25}
    assert found == pytest.approx(shares | {"python, sampled": 0.8})


def test_leftover_processes_are_stopped_and_counted():
    done = subprocess.run(
        [sys.executable, "-c", COUNTING], cwd=ROOT, capture_output=True, text=True, timeout=HANG_S
    )
    assert done.returncode == 0, done.stderr
    seconds, children = done.stdout.split()
    assert float(seconds) >= 0.4 and children == "0"


def test_committed_measurement_is_paired_and_within_budget():
    found = json.loads(OUT.read_text())
    here, other = (
        {run["seed"]: run for run in found["runs"] if run["where"] == where}
        for where in ("here", "other")
    )
    assert here.keys() == other.keys() and len(here) >= 3
    assert max(run["wall_s"] for run in here.values()) <= 480
    for clock in ("wall_s", "cpu_s"):
        ratio = found["ratios"][clock]
        assert ratio["least"] <= ratio["median"] <= ratio["most"]
