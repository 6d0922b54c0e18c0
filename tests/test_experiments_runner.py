"""A small plan run by the `drlib` command: it is killed and resumed, and one arm fails.

Run: python -m pytest tests/test_experiments_runner.py
"""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from drlib.config import ROOT
from drlib.experiments.plan import ExperimentPlan, load_plan
from drlib.experiments.records import ExperimentRecords
from drlib.experiments.runner import listing
from drlib.experiments.tables import table
from drlib.files import read_json_lines
from drlib.training import stages
from drlib.training.run_folder import MANIFEST, METRICS, RunFolder, read_metrics
from tests.experiment_examples import load_summary, write_plan
from tests.loop_examples import build_stages
from tests.waiting import HANG_S, until

# A reward that raises in training, but not for the example: its arm fails in the first step.
PLUGIN = """
from drlib.rewards.functions import REWARDS

@REWARDS.register("away")
def away():
    def reward(trajectory, task):
        if task.id == "check":
            return 0.0
        raise OSError("the judge is away")
    return reward
"""
STEPS = 3  # the plan is killed after the first
SMALL = {
    "plugins": "away_judge",
    "processes": 1,
    "rl.steps": STEPS,
    "rl.questions": 4,
    "rl.group": 4,
    "rl.warmup_steps": 0,
    "trainer.checkpoint_every": 1,
    "evaluation.questions": 4,
    "evaluation.samples": 2,
}
ARMS = {
    "ppo": {},
    "frozen": {"rl.lr": 1e-30},  # too small to change a weight
    "broken": {"rl.reward.name": "away"},
}
KILLED_RUN = ("frozen", 1)  # the run during which the plan is killed
EXISTING_RUNS = {("ppo", 0), ("ppo", 1), ("frozen", 0)}  # runs that existed before


@dataclass
class SweepStates:
    """States of the experiment: before it, when it was killed, and at the end."""

    plan: ExperimentPlan
    runs: Path
    out: Path
    file: Path
    environment: dict
    listing_text: str = ""
    before: dict = field(default_factory=dict)  # run -> modification times of its stages
    first_row: dict = field(default_factory=dict)  # of the killed run
    partial_summary: dict = field(default_factory=dict)  # when the plan was killed
    completed: subprocess.CompletedProcess | None = None

    def folder(self, name: str, arm: str, seed: int) -> Path:
        return stages.folder(name, self.plan.config(arm, seed), self.runs)

    def finished_at(self, arm: str, seed: int) -> list[int]:
        paths = [self.folder(name, arm, seed) / MANIFEST for name in ("rl", "evaluate_rl")]
        return [path.stat().st_mtime_ns for path in paths]

    def command(self) -> list[str]:
        given = [str(self.file), f"--runs={self.runs}", f"--out={self.out}"]
        return [sys.executable, "-m", "drlib.cli", "experiment", "run", *given]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Three runs exist; the plan is killed during a fourth, and started again."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "away_judge.py").write_text(PLUGIN)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        file = write_plan(folder, arms=ARMS, common=SMALL)
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        states = SweepStates(load_plan(file), folder / "runs", folder / "out", file, environment)
        for arm, seed in sorted(EXISTING_RUNS):
            names = ("world", "rl", "evaluate_rl")
            build_stages(names, states.plan.config(arm, seed), states.runs)
            states.before[arm, seed] = states.finished_at(arm, seed)
        states.listing_text = listing(states.plan, states.runs)
        _kill_in_the_middle(states)
        options = dict(cwd=ROOT, env=environment, capture_output=True, text=True, timeout=HANG_S)
        states.completed = subprocess.run(states.command(), **options)
        yield states


def _kill_in_the_middle(states: SweepStates) -> None:
    final = states.folder("rl", *KILLED_RUN)
    rows = final.with_name(final.name + ".partial") / METRICS
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    started = subprocess.Popen(states.command(), cwd=ROOT, env=states.environment, **silent)
    try:
        until(lambda: rows.exists() and rows.read_text().count("\n") > 0, process=started)
    finally:
        started.send_signal(signal.SIGKILL)
        started.wait()
    assert not RunFolder.is_complete(final)
    states.first_row = json.loads(rows.read_text().partition("\n")[0])
    states.partial_summary = load_summary(states.file, states.out)


def test_listing_shows_states_without_training(sweep):
    lines = sweep.listing_text.splitlines()
    assert lines == [
        "ppo, seed 0: finished",
        "frozen, seed 0: finished",
        "broken, seed 0: missing: rl, evaluate_rl",
        "ppo, seed 1: finished",
        "frozen, seed 1: missing: rl, evaluate_rl",
        "broken, seed 1: missing: rl, evaluate_rl",
    ]


