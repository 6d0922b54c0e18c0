"""Locks of `multiprocessing` for a process that cannot have children.

Thread pools and queues of `multiprocessing` use semaphores of the system, which need shared
memory. A call has one process only, so locks between its threads are enough.
"""

from __future__ import annotations

import threading
import time

RECURSIVE = 0  # kind of `multiprocessing.RLock`; other kinds are semaphores


class ThreadLock:
    """Replacement of `_multiprocessing.SemLock` with its methods.

    Args:
        kind: RECURSIVE, or a semaphore that any thread may release.
        value: initial number of free places.
        maxvalue: largest number of free places.
        name, unlink: ignored; there is no name in the system.
    """

    SEM_VALUE_MAX = 2**31 - 1
    name = None  # otherwise `multiprocessing` starts a process that removes names
    handle = 0

    def __init__(self, kind: int, value: int, maxvalue: int, name: str, unlink: bool) -> None:
        if not 0 <= value <= maxvalue:
            raise ValueError(f"value must be in 0..{maxvalue}, got {value}")
        self.kind, self.maxvalue = kind, maxvalue
        self._value = value
        self._owner: int | None = None
        self._depth = 0
        self._changed = threading.Condition(threading.Lock())

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Take a place; return False if none is free in time (timeout in seconds)."""
        me = threading.get_ident()
        deadline = None if timeout is None else time.monotonic() + max(timeout, 0)
        with self._changed:
            if self.kind == RECURSIVE and self._owner == me:
                self._depth += 1
                return True
            while self._value == 0:
                left = None if deadline is None else deadline - time.monotonic()
                if not block or (left is not None and left <= 0):
                    return False
                self._changed.wait(left)
            self._value -= 1
            self._owner = me
            self._depth += 1
            return True

    def release(self) -> None:
        """Free a place.

        Raises:
            AssertionError: a recursive lock is owned by another thread.
            ValueError: all places are free.
        """
        with self._changed:
            if self.kind == RECURSIVE:
                if self._owner != threading.get_ident():
                    raise AssertionError("attempt to release recursive lock not owned by thread")
                if self._depth > 1:
                    self._depth -= 1
                    return
                self._owner = None
            elif self._value >= self.maxvalue:
                raise ValueError("semaphore or lock released too many times")
            self._depth -= 1
            self._value += 1
            self._changed.notify()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _count(self) -> int:
        return self._depth

    def _is_mine(self) -> bool:
        return self._depth > 0 and self._owner == threading.get_ident()

    def _get_value(self) -> int:
        return self._value

    def _is_zero(self) -> bool:
        return self._value == 0

    def _after_fork(self) -> None:
        self._depth = 0
