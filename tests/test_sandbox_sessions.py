"""Sessions: branches share the state of their prefix, agree with replay, and multiply in no way."""

import os
import random
import time
from pathlib import Path

import pytest

from drlib.sandbox import Sandbox, probe

LEVELS = {"strong": probe(), "standard": probe().without("namespaces")}
LEVELS = {level: found for level, found in LEVELS.items() if found.level == level}
pytestmark = pytest.mark.skipif(not LEVELS, reason=f"isolation here is {probe().level}")
needs_strong = pytest.mark.skipif(
    "strong" not in LEVELS, reason="held states need namespaces, which this machine does not give"
)


@pytest.fixture(scope="module", params=LEVELS)
def sandbox(request):
    with Sandbox(timeout_s=3.0, memory_mb=256, found=LEVELS[request.param]) as made:
        yield made


@pytest.fixture(scope="module")
def strong():
    with Sandbox(timeout_s=1.0, memory_mb=256) as made:
        yield made


PREFIX = [
    "import random, numpy as np\nx = [1]",
    "x.append(random.random()); np.random.rand()",
    "def f(n): return n + len(x)\nprint('seen')",
]
CELL = "x.append(9); print(f(1), x, random.random(), np.random.rand(), __name__)"


def test_branches_start_from_the_same_state(sandbox):
    with sandbox.session() as start:
        assert start.live == (sandbox.isolation == "strong") and start.history == ()
        state = start
        for cell in PREFIX:
            state = state.then(cell)
            assert state.result.ok and state.live == start.live
        assert state.result.text == "seen" and state.history == tuple(PREFIX)
        branches = [state.run(CELL).text for _ in range(3)]
        assert len(set(branches)) == 1 and branches[0].startswith("4 [1, 0.")
        assert state.run("print(len(x))").text == "2"  # no branch changed the state
        assert start.run("print(x)").text.startswith("NameError")


def test_held_and_replayed_states_are_one(sandbox):
    with sandbox.session() as start:
        state = start
        for cell in PREFIX:
            state = state.then(cell)
        for cell in (CELL, "print(input(), x)", "1 / 0", "f(2)"):
            held = state.run(cell, stdin="in")
            replayed = sandbox.run(cell, stdin="in", history=PREFIX)
            assert (held.status, held.text) == (replayed.status, replayed.text)


def test_an_exception_keeps_what_came_before_it(sandbox):
    with sandbox.session() as start:
        state = start.then("a = 1\nraise KeyError('k')\na = 2")
        assert state.result.text == "KeyError: 'k'"
        for run in (state.run("print(a)"), sandbox.run("print(a)", history=state.history)):
            assert run.text == "1"


def test_a_stopped_cell_leaves_the_state_as_it_was(sandbox):
    with sandbox.session() as start:
        state = start.then("a = 1")
        after = state.then("a = 2\nwhile True: pass")
        assert after.result.status == "timeout" and after.history == ("a = 1",)
        assert after.run("print(a)").text == "1" == state.run("print(a)").text


def test_echo_prints_the_last_expression(sandbox):
    with sandbox.session() as start:
        state = start.then("a = [1]")
        assert state.run("a.append(2)\na", echo=True).text == "[1, 2]"
        assert sandbox.run("a", history=["a = 'x'"], echo=True).text == "'x'"
        assert sandbox.run("None", echo=True).text == "Finished execution."
        assert sandbox.run("a = 3", echo=True).text == "Finished execution."
        assert sandbox.run("print(1); 2").text == "1"


def test_files_are_part_of_the_state_which_is_replayed_then(sandbox):
    look = "import os; print(sorted(os.listdir('.')), open('f').read(), os.listdir('d'))"
    with sandbox.session() as start:
        state = start.then("import os\nopen('f', 'w').write('x')\nos.makedirs('d/e')")
        assert not state.live
        for _ in range(2):  # no branch sees the files of another
            assert state.run("open('g', 'w'); open('f', 'a').write('y')").ok
            assert state.run(look).text == "['d', 'f'] x ['e']"
        assert start.run("import os; print(os.listdir('.'))").text == "[]"
        deep = "for i in range(900):\n    os.mkdir('n'); os.chdir('n')\nprint(i)"
        after = state.then(deep)
        assert after.result.text == "899" and after.run("print(i)").text == "899"


@needs_strong
def test_a_branch_that_has_made_a_file_ends_the_session_and_not_the_states(strong):
    cells = [
        "import os\nopen('f', 'w').write('x' * 10**6)",
        "import os\nos.makedirs('a/b/c')\nopen('a/b/f', 'w')",
        "import os\nos.symlink('/', 'l')\nos.link('l', 'm')",
        "import os\nf = open('f', 'w')\nos.unlink('f')\nf.write('x' * 10**6)\nf.flush()",
        "import os\nopen('f', 'w')\nos.unlink('f')",  # it could be seen that there was one
    ]
    for cell in cells:
        with strong.session() as start:
            state = start.then("x = 1")
            assert state.live
            assert state.run(cell).ok
            for _ in range(2):
                assert state.run("import os; print(os.listdir('.'), x)").text == "[] 1"
            assert not state.live


