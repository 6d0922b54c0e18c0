"""One call in its process: builtins, names of failures, thread pools, earlier cells, paths.

Run: python -m pytest tests/test_sandbox_child.py
"""

import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from drlib.config import ROOT
from drlib.sandbox import Sandbox, probe
from drlib.sandbox.result import hide_paths
from drlib.sandbox.selftest import scratch

LEVELS = {"strong": probe(), "standard": probe().without("namespaces")}
LEVELS = {level: found for level, found in LEVELS.items() if found.level == level}
needs_sandbox = pytest.mark.skipif(
    not LEVELS, reason=f"isolation here is {probe().level}:\n{probe().table()}"
)


@pytest.fixture(scope="module", params=LEVELS)
def sandbox(request):
    with Sandbox(workers=2, timeout_s=8.0, found=LEVELS[request.param]) as made:
        yield made


@needs_sandbox
@pytest.mark.parametrize(
    ("code", "status", "exit_code", "text"),
    [
        ("print(1)\nexit(0)\nprint(2)", "ok", 0, "1"),
        ("exit()", "ok", 0, "Finished execution."),
        ("quit()", "ok", 0, "Finished execution."),
        ("quit(7)", "error", 7, "Error: exit code 7."),
        ("exit('no data')", "error", 1, "no data"),
        ("exit(None)", "ok", 0, "Finished execution."),
        ("try:\n    exit(3)\nexcept SystemExit as e:\n    print(e.code)", "ok", 0, "3"),
        ("def f():\n    'A text.'\nhelp(f)", "ok", 0, "A text."),
        ("help('in')", "ok", 0, "Membership"),
        ("print(exit, quit)", "ok", 0, "exit()"),
        ("print(license)", "ok", 0, "license"),
        ("import builtins; builtins.exit(0)", "ok", 0, "Finished execution."),
    ],
)
def test_builtins_of_the_interactive_interpreter(sandbox, code, status, exit_code, text):
    result = sandbox.run(code)
    assert (result.status, result.exit_code) == (status, exit_code) and text in result.text


@needs_sandbox
def test_exit_of_an_earlier_cell_leaves_input_and_names(sandbox):
    result = sandbox.run("print(x, input())", stdin="line", history=["x = 1\nexit(0)\nx = 2"])
    assert result.text == "1 line"


@needs_sandbox
@pytest.mark.parametrize(
    ("code", "found"),
    [
        # several lines
        ("assert 1 == 2, 'left\\n  1\\nright\\n  2'", "AssertionError: left 1 right 2"),
        ("raise ValueError('first\\n\\nlast\\n')", "ValueError: first last"),
        ("import numpy as np\nnp.float(1)", "AttributeError: module 'numpy' has no attribute"),
        ("import sympy\nsympy.sympify('x +* 2')", "sympy.core.sympify.SympifyError: "),
        (
            "import json\nclass E(json.JSONDecodeError):\n    pass\nraise E('a\\nb', 'x', 0)",
            "E: a b",
        ),
        (
            "import textwrap\nraise RuntimeError(textwrap.dedent('''\n  a\n  b\n'''))",
            "RuntimeError: a b",
        ),
        ("raise ValueError('first\\rsecond')", "ValueError: first second"),
        ("raise KeyError(type('Odd', (), {'__repr__': lambda s: 'a\\x0cb'})())", "KeyError: a b"),
        ("raise OSError('first\\u2028second')", "OSError: first second"),
        ("import sys\nsys.exit('usage: x\\n  -h help')", "SystemExit: usage: x -h help"),
        # groups
        (
            "raise ExceptionGroup('two', [KeyError('k'), OSError(5, 'bad')])",
            "ExceptionGroup: two (2 sub-exceptions): KeyError: 'k'; OSError: [Errno 5] bad",
        ),
        (
            "raise BaseExceptionGroup('outer', [ExceptionGroup('inner', [TypeError('t')])])",
            "ExceptionGroup: outer (1 sub-exception): ExceptionGroup: inner (1 sub-exception): "
            "TypeError: t",
        ),
        (
            "import asyncio\nasync def f():\n    raise ValueError('v')\nasync def main():\n"
            "    async with asyncio.TaskGroup() as group:\n        group.create_task(f())\n"
            "asyncio.run(main())",
            "TaskGroup (1 sub-exception): ValueError: v",
        ),
        # notes
        ("e = ValueError('v')\ne.add_note('row 3')\nraise e", "ValueError: v (row 3)"),
        (
            "e = KeyError('k')\ne.add_note('a\\nb')\ne.add_note('c')\nraise e",
            "KeyError: 'k' (a b) (c)",
        ),
        # a message longer than the output
        ("raise ValueError('x' * 10_000)", "ValueError: xxx"),
    ],
)
def test_observation_names_type_and_message(sandbox, code, found):
    first, second = sandbox.run(code), sandbox.run(code)
    assert first.status == "error" and found in first.text and "\n" not in first.text
    assert len(first.text) < 320 and first.text == second.text


