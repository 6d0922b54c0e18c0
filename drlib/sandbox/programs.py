"""Run shell commands on a set of files, isolated by the kernel (`program_process.py`).

Files go in and files come out: between two commands nothing exists on this machine, neither a
folder nor a process. A command sees the system's programs, Python with its standard library and
these files. It has no network. It can write to /tmp, which is discarded, and to the top-level
folders of the files. Needs the level "strong" of `drlib sandbox probe`.
"""

from __future__ import annotations

import functools
import marshal
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from drlib.sandbox import program_process, result, selftest
from drlib.sandbox.program_process import SYSTEM

# path from the root -> (mode, content): bytes of a file, None for a folder, the target of a link
Entry = tuple[int, bytes | str | None]
Files = dict[str, Entry]

OUTPUT_CHARS = 2000  # kept of each stream
GRACE_S = 60.0  # start of the process and transfer of the files


class _Slots:
    """Limit of commands at once: more would only run into their time limits."""

    def __init__(self) -> None:
        self.reset()
        os.register_at_fork(after_in_child=self.reset)  # no thread of the child holds a slot

    def reset(self) -> None:
        self.free = threading.BoundedSemaphore(max(4, 2 * (os.cpu_count() or 1)))


_SLOTS = _Slots()


class ProgramFault(RuntimeError):
    """The command could not be run; not a failure of the command itself."""


@dataclass(frozen=True)
class ProgramResult:
    """Result of one command.

    Attributes:
        status: "ok", "error" (exit code other than 0), "timeout", "output_limit", or "files_limit"
            (the files are those before the command).
        output: its standard output, the middle left out above the limit.
        errors: its error output; "" if it was merged into `output`.
        exit_code: of the shell; negative if it was killed.
        files: all files after the command.
    """

    status: str
    output: str
    errors: str
    exit_code: int
    files: Files


def run_program(
    command: str,
    files: Mapping[str, Entry],
    folder: str,
    *,
    timeout_s: float = 10.0,
    cpu_s: int = 5,
    merge: bool = True,
    output_chars: int = OUTPUT_CHARS,
    variables: Mapping[str, str] | None = None,
) -> ProgramResult:
    """Run `/bin/sh -c command` on the files.

    Args:
        files: path from the root -> entry, with all parent folders. Top-level folders of the
            system (`is_writable`) are not possible.
        folder: working folder.
        timeout_s: wall clock, seconds; generous, because other load slows a command.
        cpu_s: processor time of each process, seconds.
        merge: write the error output into `output`.
        output_chars: characters kept of each stream.
        variables: environment variables besides those of every command.

    Raises:
        SandboxUnavailable: this machine cannot isolate programs.
        ProgramFault: the isolated process could not be started, or it died.
    """
    require_programs()
    names = 1 if merge else 2
    streams = [os.memfd_create("drlib") for _ in range(names)]
    try:
        config = {
            "parent": os.getpid(),
            "prefix": selftest.FOLDER_PREFIX,
            "scratch": selftest.scratch(),
            "python": _python(),
            "command": command,
            "folder": folder,
            "timeout_s": timeout_s,
            "cpu_s": cpu_s,
            "streams": [streams[0], streams[-1]],
            "environment": _environment(folder) | dict(variables or {}),
        }
        with _SLOTS.free:
            status, code, left = _exchange(config, dict(files), streams)
        texts = [result.stream_text(fd, output_chars) for fd in streams]
    finally:
        for fd in streams:
            os.close(fd)
    return ProgramResult(status, texts[0], "" if merge else texts[1], code, left)


def _exchange(config: dict, files: Files, streams: list[int]) -> tuple[str, int, Files]:
    """Start the process, send the files and receive its reply."""
    try:
        done = subprocess.run(
            selftest.launch_command("program_process", ""),
            input=marshal.dumps((config, files)),
            capture_output=True,
            env=selftest.clean_environment(),
            pass_fds=streams,
            start_new_session=True,
            timeout=config["timeout_s"] + GRACE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProgramFault(f"the isolated process failed: {error}") from error
    try:
        return marshal.loads(done.stdout)
    except (EOFError, ValueError, TypeError) as error:  # it died
        problem = done.stderr.decode("utf-8", "replace")[-2000:]
        raise ProgramFault(f"the isolated process failed: {problem}") from error


def _environment(folder: str) -> dict[str, str]:
    """Return the environment variables of a command: the same on every machine."""
    return {
        "PATH": f"{program_process.PROGRAMS}:/usr/bin:/bin",
        "HOME": folder,
        "PWD": folder,
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",  # no start-up code from a file of the policy
    }


def is_writable(path: str) -> bool:
    """Return True if files at this path can be passed to commands, False for system folders."""
    system = (*SYSTEM, program_process.PROGRAMS, "/lib", "/tmp", "/proc", _python(), os.__file__)
    top = path.split("/")[1]
    return bool(top) and top not in {each.split("/")[1] for each in system}


def _python() -> str:
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


@functools.lru_cache(maxsize=1)
def require_programs() -> None:
    """Raise `SandboxUnavailable` if this machine cannot isolate programs (cached)."""
    selftest.probe().need("strong")
