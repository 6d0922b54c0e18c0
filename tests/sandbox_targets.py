"""Targets of the hostile suites, and checks that they are unchanged.

The tests plant files, a process and listening sockets. File modes permit access (pytest's own
folders do not), so that only the sandbox prevents it.
"""

import ctypes
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import zipfile
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from drlib.sandbox import Sandbox, probe, template_process
from drlib.sandbox.selftest import LEVELS
from tests.greedy_cases import ENDLESS, GREEDY
from tests.hostile_cases import NETWORK, POWERS, PROCESSES, REPOSITORY_CANARY
from tests.hostile_files import FILES
from tests.odd_cases import FORGED, ODD, WORKS

CANARY, BREACH = "canary-7f3a91", "breach-52c8d0"
TOKEN = f"drlib-test-{os.getpid()}"  # part of every name that a case could leave behind
KEY = 0x5D000000 + os.getpid()
REACHING = PROCESSES + FILES + NETWORK + POWERS
OTHERS = ENDLESS + GREEDY + ODD + FORGED + WORKS
CASES = {case.name: case for case in REACHING + OTHERS}
BOUND = 100_000  # characters of output that the suites keep
HERE = probe().level


def skip_without(level: str) -> None:
    if LEVELS.index(HERE) < LEVELS.index(level):
        pytest.skip(f"isolation here is {HERE}:\n{probe().table()}")


def sandbox_at(level: str, **arguments) -> Sandbox:
    """Start a sandbox at exactly this level while a secret is in the environment."""
    found = probe() if level == HERE else probe().without("namespaces")
    os.environ["DRLIB_TEST_SECRET"] = CANARY
    try:
        sandbox = Sandbox(found=found, **arguments)
    finally:
        del os.environ["DRLIB_TEST_SECRET"]
    assert sandbox.isolation == level
    return sandbox


@contextmanager
def planted_in(folder):
    """Yield the path of a secret file in a folder."""
    with tempfile.NamedTemporaryFile(prefix=f".{TOKEN}-", dir=folder) as file:
        file.write(CANARY.encode())
        file.flush()
        yield file.name


class Places:
    """A secret file, other readable files, a process and listening sockets."""

    def __init__(self, stack: ExitStack) -> None:
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self.secret = self.folder / "secret"
        self.secret.write_text(CANARY)
        (self.folder / "module.py").write_text("x = 1")
        with zipfile.ZipFile(self.folder / "z.zip", "w") as file:
            file.writestr("inside.py", "x = 1")
        with sqlite3.connect(self.folder / "base") as base:
            base.execute("create table t (x)")
        base.close()
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", 0))
        self.abstract, self.named = (socket.socket(socket.AF_UNIX) for _ in range(2))
        self.abstract.bind(f"\0{TOKEN}-planted")
        self.named.bind(str(self.folder / "socket"))
        for endpoint in self.listeners():
            stack.enter_context(endpoint).setblocking(False)
        self.abstract.listen()
        self.named.listen()
        for path in (self.folder, *self.folder.iterdir()):
            path.chmod(0o777 if path == self.folder or path.name == "socket" else 0o666)
        self.home = stack.enter_context(planted_in(Path.home()))
        self.tmp = stack.enter_context(planted_in(tempfile.gettempdir()))
        self.victim = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(3600)", CANARY],
            cwd=self.folder,
            env={"SECRET": CANARY},
        )
        stack.callback(lambda: (self.victim.kill(), self.victim.wait()))
        self.before = self.state()

    def listeners(self):
        return self.tcp, self.udp, self.abstract, self.named

    def fill(self, code: str) -> str:
        """Insert the names of the targets into a program."""
        values = {
            "FOLDER": self.folder,
            "SECRET": self.secret,
            "SIZE": len(CANARY),
            "HOME": self.home,
            "TMP": self.tmp,
            "REPO": Path(__file__).resolve().parents[1],
            "KEY": KEY,
            "PORT": self.tcp.getsockname()[1],
            "UDP": self.udp.getsockname()[1],
            "ABSTRACT": f"{TOKEN}-planted",
            "TOKEN": TOKEN,
            "PARENT": os.getpid(),
            "VICTIM": self.victim.pid,
            "STDLIB": os.path.dirname(os.__file__),
            "BREACH": BREACH,
        }
        for name, value in values.items():
            code = code.replace(f"<{name}>", str(value))
        return code

    def state(self):
        """Return everything that a case could change, comparable."""
        found = [
            (p.name, s.st_mode, s.st_uid, s.st_size, s.st_mtime_ns, s.st_nlink)
            for p in sorted(self.folder.iterdir())
            for s in [p.stat()]
        ]
        process = psutil.Process(self.victim.pid)
        return (
            self.secret.read_text(),
            found,
            self.victim.poll(),
            process.nice(),
            process.status() == psutil.STATUS_STOPPED,
            os.getpriority(os.PRIO_PROCESS, 0),
            os.sched_getaffinity(0),
        )

    def check(self) -> None:
        """Check that nothing has changed and no socket received data."""
        assert self.state() == self.before
        for endpoint in self.listeners():
            with pytest.raises(BlockingIOError):
                endpoint.recv(1) if endpoint is self.udp else endpoint.accept()


