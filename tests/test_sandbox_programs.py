"""Shell commands on a set of files: isolation, limits, returned files, faults and cleanup."""

import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from drlib.sandbox import program_process, programs, selftest
from drlib.sandbox.programs import ProgramFault, is_writable, run_program

FILES = {"/app": (0o755, None), "/app/a.txt": (0o640, b"one\ntwo\n")}


def wait_for(condition):
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def run(command, files=FILES, **options):
    return run_program(command, files, "/app", **options)


def python(code, **options):
    script = {"/app/x.py": (0o644, textwrap.dedent(code).encode())}
    return run("python3 x.py", FILES | script, **options)


PREFIX = f"drlib-programs-test-{os.getpid()}-"


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch):
    """No process and no folder of a command exists after a test."""
    monkeypatch.setattr(selftest, "FOLDER_PREFIX", PREFIX)
    yield
    assert [each for each in below(psutil.Process()) if "program_process" in each[1]] == []
    assert list(Path(selftest.scratch()).glob(f"{PREFIX}*")) == []


def below(process):
    """Return (process, command line) of all descendants."""
    found = []
    for each in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            found.append((each, " ".join(each.cmdline())))
    return found


def test_output_exit_code_and_files():
    done = run("cat a.txt; echo bad >&2; mkdir -p d/e; echo 3 > d/e/f; ln -s a.txt l; exit 7")
    assert (done.status, done.exit_code, done.output) == ("error", 7, "one\ntwo\nbad\n")
    assert done.files == FILES | {
        "/app/d": (0o755, None),
        "/app/d/e": (0o755, None),
        "/app/d/e/f": (0o644, b"3\n"),
        "/app/l": (0o777, "a.txt"),
    }
    again = run("rm -r d l; mv a.txt b.txt; chmod 700 b.txt", done.files)
    assert again.status == "ok"
    assert again.files == {"/app": (0o755, None), "/app/b.txt": (0o700, b"one\ntwo\n")}
    apart = run("echo out; echo err >&2", merge=False)
    assert (apart.output, apart.errors) == ("out\n", "err\n")


def test_every_state_can_be_restored():
    """Folders without permissions, odd names, links that lead nowhere, all entries at the limit."""
    commands = (
        "mkdir -p x/y x.d; touch x/y/z 'a b' -- '-n' \"$(printf 'new\\nline')\"; chmod 0 x a.txt",
        "ln -s / root; ln -s loop loop; ln -s ../../../etc/shadow s; mkfifo p",
        "truncate -s 3M big; ln big other; for i in $(seq 900); do echo $i > f$i; done",
    )
    for command in commands:
        done = run(command)
        assert done.status == "ok", done.output
        assert run("true", done.files).files == done.files


@pytest.mark.parametrize(
    "command",
    [
        "cat /etc/passwd",
        "cat /etc/shadow",
        "ls /proc/1",
        "ls /home/* /var/*",
        "ls /sys",
        "cat ../../../../../../etc/hostname",
        "ln -s /etc/passwd p && cat p",
        "ln -s / r && cat r/etc/passwd",
        *(f"touch {folder}/x" for folder in ("", "/usr", "/usr/bin", "/bin", "/opt/bin", "/etc")),
        "mv /usr /x",
        "rm -f /usr/bin/env /opt/bin/python3",
        "mount -t tmpfs x /tmp",
        "unshare -r true",
        "chroot / true",
        "mknod d b 8 0",
        f"cat {__file__}",
        f"ls {Path(__file__).parent}",
        "python3 -c 'import drlib'",
        "python3 -c 'import numpy'",
        "python3 -c 'import socket; socket.socket()'",
        "python3 -c 'import os; os.setuid(0)'",
        "python3 -c 'import ctypes; exit(ctypes.CDLL(None).ptrace(16, 1, 0, 0) >= 0 or 1)'",
    ],
)
def test_nothing_outside_can_be_reached(command):
    assert run(command).status == "error"


def test_no_network():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
        subprocess.run([sys.executable, "-c", code], check=True)  # outside of the sandbox
        assert run(f'python3 -c "{code}"').status == "error"
        assert run(f"bash -c 'echo > /dev/tcp/127.0.0.1/{port}'").status == "error"


def test_no_secret_of_the_caller_is_in_the_environment(monkeypatch):
    monkeypatch.setenv("SECRET", "abc")
    monkeypatch.setenv("PYTHONSTARTUP", "/app/x.py")
    assert "abc" not in run("env").output
    assert run("env").output == run("env").output


def test_runaway_programs_end():
    started = time.monotonic()
    for command in ("sleep 100", "while :; do :; done", "trap '' TERM INT; sleep 100 & wait"):
        assert run(command, timeout_s=0.5).status == "timeout"
    assert time.monotonic() - started < 30


def test_background_processes_end_with_the_command():
    done = run("(sleep 0.5; echo late > late.txt) & setsid sleep 100 & echo early")
    assert done.output == "early\n" and "/app/late.txt" not in done.files


