"""Hostile code against the sandbox: each case tries to do harm to planted canaries only.

About half of the cases of the project's list. Every case names the statuses it may end with; none
may read a canary, reach another process or leave one behind. The last test is the negative control:
behind resource limits alone the same code does read the canary, so the cases can fail.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import pytest

from drlib.sandbox import Layer, Probe, Sandbox, SandboxUnavailable, probe

CANARY = "canary-7f3a91"
STOPPED = {"timeout", "cpu_limit", "memory_limit", "output_limit", "error", "killed"}

needs_standard = pytest.mark.skipif(
    probe().level != "standard", reason=f"isolation here is {probe().level}:\n{probe().table()}"
)


@pytest.fixture(scope="module")
def places():
    """A secret file, a writable folder, a listening TCP port and an abstract socket.

    File modes let everybody in (pytest's own folders do not): the sandbox alone must keep code out.
    """
    with tempfile.TemporaryDirectory() as name:
        yield from _plant(Path(name))


def _plant(folder: Path):
    (folder / "secret").write_text(CANARY)
    folder.chmod(0o777)
    (folder / "secret").chmod(0o666)
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        name = f"drlib-test-{os.getpid()}"
        unix.bind("\0" + name)
        unix.listen()
        yield {
            "FOLDER": str(folder), "SECRET": str(folder / "secret"), "REPO": str(Path.cwd()),
            "PORT": str(tcp.getsockname()[1]), "ABSTRACT": name, "PARENT": str(os.getpid()),
            "STDLIB": os.path.dirname(os.__file__),
        }


def _with_secret_environment(**arguments) -> Sandbox:
    os.environ["DRLIB_TEST_SECRET"] = CANARY
    try:
        return Sandbox(**arguments)
    finally:
        del os.environ["DRLIB_TEST_SECRET"]


@pytest.fixture(scope="module")
def sandbox(places):
    with _with_secret_environment(timeout_s=8.0, memory_mb=256) as made:
        yield made


@pytest.fixture(scope="module")
def brief(places):
    """For code that only a limit ends."""
    with Sandbox(workers=2, timeout_s=0.4, memory_mb=256) as made:
        yield made


def fill(code: str, places: dict) -> str:
    for name, value in places.items():
        code = code.replace(f"<{name}>", value)
    return code


DENIED = {  # name: code that must end as an error whose last line contains the text
    "fork": ("import os; os.fork()", "Operation not permitted"),
    "subprocess": ("import subprocess; subprocess.run(['/bin/sh', '-c', 'id'])", "not permitted"),
    "multiprocessing": (
        "import multiprocessing as m\np = m.get_context('fork').Process(target=print)\np.start()",
        "Operation not permitted"),
    "exec": ("import os; os.execv('/bin/true', ['true'])", "Operation not permitted"),
    "own binary": (
        "import os\nopen('x', 'w').write('#!/bin/sh')\nos.chmod('x', 0o755)", "not permitted"),
    "read a file": ("print(open('<SECRET>').read())", "Permission denied"),
    "read the repository": ("import os; print(os.listdir('<REPO>'))", "Permission denied"),
    "read this library": ("print(open('<REPO>/drlib/sandbox/zygote.py').read())", "denied"),
    "import this library": ("import drlib", "ModuleNotFoundError"),
    "import its facts": ("import babel", "ModuleNotFoundError"),
    "import facts by path": (
        "import sys, numpy, os\nsys.path.append(os.path.dirname(numpy.__path__[0]))\n"
        "import babel\nprint(babel)", "Permission denied"),
    "read /etc/passwd": ("open('/etc/passwd')", "Permission denied"),
    "read /proc": ("open('/proc/self/environ', 'rb').read()", "Permission denied"),
    "memory of the parent": ("import os; open(f'/proc/{os.getppid()}/mem')", "Permission denied"),
    "list the root": ("import os; os.listdir('/')", "Permission denied"),
    "write outside": ("open('<FOLDER>/escaped', 'w')", "Permission denied"),
    "write over": ("open('<SECRET>', 'w')", "Permission denied"),
    "truncate": ("import os; os.truncate('<SECRET>', 0)", "Permission denied"),
    "delete": ("import os; os.unlink('<SECRET>')", "Permission denied"),
    "chmod": ("import os; os.chmod('<SECRET>', 0)", "Operation not permitted"),
    "touch": ("import os; os.utime('<SECRET>')", "Operation not permitted"),
    "symlink": ("import os; os.symlink('<SECRET>', 's'); open('s')", "Permission denied"),
    "hard link": ("import os; os.link('<SECRET>', 'h'); open('h')", "Errno"),
    "dot dot": ("open('../escaped', 'w')", "Permission denied"),
    "standard library": ("open('<STDLIB>/os.py', 'a')", "Permission denied"),
    "mknod": ("import os; os.mknod('d', 0o20666, os.makedev(1, 1))", "not permitted"),
    "tcp": ("import socket; socket.create_connection(('127.0.0.1', <PORT>))", "not permitted"),
    "udp": (
        "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM)", "not permitted"),
    "abstract socket": (
        "import socket\ns = socket.socket(socket.AF_UNIX)\ns.connect('\\0<ABSTRACT>')",
        "not permitted"),
    "datagram pair": (
        "import socket\nsocket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)", "not permitted"),
    "name look-up": ("import urllib.request as u; u.urlopen('http://localhost:<PORT>')", "rror"),
    "kill the template": ("import os; os.kill(os.getppid(), 9)", "Operation not permitted"),
    "kill everyone": ("import os; os.kill(-1, 9)", "Operation not permitted"),
    "kill the group": ("import os; os.killpg(0, 9)", "Operation not permitted"),
    "signal the caller": ("import os; os.kill(<PARENT>, 0)", "Operation not permitted"),
    "raise a limit": (
        "import resource as r\nr.setrlimit(r.RLIMIT_AS, (r.RLIM_INFINITY,) * 2)", "ValueError"),
    "descriptors": ("import os; fds = [os.dup(0) for _ in range(999)]", "Too many open files"),
    "large file": ("f = open('big', 'wb'); f.write(bytes(1 << 24))", "File too large"),
    "setuid": ("import os; os.setuid(0)", "Operation not permitted"),
    "priority": ("import os; os.nice(1)", "Operation not permitted"),
    "clock": ("import time; time.clock_settime(time.CLOCK_REALTIME, 0)", "not permitted"),
    "memory file": ("import os; os.memfd_create('x')", "Operation not permitted"),
    "ends with recursion": ("def f(): f()\nf()", "RecursionError"),
    "null byte": ("print(1)\0", "null byte"),
    "surrogate": ("x = '\ud800'", "UnicodeEncodeError"),
    "no input": ("input()", "EOFError"),
    "debugger": ("breakpoint()", "bdb.BdbQuit"),
    "exit text": ("raise SystemExit('bye')", "bye"),
    "interrupt": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
}


@needs_standard
@pytest.mark.parametrize("name", DENIED)
def test_denied(name, sandbox, places):
    code, expected = DENIED[name]
    result = sandbox.run(fill(code, places))
    assert result.status == "error", result
    assert expected in result.text
    assert CANARY not in result.stdout + result.stderr
    assert Path(places["SECRET"]).read_text() == CANARY
    assert sorted(os.listdir(places["FOLDER"])) == ["secret"]


SYSTEM_CALLS = {  # x86-64 and aarch64 numbers; each must fail with EPERM
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "unshare": (272, 97),
    "mount": (165, 40), "setns": (308, 268), "bpf": (321, 280), "io_uring_setup": (425, 425),
    "keyctl": (250, 219), "userfaultfd": (323, 282), "shmget": (29, 194), "seccomp": (317, 277),
    "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "add_key": (248, 217),
    "perf_event_open": (298, 241), "inotify_init1": (294, 26), "setxattr": (188, 5),
    "open_tree": (428, 428), "personality": (135, 92), "landlock_create_ruleset": (444, 444),
}


@needs_standard
def test_system_calls_outside_the_list_fail(sandbox):
    column = 0 if os.uname().machine == "x86_64" else 1
    numbers = {name: pair[column] for name, pair in SYSTEM_CALLS.items()}
    result = sandbox.run(
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        f"for name, number in {numbers}.items():\n"
        "    ctypes.set_errno(0)\n"
        "    done = libc.syscall(number, 0, 0, 0, 0, 0, 0)\n"
        "    if (done, ctypes.get_errno()) != (-1, 1): print(name, done, ctypes.get_errno())\n"
    )
    assert result.text == "Finished execution."


@needs_standard
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="x32 numbers exist on x86-64 only")
def test_foreign_call_numbers_kill(sandbox):
    result = sandbox.run("import ctypes; ctypes.CDLL(None).syscall(0x40000000 + 39)")
    assert (result.status, result.text) == ("killed", "Error: killed by SIGSYS.")


@needs_standard
def test_flags_of_allowed_calls_are_checked(sandbox):
    """prctl, fcntl owner, ioctl, prlimit of others: by argument, in allowed calls."""
    result = sandbox.run(
        "import ctypes, fcntl, os, resource\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "print(libc.prctl(4, 1, 0, 0, 0), libc.prctl(1, 0, 0, 0, 0))\n"
        "for attempt in (lambda: fcntl.fcntl(0, fcntl.F_SETOWN, os.getppid()),\n"
        "                lambda: fcntl.ioctl(0, 0x5412, b'x'),\n"
        "                lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CPU)):\n"
        "    try:\n        attempt(); print('possible')\n"
        "    except PermissionError: print('denied')\n"
    )
    assert result.stdout.split() == ["-1", "-1", "denied", "denied", "denied"]


ENDLESS = {
    "loop": "while True: pass",
    "sleep": "import time; time.sleep(60)",
    "regex": "import re; re.match('(a+)+$', 'a' * 40 + 'b')",
    "ignores signals": (
        "import signal\nfor n in (2, 15, 24): signal.signal(n, signal.SIG_IGN)\nwhile True: pass"),
    "swallows": "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
    "stops itself": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "exit function": "import atexit, time; atexit.register(time.sleep, 60)",
    "thread": "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start()",
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
}


@needs_standard
def test_endless_code_is_stopped(brief):
    results = dict(zip(ENDLESS, brief.map(ENDLESS.values()), strict=True))
    assert {name: result.status for name, result in results.items()} == dict.fromkeys(
        ENDLESS, "timeout"
    )
    assert {result.text for result in results.values()} == {"TimeoutError: execution timed out."}


GREEDY = {
    "bytes": ("x = bytearray(1 << 32)", {"memory_limit"}),
    "growth": ("x = []\nwhile True: x.append(bytes(1 << 20))", {"memory_limit"}),
    "numpy": ("import numpy; numpy.ones(1 << 30)", {"memory_limit"}),
    "output": ("while True: print('x' * 4000)", {"output_limit"}),
    "error output": ("import os\nwhile True: os.write(2, b'x' * 99999)", {"output_limit"}),
    "folder": (
        "n = 0\nwhile True:\n    open(str(n), 'wb').write(bytes(1 << 22)); n += 1",
        {"output_limit"}),
    "entries": ("import os\nn = 0\nwhile True:\n    os.mkdir(str(n)); n += 1", {"output_limit"}),
    "depth": ("import os\nwhile True:\n    os.mkdir('d'); os.chdir('d')", {"output_limit"}),
    "threads": (
        "import threading, time\nwhile True:\n"
        "    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()", STOPPED),
    "C stack": (
        "import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nclass A:\n"
        "    def __getattr__(self, n): return getattr(self, n)\nA().x", STOPPED),
    "segfault": ("import ctypes; ctypes.string_at(0)", {"killed"}),
    "abort": ("import os; os.abort()", {"killed"}),
}


@needs_standard
@pytest.mark.parametrize("name", GREEDY)
def test_greedy_code_is_stopped(name, sandbox):
    code, statuses = GREEDY[name]
    result = sandbox.run(code)
    assert result.status in statuses, result
    assert len(result.stdout) < 2100 and len(result.stderr) < 2100
    assert sandbox.run("import os; print(os.listdir('.'))").text == "[]"  # and it is cleaned up


ALLOWED = {
    "secrets in the environment": (
        "import os\nprint(sorted(k for k in os.environ if not k.endswith('_NUM_THREADS')))",
        "['HOME', 'LANG', 'PATH', 'PYTHONHASHSEED', 'TMPDIR', 'TZ']"),
    "descriptors": (
        "import os\nfor fd in range(3, 256):\n    try: os.fstat(fd); print(fd)\n"
        "    except OSError: pass\nprint('done')", "done"),
    "identity": ("import os; print(os.getuid() != 0, os.geteuid() != 0)", "True True"),
    "event loop": (
        "import asyncio\nasync def f(): await asyncio.sleep(0); return 5\nprint(asyncio.run(f()))",
        "5"),
    "threads": (
        "from concurrent.futures import ThreadPoolExecutor as T\n"
        "print(list(T().map(abs, [-1, 2])))", "[1, 2]"),
    "numpy": ("import numpy as np; print(np.linalg.norm([3.0, 4.0]))", "5.0"),
    "sympy": ("from sympy import *; print(solve(Symbol('x')**2 - 4))", "[-2, 2]"),
    "late imports": ("import sqlite3, xml.dom.minidom, csv; print('ok')", "ok"),
    "own files": (
        "import os; open('a', 'w').write('x'); os.rename('a', 'b'); print(open('b').read())", "x"),
    "temporary files": (
        "import tempfile\nwith tempfile.TemporaryDirectory() as d: open(d + '/f', 'w')\n"
        "print('ok')", "ok"),
    "undecodable": ("import os; os.write(1, b'a\\xffb')", "a\ufffdb"),
    "lone surrogate": ("print('a\\ud800b')", "a\\ud800b"),
    "memory of other calls": (
        "import gc\nprint([o for o in gc.get_objects() if isinstance(o, dict) and 'code' in o"
        " and 'forbidden-word' in str(o['code'])][1:])", "[]"),
}


@needs_standard
@pytest.mark.parametrize("name", ALLOWED)
def test_ordinary_code_works(name, sandbox):
    code, expected = ALLOWED[name]
    result = sandbox.run(code)
    assert (result.status, result.text) == ("ok", expected), result


@needs_standard
def test_the_setup_exit_code_cannot_be_forged(sandbox):
    """A policy must not be able to excuse itself with a fault of the environment."""
    for code in ("import os; os._exit(97)", "raise SystemExit(97)", "import os; os.write(3, b'0')"):
        result = sandbox.run(code)
        assert result.status == "error" and not result.env_fault


@needs_standard
def test_deep_and_closed_folders_are_removed(sandbox):
    code = "import os\nos.mkdir('closed', 0)\n" + (
        "for _ in range(1500):\n    os.mkdir('a'); os.mkdir('b', 0); os.chdir('a')\nprint('made')")
    assert sandbox.run(code).status in ("ok", "output_limit")
    assert sandbox.run("import os; print(os.listdir('.'))").text == "[]"


def _without(found: Probe, *names: str) -> Probe:
    layers = tuple(
        Layer(one.name, one.ok and one.name not in names, "left out by the test")
        for one in found.layers
    )
    return Probe(layers, found.drop)


@needs_standard
def test_a_layer_that_fails_stops_the_call_before_any_code():
    """Landlock without the no-new-privileges mark is refused by the kernel: nothing may run."""
    incomplete = _without(probe(), "no_new_privileges")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = Sandbox(found=incomplete, min_level="weak")
    with made:
        result = made.run("print('ran')")
    assert (result.status, result.exit_code, result.stdout) == ("setup_failed", 97, "")
    assert result.env_fault and "landlock_restrict_self" in result.stderr
    assert result.text == "SandboxError: the code could not be run."


def test_less_than_standard_is_refused_by_default():
    weak = _without(probe(), "landlock", "seccomp")
    assert weak.level == "weak"
    with pytest.raises(SandboxUnavailable, match="min_level=.weak.") as refusal:
        Sandbox(found=weak)
    assert "landlock" in str(refusal.value)
    nothing = _without(probe(), "limits")
    assert nothing.level == "none"
    with pytest.raises(SandboxUnavailable):
        Sandbox(found=nothing, min_level="weak")
    with pytest.raises(SandboxUnavailable, match="strong"):
        Sandbox(min_level="strong")


def test_negative_control_limits_alone_do_not_contain(places):
    """The cases above can fail: without Landlock and seccomp the canary is read, a child forked."""
    weak = _without(probe(), "landlock", "seccomp")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Sandbox(found=weak, min_level="weak", timeout_s=8.0) as made:
            result = made.run(fill("print(open('<SECRET>').read())", places))
            assert (result.text, result.isolation) == (CANARY, "weak")
            forked = made.run("import os, time\npid = os.fork()\nif pid: print(pid)\n"
                              "else:\n    os.setsid()\n    time.sleep(60)")
            assert forked.ok
            assert not _alive(int(forked.stdout))  # adopted and killed by the template
    assert sum("WEAK" in str(one.message) for one in caught) <= 1


def _alive(pid: int, patience_s: float = 5.0) -> bool:
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return False
        if state == "Z":
            return False
        time.sleep(0.02)
    return True


def test_probe_prints_a_table():
    command = [sys.executable, "-m", "drlib.sandbox", "probe"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == probe().table()
    assert done.returncode == (0 if probe().level == "standard" else 1)
