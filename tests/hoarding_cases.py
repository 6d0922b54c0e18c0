"""Programs that allocate as much kernel memory as possible and keep it.

`test_sandbox_bounds.py` measures them from outside. The first line of every program describes it.
All are limited to `<SECONDS>` seconds and `<CAP>` megabytes, so that the test machine is safe even
if a layer is missing. Their memory is released with the process.
"""

from __future__ import annotations

# Common start of all programs. `late` ends loops; `hold` keeps memory until it was measured.
PRELUDE = """
import ctypes, fcntl, mmap, os, resource, signal, socket, struct, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = libc.memset.argtypes = None
END, CAP, PAGE, MB, FAILED = time.monotonic() + <SECONDS>, <CAP> << 20, 4096, 1 << 20, 2**64 - 1
kept = []
def late(): return time.monotonic() > END
def size(n): return ctypes.c_size_t(n)
def address(n): return ctypes.c_void_p(n)
def map_memory(length, flags=0x22, protection=3, fd=-1, at=None):
    where = libc.mmap(at, length, protection, flags, fd, 0)
    if where == FAILED: raise MemoryError
    return where
def unmap(where, length): libc.munmap(address(where), size(length))
def hold(what):
    os.write(1, f"held {what}\\n".encode())
    time.sleep(0.4)
    os._exit(0)
def until_refused(action, limit=10**7):
    done = 0
    try:
        while done < limit and not late():
            action(done)
            done += 1
    except (OSError, MemoryError, RuntimeError, ValueError): pass
    return done
def fill(write):
    try:
        while True: write(bytes(1 << 16))
    except BlockingIOError: pass
def full_pipe():
    read, write = os.pipe()
    os.set_blocking(write, False)
    fill(lambda data: os.write(write, data))
    return read, write
def socket_pair(_):
    pair = socket.socketpair()
    kept.append(pair)
    for end in pair:
        end.setblocking(False)
        fill(end.send)
"""

# Threads with their own table of descriptors, if the sandbox permits it.
TABLES = """
def in_own_tables(action, tables=64):
    threading.stack_size(1 << 16)
    counts, done = [], threading.Barrier(tables + 1)
    def one():
        refused = libc.syscall(436, 2**32 - 1, 2**32 - 1, 2)
        if not refused: counts.append(until_refused(action))
        done.wait()
        time.sleep(9)
    for _ in range(tables): threading.Thread(target=one, daemon=True).start()
    done.wait()
    return sum(counts)
"""

