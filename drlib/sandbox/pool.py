"""Run generated Python code: `Sandbox` keeps warm template processes and hands them calls.

One worker is one thread with one template process (`zygote.py`); it serves one call at a time, each
in a child of its own that nothing survives. The thread starts the template and lives as long as it,
because the kernel ties "die with the parent" to the thread that forked. If a template dies, it is
started again and the call is tried once more, as after a child that could not lock itself in; a
second time it is `worker_died` or `setup_failed`, faults of the environment and not of the policy.

Fails closed: `probe()` tries every layer, and below `min_level` there is no sandbox. The
observation (`SandboxResult.text`) is a fixed function of what the code did, without a clock.
Left out: HTTP and Ray front ends, held sessions, the level "strong" (namespaces): a later issue.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import signal
import socket
import subprocess
import tempfile
import threading
import time
import warnings
import weakref
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from drlib.sandbox import layers
from drlib.sandbox.probing import (
    LEVELS,
    PRELOAD,
    REMEDY,
    START_SECONDS,
    WARM_UP,
    Probe,
    SandboxUnavailable,
    environment,
    package_roots,
    probe,
    python,
    scratch,
)

MAX_REQUEST_CHARS = 16_000_000
_HERE = Path(__file__).parent


@dataclass(frozen=True)
class SandboxResult:
    """How one call ended.

    Attributes:
        status: ok, error (exception or exit code), timeout (wall clock), cpu_limit, memory_limit,
            output_limit (printed or wrote too much), killed (a signal), setup_failed, worker_died.
        stdout, stderr: what was printed, at most `output_chars` characters each, the middle cut.
        exit_code: of the process; minus the signal's number where one ended it; None if unknown.
        duration_s: wall clock of the code alone, seconds.
        isolation: "standard" or "weak".
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
        """Whether the sandbox failed, not the code; generated code cannot bring this about."""
        return self.status in ("setup_failed", "worker_died")

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
        return _FIXED_TEXTS[self.status]


_FIXED_TEXTS = {
    "timeout": "TimeoutError: execution timed out.",
    "cpu_limit": "TimeoutError: execution timed out.",
    "memory_limit": "MemoryError: memory limit exceeded.",
    "output_limit": "OutputError: output limit exceeded.",
    "setup_failed": "SandboxError: the code could not be run.",
    "worker_died": "SandboxError: the code could not be run.",
}


def _signal_name(exit_code: int | None) -> str:
    try:
        return signal.Signals(-(exit_code or 0)).name
    except ValueError:
        return f"signal {-(exit_code or 0)}"


