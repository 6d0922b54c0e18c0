"""Seccomp filter: an allow-list of system calls by number and argument.

Assembled once as a BPF program. `syscalls.txt` lists the calls that are allowed with any argument;
calls with restricted arguments are defined here. Every other call fails with EPERM. Two rules need
an explanation:

- File locks (flock, fcntl) and advice (fadvise) succeed without any effect. A call is alone in its
  folder, and on a file of the standard library they would be a channel between calls.
- Threads share the descriptor table of their process and cannot unshare it. The limit of open files
  therefore applies to the whole process.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable

from drlib.sandbox import layers

Call = tuple[int, int]  # numbers on x86-64 and aarch64
_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}  # AUDIT_ARCH, index in a `Call`
_ALL = 0xFFFFFFFF
_PID = 0xFFFFFFF1  # placeholder of the process id until `install`
_NONE = 0xFFFFFFF0  # call does not exist on this machine

_CLONE = (56, 220)
_CLONE3 = (435, 435)
_FLOCK = (73, 32)
_FCNTL = (72, 25)
_FADVISE = (221, 223)
_FUTEX = (202, 98)
_KILL = (62, 129)
_TGKILL = (234, 131)

# Exact clone flags of pthread_create: VM, FS, FILES, SIGHAND, THREAD, SYSVSEM, SETTLS,
# PARENT_SETTID, CHILD_CLEARTID. Without FILES a thread would have its own descriptors.
_THREAD = 0x3D0F00
_DETACHED = 0x400000  # ignored by the kernel, set by some C libraries
_SET_LOCK = (6, 7, 37, 38)  # F_SETLK, F_SETLKW and their F_OFD variants
_JOIN_WAIT = (0x109,)  # shared FUTEX_WAIT_BITSET on the real-time clock, as in pthread_join


# (argument, mask, values): allowed values of the low 32 bits of an argument, after the mask.
Condition = tuple[int, int, tuple[int, ...]]


def _when(argument: int, *values: int, mask: int = _ALL) -> Condition:
    """Build a condition on argument number `argument`."""
    return argument, mask, values


# Calls that are allowed if all their conditions hold.
_CONDITIONS: dict[Call, list[Condition]] = {
    _CLONE: [_when(0, _THREAD, mask=_ALL ^ _DETACHED)],
    # socketpair: only the AF_UNIX stream pair that asyncio needs; a datagram pair could address any
    # other socket of the machine
    (53, 199): [_when(0, 1), _when(1, 1, mask=0xF)],
    # prctl: read only. Setting the thread name would be visible to others in /proc.
    (157, 167): [_when(0, 3, 16, 39)],
    # ioctl: isatty and other requests of the standard library
    (16, 29): [_when(1, 0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)],
    _FCNTL: [_when(1, 0, 1, 2, 3, 4, 1030, 1032)],  # no owner, no lock, no larger pipe
    (436, 436): [_when(2, 0, 4)],  # close_range: close or mark, never unshare the table
    # mmap: no shared anonymous memory (flags 0x1 and 0x20). It stays allocated while one page of it
    # is mapped, and no limit counts it
    (9, 222): [_when(3, 0x0, 0x1, 0x20, mask=0x21)],
    # madvise: the requests of the C library; no guards, huge pages, fork exclusion or shared file
    # pages
    (28, 233): [_when(2, 0, 1, 2, 3, 4, 8)],
    # futex: private only; shared ones on a library page are a channel between calls. No PI futex,
    # because it names an arbitrary thread. 0x100: clock flag
    _FUTEX: [_when(1, 0x80, 0x81, 0x83, 0x84, 0x85, 0x89, 0x8A, mask=_ALL ^ 0x100)],
    # preadv2, pwritev2: no flags; RWF_NOWAIT reveals which file pages are cached
    (327, 286): [_when(5, 0)],
    (328, 287): [_when(5, 0)],
    # open, openat: no O_TMPFILE, whose files cannot be found and counted
    (2, _NONE): [_when(1, 0, mask=0x400000)],
    (257, 56): [_when(2, 0, mask=0x400000)],
    # clock_gettime, clock_getres, clock_nanosleep: clocks 0 to 15 (12 exist); negative numbers are
    # the processor time of other processes
    (228, 113): [_when(0, 0, 8, mask=_ALL ^ 7)],
    (229, 114): [_when(0, 0, 8, mask=_ALL ^ 7)],
    (230, 115): [_when(0, 0, 8, mask=_ALL ^ 7)],
    # prlimit64, getpgid, getsid, sched_getaffinity: only of the caller
    (302, 261): [_when(0, 0)],
    (121, 155): [_when(0, 0)],
    (124, 156): [_when(0, 0)],
    (204, 123): [_when(0, 0)],
    _KILL: [_when(0, _PID)],
    _TGKILL: [_when(0, _PID)],
}

# Calls of programs (`program_process.py`), which may start and signal other programs of their own
# PID namespace and change the modes of their files.
_NEW_NAMESPACES = 0x7E020080
_OF_PROGRAMS: dict[Call, list[Condition]] = {
    _CLONE: [_when(0, 0, mask=_NEW_NAMESPACES)],
    (57, _NONE): [],  # fork
    (58, _NONE): [],  # vfork
    (59, 221): [],  # execve
    (322, 281): [],  # execveat
    _KILL: [],
    _TGKILL: [],
    (109, 154): [],  # setpgid
    (121, 155): [],  # getpgid
    (112, 157): [],  # setsid
    (124, 156): [],  # getsid
    (90, _NONE): [],  # chmod
    (91, 52): [],  # fchmod
    (268, 53): [],  # fchmodat
    (452, 452): [],  # fchmodat2
    (132, _NONE): [],  # utime
    (235, _NONE): [],  # utimes
    (280, 88): [],  # utimensat
    (133, _NONE): [],  # mknod: fifos, because devices need a capability
    (259, 33): [],  # mknodat
    (92, _NONE): [],  # chown: to the own id only
    (93, 55): [],  # fchown
    (260, 54): [],  # fchownat
    (222, 107): [],  # timer_create
    (223, 110): [],  # timer_settime
    (226, 111): [],  # timer_delete
}
# Calls on extended attributes fail with EOPNOTSUPP in programs, as on file systems without them.
_ATTRIBUTES: list[Call] = [(188 + i, 5 + i) for i in range(12)]

# BPF instructions.
_LOAD = 0x20
_JEQ = 0x15
_JGE = 0x35
_JGT = 0x25
_AND = 0x54
_RET = 0x06
# Filter verdicts.
_RET_ALLOW = 0x7FFF0000
_RET_KILL = 0x80000000
_RET_DENY = 0x00050000 | errno.EPERM
_RET_ABSENT = 0x00050000 | errno.ENOSYS
_RET_UNSUPPORTED = 0x00050000 | errno.EOPNOTSUPP
_RET_AGAIN = 0x00050000 | errno.EAGAIN
_RET_DONE = 0x00050000  # the call returns 0 without any effect
# Offsets of number, architecture and arguments in the data of a call.
_NUMBER_AT = 0
_ARCHITECTURE_AT = 4
_ARGUMENTS_AT = 16


def find_column(machine: str) -> int:
    """Return the index of `machine` ("x86_64" or "aarch64") in a `Call`; else `LayerError`."""
    if machine not in _MACHINES:
        raise layers.LayerError(errno.ENOSYS, f"seccomp: no system call table for {machine!r}")
    _, column = _MACHINES[machine]
    return column


def _op(code: int, k: int, yes: int = 0, no: int = 0) -> bytes:
    """Encode one instruction; `yes` and `no` are the numbers of skipped instructions."""
    return struct.pack("=HBBI", code, yes, no, k)


class SeccompFilter:
    """Allow-list of system calls. Others fail with EPERM.

    clone3 fails with ENOSYS, so that libc falls back to clone, whose flags the filter can read.
    Call numbers of another architecture kill the process.

    Args:
        machine: "x86_64" or "aarch64", by default this machine. `LayerError` for another.
        programs: also allow what shells and programs need, for a process in its own PID namespace.
    """

    def __init__(self, machine: str = "", programs: bool = False) -> None:
        machine = machine or os.uname().machine
        column = find_column(machine)
        code = _assemble(machine, column, programs)
        slot = _op(_JEQ, _PID, 1, 0)
        self._pid_slots = [8 * i + 4 for i, each in enumerate(code) if each == slot]
        self.instructions = len(code)
        self._program = ctypes.create_string_buffer(b"".join(code))
        header = struct.pack("@HP", self.instructions, ctypes.addressof(self._program))
        number = (317, 277)[column]
        self._call = layers.step("seccomp", "syscall", number, 1, 0, header)

    def install(self) -> None:
        """Filter this single-threaded process permanently; it may signal only itself.

        Raises `LayerError` if the kernel refuses.
        """
        for slot in self._pid_slots:
            struct.pack_into("=I", self._program, slot, os.getpid())
        layers.do(self._call)


def _assemble(machine: str, column: int, programs: bool = False) -> list[bytes]:
    """Assemble the instructions of the filter."""
    architecture, _ = _MACHINES[machine]
    code = [
        _op(_LOAD, _ARCHITECTURE_AT),
        _op(_JEQ, architecture, 1, 0),
        _op(_RET, _RET_KILL),
        _op(_LOAD, _NUMBER_AT),
    ]
    if machine == "x86_64":  # the x32 numbers
        code += [_op(_JGE, 0x40000000, 0, 1), _op(_RET, _RET_KILL)]
    for low, high in _allowed_ranges(column):
        code += [_op(_JGE, low, 0, 2), _op(_JGT, high, 1, 0), _op(_RET, _RET_ALLOW)]
    for call, body in _bodies(programs):
        code += [_op(_JEQ, call[column], 0, len(body)), *body]
    code.append(_op(_RET, _RET_DENY))
    return code


def _allowed_ranges(column: int) -> Iterable[tuple[int, int]]:
    """Yield (first, last) of each run of numbers that are allowed with any argument."""
    numbers = []
    with open(os.path.join(os.path.dirname(__file__), "syscalls.txt")) as file:
        for line in file:
            entries = [] if line.startswith("#") else line.split()
            for entry in entries:
                _name, *of_machines = entry.split(":")
                if of_machines[column] != "-":
                    numbers.append(int(of_machines[column]))
    numbers.sort()
    first = last = numbers[0]
    for number in numbers[1:]:
        if number != last + 1:
            yield first, last
            first = number
        last = number
    yield first, last


def _bodies(programs: bool) -> Iterable[tuple[Call, list[bytes]]]:
    """Yield the instructions of each call with a special rule.

    A body without a verdict continues with the next one, with the call's number loaded.
    """
    yield _CLONE3, [_op(_RET, _RET_ABSENT)]
    yield _FLOCK, [_op(_RET, _RET_DONE)]
    yield _FADVISE, [_op(_RET, _RET_DONE)]
    yield _FCNTL, _if_argument(1, _SET_LOCK, _RET_DONE)
    # pthread_join, which Python 3.13 calls, waits with a shared futex until the thread has ended.
    # EAGAIN makes it look again, and nothing waits for a wake-up by another call.
    yield _FUTEX, _if_argument(1, _JOIN_WAIT, _RET_AGAIN)
    for call in _ATTRIBUTES if programs else ():
        yield call, [_op(_RET, _RET_UNSUPPORTED)]
    for call, conditions in (_CONDITIONS | (_OF_PROGRAMS if programs else {})).items():
        yield call, _allow_if(conditions)


def _if_argument(argument: int, values: tuple[int, ...], verdict: int) -> list[bytes]:
    """Return `verdict` if an argument has one of these values, otherwise continue."""
    body = [_op(_LOAD, _ARGUMENTS_AT + 8 * argument)]
    for after, value in zip(range(len(values), 0, -1), values, strict=True):
        # a match jumps to the verdict; the last mismatch skips it
        body.append(_op(_JEQ, value, after - 1, 0 if after > 1 else 1))
    return [*body, _op(_RET, verdict), _op(_LOAD, _NUMBER_AT)]


def _allow_if(conditions: list[Condition]) -> list[bytes]:
    """Allow if all conditions hold, otherwise deny."""
    body = []
    for argument, mask, values in conditions:
        # low 32 bits: both machines are little-endian
        body += [_op(_LOAD, _ARGUMENTS_AT + 8 * argument), _op(_AND, mask)]
        for after, value in zip(range(len(values), 0, -1), values, strict=True):
            body.append(_op(_JEQ, value, after, 0))  # skip the other values and the denial
        body.append(_op(_RET, _RET_DENY))
    return [*body, _op(_RET, _RET_ALLOW)]