@needs_sandbox
@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("{}['k']", "KeyError: 'k'"),
        ("raise ValueError", "ValueError"),
        ("x = = 1", "SyntaxError: invalid syntax"),
        ("raise OSError(5, 'bad', 'file')", "OSError: [Errno 5] bad: 'file'"),
        ("class E(Exception):\n    def __str__(self):\n        raise E\nraise E", "E: <exception"),
    ],
)
def test_single_line_failures_have_no_summary(sandbox, code, text):
    result = sandbox.run(code)
    assert result.text.startswith(text)
    assert [line.startswith(text) for line in result.stderr.splitlines()].count(True) == 1


@needs_sandbox
@pytest.mark.parametrize(
    "code",
    [
        "from sympy import modinv",
        "from numpy import floaty",
        "from json import loadz",
        "import sympy\nprint(sympy.__file__)",
        "import os, sys\nprint(os.__file__, sys.prefix, sys.executable, sys.path)",
        "import os\nprint(os.getcwd())",
        "import json\nhelp(json)",
        "import tempfile\nprint(tempfile.mkdtemp())",
        "import inspect, random\nprint(inspect.getsourcefile(random.Random))",
        "import json\njson.loads('{')",
    ],
)
def test_no_path_of_this_machine_is_shown(sandbox, code):
    result = sandbox.run(code)
    for hidden in (sys.prefix, sys.base_prefix, str(ROOT), "drlib-sandbox-"):
        assert hidden not in result.text and hidden not in result.stderr, hidden


def test_hide_paths_keeps_other_text():
    root = "/somewhere/site-packages"
    stdlib = os.path.dirname(os.path.abspath(os.__file__))
    assert hide_paths(f"({root}/sympy/core.py)", [root]) == "(sympy/core.py)"
    assert hide_paths(f"{stdlib}/json/decoder.py", [root]) == "json/decoder.py"
    work = f"{scratch()}/drlib-sandbox-a1b_2cd3/box/work"
    shown = "/box/work"
    assert hide_paths(f"{work}/x.csv {work}", []) == f"{shown}/x.csv {shown}"
    for text in ("1/2", "/etc/passwd", "http://a.b/site-packages/x", "no path"):
        assert hide_paths(text, [root]) == text


