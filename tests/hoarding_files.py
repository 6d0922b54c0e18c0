"""Programs that allocate descriptors and files. See `hoarding_cases.py`."""

from __future__ import annotations

from tests.hoarding_cases import TABLES

DESCRIPTORS = {
    "pipes": """# fills as many pipes as it may open
hold(until_refused(lambda _: kept.append(full_pipe())))
""",
    "pipes of one end": """# keeps one descriptor of each full pipe only
hold(until_refused(lambda _: os.close(full_pipe()[1])))
""",
    "enlarged pipes": """# asks for pipes of a megabyte and fills them
def take(_):
    read, write = os.pipe()
    fcntl.fcntl(write, 1031, MB)
    os.set_blocking(write, False)
    try:
        while True: os.write(write, bytes(1 << 16))
    except BlockingIOError: pass
hold(until_refused(take))
""",
    "socket pairs": TABLES
    + """# fills as many socket pairs as it may open
hold(until_refused(socket_pair))
""",
    "socket pairs in tables of their own": TABLES
    + """# fills socket pairs in threads that have left
# the table of descriptors
hold(in_own_tables(socket_pair))
""",
    "socket pairs in cloned tables": TABLES
    + """# each raw thread is given a copy of the table, after
# which the table is emptied and filled again
pause = ctypes.cast(libc.pause, ctypes.c_void_p)
stacks = ctypes.create_string_buffer(1 << 20)
low = ctypes.addressof(stacks)
def take(number):
    until_refused(socket_pair)
    top = (low + (number + 1) * 16384) & -16
    if libc.clone(pause, address(top), 0x10B00, None) < 0: raise MemoryError
    for ends in kept:
        for end in ends: end.close()
    kept.clear()
hold(until_refused(take, 64))
""",
    "pages of shortened files in sockets": """# sends a byte of each page, then shortens the
# file: the page stays in the socket, and is counted nowhere
held = 0
def fill(fd, read, write, end):
    global held
    while held < CAP and not late():
        os.pwrite(fd, bytes(16 * PAGE), 0)
        for page in range(16): os.splice(fd, write, 1, offset_src=page * PAGE)
        try: os.splice(read, end.fileno(), 16)
        except BlockingIOError:
            os.read(read, 16)
            return
        finally: os.ftruncate(fd, 0)
        held += 16 * PAGE
def take(_):
    pair = socket.socketpair()
    kept.append(pair)
    for end in pair:
        end.setblocking(False)
        fill(fd, read, write, end)
fd = os.open("f", os.O_RDWR | os.O_CREAT)
read, write = os.pipe()
until_refused(take)
hold(held // MB)
""",
    "pages of shortened files, sent": """# the same with sendfile, a page a message
held = 0
def take(_):
    global held
    pair = socket.socketpair()
    kept.append(pair)
    for end in pair:
        end.setblocking(False)
        try:
            while held < CAP and not late():
                os.pwrite(fd, bytes(PAGE), 0)
                os.sendfile(end.fileno(), fd, 0, 1)
                os.ftruncate(fd, 0)
                held += PAGE
        except BlockingIOError: pass
fd = os.open("f", os.O_RDWR | os.O_CREAT)
until_refused(take)
hold(held // MB)
""",
    "pages of shortened files in pipes": """# splices a byte of each page into pipes, then shortens
fd = os.open("f", os.O_RDWR | os.O_CREAT)
def take(_):
    read, write = os.pipe()
    os.pwrite(fd, bytes(16 * PAGE), 0)
    for page in range(16): os.splice(fd, write, 1, offset_src=page * PAGE)
    os.ftruncate(fd, 0)
    os.close(write)
hold(until_refused(take))
""",
    "copied pipes": """# fills a pipe from a random device and copies it by reference
source, first = os.pipe()
fd = os.open("/dev/urandom", os.O_RDONLY)
def take(_):
    read, write = os.pipe()
    os.set_blocking(first, False)
    try: os.sendfile(first, fd, None, 1 << 16)
    except OSError: os.write(first, bytes(1 << 16))
    libc.tee(source, write, size(1 << 16), 2)
    libc.splice(source, None, write, None, size(1 << 16), 2)
    os.close(write)
hold(until_refused(take))
""",
    "event descriptors": """# opens event descriptors and timers
def take(number):
    kept.append(os.eventfd(0) if number % 2 else libc.timerfd_create(1, 0))
    if kept[-1] < 0: raise MemoryError
hold(until_refused(take, 10_000))
""",
    "epoll": """# watches every open pipe under every free number in every epoll
import select
polls = [select.epoll() for _ in range(18)]
ends = [os.pipe()[0] for _ in range(9)]
count = 0
for end in ends:
    for number in range(48, 64):
        try: os.dup2(end, number)
        except OSError: continue
        for poll in polls:
            try: poll.register(number)
            except OSError: continue
            count += 1
hold(count)
""",
    "open files by mappings": """# opens a library again and again; a mapping keeps each open
name = os.__file__
def take(_):
    fd = os.open(name, os.O_RDONLY)
    map_memory(PAGE, 2, 1, fd)
    os.close(fd)
hold(until_refused(take, 60_000))
""",
}

# A file counts while it is open or mapped, even after its name was removed.
GONE = """
taken = 0
def gone(name="f", length=8 * MB):
    global taken
    if taken >= CAP: raise MemoryError
    fd = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
    os.unlink(name)
    taken += os.write(fd, bytes(length))
    return fd
"""

