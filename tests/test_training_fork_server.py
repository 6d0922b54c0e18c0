"""Stages built by forks of one warm process: isolation, failures, interrupts and ends.

Run: python -m pytest tests/test_training_fork_server.py
"""

import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from drlib.config import Config
from drlib.registry import load_plugins
from drlib.training import launch, stages
from drlib.training.launch import LaunchError, build_stage
from tests.loop_examples import build_stages
from tests.notebook_programs import running, wait_for
from tests.waiting import HANG_S

# A stage that reports its process and then behaves as the file `how` of the runs folder says.
PLUGIN = """
import json, os, signal, sys, time
from pathlib import Path
from drlib.training.run_folder import RunFolder
from drlib.training.stages import STAGES, Stage, register, stage_settings

STATE = []

def report(config, run_dir, ranks, name):
    STATE.append(name)
    here = run_dir.parents[1]
    how = (here / "how").read_text() if (here / "how").exists() else ""
    facts = {"pid": os.getpid(), "parent": os.getppid(), "state": STATE, "size": ranks.size,
             "sum": ranks.sum({"rank": ranks.rank + 1.0})["rank"],
             "threads": os.environ["OMP_NUM_THREADS"], "seen": os.environ.get("DRLIB_SEEN")}
    (here / f"{name}.{ranks.rank}").write_text(json.dumps(facts))
    print("hello from", name, flush=True)
    if how == "fail" and ranks.rank == ranks.size - 1:
        raise ValueError("this stage cannot be built")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how in ("wait", "fail"):
        try:
            time.sleep(600)
        except KeyboardInterrupt:
            (here / f"{name}.{ranks.rank}.saved").touch()
            sys.exit(130)
    RunFolder(run_dir, stage_settings(name, config), ranks).finish({"name": name})

for each in ("one", "two"):
    register(Stage(each, f"{__name__}:report", arguments={"name": each}), replace=True)
"""


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    """Register the stages here; stages import the plugin. A server serves several tests."""
    folder = tmp_path_factory.mktemp("plugin")
    (folder / "fork_plugin.py").write_text(PLUGIN)
    names = set(stages.STAGES)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", str(folder))
        load_plugins("fork_plugin")
        yield folder
    for name in set(stages.STAGES) - names:
        del stages.STAGES[name]
    sys.modules.pop("fork_plugin", None)
    while launch._fork_servers:
        launch._fork_servers.popitem()[1].stop()


@pytest.fixture
def place(tmp_path, plugin):
    """Return the folder of runs and logs; a stage behaves as its file `how` says."""
    return tmp_path


def config(**changes):
    return Config.load("ci", plugins="fork_plugin", **changes)


def report(place, name, rank=0):
    return json.loads((place / f"{name}.{rank}").read_text())


@pytest.mark.parametrize("processes", [1, 2])
def test_each_stage_has_new_processes_of_one_server(place, processes):
    for name in ("one", "two"):
        build_stage(name, config(), runs=place, processes=processes)
    found = [report(place, name, rank) for name in ("one", "two") for rank in range(processes)]
    (server,) = launch._fork_servers.values()
    assert {each["parent"] for each in found} == {server.pid}
    assert len({each["pid"] for each in found}) == 2 * processes
    assert all(len(each["state"]) == 1 and each["size"] == processes for each in found)
    assert {each["sum"] for each in found} == {sum(range(1, processes + 1))}
    assert {each["threads"] for each in found} == {"1"}
    logs = sorted((place / "logs").glob("two-*"))
    assert [log.read_text().count("hello from two") for log in logs] == [processes]


def test_result_is_that_of_the_stage_in_this_process(place):
    settings = config(pretrain__steps=2)
    forked = build_stage("cpt", settings, runs=place / "forked", processes=2)
    here = build_stages(("world", "untrained", "cpt"), settings.derive(processes=1), place / "here")
    names = sorted(path.relative_to(forked) for path in forked.rglob("*.safetensors"))
    assert names and all(
        (forked / name).read_bytes() == (here["cpt"] / name).read_bytes() for name in names
    )


@pytest.mark.parametrize(
    ("how", "processes", "status", "words"),
    [
        ("fail", 2, 1, "error: this stage cannot be built"),  # rank 0 waits and is ended
        ("kill", 1, -signal.SIGKILL, "killed by SIGKILL"),
    ],
)
def test_failure_is_reported_and_the_next_stage_works(place, how, processes, status, words):
    (place / "how").write_text(how)
    with pytest.raises(LaunchError, match=words) as caught:
        build_stage("one", config(), runs=place, processes=processes)
    assert caught.value.returncode == status
    assert not any(running(report(place, "one", rank)["pid"]) for rank in range(processes))
    (place / "how").unlink()
    assert (build_stage("one", config(), runs=place) / "done.json").parent.exists()