def test_fork_bomb():
    bomb = """
        import os
        forks = 0
        while True:
            try:
                if os.fork() == 0:
                    continue
                forks += 1
            except OSError:
                break
        """
    before = len(psutil.pids())
    done = python(bomb, timeout_s=2.0)
    assert done.status in ("ok", "timeout")
    counted = python(
        """
        import os, time
        count = 0
        try:
            while True:
                if os.fork() == 0:
                    time.sleep(5)
                    os._exit(0)
                count += 1
        except OSError:
            print(count)
        """
    )
    assert 10 <= int(counted.output) < program_process.MAX_PROCESSES
    assert len(psutil.pids()) < before + 50
    assert run("b() { b | b & }; b; echo end").status in ("ok", "error")


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("yes", "output_limit"),
        ("head -c 1000000000 /dev/zero", "output_limit"),
        ("yes >&2", "output_limit"),
        ("head -c 1000000000 /dev/zero > big", "error"),
        ("for i in 1 2 3 4 5 6 7 8 9; do head -c 4000000 /dev/zero > $i; done", "files_limit"),
        ("truncate -s 3M 1; cp 1 2; cp 1 3; cp 1 4", "files_limit"),
        ("truncate -s 3M 1; ln 1 2; ln 1 3; ln 1 4", "files_limit"),
        ("python3 -c 'b = [bytearray(10**8) for _ in range(9)]'", "error"),
        ("python3 -c 'import os\nfor i in range(5000): open(str(i), \"w\")'", "files_limit"),
        ("d=$(seq -s '' 99); for i in $(seq 120); do mkdir $d; cd $d; done", None),
        ("printf 'x' > \"$(printf '\\377')\"", "files_limit"),
    ],
)
def test_limits(command, status):
    done = run(command, timeout_s=20.0)
    if status is not None:
        assert done.status == status
    if done.status == "files_limit":
        assert done.files == FILES  # undone
    assert run("true", done.files).files == done.files
    assert len(done.output) < 2 * programs.OUTPUT_CHARS


@pytest.mark.parametrize("command", ["", "a\0b", "\ud800", "x" * 200_000, "exit 300", "kill -9 $$"])
def test_odd_commands_are_no_faults(command):
    assert run(command).files == FILES


def test_commands_repeat_exactly():
    """Time stamps, order of names, random names of the system's programs."""
    commands = (
        "ls -l --time-style=full-iso; find . | cat; id; pwd; env; python3 -c 'print({*\"abcd\"})'"
    )
    files = FILES | {f"/app/{n}": (0o644, b"x") for n in ("q", "b", "m")}
    first, second = run(commands, files), run(commands, dict(reversed(files.items())))
    assert first.status == "ok" and first.output == second.output


def test_concurrent_commands_are_separate():
    def work(number):
        files = FILES | {"/app/n": (0o644, str(number).encode())}
        return run("cat n; ls | wc -l; echo $(cat n) >> n", files)

    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(work, range(32)))
    for number, done in enumerate(results):
        assert done.output == f"{number}2\n"
        assert done.files["/app/n"][1] == f"{number}{number}\n".encode()


def test_a_forked_process_has_its_own_slots():
    """A command that runs in another thread at the time of the fork does not block the child."""
    for _ in range(64):
        if not programs._SLOTS.free.acquire(blocking=False):
            break
    try:
        child = os.fork()
        if child == 0:
            os._exit(int(run("echo hi").output != "hi\n"))
        assert os.waitpid(child, 0)[1] == 0
    finally:
        programs._SLOTS.reset()


def test_a_dead_process_is_a_fault(monkeypatch):
    monkeypatch.setattr(selftest, "PYTHON", ("/bin/false",))
    with pytest.raises(ProgramFault):
        run("true")
    monkeypatch.setattr(selftest, "PYTHON", (sys.executable, "-c", "print('x' * 99)"))
    with pytest.raises(ProgramFault):
        run("true")
    monkeypatch.undo()
    with pytest.raises(ProgramFault):  # the working folder does not exist
        run_program("true", FILES, "/missing")
    assert run("true").status == "ok"


def test_nothing_is_left_if_the_caller_dies():
    code = f"""
        from drlib.sandbox import selftest
        from drlib.sandbox.programs import run_program
        selftest.FOLDER_PREFIX = {PREFIX!r}
        run_program("echo started; sleep 60", {FILES!r}, "/app", timeout_s=60)
        """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])
    caller = psutil.Process(process.pid)
    wait_for(lambda: any(line == "sleep 60" for _, line in below(caller)))
    found = [each for each, _ in below(caller)]
    process.send_signal(signal.SIGKILL)
    process.wait()
    _, alive = psutil.wait_procs(found, timeout=30)
    assert alive == []
    wait_for(lambda: not list(Path(selftest.scratch()).glob(f"{PREFIX}*")))


def test_top_level_folders_of_the_system_are_refused():
    assert all(map(is_writable, ("/app", "/workspace/x", "/testbed", "/srv", "/data/a/b")))
    assert not any(map(is_writable, ("/", "/usr/src/app", "/tmp/x", "/etc/x", "/bin", "/opt/x")))
    top = "/" + os.__file__.split("/")[1]
    assert not is_writable(top)


def test_machines_without_namespaces_are_refused(monkeypatch):
    found = selftest.probe().without("namespaces")
    monkeypatch.setattr(selftest, "probe", lambda: found)
    programs.require_programs.cache_clear()
    try:
        with pytest.raises(selftest.SandboxUnavailable, match=re.escape("namespaces")):
            run("true")
    finally:
        monkeypatch.undo()
        programs.require_programs.cache_clear()
