"""Hostile code as data: what reaches for processes, files, the network and other calls.

`CASES` also holds what only exhausts or confuses (`greedy_cases.py`). A case is a program, the
statuses that it may end with and a pattern that its output must show. Programs print `<BREACH>`
once they got what they must not get, or print a canary; neither may ever be seen. `leaks` marks
those that must succeed when isolation is off: their targets are all planted by the tests, so this
negative control harms nobody. `endless` marks those that only a limit ends.
"""

from __future__ import annotations

from dataclasses import dataclass

REPOSITORY_CANARY = "canary-in-the-repository-3b9e"  # read from this very file
DENIED = r"Errno (1|2|6|13|18|20|30)\b|Error"  # the wording depends on which layer says no first
SYS = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"  # how C code would do it
SOCKET = "import socket\n"


@dataclass(frozen=True)
class Case:
    """One program and what may become of it."""

    name: str
    code: str
    statuses: tuple[str, ...]
    says: str = ""
    leaks: bool = False
    endless: bool = False
    stdin: str = ""
    history: tuple[str, ...] = ()


def refused(name, code, says=DENIED, leaks=False, **more):
    """Ends as an exception: the system said no."""
    return Case(name, code, ("error",), says, leaks, **more)


def useless(name, code, says="", leaks=False, statuses=("ok", "error"), **more):
    """May end well, but has reached nothing."""
    return Case(name, code, statuses, says, leaks, **more)


def breach(action):
    """A program that says so if `action` went through."""
    return f"{action}\nprint('<BREACH>')"


def calls(text, result="0"):
    """A C call that must not return `result`."""
    return f"{SYS}if libc.{text} {'>=' if result == '>=0' else '=='} 0: print('<BREACH>')"


def listed(paths, action="open(p, 'rb').read(1)"):
    """Tries every path and names those that opened."""
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
            "import multiprocessing as m\np = m.get_context('fork').Process(target=print)\np.start()\n"
            "p.join()"
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

