"""Hostile programs as data: access to processes, network, privileges and other calls.

Related: files (`hostile_files.py`), exhaustion (`greedy_cases.py`), confusing or forging programs
(`odd_cases.py`). A case is a program, its permitted statuses and a pattern for its output. Programs
print `<BREACH>` after forbidden access, or print a canary; neither may appear. `leaks` marks cases
that must succeed without isolation: all their targets are planted by the tests. `endless` marks
cases that only a limit ends.
"""

from __future__ import annotations

from dataclasses import dataclass

REPOSITORY_CANARY = "canary-in-the-repository-3b9e"  # read from this very file
DENIED = r"Errno (1|2|6|13|18|20|30)\b|Error"  # the error depends on the layer that denies first
SYS = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"  # calls through C
SOCKET = "import socket\n"


@dataclass(frozen=True)
class Case:
    """One program and its permitted outcomes."""

    name: str
    code: str
    statuses: tuple[str, ...]
    says: str = ""
    leaks: bool = False
    endless: bool = False
    stdin: str = ""
    history: tuple[str, ...] = ()


def refused(name, code, says=DENIED, leaks=False, **more):
    """Build a case that ends with an exception of the system."""
    return Case(name, code, ("error",), says, leaks, **more)


def useless(name, code, says="", leaks=False, statuses=("ok", "error"), **more):
    """Build a case that may end normally but reaches nothing."""
    return Case(name, code, statuses, says, leaks, **more)


def breach(action):
    """Build a program that reports a breach if `action` succeeds."""
    return f"{action}\nprint('<BREACH>')"


def calls(text, result="0"):
    """Build a program with a C call that must not return `result`."""
    return f"{SYS}if libc.{text} {'>=' if result == '>=0' else '=='} 0: print('<BREACH>')"


def listed(paths, action="open(p, 'rb').read(1)"):
    """Build a program that prints every path it can open."""
    return (
        f"import os\nfor p in {paths!r}:\n    try: {action}\n"
        "    except OSError: continue\n    print('<BREACH>', p)"
    )


