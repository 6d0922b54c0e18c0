"""A small plan that really runs, by the `drlib` command: it is killed, goes on, one arm fails.

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
from tests.waiting import until

# A reward that cannot be had: the arm that is rewarded by it crashes in its first step.
PLUGIN = """
from drlib.rewards.functions import REWARDS

@REWARDS.register("away")
def away():
    def reward(trajectory, task):
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
    "frozen": {"rl.lr": 0.0},
    "broken": {"rl.reward.name": "away"},
}
CUT = ("frozen", 1)  # the run in whose middle the plan is killed
GONE_ON = {("ppo", 0), ("ppo", 1), ("frozen", 0)}  # runs that were there before


@dataclass
class Swept:
    """States of the experiment: before it, when it was killed, and at the end."""

    plan: ExperimentPlan
    runs: Path
    out: Path
    file: Path
    environment: dict
    listed: str = ""
    before: dict = field(default_factory=dict)  # run -> when its stages were finished
    first_row: dict = field(default_factory=dict)  # of the run that was cut
    so_far: dict = field(default_factory=dict)  # plan.json then
    done: subprocess.CompletedProcess | None = None

    def folder(self, name: str, arm: str, seed: int) -> Path:
        return stages.folder(name, self.plan.config(arm, seed), self.runs)

    def finished_at(self, arm: str, seed: int) -> list[int]:
        paths = [self.folder(name, arm, seed) / MANIFEST for name in ("rl", "evaluate_rl")]
        return [path.stat().st_mtime_ns for path in paths]

    def command(self) -> list[str]:
        given = [str(self.file), f"--runs={self.runs}", f"--out={self.out}"]
        return [sys.executable, "-m", "drlib.cli", "experiment", "run", *given]


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Three runs are there; the plan is killed in the middle of a fourth, and started again."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "away_judge.py").write_text(PLUGIN)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        file = write_plan(folder, arms=ARMS, common=SMALL)
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        seen = Swept(load_plan(file), folder / "runs", folder / "out", file, environment)
        for arm, seed in sorted(GONE_ON):
            names = ("world", "rl", "evaluate_rl")
            build_stages(names, seen.plan.config(arm, seed), seen.runs)
            seen.before[arm, seed] = seen.finished_at(arm, seed)
        seen.listed = listing(seen.plan, seen.runs)
        _kill_in_the_middle(seen)
        how = dict(cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500)
        seen.done = subprocess.run(seen.command(), **how)
        yield seen


def _kill_in_the_middle(seen: Swept) -> None:
    final = seen.folder("rl", *CUT)
    rows = final.with_name(final.name + ".partial") / METRICS
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    started = subprocess.Popen(seen.command(), cwd=ROOT, env=seen.environment, **quiet)
    try:
        until(lambda: rows.exists() and rows.read_text().count("\n") > 0)
    finally:
        started.send_signal(signal.SIGKILL)
        started.wait()
    assert not RunFolder.is_complete(final)
    seen.first_row = json.loads(rows.read_text().partition("\n")[0])
    seen.so_far = load_summary(seen.file, seen.out)


def test_the_list_says_what_is_there_and_trains_nothing(swept):
    lines = swept.listed.splitlines()
    assert lines == [
        "ppo, seed 0: finished",
        "frozen, seed 0: finished",
        "broken, seed 0: missing: rl, evaluate_rl",
        "ppo, seed 1: finished",
        "frozen, seed 1: missing: rl, evaluate_rl",
        "broken, seed 1: missing: rl, evaluate_rl",
    ]


def test_arms_and_seeds_share_what_comes_before_them(swept):
    assert len([*(swept.runs / "ci").glob("world-*")]) == 1
    trained = {swept.folder("rl", arm, seed) for arm, seed in swept.plan.runs()}
    assert len(trained) == 6
    assert {path.name for path in (swept.runs / "ci").glob("rl-*") if path.suffix == ""} == {
        path.name for path in trained if "broken" not in str(path) and RunFolder.is_complete(path)
    }


