"""A small plan on two nodes of a real local Ray cluster gives the same results as without Ray.

Run: python -m pytest tests/test_experiments_ray.py
"""

import os
from pathlib import Path

import pytest

from drlib import cli
from drlib.experiments import ray_runner as ray_runner
from drlib.experiments.plan import load_plan
from drlib.experiments.tables import table
from drlib.training import ray_training, stages
from drlib.training.run_folder import MANIFEST, RunFolder, read_metrics
from tests.experiment_examples import load_summary, write_plan
from tests.loop_examples import build_stages
from tests.ray_cluster import two_nodes

if os.environ.get("RAY_ADDRESS"):
    pytest.skip("a cluster of the user's is configured", allow_module_level=True)
ray = pytest.importorskip("ray", reason="the cluster extra is not installed")

SMALL = {
    "processes": 1,
    "rl.steps": 2,
    "rl.questions": 4,
    "rl.group": 4,
    "evaluation.questions": 3,
    "evaluation.samples": 2,
}
ARMS = {
    "ppo": {},
    "frozen": {"rl.lr": 1e-30},  # too small to change a weight
    "broken": {"rl.agent": "reakt"},  # fails when the stage starts
}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write_plan(tmp_path_factory.mktemp("sweep"), arms=ARMS, common=SMALL)


@pytest.fixture(scope="module")
def cluster():
    with two_nodes() as made:
        yield made


@pytest.fixture(scope="module")
def exit_status(file, cluster):
    """Return the exit status of the command; a run that existed before is not repeated."""
    runs, out = file.parent / "runs", file.parent / "out"
    names = ("world", "rl", "evaluate_rl")
    folders = build_stages(names, load_plan(file).config("frozen", 1), runs)
    before = (folders["rl"] / MANIFEST).stat().st_mtime_ns
    where = [f"--runs={runs}", f"--out={out}", f"--ray={cluster.address}"]
    status = cli.main(["experiment", "run", str(file), *where])
    assert (folders["rl"] / MANIFEST).stat().st_mtime_ns == before
    yield status


def test_runs_are_complete_and_failures_are_reported(file, exit_status):
    plan, runs = load_plan(file), file.parent / "runs"
    assert exit_status == 1
    for arm, seed in plan.runs():
        folder = stages.folder("evaluate_rl", plan.config(arm, seed), runs)
        assert RunFolder.is_complete(folder) == (arm != "broken")
    assert not [*runs.glob(".plan-*")] and not ray.is_initialized()
    page = table(load_summary(file, file.parent / "out"))
    assert "- `broken`, seed 1: failed: rl (exit status 1): error: unknown agent 'reakt'" in page


def test_shared_stages_are_built_once(file, exit_status):
    worlds = [*(file.parent / "runs" / "ci").glob("world-*")]
    assert len(worlds) == 1


def test_results_equal_runs_without_ray(file, exit_status, tmp_path):
    plan, runs = load_plan(file), file.parent / "runs"
    found = load_summary(file, file.parent / "out")
    arms = {arm["arm"]: arm for arm in found["arms"]}
    assert [arms[name]["state"] for name in ARMS] == ["finished", "finished", "failed"]
    assert arms["frozen"]["asked"][0]["difference"]["seeds"] == [0, 1]
    assert (file.parent / "out" / "toy.png").exists()
    config = plan.config("ppo", 1)
    here = build_stages(("world", "rl", "evaluate_rl"), config, tmp_path)
    outcomes = stages.folder("evaluate_rl", config, runs) / "outcomes.jsonl"
    assert outcomes.read_text() == (here["evaluate_rl"] / "outcomes.jsonl").read_text()
    rows = [read_metrics(folder) for folder in (stages.folder("rl", config, runs), here["rl"])]
    for row in (*rows[0], *rows[1]):
        del row["seconds"], row["rollout_seconds"]
    assert rows[0] == rows[1]


def test_too_small_and_missing_clusters_are_rejected(file, cluster, tmp_path):
    large = write_plan(tmp_path, common={**SMALL, "processes": 2})
    with pytest.raises(ValueError, match="processes=2: no node .* CPUs, at most 1: set processes"):
        [*ray_runner.built_on_ray(load_plan(large), tmp_path / "runs", cluster.address)]
    with pytest.raises(ValueError, match=r'"ray start --head", and name it with --ray$'):
        [*ray_runner.built_on_ray(load_plan(file), tmp_path / "runs", "127.0.0.1:9")]


def test_unshared_runs_folder_is_reported(file, cluster, tmp_path, monkeypatch):
    """The path resolves differently in each process, like a local disk on each host."""
    monkeypatch.chdir(tmp_path)
    own = Path("/proc/self/cwd/runs")
    with ray_training.connect_to_ray(cluster.address):
        reasons = [reason for *_, reason in ray_runner.built_on_ray(load_plan(file), own)]
    assert len(reasons) == 6 and all(
        "cannot see what this host writes to" in one for one in reasons
    )
