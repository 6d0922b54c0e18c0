"""Stages on two nodes of a real local Ray cluster.

The local loop and TRL reach torchrun's weights. Covers one-line errors, Ctrl-C and worker failure.

Run: python -m pytest tests/test_training_ray.py
"""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file
from waiting import until

from drlib.config import ROOT, Config
from drlib.training import build, ray_training, stages
from drlib.training.run_folder import (
    CHECKPOINT,
    RunFolder,
    RunFolderError,
    read_manifest,
    read_metrics,
)
from tests.loop_examples import build_stages
from tests.ray_cluster import left_over, two_nodes
from tests.waiting import HANG_S

if os.environ.get("RAY_ADDRESS"):
    pytest.skip("a cluster of the user's is configured", allow_module_level=True)
ray = pytest.importorskip("ray", reason="the cluster extra is not installed")

# A stage whose second worker fails while the first one waits for it.
PLUGIN = """
from drlib.training.stages import Stage, register

def fail(config, run_dir, ranks):
    if ranks.rank == 1:
        1 / 0
    ranks.barrier()

register(Stage("breaks", "breaking:fail"))
"""
STEPS = {"pretrain.steps": 24, "trainer.checkpoint_every": 1}
# Two steps of TRL's trainer with one group per process. The learning rate is high enough that the
# second step's rollouts depend on the first update.
TRL = {
    "trainer.backend": "trl",
    "rl.steps": 2,
    "rl.questions": 2,
    "rl.group": 4,
    "rl.lr": 1e-3,
    "rl.warmup_steps": 0,
    "rl.filter.overlong": "keep",
}
RL = "rl_random_reward"  # with exact rewards both groups may have zero variance


