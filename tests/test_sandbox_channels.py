"""Channels between calls and information about the host: none without opening a file.

Found by attacking the sandbox: locks, futexes, page caches, file flags, names in /proc and template
memory. Each test runs at every level of this machine. The last part tests that hostile code does
not cause environment faults.
"""

import os
import time

import pytest

from drlib.sandbox.selftest import package_roots
from tests.hostile_cases import SYS
from tests.sandbox_targets import sandbox_at, skip_without


@pytest.fixture(scope="module", params=["standard", "strong"])
def pair(request):
    skip_without(request.param)
    with sandbox_at(request.param, workers=2, timeout_s=6.0) as made:
        slow = "import time; time.sleep(0.3)"
        made.map([slow, slow])  # both templates have started
        yield made


# --- calls at the same time ---------------------------------------------------------------------

LOCKER = """
import fcntl, os, struct, time
def attempt(action):
    try: action()
    except OSError as error: return type(error).__name__
    return "held"
read = open(os.__file__)
own = open("own", "w+")
whole = struct.pack("hhqqi4x", {kind}, 0, 0, 0, 0)
print(attempt(lambda: fcntl.flock(read, fcntl.LOCK_EX | fcntl.LOCK_NB)),
      attempt(lambda: fcntl.fcntl(read, fcntl.F_SETLK, whole)),
      attempt(lambda: fcntl.fcntl(own, fcntl.F_SETLK, whole)),
      attempt(lambda: fcntl.fcntl(read, 37, whole)))
print(attempt(lambda: fcntl.fcntl(read, fcntl.F_GETLK, whole)))
time.sleep(0.5)
"""


def test_locks_on_shared_files_have_no_effect(pair):
    """Both calls obtain the exclusive lock, because locks have no effect and no owner."""
    codes = [LOCKER.format(kind=kind) for kind in (1, 0)]  # F_WRLCK, F_RDLCK
    for result in pair.map(codes):
        assert result.text == "held held held held\nPermissionError"


def test_sqlite_works_with_ineffective_locks(pair):
    code = (
        "import sqlite3\nfor _ in range(2):\n    with sqlite3.connect('base') as base:\n"
        "        base.execute('create table if not exists t (x)')\n"
        "        base.execute('insert into t values (1)')\n"
        "print(sqlite3.connect('base').execute('select count(*) from t').fetchone()[0])"
    )
    assert pair.run(code).text == "2"


def failing_call(call: str) -> str:
    """Build a program that makes a C call and prints its error number, or 0 on success."""
    return f"{SYS}print(libc.{call} == -1 and ctypes.get_errno())"


@pytest.mark.parametrize(
    "call",
    [
        "syscall(202, ctypes.byref(ctypes.c_int()), 1, 1, 0, 0, 0)",  # FUTEX_WAKE, shared
        "syscall(202, ctypes.byref(ctypes.c_int(1)), 0, 0, 0, 0, 0)",  # FUTEX_WAIT, shared
        "prctl(15, b'name', 0, 0, 0)",
        "prctl(0x53564D41, 0, 0, 0, 0)",
        "syscall(27, 0, 0, 0)",  # mincore
        "syscall(327, 0, 0, 0, 0, 0, 8)",  # preadv2 with RWF_NOWAIT
        "madvise(0, 4096, 21)",  # MADV_PAGEOUT
        "madvise(0, 4096, 14)",  # MADV_HUGEPAGE
        "madvise(0, 4096, 102)",  # MADV_GUARD_INSTALL
        "syscall(436, 60, 60, 2)",  # close_range, CLOSE_RANGE_UNSHARE
        "syscall(56, 0x3D0F00 ^ 0x400, 0, 0, 0, 0)",  # a thread with descriptors of its own
        "syscall(9, 0, 4096, 3, 0x21, -1, 0)",  # shared anonymous memory
        "syscall(222, 0, 0, 0)",  # timer_create
        "syscall(275, 0, 0, 1, 0, 1, 0)",  # splice
        "fcntl(1, 1031, 1 << 20)",  # F_SETPIPE_SZ
    ],
)
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="call numbers of x86-64")
def test_leaking_and_allocating_system_calls_are_denied(call, pair):
    assert pair.run(failing_call(call)).text == "1"  # EPERM


def test_file_advice_has_no_effect(pair):
    """POSIX_FADV_DONTNEED would write into the page cache that other calls read."""
    code = "import os\nf = os.open(os.__file__, 0)\nprint(os.posix_fadvise(f, 0, 0, 4))"
    assert pair.run(code).text == "None"


def test_frames_below_a_call_reveal_no_earlier_outcome(pair):
    look = (
        "import sys\nf, seen, names = sys._getframe(), [], ('reply', 'status', 'usage')\n"
        "while f:\n    found = {**f.f_locals, **getattr(f.f_locals.get('self'), '__dict__', {})}\n"
        "    seen += [(name, found[name]) for name in names if name in found]\n"
        "    f = f.f_back\nprint(seen)"
    )
    pair.map(["raise SystemExit(77)"] * 4)
    assert [result.text for result in pair.map([look] * 4)] == ["[]"] * 4