@pytest.mark.parametrize(
    ("changes", "devices", "expected"),
    [
        ({}, ["nvidia0"], True),
        ({"trainer.backend": "trl"}, [], True),
        ({"trainer.backend": "trl"}, ["null", "nvidia-uvm-tools"], True),
        ({"trainer.backend": "trl"}, ["nvidia0", "nvidiactl"], False),
        ({"trainer.backend": "trl"}, ["kfd"], False),
        ({"trainer.backend": "trl", "engine.name": "vllm"}, [], False),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="devices are searched in /dev")
def test_trl_forks_only_without_an_accelerator(tmp_path, monkeypatch, changes, devices, expected):
    for name in devices:
        (tmp_path / name).touch()
    monkeypatch.setattr(launch, "DEVICES", tmp_path)
    assert launch._can_fork(Config.load("ci", **changes)) == expected


def test_failed_start_of_the_server_is_in_the_log(place, monkeypatch):
    (place / "sitecustomize.py").write_text("raise SystemExit('a broken installation')")
    monkeypatch.setenv("PYTHONPATH", str(place), prepend=os.pathsep)
    with pytest.raises(LaunchError, match="a broken installation"):
        build_stage("one", config(), runs=place)


def test_changed_environment_or_code_needs_a_new_server(place, monkeypatch, tmp_path):
    build_stage("one", config(), runs=place)
    first = report(place, "one")
    monkeypatch.setenv("DRLIB_SEEN", "later")
    build_stage("two", config(), runs=place)
    second = report(place, "two")
    assert second["seen"] == "later" and first["seen"] is None
    assert second["parent"] != first["parent"]
    wait_for(lambda: not running(first["parent"]))
    (tmp_path / "package").mkdir()
    (tmp_path / "package/changed.py").touch()
    monkeypatch.setattr(launch, "PACKAGE", tmp_path / "package")
    build_stage("one", config(seed=1), runs=place)
    assert report(place, "one")["parent"] != second["parent"]


def test_second_stage_at_the_same_time_has_its_own_process(place):
    (place / "how").write_text("wait")
    thread = threading.Thread(
        target=lambda: pytest.raises(LaunchError, build_stage, "one", config(), runs=place)
    )
    thread.start()
    wait_for(lambda: (place / "one.0").exists())
    (place / "how").unlink()
    build_stage("two", config(), runs=place, processes=1)
    assert report(place, "two")["parent"] == os.getpid()
    os.kill(report(place, "one")["pid"], signal.SIGKILL)
    thread.join(30)
    assert not thread.is_alive()


def start_program(place):
    code = (
        "from pathlib import Path\n"
        "from drlib.config import Config\n"
        "from drlib.registry import load_plugins\n"
        "from drlib.training import launch\n"
        "load_plugins('fork_plugin')\n"
        f"launch.build_stage('one', Config.load('ci', plugins='fork_plugin'), "
        f"runs=Path({str(place)!r}), processes=2)\n"
        "input()\n"
    )
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # not in background jobs
    )


def processes_of(place):
    """Return the ids of the server and of both processes of the stage, once they are there."""
    files = [place / f"one.{rank}" for rank in range(2)]
    wait_for(lambda: all(file.exists() and file.read_text() for file in files))
    found = [report(place, "one", rank) for rank in range(2)]
    return [found[0]["parent"], *(each["pid"] for each in found)]


def test_ctrl_c_lets_the_stage_save_and_leaves_nothing(place):
    (place / "how").write_text("wait")
    program = start_program(place)
    pids = processes_of(place)
    program.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in program.communicate(timeout=HANG_S)[1].decode()
    assert not any(map(running, pids))
    assert all((place / f"one.{rank}.saved").exists() for rank in range(2))


@pytest.mark.parametrize("how", ["wait", ""])
def test_killed_program_stops_its_server(place, how):
    if sys.platform != "linux" and how:
        pytest.skip("PR_SET_PDEATHSIG is Linux's")
    (place / "how").write_text(how)
    program = start_program(place)
    server, *ranks = processes_of(place)
    program.kill()
    program.communicate()
    wait_for(lambda: not any(map(running, (server, *ranks))))
