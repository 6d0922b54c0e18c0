"""Ranks that are forked from a warm process: real servers, real forks, real signals.

Run: python -m pytest tests/test_training_warm.py
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from drlib import lab
from drlib.config import Config
from drlib.lab import launching
from drlib.training import build, stages, warm
from drlib.training.warm import WarmRanks, server
from tests.lab_programs import running, start, wait_for
from tests.real_examples import built, miniature

PROGRAM = """
import gc, json, os, sys, time
from drlib.training.ranks import Ranks

def main():
    out, mode = sys.argv[1:3]
    ranks = Ranks()
    sums = ranks.sum({"rank": ranks.rank + 1.0})
    with open(f"{out}.{ranks.rank}.tmp", "w") as file:
        told = sorted({"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"} & {*os.environ})
        said = {"pid": os.getpid(), "argv": sys.argv, "size": ranks.size, "environment": told}
        said |= {"kept": gc.get_freeze_count(), "collects": gc.isenabled()}
        json.dump(said | sums, file)
    os.replace(f"{out}.{ranks.rank}.tmp", f"{out}.{ranks.rank}")
    if mode == "fail" and ranks.rank == 1:
        sys.exit("error: rank 1 could not go on")
    if mode == "status":
        sys.exit(7)
    if mode == "end":
        sys.stdout.write(f"fine from rank {ranks.rank}\\n")
        return
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The folder that has the program; a server that knows it serves all tests that want one."""
    folder = tmp_path_factory.mktemp("programs")
    (folder / "warm_program.py").write_text(PROGRAM)
    yield folder
    for there in warm._servers:
        there.stop()
    warm._servers.clear()


@pytest.fixture
def program(place, tmp_path, monkeypatch):
    """(a function that forks it, what it wrote, what it printed)."""
    monkeypatch.setenv("PYTHONPATH", str(place), prepend=os.pathsep)
    log = tmp_path / "log"
    log.touch()

    def fork(mode, processes=2):
        there = server(launching._environment(), lab.ROOT)
        return WarmRanks(there, "warm_program", [tmp_path / "out", mode], processes, log)

    def wrote(rank):
        return json.loads((tmp_path / f"out.{rank}").read_text())

    return fork, wrote, log


def threads_of(there):
    """The names of a server's threads: a fork has the main one alone; jemalloc starts its own."""
    tasks = Path(f"/proc/{there.process.pid}/task").glob("*/comm")  # on Linux alone
    names = [task.read_text().strip() for task in tasks]
    return [name for name in names if not name.startswith("jemalloc")]


def is_there(wrote, rank):
    try:
        return bool(wrote(rank))
    except FileNotFoundError:
        return False


def test_ranks_meet_and_are_fresh_processes_of_one_server(program):
    fork, wrote, log = program
    for _ in range(2):
        ranks = fork("end")
        assert ranks.wait(60) == 0 and ranks.poll() == 0
        told = [wrote(rank) for rank in range(2)]
        assert [t["pid"] for t in told] == ranks.pids
        assert all(t["size"] == 2 and t["rank"] == 3.0 for t in told)  # 1 + 2
        assert all(t["argv"][0] == "warm_program" for t in told)
        assert told[0]["pid"] != told[1]["pid"]
        assert all(t["kept"] > 100_000 and t["collects"] for t in told)  # torch and transformers
    printed = sorted(log.read_text().splitlines())
    assert printed == ["fine from rank 0"] * 2 + ["fine from rank 1"] * 2
    assert len(warm._servers) == 1
    assert len(threads_of(warm._servers[0])) <= 1


def test_the_others_end_with_the_one_that_fails(program):
    fork, wrote, log = program
    ranks = fork("fail")
    assert ranks.wait(60) == 1
    assert log.read_text().splitlines()[0] == "error: rank 1 could not go on"
    assert [pid for pid in ranks.pids if running(pid)] == []


def test_a_status_is_the_programs_own(program):
    fork, *_ = program
    assert fork("status", 1).wait(60) == 7
    ranks = fork("sleep", 1)
    ranks.kill()
    assert ranks.wait(60) == -signal.SIGKILL


