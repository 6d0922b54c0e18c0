"""What is trained if groups that are too old are dropped; not a test.

The tour's cold start with two actors and tools of 50 ms, under each value of
rl.asynchronous.stale, with rollouts of the newest weights only. Written per policy: length and hops
of all finished and of the dropped groups.

Run: PYTHONPATH=. python tests/benchmarks/make_stale.py [--steps 12] [--out FILE]
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from drlib.config import ROOT, Config
from drlib.files import read_json_lines, write_atomic
from tests.benchmarks.bench_asynchronous import COMMON, train

OUT = ROOT / "figures/reference/asynchronous/stale.json"
SETTINGS = {
    **COMMON,
    "rl.asynchronous.actors": 2,
    "rl.asynchronous.groups": 2,
    "rl.asynchronous.max_lag": 0,
    "rollout.tool_latency_ms": 50.0,
}


def measure(folder: Path, steps: int) -> dict:
    """Return what was finished and what was dropped in a run."""
    groups = [
        {"length": length, "hops": hops}
        for job in read_json_lines(folder / "jobs.jsonl")
        for length, hops in zip(job["lengths"], job["hops"], strict=True)
    ]
    path = folder / "dropped.jsonl"
    dropped = read_json_lines(path) if path.exists() else []
    metrics = read_json_lines(folder / "metrics.jsonl")
    return {
        "steps": steps,
        "finished": len(groups),
        "dropped": len(dropped),
        "finished_groups": groups,
        "dropped_groups": [{"length": row["length"], "hops": row["hops"]} for row in dropped],
        "lag_mean": statistics.mean(row["lag_mean"] for row in metrics),
        "seconds": sum(row["seconds"] for row in metrics),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    found = {}
    for stale in ("pace", "drop", "requeue"):
        changes = {"rl.steps": options.steps, "rl.asynchronous.stale": stale}
        config = Config.load("laptop", **SETTINGS, **changes)
        with tempfile.TemporaryDirectory() as runs:
            found[stale] = measure(train(config, Path(runs)), options.steps)
        print(stale, {k: v for k, v in found[stale].items() if "groups" not in k}, flush=True)
        write_atomic(options.out, json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
