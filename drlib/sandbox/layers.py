"""The kernel's layers around generated code: limits, credentials, namespaces, Landlock, seccomp.

Everything is plain ctypes on system calls, so it needs no root, no compiler and no package, and it
works inside an unprivileged container wherever the container lets the calls through. No layer here
decides whether it is good enough: `trials.py` tries every one, each child takes them all, and one
that fails raises `LayerError` before any generated code runs.

Why Landlock and seccomp together: Landlock says which files may be opened, but not whether their
mode may be changed, and nothing about processes and sockets; seccomp sees numbers, not paths.
So the filter denies what Landlock cannot see (chmod, chown, times, xattr, sockets, exec, fork).

Namespaces come on top where the machine permits them: then a call is process 1 of a PID namespace
of its own (whatever it starts dies with it), sees no network and writes to a memory file system
that vanishes with it.

Left out: cgroups (they need delegation), macOS's `sandbox-exec`. Not contained: names and sizes of
existing files (`stat` works), bugs in allowed system calls, cache side channels; without namespaces
also the room of files that are deleted while they are open or mapped.
This file imports the standard library only, because the template process loads it by path.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import os
import platform
import struct
from collections.abc import Callable, Iterable

try:
    import resource
except ImportError:  # Windows, where `probe` must still be able to say that nothing works
    resource = None

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

_FS_RIGHTS = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF, 5: 0xFFFF}  # by Landlock ABI
_READ_FILE, _READ_DIR, _TRUNCATE, _WRITE_FILE = 1 << 2, 1 << 3, 1 << 14, 1 << 1
_NOT_IN_WORK = 1 << 0 | 1 << 6 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 15  # exec, devices, sockets
MIN_LANDLOCK_ABI = 3  # below it a file may be truncated by path


Step = tuple[str, Callable, tuple]  # what it is, a function, its arguments


class LayerError(OSError):
    """A layer could not be put in place; the text names the layer and the system's reason."""


@functools.lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise LayerError(number, f"{what}: {os.strerror(number)}")
    return result


def _syscall(number: int, what: str, *arguments) -> int:
    return _check(_libc().syscall(ctypes.c_long(number), *arguments), what)


def _step(what: str, name: str, *arguments) -> Step:
    longs = (ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments)
    return what, getattr(_libc(), name), tuple(longs)


def fork() -> int:
    """`os.fork` for a process of one thread, without the hooks of Python's modules around it, which
    touch 150 pages of a child; raises OSError."""
    return _check(_forking().fork(), "fork")


@functools.lru_cache(maxsize=1)
def _forking() -> ctypes.PyDLL:
    return ctypes.PyDLL(None, use_errno=True)  # it keeps Python's lock: the child goes on at once


def take(steps: Iterable[Step]) -> None:
    """Make prepared calls in order; `LayerError` names the first that fails.

    Each layer below is a list of such calls: what is prepared once in the template need not be
    computed, page by page of copied memory, in every child.
    """
    for what, function, arguments in steps:
        result = function(*arguments)
        if type(result) is int and result < 0:
            _check(result, what)


# --- limits and credentials -------------------------------------------------------------------


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


def die_with_parent(number: int) -> list[Step]:
    """Get signal `number` when the parent dies; after every change of credentials, which clears
    the setting."""
    return [_step("die with parent", "prctl", 1, number, 0, 0, 0)]


def adopt_orphans() -> list[Step]:
    """Become the parent of every descendant whose own parent exits (child subreaper)."""
    return [_step("subreaper", "prctl", 36, 1, 0, 0, 0)]


def no_new_privileges() -> list[Step]:
    """Make set-uid programs harmless; Landlock and seccomp require it of a process without root."""
    return [_step("no_new_privileges", "prctl", 38, 1, 0, 0, 0)]


def has_no_new_privileges() -> bool:
    """Whether the mark is set, read back."""
    return _libc().prctl(39, 0, 0, 0, 0) == 1


def no_capabilities() -> list[Step]:
    """Give up every capability."""
    return [_step("capset", "capset", struct.pack("=Ii", 0x20080522, 0), bytes(24))]


