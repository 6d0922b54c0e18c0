"""`drlib plan --here`: missing GPUs, vLLM and disk space, and the errors of TRL stages.

Uses the real disk, GPUs and vLLM of this machine.

Run: python -m pytest tests/test_training_plan_here.py
"""

import importlib.util
import subprocess
import sys
from importlib.metadata import requires

import pytest
import torch
from packaging.requirements import Requirement

from drlib.cli.plan import main
from drlib.config import ROOT, Config
from drlib.models.vllm_engine import VllmEngine
from drlib.training import stages
from drlib.training.distributed import gpu_fault
from drlib.training.planner import HUB, check_machine, check_vllm, plan
from tests.real_examples import miniature_config

NO_DISK = 10**19  # bytes, more than any disk


@pytest.mark.parametrize(
    ("processes", "gpus", "message"),
    [
        (4, 2, "processes=4: this host has 2 GPUs, and TRL trains on one each; set processes=2"),
        (2, 1, "processes=2: this host has 1 GPU, and TRL trains on one each; set processes=1"),
        (4, 0, "processes=4: this host has no GPU, and TRL trains on one each; start it where"),
        (2, 2, ""),
        (1, 8, ""),
    ],
)
def test_too_many_processes_give_a_one_line_error(processes, gpus, message):
    fault = gpu_fault(processes, gpus)
    assert fault.startswith(message) and bool(fault) == bool(message) and "\n" not in fault


def test_check_machine_for_gpu_profiles(tmp_path):
    """The messages equal those of the stages."""
    gpus = torch.cuda.device_count()
    expected = [fault] if (fault := gpu_fault(1, gpus)) else []
    if importlib.util.find_spec("vllm") is None:
        with pytest.raises(ModuleNotFoundError) as missing:
            VllmEngine("no/model")
        expected.append(str(missing.value))
    assert check_machine(Config.load("gpu1"), {}, tmp_path) == expected
    assert check_machine(Config.load("laptop"), {"metrics": 1000}, tmp_path) == []
    four = check_machine(Config.load("gpu8", engine__name="hf"), {}, tmp_path)
    assert four == ([fault] if (fault := gpu_fault(4, gpus)) else [])


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ("0.19.0", "vLLM 0.19.0 is installed, drlib needs 0.31.0: on a GPU"),
        ("0.31.0", ""),
        ("0.31.0+cu129", ""),
    ],
)
def test_wrong_vllm_version_gives_a_one_line_error(tmp_path, monkeypatch, found, message):
    """Only the package metadata is present, as after an upgrade."""
    folder = tmp_path / f"vllm-{found}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {found}\n")
    (folder / "top_level.txt").write_text("vllm\n")
    monkeypatch.syspath_prepend(tmp_path)
    fault = check_vllm()
    assert fault.startswith(message) and bool(fault) == bool(message) and "\n" not in fault


def test_trl_supports_the_required_vllm_version():
    extras = [Requirement(each) for each in requires("trl")]
    (specifier,) = {each.specifier for each in extras if each.name == "vllm"}
    assert specifier.contains("0.31.0"), "which is drlib's, by the test above"


def test_full_disk_gives_a_one_line_error(tmp_path):
    laptop, runs = Config.load("laptop"), tmp_path / "not" / "there"
    assert check_machine(laptop, {"final models": 1, HUB: 0}, runs) == []
    (line,) = check_machine(laptop, {"final models": NO_DISK, "metrics": 1}, runs)
    assert line.startswith(f"the run writes {NO_DISK / 2**30:.2f} GiB to {runs}, which has ")
    assert "GiB free" in line and "\n" not in line
    (line,) = check_machine(laptop, {"final models": 1, HUB: NO_DISK}, runs)
    assert "hub" in line.split(", which")[0], "the model goes to the hub's cache, not to runs/"
    assert not runs.exists()


def test_plan_here_command(capsys, tmp_path):
    assert main(["--profile=ci", "--here", f"--runs={tmp_path}"]) == 0
    assert capsys.readouterr().err == ""
    config = Config.load("gpu8")
    settings = ["--profile=gpu8", f"--runs={tmp_path}"]
    assert main(settings) == 0, "a plan without --here is no error"
    assert capsys.readouterr().err == ""
    lacks = check_machine(config, plan(config).disk, tmp_path)
    assert main([*settings, "--here"]) == bool(lacks)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(lacks)
    for line, expected in zip(lines, lacks):  # free space may change in between
        assert line.split(", which")[0] == "error: " + expected.split(", which")[0]


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_missing_vllm_fails_before_training(tmp_path):
    """Otherwise SFT, which needs no engine, would run for hours before RL fails."""
    config = miniature_config(
        tmp_path, "qwen3", engine__name="vllm", demonstrations__teacher="solver"
    )
    arguments = stages.arguments("rl", config, tmp_path / "runs")
    command = [sys.executable, "-m", "drlib.cli", "train", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"error: {check_vllm()}\n")
    assert not (tmp_path / "runs").exists()