def test_whoever_waits_may_give_up(program):
    fork, wrote, _ = program
    ranks = fork("sleep")
    with pytest.raises(psutil.TimeoutExpired):
        ranks.wait(0.1)
    wait_for(lambda: is_there(wrote, 0) and is_there(wrote, 1))
    assert {p.pid for p in ranks.children()} == {*ranks.pids}
    ranks.interrupt()
    assert ranks.wait(60) != 0


def test_what_is_said_of_ranks_that_nobody_waited_for_is_passed_over(program):
    fork, *_ = program
    left = fork("sleep")
    left.kill()  # and nobody asks how they ended
    ranks = fork("end")
    assert ranks.wait(60) == 0 and not {*ranks.pids} & {*left.pids}


def test_another_environment_and_other_code_start_another_server(program, monkeypatch, tmp_path):
    fork, *_ = program
    assert fork("end", 1).wait(60) == 0
    first = warm._servers[0]
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "of no matter")
    assert server(launching._environment(), lab.ROOT) is first
    monkeypatch.setenv("DRLIB_SOMETHING", "1")
    second = server(launching._environment(), lab.ROOT)
    assert second is not first and first.process.poll() is not None
    edited = tmp_path / "package"
    edited.mkdir()
    (edited / "module.py").write_text("a = 1\n")
    monkeypatch.setattr(warm, "PACKAGE", edited)
    third = server(launching._environment(), lab.ROOT)
    assert third is not second
    assert server(launching._environment(), lab.ROOT) is third
    os.utime(edited / "module.py", ns=(0, time.time_ns()))
    assert server(launching._environment(), lab.ROOT) is not third


def test_a_server_that_died_is_replaced_and_its_ranks_end(program):
    fork, wrote, _ = program
    ranks = fork("sleep")
    wait_for(lambda: is_there(wrote, 0) and is_there(wrote, 1))
    warm._servers[0].process.kill()
    assert ranks.wait(60) == -signal.SIGTERM
    wait_for(lambda: not any(map(running, ranks.pids)))
    assert fork("end", 1).wait(60) == 0


def test_a_fork_does_not_use_its_parents_server(program):
    """What it wrote would mix with what its parent asks."""
    fork, *_ = program
    assert fork("end", 1).wait(60) == 0
    there = warm._servers[0]
    ground = warm._ground(launching._environment(), lab.ROOT, "local")
    assert there.fits(ground)
    there.owner += 1
    assert not there.fits(ground)
    there.owner -= 1


def test_another_trainer_starts_another_server(program, tmp_path):
    fork, wrote, log = program
    assert fork("end", 1).wait(60) == 0
    first = warm._servers[0]
    second = server(launching._environment(), lab.ROOT, "trl")
    assert second is not first and second is warm._servers[0]
    assert WarmRanks(second, "warm_program", [tmp_path / "out", "end"], 1, log).wait(60) == 0
    assert len(threads_of(second)) <= 1 and wrote(0)["size"] == 1


def test_one_alone_is_nobodys_rank(program):
    """accelerate would take RANK in the environment for a distributed run and wait for it."""
    fork, wrote, _ = program
    assert fork("end", 1).wait(60) == 0
    assert wrote(0)["environment"] == []
    assert fork("end", 2).wait(60) == 0
    assert "WORLD_SIZE" in wrote(0)["environment"]


@pytest.mark.parametrize(
    "settings, processes, device, can",
    [
        ({"trainer": "local", "engine": "local"}, 2, "", True),
        ({"trainer": "local", "engine": "local"}, 1, "nvidia0", True),
        ({"trainer": "trl", "engine": "hf"}, 1, "", True),
        ({"trainer": "trl", "engine": "hf"}, 1, "nvidia0", False),
        ({"trainer": "trl", "engine": "hf"}, 1, "kfd", False),
        ({"trainer": "trl", "engine": "hf"}, 2, "", False),
        ({"trainer": "trl", "engine": "vllm"}, 1, "", False),
    ],
)
def test_what_may_be_forked(settings, processes, device, can, tmp_path, monkeypatch):
    monkeypatch.setattr(warm, "DEVICES", tmp_path)
    monkeypatch.setattr(sys, "platform", "linux")
    for name in filter(None, ["null", "nvram", device]):
        (tmp_path / name).touch()
    assert warm.can_fork(SimpleNamespace(**settings), processes) is can


