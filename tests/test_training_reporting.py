"""`report_to`: TensorBoard and trackio log the values of metrics.jsonl.

Tests of a package that is not installed are skipped.

Run: python -m pytest tests/test_training_reporting.py
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys

import pytest
import torch

from drlib.config import ROOT, Config
from drlib.training import stages
from drlib.training.reporting import numbers
from drlib.training.run_folder import Interrupted, RunFolder, read_metrics
from tests.loop_examples import build_stages
from tests.waiting import HANG_S

EVERY = 2


def requires_package(package):
    is_installed = importlib.util.find_spec(package)
    return pytest.mark.skipif(not is_installed, reason=f"{package} is not installed")


class Descent:
    """Gradient descent on one weight.

    Args:
        stop_after: step after which SIGINT is raised.
        fail_in: step that raises an error.
    """

    def __init__(self, run, stop_after=0, fail_in=0):
        self.model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.ones_(self.model.weight)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.stop_after, self.die_in = stop_after, fail_in
        run.resume(self.model, self.optimizer)

    def __call__(self, step):
        if step + 1 == self.die_in:
            raise RuntimeError("killed")
        loss = self.model.weight.square().sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if step + 1 == self.stop_after:
            signal.raise_signal(signal.SIGINT)
        row = {"step": step + 1, "loss": loss.item(), "rewards": {"mean": step / 2, "none": None}}
        return row | {"words": "text", "list": [1], "odd": bool(step % 2)}


def run_descent(folder, steps, report_to="tensorboard", **how):
    """Run the loop in its folder until it ends, is interrupted or fails."""
    run = RunFolder(folder, {}, report_to=report_to)
    descent = Descent(run, **how)
    try:
        run.loop(descent, steps, EVERY)
    except (Interrupted, RuntimeError):
        return run
    run.finish({})
    return run


def events(folder):
    """Return name -> [(step, value)] as read by TensorBoard."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    return {n: [(e.step, e.value) for e in found.Scalars(n)] for n in found.Tags()["scalars"]}


def expected(folder):
    """Return name -> [(step, value)] from metrics.jsonl."""
    logged = {}
    for step, row in enumerate(read_metrics(folder), 1):
        for name, value in numbers(row):
            logged.setdefault(name, []).append((step, pytest.approx(value, rel=1e-6)))  # float32
    return logged


def test_numbers_flattens_metric_names():
    row = {"step": 3, "loss": 0.5, "ok": True, "stopped": "why", "by": {"h1": 1, "at": {"x": 2.0}}}
    row |= {"empty": None, "list": [1.0]}
    logged = {"loss": 0.5, "ok": 1.0, "by/h1": 1.0, "by/at/x": 2.0}
    assert dict(numbers(row)) == logged


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a runs folder with the inputs of pre-training."""
    folder = tmp_path_factory.mktemp("runs")
    build_stages(["world", "untrained"], Config.load("ci", processes=1), folder)
    return folder


@requires_package("tensorboard")
def test_stage_logs_its_metrics(runs):
    silent = Config.load("ci", pretrain__steps=2, processes=1)
    folder = build_stages(["cpt"], silent.derive(trainer__report_to="tensorboard"), runs)["cpt"]
    assert folder == stages.folder("cpt", silent, runs), "report_to changes no result"
    assert [[step for step, _ in points] for points in events(folder).values()] == [[1, 2]] * 7
    assert events(folder) == expected(folder)


@requires_package("tensorboard")
@pytest.mark.parametrize("how", [{"stop_after": 5}, {"fail_in": 6}, {"fail_in": 2}])
def test_resumed_run_logs_no_step_twice(tmp_path, how):
    interrupted = run_descent(tmp_path / "cut", 8, **how)
    assert events(interrupted.path) == expected(interrupted.path)
    if "stop_after" in how:  # an interrupted run keeps its last step; a killed one does not
        assert len(events(interrupted.path)["loss"]) == 5
    run_descent(tmp_path / "cut", 8)
    run_descent(tmp_path / "whole", 8)
    found = events(tmp_path / "cut")
    assert found == expected(tmp_path / "cut") == expected(tmp_path / "whole")
    assert [step for step, _ in found["rewards/mean"]] == [*range(1, 9)]
    assert found["rewards/mean"][-1] == (8, 3.5)


@requires_package("tensorboard")
def test_unreported_steps_are_logged_after_resuming(tmp_path):
    run_descent(tmp_path / "run", 6, report_to="none", stop_after=3)
    run_descent(tmp_path / "run", 6)
    assert events(tmp_path / "run") == expected(tmp_path / "run")


def test_report_to_none_writes_nothing(tmp_path):
    run = run_descent(tmp_path / "run", 3, report_to="none")
    assert sorted(p.name for p in run.final.iterdir()) == ["manifest.json", "metrics.jsonl"]


@pytest.mark.parametrize("package", ["tensorboard", "trackio"])
def test_missing_package_is_rejected_before_training(runs, package):
    """Run the command in a process that cannot import the package."""
    program = f"import sys; sys.modules[{package!r}] = None  # as where it is not installed\n"
    program += "from drlib.training import build\nbuild.main()"
    settings = [
        f"--{s}" for s in ("pretrain.steps=3", "processes=1", f"trainer.report_to={package}")
    ]
    done = subprocess.run(
        [sys.executable, "-c", program, "cpt", "--profile=ci", f"--runs={runs}", *settings],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    remedy = f"pip install {package}, or set trainer.report_to=none"
    message = f"error: trainer.report_to={package!r} needs the package {package}, "
    message += "which is not installed: "
    assert (done.returncode, done.stderr) == (1, f"{message}{remedy}\n")
    assert not stages.folder("cpt", Config.load("ci", pretrain__steps=3), runs).exists()
    assert not [*runs.rglob("*.partial")]


# Runs the loop twice, interrupted in between, and writes trackio's logs as JSON.
WITH_TRACKIO = """
import json, sys
from pathlib import Path
from tests.test_training_reporting import run_descent

folder = Path(sys.argv[1]) / "profile" / "run"
run_descent(folder, 8, "trackio", stop_after=5)
run_descent(folder, 8, "trackio")
import trackio
(run,) = trackio.Api().runs("profile")
found = [run.name, trackio.SQLiteStorage.get_logs("profile", run.name, run_id=run.id)]
Path(sys.argv[1], "found.json").write_text(json.dumps(found))  # trackio prints words of its own
"""


@requires_package("trackio")
def test_trackio_logs_each_step_once(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITH_TRACKIO, str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"TRACKIO_DIR": str(tmp_path / "trackio")},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stderr
    name, logs = json.loads((tmp_path / "found.json").read_text())
    logged = [(log["step"], log["loss"], log["rewards/mean"]) for log in logs]
    rows = read_metrics(tmp_path / "profile" / "run")
    assert name == "run" and len(rows) == 8
    assert logged == [(row["step"], row["loss"], row["rewards"]["mean"]) for row in rows]