def settings(**changes):
    return Config.load("ci", **changes)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a runs folder with the inputs of pre-training, next to the plugin."""
    folder = tmp_path_factory.mktemp("shared")
    (folder / "breaking.py").write_text(PLUGIN)
    build_stages(["world", "untrained"], settings(processes=1), folder / "runs")
    return folder / "runs"


@pytest.fixture(scope="module")
def cluster(runs):
    how = {
        "PYTHONPATH": str(runs.parent),
        "GLOO_SOCKET_IFNAME": "lo",
        "TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S": "1",
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300",
    }
    with two_nodes(**how) as ray_cluster:
        yield ray_cluster


@pytest.fixture
def connected(cluster):
    with ray_training.connect_to_ray(cluster.address):
        yield ray


def weights(folder):
    return load_file(folder / "policy" / stages.WEIGHTS)


def equal(one, other):
    return one.keys() == other.keys() and all(one[n].equal(other[n]) for n in one)


def run_with_torchrun(stage, runs, folder, **changes):
    """Build the stage with two torchrun processes in a copy of `runs`; return its folder."""
    copy = folder / "runs"
    shutil.copytree(runs, copy, ignore=shutil.ignore_patterns(f"{stage}-*"))
    arguments = stages.arguments(stage, settings(**changes), copy)
    command = [sys.executable, *build.TORCHRUN, "--nproc-per-node=2", "-m", build.MODULE]
    usual = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    subprocess.run([*command, *arguments], cwd=ROOT, env=os.environ | usual, check=True)
    return stages.folder(stage, settings(**changes), copy)


def restore_sigint():
    """Restore the SIGINT handler, which background jobs and their children ignore."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def command(cluster, runs, *arguments, **how):
    """Start the train command as a separate process."""
    return subprocess.Popen(
        [sys.executable, "-m", "drlib.cli", "train", *arguments, f"--runs={runs}", "--profile=ci"]
        + [f"--address={cluster.address}"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=restore_sigint,
        **how,
    )


def leftovers(runs):
    return [*runs.glob(".hosts-*")]


@pytest.mark.parametrize(
    ("first", "arguments", "message"),
    [
        ("sys.modules['ray'] = None", (), 'ray is missing: pip install "drlib[cluster]".'),
        (
            "",
            ("--address=auto",),
            'no Ray cluster answers: start one with "ray start --head", and name it with --address',
        ),
        (
            "",
            ("--address=127.0.0.1:9",),
            "no Ray cluster answers at '127.0.0.1:9': start one with \"ray start --head\", "
            "and name it with --address",
        ),
    ],
)
def test_missing_ray_or_cluster_gives_a_one_line_error(runs, tmp_path, first, arguments, message):
    """Runs before this module's cluster starts, because "auto" would find it."""
    program = f"import sys; {first}\nfrom drlib.cli.train import main\nsys.exit(main(sys.argv[1:]))"
    command_line = [
        "cpt",
        "--workers=2",
        "--profile=ci",
        "--pretrain.steps=7",
        f"--runs={runs}",
        *arguments,
    ]
    done = subprocess.run(
        [sys.executable, "-c", program, *command_line],
        cwd=ROOT,
        env=os.environ | {"RAY_TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"error: {message}\n")


def test_two_nodes_match_torchrun_after_interruptions(runs, cluster, tmp_path):
    final = stages.folder("cpt", settings(**STEPS), runs)
    partial = RunFolder(final, stages.stage_settings("cpt", settings(**STEPS))).path
    arguments = ["cpt", *(f"--{name}={value}" for name, value in STEPS.items())]
    interrupted = command(cluster, runs, *arguments)
    until(lambda: (partial / CHECKPOINT).exists() and len(read_metrics(partial)) > 1)
    interrupted.send_signal(signal.SIGINT)
    out, stderr = interrupted.communicate(timeout=HANG_S)
    assert (interrupted.returncode, out) == (130, ""), stderr
    assert stderr.splitlines()[-1] == f"interrupted: {ray_training.RESUME}"
    assert not RunFolder.is_complete(final) and not leftovers(runs)
    done = len(read_metrics(partial))
    assert 2 <= done < 24
    resumed = command(cluster, runs, *arguments, "--restarts=1")
    until(lambda: len(read_metrics(partial)) > done + 1)
    workers = [p for p in psutil.process_iter(["name"]) if "RayTrainWorker" in p.name()]
    assert len(workers) == 2
    workers[1].kill()
    out, stderr = resumed.communicate(timeout=HANG_S)
    assert (resumed.returncode, out.splitlines()[-1]) == (0, str(final)), stderr
    assert not left_over(workers) and not leftovers(runs)
    assert [row["step"] for row in read_metrics(final)] == [*range(1, 25)]
    assert read_manifest(final)["processes"] == 2
    assert equal(weights(final), weights(run_with_torchrun("cpt", runs, tmp_path, **STEPS)))


def test_trl_on_two_nodes_is_bit_identical_to_torchrun(runs, connected, tmp_path):
    """Runs rollouts with tools, TRL's step and accelerate's processes in Ray workers."""
    folder = ray_training.train_on_ray(RL, settings(**TRL), runs, workers=2)
    other = run_with_torchrun(RL, runs, tmp_path, **TRL)
    assert read_manifest(folder)["processes"] == read_manifest(other)["processes"] == 2
    rows, expected = read_metrics(folder), read_metrics(other)
    for row in (*rows, *expected):
        assert row["live_groups"] > 0 and row["grad_norm"] > 0
        for name in [name for name in row if "seconds" in name or name == "step_time"]:
            del row[name]
    assert rows == expected and [row["step"] for row in rows] == [1, 2]
    assert equal(weights(folder), weights(other))
    start = load_file(stages.start_folder(RL, settings(**TRL)) / stages.WEIGHTS)
    assert not any(tensor.equal(start[name]) for name, tensor in weights(folder).items())
    assert not leftovers(runs)


def test_worker_failure_gives_a_one_line_error(runs, cluster):
    path = {"PYTHONPATH": str(runs.parent)}
    process = command(cluster, runs, "breaks", "--plugins=breaking", env=os.environ | path)
    out, stderr = process.communicate(timeout=HANG_S)
    message = "error: worker 1 failed: ZeroDivisionError: division by zero\n"
    assert (process.returncode, out, stderr) == (1, "", message)


def test_find_cause_of_worker_failures():
    from ray.train import WorkerGroupError

    echo = RuntimeError("[gloo] Connection closed by peer")
    fault = ValueError("give --x=1")
    assert ray_training._find_cause(WorkerGroupError("", {0: echo, 1: fault, 2: echo})) is fault
    cause = ray_training._find_cause(WorkerGroupError("", {0: echo, 1: KeyError("a\nb"), 2: fault}))
    assert (
        isinstance(cause, ray_training.WorkerFailed)
        and str(cause) == "worker 1 failed: KeyError: 'a\\nb'"
    )
    two_lines = RuntimeError("out of\n  memory")
    cause = ray_training._find_cause(WorkerGroupError("", {3: two_lines}))
    assert str(cause) == "worker 3 failed: RuntimeError: out of memory"


def test_unshared_runs_folder_is_rejected(runs, connected, monkeypatch):
    """The path differs in each process, like a local disk on each host."""
    monkeypatch.chdir(runs.parent)
    with pytest.raises(RunFolderError, match="cannot see what this host writes to /proc/self/cwd"):
        own = Path("/proc/self/cwd/runs")
        ray_training.train_on_ray("cpt", settings(pretrain__steps=5), own, workers=2)
    assert not stages.folder("cpt", settings(pretrain__steps=5), runs).exists()
    assert not leftovers(runs)


def test_invalid_requests_fail_before_workers_start(runs, connected, tmp_path):
    def error_message(stage, runs=runs, workers=2, **changes):
        with pytest.raises((ValueError, RunFolderError)) as fault:
            ray_training.train_on_ray(stage, settings(**changes), runs, workers=workers)
        return str(fault.value)

    assert [node["Resources"]["CPU"] for node in connected.nodes()] == [1, 1]
    assert error_message("cpt", workers=3, pretrain__steps=6) == "workers=3: the cluster has 2 CPUs"
    assert error_message("cpt", workers=0, pretrain__steps=6) == "workers=0: the cluster has 2 CPUs"
    assert error_message("world") == "stage 'world' takes one process: give --workers 1"
    assert "'untrained'" in error_message("cpt", runs=tmp_path)
    assert "sfd" in error_message("sfd")
    assert "untrained" in error_message("cpt", seed=3)


class SlowRay:
    """Fails to start some times, as Ray does on a busy host."""

    def __init__(self, failures, error=Exception):
        self.failures, self.error, self.calls = failures, error, []

    def init(self, **where):
        self.calls.append("init")
        if self.calls.count("init") <= self.failures:
            raise self.error("The current node timed out during startup.")

    def shutdown(self):
        self.calls.append("shutdown")


def test_a_start_that_takes_too_long_is_repeated():
    ray = SlowRay(2)
    ray_training._start_ray(ray, {})
    assert ray.calls == ["init", "shutdown", "init", "shutdown", "init"]
    with pytest.raises(ValueError, match="ray start --head"):
        ray_training._start_ray(SlowRay(3), {})
    other = SlowRay(1, RuntimeError)
    with pytest.raises(RuntimeError):
        ray_training._start_ray(other, {})
    assert other.calls == ["init"]