def test_runs_share_earlier_stages(sweep):
    assert len([*(sweep.runs / "ci").glob("world-*")]) == 1
    trained = {sweep.folder("rl", arm, seed) for arm, seed in sweep.plan.runs()}
    assert len(trained) == 6
    assert {path.name for path in (sweep.runs / "ci").glob("rl-*") if path.suffix == ""} == {
        path.name for path in trained if "broken" not in str(path) and RunFolder.is_complete(path)
    }


def test_finished_runs_are_not_repeated(sweep):
    assert {at: sweep.finished_at(*at) for at in EXISTING_RUNS} == sweep.before


def test_killed_sweep_resumes_within_a_run(sweep):
    rows = read_metrics(sweep.folder("rl", *KILLED_RUN))
    assert [row["step"] for row in rows] == [*range(1, STEPS + 1)]
    assert rows[0] == sweep.first_row  # including its seconds: the step was not repeated


def test_partial_table_has_the_finished_runs(sweep):
    arms = {arm["arm"]: arm for arm in sweep.partial_summary["arms"]}
    assert arms["ppo"]["state"] == "finished" and arms["ppo"]["seeds"] == [0, 1]
    assert arms["frozen"]["state"] == "unfinished" and arms["frozen"]["seeds"] == [0]
    assert arms["frozen"]["asked"][0]["difference"]["seeds"] == [0]


def test_failed_arm_is_reported_with_its_reason(sweep):
    assert sweep.completed.returncode == 1
    reason = "failed: rl (exit status 1): OSError: the judge is away"
    assert sweep.completed.stdout.splitlines() == [
        "ppo, seed 0: finished",
        "frozen, seed 0: finished",
        f"broken, seed 0: {reason}",
        "ppo, seed 1: finished",
        "frozen, seed 1: finished",
        f"broken, seed 1: {reason}",
        str(sweep.out / "toy.parquet"),
    ]
    last = sweep.completed.stderr.splitlines()[-1]
    assert last == "error: broken, seed 1: rl (exit status 1): OSError: the judge is away"
    page = table(load_summary(sweep.file, sweep.out))
    assert "| `broken` | `rl.reward.name=away` | failed |" in page
    assert f"- `broken`, seed 1: {reason}" in page


def test_table_matches_the_run_folders(sweep):
    found = load_summary(sweep.file, sweep.out)
    arms = {arm["arm"]: arm for arm in found["arms"]}
    assert [arms[name]["state"] for name in ARMS] == ["finished", "finished", "failed"]
    for name in ("ppo", "frozen"):
        by_seed = []
        for seed in (0, 1):
            rows = read_json_lines(sweep.folder("evaluate_rl", name, seed) / "outcomes.jsonl")
            samples = [s for row in rows if row["kind"] == "search" for s in row["samples"]]
            by_seed.append(round(sum(samples) / len(samples), 5))
        assert arms[name]["asked"][0]["by_seed"] == by_seed
        trained = [read_metrics(sweep.folder("rl", name, seed)) for seed in (0, 1)]
        steps = [row for rows in trained for row in rows]
        cost = arms[name]["cost"]
        assert cost["rollouts"] == STEPS * 16
        generated = sum(row["generated"] * 16 for row in steps) / 2
        assert cost["generated_tokens"] == pytest.approx(generated, abs=0.1)
        assert cost["seconds"] == pytest.approx(sum(r["seconds"] for r in steps) / 2, abs=0.1)
        assert 0 < cost["rollout_seconds"] <= cost["seconds"]  # both rounded to a tenth of a second


def test_rows_and_curves_are_saved_in_one_file(sweep):
    records = ExperimentRecords.load(sweep.out / "toy.parquet")
    assert records.results["frozen"].seeds == [0, 1]
    assert records.results["frozen"].stages == ["rl"]
    assert {seed: len(rows) for seed, rows in records.curves["frozen"].items()} == {
        0: STEPS,
        1: STEPS,
    }
    assert (sweep.out / "toy.png").read_bytes().startswith(b"\x89PNG")
    assert "broken" not in records.results


def test_seeds_train_differently_on_the_same_questions(sweep):
    one, other = (read_metrics(sweep.folder("rl", "ppo", seed)) for seed in (0, 1))
    assert [row["loss"] for row in one] != [row["loss"] for row in other]
    outcomes = [
        read_json_lines(sweep.folder("evaluate_rl", "ppo", s) / "outcomes.jsonl") for s in (0, 1)
    ]
    assert [row["task"] for row in outcomes[0]] == [row["task"] for row in outcomes[1]]
