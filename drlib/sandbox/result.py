"""Result of one call, and the observation of the policy (no time, no paths of this machine)."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from drlib.sandbox.selftest import FOLDER_PREFIX, scratch

_NOT_RUN = "SandboxError: the code could not be run."
_FIXED_TEXTS = {
    "timeout": "TimeoutError: execution timed out.",
    "cpu_limit": "TimeoutError: execution timed out.",
    "memory_limit": "MemoryError: memory limit exceeded.",
    "output_limit": "OutputError: output limit exceeded.",
    "history_ended": "Error: an earlier cell ended the process, so this code did not run.",
}
# Environment faults. A call cannot cause them for itself, but a queue full of slow calls can cause
# `queue_timeout` for later ones.
ENV_FAULTS = ("setup_failed", "worker_died", "queue_timeout", "service_unavailable")


@dataclass(frozen=True)
class SandboxResult:
    """Result of one call.

    Attributes:
        status: ok, error (exception or exit code), timeout (wall clock), cpu_limit, memory_limit,
            output_limit (printed or wrote too much), killed (a signal), history_ended (an earlier
            cell ended the process before the code ran); or an environment fault:
            setup_failed, worker_died, queue_timeout, service_unavailable.
        stdout, stderr: printed text, at most `output_chars` characters each, the middle omitted.
        exit_code: exit code of the process, negative signal number if killed, None if unknown.
        duration_s: wall clock of the code alone, seconds.
        isolation: "strong", "standard" or "weak"; "" if nothing ran.
    """

    status: str
    stdout: str
    stderr: str
    exit_code: int | None
    duration_s: float
    isolation: str

    @property
    def ok(self) -> bool:
        """True if the code ended with exit code 0."""
        return self.status == "ok"

    @property
    def env_fault(self) -> bool:
        """True if the sandbox failed, not the code."""
        return self.status in ENV_FAULTS

    @property
    def text(self) -> str:
        """Observation for the policy: the output, or one line that names the failure."""
        if self.ok:
            return self.stdout.rstrip("\n") or "Finished execution."
        if self.status == "error":
            lines = [line for line in self.stderr.splitlines() if line.strip()]
            return lines[-1] if lines else f"Error: exit code {self.exit_code}."
        if self.status == "killed":
            return f"Error: killed by {_signal_name(self.exit_code)}."
        return _FIXED_TEXTS.get(self.status, _NOT_RUN)


def _signal_name(exit_code: int | None) -> str:
    """Return the name of the signal that ended the process."""
    number = -(exit_code or 0)
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def stream_text(fd: int, limit: int) -> str:
    """Read printed text; above `limit` characters, replace the middle by its number of bytes."""
    size = os.fstat(fd).st_size
    part = 4 * limit  # `limit` characters of UTF-8 need at most this many bytes
    head = os.pread(fd, min(size, 2 * part), 0).decode("utf-8", "replace")
    if size <= 2 * part and len(head) <= limit:
        return head
    tail = os.pread(fd, part, max(size - part, 0)).decode("utf-8", "replace")
    half = limit // 2
    head = head[: limit - half]
    tail = tail[-half:]
    left_out = size - len(head.encode()) - len(tail.encode())
    return f"{head}\n... [{max(left_out, 1)} bytes omitted] ...\n{tail}"


def hide_paths(text: str, roots: Sequence[str]) -> str:
    """Replace paths of this machine, so that equal code has equal results on every machine.

    "ROOT/sympy/core.py" becomes "sympy/core.py", and likewise modules of the standard library;
    other files of Python's installation begin with "/usr", and the work folder is "/box/work".

    Args:
        text: printed text.
        roots: folders of the installed packages.
    """
    if "/" not in text:
        return text
    pattern, names = _host_paths(tuple(roots))
    # Generated code chooses the text: both patterns begin with fixed words, so a search is linear.
    text = pattern.sub(lambda found: names[found[0]], text)
    return _work_folder(scratch()).sub("/box/work", text)


@cache
def _work_folder(parent: str) -> re.Pattern:
    return re.compile(re.escape(f"{parent}/{FOLDER_PREFIX}") + r"\w{1,20}/box/work\b")


@cache
def _host_paths(roots: tuple[str, ...]) -> tuple[re.Pattern, dict[str, str]]:
    """Return a pattern of this machine's paths, the longest first, and what replaces them."""
    stdlib = os.path.dirname(os.path.abspath(os.__file__))
    names = {f"{root}/": "" for root in (*roots, f"{stdlib}/lib-dynload", stdlib)}
    for prefix in (sys.prefix, sys.base_prefix, os.path.realpath(sys.base_prefix)):
        names.setdefault(prefix, "/usr")
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))), names
