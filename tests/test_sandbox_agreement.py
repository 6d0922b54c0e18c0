"""Held states against replays: random sessions agree to the last random number; 1,000 sessions."""

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from drlib.sandbox import Sandbox
from tests.sandbox_targets import nothing_left, skip_without

# Cells that honest code is made of, some of which leave what is not held: then they are replayed.
CELLS = (
    "x = 1",
    "x = x + {0} if 'x' in dir() else {0}\nx",
    "import random\nr = [random.random() for _ in range({0})]\nr[-1]",
    "import random\ng = globals().setdefault('g', random.Random({0}))\ng.random()",
    "import numpy as np\na = np.random.rand({0})\nprint(a.sum())",
    "import numpy as np\nn = globals().setdefault('n', np.random.default_rng({0}))\nn.normal()",
    "import sympy\ny = sympy.Symbol('y')\nsympy.factor(y**{0} - 1)",
    "l = globals().setdefault('l', [])\nl.append({0})\nlen(l), l[:{0}]",
    "def f(n): return 1 if n < 2 else n * f(n - 1)\nf({0})",
    "class A:\n    made = 0\n    def __init__(self): A.made += 1\nA(), A()\nA.made",
    "import itertools\nc = globals().setdefault('c', itertools.count())\nnext(c), next(c)",
    "def gen():\n    for i in range(1000): yield i\ni = globals().setdefault('i', gen())\nnext(i)",
    "open('file', 'a').write('{0}')\nopen('file').read()",
    "import os\nos.path.exists('file'), os.getcwd(), os.listdir('.')",
    "import os\nos.umask({0})\nos.umask({0})",
    "import os\nos.environ['A'] = os.environ.get('A', '') + '{0}'\nos.environ['A']",
    "1 / (x - 1)",
    "print(undefined)",
    "import sys\nsys.setrecursionlimit(200 + {0})\ndef d(n): return d(n + 1)\nd(0)",
    "import decimal\ndecimal.getcontext().prec = {0} + 1\ndecimal.Decimal(1) / 7",
    "import io, sys\nprint('to', 'the', sep='{0}')\nprint('error', file=sys.stderr)",
    "import atexit\natexit.register(print, 'at exit {0}')\nNone",
    "import threading\nt = threading.Thread(target=lambda: z.append({0}))\nz = []\nt.start()\n"
    "t.join()\nz",
    "import asyncio\nasync def main(): return await asyncio.sleep(0, {0})\nasyncio.run(main())",
    "import hashlib\nh = hashlib.sha256(str(sorted(dir())).encode())\nh.hexdigest()",
    "{{'b', 'a', '{0}'}}",
    "raise SystemExit({0})",
    "try: v = input()\nexcept EOFError: v = 'none'\nv",
    "import gc\ngc.isenabled(), gc.get_threshold()",
    "import signal\nsignal.signal(signal.SIGALRM, signal.SIG_IGN) == signal.SIG_DFL",
)


def random_cells(source: random.Random) -> list[str]:
    chosen = source.choices(CELLS, k=source.randint(2, 6))
    return [cell.format(source.randint(1, 9)) for cell in chosen]


@pytest.fixture(scope="module")
def sandbox():
    skip_without("strong")
    with Sandbox(workers=2, timeout_s=10.0) as made:
        yield made


@pytest.mark.parametrize("seed", range(40))
def test_random_sessions_agree_with_replays(seed, sandbox):
    source = random.Random(seed)
    cells, last = random_cells(source), random_cells(source)[:2]
    live = 0
    with sandbox.session() as start:
        state = start
        for cell in cells:
            state = state.then(cell)
            live += state.live
        assert state.history == tuple(cells)
        for cell in last:
            replayed = sandbox.run(cell, stdin="input", history=cells, echo=True)
            for _ in range(2):  # two branches of one state
                held = state.run(cell, stdin="input", echo=True)
                for name in ("status", "exit_code", "stdout", "stderr"):
                    assert getattr(held, name) == getattr(replayed, name), (cells, cell)
    files = [number for number, cell in enumerate(cells) if "open(" in cell]
    assert live == (files[0] if files else len(cells))


def test_a_thousand_sessions_leave_nothing_behind():
    """Processes, descriptors, folders, shared memory; in one sandbox, each with a state and a
    branch, one left open to the sandbox's end."""
    skip_without("strong")

    def held(sandbox):
        pids = sandbox.template_pids()
        return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in (*pids, os.getpid()))

    with nothing_left():
        with Sandbox(workers=2, timeout_s=10.0) as sandbox:
            slow = "import numpy, time; time.sleep(0.4)"  # each worker starts its large template
            sandbox.map([slow, slow])
            sandbox.session().close()
            pids, before, kept, live = sandbox.template_pids(), held(sandbox), [], []

            def open_one(number):
                session = sandbox.session()
                state = session.then(f"x = {number}")
                assert state.run("print(x)").text == str(number)
                live.append(state.live)
                if number % 100 == 0:
                    kept.append((number, session, state))
                else:
                    session.close()

            with ThreadPoolExecutor(2) as pool:
                list(pool.map(open_one, range(1000)))
            assert sum(live) >= 990  # a machine that stalls for seconds may lose one
            for number, _, state in kept:
                assert state.run("print(x)").text == str(number)
            for _, session, _ in kept[1:]:
                session.close()
            sandbox.map([slow, slow])  # templates reap their keepers between calls
            assert sandbox.template_pids() == pids
            end = time.monotonic() + 20
            while held(sandbox) > before + 4 and time.monotonic() < end:
                time.sleep(0.1)
            assert held(sandbox) <= before + 4  # one session is open, a child's start under way
            folders = [Path(f"/proc/{pid}/cwd").resolve() for pid in sandbox.template_pids()]
            assert all(list(folder.iterdir()) == [folder / "root"] for folder in folders)
