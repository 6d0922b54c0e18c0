"""Attacks on held sessions, second half: what stays awake, is kept over, breaks or is left behind.

See `session_attacks.py`. Where a cell does nothing that a notebook could not do, the answers from
its state must also be those of a replay (`same`). `<WORD>` stands for an expression of the breach
word, so that the word itself is in no line that a traceback shows.
"""

from __future__ import annotations

from tests.session_attacks import REACH, SEEN, Attack

NEXT = "print('next', x + 1)"

# All that a state could do while it should stand still: forge, swap names, look for a sibling.
TICK = """
import os, signal, time
seen, ticks = [], iter(range(400))
def tick(*_):
    if next(ticks, None) is None: return
    for fd in range(64):
        try:
            if b"<SIBLING>" in os.pread(fd, 1 << 16, 0): seen.append("<SIBLING>")
        except OSError: pass
        for write in (os.write, lambda fd, text: os.pwrite(fd, text, 0)):
            try:
                if fd not in (1, 2): write(fd, b"7\\nforged\\n")
            except OSError: pass
    try: os.symlink("<OUTSIDE>", "d")
    except OSError: pass
"""


def awake(name: str, code: str) -> Attack:
    """A state in which `tick` runs while it is held."""
    return Attack(name, f"# {name}\n{TICK}{code}", (NEXT, SEEN, REACH))


AWAKE = [
    awake("a real-time timer", "signal.signal(14, tick)\nsignal.setitimer(0, 0.002, 0.002)"),
    awake(
        "a timer of its processor time",
        "signal.signal(26, tick)\nsignal.setitimer(1, 0.002, 0.002)",
    ),
    awake("a profiling timer", "signal.signal(27, tick)\nsignal.setitimer(2, 0.002, 0.002)"),
    awake("an alarm", "signal.signal(14, tick)\nsignal.alarm(1)"),
    awake(
        "a pending signal that is let through later",
        """
signal.signal(10, tick)
signal.pthread_sigmask(signal.SIG_BLOCK, [10])
os.kill(os.getpid(), 10)
real = os.fork
def fork():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [10])
    return real()
os.fork = fork
""",
    ),
    awake(
        "posix timers of every signal",
        """
import ctypes, struct
libc = ctypes.CDLL(None)
for number in (10, 12, 14, 18, 34, 64):
    signal.signal(number, tick)
    for clock in (0, 1, 7):
        timer = ctypes.c_void_p()
        event = ctypes.create_string_buffer(struct.pack("=qii48x", 0, number, 0))
        if not libc.timer_create(clock, event, ctypes.byref(timer)):
            spec = struct.pack("=4q", 0, 2_000_000, 0, 2_000_000)
            libc.timer_settime(timer, 0, spec, None)
""",
    ),
    awake(
        "a timer descriptor and a thread",
        """
import ctypes, struct, threading
libc = ctypes.CDLL(None)
fd = libc.timerfd_create(1, 0)
libc.timerfd_settime(fd, 0, struct.pack("=4q", 0, 2_000_000, 0, 2_000_000), None)
def wait():
    while os.read(fd, 8): tick()
threading.Thread(target=wait, daemon=True).start()
""",
    ),
    awake(
        "a signal that writes to a descriptor",
        """
read, write = os.pipe()
os.set_blocking(write, False)
signal.set_wakeup_fd(write)
signal.signal(14, tick)
signal.setitimer(0, 0.002, 0.002)
""",
    ),
    awake(
        "timers that the copy of a state sets before it waits",
        """
import sys
def wrap(module):
    real = module.fork
    def fork(*arguments):
        signal.signal(14, tick)
        signal.setitimer(0, 0.002, 0.002)
        while True:
            try:
                pid = real(*arguments)
                signal.setitimer(0, 0)
                return pid
            except OSError as error:
                if error.errno != 4: raise
    module.fork = fork
frame, modules = sys._getframe(), set()
while frame:
    modules |= {thing for thing in frame.f_globals.values() if type(thing) is type(sys)}
    frame = frame.f_back
for module in modules:
    if hasattr(module, "fork"): wrap(module)
""",
    ),
    awake(
        "a thread",
        """
import threading
def loop():
    while True:
        tick()
        time.sleep(0.001)
threading.Thread(target=loop, daemon=True).start()
""",
    ),
    awake(
        "a thread that starts as late as can be",
        """
import threading
def loop():
    for _ in range(2000):
        tick()
        time.sleep(0.001)
def late(*_):
    try: threading.Thread(target=loop, daemon=True).start()
    except RuntimeError: pass
for name in ("before", "after_in_parent", "after_in_child"): os.register_at_fork(**{name: late})
""",
    ),
    awake(
        "a raw thread",
        """
import ctypes
libc = ctypes.CDLL(None)
stack = ctypes.create_string_buffer(1 << 16)
top = (ctypes.addressof(stack) + (1 << 16)) & -16
libc.clone(ctypes.cast(libc.pause, ctypes.c_void_p), ctypes.c_void_p(top), 0x10F00, None)
""",
    ),
    awake(
        "a fork in the middle of the cell",
        """
try:
    if not os.fork():
        for _ in range(2000):
            tick()
            time.sleep(0.001)
        os._exit(0)
except OSError: pass
""",
    ),
    awake(
        "as many forks as it gets",
        """
for _ in range(64):
    try:
        if os.fork(): continue
    except OSError: break
    for _ in range(500):
        tick()
        time.sleep(0.001)
    os._exit(0)
""",
    ),
    awake(
        "signals to every process",
        """
for pid in (*range(1, 40), os.getppid(), os.getpid()):
    for number in (18, 10, 14):
        signal.signal(number, tick)
        try: os.kill(pid, number)
        except OSError: pass
""",
    ),
    awake(
        "functions that run around a fork",
        """
for name in ("before", "after_in_parent", "after_in_child"): os.register_at_fork(**{name: tick})
""",
    ),
    awake("an audit function", "import sys\nsys.addaudithook(tick)"),
    awake("a profile function", "import sys\nsys.setprofile(tick)"),
    awake("a trace function", "import sys\nsys.settrace(tick)"),
    awake("collected garbage", "import gc\ngc.callbacks.append(tick)\ngc.set_threshold(1)"),
    awake(
        "functions at the end",
        "import atexit, threading\natexit.register(tick)\nthreading._register_atexit(tick)",
    ),
    awake(
        "streams of its own",
        "import sys\nclass Stream:\n    closed = False\n"
        "    def write(self, text): tick()\n    def flush(self): tick()\n"
        "sys.stdout = sys.stderr = Stream()",
    ),
]


