"""Stages of a real model on several processes, sharded or killed, give the same weights.

Uses real gloo, real SIGKILL and, in one test, real torchrun. The other processes are forked from
one that has imported TRL (`tests/stage_processes.py`).

Run: python -m pytest tests/test_training_real_processes.py
"""

import importlib.util
import os
import signal
import subprocess
import sys

import pytest
from transformers.trainer_callback import CallbackHandler

from drlib.config import ROOT, Config
from drlib.training import build, stages
from drlib.training.build import MODULE, TORCHRUN
from drlib.training.run_folder import read_manifest, read_metrics
from tests.loop_examples import settings
from tests.real_examples import FEW, built, max_difference, miniature_config, weights
from tests.stage_processes import build_stage, start_stage
from tests.waiting import HANG_S, until

RL = "rl_random_reward"
ROUNDING = 5e-6  # different summation order
STEP_TOLERANCE = 0.05 * 1e-3  # AdamW amplifies rounding of gradients near zero
INPUTS = ("world", "untrained", "cpt", "demonstrations")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    return tmp_path_factory.mktemp("real models on processes")


def prepare_config(workspace, **changes) -> Config:
    """Return settings whose demonstrations and cpt stage are built, shared by this module."""
    config = miniature_config(workspace, "qwen3_moe", **FEW | changes)
    built("demonstrations", config, workspace / "runs")
    built("cpt", config, workspace / "runs")
    return config


def link_inputs(workspace, built_config, config, runs, names=INPUTS):
    """Link stages that are built in the workspace into another runs folder."""
    for name in names:
        path = stages.folder(name, config, runs)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(stages.folder(name, built_config, workspace / "runs"))


def run(stage, config, runs):
    """Build the stage with `config.processes` processes; return its folder."""
    result = build_stage(stage, config, runs, config.processes)
    assert result.returncode == 0, result.stderr[-3000:]
    return stages.folder(stage, config, runs)


