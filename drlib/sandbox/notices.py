"""Messages: what callers ask, and what a process behind the filter asks of its keeper.

The second is a seccomp user notification.

The kernel holds the process in its system call until the answer comes, and once the question has
been read only death ends that. So a process that waits for an answer stands still by the kernel's
own hand: its memory, descriptors, threads (if it has but one) and folder are what they are until we
say otherwise. Nothing that it could have prepared (a timer, a signal, SIGCONT) changes that.
"""

from __future__ import annotations

import errno
import fcntl
import marshal
import os
import platform
import socket
import struct
from typing import NamedTuple

from drlib.sandbox import layers, seccomp

# Numbers of ioctl, and flags of the second and the third.
_RECEIVE = 0xC0502100
_ANSWER = 0xC0182101
_GIVE = 0x40182103
_GO_ON = 1
_AT_THIS_NUMBER = 1
_COLUMN = 0 if platform.machine() == "x86_64" else 1  # where there is no table nobody asks
_CLONE = seccomp.CLONE[_COLUMN]
_ask = layers.step("ask", "syscall", seccomp.ASK[_COLUMN])


class Question(NamedTuple):
    """A system call that waits: `ident` for the answer, who asks (a thread's number, as the reader
    sees it), and whether it wants to fork."""

    ident: int
    pid: int
    forks: bool


def ask_keeper() -> int:
    """Behind the filter: wait for what the keeper has to give; its answer. `LayerError` where it
    says no."""
    return layers.do(_ask)


def receive(listener: int) -> Question | None:
    """The next question; None where its process has died meanwhile. From now on that process can
    be killed and not woken."""
    notice = bytearray(80)
    try:
        fcntl.ioctl(listener, _RECEIVE, notice)
    except FileNotFoundError:
        return None
    ident, pid, _, number = struct.unpack_from("=QIIi", notice)
    return Question(ident, pid, number == _CLONE)


def go_on(listener: int, question: Question) -> bool:
    """Let the system call happen; False where its process has died meanwhile."""
    return _answer(listener, question, 0, 0, _GO_ON)


def refuse(listener: int, question: Question) -> bool:
    """The system call fails with EPERM."""
    return _answer(listener, question, 0, -errno.EPERM, 0)


def reply(listener: int, question: Question, value: int) -> bool:
    """The system call returns `value` and does nothing."""
    return _answer(listener, question, value, 0, 0)


def give(listener: int, question: Question, fds: list[int]) -> bool:
    """Put copies of `fds` in the place of descriptors 0, 1, ... of the process that waits; False
    where that cannot be done: it has died, or has lowered its own limit of descriptors."""
    for target, fd in enumerate(fds):
        request = struct.pack("=QIIII", question.ident, _AT_THIS_NUMBER, fd, target, 0)
        try:
            fcntl.ioctl(listener, _GIVE, request)
        except OSError:
            return False
    return True


def _answer(listener: int, question: Question, value: int, error: int, flags: int) -> bool:
    try:
        fcntl.ioctl(listener, _ANSWER, struct.pack("=QqiI", question.ident, value, error, flags))
    except FileNotFoundError:
        return False
    return True


def take_descriptor(pid: int, fd: int) -> int:
    """Our copy of descriptor `fd` of our child `pid`."""
    process = os.pidfd_open(pid)
    try:
        return layers.do(layers.step("pidfd_getfd", "syscall", 438, process, fd, 0))
    finally:
        os.close(process)


def receive_request(channel: socket.socket) -> tuple[dict, bytes] | None:
    """Read one message of the caller and the descriptors that came with it, packed as C integers;
    None: the other side has closed. Messages are short, and the next comes after our reply."""
    data, rights, _, _ = channel.recvmsg(4096, 128)
    if not data:
        return None
    descriptors = rights[0][2] if rights else b""
    return marshal.loads(data), descriptors
