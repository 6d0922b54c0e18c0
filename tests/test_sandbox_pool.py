"""The pool: results, independence of calls, threads, event loops, failures, clean-up."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError
from pathlib import Path

import pytest
from waiting import until

from drlib.sandbox import Sandbox, SandboxResult, probe

LEVELS = {"strong": probe(), "standard": probe().without("namespaces")}
LEVELS = {level: found for level, found in LEVELS.items() if found.level == level}
pytestmark = pytest.mark.skipif(
    not LEVELS, reason=f"isolation here is {probe().level}:\n{probe().table()}"
)


@pytest.fixture(scope="module", params=LEVELS)
def sandbox(request):
    with Sandbox(
        workers=2, timeout_s=8.0, memory_mb=256, output_chars=100, found=LEVELS[request.param]
    ) as made:
        yield made


def wait_gone(pid: int, patience_s: float = 10.0) -> bool:
    """Return True once the process ends (a zombie of another parent counts as ended)."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.02)
    return False


def children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def descendants(pid: int) -> list[int]:
    below = children(pid)
    return [*below, *(p for child in below for p in descendants(child))]


def running_child(template: int) -> int:
    """Return the descendant of the template that runs code (its own session leader)."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        for pid in descendants(template):
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            if int(fields[3]) == pid and fields[0] == "S":
                return pid
        time.sleep(0.02)
    raise AssertionError("no call is running")


def folder_of(template: int) -> Path:
    return Path(os.readlink(f"/proc/{template}/cwd"))


# --- results ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "status", "exit_code", "text"),
    [
        ("print(6 * 7)", "ok", 0, "42"),
        ("print('a\\n')", "ok", 0, "a"),
        ("x = 1", "ok", 0, "Finished execution."),
        ("", "ok", 0, "Finished execution."),
        ("print('before'); 1 / 0", "error", 1, "ZeroDivisionError: division by zero"),
        ("print(", "error", 1, "SyntaxError: '(' was never closed"),
        ("raise SystemExit(3)", "error", 3, "Error: exit code 3."),
        ("raise SystemExit", "ok", 0, "Finished execution."),
        ("import os; print(1); os._exit(0)", "ok", 0, "Finished execution."),
        (
            "class E(Exception):\n    def __str__(self): raise E\nraise E",
            "error",
            1,
            "E: <exception str() failed>",
        ),
        ('print(\'{"status": "worker_died"}\')', "ok", 0, '{"status": "worker_died"}'),
        ("import sys; sys.stdout.close()", "ok", 0, "Finished execution."),
        ("import sys; sys.stdout = 3", "ok", 0, "Finished execution."),
        (
            "import os; os._exit = lambda code: None; raise KeyError('k')",
            "error",
            1,
            "KeyError: 'k'",
        ),
        ("import ctypes; ctypes.string_at(0)", "killed", -11, "Error: killed by SIGSEGV."),
    ],
)
def test_status_and_text(code, status, exit_code, text, sandbox):
    result = sandbox.run(code)
    assert (result.status, result.exit_code, result.text) == (status, exit_code, text), result
    assert result.ok == (status == "ok") and not result.env_fault
    assert result.isolation == sandbox.isolation and 0 <= result.duration_s < 8


def test_traceback_shows_the_code_and_not_the_sandbox():
    with Sandbox() as roomy:
        shown = roomy.run("def f():\n    return 1 / 0\nf()").stderr.splitlines()
    assert shown == [
        "Traceback (most recent call last):",
        '  File "<python>", line 3, in <module>',
        "    f()",
        '  File "<python>", line 2, in f',
        "    return 1 / 0",
        "           ~~^~~",
        "ZeroDivisionError: division by zero",
    ]


def test_long_output_keeps_head_and_tail(sandbox):
    text = sandbox.run("print('a' * 3000 + 'b' * 3000, end='')").stdout
    assert text == "a" * 50 + "\n... [5900 bytes omitted] ...\n" + "b" * 50
    assert sandbox.run("print('é' * 100, end='')").stdout == "é" * 100
    assert sandbox.run("print('é' * 101, end='')").stdout.endswith(
        "\n... [2 bytes omitted] ...\n" + "é" * 50
    )


def test_stdin_and_history(sandbox):
    assert sandbox.run("print(int(input()) + 1)", stdin="41\n").text == "42"
    text = "x" * 3_000_000
    assert sandbox.run("import sys; print(len(sys.stdin.read()))", stdin=text).text == "3000000"
    history = ["x = 2; print('not shown')", "1 / 0", "raise SystemExit(9)", "y = x + 1"]
    assert sandbox.run("print(x * y)", history=history).text == "6"


def test_earlier_cells_do_not_read_the_input(sandbox):
    cell = "try: x = input()\nexcept EOFError: x = 'nothing'"
    result = sandbox.run("print(x, input())", stdin="given", history=[cell])
    assert result.text == "nothing given"


def test_bad_arguments(sandbox):
    with pytest.raises(TypeError, match="code must be text, not bytes"):
        sandbox.run(b"print(1)")
    with pytest.raises(TypeError, match="history must be text"):
        sandbox.run("", history=[3])
    with pytest.raises(ValueError, match="16000000 is the limit"):
        sandbox.run(" " * 16_000_001)
    for arguments in (
        {"workers": 0},
        {"timeout_s": 0},
        {"memory_mb": 1},
        {"output_chars": 0},
        {"timeout_s": float("nan")},
        {"min_level": "some"},
    ):
        with pytest.raises(ValueError, match=next(iter(arguments))):
            Sandbox(**arguments)


# --- independence -----------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
def test_nothing_survives_a_call(level):
    with Sandbox(timeout_s=8.0, found=LEVELS[level]) as single:
        single.run(
            "import builtins, math, sys, os, json\nbuiltins.print = None\nmath.pi = 3\n"
            "json.dumps = None\nos.environ['A'] = 'b'\nsys.path.clear()\n"
            "open('left', 'w').write('x')\nleft = 1"
        )
        after = single.run(
            "import math, os\nprint(math.pi > 3, 'A' in os.environ, "
            "'left' in globals(), os.listdir('.'))"
        )
        assert after.text == "True False False []"


def test_random_numbers_depend_only_on_the_call(sandbox):
    code = (
        "import random, numpy, sympy.core.random as s\n"
        "print(random.random(), numpy.random.rand(), s.rng.random(), {'a', 'b', 'c'})"
    )
    first, second = sandbox.run(code).stdout, sandbox.run(code).stdout
    with Sandbox() as other:
        third = other.run(code).stdout
    assert first == second == third
    assert sandbox.run(code + "\n").stdout != first


def test_the_same_cell_draws_other_numbers_after_other_cells(sandbox):
    cell = "import random\nprint(random.random())"
    histories = ([], ["x = 1"], ["x = 2"], ["x = 1", "x = 2"])
    drawn = [sandbox.run(cell, history=history).text for history in histories]
    assert len(set(drawn)) == len(histories)
    assert sandbox.run(cell, history=["x = 1"]).text == drawn[1]


def test_calls_from_many_threads_get_their_own_answers(sandbox):
    answers = {}

    def ask(index: int) -> None:
        generator = random.Random(index)
        for _ in range(5):
            number = generator.randrange(10**9)
            answers[index, number] = sandbox.run(
                f"open('f', 'w').write('{number}')\nprint(open('f').read())"
            ).text

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 40
    assert all(text == str(number) for (_, number), text in answers.items())


def test_workers_run_at_the_same_time(sandbox):
    code = "import time; a = time.monotonic(); time.sleep(2); print(a, time.monotonic())"
    spans = [[float(word) for word in result.text.split()] for result in sandbox.map([code] * 2)]
    assert max(start for start, _ in spans) < min(end for _, end in spans)


def test_inside_a_running_event_loop(sandbox):
    async def main() -> list[SandboxResult]:
        blocking = sandbox.run("print('in a loop')")  # as a notebook cell would
        return [blocking, *await asyncio.gather(*(sandbox.arun(f"print({i})") for i in range(4)))]

    assert [r.text for r in asyncio.run(main())] == ["in a loop", "0", "1", "2", "3"]


# --- deaths -----------------------------------------------------------------------------------


def test_template_killed_in_a_call_is_replaced_and_the_call_repeated():
    with Sandbox(timeout_s=20.0) as single:
        (old,) = single.template_pids()
        future = single.submit("import time; time.sleep(2); print('done')")
        child, folder = running_child(old), folder_of(old)
        os.kill(old, signal.SIGKILL)
        assert future.result().text == "done"
        assert wait_gone(old) and wait_gone(child) and not folder.exists()
        assert single.template_pids() != [old]


def test_second_death_is_an_environment_fault():
    with Sandbox(timeout_s=60.0) as single:
        future = single.submit("import time; time.sleep(50)")
        for _ in range(2):
            until(single.template_pids)
            (pid,) = single.template_pids()
            running_child(pid)
            os.kill(pid, signal.SIGKILL)
            until(lambda gone=pid: gone not in single.template_pids())
        result = future.result()
        assert (result.status, result.env_fault) == ("worker_died", True)
        assert single.run("print('and again')").text == "and again"


@pytest.mark.parametrize("level", LEVELS)
def test_lost_work_folder_is_replaced(level):
    with Sandbox(found=LEVELS[level]) as single:
        folder = folder_of(single.template_pids()[0])
        if level == "strong":
            (folder / "root").rmdir()  # takes what is mounted there along
        else:
            (folder / "box").chmod(0o700)
            (folder / "box" / "work").rmdir()
        single.run("print(0)")  # for which a child was waiting already
        assert single.run("print(1)").text == "1"


def test_close_leaves_nothing_behind():
    single = Sandbox(timeout_s=60.0)
    (template,) = single.template_pids()
    folder = folder_of(template)
    running, waiting = (single.submit("import time; time.sleep(50)") for _ in range(2))
    child = running_child(template)
    single.close()
    assert wait_gone(template) and wait_gone(child) and not folder.exists()
    with pytest.raises(RuntimeError, match="closed during this call"):
        running.result()
    with pytest.raises(CancelledError):
        waiting.result()
    with pytest.raises(RuntimeError, match="is closed"):
        single.run("print(1)")
    single.close()


CALLER = """
import sys
from drlib.sandbox import Sandbox
sandbox = Sandbox(timeout_s=60.0)
future = sandbox.submit("import time; time.sleep(50)")
print(*sandbox.template_pids(), flush=True)
{end}
"""


@pytest.mark.parametrize("end", ["killed", "forgotten", "interrupted"])
def test_exiting_caller_leaves_no_orphan(end):
    last = "sys.exit(0)" if end == "forgotten" else "future.result()"
    # a shell's background job ignores SIGINT, and so would what it starts
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER.format(end=last)],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    template = int(caller.stdout.readline())
    pids, folder = [template], None
    if end != "forgotten":
        folder = folder_of(template)
        pids.append(running_child(template))
        caller.send_signal(signal.SIGKILL if end == "killed" else signal.SIGINT)
    caller.wait(30)
    assert all(wait_gone(pid) for pid in pids)
    assert folder is None or not folder.exists()


def test_forked_copy_raises(sandbox):
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            sandbox.run("print(1)")
        except RuntimeError as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert b"make a new one in each forked process" in os.read(read, 1000)
    os.close(read)
    os.close(write)
    assert sandbox.run("print(2)").text == "2"