FILES = {
    "files": """# fills its folder
def take(number):
    with open(f"f{number}", "wb") as file: file.write(bytes(4 * MB))
hold(until_refused(take, 999))
""",
    "files and output": """# fills its folder, its streams and its memory
taken = 0
def take(number):
    with open(f"f{number}", "wb") as file: file.write(bytes(4 * MB))
for fd in range(3):
    try: os.pwrite(fd, bytes(8 * MB - PAGE), 0)
    except OSError: pass
until_refused(take, 15)
def fill(_): ctypes.memset(map_memory(MB), 1, MB)
until_refused(fill)
hold("all")
""",
    "files while every thread is busy": """# writes while whoever counts hardly gets the processor
threading.stack_size(32768)
chunk = bytes(2 * MB)
import hashlib
def spin(): hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)
def write(number):
    for i in range(20):
        with open(f"f{number}-{i}", "wb") as file: file.write(chunk)
until_refused(lambda _: threading.Thread(target=spin, daemon=True).start(), 24)
until_refused(lambda n: threading.Thread(target=write, args=(n,), daemon=True).start(), 8)
time.sleep(1)
hold("files")
""",
    "deleted files": GONE
    + """# keeps deleted files open
hold(until_refused(lambda _: gone()))
""",
    "deleted files in tables of their own": GONE
    + TABLES
    + """# the same in threads that have left the
# table of descriptors
hold(in_own_tables(lambda _: gone(f"f{threading.get_ident()}")))
""",
    "deleted files, mapped": GONE
    + """# keeps deleted files by one mapped page each
def take(_):
    fd = gone()
    map_memory(PAGE, 1, fd=fd)
    os.close(fd)
hold(until_refused(take))
""",
    "nameless files": """# the same with files that never had a name
taken = 0
def take(_):
    global taken
    if taken >= CAP: raise MemoryError
    fd = os.open(".", os.O_RDWR | os.O_TMPFILE)
    taken += os.write(fd, bytes(8 * MB))
    map_memory(PAGE, 1, fd=fd)
    os.close(fd)
hold(until_refused(take))
""",
    "files in a closed folder": """# makes a folder that its owner may not list, and fills it
os.mkdir("d", 0o300)
def take(number):
    if number * 8 * MB > CAP: raise MemoryError
    with open(f"d/f{number}", "wb") as file: file.write(bytes(8 * MB))
hold(until_refused(take))
""",
    "files in a folder without rights": """# makes a folder, goes into it and takes its rights away
os.mkdir("d", 0o700)
os.mkdir("e", 0o300)
os.rename("d", "e/d")
os.chdir("e/d")
def take(number):
    if number * 8 * MB > CAP: raise MemoryError
    with open(f"f{number}", "wb") as file: file.write(bytes(8 * MB))
hold(until_refused(take))
""",
    "entries in a closed folder": """# long names and long links where they cannot be counted
os.mkdir("d", 0o300)
def take(number):
    if number * 6000 > CAP: raise MemoryError
    os.symlink("x" * 4000, f"d/{number}" + "n" * 240)
hold(until_refused(take))
""",
    "links": """# long links in its folder
def take(number): os.symlink("x" * 4000, f"{number}" + "n" * 240)
hold(until_refused(take, 1020))
""",
    "deleted folders": """# keeps deleted folders open, with deleted folders in them
def take(_):
    os.mkdir("d")
    kept.append(os.open("d", os.O_RDONLY))
    os.rmdir("d")
hold(until_refused(take))
""",
    "names that do not exist": """# looks for names, which the kernel remembers
def take(number):
    try: os.stat(f"/usr/lib/{number}" + "n" * 230)
    except FileNotFoundError: pass
hold(until_refused(take, 300_000))
""",
    "reserved room": """# reserves room behind the end of files
def take(number):
    fd = os.open(f"f{number}", os.O_RDWR | os.O_CREAT)
    if libc.fallocate(fd, 1, ctypes.c_long(0), ctypes.c_long(8 * MB)): raise MemoryError
    os.close(fd)
hold(until_refused(take, 200))
""",
}

TOGETHER = {
    "everything": """# files, output, sockets, timers, signals, and tables for all that is left
timer = ctypes.c_void_p()
signal.pthread_sigmask(signal.SIG_BLOCK, range(34, 65))
def files(number):
    with open(f"f{number}", "wb") as file: file.write(bytes(4 * MB))
def timers(_):
    if libc.timer_create(0, None, ctypes.byref(timer)): raise MemoryError
def tables(number):
    where = map_memory(PAGE, 0x100022, at=(1 << 44) + (number << 30))
    ctypes.memset(where, 1, 1)
counts = [until_refused(files, 15)]
for fd in range(3):
    try: os.pwrite(fd, bytes(8 * MB - PAGE), 0)
    except OSError: pass
counts.append(until_refused(socket_pair, 28))
counts.append(until_refused(timers, 50_000))
counts.append(until_refused(lambda n: os.kill(os.getpid(), 34 + n % 30), 100_000))
counts.append(until_refused(tables, 60_000))
os.ftruncate(2, 0)
os.lseek(2, 0, 0)
os.write(2, str(counts).encode())
time.sleep(0.4)
os._exit(0)
""",
}
