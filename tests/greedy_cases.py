"""Hostile programs that never end or exhaust resources (see `hostile_cases.py`).

None of them accesses anything outside, so they are not part of the negative control.
"""

from __future__ import annotations

from tests.hostile_cases import Case

DEAD = ("killed",)
FULL = ("output_limit",)
MEMORY = ("memory_limit",)
STOPPED = ("timeout", "cpu_limit", "memory_limit", "output_limit", "error", "killed")
HOLD = "sys.setrecursionlimit(10**9)\n"


def endless(name, code, statuses=("timeout",), says="", **more):
    return Case(name, code, statuses, says, endless=True, **more)


def greedy(name, code, statuses=STOPPED, says="", **more):
    return Case(name, code, statuses, says, **more)


def fine(name, code, says="", **more):
    return Case(name, code, ("ok",), says, **more)


def fails(name, code, says, **more):
    return Case(name, code, ("error",), says, **more)


ENDLESS = [
    endless("loop", "while True: pass"),
    endless("sleep", "import time\ntime.sleep(60)"),
    endless("regular expression", "import re\nre.match('(a+)+$', 'a' * 40 + 'b')"),
    endless("loop in C", "sum(range(10**12))"),
    endless("power", "9**9**9", STOPPED),
    endless("factorial", "import sympy\nsympy.factorial(10**8)", STOPPED),
    endless(
        "expansion", "from sympy import *\nexpand((Symbol('x') + Symbol('y') + 1)**900)", STOPPED
    ),
    endless(
        "decimal digits",
        "import decimal as d\nd.getcontext().prec = 10**8\nd.Decimal(2).sqrt()",
        STOPPED,
    ),
    endless(
        "ignored signals",
        "import signal\nfor n in range(1, 32):\n"
        "    try: signal.signal(n, signal.SIG_IGN)\n    except OSError: pass\n"
        "while True: pass",
    ),
    endless(
        "blocked signals",
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass",
    ),
    endless(
        "swallows everything",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
    ),
    endless(
        "stops itself", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\nwhile True: pass"
    ),
    endless(
        "alarm storm",
        "import signal\nsignal.signal(signal.SIGALRM, lambda *_: None)\n"
        "signal.setitimer(signal.ITIMER_REAL, 1e-5, 1e-5)\nwhile True: pass",
    ),
    endless(
        "fork bomb that goes on",
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    ),
    endless("exit function", "import atexit, time\natexit.register(time.sleep, 60)"),
    endless(  # each entry is removed again, so that time ends it and not memory, even on a fast CPU
        "exit function that returns",
        "import atexit\ndef f():\n    while True:\n        atexit.register(f)\n"
        "        atexit.unregister(f)\natexit.register(f)",
    ),
    endless(
        "thread left behind",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()",
    ),
    endless(
        "threads that compute",
        "import threading\nfor _ in range(8):\n"
        "    threading.Thread(target=sum, args=(range(10**12),)).start()",
        ("timeout", "cpu_limit"),
    ),
    endless("deadlock", "import threading\nl = threading.Lock()\nl.acquire(), l.acquire()"),
    endless("empty pipe", "import os\nos.read(os.pipe()[0], 1)"),
    endless("event loop", "import asyncio\nasyncio.run(asyncio.Event().wait())"),
    endless("asks for ever", "while True:\n    try: input()\n    except EOFError: pass"),
    endless(
        "slow drip",
        "import time\nwhile True:\n    print('drip', flush=True)\n    time.sleep(0.01)",
        says="drip",
    ),
    endless(
        "stream that never flushes",
        "import sys\nclass S:\n    closed = False\n"
        "    def write(self, t): pass\n    def flush(self):\n        while True: pass\n"
        "sys.stdout = S()",
    ),
    endless(
        "hostile text of an exception",
        "class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E",
    ),
    endless(
        "replaced end of threads",
        "import threading\ndef f():\n    while True: pass\nthreading._shutdown = f",
    ),
    endless("earlier cell", "print(1)", history=("while True: pass",)),
    endless(
        "garbage that grows",
        "import gc\ndef f(*_):\n    while True: pass\ngc.callbacks.append(f)\ngc.collect()",
    ),
    endless(
        "compressed bomb",
        "import zlib\nb = zlib.compress(bytes(1 << 24))\nx = []\n"
        "while True: x.append(zlib.decompress(b))",
        STOPPED,
    ),
    endless(
        "file swapped for a link",
        "import os, threading\ndef f():\n    while True:\n"
        "        try: os.mkdir('a'); os.rmdir('a'); os.symlink('/', 'a'); os.unlink('a')\n"
        "        except OSError: pass\nfor _ in range(2): threading.Thread(target=f).start()",
        STOPPED,
    ),
    endless(
        "rewritten output",
        "import os\nwhile True:\n    os.write(1, b'x' * 4096)\n"
        "    os.ftruncate(1, 0)\n    os.lseek(1, 0, 0)",
    ),
    endless(
        "code that takes long to read",
        "x = [\n" + "1 +\\\n" * 90_000 + "1]",
        ("error", "timeout", "killed", "memory_limit", "ok"),
    ),
    endless(
        "warnings",
        "import warnings\nwarnings.simplefilter('always')\nwhile True: warnings.warn('w' * 9999)",
        STOPPED,
    ),
    endless("deep recursion", f"import sys\n{HOLD}def f(): f()\nf()", STOPPED),
    endless(
        "threads with small stacks",
        "import threading, time\nthreading.stack_size(32768)\n"
        "while True:\n    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        STOPPED,
    ),
]
GREEDY = [
    greedy("bytes", "x = bytearray(1 << 32)", MEMORY),
    greedy("growth", "x = []\nwhile True: x.append(bytes(1 << 20))", MEMORY),
    greedy(
        "caught and again",
        "x = []\nwhile True:\n    try: x.append(bytes(1 << 24))\n    except MemoryError: raise",
        MEMORY,
    ),
    greedy("text", "'x' * (1 << 40)", MEMORY),
    greedy("numpy array", "import numpy\nnumpy.ones(1 << 30)", MEMORY),
    greedy("mapping", "import mmap\nmmap.mmap(-1, 1 << 40)", ("error", "memory_limit")),
    greedy(
        "mapped file",
        "import os, mmap\nkept = []\nfor i in range(999):\n"
        "    f = open(str(i), 'w+b')\n    os.unlink(str(i))\n    f.truncate(8 << 20)\n"
        "    m = mmap.mmap(f.fileno(), 8 << 20)\n"
        "    m.write(bytes(8 << 20))\n    kept.append(m)",
    ),
    greedy(
        "unlinked files",
        "import os\nfiles = []\nwhile True:\n    files.append(open('f', 'wb'))"
        "\n    os.unlink('f')\n    files[-1].write(bytes(4 << 20))",
        says="Errno|output limit",
    ),
    greedy(
        "pickle bomb",
        "import pickle\npickle.loads(b'cbuiltins\\nbytearray\\n(I4294967296\\ntR.')",
        MEMORY,
    ),
    greedy(
        "pickled command",
        "import pickle\nprint(pickle.loads(b'cposix\\nsystem\\n(Vcat <SECRET>\\ntR.'))",
        ("ok", "error"),
    ),
    greedy(
        "laughing XML",
        "import xml.dom.minidom as m\ne = ''.join(f'<!ENTITY e{i + 1} \"' + "
        "f'&e{i};' * 10 + '\">' for i in range(12))\n"
        "m.parseString(f'<!DOCTYPE d [<!ENTITY e0 \"ha\">{e}]><d>&e12;</d>')",
    ),
    greedy("output", "while True: print('x' * 4000)", FULL),
    greedy("error output", "import os\nwhile True: os.write(2, b'x' * 99999)", FULL + ("error",)),
    greedy("one large print", "print('x' * (1 << 25))", FULL),
    greedy("sparse output", "import os\nos.ftruncate(1, 8 << 20)", FULL),
    greedy("output at the end", "import os\nos.pwrite(1, b'x', (8 << 20) - 1)", FULL),
    greedy("output without an end", "while True: print('x' * 999, end='')", FULL),
    greedy("output through standard input", "import os\nwhile True: os.write(0, bytes(1 << 20))"),
    greedy(
        "folder",
        "n = 0\nwhile True:\n    open(str(n), 'wb').write(bytes(1 << 22))\n    n += 1",
        FULL + ("error",),
    ),
    greedy(
        "entries",
        "import os\nn = 0\nwhile True:\n    os.mkdir(str(n))\n    n += 1",
        FULL + ("error",),
    ),
    greedy(
        "depth", "import os\nwhile True:\n    os.mkdir('d')\n    os.chdir('d')", FULL + ("error",)
    ),
    greedy(
        "links",
        "import os\nopen('f', 'w')\nn = 0\nwhile True:\n    os.link('f', str(n))\n    n += 1",
        FULL + ("error",),
    ),
    greedy("large file", "f = open('big', 'wb')\nf.write(bytes(1 << 25))"),
    greedy("sparse file", "open('big', 'wb').truncate(1 << 40)", says="Errno"),
    greedy(
        "reserved file", "import os\nos.posix_fallocate(os.open('f', 66), 0, 1 << 40)", says="Errno"
    ),
    greedy(
        "many descriptors",
        "import os\nfds = [os.dup(0) for _ in range(999)]",
        ("error",),
        "Too many open files",
    ),
    greedy(
        "pipes",
        "import os\nfds = [os.pipe() for _ in range(999)]",
        ("error",),
        "Too many open files",
    ),
    greedy(
        "threads",
        "import threading, time\nwhile True:\n"
        "    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    ),
    greedy(
        "timers",
        "import ctypes\nlibc = ctypes.CDLL(None)\nt = ctypes.c_void_p()\n"
        "for _ in range(10**6):\n    if libc.timer_create(0, None, ctypes.byref(t)): break\n"
        "raise SystemExit('done')",
    ),
    greedy("recursion", "def f(): f()\nf()", ("error",), "RecursionError"),
    greedy(
        "C stack",
        f"import sys\n{HOLD}class A:\n    def __getattr__(self, n): return getattr(self, n)\nA().x",
    ),
    greedy(
        "deep list",
        "a = []\nfor _ in range(10**6): a = [a]\nprint(a)",
        ("error",),
        "RecursionError",
    ),
    greedy(
        "deep iterators",
        "import itertools as i\nx = iter([])\nfor _ in range(10**6): x = i.chain(x)\nlist(x)",
        ("ok",) + STOPPED,
    ),
    greedy(
        "deep JSON",
        "import json, sys\njson.loads(sys.stdin.read())",
        ("error",),
        "RecursionError",
        stdin="[" * 1_000_000,
    ),
    greedy("deep brackets", "(" * 10_000, ("error",), "SyntaxError|MemoryError|Recursion"),
    greedy("deep signs", "x = " + "-" * 500_000 + "1", ("ok",) + STOPPED),
    greedy("deep attributes", "x = 1\nx" + ".a" * 200_000, ("ok",) + STOPPED),
    greedy(
        "deep blocks",
        "\n".join(" " * i + "if 1:" for i in range(120)),
        ("error",),
        "IndentationError|SyntaxError",
    ),
    greedy("deep lambdas", "f = " + "lambda: " * 5_000 + "0", ("ok",) + STOPPED),
    greedy(
        "deep expression for sympy", "import sympy\nsympy.sympify('(' * 9999 + '1' + ')' * 9999)"
    ),
    greedy("lines without end", "\n" * 15_000_000, ("ok", "memory_limit", "error", "timeout")),
    greedy("huge number", "x = " + "9" * 100_000, ("error",), "SyntaxError"),
    greedy(
        "huge traceback",
        "e = None\nfor i in range(3000):\n"
        "    try: raise ValueError(i) from e\n    except ValueError as new: e = new\nraise e",
    ),
    greedy("huge message", "raise ValueError('m' * (1 << 25))"),
    greedy(
        "huge group",
        "raise ExceptionGroup('g' * 9999, [ValueError(str(i) * 999) for i in range(9999)])",
    ),
    greedy("null pointer", "import ctypes\nctypes.string_at(0)", DEAD),
    greedy("abort", "import os\nos.abort()", DEAD),
    greedy("fault", "import faulthandler\nfaulthandler._sigsegv()", ("killed", "ok")),
    greedy(
        "fault handler",
        "import faulthandler\nfaulthandler.enable()\nfaulthandler._sigsegv()",
        ("killed", "error", "ok"),
    ),
    greedy(
        "numpy out of bounds",
        "import numpy as n\n"
        "print(n.lib.stride_tricks.as_strided(n.ones(1), (1 << 30,), (1 << 20,)).sum())",
        ("killed", "error", "memory_limit"),
    ),
    greedy("freed twice", "import ctypes\nctypes.CDLL(None).free(ctypes.c_void_p(4096))"),
    greedy(
        "illegal instruction",
        "import ctypes, mmap\nm = mmap.mmap(-1, 4096, 34, prot=7)\n"
        "m.write(b'\\x0f\\x0b')\nctypes.CFUNCTYPE(None)("
        "ctypes.addressof(ctypes.c_char.from_buffer(m)))()",
        DEAD,
    ),
    greedy(
        "broken reference counts",
        "import ctypes\nfor _ in range(99):\n"
        "    ctypes.pythonapi.Py_DecRef(ctypes.py_object(None))\n"
        "    ctypes.pythonapi.Py_DecRef(ctypes.py_object(object))",
        ("ok",) + STOPPED,
    ),
    greedy(
        "own code freed",
        "import ctypes\nctypes.memset(id(object), 0, 64)\nprint(object())",
        ("ok",) + STOPPED,
    ),
]
