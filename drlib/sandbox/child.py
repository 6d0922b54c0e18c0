"""One call, inside the process that the template forked for it: lock the door, then run the code.

Loaded by `zygote.py` by path; standard library only. Everything up to "ready" is ours, everything
after it is hostile: names that the code could replace are taken before it runs, and nothing it
prints or returns is believed. The exit code is the one a plain Python process would have, except
that an uncaught MemoryError exits with `EXIT_MEMORY`.
"""

from __future__ import annotations

import ast
import atexit
import builtins
import gc
import hashlib
import json
import linecache
import os
import random
import signal
import sys
import threading
import traceback
import types
from collections.abc import Callable, Sequence

EXIT_SETUP, EXIT_MEMORY = 97, 98
CODE_NAME = "<python>"


class Child:
    """One call, inside the forked process."""

    def __init__(self, template, layers: types.ModuleType) -> None:
        self.template, self.layers = template, layers

    def main(self, ready: int, stdio: Sequence[int], keep: Sequence[int], then=None) -> None:
        """Put the layers in place, report, run the code; never returns.

        `keep` is the descriptor of the request: it is read here, so that nothing of one call is
        ever in the memory that the next is forked from. A session (sessions.py) keeps `ready` and
        descriptors of its own, and calls `then` instead.
        """
        exit_now = os._exit  # generated code may replace the name
        try:
            self._enter(stdio, {ready, *keep})
            os.write(ready, b"1\n")
            if not then:
                os.close(ready)
                self.request = json.loads(_read_all(*keep))
        except BaseException as error:  # noqa: BLE001 - whatever it is, no code may run after it
            os.write(ready, b"0" + f"{type(error).__name__}: {error}".encode()[:2000])
            exit_now(EXIT_SETUP)
        try:
            exit_now((then or self._run)())
        except BaseException:  # noqa: BLE001 - the template's own code must never go on in here
            exit_now(1)

    def _enter(self, stdio: Sequence[int], keep: set[int]) -> None:
        template = self.template
        on = template.config["layers"]
        os.setsid()
        parent = template.pid
        if template.home >= 0:  # seen from its own PID namespace its parent has no number
            parent = 0
            self.layers.mount_work(template.work, *template.work_bounds)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.layers.set_limits(template.limits)
        os.chdir(template.work)
        for target, fd in enumerate(stdio):
            os.dup2(fd, target)
        if template.config["drop"] == "setuid":
            self.layers.become_nobody()
        elif sys.platform == "linux":
            self.layers.drop_capabilities()
        if "no_new_privileges" in on:
            self.layers.no_new_privileges()
        if sys.platform == "linux":
            self.layers.die_with_parent(signal.SIGKILL, parent)
        if "landlock" in on:
            self.layers.landlock_restrict(template.ruleset)
        low = 3
        for fd in (*sorted(keep), 256):
            os.closerange(low, fd)
            low = fd + 1
        self.module = types.ModuleType("__main__")
        self.module.__builtins__ = builtins
        sys.modules["__main__"] = self.module
        sys.argv[:] = [CODE_NAME]
        self._open_streams()
        gc.enable()
        if "seccomp" in on:
            self.listener = template.filter.install()

    def _seed(self, history: list[str], stdin: str, code: str) -> None:
        """Siblings inherit equal generators; the same cell gets the same numbers anywhere."""
        text = json.dumps([history, stdin, code])
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
        random.seed(seed)
        for name in ("numpy.random", "sympy.core.random"):
            if name in sys.modules:
                sys.modules[name].seed(seed)

    def _open_streams(self) -> None:
        sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", errors="replace", closefd=False)
        options = {"encoding": "utf-8", "errors": "backslashreplace", "closefd": False}
        sys.stdout = sys.__stdout__ = open(1, "w", **options)
        sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, **options)

    def _run(self) -> int:
        """Earlier cells silently, then the code; the exit code."""
        # Generated code may replace any of these in their modules.
        flush, finish, truncate, seek = _flush, _finish_threads, os.ftruncate, os.lseek
        seed, execute, request = self._seed, _execute, self.request
        for number, cell in enumerate(request["history"]):
            seed(request["history"][:number], "", cell)
            execute(cell, self.module, silent=True)
        if request["history"]:
            flush()
            for fd in (1, 2):
                truncate(fd, 0)
                seek(fd, 0, os.SEEK_SET)
        seed(request["history"], request["stdin"], request["code"])
        code = execute(request["code"], self.module, echo=request["echo"])
        code = finish() or code
        return code if flush() else code or 1

    def run_cell(self, request: dict, after: Callable[[], None]) -> int:
        """One cell of a session in its namespace as it is; `after` holds the state; exit code."""
        self._open_streams()
        self._seed(request["history"], request["stdin"], request["code"])
        code = _execute(request["code"], self.module, echo=request["echo"])
        flushed = _flush()
        after()
        code = _finish_threads() or code
        return code if _flush() and flushed else code or 1


def _read_all(fd: int) -> bytes:
    """The whole of a memory file, which is then closed."""
    data = os.pread(fd, os.fstat(fd).st_size, 0)
    os.close(fd)
    return data


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
        threading._shutdown()
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
