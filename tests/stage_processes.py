"""Build stages in real processes, forked from a server that has imported torch.

A test stage takes one second, but a new Python process needs six to import torch, transformers and
TRL. The multiprocessing fork server imports them once. Arguments, environment, output, exit status,
session and SIGKILL behave as for the command. `python -m drlib.training.build` and torchrun
themselves are covered by one test each. `run_ranks` does the same for another function.
"""

import atexit
import multiprocessing
import os
import resource
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from drlib.training import build, stages

SERVER = multiprocessing.get_context("forkserver")
BUILDERS = [name for stage in stages.STAGES.values() for name in (stage.build, stage.trl) if name]
IMPORTED = {name.partition(":")[0] for name in BUILDERS}
SECONDS = 600  # time limit of a stage


@dataclass(frozen=True)
class Ended:
    """Result of the first process that failed, or else of the first, as from `subprocess.run`."""

    returncode: int
    stdout: str
    stderr: str


def build_stage(name, settings, runs: Path, processes: int = 1, room: int | None = None) -> Ended:
    """Build the stage with `processes` ranks, as torchrun would start them.

    Args:
        room: maximum file size in bytes, to simulate a full disk.
    """
    return run_ranks(build.main, _command(name, settings, runs), processes, room)


def run_ranks(
    function: Callable[[], None], command: list[str], processes: int, room: int | None = None
) -> Ended:
    """Call the function of a module in `processes` ranks, with `command` as its sys.argv."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [Path(folder, str(rank)) for rank in range(processes)]
        started = _start_ranks(function, command, ranks, room)
        for process in started:
            process.join(SECONDS)
        if any(process.is_alive() for process in started):
            for process in started:
                process.kill()
            raise AssertionError(f"{command} did not end in {SECONDS} s")
        failed = [rank for rank, process in enumerate(started) if process.exitcode]
        reported = failed[0] if failed else 0
        texts = (ranks[reported].with_suffix(kind).read_text() for kind in (".out", ".err"))
        return Ended(started[reported].exitcode, *texts)


def start_ranks(name, settings, runs: Path, outputs: list[Path], room=None) -> list:
    """Start one process for each path of captured output; they build the stage together."""
    return _start_ranks(build.main, _command(name, settings, runs), outputs, room)


def start_stage(
    name, settings, runs: Path, output: Path, place=None, room=None, function=build.main
):
    """Start a process that builds the stage (`multiprocessing.Process`).

    Args:
        output: path without suffix of the captured output files (.out and .err).
        place: environment variables of the rank.
        room: see `build_stage`.
        function: called with the command's sys.argv instead of its `main`.
    """
    return _start(function, _command(name, settings, runs), output, place, room)


def _start_ranks(function, command: list[str], outputs: list[Path], room) -> list:
    port, started = _free_port(), []
    for rank, output in enumerate(outputs):
        place = {"RANK": rank, "WORLD_SIZE": len(outputs), "MASTER_PORT": port}
        place |= {"LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": len(outputs)}
        place |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
        started.append(_start(function, command, output, place, room))
    return started


def _command(name, settings, runs: Path) -> list[str]:
    return [build.MODULE, *stages.arguments(name, settings, runs)]


def _start(function, command: list[str], output: Path, place=None, room=None):
    SERVER.set_forkserver_preload([__name__, *sorted(IMPORTED)])  # read by the first process
    environment = os.environ | {name: str(value) for name, value in (place or {}).items()}
    process = SERVER.Process(target=_run, args=(function, command, environment, output, room))
    process.start()
    return process


def _run(function, command: list[str], environment: dict[str, str], output: Path, room) -> None:
    """Call the function inside the process, as the program of the command."""
    os.setsid()
    for number, kind in ((1, ".out"), (2, ".err")):
        with open(output.with_suffix(kind), "wb") as file:
            os.dup2(file.fileno(), number)
    os.environ.clear()
    os.environ.update(environment)
    if room is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
    sys.argv = command
    try:
        function()
    finally:
        atexit._run_exitfuncs()  # multiprocessing skips the exit handlers


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
