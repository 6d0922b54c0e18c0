"""The kernel's layers around generated code: limits, credentials, namespaces, Landlock, seccomp.

Plain ctypes on system calls: no root, no compiler, no package; in an unprivileged container it
works wherever the container lets the calls through. Nothing here decides whether it is good enough:
`trials.py` tries every layer, each child takes them all, and one that fails raises `LayerError`
before any generated code runs.

Landlock says which files may be opened, but not whether their mode may be changed, and nothing
about processes and sockets; so seccomp, which sees numbers and not paths, denies the rest (chmod,
chown, times, xattr, sockets, exec, fork). Where namespaces come on top, a call is process 1 of a
PID namespace (whatever it starts dies with it), sees no network and writes to a memory file system
of its own.

Left out: cgroups (they need delegation), macOS's `sandbox-exec`. Not contained: names and sizes of
existing files (`stat` works), bugs in allowed system calls, cache side channels; without namespaces
also the room of files that are deleted while they are open or mapped.
This file imports the standard library only, because the template process loads it by path.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import itertools
import os
import platform
import resource
import struct
import sys
from collections.abc import Callable, Iterable

NOBODY = 65534  # the kernel's overflow id: owns nothing anywhere
NEW_MOUNTS, NEW_UTS, NEW_IPC, NEW_USER, NEW_PID, NEW_NET = (
    0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
MS_PRIVATE = 0x4000 | 0x40000  # with everything below: no mount of ours shows outside

_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}  # AUDIT_ARCH, table column

_THREAD_FLAGS = 0x100 | 0x800 | 0x10000  # CLONE_VM, CLONE_SIGHAND, CLONE_THREAD
_CLONE_FLAGS = _THREAD_FLAGS | 0x7E020000 | 0x2000  # with CLONE_NEW* and CLONE_PTRACE
_ALL, _PID = 0xFFFFFFFF, 0xFFFFFFF1  # _PID stands for the process id until `install`
# Calls whose arguments are looked at, as (x86-64, aarch64) numbers: for each argument its number, a
# mask, and the permitted values of its low half. All arguments must fit.
_CONDITIONS = {
    (56, 220): [(0, _CLONE_FLAGS, (_THREAD_FLAGS,))],  # clone: threads only
    # socketpair: the connected AF_UNIX stream that asyncio wakes itself with; a datagram pair could
    # address any other socket of the machine
    (53, 199): [(0, _ALL, (1,)), (1, 0xF, (1,))],
    (157, 167): [(0, _ALL, (3, 15, 16, 39, 0x53564D41))],  # prctl: names, naming of memory
    (16, 29): [(1, _ALL, (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451))],  # ioctl: isatty, ...
    (72, 25): [(1, _ALL, (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1032))],  # fcntl: no owner
    (302, 261): [(0, _ALL, (0,))],  # prlimit64: only of the caller itself
    (62, 129): [(0, _ALL, (_PID,))], (234, 131): [(0, _ALL, (_PID,))],  # kill, tgkill
}
_CLONE, _CLONE3 = (56, 220), (435, 435)

_LOAD, _JEQ, _JGE, _JGT, _AND, _RET = 0x20, 0x15, 0x35, 0x25, 0x54, 0x06
_RET_ALLOW, _RET_KILL, _RET_ASK = 0x7FFF0000, 0x80000000, 0x7FC00000
_RET_DENY = 0x00050000 | errno.EPERM
_RET_ABSENT = 0x00050000 | errno.ENOSYS

_READ_FILE, _READ_DIR, _TRUNCATE, _WRITE_FILE = 1 << 2, 1 << 3, 1 << 14, 1 << 1
_NOT_IN_WORK = 1 << 0 | 1 << 6 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 15  # exec, devices, sockets
MIN_LANDLOCK_ABI = 3  # below it a file may be truncated by path


Step = tuple[str, Callable, tuple]  # what it is, a function, its arguments


class LayerError(OSError):
    """A layer could not be put in place; the text names the layer and the system's reason."""


_libc = ctypes.PyDLL(None, use_errno=True)  # it keeps Python's lock: a forked child goes on at once


def _step(what: str, name: str, *arguments) -> Step:
    longs = (ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments)
    return what, getattr(_libc, name), tuple(longs)


def _do(step: Step) -> int:
    what, function, arguments = step
    result = function(*arguments)
    if type(result) is int and result < 0:
        number = ctypes.get_errno()
        raise LayerError(number, f"{what}: {os.strerror(number)}")
    return result


def take(steps: Iterable[Step]) -> None:
    """Make calls that the layers below have prepared, once in the template and not page by page of
    copied memory in every child; `LayerError` names the first that fails."""
    for step in steps:
        _do(step)


def fork(before: Iterable[Step]) -> int:
    """Take the steps `before`, then fork as `os.fork` does (0 in the child), for a process of one
    thread: without the hooks of Python's modules, which touch 150 pages of a child. `LayerError`
    where a step or the fork fails."""
    take(before)
    return _do(("fork", _libc.fork, ()))


