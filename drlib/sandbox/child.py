"""One call, inside the process that the template forked for it: lock the door, then run the code.

Loaded by `zygote.py` by path; standard library only. Everything up to "ready" is ours, everything
after it is hostile: names that the code could replace are taken before it runs, and nothing it
prints or returns is believed. The exit code is the one a plain Python process would have, except
that an uncaught MemoryError exits with `EXIT_MEMORY`.
"""

from __future__ import annotations

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

EXIT_SETUP, EXIT_MEMORY = 97, 98
CODE_NAME = "<python>"


class Child:
    """One call, inside the forked process."""

    def __init__(self, template, request: dict, layers: types.ModuleType) -> None:
        self.template, self.request, self.layers = template, request, layers

    def main(self, ready: int, stdio: tuple[int, int, int]) -> None:
        """Put the layers in place, report, run the code; never returns."""
        exit_now = os._exit  # generated code may replace the name
        try:
            self._enter(ready, stdio)
            os.write(ready, b"1")
            os.close(ready)
        except BaseException as error:  # noqa: BLE001 - whatever it is, no code may run after it
            os.write(ready, b"0" + f"{type(error).__name__}: {error}".encode()[:2000])
            exit_now(EXIT_SETUP)
        try:
            exit_now(self._run())
        except BaseException:  # noqa: BLE001 - the template's own code must never go on in here
            exit_now(1)

    def _enter(self, ready: int, stdio: tuple[int, int, int]) -> None:
        template = self.template
        on = template.config["layers"]
        os.setsid()
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
            self.layers.die_with_parent(signal.SIGKILL, template.pid)
        if "landlock" in on:
            self.layers.landlock_restrict(template.ruleset)
        os.closerange(3, ready)
        os.closerange(ready + 1, 256)
        self._seed()
        self._open_streams()
        if "seccomp" in on:
            template.filter.install()

    def _seed(self) -> None:
        """Siblings inherit equal generators; the same call gets the same numbers anywhere."""
        text = json.dumps([self.request[k] for k in ("history", "stdin", "code")])
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
        module = types.ModuleType("__main__")
        module.__builtins__ = builtins
        sys.modules["__main__"] = module
        sys.argv[:] = [CODE_NAME]
        gc.enable()
        for cell in self.request["history"]:
            _execute(cell, module, silent=True)
        if self.request["history"]:
            flush()
            for fd in (1, 2):
                truncate(fd, 0)
                seek(fd, 0, os.SEEK_SET)
        code = _execute(self.request["code"], module)
        code = finish() or code
        return code if flush() else code or 1


def _execute(source: str, module: types.ModuleType, silent: bool = False) -> int:
    """Run one cell in `module`; the exit code a Python process would have."""
    linecache.cache[CODE_NAME] = (len(source), None, source.splitlines(True), CODE_NAME)
    try:
        exec(compile(source, CODE_NAME, "exec"), module.__dict__)
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