# ------------------------------------------------------------------ stages


def test_a_stage_has_the_bits_of_a_cold_start(tmp_path):
    """Two steps of pre-training from one untrained policy, forked and by torchrun."""
    config = Config.load("ci", cpt_steps=2)
    warm_runs, cold_runs = tmp_path / "warm", tmp_path / "cold"
    for name in ("world", "untrained"):
        lab.ensure(name, config, runs=warm_runs)
    shutil.copytree(warm_runs, cold_runs)
    lab.ensure("cpt", config, runs=warm_runs, processes=2)
    launching.launch(build.MODULE, stages.arguments("cpt", config, cold_runs), 2)
    folders = [stages.folder("cpt", config, runs) / "policy" for runs in (warm_runs, cold_runs)]
    hashes = [hashlib.sha256((f / stages.WEIGHTS).read_bytes()).hexdigest() for f in folders]
    assert hashes[0] == hashes[1]


def test_a_stage_of_trl_has_the_bits_of_a_cold_start(tmp_path):
    """Fine-tuning of a miniature model with adapters, forked and by `python -m`."""
    runs = {how: tmp_path / how for how in ("warm", "cold")}
    config = miniature(tmp_path, "llama")
    *before, sft = stages.needed("sft", config, runs["warm"])
    for name in before:
        built(name, config, runs["warm"])
    shutil.copytree(runs["warm"], runs["cold"])
    if not warm.can_fork(config, 1):
        pytest.skip("this machine has an accelerator: stages of TRL are not forked")
    lab.ensure(sft, config, runs=runs["warm"])
    launching.launch(build.MODULE, stages.arguments(sft, config, runs["cold"]))
    folders = [stages.folder(sft, config, where) / "policy" for where in runs.values()]
    hashes = [hashlib.sha256((f / stages.WEIGHTS).read_bytes()).hexdigest() for f in folders]
    assert hashes[0] == hashes[1]


def test_a_script_without_a_guard_is_run_once(tmp_path):
    """As Python's own fork server would not do it."""
    script = tmp_path / "script.py"
    script.write_text(
        "import pathlib\nfrom drlib import lab\nprint('once')\n"
        f"lab.ensure('world', 'ci', runs=pathlib.Path({str(tmp_path / 'runs')!r}))\n"
    )
    command = [sys.executable, str(script)]
    environment = os.environ | {"PYTHONPATH": str(lab.ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=180)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["once"]


@pytest.mark.parametrize("how", ["interrupted", "killed"])
def test_a_stage_leaves_nothing_running_and_goes_on(tmp_path, how):
    """Ctrl-C writes a checkpoint; a kernel that is killed takes server and ranks along."""
    runs = tmp_path / "runs"
    lab.ensure("untrained", "ci", runs=runs)
    code = (
        "import pathlib\nfrom drlib import lab\nfrom drlib.config import Config\n"
        "config = Config.load('ci', cpt_steps=100000)\n"
        f"lab.ensure('cpt', config, runs=pathlib.Path({str(runs)!r}), processes=2)\n"
    )
    config = Config.load("ci", cpt_steps=100000)
    partial = stages.folder("cpt", config, runs)
    partial = partial.with_name(partial.name + ".partial")
    kernel = start(code)
    wait_for(lambda: (partial / "metrics.jsonl").exists())
    family = psutil.Process(kernel.pid).children(recursive=True)
    assert len(family) >= 3  # the server and two ranks
    kernel.send_signal(signal.SIGINT if how == "interrupted" else signal.SIGKILL)
    kernel.communicate(timeout=120)
    wait_for(lambda: not any(running(p.pid) for p in family), 60)
    if how == "interrupted":
        assert (partial / "checkpoint.pt").exists()
