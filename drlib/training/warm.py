"""Stages in processes that are forked from a warm one: what every stage imports is imported once.

A stage in processes of its own imports torch and transformers before its first step, in torchrun
and in each rank: more than the work of the line's short stages. So the first stage that a program
builds starts a server, `python -m drlib.training.warm`, which imports what stages import and then
waits; ranks are forks of it. Each stage still has fresh processes, of which nothing is left behind,
and its numbers are to the bit those of a cold start. The server ends with the program that started
it, and the ranks with the server.

A fork has the imported code and the environment of its server. Where a file of the library or the
environment has changed since the server began, the next stage starts another one.

Python's own fork server (multiprocessing) would import the program's main module again in every
fork: a script that calls `lab.ensure` without a guard would run itself.

TRL's stages are forked too where they are one process on a machine without an accelerator: what
they import may ask for a GPU, and then a fork cannot use it. Left out: two stages at the same time
from one program (the second waits).
"""

import ctypes
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil

from drlib.startup import lasting_imports

PACKAGE = Path(__file__).resolve().parents[1]
OF_EVERY_LINE = ("drlib.training.build", "drlib.training.data", "drlib.evals.evaluate")
PRELOADED = {  # trainer -> what its stages import
    "local": (*OF_EVERY_LINE, *(f"drlib.training.{name}" for name in ("pretrain", "sft", "grpo"))),
    "trl": (*OF_EVERY_LINE, "drlib.training.sft_trl", "drlib.training.grpo_trl"),
}
SAMPLING = {"drlib.training.grpo", "drlib.evals.evaluate"}  # by the local engine, as a rule
ACCELERATORS = ("nvidia[0-9]*", "nvidiactl", "dxg", "kfd", "accel*", "davinci*", "xpu*")  # in /dev
DEVICES = Path("/dev")
NO_MATTER = {"PYTEST_CURRENT_TEST"}  # it changes from test to test, and no stage reads it
PR_SET_PDEATHSIG = 1  # linux/prctl.h
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
GRACE_S = 10.0  # for the ranks beside one that failed, as they may wait for it
POLL_S = 0.02

_servers: list["Server"] = []  # the one of this program, or none yet


def stop_with_parent() -> None:
    """In a child, first: SIGTERM when its parent dies (Linux), and SIGINT works.

    A shell's background job is started with it ignored, and would be killed instead of saving.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if LIBC is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def can_fork(config, processes: int) -> bool:
    """Whether a stage with these settings, on so many processes, does the same in forks."""
    if config.trainer == "local":
        return True
    has_accelerator = sys.platform != "linux" or any(
        device for name in ACCELERATORS for device in DEVICES.glob(name)
    )
    return processes == 1 and config.engine != "vllm" and not has_accelerator


class Server:
    """A process that has imported what the stages of a trainer import, and forks."""

    def __init__(self, environment: Mapping[str, str], cwd: Path, trainer: str):
        self.owner, self.ground = os.getpid(), _ground(environment, cwd, trainer)
        self.requests = 0  # so far; answers carry the number of theirs
        self.process = subprocess.Popen(
            [sys.executable, "-m", "drlib.training.warm", trainer],
            cwd=cwd,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            process_group=0,  # a terminal's Ctrl-C goes to the program that waits for the ranks
            preexec_fn=stop_with_parent,
        )

    def fits(self, ground: tuple) -> bool:
        """Whether it runs, is this process's own, and began with the same code and environment."""
        return self.owner == os.getpid() and self.process.poll() is None and self.ground == ground

    def fork(self, request: dict) -> int:
        """Ask for forks; returns the request's number."""
        self.requests += 1
        line = json.dumps(request | {"number": self.requests})
        self.process.stdin.write(line.encode() + b"\n")
        return self.requests

    def told(self, wait: bool = False) -> list:
        """What it has said of its forks since it was asked last; EOFError: it is dead.

        wait: until it says something. (Unbuffered: what a buffer holds, `select` does not see.)
        """
        lines = []
        while wait or select.select([self.process.stdout], [], [], 0)[0]:
            line = self.process.stdout.readline()
            if not line:
                raise EOFError("the server of warm processes is dead")
            lines.append(json.loads(line))
            wait = False
        return lines

    def stop(self) -> None:
        """End it, and with it the forks that still run."""
        if self.owner == os.getpid():
            self.process.terminate()
            self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def _ground(environment: Mapping[str, str], cwd: Path, trainer: str) -> tuple:
    """What a fork takes over: the environment, the library as it lies on the disk, and what of it
    is imported."""
    settings = sorted(item for item in environment.items() if item[0] not in NO_MATTER)
    sources = sorted((str(p), p.stat().st_mtime_ns) for p in PACKAGE.rglob("*.py"))
    return cwd, settings, sources, trainer


def server(environment: Mapping[str, str], cwd: Path, trainer: str = "local") -> Server:
    """The server whose forks are as new processes would be; one that is not is replaced."""
    if _servers and not _servers[0].fits(_ground(environment, cwd, trainer)):
        _servers.pop().stop()
    if not _servers:
        _servers.append(Server(environment, cwd, trainer))
    return _servers[0]


