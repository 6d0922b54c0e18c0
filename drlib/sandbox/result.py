"""How one call ended, and the fixed text that a policy sees of it (no clock, no paths of ours)."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

_NOT_RUN = "SandboxError: the code could not be run."
_FIXED_TEXTS = {
    "timeout": "TimeoutError: execution timed out.",
    "cpu_limit": "TimeoutError: execution timed out.",
    "memory_limit": "MemoryError: memory limit exceeded.",
    "output_limit": "OutputError: output limit exceeded.",
}
# Faults of the environment: the code of a call cannot bring them about for itself; a queue full of
# slow calls can, for those behind it (`queue_timeout`).
ENV_FAULTS = ("setup_failed", "worker_died", "queue_timeout", "service_unavailable")


@dataclass(frozen=True)
class SandboxResult:
    """How one call ended.

    Attributes:
        status: ok, error (exception or exit code), timeout (wall clock), cpu_limit, memory_limit,
            output_limit (printed or wrote too much), killed (a signal); or a fault of the
            environment: setup_failed, worker_died, queue_timeout (waited too long for its turn),
            service_unavailable (no service answered in time).
        stdout, stderr: what was printed, at most `output_chars` characters each, the middle cut.
        exit_code: of the process; minus the signal's number where one ended it; None if unknown.
        duration_s: wall clock of the code alone, seconds.
        isolation: "strong", "standard" or "weak"; "" where nothing ran.
    """

    status: str
    stdout: str
    stderr: str
    exit_code: int | None
    duration_s: float
    isolation: str

    @property
    def ok(self) -> bool:
        """Whether the code ran to its end with exit code 0."""
        return self.status == "ok"

    @property
    def env_fault(self) -> bool:
        """Whether the sandbox failed, not the code."""
        return self.status in ENV_FAULTS

    @property
    def text(self) -> str:
        """The observation for the policy: output, or one line that names the failure."""
        if self.ok:
            return self.stdout.rstrip("\n") or "Finished execution."
        if self.status == "error":
            lines = [line for line in self.stderr.splitlines() if line.strip()]
            return lines[-1] if lines else f"Error: exit code {self.exit_code}."
        if self.status == "killed":
            return f"Error: killed by {_signal_name(self.exit_code)}."
        return _FIXED_TEXTS.get(self.status, _NOT_RUN)


def _signal_name(exit_code: int | None) -> str:
    number = -(exit_code or 0)
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def stream_text(fd: int, limit: int) -> str:
    """What was printed: whole, or its first and last half with the bytes left out named."""
    size = os.fstat(fd).st_size
    part = 4 * limit  # bytes that hold `limit` characters in any case
    head = os.pread(fd, min(size, 2 * part), 0).decode("utf-8", "replace")
    if size <= 2 * part and len(head) <= limit:
        return head
    tail = os.pread(fd, part, max(size - part, 0)).decode("utf-8", "replace")
    half = limit // 2
    head = head[: limit - half]
    tail = tail[-half:]
    left_out = size - len(head.encode()) - len(tail.encode())
    return f"{head}\n... [{max(left_out, 1)} bytes omitted] ...\n{tail}"
