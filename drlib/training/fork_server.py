"""Fork the processes of stages from one that has imported torch, transformers and TRL.

These imports take four to eight seconds per process, longer than the short stages of the tour. The
first stage that a program builds starts `python -m drlib.training.fork_server FOLDER BACKEND`,
which imports them once. Each stage still has its own processes, so nothing of one stage is left for
the next.

Requests are files of the folder, written by `launch.ForkServer`: the server forks the processes of
`0.json`, creates `0.done` when all of them have succeeded, and waits for `1.json`. It exits with
the status of the first process that fails, and when its parent has ended.

Not used for TRL on a machine with an accelerator: its imports may initialise the device, which a
fork cannot use.
"""

import importlib
import json
import os
import signal
import sys
import time
from itertools import count
from pathlib import Path

from drlib.startup import freeze_imports
from drlib.training import build, stages
from drlib.training.launch import stop_with_parent

POLL_S = 0.05
# from SIGTERM to SIGKILL: a process that waits for a failed one cannot save; one whose program has
# ended saves a large model
FAILED_GRACE_S = 10.0
ENDED_GRACE_S = 60.0


def serve(folder: Path) -> list[str] | None:
    """Fork processes on request; return the arguments of its stage in a fork, None in the server.

    Raises:
        SystemExit: a process failed, or the parent has ended.
    """
    parent = os.getppid()
    for number in count():
        request = folder / f"{number}.json"
        while not request.exists():
            if os.getppid() != parent:
                return None
            time.sleep(POLL_S)
        asked = json.loads(request.read_text(encoding="utf-8"))
        ranks = set()
        for rank in range(asked["processes"]):
            process = os.fork()
            if process == 0:
                _become_rank(asked, rank, folder / f"{number}.rendezvous")
                return asked["arguments"]
            ranks.add(process)
        _wait(ranks, parent)
        (folder / f"{number}.done").touch()
    return None


def _become_rank(asked: dict, rank: int, rendezvous: Path) -> None:
    """Make this fork equal to a new process with the environment, output and signals of a rank."""
    stop_with_parent()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    log = os.open(asked["log"], os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log, stream)
    size = asked["processes"]
    if size > 1:
        os.environ |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(size),
            "DRLIB_RENDEZVOUS": f"file://{rendezvous}",
        }


def _wait(ranks: set[int], parent: int) -> None:
    """Wait for all processes; if one fails or the parent ends, end the others and exit."""
    status = 0
    while ranks:
        process, code = os.waitpid(-1, os.WNOHANG)
        if process:
            ranks.discard(process)
            status = status or os.waitstatus_to_exitcode(code)
        elif status:
            _end(ranks, FAILED_GRACE_S)
        elif os.getppid() != parent:
            status = 1
            _end(ranks, ENDED_GRACE_S)
        else:
            time.sleep(POLL_S)
    if status < 0:  # killed by a signal: end in the same way
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    if status:
        sys.exit(status)


def _end(ranks: set[int], grace_s: float) -> None:
    """Send SIGTERM to the processes, and SIGKILL to those that run after `grace_s`."""
    for process in ranks:
        os.kill(process, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline:
        if all(os.waitid(os.P_PID, each, os.WEXITED | os.WNOHANG | os.WNOWAIT) for each in ranks):
            return
        time.sleep(POLL_S)
    for process in ranks:
        os.kill(process, signal.SIGKILL)


def main() -> None:
    """Import what the stages import, then serve."""
    folder, backend = sys.argv[1:]
    with freeze_imports():
        for stage in stages.STAGES.values():
            builder = (stage.trl if backend == "trl" else "") or stage.build
            importlib.import_module(builder.partition(":")[0])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the stage
    arguments = serve(Path(folder))
    if arguments is not None:
        sys.argv = [build.MODULE, *arguments]
        build.main()


if __name__ == "__main__":
    main()