@needs_strong
def test_what_a_cell_leaves_beside_its_memory_is_replayed(strong):
    """Not held: threads, open files, shared memory, another folder, too much memory. The answers
    are those of a replay, and the session goes on."""
    cells = {
        "f = __import__('threading').Timer(60, print)\nf.daemon = True\nf.start()": "f.is_alive()",
        "import os\nf = os.pipe()": "os.write(f[1], b'12')",
        "import os\nf = os.dup(1)": "f",
        "import os\nos.close(0)": "os.open(os.devnull, 0)",
        "import os\nos.dup2(1, 2)": "os.write(2, b'to the output')",
        "import mmap\nf = mmap.mmap(1, 4096) if not __import__('os').ftruncate(1, 4096) else 0": "",
        "import signal\nsignal.signal(signal.SIGALRM, print)\nsignal.alarm(9)": "signal.alarm(0)",
        "import os\nos.chdir('/')": "os.getcwd()",
    }
    with strong.session() as start:
        prefix = start.then("x = 1")
        for cell, after in cells.items():
            state = prefix.then(cell)
            assert state.result.ok and not state.live, cell
            replayed = strong.run(after, history=["x = 1", cell], echo=True)
            assert state.run(after, echo=True).text == replayed.text
        assert prefix.live and prefix.run("print(x)").text == "1"


@needs_strong
def test_the_states_of_a_session_have_the_memory_of_one_call_together(strong):
    with strong.session() as start:
        large, half = "x = b'x' * (160 << 20)", "x = b'x' * (80 << 20)"
        first = start.then(large)
        assert first.live
        second = start.then(large)  # 320 of 256 MB
        assert not second.live and second.run("print(len(x) >> 20)").text == "160"
        assert start.then(half).live
        assert not start.then(half).live
        first.close()
        assert start.then(half).live


@needs_strong
def test_streams_and_input_of_earlier_cells_are_as_in_a_replay(strong):
    cells = [
        "import io, sys\nsys.stdout = io.StringIO()\nprint('kept')",
        "try: x = input()\nexcept EOFError: x = 'no input'",
        "import sys\nsys.stdout.write('not flushed')",
        "import sys\nsys.stdout = None",
    ]
    for cell in cells:
        with strong.session() as start:
            state = start.then(cell)
            assert state.live
            for code in (
                "print(x, input())",
                "print(1)\nsys.__stdout__.write(str(type(sys.stdout)))",
            ):
                held = state.run(code, stdin="in")
                replayed = strong.run(code, stdin="in", history=[cell])
                assert (held.status, held.stdout, held.stderr) == (
                    replayed.status,
                    replayed.stdout,
                    replayed.stderr,
                )


def test_a_snapshot_has_its_own_history(sandbox):
    with sandbox.session() as start, pytest.raises(ValueError, match="then"):
        start.run("print(1)", history=["x = 1"])


@needs_strong
def test_code_cannot_multiply(strong):
    with strong.session() as start:
        state = start.then("a = 1")
        for keep in (False, True):  # a fork of the cell's own is not the one that keeps its state
            cell = "import os; os.fork()"
            result = state.then(cell).result if keep else state.run(cell)
            assert result.text.startswith("PermissionError")
        bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
        for keep in (False, True):
            result = state.then(bomb).result if keep else state.run(bomb)
            assert result.status == "timeout"
        assert state.run("print(a)").text == "1"
        assert state.run("import subprocess; subprocess.run(['true'])").status == "error"


@needs_strong
@pytest.mark.parametrize(
    "spoil",
    [
        "import os\nfor fd in range(3, 256):\n"
        "    try: os.write(fd, b'1\\n')\n    except OSError: pass",
        "import os\nfor fd in range(3, 256):\n    try: os.close(fd)\n    except OSError: pass",
        "import os, json\nos.fork = None\njson.loads = None\nos.read = None",
        "import sys\nsys.stdout = None",
        "import os; os.kill(2, 9)",
    ],
)
def test_code_that_breaks_its_session_gets_the_same_answers_by_replay(strong, spoil):
    with strong.session() as start:
        state = start.then("a = 40").then(spoil)
        assert state.run("a += 2\nimport sys\nsys.__stdout__.write(str(a))").text == "42"
    assert strong.run("print('others are well')").ok


@needs_strong
def test_one_branch_does_not_see_the_code_of_another(strong):
    secret = f"secret-{random.Random(3).random()}"
    scan = """
import ctypes, re
libc = ctypes.CDLL(None)
found = 0
import gc
for thing in gc.get_objects():
    if isinstance(thing, (str, dict)) and "secret-" + "0." in str(thing)[:100000]: found += 1
print(found)
"""
    with strong.session() as start:
        state = start.then("a = 1")
        assert state.run(f"b = '{secret}'; print(len(b))").ok
        assert state.run(scan).text == "0"