def _shorten(part: dict, limit: int) -> str:
    """Text of one stream: whole, or its first and last half with the bytes left out named."""
    head = part["head"].encode("latin-1").decode("utf-8", "replace")
    tail = part["tail"].encode("latin-1").decode("utf-8", "replace")
    if not tail and len(head) <= limit:
        return head
    head, tail = head[: limit - limit // 2], (tail or head)[-(limit // 2) :]
    left_out = part["size"] - len(head.encode()) - len(tail.encode())
    return f"{head}\n... [{max(left_out, 1)} bytes omitted] ...\n{tail}"


class _TemplateDied(Exception):
    """The template process is gone; the text is the end of its error output."""


class _Template:
    """The parent's side of one template process."""

    def __init__(self, config: dict) -> None:
        self._folder = tempfile.mkdtemp(prefix="drlib-sandbox-", dir=scratch())
        self._errors = tempfile.TemporaryFile()
        self._channel, theirs = socket.socketpair()
        self._timeout = config["timeout_s"]
        config = {**config, "fd": theirs.fileno(), "parent": os.getpid()}
        with theirs:
            self.process = subprocess.Popen(
                [*python(), str(_HERE / "zygote.py"), json.dumps(config)],
                env=environment(), cwd=self._folder, pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._errors,
                start_new_session=True,  # Ctrl-C is for the caller, which then closes us
            )

    def wait_ready(self) -> None:
        """Until the imports are done; `_TemplateDied` if they never are."""
        self._receive(START_SECONDS)

    def call(self, request: dict) -> dict:
        try:
            self._channel.settimeout(START_SECONDS)
            body = json.dumps(request).encode()
            self._channel.sendall(len(body).to_bytes(4, "big") + body)
        except OSError as error:
            raise _TemplateDied(self._last_words()) from error
        # The template's own limits come first; this one is for a template that is stopped.
        return self._receive(self._timeout + 60.0)

    def _receive(self, seconds: float) -> dict:
        self._channel.settimeout(seconds)
        try:
            size = int.from_bytes(self._exactly(4), "big")
            return json.loads(self._exactly(size))
        except (OSError, EOFError) as error:
            raise _TemplateDied(self._last_words()) from error

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            part = self._channel.recv(count - len(data))
            if not part:
                raise EOFError
            data += part
        return bytes(data)

    def _last_words(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-2000:].decode("utf-8", "replace")

    def terminate(self) -> None:
        """Ask it to kill its child, empty its folder and go; from any thread."""
        self.process.terminate()

    def close(self) -> None:
        """End the process and remove its folder."""
        self.terminate()
        try:
            self.process.wait(3.0)
        except subprocess.TimeoutExpired:
            self.process.kill()  # its child dies with it
            self.process.wait()
        self._channel.close()
        self._errors.close()
        for _ in range(100):
            if not os.path.exists(self._folder):  # as usual: the template has removed it itself
                break
            try:
                layers.wipe(self._folder)
                os.rmdir(self._folder)
            except OSError:  # a child of a killed template may still be dying in there
                time.sleep(0.02)


@dataclass
class _Job:
    request: dict
    future: Future


class _Workers:
    """Threads, queue and templates; apart from `Sandbox` so that a forgotten one is collected."""

    def __init__(self, count: int, config: dict, isolation: str) -> None:
        self.config, self.isolation = config, isolation
        self.jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self.templates: dict[int, _Template] = {}
        self.closing, self.lock = False, threading.Lock()
        self.started: list[Future] = [Future() for _ in range(count)]
        self.threads = [
            threading.Thread(target=self._work, args=(i,), daemon=True, name=f"sandbox-{i}")
            for i in range(count)
        ]
        for thread in self.threads:
            thread.start()

    def _work(self, index: int) -> None:
        try:
            self._start(index)
        except (_TemplateDied, OSError) as error:
            self._drop(index)
            self.started[index].set_exception(
                SandboxUnavailable(f"The sandbox's template process did not start: {error}")
            )
            return
        self.started[index].set_result(None)
        while (job := self.jobs.get()) is not None:
            if job.future.set_running_or_notify_cancel():
                self._answer(index, job)
            del job
        self._drop(index)

    def _start(self, index: int) -> _Template:
        with self.lock:
            if self.closing:
                raise _TemplateDied("the sandbox is being closed")
            template = self.templates[index] = _Template(self.config)
        template.wait_ready()
        return template

    def _drop(self, index: int) -> None:
        with self.lock:
            template = self.templates.pop(index, None)
        if template is not None:
            template.close()

    def _answer(self, index: int, job: _Job) -> None:
        reply, reason = None, ""
        for _ in range(2):
            try:
                template = self.templates.get(index) or self._start(index)
                reply = template.call(job.request)
                if reply["status"] != "setup_failed":
                    break
                self._drop(index)
            except (_TemplateDied, OSError) as error:
                reason = str(error)
                self._drop(index)
            if self.closing:
                job.future.set_exception(RuntimeError("The Sandbox was closed during this call."))
                return
        job.future.set_result(self._result(reply, reason))

    def _result(self, reply: dict | None, reason: str) -> SandboxResult:
        if reply is None:
            return SandboxResult("worker_died", "", reason, None, 0.0, self.isolation)
        limit = self.config["output_chars"]
        return SandboxResult(
            status=reply["status"], stdout=_shorten(reply["stdout"], limit),
            stderr=reply["reason"] or _shorten(reply["stderr"], limit),
            exit_code=reply["exit_code"], duration_s=reply["duration_s"], isolation=self.isolation,
        )

    def close(self) -> None:
        """Cancel what waits, stop what runs, end every process; may be called twice."""
        with self.lock:
            self.closing = True
            for template in self.templates.values():
                template.terminate()
        while True:
            try:
                job = self.jobs.get_nowait()
            except queue.Empty:
                break
            if job is not None:
                job.future.cancel()
        for _ in self.threads:
            self.jobs.put(None)
        for thread in self.threads:
            thread.join()


_warned_weak = threading.Event()


class Sandbox:
    """Warm, isolated Python for generated code; a context manager, safe from many threads.

    Args:
        workers: calls that run at the same time, each with a template of about 70 MB.
        timeout_s: wall clock of one call, seconds (CPU time may reach it rounded up plus 1).
        memory_mb: address space of one call beyond the template's own.
        min_level: the least isolation to accept: "standard", or "weak" by explicit choice.
        output_chars: characters kept of each of stdout and stderr.
        found: an earlier `probe()`, for tests of machines with less.

    Raises:
        SandboxUnavailable: this machine offers less than `min_level`.
        ValueError: an argument out of range.
    """

    def __init__(
        self, workers: int = 1, timeout_s: float = 4.0, memory_mb: int = 512,
        min_level: str = "standard", output_chars: int = 2000, *, found: Probe | None = None,
    ) -> None:
        if min_level not in LEVELS[1:]:
            raise ValueError(f"min_level is {min_level!r}; use one of {', '.join(LEVELS[1:])}.")
        for name, value, least in (
            ("workers", workers, 1), ("memory_mb", memory_mb, 16),
            ("timeout_s", timeout_s, 0.01), ("output_chars", output_chars, 2),
        ):
            if not value >= least:
                raise ValueError(f"{name} is {value!r}; it must be at least {least}.")
        found = found or probe()
        if LEVELS.index(found.level) < LEVELS.index(min_level):
            raise SandboxUnavailable(
                f"Isolation here is {found.level!r}, asked for is {min_level!r}.\n"
                f"{found.table()}\n{REMEDY}"
            )
        self.isolation = found.level
        if self.isolation == "weak" and not _warned_weak.is_set():
            _warned_weak.set()
            warnings.warn("Sandbox runs with WEAK isolation: code can read this user's files and "
                          "use the network. Do not run a policy you do not trust.", stacklevel=2)
        config = {
            "timeout_s": timeout_s, "memory_mb": memory_mb, "output_chars": output_chars,
            "layers": found.working, "drop": found.drop, "roots": package_roots(),
            "preload": PRELOAD, "warm_up": WARM_UP,
        }
        self._pid = os.getpid()
        self._workers = _Workers(workers, config, self.isolation)
        self._finalizer = weakref.finalize(self, self._workers.close)
        try:
            for started in self._workers.started:
                started.result()
        except BaseException:
            self.close()
            raise

    def submit(self, code: str, stdin: str = "", history: Sequence[str] = ()) -> Future:
        """Queue a call; a `concurrent.futures.Future[SandboxResult]`.

        Args:
            code: Python source; only what it prints is seen.
            stdin: what `input()` reads.
            history: earlier cells, run again silently and without their errors in the same
                namespace before `code` (stateless "sessions").
        """
        self._check_usable()
        history = [history] if isinstance(history, str) else list(history)
        for name, text in (("code", code), ("stdin", stdin), *(("history", h) for h in history)):
            if not isinstance(text, str):
                raise TypeError(f"{name} must be text, not {type(text).__name__}.")
        size = len(code) + len(stdin) + sum(map(len, history))
        if size > MAX_REQUEST_CHARS:
            raise ValueError(f"The call has {size} characters; {MAX_REQUEST_CHARS} is the limit.")
        future: Future[SandboxResult] = Future()
        request = {"code": code, "stdin": stdin, "history": history}
        self._workers.jobs.put(_Job(request, future))
        return future

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError("This Sandbox belongs to the process that made it; make a new one "
                               "in each forked process.")
        if self._workers.closing:
            raise RuntimeError("This Sandbox is closed; make a new one.")

    def run(self, code: str, stdin: str = "", history: Sequence[str] = ()) -> SandboxResult:
        """Run `code` and wait for its result; see `submit`."""
        return self.submit(code, stdin, history).result()

    async def arun(self, code: str, stdin: str = "", history: Sequence[str] = ()) -> SandboxResult:
        """`run` without blocking the event loop."""
        return await asyncio.wrap_future(self.submit(code, stdin, history))

    def map(self, codes: Iterable[str]) -> list[SandboxResult]:
        """Run several independent calls, as many at a time as there are workers; in order."""
        return [future.result() for future in [self.submit(code) for code in codes]]

    def template_pids(self) -> list[int]:
        """Process ids of the templates that run now."""
        return [t.process.pid for t in list(self._workers.templates.values())]

    def close(self) -> None:
        """End every process of this sandbox and remove its folders; waiting calls are cancelled."""
        if os.getpid() == self._pid:
            self._finalizer()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
