"""Budgets: the choice of the next claim by hand, and a small plan run, killed and resumed.

Run: python -m pytest tests/test_experiments_budget.py
"""

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from drlib import cli
from drlib.config import ROOT
from drlib.experiments.budget import (
    Candidate,
    next_candidate,
    parse_budget,
    probability_of_verdict,
)
from drlib.experiments.designs import Design
from drlib.experiments.plan import load_plan
from drlib.experiments.runner import is_finished
from drlib.experiments.tables import findings_of
from tests.experiment_examples import load_summary, write_plan
from tests.waiting import until

ONE_LOOK = Design(looks=(20,))
LOOKS = Design(looks=(8, 14, 20))


def test_next_claim_has_the_most_verdicts_per_hour():
    """0.9 / 3 = 0.3, 0.5 / 1 = 0.5, 1.2 / 2 = 0.6 for two claims, 0.1 / 0.1 = 1."""
    candidates = [
        Candidate("a", 8, 0.9, 3.0),
        Candidate("b", 14, 0.5, 1.0),
        Candidate("c", 8, 1.2, 2.0),
        Candidate("d", 8, 0.1, 0.1),
    ]
    order = []
    while candidates:
        best = next_candidate(candidates)
        order.append(best.name)
        candidates.remove(best)
    assert order == ["d", "c", "b", "a"]
    equal = [Candidate("x", 8, 0.5, 1.0), Candidate("y", 8, 1.0, 2.0)]
    assert next_candidate(equal).name == "x"
    free = Candidate("z", 8, 0.01, 0.0)  # all runs are finished
    assert next_candidate([*equal, free]) == free


def normal_pilot(mean, deviation, n=4000):
    """Return differences with exactly this mean and standard deviation."""
    values = np.random.default_rng(1).standard_normal(n)
    return mean + deviation * (values - values.mean()) / values.std(ddof=1)


@pytest.mark.parametrize("effect", [0.0, 0.05])
def test_chance_of_a_known_effect_is_the_power(effect):
    """With thousands of earlier seeds the effect is known: the chance is that of a verdict."""
    chance = probability_of_verdict([], ONE_LOOK, normal_pilot(effect, 0.07))
    # at the margin "no effect" has 5%, at zero a difference 5%, of which some are "no effect" too
    assert ONE_LOOK.power_at(effect) + 0.02 < chance < ONE_LOOK.power_at(effect) + 0.07


def test_chance_of_large_small_and_unknown_effects():
    large = probability_of_verdict([], LOOKS, [0.5, 0.55, 0.6])
    unclear = probability_of_verdict([], LOOKS, [0.05, 0.1, 0.0])
    assert large > 0.95 > 0.3 > unclear
    assert 0 < probability_of_verdict([], LOOKS) < 0.3
    # the sign is irrelevant, up to the draws
    opposite = probability_of_verdict([], LOOKS, [-0.5, -0.55, -0.6])
    assert opposite == pytest.approx(large, abs=0.03)


def test_chance_counts_the_seeds_at_hand():
    """Seven seeds at 0.3 almost decide the look at 8; without them as data it is less sure."""
    by_seed = [0.28, 0.32, 0.3, 0.29, 0.31, 0.3, 0.3]
    assert probability_of_verdict(by_seed, LOOKS) > 0.99
    # between two looks, the next one counts: at 14, an effect near zero has a chance that it has
    # not at 8
    none = [0.01, -0.01] * 4
    assert probability_of_verdict(none, LOOKS) > probability_of_verdict([], LOOKS, none) + 0.2


def test_budgets():
    assert parse_budget("8h") == 28800 and parse_budget("1.5m") == 90 and parse_budget("2s") == 2
    for text in ("8", "h", "-1h", "8 h", "8d"):
        with pytest.raises(ValueError, match="give a number with s, m or h, such as 8h"):
            parse_budget(text)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["findings"], "give --budget with the time to spend"),
        (["findings", "--budget", "x"], "--budget 'x'"),
        (["findings", "--budget", "1h", "--seeds", "0"], "omit the others"),
        (["clips", "--budget", "1h"], "clips has no design"),
    ],
)
def test_wrong_calls_have_a_reason(arguments, reason, capsys):
    assert cli.main(["experiment", "run", *arguments]) == 1
    assert reason in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------
# a real plan

