"""Two processes that need the same stage at the same time, such as two open notebooks."""

import subprocess
import sys

from drlib.config import ROOT, Config
from drlib.training import build, data
from drlib.training.distributed import Ranks

# Signals its start and builds a slow stage, whose builder must not find another builder's files.
PROGRAM = """
import sys, time
from pathlib import Path
from drlib.config import Config
from drlib.training import build, data
from drlib.training.distributed import Ranks
from drlib.training.run_folder import RunFolder

runs, name = Path(sys.argv[1]), sys.argv[2]

def slowly(config, path, ranks):
    run = RunFolder(path, {"stage": "world"}, ranks)
    (run.path / "work").open("x").close()
    while len([*runs.glob("*.is_here")]) < 2:
        time.sleep(0.05)
    time.sleep(1)
    run.finish({})
    print("built by", name)

data.build_world = slowly
(runs / f"{name}.is_here").touch()
print(build.build("world", Config.load("ci"), runs, Ranks()))
"""


def test_second_process_waits_for_the_build(tmp_path, monkeypatch):
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path), name],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in ("one", "other")
    ]
    outputs = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    lines = [line for out, _ in outputs for line in out.splitlines()]
    assert len([line for line in lines if line.startswith("built by")]) == 1
    (folder,) = {line for line in lines if not line.startswith("built by")}
    assert folder.startswith(str(tmp_path))

    def fail_if_called(*_):
        raise AssertionError("it is there")

    # a process that found the stage missing but starts only now
    monkeypatch.setattr(data, "build_world", fail_if_called)
    assert str(build.build("world", Config.load("ci"), tmp_path, Ranks())) == folder