def limits(values: dict[str, int]) -> list[Step]:
    """Set `RLIMIT_<name>` hard and soft, e.g. {"AS": bytes, "CPU": seconds}; never raises one."""
    steps: list[Step] = []
    for name, value in values.items():
        which = getattr(resource, f"RLIMIT_{name}", None)
        if which is None:  # MSGQUEUE and others do not exist outside Linux
            continue
        hard = resource.getrlimit(which)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        steps.append((f"limit {name}", resource.setrlimit, (which, (value, value))))
    return steps


def _on_linux(what: str, name: str, *arguments) -> list[Step]:
    return [_step(what, name, *arguments)] if sys.platform == "linux" else []


def die_with_parent(number: int) -> list[Step]:
    """Get signal `number` when the parent dies; any change of credentials clears this."""
    return _on_linux("die with parent", "prctl", 1, number, 0, 0, 0)


# Become the parent of every descendant whose own parent exits (child subreaper).
ADOPT_ORPHANS = _on_linux("subreaper", "prctl", 36, 1, 0, 0, 0)
# Make set-uid programs harmless; Landlock and seccomp require it of a process without root.
NO_NEW_PRIVILEGES = _on_linux("no_new_privileges", "prctl", 38, 1, 0, 0, 0)
NO_CAPABILITIES = _on_linux("capset", "capset", struct.pack("=Ii", 0x20080522, 0), bytes(24))


def nobody() -> list[Step]:
    """From root to uid and gid 65534 for good; capabilities go with it."""
    three = (NOBODY,) * 3
    return [("setgroups", os.setgroups, ([],)), ("setresgid", os.setresgid, three),
            ("setresuid", os.setresuid, three)]