# A prefix whose process, while it is asked for a branch, looks into what it shares with branches.
SPY = """
import os, sys
frame = sys._getframe()
while frame.f_code.co_name != "hold": frame = frame.f_back
theirs, seen = frame.f_globals, []
fork, ask = theirs["layers"].fork, theirs["notices"].ask_keeper
def look():
    for fd in range(22):
        try: seen.append(os.pread(fd, 1 << 16, 0))
        except OSError: pass
def spying_fork(before):
    look()
    done = fork(before)
    look()
    return done
def spying_ask():
    look()
    return ask()
theirs["layers"].fork, theirs["notices"].ask_keeper = spying_fork, spying_ask
"""
# One that writes into what the next branch reads and prints.
FORGER = SPY.replace(
    "seen.append(os.pread(fd, 1 << 16, 0))", "seen.append(os.write(fd, b'forged'))"
)


@needs_strong
def test_a_held_prefix_does_not_see_the_code_input_and_output_of_its_branches(strong):
    found = "print(len(seen) > 0, sum(b'sec' + b'ret' in text for text in seen))"
    with strong.session() as start:
        state = start.then(SPY)
        for _ in range(2):  # what it sees while it is asked, and what it finds there afterwards
            assert state.run("print(input() + ' code')", stdin="secret").text == "secret code"
            assert state.run("c = 'secret'; print(c, input())", stdin="in").text == "secret in"
            assert state.run(found).text == "True 0"
        after = state.then("print('secret')")
        assert after.live and state.live and state.run(found).text == "True 0"


@needs_strong
def test_a_held_prefix_does_not_write_into_its_branches(strong):
    with strong.session() as start:
        state = start.then(FORGER)
        for _ in range(3):  # it writes, and into nothing that a branch reads or prints
            result = state.run("import sys; print(len(seen) > 0, sys.stdin.read())", stdin="in")
            assert (result.stdout, result.stderr) == ("True in\n", "")
            assert state.live
        assert state.run("import sys; sys.stdin.read()").text == "Finished execution."


@needs_strong
def test_the_number_of_held_states_is_bounded_and_the_rest_is_replayed(strong):
    with strong.session() as start:
        states = [start.then(f"a = {i}") for i in range(20)]
        assert sum(s.live for s in states) == 15  # sixteen with the first
        assert [s.run("print(a)").text for s in states] == [str(i) for i in range(20)]
        states[0].close()
        assert not states[0].live and start.then("a = 99").live


# A state whose copy never comes back to wait: the next branch loses it.
BROKEN = """
import sys, time
x = "of the broken one"
frame = sys._getframe()
while frame.f_code.co_name != "hold": frame = frame.f_back
layers = frame.f_globals["layers"]
fork, calls = layers.fork, []
def broken(before):
    calls.append(1)
    if len(calls) > 2: time.sleep(60)
    return fork(before)
layers.fork = broken
"""


@needs_strong
def test_a_lost_state_does_not_come_upon_another(strong):
    with strong.session() as start:
        broken = start.then(BROKEN)
        assert broken.live
        assert broken.run("print(x)").text == "of the broken one"
        states = [start.then(f"x = {i}") for i in range(3)]
        assert all(state.live for state in states)
        for _ in range(2):
            assert broken.run("print(x)").text == "of the broken one"
        assert [s.run("print(x)").text for s in states] == ["0", "1", "2"]


@needs_strong
def test_closing_ends_every_process():
    with Sandbox(timeout_s=5.0) as single:

        def below(pid=None):
            if pid is None:
                return [p for top in single.template_pids() for p in below(top)]
            words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            return [int(w) for w in words] + [p for w in words for p in below(int(w))]

        def settled():
            single.run("import numpy")  # in the template that sessions come from
            time.sleep(0.5)  # until the next child waits
            return len(below())

        before = settled()
        start = single.session()
        start.then("a = 1")
        assert len(below()) >= before + 3  # keeper and two holders
        start.close()
        end = time.monotonic() + 20
        while settled() > before and time.monotonic() < end:
            pass
        assert settled() == before
        kept = single.session().then("a = 1")
        tree = below()
    end = time.monotonic() + 20
    while any(os.path.exists(f"/proc/{p}") for p in tree) and time.monotonic() < end:
        time.sleep(0.02)
    assert not any(os.path.exists(f"/proc/{p}") for p in tree)
    with pytest.raises(RuntimeError, match="closed"):
        kept.run("print(a)")


@needs_strong
def test_a_template_that_dies_takes_the_session_along_but_not_its_state():
    with Sandbox(timeout_s=5.0) as single:
        state = single.session().then("a = 7")
        for pid in single.template_pids():
            os.kill(pid, 9)
        assert state.run("print(a)").text == "7"