FILES = [
    refused("read a file", "print(open('<SECRET>').read())", leaks=True),
    refused("read in home", "print(open('<HOME>').read())", leaks=True),
    refused("read in tmp", "print(open('<TMP>').read())", leaks=True),
    refused(
        "read the repository",
        "print(open('<REPO>/tests/hostile_cases.py').read()[:1500])",
        leaks=True,
    ),
    refused("read this library", "print(open('<REPO>/drlib/sandbox/zygote.py').read())"),
    refused("list the repository", breach("import os\nos.listdir('<REPO>')"), leaks=True),
    refused("import this library", breach("import drlib"), "ModuleNotFoundError"),
    refused(
        "import from the repository",
        "import sys\nsys.path.insert(0, '<REPO>')\n"
        "import tests.hostile_cases as c\nprint(c.REPOSITORY_CANARY)",
        leaks=True,
    ),
    refused(
        "load by path",
        "from importlib.machinery import SourceFileLoader as L\n"
        "print(L('c', '<REPO>/tests/hostile_cases.py').get_data("
        "'<REPO>/tests/hostile_cases.py')[:1500])",
        leaks=True,
    ),
    refused("run a path", breach("import runpy\nrunpy.run_path('<FOLDER>/module.py')"), leaks=True),
    refused(
        "import a zip",
        breach("import sys\nsys.path.append('<FOLDER>/z.zip')\nimport inside"),
        leaks=True,
    ),
    refused("import facts", breach("import babel"), "ModuleNotFoundError"),
    refused(
        "import facts by path",
        breach(
            "import sys, numpy, os\nsys.path.append(os.path.dirname(numpy.__path__[0]))\n"
            "import babel"
        ),
        "Errno|Error",
    ),
    useless(
        "list of packages",
        "import importlib.metadata as m\nif [d for d in m.distributions()]: print('<BREACH>')",
    ),
    useless(
        "site folders",
        "import site, numpy, os\n"
        "site.addsitedir(os.path.dirname(numpy.__path__[0]))\nimport yaml\nprint('<BREACH>')",
        statuses=("error",),
    ),
    refused("read /etc/passwd", "print(open('/etc/passwd').read())"),
    refused("read /etc/shadow", "print(open('/etc/shadow').read())"),
    refused("user data base", breach("import pwd\npwd.getpwall()[0]")),
    useless("walk the root", "import os\nprint(sum(len(f) for _, _, f in os.walk('/etc')))", "^0$"),
    refused("list the root", breach("import os\nos.listdir('/')")),
    refused(
        "list scratch folders",
        breach("import os\nos.listdir(os.path.dirname(os.path.dirname(os.getcwd())))"),
    ),
    useless(
        "list common folders",
        listed(
            ["/tmp", "/dev/shm", "/home", "/root", "/var", "/run", "/proc", "/sys", "/dev", "/etc"],
            "os.listdir(p)",
        ),
    ),
    useless(
        "devices",
        listed(
            [
                "/dev/mem",
                "/dev/kmsg",
                "/dev/tty",
                "/dev/ptmx",
                "/dev/fuse",
                "/dev/kvm",
                "/dev/full",
                "/dev/net/tun",
                "/proc/kcore",
                "/proc/kallsyms",
                "/sys/firmware",
                "/var/run/docker.sock",
                "/etc/hosts",
                "/etc/machine-id",
            ]
        ),
    ),
    refused("own environment", "print(open('/proc/self/environ').read())"),
    refused("environment of a process", "print(open('/proc/<VICTIM>/environ').read())", leaks=True),
    refused(
        "command line of a process", "print(open('/proc/<VICTIM>/cmdline').read())", leaks=True
    ),
    useless(
        "environment of all",
        "import glob\nfor p in glob.glob('/proc/[0-9]*/environ'):\n"
        "    try: print(open(p).read())\n    except OSError: pass",
    ),
    refused("own memory", breach("open('/proc/self/mem', 'wb')")),
    refused("memory of the template", breach("import os\nopen(f'/proc/{os.getppid()}/mem')")),
    refused("own maps", breach("open('/proc/self/maps').read()")),
    refused("magic link", "print(open('/proc/<VICTIM>/cwd/secret').read())", leaks=True),
    refused(
        "where a process works", breach("import os\nos.readlink('/proc/<VICTIM>/cwd')"), leaks=True
    ),
    refused(
        "path descriptor",
        "import os\nfd = os.open('<FOLDER>', os.O_PATH)\n"
        "print(os.read(os.open('secret', os.O_RDONLY, dir_fd=fd), 99))",
        leaks=True,
    ),
    refused(
        "path descriptor, reopened",
        "import os\nfd = os.open('<SECRET>', os.O_PATH)\nprint(open(f'/proc/self/fd/{fd}').read())",
        leaks=True,
    ),
    refused(
        "another folder",
        "import os\nos.chdir('<FOLDER>')\nprint(open('secret').read())",
        leaks=True,
    ),
    refused(
        "symbolic link",
        "import os\nos.symlink('<SECRET>', 's')\nprint(open('s').read())",
        leaks=True,
    ),
    refused(
        "hard link",
        "import os\nos.link('<SECRET>', '<FOLDER>/h')\n"
        "t = open('<FOLDER>/h').read()\nos.unlink('<FOLDER>/h')\nprint(t)",
        leaks=True,
    ),
    refused("link into the folder", "import os\nos.link('<SECRET>', 'h')\nprint(open('h').read())"),
    refused("rename into the folder", breach("import os\nos.rename('<SECRET>', 's')")),
    refused("rename out", breach("import os\nopen('a', 'w')\nos.rename('a', '<FOLDER>/a')")),
    refused("dot dot", breach("open('../escaped', 'w')")),
    refused(
        "many dot dots", "print(open('../../../../../../../../..<SECRET>').read())", leaks=True
    ),
    refused(
        "write outside",
        breach("import os\nopen('<FOLDER>/w', 'w')\nos.unlink('<FOLDER>/w')"),
        leaks=True,
    ),
    refused("write over", breach("open('<SECRET>', 'r+')"), leaks=True),
    refused("truncate", breach("import os\nos.truncate('<SECRET>', <SIZE>)"), leaks=True),
    refused("delete", breach("import os\nos.unlink('<SECRET>')")),
    refused(
        "make a folder",
        breach("import os\nos.mkdir('<FOLDER>/d')\nos.rmdir('<FOLDER>/d')"),
        leaks=True,
    ),
    refused("chmod", breach("import os\nos.chmod('<SECRET>', 0o666)"), leaks=True),
    refused(
        "chmod through a descriptor",
        breach("import os\nos.fchmod(os.open('f', os.O_CREAT | os.O_RDWR), 0o4777)"),
    ),
    refused("chown", breach("import os\nos.chown('<SECRET>', -1, -1)"), leaks=True),
    refused("touch", breach("import os\nos.utime('<SECRET>')")),
    refused("attribute", breach("import os\nos.setxattr('<SECRET>', 'user.a', b'1')")),
    refused(
        "inode flags",
        breach(
            "import fcntl, struct\nf = open('f', 'w')\n"
            "fcntl.ioctl(f, 0x40086602, struct.pack('l', 16))"
        ),
    ),
    refused(
        "named pipe",
        breach("import os\nos.mkfifo('<FOLDER>/p')\nos.unlink('<FOLDER>/p')"),
        leaks=True,
    ),
    refused("device file", breach("import os\nos.mknod('d', 0o20666, os.makedev(1, 1))")),
    refused(
        "sendfile", "import os\nfd = os.open('<SECRET>', 0)\nos.sendfile(1, fd, 0, 99)", leaks=True
    ),
    refused("copy", "import shutil\nprint(open(shutil.copy('<SECRET>', 'c')).read())", leaks=True),
    refused(
        "numpy", "import numpy as n\nprint(n.fromfile('<SECRET>', 'u1').tobytes())", leaks=True
    ),
    refused(
        "memory map",
        "import numpy as n\nprint(n.memmap('<SECRET>', 'u1', 'r').tobytes())",
        leaks=True,
    ),
    refused(
        "data base",
        breach("import sqlite3 as q\nq.connect('<FOLDER>/base').execute('select * from t')"),
        leaks=True,
    ),
    useless(
        "C library",
        SYS + "fd = libc.open(b'<SECRET>', 0)\nb = ctypes.create_string_buffer(99)"
        "\nlibc.read(fd, b, 99)\nprint(b.value)",
        leaks=True,
    ),
    refused("load as a library", "import ctypes\nctypes.CDLL('<SECRET>')", "OSError"),
    refused("line of a traceback", "exec(compile('1/0', '<SECRET>', 'exec'))", leaks=True),
    useless(
        "line of a warning",
        "import warnings\nwarnings.warn_explicit('w', UserWarning, '<SECRET>', 1)",
        leaks=True,
    ),
    useless(
        "completion of names",
        "import glob\nif glob.glob('<FOLDER>/*'): print('<BREACH>')",
        leaks=True,
    ),
    refused("standard library", breach("open('<STDLIB>/os.py', 'a')")),
    refused("numpy's files", breach("import numpy\nopen(numpy.__file__, 'a')")),
    refused("compiled files", breach("open('<STDLIB>/__pycache__/evil.pyc', 'w')")),
    refused("remove the own folder", breach("import os\nos.rmdir(os.getcwd())")),
    refused("rename the own folder", breach("import os\nos.rename(os.getcwd(), '../elsewhere')")),
    refused("temporary folder", breach("import tempfile\ntempfile.mkstemp(dir='/tmp')")),
    refused("shared memory folder", breach("open('/dev/shm/<TOKEN>', 'w')")),
    refused("fill shared memory", "while True: open('/dev/shm/<TOKEN>', 'ab').write(bytes(9999))"),
    refused(
        "shared memory block",
        breach(
            "from multiprocessing.shared_memory import SharedMemory as S\nS('<TOKEN>', True, 99)"
        ),
    ),
    useless(
        "system V shared memory",
        SYS + "n = libc.shmget(<KEY>, 4096, 0o1600)\n"
        "if n >= 0:\n    libc.shmctl(n, 0, None)\n    print('<BREACH>')",
        leaks=True,
    ),
    useless(
        "system V semaphores",
        SYS + "n = libc.semget(<KEY>, 1, 0o1600)\n"
        "if n >= 0:\n    libc.semctl(n, 0, 0)\n    print('<BREACH>')",
        leaks=True,
    ),
    useless(
        "message queues",
        SYS + "n = libc.msgget(<KEY>, 0o1600)\n"
        "if n >= 0:\n    libc.msgctl(n, 0, None)\n    print('<BREACH>')",
        leaks=True,
    ),
    useless("posix queue", calls("mq_open(b'/<TOKEN>', 0o102, 0o600, None)", ">=0")),
    useless(
        "posix semaphore",
        SYS + "libc.sem_open.restype = ctypes.c_void_p\n"
        "if libc.sem_open(b'/<TOKEN>', 0o100, 0o600, 1): print('<BREACH>')",
    ),
    refused("memory file", breach("import os\nos.memfd_create('x')"), leaks=True),
    refused("change of root", breach("import os\nos.chroot('.')")),
    useless("mount", calls("mount(b'none', b'.', b'tmpfs', 0, None)")),
    useless("new user namespace", calls("unshare(0x10000000)")),
    useless("new network namespace", calls("unshare(0x40000000)")),
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

REACHING = PROCESSES + FILES + NETWORK + POWERS
