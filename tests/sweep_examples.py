"""Sweeps made by hand: their files, and results as if their runs had been kept."""

import json
from pathlib import Path

import yaml

from drlib.evaluation.evaluate import Outcome, rows_of
from drlib.evaluation.results import Results
from drlib.experiments.plan import Sweep, load_sweep
from drlib.experiments.runner import RESULTS, RUNS, costs, what_ran
from drlib.files import write_json_lines

RIGHT, HALF, WRONG = [True, True], [True, False], [False, False]
CLIPS = {
    "name": "toy",
    "about": "What a clip does",
    "stage": "rl",
    "profile": "ci",
    "seeds": [0, 1],
    "control": "ppo",
    "arms": {"ppo": {}, "cispo": {"rl.loss.clip": "cispo"}},
}


def write_sweep(folder: Path, **changes) -> Path:
    """The file of a sweep of two arms and two seeds, with changes."""
    path = folder / "toy.yaml"
    path.write_text(yaml.safe_dump({**CLIPS, **changes}, sort_keys=False), encoding="utf-8")
    return path


def toy_sweep(folder: Path, **changes) -> Sweep:
    return load_sweep(write_sweep(folder, **changes))


def outcome(task: str, samples: list[bool], kind: str = "search") -> Outcome:
    return Outcome(task, kind, 1, samples[0], samples, 4, 0, 2, 0, 0)


def row(step: int, **more) -> dict:
    """A line of metrics.jsonl."""
    return {"step": step, "seconds": 2.0, "rollout_seconds": 1.5, "rollouts": 32} | more


def asked(*samples):
    """Outcomes of search questions a, b, ... and of one python question, which is always right."""
    search = [outcome(name, some) for name, some in zip("abc", samples)]
    return [*search, outcome("p", RIGHT, "python")]


def rows(steps=2, **more):
    return [row(step + 1, accuracy_search=0.25 * (step + 1), **more) for step in range(steps)]


def keep_made(sweep: Sweep, out: Path, made: dict, failed: dict | None = None) -> None:
    """OUT/results of runs that never were.

    made: (arm, seed) -> (its outcomes, its rows of metrics). failed: (arm, seed) -> why.
    """
    runs: dict[str, dict] = {arm: {} for arm in sweep.arms}
    for (arm, seed), reason in (failed or {}).items():
        runs[arm][seed] = {"failed": reason}
    for arm in sweep.arms:
        outcomes = {
            (sweep.stage, s): asked for (name, s), (asked, _) in made.items() if name == arm
        }
        rows = [r for (_, s), asked in outcomes.items() for r in rows_of(asked, sweep.stage, s)]
        if outcomes:
            Results("make it", sweep.profile, rows, outcomes).save(out / RESULTS / arm)
        for _, seed in outcomes:
            metrics = made[arm, seed][1]
            runs[arm][seed] = costs(metrics)
            curve = out / RESULTS / arm / f"seed{seed}_{sweep.stage}.jsonl"
            write_json_lines(curve, metrics)
    head = {"command": "make it", **what_ran(sweep), "seeds": list(sweep.seeds), "runs": runs}
    (out / RESULTS).mkdir(parents=True, exist_ok=True)
    (out / RESULTS / RUNS).write_text(json.dumps(head), encoding="utf-8")