def test_what_is_finished_is_not_trained_again(swept):
    assert {at: swept.finished_at(*at) for at in GONE_ON} == swept.before


def test_a_killed_sweep_goes_on_in_the_middle_of_a_run(swept):
    rows = read_metrics(swept.folder("rl", *CUT))
    assert [row["step"] for row in rows] == [*range(1, STEPS + 1)]
    assert rows[0] == swept.first_row  # its seconds too: the step was not taken again


def test_when_it_was_killed_the_table_had_what_was_there(swept):
    arms = {arm["arm"]: arm for arm in swept.so_far["arms"]}
    assert arms["ppo"]["state"] == "finished" and arms["ppo"]["seeds"] == [0, 1]
    assert arms["frozen"]["state"] == "unfinished" and arms["frozen"]["seeds"] == [0]
    assert arms["frozen"]["asked"][0]["difference"]["seeds"] == [0]


def test_a_failed_arm_is_named_with_its_reason_and_the_others_are_there(swept):
    assert swept.done.returncode == 1
    reason = "failed: rl (exit status 1): OSError: the judge is away"
    assert swept.done.stdout.splitlines() == [
        "ppo, seed 0: finished",
        "frozen, seed 0: finished",
        f"broken, seed 0: {reason}",
        "ppo, seed 1: finished",
        "frozen, seed 1: finished",
        f"broken, seed 1: {reason}",
        str(swept.out / "toy.parquet"),
    ]
    page = table(load_summary(swept.file, swept.out))
    assert "| `broken` | `rl.reward.name=away` | failed |" in page
    assert f"- `broken`, seed 1: {reason}" in page


def test_the_table_is_of_the_runs_in_the_runs_folder(swept):
    found = load_summary(swept.file, swept.out)
    arms = {arm["arm"]: arm for arm in found["arms"]}
    assert [arms[name]["state"] for name in ARMS] == ["finished", "finished", "failed"]
    for name in ("ppo", "frozen"):
        by_seed = []
        for seed in (0, 1):
            rows = read_json_lines(swept.folder("evaluate_rl", name, seed) / "outcomes.jsonl")
            samples = [s for row in rows if row["kind"] == "search" for s in row["samples"]]
            by_seed.append(round(sum(samples) / len(samples), 5))
        assert arms[name]["asked"][0]["by_seed"] == by_seed
        trained = [read_metrics(swept.folder("rl", name, seed)) for seed in (0, 1)]
        steps = [row for rows in trained for row in rows]
        cost = arms[name]["cost"]
        assert cost["rollouts"] == STEPS * 16
        made = sum(row["generated"] * 16 for row in steps) / 2
        assert cost["generated_tokens"] == pytest.approx(made, abs=0.1)
        assert cost["seconds"] == pytest.approx(sum(r["seconds"] for r in steps) / 2, abs=0.1)
        assert 0 < cost["rollout_seconds"] <= cost["seconds"]  # both to a tenth of a second


def test_rows_and_curves_are_kept_in_one_file(swept):
    records = ExperimentRecords.load(swept.out / "toy.parquet")
    assert records.results["frozen"].seeds == [0, 1]
    assert records.results["frozen"].stages == ["rl"]
    assert {seed: len(rows) for seed, rows in records.curves["frozen"].items()} == {
        0: STEPS,
        1: STEPS,
    }
    assert (swept.out / "toy.png").read_bytes().startswith(b"\x89PNG")
    assert "broken" not in records.results


def test_another_seed_is_another_training_and_asked_the_same(swept):
    one, other = (read_metrics(swept.folder("rl", "ppo", seed)) for seed in (0, 1))
    assert [row["loss"] for row in one] != [row["loss"] for row in other]
    asked = [
        read_json_lines(swept.folder("evaluate_rl", "ppo", s) / "outcomes.jsonl") for s in (0, 1)
    ]
    assert [row["task"] for row in asked[0]] == [row["task"] for row in asked[1]]