def has_capabilities() -> bool:
    """Whether any is left, read back."""
    left = ctypes.create_string_buffer(24)
    _check(_libc().capget(struct.pack("=Ii", 0x20080522, 0), left), "capget")
    return any(struct.unpack("=6I", left.raw)[i] for i in (0, 1, 3, 4))


def nobody() -> list[Step]:
    """From root to uid and gid 65534 for good; capabilities go with it."""
    three = (NOBODY,) * 3
    return [("setgroups", os.setgroups, ([],)), ("setresgid", os.setresgid, three),
            ("setresuid", os.setresuid, three)]


def enter_user_namespace() -> None:
    """Leave this user's powers behind in a new user namespace in which the caller is uid 65534.

    For a root whose Python lies where uid 65534 cannot read, and for the other namespaces where the
    caller is not root: files are still read as their owner, but no capability counts outside.
    """
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        os.setgroups([])
    unshare(NEW_USER)
    for name, text in (
        ("setgroups", "deny"), ("gid_map", f"{NOBODY} {gid} 1"), ("uid_map", f"{NOBODY} {uid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


# --- namespaces -------------------------------------------------------------------------------


def unshare(flags: int) -> None:
    """Leave the namespaces named by `flags` for new ones (a PID namespace: the next child)."""
    take([_step(f"unshare({flags:#x})", "unshare", flags)])


def enter_namespaces() -> int:
    """Own mounts, network (no interface is up), IPC and host name for this process.

    Returns a descriptor of the PID namespace that it is in, for `new_pid_namespace`.
    """
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


# --- Landlock ---------------------------------------------------------------------------------


def landlock_abi() -> int:
    """The kernel's Landlock version, or 0 where it has none."""
    try:
        return _syscall(444, "landlock", None, ctypes.c_size_t(0), ctypes.c_uint(1))
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
    rights = _FS_RIGHTS[min(abi, 5)]
    network = 3 if abi >= 4 else 0  # TCP bind and connect
    scope = 3 if abi >= 6 else 0  # abstract sockets, signals to others
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    attributes = struct.pack("=QQQ", rights, network, scope)
    ruleset = _syscall(
        444, "landlock_create_ruleset", attributes, ctypes.c_size_t(size), ctypes.c_uint(0)
    )
    for path in read:
        _landlock_allow(ruleset, path, _READ_FILE | _READ_DIR)
    for path in list_only:
        _landlock_allow(ruleset, path, _READ_DIR)
    _landlock_allow(ruleset, os.devnull, _READ_FILE | _WRITE_FILE | _TRUNCATE)
    _landlock_allow(ruleset, work, rights & ~_NOT_IN_WORK)
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
        _syscall(445, f"landlock_add_rule {path}", ctypes.c_int(ruleset), ctypes.c_int(1), rule,
                 ctypes.c_uint(0))
    finally:
        os.close(fd)


def landlock_restrict(ruleset: int) -> list[Step]:
    """Apply the ruleset for good."""
    return [_step("landlock", "syscall", 446, ruleset, 0)]


# --- seccomp ----------------------------------------------------------------------------------


def _instruction(code: int, k: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, k & 0xFFFFFFFF)


class SeccompFilter:
    """An allow-list of system calls, assembled once; `install` only fills in the process id.

    Everything else fails with EPERM (clone3 with ENOSYS, so that libc falls back to clone, whose
    flags can be read); another architecture's call numbers kill the process.
    """

    def __init__(self, machine: str = "", ask_to_fork: bool = False) -> None:
        machine = machine or platform.machine()
        if machine not in _MACHINES:
            raise LayerError(errno.ENOSYS, f"seccomp: no system call table for {machine!r}")
        arch, self._column = _MACHINES[machine]
        code = [_instruction(_LOAD, 4), _instruction(_JEQ, arch, 1, 0),
                _instruction(_RET, _RET_KILL), _instruction(_LOAD, 0)]
        if machine == "x86_64":  # the x32 numbers
            code += [_instruction(_JGE, 0x40000000, 0, 1), _instruction(_RET, _RET_KILL)]
        for low, high in self._ranges():
            code += [_instruction(_JGE, low, 0, 2), _instruction(_JGT, high, 1, 0),
                     _instruction(_RET, _RET_ALLOW)]
        code += self._for_call(_CLONE3, [_instruction(_RET, _RET_ABSENT)])
        if ask_to_fork:
            code += self._for_call(_CLONE, [
                _instruction(_LOAD, 16), _instruction(_AND, _CLONE_FLAGS),
                _instruction(_JEQ, 0, 0, 1), _instruction(_RET, _RET_ASK), _instruction(_LOAD, 0),
            ])
        for call, conditions in _CONDITIONS.items():
            code += self._for_call(call, self._body(conditions))
        code.append(_instruction(_RET, _RET_DENY))
        slot = _instruction(_JEQ, _PID, 1, 0)
        self._pid_slots = [8 * i + 4 for i, each in enumerate(code) if each == slot]
        self.instructions = len(code)
        self._program = ctypes.create_string_buffer(b"".join(code))
        self._header = struct.pack("@HP", self.instructions, ctypes.addressof(self._program))
        flags = 8 if ask_to_fork else 0  # SECCOMP_FILTER_FLAG_NEW_LISTENER
        self._call = (ctypes.c_long((317, 277)[self._column]), ctypes.c_uint(1),
                      ctypes.c_uint(flags), self._header)

    def _for_call(self, numbers: tuple[int, int], body: list[bytes]) -> list[bytes]:
        return [_instruction(_JEQ, numbers[self._column], 0, len(body)), *body]

    @staticmethod
    def _body(conditions: list[tuple[int, int, tuple[int, ...]]]) -> list[bytes]:
        body = []
        for argument, mask, values in conditions:
            # its low half: both machines are little-endian
            body += [_instruction(_LOAD, 16 + 8 * argument), _instruction(_AND, mask)]
            for after, value in zip(range(len(values), 0, -1), values):
                body.append(_instruction(_JEQ, value, after, 0))  # past the others and the denial
            body.append(_instruction(_RET, _RET_DENY))
        return [*body, _instruction(_RET, _RET_ALLOW)]

    def _ranges(self) -> list[tuple[int, int]]:
        with open(os.path.join(os.path.dirname(__file__), "syscalls.txt")) as file:
            entries = [word for line in file if line[0] != "#" for word in line.split()]
        numbers = sorted(int(n) for e in entries if (n := e.split(":")[1 + self._column]) != "-")
        ranges: list[tuple[int, int]] = []
        for number in numbers:
            if ranges and number == ranges[-1][1] + 1:
                ranges[-1] = (ranges[-1][0], number)
            else:
                ranges.append((number, number))
        return ranges

    def install(self) -> int:
        """Filter this (single-threaded) process from now on; only itself may it signal.

        Returns the descriptor on which another process answers who may fork (see `answer_fork`),
        or 0 for a filter that forbids it.
        """
        for slot in self._pid_slots:
            struct.pack_into("=I", self._program, slot, os.getpid())
        return _check(_libc().syscall(*self._call), "seccomp")


def answer_fork(listener: int, allow: bool) -> None:
    """Answer one process that waits to fork: go on, or EPERM."""
    question = bytearray(80)
    try:
        fcntl.ioctl(listener, 0xC0502100, question)
        (number,) = struct.unpack_from("=Q", question)
        verdict = (0, 0, 1) if allow else (0, -errno.EPERM, 0)
        fcntl.ioctl(listener, 0xC0182101, struct.pack("=QqiI", number, *verdict))
    except FileNotFoundError:  # killed while it waited
        pass


def take_descriptor(pid: int, fd: int) -> int:
    """Our copy of descriptor `fd` of our child `pid`."""
    process = os.pidfd_open(pid)
    try:
        return _syscall(438, "pidfd_getfd", ctypes.c_int(process), ctypes.c_int(fd),
                        ctypes.c_uint(0))
    finally:
        os.close(process)
