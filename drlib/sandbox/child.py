"""One call in the child process of the template: apply the layers, then run the code.

Forked by `worker_process.py`; standard library only. Everything up to "ready" is trusted and
everything after it is hostile: names that generated code could replace are bound before it runs,
and its output is never interpreted. The exit code is that of a plain Python process, except that an
uncaught MemoryError exits with `EXIT_MEMORY`.
"""

from __future__ import annotations

import _multiprocessing
import _sitebuiltins
import _socket
import ast
import atexit
import builtins
import functools
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
from contextlib import suppress
from typing import Any

from drlib.sandbox import layers, thread_locks

# Exit codes: a layer failed; an uncaught MemoryError; the call needs the heavy template.
EXIT_SETUP = 97
EXIT_MEMORY = 98
EXIT_HEAVY = 99
MOST_DESCRIPTORS = 256  # the template's own RLIMIT_NOFILE
HIGH = 64  # above all descriptor numbers of a child
CODE_NAME = "<python>"
SUMMARY_CHARS = 300  # of the line that names an exception with several lines
LONGEST_LINE = 1000  # characters of a message that needs no summary
STARTS_CODE = b"2"  # sent when the earlier cells have ended and the code starts
DEPTH = 24  # call depth at which code runs, above that of every caller of `_execute`
_shutdown = threading._shutdown  # type: ignore[attr-defined]  # skipped if unchanged and there are no other threads
_main = types.ModuleType("__main__")  # namespace of the code


def prepare(single_process: bool) -> None:
    """In the template: create objects that children would otherwise build in copied pages.

    `single_process`: the code cannot create processes.
    """
    _main.__dict__["__builtins__"] = builtins
    _add_site_builtins()
    if single_process:
        _multiprocessing.SemLock = thread_locks.ThreadLock  # type: ignore[misc, attr-defined]
    sys.modules["__main__"] = _main
    sys.argv[:] = [CODE_NAME]
    open_streams()
    for _ in range(20):  # until the interpreter has specialised (rewritten) its byte code
        seed(0)
        _execute("print()")
        _flush()
    linecache.clearcache()


def _add_site_builtins() -> None:
    """Add the builtins that the module `site` defines; it is not imported in the sandbox."""
    for name in ("exit", "quit"):
        setattr(builtins, name, _Quitter(name, "Ctrl-D (i.e. EOF)"))
    builtins.help = _sitebuiltins._Helper()
    terms = "See https://www.python.org/psf/license/"
    for name, text in (("copyright", sys.copyright), ("credits", terms), ("license", terms)):
        setattr(builtins, name, _sitebuiltins._Printer(name, text))


class _Quitter(_sitebuiltins.Quitter):
    def __call__(self, code: object = None) -> None:  # type: ignore[override]
        raise SystemExit(code)  # stdin stays open for the next cell


def open_streams() -> None:
    """Open new text streams over descriptors 0 to 2 for the life of the process."""
    text = functools.partial(open, encoding="utf-8", closefd=False)
    sys.stdin = text(0, errors="replace")
    sys.stdout = text(1, "w", errors="backslashreplace")
    sys.stderr = text(2, "w", buffering=1, errors="backslashreplace")
    sys.__stdin__ = sys.stdin  # type: ignore[misc]
    sys.__stdout__ = sys.stdout  # type: ignore[misc]
    sys.__stderr__ = sys.stderr  # type: ignore[misc]


def seed(number: int) -> None:
    """Seed every loaded generator, so that equal cells draw equal numbers in any process."""
    random.seed(number)
    for name in ("numpy.random", "sympy.core.random"):
        if name in sys.modules:
            sys.modules[name].seed(number)


def be_call(confinement, parent: int, channel: _socket.socket) -> None:
    """In the forked child: apply the layers, receive the call, run it and exit.

    The call arrives over `channel`, so its code, input and output never enter the memory of the
    template. Exits at once if `parent` is gone.
    """
    exit_now = os._exit  # generated code may replace the name
    fd = channel.fileno()
    try:
        layers.take(confinement.steps)
        request = _receive(channel)
        if os.getppid() not in (0, parent):  # 0: seen from its own PID namespace
            exit_now(EXIT_SETUP)
        gc.enable()
        if confinement.filter:
            confinement.filter.install()
        os.write(fd, b"1")
    except BaseException as error:  # noqa: BLE001 - after any error, no code may run
        try:
            os.write(fd, b"0" + f"{type(error).__name__}: {error}".encode()[:2000])
        finally:  # the template may be gone
            exit_now(EXIT_SETUP)
    try:
        exit_now(_run(fd, request))
    except BaseException:  # noqa: BLE001 - the template's own code must never continue here
        exit_now(1)


def _receive(channel: _socket.socket) -> int:
    """Wait for the call's files; put the streams in place and return the request's descriptor.

    All descriptors of the template are closed first, so that its death is visible: here as the end
    of `channel`, in the caller as the end of the template's socket.
    """
    os.closerange(3, channel.fileno())
    os.closerange(channel.fileno() + 1, MOST_DESCRIPTORS)
    _, rights, _, _ = channel.recvmsg(1, 64)
    if not rights:  # the template is gone
        os._exit(EXIT_SETUP)
    request, *streams = struct.unpack("4i", rights[0][2])
    for target, fd in enumerate(streams):
        os.dup2(fd, target)
        os.close(fd)
    return request


