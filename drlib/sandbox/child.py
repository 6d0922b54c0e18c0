"""One call, inside the process that the template forked for it: lock the door, then run the code.

Forked by `zygote.py` and `sessions.py`; standard library only. Everything up to "ready" is ours,
everything after it is hostile: names that the code could replace are taken before it runs, and
nothing it prints or returns is believed. The exit code is the one a plain Python process would
have, except that an uncaught MemoryError exits with `EXIT_MEMORY`.
"""

from __future__ import annotations

import _signal
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
import time
import traceback
import types
from collections.abc import Callable
from contextlib import suppress

from drlib.sandbox import layers, notices, seccomp

# Exit codes: a layer failed; an uncaught MemoryError; it needs the heavy template.
EXIT_SETUP = 97
EXIT_MEMORY = 98
EXIT_HEAVY = 99
MOST_DESCRIPTORS = 256  # the limit that the template has put on itself
HIGH = 64  # above all numbers that descriptors get in a child
CODE_NAME = "<python>"
FORK_TRIES = 20  # of a process to fork once its threads have ended
DEPTH = 24  # of calls, at which code runs; more than there are on any way to it
_shutdown = threading._shutdown  # a call of it is saved where there are no other threads
_main = types.ModuleType("__main__")  # where code runs


def prepare() -> None:
    """In the template: what children would otherwise make anew, at the cost of touched pages."""
    _main.__builtins__ = builtins
    sys.modules["__main__"] = _main
    sys.argv[:] = [CODE_NAME]
    open_streams()
    for _ in range(20):  # until the interpreter has specialised its byte code, which it writes to
        seed(0)
        _execute("print()")
        _flush()
    linecache.clearcache()


def open_streams() -> None:
    """Fresh text streams over descriptors 0 to 2, which stay open as long as the process lives."""
    text = {"encoding": "utf-8", "closefd": False}
    out = {**text, "errors": "backslashreplace"}
    sys.stdin = open(0, errors="replace", **text)  # noqa: SIM115 - open until the process ends
    sys.stdout = open(1, "w", **out)  # noqa: SIM115 - open until the process ends
    sys.stderr = open(2, "w", buffering=1, **out)  # noqa: SIM115 - open until the process ends
    sys.__stdin__ = sys.stdin
    sys.__stdout__ = sys.stdout
    sys.__stderr__ = sys.stderr


def seed(number: int) -> None:
    """Siblings inherit equal generators; the same cell gets the same numbers anywhere."""
    random.seed(number)
    for name in ("numpy.random", "sympy.core.random"):
        if name in sys.modules:
            sys.modules[name].seed(number)


def be_call(confinement, parent: int, line: _socket.socket) -> None:
    """In the process that `parent` has forked: lock in, wait for the call, run it; never returns.
    All of the call comes over `line`: nothing of its code, input and output is ever in the memory
    that the next is forked from."""
    fd = line.fileno()
    steps = confinement.mount + confinement.enter + confinement.steps
    lock_in(
        steps,
        confinement.filter,
        parent,
        fd,
        arrange=lambda: _receive(line),
        then=lambda request, _: _run(fd, request),
    )


def lock_in(
    steps: list[layers.LayerStep],
    last: seccomp.SeccompFilter | None,
    parent: int,
    line: int,
    *,
    arrange: Callable,
    then: Callable,
) -> None:
    """Take the steps, `arrange` the descriptors, install the filter `last`, say so through
    descriptor `line`, and exit with what `then` returns, given what those two did; at once where
    `parent` is gone."""
    exit_now = os._exit  # generated code may replace the name
    try:
        layers.take(steps)
        arranged = arrange()
        if os.getppid() not in (0, parent):  # 0: seen from its own PID namespace
            exit_now(EXIT_SETUP)
        gc.enable()
        listener = last.install() if last else 0
        os.write(line, b"1")
    except BaseException as error:  # noqa: BLE001 - whatever it is, no code may run after it
        try:
            os.write(line, b"0" + f"{type(error).__name__}: {error}".encode()[:2000])
        finally:  # whoever asked may be gone
            exit_now(EXIT_SETUP)
    try:
        exit_now(then(arranged, listener))
    except BaseException:  # noqa: BLE001 - the template's own code must never go on in here
        exit_now(1)


def _receive(line: _socket.socket) -> int:
    """Wait for the call's memory files; the descriptor of the request, the streams being in place.
    The template's descriptors are let go of before, so that its death is seen: here as the end of
    `line`, by the caller as the end of the channel."""
    os.closerange(3, line.fileno())
    os.closerange(line.fileno() + 1, MOST_DESCRIPTORS)
    _, rights, _, _ = line.recvmsg(1, 64)
    if not rights:  # the template has gone
        os._exit(EXIT_SETUP)
    request, *streams = struct.unpack("4i", rights[0][2])
    for target, fd in enumerate(streams):
        os.dup2(fd, target)
        os.close(fd)
    return request


