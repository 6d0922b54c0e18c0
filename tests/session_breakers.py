"""Attacks on held sessions, last part: what breaks a hold, and what is left in the folder.

See `session_attacks.py` and `session_spoilers.py`.
"""

from __future__ import annotations

from tests.session_attacks import REACH, Attack
from tests.session_spoilers import NEXT

# Every function that the sandbox could call next, in place of which `evil` is called.
OURS = """
import builtins, gc, os, sys, time
calls = []
def functions_of_frames():
    frame = sys._getframe()
    while frame:
        if frame.f_globals is not globals():
            for name, thing in list(frame.f_globals.items()):
                if type(thing).__name__ == "function": frame.f_globals[name] = evil
        frame = frame.f_back
def functions_of_system():
    for name in dir(os):
        if type(getattr(os, name)).__name__ == "builtin_function_or_method":
            setattr(os, name, evil)
def functions_of_objects():
    for thing in gc.get_objects():
        if type(thing).__name__ == "function" and thing.__module__ not in ("__main__", "os"):
            names = thing.__code__.co_names
            if thing.__closure__ is None and ("fork" in names or "read" in names):
                thing.__code__ = (lambda *a, **k: evil()).__code__
                thing.__globals__["evil"] = evil
"""
REPLACED = {
    "functions of frames": "functions_of_frames()",
    "functions of the system": "functions_of_system()",
    "functions of objects": "functions_of_objects()",
}
INSTEAD = {
    "return nothing": "def evil(*a, **k): return 0",
    "return a number": "def evil(*a, **k): return 4711",
    "raise": "def evil(*a, **k): raise BaseException('evil')",
    "exit": "real_exit = os._exit\ndef evil(*a, **k): real_exit(0)",
    "never return": "def evil(*a, **k):\n    while True: time.sleep(1)",
    "forge": "real_write = os.write\ndef evil(*a, **k):\n    for fd in range(3, 64):\n"
    "        for text in (b'1', b'2\\n', b'7', b'1234', b'holding', bytes(64)):\n"
    "            try: real_write(fd, text)\n            except OSError: pass\n"
    "    return 2",
}


def breaker(name: str, code: str) -> Attack:
    """A cell that breaks whatever holds the state after it."""
    return Attack(name, f"# {name}\n{code}", (NEXT,))


BREAKERS = [
    breaker(f"{what} that {how}", f"{OURS}{INSTEAD[how]}\n{REPLACED[what]}")
    for what in REPLACED
    for how in INSTEAD
] + [
    breaker("forged words to every descriptor", OURS + INSTEAD["forge"] + "\nevil()"),
    breaker("a fork that returns nothing", "import os\nos.fork = lambda: 0"),
    breaker("a fork that returns a process", "import os\nos.fork = lambda: 2"),
    breaker("a fork that raises", "import os\ndef fork(): raise KeyboardInterrupt\nos.fork = fork"),
    breaker("a fork that exits", "import os\nos.fork = lambda: os._exit(0)"),
    breaker("a fork that never returns", "import os, time\nos.fork = lambda: time.sleep(99)"),
    breaker(
        "a hook that raises at a fork",
        "import os\ndef hook(): raise SystemExit(0)\n"
        "os.register_at_fork(before=hook, after_in_child=hook, after_in_parent=hook)",
    ),
    breaker(
        "a hook that exits at a fork",
        "import os\nos.register_at_fork(after_in_child=lambda: os._exit(0))",
    ),
    breaker("closed descriptors", "import os\nos.closerange(0, 256)"),
    breaker(
        "all descriptors taken", "import os\ntry:\n    while True: os.dup(0)\nexcept OSError: pass"
    ),
    breaker(
        "streams that are pipes", "import os\nfor fd in range(3):\n    os.dup2(os.pipe()[0], fd)"
    ),
    breaker("an early exit", "import os\nos._exit(0)"),
    breaker("an exit by a signal", "import os\nos.kill(os.getpid(), 9)"),
    breaker("a stop", "import os\nos.kill(os.getpid(), 19)"),
    breaker(
        "ignored signals",
        "import signal\nfor n in range(1, 65):\n"
        "    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass",
    ),
    breaker("blocked signals", "import signal\nsignal.pthread_sigmask(0, range(1, 65))"),
    breaker("no descriptors allowed", "import resource as r\nr.setrlimit(r.RLIMIT_NOFILE, (0, 0))"),
    breaker("no processes allowed", "import resource as r\nr.setrlimit(r.RLIMIT_NPROC, (0, 0))"),
    breaker("no bytes allowed", "import resource as r\nr.setrlimit(r.RLIMIT_FSIZE, (0, 0))"),
    breaker("no memory allowed", "import resource as r\nr.setrlimit(r.RLIMIT_AS, (0, 0))"),
    breaker(
        "memory to the limit",
        "kept = []\ntry:\n    while True: kept.append(bytearray(1 << 18))\n"
        "except MemoryError: pass",
    ),
    breaker("no time allowed", "import resource as r\nr.setrlimit(r.RLIMIT_CPU, (1, 1))"),
    breaker(
        "a first thread that ends before the others",
        """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(0.3,)).start()
ctypes.CDLL(None).syscall({"x86_64": 60}.get(__import__("os").uname().machine, 93), 0)
""",
    ),
    breaker(
        "threads that fork",
        """
import os, threading, time
def fork():
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        try:
            if not os.fork(): os._exit(0)
        except OSError: pass
for _ in range(4): threading.Thread(target=fork).start()
""",
    ),
    breaker(
        "calls that nobody needs, which may be questions",
        """
import ctypes, os, threading
libc = ctypes.CDLL(None)
def ask():
    for _ in range(50):
        for number in (163, 89, 170, 165, 304): libc.syscall(number, 0, 0, 0, 0, 0)
ask()
threading.Thread(target=ask).start()
os.register_at_fork(before=ask, after_in_parent=ask, after_in_child=ask)
""",
    ),
    breaker("a low limit of recursion", "import sys\nsys.setrecursionlimit(30)"),
    breaker(
        "modules taken away", "import sys\nfor name in list(sys.modules): sys.modules[name] = None"
    ),
    breaker(
        "builtins taken away",
        "import builtins\nfor name in dir(builtins):\n"
        "    if name[0] != '_' and name != 'print': delattr(builtins, name)",
    ),
    breaker("its own names taken away", "globals().clear()"),
    breaker(
        "an exception from everything",
        "import sys\ndef trace(*_): raise MemoryError\nsys.setprofile(trace)",
    ),
]


