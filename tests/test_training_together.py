"""Two processes that need the same stage at the same time, such as two open notebooks."""

import multiprocessing
import time

from drlib.config import Config
from drlib.training import build, data
from drlib.training.distributed import Ranks
from drlib.training.run_folder import RunFolder
from tests.waiting import HANG_S

CONTEXT = multiprocessing.get_context("fork")  # without the imports of a new process


def build_slowly(runs, name, results):
    """Signal the start and build a slow stage, which must not find another builder's files."""

    def slowly(config, path, ranks):
        run = RunFolder(path, {"stage": "world"}, ranks)
        (run.path / "work").open("x").close()
        while len([*runs.glob("*.is_here")]) < 2:
            time.sleep(0.05)
        time.sleep(1)
        run.finish({})
        results.put(f"built by {name}")

    data.build_world = slowly
    (runs / f"{name}.is_here").touch()
    results.put(str(build.build("world", Config.load("ci"), runs, Ranks())))


def test_second_process_waits_for_the_build(tmp_path, monkeypatch):
    results = CONTEXT.Queue()
    processes = [
        CONTEXT.Process(target=build_slowly, args=(tmp_path, name, results))
        for name in ("one", "other")
    ]
    for process in processes:
        process.start()
    lines = [results.get(timeout=HANG_S) for _ in range(3)]
    for process in processes:
        process.join(100)
    assert [process.exitcode for process in processes] == [0, 0] and results.empty()
    assert len([line for line in lines if line.startswith("built by")]) == 1
    (folder,) = {line for line in lines if not line.startswith("built by")}
    assert folder.startswith(str(tmp_path))

    def fail_if_called(*_):
        raise AssertionError("it is there")

    # a process that found the stage missing but starts only now
    monkeypatch.setattr(data, "build_world", fail_if_called)
    assert str(build.build("world", Config.load("ci"), tmp_path, Ranks())) == folder
