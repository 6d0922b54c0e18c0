"""One call, inside the process that the template forked for it: lock the door, then run the code.

Loaded by `zygote.py` by path; standard library only. Everything up to "ready" is ours, everything
after it is hostile: names that the code could replace are taken before it runs, and nothing it
prints or returns is believed. The exit code is the one a plain Python process would have, except
that an uncaught MemoryError exits with `EXIT_MEMORY`.
"""

from __future__ import annotations

import _socket
import ast
import atexit
import builtins
import gc
import linecache
import marshal
import os
import random
import struct
import sys
import threading
import traceback
import types
from collections.abc import Callable

EXIT_SETUP, EXIT_MEMORY, EXIT_HEAVY = 97, 98, 99
MOST_DESCRIPTORS = 256  # the limit that the template has put on itself
CODE_NAME = "<python>"
_shutdown = threading._shutdown  # a call of it is saved where there are no other threads


def prepare() -> None:
    """In the template: what children would otherwise make anew, at the cost of touched pages."""
    main = types.ModuleType("__main__")
    main.__builtins__ = builtins
    sys.modules["__main__"] = main
    sys.argv[:] = [CODE_NAME]
    open_streams()
    for _ in range(20):  # until the interpreter has specialised its byte code, which it writes to
        seed(0)
        _execute("print()", main, silent=True)
        _flush()
    linecache.clearcache()


def open_streams() -> None:
    """Fresh text streams over descriptors 0 to 2."""
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", errors="replace", closefd=False)
    options = {"encoding": "utf-8", "errors": "backslashreplace", "closefd": False}
    sys.stdout = sys.__stdout__ = open(1, "w", **options)
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, **options)


def seed(number: int) -> None:
    """Siblings inherit equal generators; the same cell gets the same numbers anywhere."""
    random.seed(number)
    for name in ("numpy.random", "sympy.core.random"):
        if name in sys.modules:
            sys.modules[name].seed(number)


class Child:
    """One call, inside the forked process."""

    def __init__(self, template, layers: types.ModuleType) -> None:
        self.template, self.layers, self.line = template, layers, -1

    def main(self, line: _socket.socket) -> None:
        """Lock in, wait for the call, run it; never returns.

        The request and the streams come over `line`: nothing of one call is ever in the memory that
        the next is forked from.
        """
        self.line = line.fileno()
        self.lock_in(self.template.steps, lambda: self._receive(line), self._run)

    def lock_in(self, steps: list, arrange: Callable[[], None], then: Callable[[], int]) -> None:
        """Take the steps, `arrange` the descriptors, install the filter, say so through descriptor
        `line`, and exit with what `then` returns."""
        exit_now = os._exit  # generated code may replace the name
        try:
            self.layers.take(steps)
            arrange()
            if os.getppid() not in (0, self.template.pid):  # 0: seen from its own PID namespace
                exit_now(EXIT_SETUP)
            gc.enable()
            if self.template.filter:
                self.listener = self.template.filter.install()
            os.write(self.line, b"1\n")
        except BaseException as error:  # noqa: BLE001 - whatever it is, no code may run after it
            try:
                os.write(self.line, b"0" + f"{type(error).__name__}: {error}".encode()[:2000])
            finally:  # whoever asked may be gone
                exit_now(EXIT_SETUP)
        try:
            exit_now(then())
        except BaseException:  # noqa: BLE001 - the template's own code must never go on in here
            exit_now(1)

    def _receive(self, line: _socket.socket) -> None:
        """Let go of the template's descriptors, whose death must be seen: here as the end of
        `line`, by the caller as the end of the channel. Then wait for the call's memory files."""
        os.closerange(3, self.line)
        os.closerange(self.line + 1, MOST_DESCRIPTORS)
        _, rights, _, _ = line.recvmsg(1, 64)
        if not rights:  # the template has gone
            os._exit(EXIT_SETUP)
        self.request, *streams = struct.unpack("4i", rights[0][2])
        for target, fd in enumerate(streams):
            os.dup2(fd, target)
            os.close(fd)

    def _run(self) -> int:
        """Earlier cells silently, then the code; the exit code."""
        # Generated code may replace any of these in their modules.
        flush, finish, truncate, seek = _flush, _finish_threads, os.ftruncate, os.lseek
        execute, seed_all, main = _execute, seed, sys.modules["__main__"]
        os.close(self.line)
        code, history, echo, seeds = _read_request(self.request)
        for cell, number in zip(history, seeds):
            seed_all(number)
            execute(cell, main, silent=True)
        if history:
            flush()
            for fd in (1, 2):
                truncate(fd, 0)
                seek(fd, 0, os.SEEK_SET)
        seed_all(seeds[-1])
        status = execute(code, main, echo=echo)
        status = finish() or status
        return status if flush() else status or 1