def left(name: str, code: str, look: str) -> Attack:
    """Something left in the folder, or about it, that whoever keeps a state has to get right."""
    return Attack(name, f"# {name}\nimport os\n{code}", (look, look, REACH), same=True)


LIST = "import os\nprint(sorted(os.listdir('.')))"
LEFT = [
    left(
        "a link to a secret",
        "os.symlink('<SECRET>', 'f')",
        "import os\nprint(os.path.islink('f'), os.readlink('f') == '<SECRET>')",
    ),
    left("a link to a folder", "os.symlink('<OUTSIDE>', 'd')", LIST),
    left("a link to the root", "os.symlink('/', 'd')", LIST),
    left("a link to itself", "os.symlink('f', 'f')", LIST),
    left(
        "hard links",
        "open('f', 'w').write('own')\nfor n in range(99): os.link('f', f'f{n}')",
        "import os\nprint(len(os.listdir('.')), open('f9').read())",
    ),
    left(
        "a deep tree", "for n in range(400):\n    os.mkdir('d')\n    os.chdir('d')", "print('deep')"
    ),
    left(
        "a wide tree",
        "for n in range(900): os.mkdir(f'd{n}')",
        "import os\nprint(len(os.listdir('.')))",
    ),
    left("a queue", "os.mkfifo('f')", LIST),
    left("a file without rights", "os.close(os.open('f', 66, 0))", LIST),
    left(
        "a folder without rights",
        "os.mkdir('d', 0o700)\nopen('d/f', 'w').close()\nos.mkdir('e', 0)",
        LIST,
    ),
    left(
        "a folder that may not be read",
        "os.mkdir('d', 0o300)\nopen('d/f', 'w').write('own')",
        "print(open('d/f').read())",
    ),
    left(
        "a sparse file",
        "open('f', 'wb').truncate(1 << 22)",
        "import os\nprint(os.path.getsize('f'))",
    ),
    left(
        "odd names",
        "for name in (b'\\xff', b'a\\nb', b'-rf', b' '): open(name, 'w').close()",
        "import os\nprint(sorted(os.listdir(b'.')))",
    ),
    left(
        "names of modules",
        "open('os.py', 'w').write('raise SystemExit')\n"
        "open('marshal.py', 'w').write('raise SystemExit')",
        "import os\nprint(os.sep)",
    ),
    left(
        "another folder to be in",
        "os.mkdir('d')\nos.chdir('d')",
        "import os\nprint(os.path.basename(os.getcwd()))",
    ),
    left(
        "another folder by descriptor",
        "os.mkdir('d')\nfd = os.open('d', 0)\nos.fchdir(fd)\nos.close(fd)",
        "import os\nprint(os.path.basename(os.getcwd()))",
    ),
    left("a folder far away to be in", "os.chdir('/')", "import os\nprint(os.getcwd())"),
    left(
        "a deleted folder to be in",
        "os.mkdir('d')\nos.chdir('d')\nos.rmdir('../d')",
        "import os\ntry: print(os.getcwd())\nexcept OSError as e: print(e.errno)",
    ),
    left("a mask", "os.umask(0o777)", "import os\nprint(oct(os.umask(0)))"),
    left(
        "its folder under another name",
        "try: os.rename(os.getcwd(), '../elsewhere')\nexcept OSError as e: print(e.errno)",
        LIST,
    ),
    left(
        "other limits",
        "import resource as r\nr.setrlimit(r.RLIMIT_FSIZE, (4096, 4096))",
        "import resource as r\nprint(r.getrlimit(r.RLIMIT_FSIZE))",
    ),
    left(
        "a name of the process",
        "import ctypes\nctypes.CDLL(None).prctl(15, b'evil', 0, 0, 0)",
        "import ctypes\nb = ctypes.create_string_buffer(16)\n"
        "ctypes.CDLL(None).prctl(16, b, 0, 0, 0)\nprint(b.value)",
    ),
    left(
        "handlers of signals",
        "import signal\nsignal.signal(10, lambda *_: print('handled'))",
        "import os, signal\nprint(signal.getsignal(10) is not signal.SIG_DFL)",
    ),
    left(
        "a thread that ended",
        "import threading\nt = threading.Thread(target=int)\nt.start()\nt.join()",
        "print(t.is_alive(), threading.active_count())",
    ),
    left(
        "a thread that waits",
        "import threading\ne = threading.Event()\n"
        "t = threading.Thread(target=e.wait, daemon=True)\nt.start()",
        "print('waits')",
    ),
]