class WarmRanks:
    """`processes` ranks of `module.main()`, forked; used as one `subprocess.Popen` of them all.

    arguments: the module's, as on a command line. log: the file that takes what they print.
    returncode: when all have ended, 0 or the status of the first that failed, as Popen has it.
    """

    def __init__(
        self, server: Server, module: str, arguments: Sequence[str], processes: int, log: Path
    ):
        self._server, self._meeting = server, tempfile.TemporaryDirectory(prefix="drlib-ranks-")
        self.returncode: int | None = None
        self._ended: dict[int, int] = {}  # process id -> status, in the order of their ends
        self._killed_from: float | None = None
        command = [module, *map(str, arguments)]
        meeting = f"file://{self._meeting.name}/store"
        self._number = server.fork(
            {"command": command, "processes": processes, "log": str(log), "meeting": meeting}
        )
        self.pids: list[int] = []
        while not self.pids:
            self._listen(wait=True)

    def _listen(self, wait: bool = False) -> None:
        """Take in what the server says of these ranks; what it still says of earlier ones, for
        whose end nobody waited (Ctrl-C twice), is passed over."""
        for answer in self._server.told(wait):
            if answer["number"] == self._number:
                self.pids += answer.get("pids", [])
                self._ended |= dict(answer.get("ended", []))

    def poll(self) -> int | None:
        """None while one of them runs, else the status. Where one failed the others are ended:
        they would wait for it for ever."""
        if self.returncode is not None:
            return self.returncode
        try:
            self._listen()
        except EOFError:  # and the ranks with it
            self._ended = {pid: self._ended.get(pid, -signal.SIGTERM) for pid in self.pids}
        failed = [status for status in self._ended.values() if status]
        if len(self._ended) == len(self.pids):
            self.returncode = failed[0] if failed else 0
            self._meeting.cleanup()
        elif failed:
            self._end_the_others()
        return self.returncode

    def _end_the_others(self) -> None:
        if self._killed_from is None:
            self._killed_from = time.monotonic() + GRACE_S
            self._signal(signal.SIGTERM)
        elif time.monotonic() > self._killed_from:
            self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        for pid in set(self.pids) - {*self._ended}:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def wait(self, timeout: float | None = None) -> int:
        """The status, when all have ended; psutil.TimeoutExpired after `timeout` seconds."""
        until = time.monotonic() + (float("inf") if timeout is None else timeout)
        while self.poll() is None:
            if time.monotonic() > until:
                raise psutil.TimeoutExpired(timeout)
            time.sleep(POLL_S)
        return self.returncode

    def children(self, recursive: bool = True) -> list[psutil.Process]:
        """The ranks and what they started."""
        found = []
        for pid in self.pids:
            with suppress(psutil.NoSuchProcess):
                rank = psutil.Process(pid)
                found += [rank, *rank.children(recursive=recursive)]
        return found

    def interrupt(self) -> None:
        """Ask all to stop, as Ctrl-C does."""
        self._signal(signal.SIGINT)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)


def serve() -> list[str]:
    """Fork as asked on stdin until it ends; returns in a fork only: the command that it shall run.

    A request is a line; the answer is a line with its number and the forks' process ids, and then
    one for each that has ended, with its status.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        if request["command"][0] in SAMPLING:
            _load_loops()
        pids = []
        for rank in range(request["processes"]):
            pid = os.fork()
            if pid == 0:
                answers.close()
                _become(rank, request)
                return request["command"]
            pids.append(pid)
        number = request["number"]
        print(json.dumps({"number": number, "pids": pids}), file=answers, flush=True)
        for _ in pids:
            pid, status = os.wait()
            ended = [[pid, os.waitstatus_to_exitcode(status)]]
            print(json.dumps({"number": number, "ended": ended}), file=answers, flush=True)
    os._exit(0)


@cache
def _load_loops() -> None:
    """Once for all forks; where nothing is sampled, not at all."""
    from drlib.models.compiled_decoder import prepare

    prepare()


def _become(rank: int, request: dict) -> None:
    """What a program that starts this rank would have given it: one alone is started by Python, and
    is nobody's rank (accelerate would look for the others)."""
    stop_with_parent()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with open(request["log"], "ab") as log, open(os.devnull, "rb") as nothing:
        for stream, file in ((0, nothing), (1, log), (2, log)):
            os.dup2(file.fileno(), stream)
    if request["processes"] > 1:
        os.environ |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(request["processes"]),
            "LOCAL_WORLD_SIZE": str(request["processes"]),
            "DRLIB_RENDEZVOUS": request["meeting"],
        }
    sys.argv = request["command"]


def main() -> None:
    """The server; and, in its forks, the program that was asked for."""
    with lasting_imports():
        for name in PRELOADED[sys.argv[1]]:
            importlib.import_module(name)
    module, *_ = serve()
    importlib.import_module(module).main()


if __name__ == "__main__":
    main()