SMALL = {
    "processes": 1,
    "rl.start": "figures/reference/tour/policy_sft",
    "rl.steps": 1,
    "rl.questions": 4,
    "rl.group": 4,
    "evaluation.questions": 4,
    "evaluation.samples": 2,
}
CLAIM = {"claim": "A tiny step changes nothing", "source": "nobody", "expected": "same"}
ARMS = {"ppo": {}, "frozen": {"rl.lr": 1e-30} | CLAIM}
DESIGN = {"looks": [3, 5], "margin": 0.9, "deviation": 0.01, "alpha": 0.2}


@dataclass
class Runs:
    """A repository with a committed plan, and what the command printed."""

    folder: Path
    file: Path
    uncommitted: str = ""
    no_time: str = ""
    killed: str = ""
    resumed: str = ""

    def command(self, budget: str) -> list[str]:
        given = [str(self.file), f"--budget={budget}", "--runs=runs", "--out=out"]
        return [sys.executable, "-m", "drlib.cli", "experiment", "run", *given]

    def options(self) -> dict:
        return {"cwd": self.folder, "env": os.environ | {"PYTHONPATH": str(self.folder)}}

    def printed(self, budget: str) -> str:
        done = subprocess.run(
            self.command(budget), capture_output=True, text=True, check=True, **self.options()
        )
        return done.stdout


@pytest.fixture(scope="module")
def budget_runs(tmp_path_factory):
    """The plan is refused before its commit, gets no time, is killed after a run and resumed."""
    folder = tmp_path_factory.mktemp("budget")
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("drlib", "figures/reference/tour/policy_sft"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    (folder / ".gitignore").write_text("runs/\nout/\n__pycache__/\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "code")
    states = Runs(folder, write_plan(folder, arms=ARMS, common=SMALL, design=DESIGN, seeds=SEEDS))
    states.uncommitted = states.printed("1h")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "register")
    states.no_time = states.printed("0s")
    with open(folder / "log", "w") as log:
        started = subprocess.Popen(states.command("1h"), stdout=log, **states.options())
        try:
            until(lambda: "seed 3: finished" in (folder / "log").read_text(), process=started)
        finally:
            started.send_signal(signal.SIGKILL)
            started.wait()
    states.killed = (folder / "log").read_text()
    states.resumed = states.printed("1h")
    return states


SEEDS = [3, 4, 5, 6, 7]


def git(folder, *arguments):
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True)


def test_uncommitted_plan_is_skipped(budget_runs):
    assert "toy: skipped: the plan is not committed" in budget_runs.uncommitted
    assert "finished" not in budget_runs.uncommitted


def test_no_run_starts_after_the_budget(budget_runs):
    assert budget_runs.no_time == "the budget is used: run the same command again to continue\n"


def test_look_is_resumed_and_decides_the_claim(budget_runs):
    first, *_ = budget_runs.killed.splitlines()
    assert first.startswith("toy: to 3 seeds, about 0.2 machine hours, 1.00 claims")
    lines = budget_runs.resumed.splitlines()
    done = set((budget_runs.killed + budget_runs.resumed).splitlines())
    expected = {f"{arm}, seed {seed}: finished" for arm in ARMS for seed in (3, 4, 5)}
    assert {line for line in done if line.endswith("finished")} == expected
    assert "ppo, seed 3: finished" not in lines  # not repeated
    assert lines[-2:] == [
        "toy: A tiny step changes nothing: reproduced",
        "no claim is left to decide",
    ]


def test_seeds_after_the_verdict_are_not_run(budget_runs):
    plan, runs = load_plan(budget_runs.file), budget_runs.folder / "runs"
    finished = {at for at in plan.runs() if is_finished(plan, *at, runs)}
    assert finished == {(arm, seed) for arm in ARMS for seed in (3, 4, 5)}


def test_finding_has_its_design_and_machine_hours(budget_runs):
    (finding,) = findings_of(load_summary(budget_runs.file, budget_runs.folder / "out")).values()
    assert finding["outcome"] == "reproduced" and finding["seeds"] == [3, 4, 5]
    assert finding["look"] == 3 and finding["design"]["looks"] == [3, 5]
    assert len(finding["registered"]) == 40 and finding["p_equivalence"] <= 0.2
    assert 0 < finding["machine_hours"] < 0.1
    assert finding["command"] == "drlib experiment run toy --profile ci"