@pytest.mark.parametrize(
    "piece", ["/", "/a", "/drlib-sandbox-", f"{scratch()}/drlib-sandbox-a", "/box/work", "/usr/lib"]
)
def test_hide_paths_takes_linear_time(piece):
    text = piece * (400_000 // len(piece))
    start = time.process_time()
    hide_paths(text, ["/somewhere/site-packages"])
    assert time.process_time() - start < 2.0  # quadratic: more than an hour for "/"


@needs_sandbox
@pytest.mark.parametrize(
    ("code", "text"),
    [
        (
            "from multiprocessing.pool import ThreadPool\nwith ThreadPool(4) as pool:\n"
            "    print(pool.map(lambda x: x * x, range(5)))",
            "[0, 1, 4, 9, 16]",
        ),
        (
            "from multiprocessing.dummy import Pool\nwith Pool(3) as pool:\n"
            "    print(sorted(pool.imap_unordered(abs, [-2, -1])))",
            "[1, 2]",
        ),
        (
            "from multiprocessing.dummy import Pool, Lock\nlock, found = Lock(), []\n"
            "def f(x):\n    with lock:\n        found.append(x)\n"
            "Pool(2).map(f, range(3))\nprint(sorted(found))",
            "[0, 1, 2]",
        ),
        ("import multiprocessing as m\nwith m.Lock() as held:\n    print(held)", "True"),
        (
            "import multiprocessing as m\nr = m.RLock()\n"
            "print(r.acquire(), r.acquire(), r.release(), r.release())",
            "True True None None",
        ),
        (
            "import multiprocessing as m\ns = m.BoundedSemaphore(1)\ns.acquire()\n"
            "print(s.acquire(timeout=0.01), s.get_value())\ns.release()\n"
            "try:\n    s.release()\nexcept ValueError as e:\n    print('too often')",
            "False 0\ntoo often",
        ),
        ("import multiprocessing as m\nq = m.SimpleQueue()\nq.put([1])\nprint(q.get())", "[1]"),
        (
            "import multiprocessing as m, threading\ne = m.Event()\n"
            "threading.Timer(0.01, e.set).start()\nprint(e.wait(5), e.is_set())",
            "True True",
        ),
        (
            "from concurrent.futures import ThreadPoolExecutor as T\n"
            "with T(3) as pool:\n    print(list(pool.map(abs, [-1, 2])))",
            "[1, 2]",
        ),
    ],
)
def test_thread_pools_and_locks(sandbox, code, text):
    result = sandbox.run(code)
    assert result.text == text, result.stderr


@needs_sandbox
def test_an_rlock_excludes_other_threads(sandbox):
    code = (
        "import multiprocessing as m, threading\nlock, seen = m.RLock(), []\n"
        "def other():\n    seen.append(lock.acquire(timeout=0.05))\n"
        "    try:\n        lock.release()\n    except AssertionError:\n"
        "        seen.append('not mine')\n"
        "lock.acquire()\nt = threading.Thread(target=other)\nt.start()\nt.join()\nprint(seen)"
    )
    assert sandbox.run(code).text == "[False, 'not mine']"


@needs_sandbox
@pytest.mark.parametrize(
    "ending",
    [
        "import os\nos._exit(0)",
        "import os\nos._exit(3)",
        "import os, threading\nt = threading.Thread(target=os._exit, args=(0,))\n"
        "t.start()\nt.join()",
        "import ctypes\nctypes.CDLL(None)._exit(0)",
        "import os, atexit\ntry:\n    1 / 0\nfinally:\n    os._exit(0)",
    ],
)
def test_code_after_an_ended_process_is_not_reported_as_run(sandbox, ending):
    result = sandbox.run("print('here')", history=["x = 1", ending])
    assert result.status == "history_ended" and not result.ok and not result.env_fault
    assert result.stdout == "" and "earlier cell" in result.text
    assert sandbox.run("print('here')", history=["x = 1"]).text == "here"  # as is a later call


@needs_sandbox
def test_code_that_ends_its_own_process_is_no_fault_of_an_earlier_cell(sandbox):
    for history in ([], ["x = 1"], ["1 / 0"], ["import sys\nsys.exit(0)"]):
        result = sandbox.run("import os\nos._exit(0)", history=history)
        assert result.status == "ok", history
        assert sandbox.run("raise SystemExit(4)", history=history).exit_code == 4


@needs_sandbox
def test_tracebacks_and_sources_show_the_lines_of_their_cell(sandbox):
    cells = [
        "def divide(a):\n    return a / 0  # in cell one\n",
        "import inspect\ndef other():\n    return 2  # in cell two\nf = lambda: 5  # cell two\n",
    ]
    result = sandbox.run("x = 1\ny = 2\ndivide(x)", history=cells)
    assert "return a / 0  # in cell one" in result.stderr and "divide(x)" in result.stderr
    code = "print(inspect.getsource(divide), inspect.getsource(other), inspect.getsource(f))"
    text = sandbox.run(code, history=cells).text
    assert all(f"in cell {n}" in text for n in ("one", "two")) and "f = lambda" in text
    code = "def own():\n    return 3  # here\nimport inspect\nprint(inspect.getsource(own))"
    assert "# here" in sandbox.run(code, history=cells).text


@needs_sandbox
@pytest.mark.parametrize(
    "code",
    [
        "import locale\nprint(bool(locale.setlocale(locale.LC_ALL, '')))",
        "import locale\nlocale.setlocale(locale.LC_CTYPE, '')\nprint('ä'.isalpha())",
        "import locale, os\nprint(bool(locale.setlocale(locale.LC_ALL, os.environ['LANG'])))",
        "import locale\nlocale.setlocale(locale.LC_NUMERIC, '')\nprint(f'{1.5:n}' == '1.5')",
    ],
)
def test_the_locale_of_the_sandbox_can_be_set(sandbox, code):
    assert sandbox.run(code).text == "True"


LIGHT_CALLS = """
import sys
sys.path[:0] = sys.argv[1:]
from drlib.sandbox import Sandbox
join = "import threading\\nt = threading.Thread(target=print, args=(5,))\\nt.start()\\nt.join()"
pool = "from multiprocessing.pool import ThreadPool\\nprint(ThreadPool(3).map(abs, [-1, 2]))"
for _ in range(10):
    with Sandbox(workers=1) as sandbox:
        codes = ("print(1 + 1)", join, pool, "1 / 0", "exit(0)")
        found = [sandbox.run(code).text for code in codes]
    expected = ["2", "5", "[1, 2]", "ZeroDivisionError: division by zero", "Finished execution."]
    assert found == expected, found
print(sys.version_info.minor)
"""


def declared_versions() -> list[str]:
    """Return the minor versions of `requires-python`."""
    text = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    first, end = re.fullmatch(r">=3\.(\d+)(?:\.\d+)?,<3\.(\d+)", text).groups()
    return [f"3.{minor}" for minor in range(int(first), int(end))]


@needs_sandbox
@pytest.mark.parametrize("version", declared_versions())
def test_the_sandbox_starts_with_every_declared_python(version):
    beside = sorted(Path(sys.base_prefix).parent.glob(f"{version}*/bin/python{version}"))
    here = f"{sys.version_info.major}.{sys.version_info.minor}" == version
    python = sys.executable if here else shutil.which(f"python{version}")
    if not here and beside:
        python = str(beside[-1])
    if python is None:
        pytest.skip(f"no python{version} on this machine")
    packages = str(Path(pytest.__file__).parent.parent)  # numpy is not imported
    command = [python, "-c", LIGHT_CALLS, str(ROOT), packages]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.strip() == version.partition(".")[2], done.stderr[-2000:]