def channel(name: str, keep: str, write: str, read: str) -> Attack:
    """Something kept in a state, through which one branch would tell another the breach word."""
    looks = tuple(
        f"try:\n    {code}\nexcept Exception as error: print(type(error).__name__)"
        for code in (write, read, read)
    )
    # On numbers that the sandbox hardly puts anything on itself.
    low = "low = [os.dup(0) for _ in range(8)]", "for number in low: os.close(number)"
    cell = f"# {name}, kept for branches\nimport os, mmap, socket\n{low[0]}\n{keep}\n{low[1]}"
    return Attack(name, cell, looks, same=True)


# Not with `mmap`, whose objects keep a descriptor of the file.
MAP = """
import ctypes
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
def shared(fd):
    os.ftruncate(fd, 4096)
    return libc.mmap(None, ctypes.c_size_t(4096), 3, 1, fd, ctypes.c_long(0))
def put(word): ctypes.memmove(where + 99, word, 13)
def get(): return ctypes.string_at(where + 99, 13)
"""

KEPT = [
    channel(
        "a pipe",
        "r, w = os.pipe()\nos.set_blocking(r, False)",
        "os.write(w, <WORD>)",
        "print(os.read(r, 99))",
    ),
    channel(
        "a socket pair",
        "a, b = socket.socketpair()\na.setblocking(False)",
        "b.send(<WORD>)",
        "print(a.recv(99))",
    ),
    channel(
        "an event descriptor",
        "fd = os.eventfd(0, os.EFD_NONBLOCK)",
        "os.eventfd_write(fd, 7)",
        "print(os.eventfd_read(fd) == 7 and <WORD>)",
    ),
    channel(
        "an epoll descriptor",
        "import select\np = select.epoll()\nr, w = os.pipe()",
        "p.register(r, 1)",
        "p.modify(r, 1); print(<WORD>)",
    ),
    channel(
        "a timer descriptor",
        "import ctypes, struct\nlibc = ctypes.CDLL(None)\nfd = libc.timerfd_create(1, 0)\n"
        "now = ctypes.create_string_buffer(32)",
        "libc.timerfd_settime(fd, 0, struct.pack('=4q', 0, 0, 99, 0), None)",
        "print(libc.timerfd_gettime(fd, now), any(now.raw) and <WORD>)",
    ),
    channel("shared memory", "m = mmap.mmap(-1, 4096)", "m[:13] = <WORD>", "print(m[:13])"),
    channel(
        "a mapped file",
        MAP + "fd = os.open('f', 66)\nwhere = shared(fd)\nos.close(fd)",
        "put(<WORD>)",
        "print(get())",
    ),
    channel(
        "a mapped file that was deleted",
        MAP + "fd = os.open('f', 66)\nwhere = shared(fd)\nos.close(fd)\nos.unlink('f')",
        "put(<WORD>)",
        "print(get())",
    ),
    channel("a mapped output", MAP + "where = shared(1)", "put(<WORD>)", "print(get())"),
    channel(
        "an output under another number",
        "fd = os.dup(1)",
        "os.set_blocking(fd, False)",
        "print(not os.get_blocking(fd) and <WORD>)",
    ),
    channel(
        "an input under another number",
        "fd = os.dup(0)",
        "os.set_blocking(fd, False)",
        "print(not os.get_blocking(fd) and <WORD>)",
    ),
    channel(
        "the flags of the output",
        "y = 1",
        "os.set_blocking(1, False)",
        "print(not os.get_blocking(1) and <WORD>)",
    ),
    channel(
        "the flags of the input",
        "y = 1",
        "os.set_blocking(0, False)",
        "print(not os.get_blocking(0) and <WORD>)",
    ),
    channel(
        "the position in the input",
        "y = 1",
        "os.lseek(0, 99, 0)",
        "print(os.lseek(0, 0, 1) == 99 and <WORD>)",
    ),
    channel(
        "an open file",
        "fd = os.open('f', 66)",
        "os.pwrite(fd, <WORD>, 0)",
        "print(os.pread(fd, 13, 0))",
    ),
    channel(
        "an open file that was deleted",
        "fd = os.open('f', 66)\nos.unlink('f')",
        "os.pwrite(fd, <WORD>, 0)",
        "print(os.pread(fd, 13, 0))",
    ),
    channel(
        "the position in a library",
        "fd = os.open(os.__file__, 0)",
        "os.lseek(fd, 99, 0)",
        "print(os.lseek(fd, 0, 1) == 99 and <WORD>)",
    ),
    channel(
        "the flags of a library",
        "fd = os.open(os.__file__, 0)",
        "os.set_blocking(fd, False)",
        "print(not os.get_blocking(fd) and <WORD>)",
    ),
    channel(
        "the position in a folder",
        "fd = os.open('.', 0)",
        "os.listdir(fd)",
        "print(os.lseek(fd, 0, 1) > 0 and <WORD>)",
    ),
    channel(
        "a lock",
        "import fcntl\nfd = os.open(os.__file__, 0)",
        "fcntl.flock(fd, 2)",
        "g = os.open(os.__file__, 0); fcntl.flock(g, 6); print('free')",
    ),
    channel(
        "a deleted folder",
        "os.mkdir('d')\nos.chdir('d')\nfd = os.open('.', 0)\nos.rmdir('../d')",
        "os.fchdir(fd)",
        "print(os.listdir(fd))",
    ),
    channel(
        "the file of a folder",
        "open('f', 'w').close()",
        "open('f', 'wb').write(<WORD>)",
        "print(open('f', 'rb').read())",
    ),
    channel(
        "a new file",
        "y = 1",
        "open('g', 'wb').write(<WORD>)",
        "print(os.path.exists('g') and open('g', 'rb').read())",
    ),
    channel("standard input", "y = 1", "os.pwrite(0, <WORD>, 0)", "print(os.pread(0, 13, 0))"),
    channel("memory", "y = [0]", "y[0] = <WORD>", "print(y)"),
]