def run_cell(request: tuple, after: Callable[[], None]) -> int:
    """One cell of a session in its namespace as it is; `after` holds the state; exit code."""
    code, _, echo, seeds = request
    open_streams()
    seed(seeds[-1])
    status = _execute(code, sys.modules["__main__"], echo=echo)
    flushed = _flush()
    after()
    status = _finish_threads() or status
    return status if _flush() and flushed else status or 1


def _read_request(fd: int) -> tuple:
    """(code, history, echo, a seed a cell), see `template.CallFiles`."""
    data = os.pread(fd, os.fstat(fd).st_size, 0)
    os.close(fd)
    return marshal.loads(data)


def _execute(
    source: str, module: types.ModuleType, silent: bool = False, echo: bool = False
) -> int:
    """Run one cell in `module`, with `echo` print the value of an expression at its end; the exit
    code a Python process would have."""
    linecache.cache[CODE_NAME] = (len(source), None, source.splitlines(True), CODE_NAME)
    try:
        if not echo:
            exec(compile(source, CODE_NAME, "exec", dont_inherit=True), module.__dict__)
        else:
            _execute_and_echo(source, module)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        _complain(str(error.code) + "\n", silent)
        return 1
    except MemoryError as error:
        error.__traceback__ = None  # its frames hold the memory
        _complain("MemoryError\n", silent)
        return EXIT_MEMORY
    except BaseException as error:  # noqa: BLE001 - as the interpreter's own top level does
        _complain(_format(error), silent)
        return 1
    return 0


def _execute_and_echo(source: str, module: types.ModuleType) -> None:
    tree = compile(source, CODE_NAME, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, CODE_NAME, "exec", dont_inherit=True), module.__dict__)
    if last:
        last = compile(ast.Expression(last.value), CODE_NAME, "eval", dont_inherit=True)
        value = eval(last, module.__dict__)
        if value is not None:
            print(repr(value))


def _format(error: BaseException) -> str:
    try:
        below = error.__traceback__ and error.__traceback__.tb_next  # without this file's frame
        return "".join(traceback.format_exception(type(error), error, below))
    except BaseException:  # noqa: BLE001 - a hostile __str__ must not take the exit code along
        return "Exception: unprintable\n"


def _complain(text: str, silent: bool) -> None:
    if silent:
        return
    try:
        sys.stdout.flush()
    except (OSError, ValueError, AttributeError):  # full, or closed or replaced by the code
        pass
    data = text.encode("utf-8", "backslashreplace")
    try:
        os.write(2, data)
    except OSError:  # the code closed it; its exit code still tells
        pass


def _finish_threads() -> int:
    """What the interpreter does at its end: wait for threads, run the exit functions."""
    try:
        if len(threading._active) > 1 or threading._shutdown is not _shutdown:
            threading._shutdown()
        if atexit._ncallbacks():
            atexit._run_exitfuncs()
    except BaseException as error:  # noqa: BLE001
        _complain(_format(error), False)
        return 1
    return 0


def _flush() -> bool:
    """Flush both streams; False where output was lost."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if not getattr(stream, "closed", True):
                stream.flush()
        except BaseException:  # noqa: BLE001 - a full file, or a stream of the code's own making
            return False
    return True
