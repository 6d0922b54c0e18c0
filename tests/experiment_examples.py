"""Experiment plans for tests, and records of hand-made runs."""

import json
from pathlib import Path

import yaml

from drlib.evaluation.evaluate import Outcome, rows_of
from drlib.evaluation.results import Results
from drlib.experiments.plan import ExperimentPlan, load_plan, what_ran
from drlib.experiments.records import ExperimentRecords
from drlib.experiments.runner import costs
from drlib.experiments.tables import summary

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


def write_plan(folder: Path, **changes) -> Path:
    """Write the plan of two arms and two seeds, with changes."""
    path = folder / "toy.yaml"
    path.write_text(yaml.safe_dump({**CLIPS, **changes}, sort_keys=False), encoding="utf-8")
    return path


def toy_plan(folder: Path, **changes) -> ExperimentPlan:
    return load_plan(write_plan(folder, **changes))


def outcome(task: str, samples: list[bool], kind: str = "search") -> Outcome:
    return Outcome(task, kind, 1, samples[0], samples, 4, 0, 2, 0, 0)


def row(step: int, **more) -> dict:
    """Return a row of metrics.jsonl."""
    return {"step": step, "seconds": 2.0, "rollout_seconds": 1.5, "rollouts": 32} | more


def make_outcomes(*samples):
    """Return outcomes of search questions a, b, ... and one always-correct python question."""
    search = [outcome(name, answers) for name, answers in zip("abc", samples)]
    return [*search, outcome("p", RIGHT, "python")]


def rows(steps=2, **more):
    return [row(step + 1, accuracy_search=0.25 * (step + 1), **more) for step in range(steps)]


def make_records(
    plan: ExperimentPlan, runs_by_arm: dict, failed: dict | None = None
) -> ExperimentRecords:
    """Return records of hand-made runs.

    runs_by_arm: (arm, seed) -> (outcomes, metrics rows). failed: (arm, seed) -> reason.
    """
    runs: dict[str, dict] = {arm: {} for arm in plan.arms}
    for (arm, seed), reason in (failed or {}).items():
        runs[arm][seed] = {"failed": reason}
    records = ExperimentRecords({})
    for arm in plan.arms:
        outcomes = {
            (plan.stage, s): outcomes_of_run
            for (name, s), (outcomes_of_run, _) in runs_by_arm.items()
            if name == arm
        }
        rows = [
            r
            for (_, s), outcomes_of_run in outcomes.items()
            for r in rows_of(outcomes_of_run, plan.stage, s)
        ]
        if outcomes:
            records.results[arm] = Results("make it", plan.profile, rows, outcomes)
            records.curves[arm] = {seed: runs_by_arm[arm, seed][1] for _, seed in outcomes}
        for _, seed in outcomes:
            runs[arm][seed] = costs(runs_by_arm[arm, seed][1])
    head = {"command": "make it", **what_ran(plan), "seeds": list(plan.seeds), "runs": runs}
    head["registered"] = ""
    records.head = json.loads(json.dumps(head))
    return records


def load_summary(file: Path, out: Path) -> dict:
    """Return the summary of the records that a run of the plan `file` wrote to `out`."""
    plan = load_plan(file)
    return summary(plan, ExperimentRecords.load(out / f"{plan.name}.parquet"))