def run_by_torchrun(stage, config, runs):
    """Build the stage with the torchrun command; return its folder."""
    how = (*TORCHRUN, f"--nproc-per-node={config.processes}", "-m", MODULE)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    result = subprocess.run(
        [sys.executable, *how, *stages.arguments(stage, config, runs)],
        cwd=ROOT,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return stages.folder(stage, config, runs)


@pytest.fixture(scope="module")
def single_process(workspace):
    """Return (settings, SFT folder, RL folder) built by one process."""
    config = prepare_config(workspace, processes=1)
    return config, built("sft", config, workspace / "runs"), built(RL, config, workspace / "runs")


def test_two_processes_match_one(single_process, workspace, tmp_path):
    """SFT rows and RL groups are split between processes; losses and gradients are summed."""
    config, sft, rl = single_process
    two = config.derive(processes=2)
    link_inputs(workspace, config, two, tmp_path)
    assert (
        max_difference(weights(run("sft", two, tmp_path) / "policy"), weights(sft / "policy"))
        < ROUNDING
    )
    folder = run_by_torchrun(RL, two, tmp_path)
    assert_same_steps(folder, rl)
    assert read_manifest(folder)["processes"] == 2


def assert_same_steps(folder, other):
    """Check loss, gradient norm and final weights."""
    assert max_difference(weights(folder / "policy"), weights(other / "policy")) < STEP_TOLERANCE
    for row, expected in zip(read_metrics(folder), read_metrics(other), strict=True):
        for name in ("accuracy", "rollouts", "live_groups"):
            assert row[name] == expected[name]
        assert row["loss"] == pytest.approx(expected["loss"], abs=ROUNDING)
        assert row["grad_norm"] == pytest.approx(expected["grad_norm"], abs=ROUNDING)


@pytest.mark.parametrize("rank", [0, 4], ids=["all weights", "adapters"])
def test_fsdp_over_two_processes_matches_one(workspace, tmp_path, rank):
    """Uses FSDP2 of accelerate on gloo: weights are sharded and the steps match."""
    config = prepare_config(workspace, processes=1, trainer__lora_rank=rank)
    sft, rl = built("sft", config, workspace / "runs"), built(RL, config, workspace / "runs")
    sharded = config.derive(processes=2, trainer__fsdp=True, plugins="tests.sharding_seen")
    link_inputs(workspace, config, sharded, tmp_path)
    folder = run("sft", sharded, tmp_path)
    assert max_difference(weights(folder / "policy"), weights(sft / "policy")) < ROUNDING
    seen = (folder / "sharded.txt").read_text().split()
    assert seen == ["DTensor"], "accelerate ignores the request on a CPU"
    assert_same_steps(run(RL, sharded, tmp_path), rl)


def build_until_killed():
    """Build the stage, but send SIGKILL to this process before the second step's update."""
    call = CallbackHandler.on_pre_optimizer_step

    def kill_at_second(self, args, state, control, **options):
        if state.global_step == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(self, args, state, control, **options)

    CallbackHandler.on_pre_optimizer_step = kill_at_second
    build.main()


@pytest.mark.parametrize(
    ("stage", "changes"),
    [("sft", {}), (RL, {}), (RL, {"engine.name": "local", "trainer.lora_rank": 0})],
    ids=["sft", "rl", "rl, an engine that must be synchronised again"],
)
def test_killed_stage_resumes_to_the_same_weights(workspace, tmp_path, stage, changes):
    config = prepare_config(workspace, processes=1, **changes)
    whole = built(stage, config, workspace / "runs")
    link_inputs(workspace, config, config, tmp_path, stages.list_ancestors(stage, config)[:-1])
    final = stages.folder(stage, config, tmp_path)
    partial = final.with_name(final.name + ".partial")
    child = start_stage(stage, config, tmp_path, tmp_path / "said", function=build_until_killed)
    child.join(200)
    assert child.exitcode == -signal.SIGKILL
    assert (partial / "trl/checkpoint-1/trainer_state.json").exists()
    assert not final.exists() and len(read_metrics(partial)) == 1
    folder = built(stage, config, tmp_path)
    assert max_difference(weights(folder / "policy"), weights(whole / "policy")) == 0
    rows, expected = read_metrics(folder), read_metrics(whole)
    assert [row["step"] for row in rows] == [row["step"] for row in expected]
    assert [row["loss"] for row in rows] == [row["loss"] for row in expected]


def test_sigterm_writes_a_checkpoint_and_a_message(single_process, workspace, tmp_path):
    short, *_ = single_process
    config = short.derive(sft__steps=50, trainer__checkpoint_every=50)
    link_inputs(workspace, short, config, tmp_path)
    final = stages.folder("sft", config, tmp_path)
    partial = final.with_name(final.name + ".partial")
    child = start_stage("sft", config, tmp_path, tmp_path / "said")
    until(lambda: (partial / "metrics.jsonl").exists())
    child.terminate()
    child.join(120)
    assert child.exitcode == 130
    assert "run the same command again" in (tmp_path / "said.err").read_text()
    assert list(partial.glob("trl/checkpoint-*/trainer_state.json")) and not final.exists()


def test_incomplete_checkpoint_is_ignored(single_process, workspace, tmp_path):
    """The trainer state is written last, so a checkpoint without it is incomplete."""
    config, sft, _ = single_process
    link_inputs(workspace, config, config, tmp_path)
    final = stages.folder("sft", config, tmp_path)
    broken = final.with_name(final.name + ".partial") / "trl" / "checkpoint-2"
    broken.mkdir(parents=True)
    (broken / "model.safetensors").write_bytes(b"half")
    folder = built("sft", config, tmp_path)
    assert max_difference(weights(folder / "policy"), weights(sft / "policy")) == 0


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({"engine.name": "server", "engine.url": "http://127.0.0.1:9/v1"}, "127.0.0.1:9"),
        ({"engine.name": "vllm"}, "vLLM is not installed"),
    ],
    ids=["a server", "vLLM"],
)
def test_missing_engine_gives_a_one_line_error(tmp_path, engine, words):
    """The command fails with its exit status before any step."""
    if engine.get("engine.name") == "vllm" and importlib.util.find_spec("vllm"):
        pytest.skip("vLLM is installed")
    config = settings(trainer__backend="trl", rl__steps=1, **engine)
    built("world", config, tmp_path)
    result = build_stage("rl", config, tmp_path)
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error:")]
    assert result.returncode == 1 and words in line and "Traceback" not in result.stderr