PROCESSES = [
    refused("fork", breach("import os\nif not os.fork(): os._exit(0)"), leaks=True),
    refused("fork bomb", "import os\nwhile True: os.fork()"),
    refused(
        "shell",
        "import subprocess as s\nprint(s.run(['/bin/cat', '<SECRET>'], "
        "capture_output=True).stdout)",
        leaks=True,
    ),
    useless("os.system", "import os\nprint(os.system('cat <SECRET>'))", leaks=True),
    refused("os.popen", "import os\nprint(os.popen('cat <SECRET>').read())", leaks=True),
    refused(
        "forked worker",
        breach(
            "import multiprocessing as m\np = m.get_context('fork').Process(target=print)\n"
            "p.start()\np.join()"
        ),
        leaks=True,
    ),
    refused(
        "spawned worker",
        breach("import multiprocessing as m\nm.get_context('spawn').Process(target=print).start()"),
    ),
    refused(
        "process pool",
        breach(
            "from concurrent.futures import ProcessPoolExecutor as P\n"
            "with P(1) as pool: list(pool.map(abs, [-1]))"
        ),
    ),
    refused(
        "posix_spawn",
        "import os\npid = os.posix_spawn('/bin/cat', ['cat', '<SECRET>'], {})\nos.waitpid(pid, 0)",
        leaks=True,
    ),
    refused(
        "asyncio process",
        breach("import asyncio\nasyncio.run(asyncio.create_subprocess_exec('/bin/true'))"),
    ),
    refused("exec", "import os\nos.execv('/bin/cat', ['cat', '<SECRET>'])", leaks=True),
    refused("exec of python", "import os, sys\nos.execv(sys.executable, ['python', '-c', '0'])"),
    refused(
        "own program",
        breach(
            "import os\nopen('x', 'w').write('#!/bin/sh\\ncat <SECRET>')\nos.chmod('x', 0o755)\n"
            "os.execv('./x', ['x'])"
        ),
        leaks=False,
    ),
    refused("terminal", breach("import pty\npty.fork()")),
    refused(
        "daemon",
        breach(
            "import os, time\nif not os.fork():\n    os.setsid()\n    if os.fork(): os._exit(0)\n"
            "    time.sleep(60)"
        ),
        leaks=True,
    ),
    useless(
        "raw vfork and clone",
        SYS + "for n in (58, 57, 56, 220, 435):\n"
        "    if libc.syscall(n, 17, 0, 0, 0, 0) > 0: print('<BREACH>')",
        statuses=("ok", "error", "killed"),
    ),
    useless(
        "clone with namespaces",
        SYS + "f = 0x3D0F00 | 0x10000000\n"
        "print(libc.syscall(56 if os.uname().machine == 'x86_64' else 220, f, 0, 0, 0, 0))",
        r"^-1",
    ),
    refused("kill the parent", "import os\nos.kill(os.getppid(), 9)"),
    refused("kill the caller", "import os\nos.kill(<PARENT>, 9)"),
    refused("kill everyone", "import os\nos.kill(-1, 9)"),
    refused("kill the group", "import os\nos.killpg(0, 9)"),
    refused("signal a process", breach("import os\nos.kill(<VICTIM>, 0)"), leaks=True),
    refused("wake a process", breach("import os\nos.kill(<VICTIM>, 18)"), leaks=True),
    useless("tgkill", calls("tgkill(<VICTIM>, <VICTIM>, 0)"), leaks=True),
    refused("pidfd", breach("import os\nos.pidfd_open(<VICTIM>)"), leaks=True),
    refused(
        "descriptor owner",
        breach("import fcntl\nfcntl.fcntl(0, fcntl.F_SETOWN, <VICTIM>)"),
        leaks=True,
    ),
    useless("ptrace", calls("ptrace(16, <VICTIM>, 0, 0)")),
    useless(
        "memory of a process",
        SYS + "b = ctypes.create_string_buffer(64)\n"
        "v = (ctypes.c_void_p * 2)(ctypes.addressof(b), 64)\n"
        "r = (ctypes.c_void_p * 2)(ctypes.addressof(b), 64)\n"
        "if libc.process_vm_readv(<VICTIM>, v, 1, r, 1, 0) > 0: print('<BREACH>')",
    ),
    refused("new session", breach("import os\nos.setsid()")),
    refused(
        "limits of another",
        breach("import resource as r\nr.prlimit(<VICTIM>, r.RLIMIT_CPU)"),
        leaks=True,
    ),
    refused(
        "own limits",
        breach("import resource as r\nr.setrlimit(r.RLIMIT_AS, (r.RLIM_INFINITY,) * 2)"),
        "ValueError",
    ),
    refused(
        "own processor limit",
        breach("import resource as r\nr.setrlimit(r.RLIMIT_CPU, (999, 999))"),
        "ValueError",
    ),
]
NETWORK = [
    refused(
        "tcp", breach(SOCKET + "socket.create_connection(('127.0.0.1', <PORT>), 2)"), leaks=True
    ),
    refused(
        "udp",
        breach(
            SOCKET + "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
            "s.sendto(b'x', ('127.0.0.1', <UDP>))"
        ),
        leaks=True,
    ),
    refused("listen", breach(SOCKET + "socket.create_server(('127.0.0.1', 0))"), leaks=True),
    refused(
        "abstract socket",
        breach(SOCKET + "s = socket.socket(socket.AF_UNIX)\ns.connect('\\0<ABSTRACT>')"),
        leaks=True,
    ),
    refused(
        "named socket",
        breach(SOCKET + "s = socket.socket(socket.AF_UNIX)\ns.connect('<FOLDER>/socket')"),
        leaks=True,
    ),
    refused(
        "bind a name",
        breach(SOCKET + "s = socket.socket(socket.AF_UNIX)\ns.bind('\\0<TOKEN>')"),
        leaks=True,
    ),
    refused("datagram pair", breach(SOCKET + "socket.socketpair(socket.AF_UNIX, 2)"), leaks=True),
    refused(
        "stream pair to a name",
        breach(SOCKET + "a, b = socket.socketpair()\na.sendto(b'x', '\\0<ABSTRACT>')"),
    ),
    refused(
        "descriptors through a pair",
        breach(SOCKET + "a, b = socket.socketpair()\nsocket.send_fds(a, [b'x'], [0])"),
        leaks=True,
    ),
    useless(
        "other families",
        SOCKET + "for f, t in ((17, 3), (16, 3), (40, 1), (38, 5), (2, 3), "
        "(10, 2), (31, 1), (29, 3), (44, 3)):\n"
        "    try: socket.socket(f, t)\n    except OSError: continue\n    print('<BREACH>')",
    ),
    refused(
        "name look-up", breach(SOCKET + "socket.getaddrinfo('example.invalid', 80)"), "gaierror"
    ),
    refused(
        "web page",
        breach("import urllib.request as u\nu.urlopen('file://<SECRET>').read()"),
        leaks=True,
    ),
    refused(
        "http",
        breach(
            "import http.client as h\nh.HTTPConnection('127.0.0.1', <PORT>, timeout=2).connect()"
        ),
        leaks=True,
    ),
    refused(
        "asyncio connection",
        breach("import asyncio\nasyncio.run(asyncio.open_connection('127.0.0.1', <PORT>))"),
        leaks=True,
    ),
    refused(
        "listener of multiprocessing",
        breach("from multiprocessing.connection import Listener\nListener(family='AF_UNIX')"),
    ),
    useless(
        "browser",
        "import webbrowser\nif webbrowser.open('http://127.0.0.1:<PORT>'): print('<BREACH>')",
    ),
    useless("antigravity", "import antigravity"),
    refused("pip", breach("import runpy\nrunpy.run_module('pip', run_name='__main__')")),
    useless("ensurepip", breach("import ensurepip\nensurepip.bootstrap()"), statuses=("error",)),
]
POWERS = [
    refused("setuid", breach("import os\nos.setuid(0)")),
    refused("groups", breach("import os\nos.setgroups([0])")),
    refused("priority", breach("import os\nos.nice(1)"), leaks=True),
    refused(
        "priority of another", breach("import os\nos.setpriority(0, <VICTIM>, 19)"), leaks=True
    ),
    refused(
        "affinity",
        breach("import os\nos.sched_setaffinity(0, os.sched_getaffinity(0))"),
        leaks=True,
    ),
    refused(
        "scheduler",
        breach("import os\nos.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))"),
        leaks=True,
    ),
    refused("clock", breach("import time\ntime.clock_settime(time.CLOCK_REALTIME, 0)")),
    useless(
        "clock adjustment",
        SYS + "b = ctypes.create_string_buffer(512)\n"
        "if libc.clock_adjtime(0, b) >= 0: print('<BREACH>')",
    ),
    useless("time of day", calls("settimeofday(ctypes.create_string_buffer(16), None)")),
    useless("host name", calls("sethostname(b'x', 1)")),
    useless("dumpable", calls("prctl(4, 1, 0, 0, 0)"), leaks=True),
    useless("death signal", calls("prctl(1, 0, 0, 0, 0)"), leaks=True),
    useless("subreaper", calls("prctl(36, 1, 0, 0, 0)"), leaks=True),
    useless("speculation", calls("prctl(53, 0, 4, 0, 0)")),
    useless(
        "another filter",
        SYS + "p = ctypes.create_string_buffer(b'\\6\\0\\0\\0\\0\\0\\xff\\x7f')\n"
        "f = (ctypes.c_void_p * 2)(1, ctypes.addressof(p))\n"
        "if libc.prctl(22, 2, f) == 0: print('<BREACH>')\nprint('still here')",
        "still here",
    ),
    refused("type at a terminal", breach("import fcntl\nfcntl.ioctl(0, 0x5412, b'x')")),
    useless(
        "poisoned memory page",
        "import mmap\nm = mmap.mmap(-1, 4096, 34)\nm.madvise(100)\nprint('<BREACH>')",
        statuses=("error",),
    ),
    useless(
        "foreign call numbers",
        SYS + "libc.syscall(0x40000000 + 39)\nif os.uname().machine != 'x86_64': os.abort()",
        statuses=("killed",),
    ),
    useless(
        "32-bit calls",
        SYS + "import mmap\nm = mmap.mmap(-1, 4096, 34, prot=7)\n"
        "m.write(bytes.fromhex('b814000000cd80c3'))\n"  # getpid through int 0x80
        "f = ctypes.addressof(ctypes.c_char.from_buffer(m))\n"
        "ctypes.CFUNCTYPE(ctypes.c_int)(f)()\nprint('<BREACH>')",
        statuses=("killed",),
    ),
    useless(
        "fork in machine code",
        SYS + "import mmap\nm = mmap.mmap(-1, 4096, 34, prot=7)\n"
        "m.write(bytes.fromhex('b8390000000f05c3'))\n"
        "f = ctypes.addressof(ctypes.c_char.from_buffer(m))\n"
        "print(ctypes.CFUNCTYPE(ctypes.c_int)(f)())",
        "^-1$",
        statuses=("ok", "killed", "error"),
    ),
]
