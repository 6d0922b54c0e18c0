"""Two programs that need the same stage at the same time, as two open notebooks do."""

import subprocess
import sys

from drlib.config import ROOT, Config
from drlib.training import build, data
from drlib.training.distributed import Ranks

# A program that says it is there and builds a slow stage, whose builder must find nobody's work.
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


def test_one_builds_and_the_other_waits_for_it(tmp_path, monkeypatch):
    both = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path), name],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in ("one", "other")
    ]
    said = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    lines = [line for out, _ in said for line in out.splitlines()]
    assert len([line for line in lines if line.startswith("built by")]) == 1
    (folder,) = {line for line in lines if not line.startswith("built by")}
    assert folder.startswith(str(tmp_path))

    def again(*_):
        raise AssertionError("it is there")

    # one that had looked before it was there, and starts only now
    monkeypatch.setattr(data, "build_world", again)
    assert str(build.build("world", Config.load("ci"), tmp_path, Ranks())) == folder
