"""The seccomp filter: which system calls generated code may make, by number and argument.

An allow-list, assembled once as a BPF program. Numbers are in `syscalls.txt`; calls whose arguments
matter are here. Every other call fails with EPERM. Three things are not plain yes or no:

- Locks on files (flock, fcntl) and advice about them (fadvise) succeed without doing anything: a
  call is alone in its folder, and on a file of the standard library they would tell other calls
  something.
- Threads share their process's descriptor table and nothing can unshare it, so that the limit of
  open files bounds what a process holds.
- With `ask`, two calls wait for the answer of another process (`notices.py`): a fork, and `ASK`, a
  call that nobody needs otherwise. While it waits the process can be killed and nothing else: no
  signal, timer or SIGCONT wakes it (SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, Linux 5.19).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterable
from typing import NamedTuple

from drlib.sandbox import layers

Call = tuple[int, int]  # its numbers on x86-64 and aarch64
_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}  # AUDIT_ARCH, place in a `Call`
_ALL = 0xFFFFFFFF
_PID = 0xFFFFFFF1  # stands for the process id until `install`
_NONE = 0xFFFFFFF0  # the number of a call that a machine does not have

CLONE = (56, 220)
ASK = (163, 89)  # acct, which only an administrator needs
_CLONE3 = (435, 435)
_FLOCK = (73, 32)
_FCNTL = (72, 25)
_FADVISE = (221, 223)
_KILL = (62, 129)
_TGKILL = (234, 131)

# What pthread_create asks of clone, all of it: VM, FS, FILES, SIGHAND, THREAD, SYSVSEM, SETTLS,
# PARENT_SETTID, CHILD_CLEARTID. Without FILES a thread would have descriptors of its own.
_THREAD = 0x3D0F00
_DETACHED = 0x400000  # ignored by the kernel, set by some C libraries
_FORK = 0x1200011  # what fork() asks of it: CHILD_SETTID, CHILD_CLEARTID and SIGCHLD
_SET_LOCK = (6, 7, 37, 38)  # fcntl's F_SETLK, F_SETLKW and the same of open file descriptions


class Condition(NamedTuple):
    """Of a permitted call: the low half of an argument, by its place, seen through a mask, is one
    of these values."""

    argument: int
    mask: int
    values: tuple[int, ...]


def _when(argument: int, *values: int, mask: int = _ALL) -> Condition:
    return Condition(argument, mask, values)


# Calls that are permitted where all these conditions hold.
_CONDITIONS: dict[Call, list[Condition]] = {
    CLONE: [_when(0, _THREAD, mask=_ALL ^ _DETACHED)],
    # socketpair: the connected AF_UNIX stream that asyncio wakes itself with; a datagram pair could
    # address any other socket of the machine
    (53, 199): [_when(0, 1), _when(1, 1, mask=0xF)],
    # prctl: only to look. A name of its own would stand in /proc, where others read about it.
    (157, 167): [_when(0, 3, 16, 39)],
    # ioctl: isatty and what the standard library asks of files
    (16, 29): [_when(1, 0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)],
    _FCNTL: [_when(1, 0, 1, 2, 3, 4, 1030, 1032)],  # no owner, no lock, no larger pipe
    (436, 436): [_when(2, 0, 4)],  # close_range: close, or mark; never unshare the table
    # mmap: no anonymous memory that is shared (flags 0x1 and 0x20): it would outlive its unmapping
    # as long as one page of it is mapped, and no limit counts it
    (9, 222): [_when(3, 0x0, 0x1, 0x20, mask=0x21)],
    # madvise: what the C library needs; no guards, no huge pages, nothing that a fork would leave
    # out, and nothing about pages that files share
    (28, 233): [_when(2, 0, 1, 2, 3, 4, 8)],
    # futex: private ones alone; others, on a page of a library, tell calls of each other.
    # None that is owned by a thread (PI), whose number could be anybody's. 0x100: another clock
    (202, 98): [_when(1, 0x80, 0x81, 0x83, 0x84, 0x85, 0x89, 0x8A, mask=_ALL ^ 0x100)],
    # preadv2, pwritev2: without flags; RWF_NOWAIT tells which pages of a file others have read
    (327, 286): [_when(5, 0)],
    (328, 287): [_when(5, 0)],
    # open, openat: no file without a name (O_TMPFILE): it leaves no trace by which it is counted
    (2, _NONE): [_when(1, 0, mask=0x400000)],
    (257, 56): [_when(2, 0, mask=0x400000)],
    # clock_gettime, clock_getres, clock_nanosleep: the clocks of everybody and of the caller, not
    # the processor time of another process (a negative number): 0 to 15, of which 12 exist
    (228, 113): [_when(0, 0, 8, mask=_ALL ^ 7)],
    (229, 114): [_when(0, 0, 8, mask=_ALL ^ 7)],
    (230, 115): [_when(0, 0, 8, mask=_ALL ^ 7)],
    # prlimit64, getpgid, getsid, sched_getaffinity: only of the caller itself
    (302, 261): [_when(0, 0)],
    (121, 155): [_when(0, 0)],
    (124, 156): [_when(0, 0)],
    (204, 123): [_when(0, 0)],
    _KILL: [_when(0, _PID)],
    _TGKILL: [_when(0, _PID)],
}

# The BPF instructions that are used.
_LOAD = 0x20
_JEQ = 0x15
_JGE = 0x35
_JGT = 0x25
_AND = 0x54
_RET = 0x06
# What a filter can answer.
_RET_ALLOW = 0x7FFF0000
_RET_KILL = 0x80000000
_RET_ASK = 0x7FC00000
_RET_DENY = 0x00050000 | errno.EPERM
_RET_ABSENT = 0x00050000 | errno.ENOSYS
_RET_DONE = 0x00050000  # the call returns 0 and nothing happens
# Flags of the installation.
_NEW_LISTENER = 0x8
_ONLY_DEATH_INTERRUPTS = 0x20
# Where the data of a call hold its number, its architecture, and its arguments.
_NUMBER_AT = 0
_ARCHITECTURE_AT = 4
_ARGUMENTS_AT = 16


def column_of(machine: str) -> int:
    """Which number of a `Call` is that of `machine` ("x86_64", "aarch64"); `LayerError` for
    another."""
    if machine not in _MACHINES:
        raise layers.LayerError(errno.ENOSYS, f"seccomp: no system call table for {machine!r}")
    _, column = _MACHINES[machine]
    return column


def _op(code: int, k: int, yes: int = 0, no: int = 0) -> bytes:
    """One instruction; `yes` and `no` are the instructions that a jump passes over."""
    return struct.pack("=HBBI", code, yes, no, k)


class SeccompFilter:
    """An allow-list of system calls, assembled once. Others fail with EPERM (clone3 with ENOSYS, so
    that libc falls back to clone, whose flags can be read); another architecture's call numbers
    kill the process.

    Args:
        machine: whose call numbers, "x86_64" or "aarch64"; by default this one's. `LayerError` for
            another.
        ask: each fork, and `ASK`, waits for the answer of another process (`notices.py`), and no
            process may signal any, itself included: the number it would be known by is not its
            own after a fork.
    """

    def __init__(self, machine: str = "", ask: bool = False) -> None:
        machine = machine or platform.machine()
        column = column_of(machine)
        code = _assemble(machine, column, ask)
        slot = _op(_JEQ, _PID, 1, 0)
        self._pid_slots = [8 * i + 4 for i, each in enumerate(code) if each == slot]
        self.instructions = len(code)
        self._program = ctypes.create_string_buffer(b"".join(code))
        header = struct.pack("@HP", self.instructions, ctypes.addressof(self._program))
        flags = _NEW_LISTENER | _ONLY_DEATH_INTERRUPTS if ask else 0
        number = (317, 277)[column]
        self._call = layers.step("seccomp", "syscall", number, 1, flags, header)

    def install(self) -> int:
        """Filter this (single-threaded) process from now on; only itself may it signal. Returns the
        descriptor on which another process answers what it asks, or 0 where nobody is asked.
        `LayerError` where the kernel refuses."""
        for slot in self._pid_slots:
            struct.pack_into("=I", self._program, slot, os.getpid())
        return layers.do(self._call)


def _assemble(machine: str, column: int, ask: bool) -> list[bytes]:
    """The instructions of the whole filter."""
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
    for call, body in _bodies(ask):
        code += [_op(_JEQ, call[column], 0, len(body)), *body]
    code.append(_op(_RET, _RET_DENY))
    return code


def _allowed_ranges(column: int) -> Iterable[tuple[int, int]]:
    """(first, last) of each run of numbers that need no look at their arguments."""
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


def _bodies(ask: bool) -> Iterable[tuple[Call, list[bytes]]]:
    """What is done with each call that is no plain yes; a body that comes to its end goes on to the
    next one with the call's number loaded."""
    yield _CLONE3, [_op(_RET, _RET_ABSENT)]
    yield _FLOCK, [_op(_RET, _RET_DONE)]
    yield _FADVISE, [_op(_RET, _RET_DONE)]
    yield _FCNTL, _if_argument(1, _SET_LOCK, _RET_DONE)
    if ask:
        yield ASK, [_op(_RET, _RET_ASK)]
        yield CLONE, _if_argument(0, (_FORK,), _RET_ASK)
    for call, conditions in _CONDITIONS.items():
        if not (ask and call in (_KILL, _TGKILL)):
            yield call, _conditional(conditions)


def _if_argument(argument: int, values: tuple[int, ...], verdict: int) -> list[bytes]:
    """The verdict where an argument has one of these values; otherwise on with what comes next."""
    body = [_op(_LOAD, _ARGUMENTS_AT + 8 * argument)]
    for after, value in zip(range(len(values), 0, -1), values, strict=True):
        # to the verdict; the last that does not fit goes past it
        body.append(_op(_JEQ, value, after - 1, 0 if after > 1 else 1))
    return [*body, _op(_RET, verdict), _op(_LOAD, _NUMBER_AT)]


def _conditional(conditions: list[Condition]) -> list[bytes]:
    """Permitted where all the conditions hold, denied otherwise."""
    body = []
    for argument, mask, values in conditions:
        # its low half: both machines are little-endian
        body += [_op(_LOAD, _ARGUMENTS_AT + 8 * argument), _op(_AND, mask)]
        for after, value in zip(range(len(values), 0, -1), values, strict=True):
            body.append(_op(_JEQ, value, after, 0))  # past the others and the denial
        body.append(_op(_RET, _RET_DENY))
    return [*body, _op(_RET, _RET_ALLOW)]