def enter_user_namespace() -> None:
    """Become uid 65534 of a new user namespace: files are still read as their owner, but no
    capability counts outside. For a root whose Python lies where uid 65534 cannot read, and for the
    other namespaces where the caller is not root."""
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        os.setgroups([])
    unshare(NEW_USER)
    for name, text in (
        ("setgroups", "deny"), ("gid_map", f"{NOBODY} {gid} 1"), ("uid_map", f"{NOBODY} {uid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def unshare(flags: int) -> None:
    """Leave the namespaces named by `flags` for new ones (a PID namespace: the next child)."""
    take([_step(f"unshare({flags:#x})", "unshare", flags)])


def enter_namespaces() -> int:
    """Own mounts, network (no interface is up), IPC and host name for this process; a descriptor of
    the PID namespace that it is in, for `new_pid_namespace`."""
    home = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    unshare(NEW_MOUNTS | NEW_UTS | NEW_IPC | NEW_NET)
    take([_step("private mounts", "mount", b"none", b"/", b"", MS_PRIVATE, b"")])
    return home


def new_pid_namespace(home: int) -> list[Step]:
    """The next child becomes process 1 of a PID namespace that dies with it."""
    back = _step("setns(pid)", "setns", home, NEW_PID)  # unshare twice in a row is an error
    return [back, _step("unshare(pid)", "unshare", NEW_PID)]


def work_mount(folder: str, size: int, entries: int) -> list[Step]:
    """An empty memory file system of uid 65534 over `folder`, for this process alone."""
    options = f"size={size},nr_inodes={entries},mode=700,uid={NOBODY},gid={NOBODY}"
    flags = 0xE  # no set-uid, no devices, no programs
    return [_step("unshare(mounts)", "unshare", NEW_MOUNTS),
            _step("mount", "mount", b"tmpfs", folder.encode(), b"tmpfs", flags, options.encode())]


def landlock_abi() -> int:
    """The kernel's Landlock version, or 0 where it has none."""
    try:
        return _do(_step("landlock", "syscall", 444, None, 0, 1))
    except LayerError:
        return 0


def landlock_ruleset(read: Iterable[str], list_only: Iterable[str], work: str) -> int:
    """A ruleset (a descriptor) that children share and apply with `landlock_restrict`.

    Args:
        read: files and folders whose contents may be read.
        list_only: folders whose entries may be listed, contents not.
        work: the one folder in which files may be made and changed. Nothing may be executed.
    """
    abi = landlock_abi()
    if abi < MIN_LANDLOCK_ABI:
        raise LayerError(errno.ENOSYS, f"Landlock ABI {abi}, needed is {MIN_LANDLOCK_ABI}")
    rights = 0xFFFF if abi >= 5 else 0x7FFF
    attributes = struct.pack("=QQQ", rights, 3, 3)  # TCP; abstract sockets and signals to others
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8  # as many of the three as the kernel knows
    ruleset = _do(_step("landlock_create_ruleset", "syscall", 444, attributes, size, 0))
    for path, allowed in (
        *((path, _READ_FILE | _READ_DIR) for path in read),
        *((path, _READ_DIR) for path in list_only),
        (os.devnull, _READ_FILE | _WRITE_FILE | _TRUNCATE), (work, rights & ~_NOT_IN_WORK),
    ):
        _landlock_allow(ruleset, path, allowed)
    return ruleset


def _landlock_allow(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # what is not there needs no permission
    try:
        if not os.path.isdir(path):
            rights &= _READ_FILE | _WRITE_FILE | _TRUNCATE
        rule = struct.pack("=Qi", rights, fd)
        _do(_step(f"landlock_add_rule {path}", "syscall", 445, ruleset, 1, rule, 0))
    finally:
        os.close(fd)


def landlock_restrict(ruleset: int) -> list[Step]:
    """Apply the ruleset for good."""
    return [_step("landlock", "syscall", 446, ruleset, 0)]


def _op(code: int, k: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, k)


class SeccompFilter:
    """An allow-list of system calls, assembled once. Others fail with EPERM (clone3 with ENOSYS, so
    that libc falls back to clone, whose flags can be read); another architecture's call numbers
    kill the process.

    Args:
        machine: whose call numbers, "x86_64" or "aarch64"; by default this one's. `LayerError` for
            another.
        ask_to_fork: each fork waits for the answer of another process (`answer_fork`).
    """

    def __init__(self, machine: str = "", ask_to_fork: bool = False) -> None:
        machine = machine or platform.machine()
        if machine not in _MACHINES:
            raise LayerError(errno.ENOSYS, f"seccomp: no system call table for {machine!r}")
        arch, column = _MACHINES[machine]
        code = [_op(_LOAD, 4), _op(_JEQ, arch, 1, 0), _op(_RET, _RET_KILL), _op(_LOAD, 0)]
        if machine == "x86_64":  # the x32 numbers
            code += [_op(_JGE, 0x40000000, 0, 1), _op(_RET, _RET_KILL)]
        for low, high in _allowed_ranges(column):
            code += [_op(_JGE, low, 0, 2), _op(_JGT, high, 1, 0), _op(_RET, _RET_ALLOW)]
        bodies = [(_CLONE3, [_op(_RET, _RET_ABSENT)])]
        if ask_to_fork:
            bodies.append((_CLONE, [_op(_LOAD, 16), _op(_AND, _CLONE_FLAGS), _op(_JEQ, 0, 0, 1),
                                    _op(_RET, _RET_ASK), _op(_LOAD, 0)]))
        bodies += [(call, _conditional(conditions)) for call, conditions in _CONDITIONS.items()]
        for call, body in bodies:
            code += [_op(_JEQ, call[column], 0, len(body)), *body]
        code.append(_op(_RET, _RET_DENY))
        slot = _op(_JEQ, _PID, 1, 0)
        self._pid_slots = [8 * i + 4 for i, each in enumerate(code) if each == slot]
        self.instructions = len(code)
        self._program = ctypes.create_string_buffer(b"".join(code))
        header = struct.pack("@HP", self.instructions, ctypes.addressof(self._program))
        flags = 8 if ask_to_fork else 0  # SECCOMP_FILTER_FLAG_NEW_LISTENER
        self._call = _step("seccomp", "syscall", (317, 277)[column], 1, flags, header)

    def install(self) -> int:
        """Filter this (single-threaded) process from now on; only itself may it signal. Returns the
        descriptor on which another process answers who may fork (`answer_fork`), or 0 where nobody
        may. `LayerError` where the kernel refuses."""
        for slot in self._pid_slots:
            struct.pack_into("=I", self._program, slot, os.getpid())
        return _do(self._call)


def _allowed_ranges(column: int) -> Iterable[tuple[int, int]]:
    """(first, last) of each run of numbers that need no look at their arguments."""
    with open(os.path.join(os.path.dirname(__file__), "syscalls.txt")) as file:
        entries = [word for line in file if line[0] != "#" for word in line.split()]
    numbers = sorted(int(n) for e in entries if (n := e.split(":")[1 + column]) != "-")
    for _, run in itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in run]
        yield run[0], run[-1]


def _conditional(conditions: list[tuple[int, int, tuple[int, ...]]]) -> list[bytes]:
    body = []
    for argument, mask, values in conditions:
        # its low half: both machines are little-endian
        body += [_op(_LOAD, 16 + 8 * argument), _op(_AND, mask)]
        for after, value in zip(range(len(values), 0, -1), values):
            body.append(_op(_JEQ, value, after, 0))  # past the others and the denial
        body.append(_op(_RET, _RET_DENY))
    return [*body, _op(_RET, _RET_ALLOW)]


def answer_fork(listener: int, allow: bool) -> None:
    """Answer one process that waits to fork: go on, or EPERM."""
    question = bytearray(80)
    with contextlib.suppress(FileNotFoundError):  # killed while it waited
        fcntl.ioctl(listener, 0xC0502100, question)
        (number,) = struct.unpack_from("=Q", question)
        verdict = (0, 0, 1) if allow else (0, -errno.EPERM, 0)
        fcntl.ioctl(listener, 0xC0182101, struct.pack("=QqiI", number, *verdict))


def take_descriptor(pid: int, fd: int) -> int:
    """Our copy of descriptor `fd` of our child `pid`."""
    process = os.pidfd_open(pid)
    try:
        return _do(_step("pidfd_getfd", "syscall", 438, process, fd, 0))
    finally:
        os.close(process)