MEMORY = {
    "memory": """# maps anonymous memory to the limit of its address space
def take(_):
    where = map_memory(MB)
    ctypes.memset(where, 1, MB)
print(until_refused(take))
hold("memory")
""",
    "shared memory of which a page stays mapped": """# unmaps all but a page, which keeps the rest
taken = 0
def take(_):
    global taken
    if taken >= CAP: raise MemoryError
    where = map_memory(8 * MB, 0x21)
    ctypes.memset(where, 1, 8 * MB)
    unmap(where + PAGE, 8 * MB - PAGE)
    taken += 8 * MB
hold(until_refused(take))
""",
    "huge pages of which a small one stays mapped": """# the rest waits to be split
taken = 0
def take(_):
    global taken
    if taken >= CAP: raise MemoryError
    where = map_memory(4 * MB)
    start = (where + 2 * MB - 1) & -(2 * MB)
    libc.madvise(address(start), size(2 * MB), 14)
    ctypes.memset(start, 1, 2 * MB)
    unmap(where, start - where)
    unmap(start + PAGE, where + 4 * MB - start - PAGE)
    taken += 2 * MB
hold(until_refused(take))
""",
    "page tables": """# touches one page in each gigabyte: two pages of tables each
def take(number):
    where = map_memory(PAGE, 0x100022, at=(1 << 44) + (number << 30))
    ctypes.memset(where, 1, 1)
hold(until_refused(take, 60_000))
""",
    "page tables of read pages": """# reads one page in each gigabyte: tables, and no memory
def take(number):
    where = map_memory(PAGE, 0x100022, at=(1 << 44) + (number << 30))
    ctypes.string_at(where, 1)
hold(until_refused(take, 60_000))
""",
    "guard marks": """# marks one page in each gigabyte as a guard: tables, and no memory
def take(number):
    where = map_memory(PAGE, 0x100022, at=(1 << 44) + (number << 30))
    if libc.madvise(address(where), size(PAGE), 102): raise MemoryError
hold(until_refused(take, 60_000))
""",
    "moved mappings": """# moves mappings and keeps the emptied ones
def take(_):
    where = map_memory(2 * MB)
    ctypes.memset(where, 1, 2 * MB)
    moved = libc.syscall(25, address(where), size(2 * MB), size(2 * MB), 5, 0)
    if moved == -1: raise MemoryError
hold(until_refused(take))
""",
    "mappings of alternating rights": """# many small mappings out of one
where = map_memory(40 * MB)
def take(number):
    if libc.mprotect(address(where + 2 * number * PAGE), size(PAGE), 1): raise MemoryError
hold(until_refused(take, 20 * MB // PAGE))
""",
    "names of mappings": """# names each of many mappings, with as long a name as can be
def take(number):
    where = map_memory(PAGE, protection=1 + number % 2)
    name = (b"%060d" % number) + b"n" * 19
    if libc.prctl(0x53564D41, 0, address(where), size(PAGE), name): raise MemoryError
hold(until_refused(take, 60_000))
""",
    "stacks": """# starts as many threads as it may, with small stacks
threading.stack_size(32768)
def take(_): threading.Thread(target=time.sleep, args=(9,), daemon=True).start()
hold(until_refused(take, 4000))
""",
}

SIGNALS = {
    "posix timers": """# makes timers until it is refused
timer = ctypes.c_void_p()
def take(_):
    if libc.timer_create(0, None, ctypes.byref(timer)): raise MemoryError
hold(until_refused(take, 200_000))
""",
    "queued signals": """# sends itself blocked real-time signals
signal.pthread_sigmask(signal.SIG_BLOCK, range(34, 65))
def take(number): os.kill(os.getpid(), 34 + number % 30)
hold(until_refused(take, 200_000))
""",
}

# Unlocking every other byte from the end splits the first lock of the list and reads no further.
SPLIT = """
split = ctypes.PyDLL(None).fcntl
def split_lock(fd, command, kind):
    lock = ctypes.create_string_buffer(struct.pack("hhqqi4x", kind, 0, 0, 1 << 40, 0))
    if split(fd, command, lock): raise OSError
    struct.pack_into("hhqqi4x", lock, 0, 2, 0, 0, 1, 0)
    start = ctypes.c_int64.from_buffer(lock, 8)
    start.value = 1 << 40
    for done in range(CAP // 192 // 10_000):
        if late(): break
        for _ in range(10_000):
            start.value -= 2
            if split(fd, command, lock): raise OSError
    return done * 10_000
"""

LOCKS = {
    "record locks": SPLIT
    + """# locks every other byte of a file
hold(split_lock(os.open("f", os.O_RDWR | os.O_CREAT), 6, 1))
""",
    "locks of open files": SPLIT
    + """# the same with locks that belong to the open file
hold(split_lock(os.open("f", os.O_RDWR | os.O_CREAT), 37, 1))
""",
    "read locks of a library": SPLIT
    + """# the same on a file that it may only read
hold(split_lock(os.open(os.__file__, os.O_RDONLY), 6, 0))
""",
    "file locks of mapped files": """# flock on many open files, kept open by a mapping alone
open("f", "w").write("x")
def take(_):
    fd = os.open("f", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_SH)
    map_memory(PAGE, 1, fd=fd)
    os.close(fd)
hold(until_refused(take, 60_000))
""",
}