def _run(channel: int, request: int) -> int:
    """Run the earlier cells without their output, then the code; return the exit code."""
    # Generated code may replace any of these in their modules.
    execute, finish, flush, seed_all = _execute, _finish_threads, _flush, seed
    truncate, seek, write, close, quiet = os.ftruncate, os.lseek, os.write, os.close, suppress
    code, history, echo, seeds = marshal.loads(os.pread(request, os.fstat(request).st_size, 0))
    os.close(request)
    if history:
        seek(0, 0, os.SEEK_END)  # the input belongs to the code, not to the earlier cells
        for index, (cell, number) in enumerate(zip(history, seeds), start=1):
            seed_all(number)
            execute(cell, name=f"<cell {index}>")
            flush()
            for fd in (1, 2):  # each cell has the full output limit, as when it first ran
                with quiet(OSError):  # closed or replaced by the code
                    truncate(fd, 0)
                    seek(fd, 0, os.SEEK_SET)
        with quiet(OSError):
            seek(0, 0, os.SEEK_SET)
    with quiet(OSError):  # closed by an earlier cell
        write(channel, STARTS_CODE)
        close(channel)
    seed_all(seeds[-1])
    status = execute(code, echo)
    status = finish() or status
    return status if flush() else status or 1


def _execute(source: str, echo: bool = False, name: str = CODE_NAME) -> int:
    """Run one cell and return the exit code that a Python process would have.

    `name` is the file name in tracebacks; each cell has its own, so that its lines are shown.

    With `echo`, print the value of an expression at its end. The code always runs at call depth
    DEPTH, so that a recursion fails at the same depth in every cell.
    """
    depth = 0
    frame = sys._getframe()
    while frame:
        depth += 1
        frame = frame.f_back
    return _execute_deeper(DEPTH - depth, source, echo, name)


def _execute_deeper(calls: int, source: str, echo: bool, name: str) -> int:
    """Add `calls` stack frames, then compile and run the cell."""
    if calls > 0:
        return _execute_deeper(calls - 1, source, echo, name)
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    try:
        tree: Any = source
        last = None  # expression at the end of the cell
        if echo:
            tree = compile(source, name, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
            if tree.body and isinstance(tree.body[-1], ast.Expr):
                last = ast.Expression(tree.body.pop().value)
        exec(compile(tree, name, "exec", dont_inherit=True), _main.__dict__)
        if last:
            value = eval(compile(last, name, "eval", dont_inherit=True), _main.__dict__)
            if value is not None:
                print(repr(value))
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        _print_error(str(error.code) + "\n" + _summarise(error))
        return 1
    except MemoryError as error:
        error.__traceback__ = None  # its frames hold the memory
        _print_error("MemoryError\n")
        return EXIT_MEMORY
    except BaseException as error:  # noqa: BLE001 - as the interpreter's own top level does
        _print_error(_format(error))
        return 1
    return 0


def _format(error: BaseException) -> str:
    """Format the traceback of an exception raised by the code."""
    try:
        below = error.__traceback__ and error.__traceback__.tb_next  # skip the frame of this file
        text = "".join(traceback.format_exception(type(error), error, below))
        with suppress(BaseException):  # of a hostile __str__, which the traceback has named
            text += _summarise(error)
        return text
    except BaseException:  # noqa: BLE001 - a hostile __str__ must not take the exit code along
        return "Exception: unprintable\n"


def _summarise(error: BaseException) -> str:
    """Return a line with type and message if the traceback's last line does not have them.

    The observation of a failed call is the last line of its errors. A message of several lines, an
    exception group and notes end in other lines, and a long line would be cut.
    """
    message = str(error.msg) if isinstance(error, SyntaxError) else str(error)
    notes = [str(note) for note in getattr(error, "__notes__", ())]
    has_parts = isinstance(error, BaseExceptionGroup)
    if not (has_parts or notes or len(message.splitlines()) > 1 or len(message) > LONGEST_LINE):
        return ""
    line = _name_error(error)
    for note in notes:
        line += f" ({note})"
    line = " ".join(line[: 10 * SUMMARY_CHARS].split())
    return (line if len(line) <= SUMMARY_CHARS else line[:SUMMARY_CHARS] + " ...") + "\n"


def _name_error(error: BaseException) -> str:
    """Return type and message; for a group, also those of its exceptions."""
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ not in ("builtins", "__main__"):
        name = f"{kind.__module__}.{name}"
    message = str(error.msg) if isinstance(error, SyntaxError) else str(error)
    text = f"{name}: {message}" if message else name
    if isinstance(error, BaseExceptionGroup):
        text += ": " + "; ".join(_name_error(part) for part in error.exceptions[:5])
    return text


def _print_error(text: str) -> None:
    """Write `text` to stderr after flushing stdout, even if the code has closed the streams."""
    with suppress(OSError, ValueError, AttributeError):  # full, closed or replaced
        sys.stdout.flush()
    with suppress(OSError):  # closed by the code; the exit code remains
        os.write(2, text.encode("utf-8", "backslashreplace"))


def _finish_threads() -> int:
    """Wait for threads and run exit functions, as the interpreter does at exit."""
    try:
        if len(threading._active) > 1 or threading._shutdown is not _shutdown:  # type: ignore[attr-defined]
            threading._shutdown()  # type: ignore[attr-defined]
        if atexit._ncallbacks():
            atexit._run_exitfuncs()
    except BaseException as error:  # noqa: BLE001 - an exit function of the code may raise anything
        _print_error(_format(error))
        return 1
    return 0


def _flush() -> bool:
    """Flush all streams, including replaced ones; return False if output was lost."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:
            if not getattr(stream, "closed", True):
                stream.flush()
        except BaseException:  # noqa: BLE001 - a full file, or a stream defined by the code
            return False
    return True
