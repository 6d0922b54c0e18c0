"""A small plan on two nodes of a real local Ray cluster: the same runs and results as without.

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
    "frozen": {"rl.lr": 0.0},
    "broken": {"rl.agent": "reakt"},  # which the stage finds out
}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write_plan(tmp_path_factory.mktemp("sweep"), arms=ARMS, common=SMALL)


@pytest.fixture(scope="module")
def cluster():
    with two_nodes() as made:
        yield made


@pytest.fixture(scope="module")
def swept(file, cluster):
    """The exit status of the command; one of the runs was there before, and is not made again."""
    runs, out = file.parent / "runs", file.parent / "out"
    names = ("world", "rl", "evaluate_rl")
    made = build_stages(names, load_plan(file).config("frozen", 1), runs)
    before = (made["rl"] / MANIFEST).stat().st_mtime_ns
    where = [f"--runs={runs}", f"--out={out}", f"--ray={cluster.address}"]
    status = cli.main(["experiment", "run", str(file), *where])
    assert (made["rl"] / MANIFEST).stat().st_mtime_ns == before
    yield status


def test_every_run_is_there_and_a_failed_one_is_named(file, swept):
    plan, runs = load_plan(file), file.parent / "runs"
    assert swept == 1
    for arm, seed in plan.runs():
        folder = stages.folder("evaluate_rl", plan.config(arm, seed), runs)
        assert RunFolder.is_complete(folder) == (arm != "broken")
    assert not [*runs.glob(".plan-*")] and not ray.is_initialized()
    page = table(load_summary(file, file.parent / "out"))
    assert "- `broken`, seed 1: failed: rl (exit status 1): error: unknown agent 'reakt'" in page


def test_a_stage_that_runs_share_is_built_once(file, swept):
    worlds = [*(file.parent / "runs" / "ci").glob("world-*")]
    assert len(worlds) == 1


def test_the_results_are_those_of_runs_on_this_machine_alone(file, swept, tmp_path):
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


def test_a_cluster_that_is_too_small_is_named_and_one_that_is_not_there(file, cluster, tmp_path):
    large = write_plan(tmp_path, common={**SMALL, "processes": 2})
    with pytest.raises(ValueError, match="processes=2: no node .* CPUs, at most 1: set processes"):
        [*ray_runner.built_on_ray(load_plan(large), tmp_path / "runs", cluster.address)]
    with pytest.raises(ValueError, match=r'"ray start --head", and name it with --ray$'):
        [*ray_runner.built_on_ray(load_plan(file), tmp_path / "runs", "127.0.0.1:9")]


def test_a_runs_folder_that_the_hosts_do_not_share_is_said(file, cluster, tmp_path, monkeypatch):
    """The path means another place in each process, as one of a local disk does on each host."""
    monkeypatch.chdir(tmp_path)
    own = Path("/proc/self/cwd/runs")
    with ray_training.connect_to_ray(cluster.address):
        told = [reason for *_, reason in ray_runner.built_on_ray(load_plan(file), own)]
    assert len(told) == 6 and all("cannot see what this host writes to" in one for one in told)
