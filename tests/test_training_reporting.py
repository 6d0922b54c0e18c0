"""`report_to`: what TensorBoard and trackio show of a run is what its metrics.jsonl says.

Run: python -m pytest tests/test_training_reporting.py
(those of a package that is not installed are skipped, by its name)
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

EVERY = 2


def needs(package):
    there = importlib.util.find_spec(package)
    return pytest.mark.skipif(not there, reason=f"{package} is not installed")


class Descent:
    """Steps of gradient descent on one weight; `stop_after` is a step that is interrupted, `die_in`
    one that breaks."""

    def __init__(self, run, stop_after=0, die_in=0):
        self.model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.ones_(self.model.weight)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.stop_after, self.die_in = stop_after, die_in
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


def descend(folder, steps, report_to="tensorboard", **how):
    """The loop in its run folder, until it ends, is interrupted or breaks."""
    run = RunFolder(folder, {}, report_to=report_to)
    take = Descent(run, **how)
    try:
        run.loop(take, steps, EVERY)
    except (Interrupted, RuntimeError):
        return run
    run.finish({})
    return run


def events(folder):
    """name -> [(step, value)], as TensorBoard itself reads it."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    return {n: [(e.step, e.value) for e in found.Scalars(n)] for n in found.Tags()["scalars"]}


def expected(folder):
    """The same, of metrics.jsonl."""
    shown = {}
    for step, row in enumerate(read_metrics(folder), 1):
        for name, value in numbers(row):
            shown.setdefault(name, []).append((step, pytest.approx(value, rel=1e-6)))  # float32
    return shown


def test_of_a_line_its_numbers_are_shown_under_plain_names():
    row = {"step": 3, "loss": 0.5, "ok": True, "stopped": "why", "by": {"h1": 1, "at": {"x": 2.0}}}
    row |= {"empty": None, "list": [1.0]}
    shown = {"loss": 0.5, "ok": 1.0, "by/h1": 1.0, "by/at/x": 2.0}
    assert dict(numbers(row)) == shown


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A runs folder with what pre-training needs."""
    folder = tmp_path_factory.mktemp("runs")
    build_stages(["world", "untrained"], Config.load("ci", processes=1), folder)
    return folder


@needs("tensorboard")
def test_a_stage_shows_the_lines_of_its_metrics(runs):
    silent = Config.load("ci", pretrain__steps=2, processes=1)
    made = build_stages(["cpt"], silent.derive(trainer__report_to="tensorboard"), runs)["cpt"]
    assert made == stages.folder("cpt", silent, runs), "where it is shown changes no result"
    assert [[step for step, _ in points] for points in events(made).values()] == [[1, 2]] * 7
    assert events(made) == expected(made)


@needs("tensorboard")
@pytest.mark.parametrize("how", [{"stop_after": 5}, {"die_in": 6}, {"die_in": 2}])
def test_a_resumed_run_shows_no_step_twice(tmp_path, how):
    cut = descend(tmp_path / "cut", 8, **how)
    assert events(cut.path) == expected(cut.path)
    if "stop_after" in how:  # an interrupted stage keeps what it did, a killed one goes back
        assert len(events(cut.path)["loss"]) == 5
    descend(tmp_path / "cut", 8)
    descend(tmp_path / "whole", 8)
    found = events(tmp_path / "cut")
    assert found == expected(tmp_path / "cut") == expected(tmp_path / "whole")
    assert [step for step, _ in found["rewards/mean"]] == [*range(1, 9)]
    assert found["rewards/mean"][-1] == (8, 3.5)


@needs("tensorboard")
def test_what_was_not_shown_before_the_kill_is_shown_after_it(tmp_path):
    descend(tmp_path / "run", 6, report_to="none", stop_after=3)
    descend(tmp_path / "run", 6)
    assert events(tmp_path / "run") == expected(tmp_path / "run")


def test_with_none_nothing_is_written(tmp_path):
    run = descend(tmp_path / "run", 3, report_to="none")
    assert sorted(p.name for p in run.final.iterdir()) == ["manifest.json", "metrics.jsonl"]


@pytest.mark.parametrize("package", ["tensorboard", "trackio"])
def test_a_missing_package_is_refused_before_the_first_step(runs, package):
    """The command itself, in a process in which the package cannot be found."""
    without = f"import sys; sys.modules[{package!r}] = None  # as where it is not installed\n"
    without += "from drlib.training import build\nbuild.main()"
    settings = [
        f"--{s}" for s in ("pretrain.steps=3", "processes=1", f"trainer.report_to={package}")
    ]
    done = subprocess.run(
        [sys.executable, "-c", without, "cpt", "--profile=ci", f"--runs={runs}", *settings],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    remedy = f"pip install {package}, or set trainer.report_to=none"
    said = f"error: trainer.report_to={package!r} needs the package {package}, "
    said += "which is not installed: "
    assert (done.returncode, done.stderr) == (1, f"{said}{remedy}\n")
    assert not stages.folder("cpt", Config.load("ci", pretrain__steps=3), runs).exists()
    assert not [*runs.rglob("*.partial")]


# The loop twice, interrupted in between; what trackio has then, as JSON.
WITH_TRACKIO = """
import json, sys
from pathlib import Path
from tests.test_training_reporting import descend

folder = Path(sys.argv[1]) / "profile" / "run"
descend(folder, 8, "trackio", stop_after=5)
descend(folder, 8, "trackio")
import trackio
(run,) = trackio.Api().runs("profile")
found = [run.name, trackio.SQLiteStorage.get_logs("profile", run.name, run_id=run.id)]
Path(sys.argv[1], "found.json").write_text(json.dumps(found))  # trackio prints words of its own
"""


@needs("trackio")
def test_trackio_has_each_step_once(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITH_TRACKIO, str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"TRACKIO_DIR": str(tmp_path / "trackio")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    name, logs = json.loads((tmp_path / "found.json").read_text())
    shown = [(log["step"], log["loss"], log["rewards/mean"]) for log in logs]
    rows = read_metrics(tmp_path / "profile" / "run")
    assert name == "run" and len(rows) == 8
    assert shown == [(row["step"], row["loss"], row["rewards"]["mean"]) for row in rows]