def _run(line: int, request: int) -> int:
    """Earlier cells, their output thrown away, then the code; the exit code."""
    # Generated code may replace any of these in their modules.
    execute, finish, flush, seed_all = _execute, _finish_threads, _flush, seed
    truncate, seek, quiet = os.ftruncate, os.lseek, suppress
    os.close(line)
    code, history, echo, seeds = marshal.loads(os.pread(request, os.fstat(request).st_size, 0))
    os.close(request)
    if history:
        seek(0, 0, os.SEEK_END)  # the input is that of the code, not of the earlier cells
        for cell, number in zip(history, seeds):
            seed_all(number)
            execute(cell)
            flush()
            for fd in (1, 2):  # each cell has the room for output that it had when it first ran
                with quiet(OSError):  # it has closed or replaced it
                    truncate(fd, 0)
                    seek(fd, 0, os.SEEK_SET)
        with quiet(OSError):
            seek(0, 0, os.SEEK_SET)
    seed_all(seeds[-1])
    status = execute(code, echo)
    status = finish() or status
    return status if flush() else status or 1


def run_cell(request: tuple, keep: bool) -> int | None:
    """One cell of a session in its namespace as it is; its exit code. With `keep` the process forks
    once the cell is done: None in the copy, which has the state and no output of the cell."""
    code, _, echo, seeds = request  # see `template.call_files`
    seed(seeds[-1])
    status = _execute(code, echo)
    flushed = _flush()
    # A copy has no timer that is set, so it would not be the state.
    timers = any(_signal.getitimer(timer) != (0.0, 0.0) for timer in range(3))
    if keep and not timers:
        notices.ask_keeper()  # the cell is done: from now on one fork is granted
        for _ in range(FORK_TRIES):
            try:
                if layers.fork(()):
                    break
                return None
            except layers.LayerError:  # the keeper said no: a thread is left, or on its way out
                time.sleep(0.001)
        notices.ask_keeper()  # and from now on none
    status = _finish_threads() or status
    return status if _flush() and flushed else status or 1


def _execute(source: str, echo: bool = False) -> int:
    """Run one cell, with `echo` print the value of an expression at its end; the exit code a Python
    process would have. Always at the same depth of calls: a recursion ends where it ends anywhere.
    """
    depth = 0
    frame = sys._getframe()
    while frame:
        depth += 1
        frame = frame.f_back
    return _execute_deeper(DEPTH - depth, source, echo)


def _execute_deeper(calls: int, source: str, echo: bool) -> int:
    if calls > 0:
        return _execute_deeper(calls - 1, source, echo)
    linecache.cache[CODE_NAME] = (len(source), None, source.splitlines(True), CODE_NAME)
    try:
        tree: str | ast.Module = source
        last = None  # the expression at its end
        if echo:
            tree = compile(source, CODE_NAME, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
            if tree.body and isinstance(tree.body[-1], ast.Expr):
                last = ast.Expression(tree.body.pop().value)
        exec(compile(tree, CODE_NAME, "exec", dont_inherit=True), _main.__dict__)
        if last:
            value = eval(compile(last, CODE_NAME, "eval", dont_inherit=True), _main.__dict__)
            if value is not None:
                print(repr(value))
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        _complain(str(error.code) + "\n")
        return 1
    except MemoryError as error:
        error.__traceback__ = None  # its frames hold the memory
        _complain("MemoryError\n")
        return EXIT_MEMORY
    except BaseException as error:  # noqa: BLE001 - as the interpreter's own top level does
        _complain(_format(error))
        return 1
    return 0


def _format(error: BaseException) -> str:
    try:
        below = error.__traceback__ and error.__traceback__.tb_next  # without this file's frame
        return "".join(traceback.format_exception(type(error), error, below))
    except BaseException:  # noqa: BLE001 - a hostile __str__ must not take the exit code along
        return "Exception: unprintable\n"


def _complain(text: str) -> None:
    with suppress(OSError, ValueError, AttributeError):  # full, or closed or replaced by the code
        sys.stdout.flush()
    with suppress(OSError):  # the code closed it; its exit code still tells
        os.write(2, text.encode("utf-8", "backslashreplace"))


def _finish_threads() -> int:
    """What the interpreter does at its end: wait for threads, run the exit functions."""
    try:
        if len(threading._active) > 1 or threading._shutdown is not _shutdown:
            threading._shutdown()
        if atexit._ncallbacks():
            atexit._run_exitfuncs()
    except BaseException as error:  # noqa: BLE001 - whatever an exit function of the code raises
        _complain(_format(error))
        return 1
    return 0


def _flush() -> bool:
    """Flush the streams, those that the code has replaced as well; False where output was lost."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:
            if not getattr(stream, "closed", True):
                stream.flush()
        except BaseException:  # noqa: BLE001 - a full file, or a stream of the code's own making
            return False
    return True
