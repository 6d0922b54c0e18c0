"""Asynchronous against alternating RL, with tools of several latencies; not a test.

Each arm trains the tour's cold start for `--steps` steps. Reported from the run folders, without
the first step, in which processes start: steps per hour, share of time in which learner and actors
work, ages of the trained rollouts, and share of tokens masked by the loss. All arms of a latency
run one after the other, `--repeats` times. The machine must be free: one core for the learner and
one for the actor.

Run: python tests/benchmarks/bench_asynchronous.py [--out FILE]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from drlib.config import ROOT, Config
from drlib.files import read_json_lines, write_atomic
from drlib.training import stages

ARMS = {
    "in turns": {},
    "overlap": {"rl.asynchronous.actors": 1, "rl.asynchronous.max_lag": 1},
    "in flight": {
        "rl.asynchronous.actors": 1,
        "rl.asynchronous.max_lag": 4,
        "rl.asynchronous.in_flight": True,
    },
}
COMMON = {
    "processes": 1,
    "rl.start": "figures/reference/tour/policy_sft",
    "rl.loss.clip": "double_sided",
    "rl.asynchronous.groups": 16,  # as many rollouts as the engine has rows
}
LATENCIES_MS = (0.0, 50.0, 200.0)


def train(config: Config, runs: Path) -> Path:
    """Train in a process of its own; return the run folder."""
    done = subprocess.run(
        [sys.executable, "-m", "drlib.cli", "train", *stages.arguments("rl", config, runs)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        sys.exit(done.stdout[-2000:])
    return stages.folder("rl", config, runs)


def run(config: Config, runs: Path) -> dict:
    """Train; return the measurements of the run."""
    folder = train(config, runs)
    rows = read_json_lines(folder / "metrics.jsonl")[1:]
    seconds = sum(row["seconds"] for row in rows)
    result = {
        "seconds_per_step": seconds / len(rows),
        "steps_per_hour": 3600 * len(rows) / seconds,
        "learner_busy": 1 - sum(row["rollout_seconds"] for row in rows) / seconds,
        "lag_mean": statistics.mean(row.get("lag_mean", 0.0) for row in rows),
        "lag_max": max(row.get("lag_max", 0.0) for row in rows),
        "masked": statistics.mean(row.get("clip_high", 0) + row.get("clip_low", 0) for row in rows),
        "ess": statistics.mean(row.get("ess") or 1.0 for row in rows),
        "jobs": [],
    }
    if (folder / "jobs.jsonl").exists():
        jobs = read_json_lines(folder / "jobs.jsonl")
        updates = read_json_lines(folder / "updates.jsonl")
        begin, end = min(j["started"] for j in jobs), max(j["ended"] for j in jobs)
        result["actor_busy"] = sum(j["ended"] - j["started"] for j in jobs) / (end - begin)
        names = ("draw", "started", "ended", "oldest", "newest", "process")
        result["jobs"] = [{name: job[name] for name in names} for job in jobs]
        result["updates"] = updates
        for span in result["jobs"] + updates:
            for name in ("started", "ended"):
                span[name] = round(span[name] - begin, 3)
    else:
        result["actor_busy"] = 1 - result["learner_busy"]
    result["steps"] = [
        {"seconds": row["seconds"], "rollout_seconds": row["rollout_seconds"]} for row in rows
    ]
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument(
        "--out", type=Path, default=ROOT / "figures/reference/asynchronous/speed.json"
    )
    args = parser.parse_args()
    found = []
    for repeat in range(args.repeats):
        for latency in LATENCIES_MS:
            for arm, changes in ARMS.items():
                settings = COMMON | changes | {"rl.steps": args.steps, "seed": repeat}
                settings["rollout.tool_latency_ms"] = latency
                with tempfile.TemporaryDirectory() as runs:
                    result = run(Config.load("laptop", **settings), Path(runs))
                found.append({"arm": arm, "latency_ms": latency, "repeat": repeat, **result})
                print(
                    f"{latency:>5.0f} ms  {arm:<10} {result['steps_per_hour']:>7.0f} steps/h, "
                    f"learner {result['learner_busy']:.0%}, actor {result['actor_busy']:.0%}, "
                    f"lag {result['lag_mean']:.2f}, masked {result['masked']:.2%}",
                    flush=True,
                )
    write_atomic(args.out, json.dumps({"steps": args.steps, "runs": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
