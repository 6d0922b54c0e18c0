"""Processes that build a stage, for tests: real ones, forked from one that has imported torch.

A stage of the tests takes a second, and a fresh Python six before it begins: it imports torch,
transformers and TRL. Here multiprocessing's fork server has imported them once. All else is as when
the command is typed: arguments, environment, output, exit status, a session of its own, death by
SIGKILL. `python -m drlib.training.build` and torchrun themselves are left to one test each.
"""

import atexit
import multiprocessing
import os
import resource
import signal
import socket
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from drlib.training import build, stages

SERVER = multiprocessing.get_context("forkserver")
BUILDERS = [name for stage in stages.STAGES.values() for name in (stage.build, stage.trl) if name]
IMPORTED = {name.partition(":")[0] for name in BUILDERS}
SECONDS = 600  # that a stage may take


@dataclass(frozen=True)
class Ended:
    """Result of the first process that failed, or else of the first, as from `subprocess.run`."""

    returncode: int
    stdout: str
    stderr: str


def build_stage(name, settings, runs: Path, processes: int = 1, room: int | None = None) -> Ended:
    """The stage built by so many ranks, as torchrun would start them. room: the bytes that a file
    may have, as on a full disk."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [Path(folder, str(rank)) for rank in range(processes)]
        port = _free_port()
        started = []
        for rank, output in enumerate(ranks):
            place = {"RANK": rank, "WORLD_SIZE": processes, "MASTER_PORT": port}
            place |= {"LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": processes}
            place |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
            started.append(start_stage(name, settings, runs, output, place, room))
        for process in started:
            process.join(SECONDS)
        if any(process.is_alive() for process in started):
            for process in started:
                process.kill()
            raise AssertionError(f"{name} was not built in {SECONDS} s")
        failed = [rank for rank, process in enumerate(started) if process.exitcode]
        told = failed[0] if failed else 0
        texts = (ranks[told].with_suffix(kind).read_text() for kind in (".out", ".err"))
        return Ended(started[told].exitcode, *texts)


def start_stage(name, settings, runs: Path, output: Path, place=None, room=None):
    """A started process that builds the stage (`multiprocessing.Process`).

    output: the path, less .out and .err, of the files of what it prints. place: the variables that
    tell a rank where it stands. room: as in `build_stage`.
    """
    SERVER.set_forkserver_preload([__name__, *sorted(IMPORTED)])  # heard by the first process
    environment = os.environ | {name: str(value) for name, value in (place or {}).items()}
    arguments = stages.arguments(name, settings, runs)
    process = SERVER.Process(target=_run, args=(arguments, environment, output, room))
    process.start()
    return process


def _run(arguments: list[str], environment: dict[str, str], output: Path, room: int | None) -> None:
    """In the process: the command."""
    os.setsid()
    for number, kind in ((1, ".out"), (2, ".err")):
        with open(output.with_suffix(kind), "wb") as file:
            os.dup2(file.fileno(), number)
    os.environ.clear()
    os.environ.update(environment)
    if room is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
    sys.argv = [build.MODULE, *arguments]
    try:
        build.main()
    finally:
        atexit._run_exitfuncs()  # multiprocessing would leave without


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