def test_limits_of_a_call_are_hard_limits(pair):
    names = ("CPU", "FSIZE", "NOFILE", "CORE", "MEMLOCK", "MSGQUEUE", "SIGPENDING")
    code = (
        f"import resource\nfor name in {names}:\n"
        "    print(*resource.getrlimit(getattr(resource, 'RLIMIT_' + name)))"
    )
    values = (7, 8 << 20, 64, 0, 0, 0, 1024)
    assert pair.run(code).text == "\n".join(f"{value} {value}" for value in values)


# --- the host -----------------------------------------------------------------------------------


def test_file_tree_at_strong_contains_only_readable_files(tmp_path):
    skip_without("strong")
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("a-telling-text")
    foreign = [str(tmp_path), f"{tmp_path}/file", "/proc", "/proc/1", "/sys", "/etc/passwd", "/tmp"]
    foreign += ["/dev/shm", "/home", "/var", "/usr/bin", "/dev/zero", __file__]
    shown = [os.path.realpath(os.__file__), *package_roots()]  # with the folders on the way there
    foreign = [name for name in foreign if not any(path.startswith(name + "/") for path in shown)]
    code = f"""
import os
print([p for p in {foreign!r} if os.path.lexists(p)])
try: print(os.readlink({str(tmp_path / "link")!r}))
except OSError as error: print(type(error).__name__)
for action in (lambda: os.mkdir('/made'), lambda: open('/box/made', 'w'), lambda: os.chdir('/..'),
               lambda: os.chmod(os.__file__, 0o777), lambda: os.unlink(os.__file__),
               lambda: os.rename(os.__file__, 'x'), lambda: os.chroot('.')):
    try: print(action(), os.getcwd())
    except OSError as error: print(type(error).__name__)
"""
    with sandbox_at("strong") as made:
        first, second, *actions = made.run(code).text.splitlines()
    assert (first, second) == ("[]", "FileNotFoundError")
    denied, changed = actions[:2] + actions[3:], actions[2]
    assert all(name in ("PermissionError", "OSError") for name in denied), actions
    assert changed == "None /"  # the parent of the root is the root


def test_file_tree_is_read_only_for_the_owner(pair):
    """Mounts, seccomp and Landlock each refuse writing."""
    code = "import os\ntry: open(os.__file__, 'r+')\nexcept OSError as error: print(error.errno)"
    assert pair.run(code).text in ("1", "13", "30")


# --- answers that a fault must not change --------------------------------------------------------


def test_earlier_cells_have_the_full_output_limit(pair):
    cells = ["y = 0"] + ["print('x' * 3_000_000)\ny += 1"] * 4
    assert pair.run("print(y)", history=cells).text == "4"


def test_ended_main_thread_hides_no_files():
    """/proc hides such a process, so its files cannot be measured."""
    skip_without("standard")
    code = (
        "import ctypes, os, threading, time\n"
        "def hoard():\n    files = []\n    for i in range(60):\n"
        "        files.append(open(str(i), 'wb', buffering=0))\n        os.unlink(str(i))\n"
        "        files[-1].write(bytes(7 << 20))\n    time.sleep(60)\n"
        "threading.Thread(target=hoard).start()\n"
        "number = 60 if os.uname().machine == 'x86_64' else 93\n"
        "ctypes.CDLL(None).syscall(number, 0)"
    )
    with sandbox_at("standard", timeout_s=3.0) as made:
        began = time.monotonic()
        assert made.run(code).status == "output_limit"
        assert time.monotonic() - began < 3.0
        assert made.run("print(1)").text == "1"


@pytest.mark.parametrize(
    "code",
    [
        "import os\nfor i in range(20):\n    os.mkdir('n' * 250)\n    os.chdir('n' * 250)\n"
        "f = open('f', 'w')\nimport time\ntime.sleep(0.5)\nprint('done')",
        "import os, mmap, time\nos.mkdir('a\\r1 2 3 4 x ')\nf = open('a\\r1 2 3 4 x /f', 'w+b')\n"
        "f.truncate(4096)\nm = mmap.mmap(f.fileno(), 4096)\ntime.sleep(0.5)\nprint('done')",
        "import os, time\nos.mkdir('closed', 0)\nos.mkdir('w', 0o300)\nopen('w/f', 'w')\n"
        "time.sleep(0.5)\nprint('done')",
        "x = bytearray(200 << 20)\nprint('done')",
    ],
)
def test_code_cannot_crash_its_template(code, pair):
    """An environment fault would exclude the rollout from the loss."""
    pids = pair.template_pids()
    result = pair.run(code)
    assert not result.env_fault and result.text in ("done", "OutputError: output limit exceeded.")
    assert set(pair.template_pids()) >= set(pids)