def remaining(before: dict) -> list[str]:
    """Return processes, folders, shared memory and sockets that did not exist `before`."""
    left = []
    for process in psutil.Process().children(recursive=True):
        if process.pid not in before["pids"] and process.status() == psutil.STATUS_ZOMBIE:
            os.waitpid(process.pid, os.WNOHANG)  # a dead orphan was adopted by this process
        elif process.pid not in before["pids"]:
            left.append(f"process {process}")
    left += map(str, before["scratch"].iterdir())
    for folder in {"/dev/shm", tempfile.gettempdir(), "/dev/mqueue"}:
        for path in Path(folder).glob("*") if os.path.isdir(folder) else ():
            if TOKEN in path.name and path != before["scratch"]:
                left.append(str(path))
    for kind in ("shm", "sem", "msg"):
        rows = Path(f"/proc/sysvipc/{kind}").read_text().splitlines()[1:]
        left += [f"{kind} {row}" for row in rows if int(row.split()[0]) in (KEY, KEY - (1 << 32))]
    left += [r for r in Path("/proc/net/unix").read_text().splitlines() if TOKEN in r]
    return left


def _adopt_orphans(yes: bool) -> None:
    """Make this process the parent of orphans, or not (PR_SET_CHILD_SUBREAPER)."""
    assert ctypes.CDLL(None).prctl(36, ctypes.c_ulong(yes), 0, 0, 0) == 0


@contextmanager
def nothing_left():
    """Adopt orphans during the block; fail if anything outlives it.

    Work folders use a separate parent, because other sandboxes may run at the same time.
    """
    _adopt_orphans(True)
    before = {"pids": {p.pid for p in psutil.Process().children(recursive=True)}}
    original_scratch = template_process.scratch
    scratch = before["scratch"] = Path(tempfile.mkdtemp(prefix=f"{TOKEN}-", dir=original_scratch()))
    scratch.chmod(0o711)
    template_process.scratch = lambda: str(scratch)
    try:
        yield
        end = time.monotonic() + 10
        while (left := remaining(before)) and time.monotonic() < end:
            time.sleep(0.1)
        assert not left
    finally:
        template_process.scratch = original_scratch
        shutil.rmtree(scratch)
        _adopt_orphans(False)


def shown(result) -> str:
    return "\n".join((result.stdout, result.stderr, result.text))


def judge(case, result) -> None:
    """Check status and output of a case: no canary, no breach."""
    assert result.status in case.statuses, result
    if case.says:
        assert re.search(case.says, shown(result), re.MULTILINE), result
    for word in (CANARY, BREACH, REPOSITORY_CANARY):
        assert word not in shown(result)
    assert max(len(result.stdout), len(result.stderr)) < BOUND + 100
    assert not result.env_fault and len(result.text) <= BOUND + 100
