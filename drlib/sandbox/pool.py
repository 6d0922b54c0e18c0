"""Run generated Python code: `Sandbox` keeps warm template processes and queues calls for them.

Each call runs in a single-use child of a template process. Construction fails if `probe()` finds
less isolation than `min_level`. The observation (`SandboxResult.text`) depends only on what the
code did and contains no time. `history` provides state between calls by re-running earlier cells
(rStar2-Agent).

Left out: priorities between callers, and cgroups around templates (they need delegation).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import threading
import time
import warnings
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self

import psutil

from drlib.sandbox import selftest
from drlib.sandbox.packages import PACKAGES
from drlib.sandbox.result import SandboxResult, hide_paths, stream_text
from drlib.sandbox.selftest import (
    HEAVY,
    LEVELS,
    WARM_UP_HEAVY,
    WARM_UP_LIGHT,
    Probe,
    SandboxUnavailable,
)
from drlib.sandbox.template_process import Template, TemplateDied, call_files

MAX_REQUEST_CHARS = 16_000_000
MEMORY_PATIENCE_S = 60.0  # wait for memory used outside the sandbox
_NAMES_HEAVY = re.compile("|".join(HEAVY))  # a guess; both templates give the same output
_WEAK = (
    "Sandbox runs with WEAK isolation: code can read this user's files and use the network. Do not "
    "run an untrusted policy."
)
Cells = Sequence[str]  # code cells in execution order


def check_call(code: str, stdin: str = "", history: Cells = (), echo: bool = False) -> dict:
    """Validate a call and return its request; TypeError or ValueError names the argument."""
    if isinstance(history, str) or not isinstance(history, Sequence):
        raise TypeError(f"history must be a list of texts, not {type(history).__name__}.")
    history = list(history)
    _check_text("code", code)
    _check_text("stdin", stdin)
    for cell in history:
        _check_text("history", cell)
    size = len(code) + len(stdin) + sum(map(len, history))
    if size > MAX_REQUEST_CHARS:
        raise ValueError(f"The call has {size} characters; {MAX_REQUEST_CHARS} is the limit.")
    return {"code": code, "stdin": stdin, "history": history, "echo": bool(echo)}


def _check_text(name: str, text: str) -> None:
    if not isinstance(text, str):
        raise TypeError(f"{name} must be text, not {type(text).__name__}.")


def _check_number(name: str, value: float, least: float) -> None:
    """Raise TypeError or ValueError unless `value` is a number of at least `least`.

    If `least` is an integer, `value` must be one too.
    """
    if isinstance(least, int) and not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}; it must be a whole number.")
    if not least <= value < 1e6:
        raise ValueError(f"{name} is {value!r}; it must be {least} to a million.")


def available_bytes() -> int:
    """Return the free memory of the machine, or of the container's control group, in bytes."""
    left = psutil.virtual_memory().available
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(FileNotFoundError):  # no control groups of version 2
        limit = (group / "memory.max").read_text().strip()
        if limit != "max":
            used = int((group / "memory.current").read_text())
            counts = (group / "memory.stat").read_text()
            cache = int(re.search(r"inactive_file (\d+)", counts)[1])  # reclaimable
            left = min(left, int(limit) - used + cache)
    return left


class Runner(ABC):
    """Interface of local and remote sandboxes; subclasses implement `_put` and `close`."""

    def submit(self, code: str, stdin: str = "", history: Cells = (), echo: bool = False) -> Future:
        """Queue a call and return a `concurrent.futures.Future[SandboxResult]`.

        Args:
            code: Python source; only printed output is returned.
            stdin: input of `input()`.
            history: earlier cells, re-run without output in the same namespace before `code`;
                their exceptions are ignored (rStar2-Agent).
            echo: also print the value of an expression at the end of `code`, as a notebook does.
        """
        return self._put(check_call(code, stdin, history, echo))

    @abstractmethod
    def _put(self, request: dict) -> Future:
        """Queue a validated call: {"code", "stdin", "history", "echo"}."""

    def run(
        self, code: str, stdin: str = "", history: Cells = (), echo: bool = False
    ) -> SandboxResult:
        """Run a call and wait for its result; see `submit` for the arguments."""
        return self.submit(code, stdin, history, echo).result()

    async def arun(
        self, code: str, stdin: str = "", history: Cells = (), echo: bool = False
    ) -> SandboxResult:
        """Run a call without blocking the event loop; see `submit` for the arguments."""
        return await asyncio.wrap_future(self.submit(code, stdin, history, echo))

    def map(self, codes: Iterable[str]) -> list[SandboxResult]:
        """Run independent calls concurrently and return their results in order."""
        futures = [self.submit(code) for code in codes]
        return [future.result() for future in futures]

    @abstractmethod
    def close(self) -> None:
        """Release all resources of this runner."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Sandbox(Runner):
    """Warm, isolated Python for generated code: a thread-safe context manager.

    Args:
        workers: number of short calls that run concurrently. Each worker has a template of about
            12 MB and, after its first call that names numpy or sympy, a second one of 70 MB.
        timeout_s: wall clock of one call, seconds (CPU limit: rounded up, plus 1).
        memory_mb: address space of one call beyond the template's own. Calls wait while the
            machine has less free memory than all running calls may use.
        min_level: lowest accepted isolation: "strong", "standard" or (explicitly) "weak".
        output_chars: characters kept of each of stdout and stderr.
        queue_timeout_s: maximum wait before a call gets the status queue_timeout; None: no limit.
        long_s: after this time a running call moves to the long lane and frees its worker slot.
        long_workers: number of spare templates that replace calls in the long lane.
        found: result of an earlier `probe()`, for tests of machines with less isolation.

    Raises:
        SandboxUnavailable: this machine offers less than `min_level`.
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        workers: int = 1,
        timeout_s: float = 4.0,
        memory_mb: int = 512,
        min_level: str = "standard",
        output_chars: int = 2000,
        *,
        queue_timeout_s: float | None = None,
        long_s: float = 0.5,
        long_workers: int = 1,
        found: Probe | None = None,
    ) -> None:
        if min_level not in LEVELS[1:]:
            raise ValueError(f"min_level is {min_level!r}; use one of {', '.join(LEVELS[1:])}.")
        _check_number("workers", workers, 1)
        _check_number("long_workers", long_workers, 0)
        _check_number("memory_mb", memory_mb, 16)
        _check_number("output_chars", output_chars, 2)
        _check_number("timeout_s", timeout_s, 0.01)
        _check_number("long_s", long_s, 0.01)
        if queue_timeout_s is not None:
            _check_number("queue_timeout_s", queue_timeout_s, 0.01)
        found = found or selftest.probe()
        found.need(min_level)
        self.isolation = found.level
        if self.isolation == "weak":
            warnings.warn(_WEAK, stacklevel=2)
        config = {
            "timeout_s": timeout_s,
            "memory_mb": memory_mb,
            "output_chars": output_chars,
            "layers": [layer.name for layer in found.layers if layer.ok],
            "drop": found.drop,
            "packages": PACKAGES,
            "roots": selftest.package_roots(),
            "queue_timeout_s": queue_timeout_s,
            "long_s": long_s,
        }
        self._pid = os.getpid()
        self.workers = workers
        self._workers = Workers(workers, long_workers, config, self.isolation)
        self._finalizer = weakref.finalize(self, self._workers.close)
        try:
            for started in self._workers.started:
                started.result()
        except BaseException:
            self.close()
            raise

    def _put(self, request: dict) -> Job:
        if os.getpid() != self._pid:
            raise RuntimeError(
                "This Sandbox belongs to the process that made it; make a new one "
                "in each forked process."
            )
        return self._workers.put(Job(request))

    def template_pids(self) -> list[int]:
        """Return the process ids of the running templates."""
        templates = list(self._workers.templates.values())
        return [template.process.pid for template in templates]

    def close(self) -> None:
        """Stop all processes, remove their folders and cancel waiting calls."""
        if os.getpid() == self._pid:
            self._finalizer()


class Job(Future):
    """A queued call, which is its own future."""

    def __init__(self, request: dict) -> None:
        super().__init__()
        self.request = request
        self.queued = time.monotonic()
        self.is_long = False
        # A cancelled call stays in the queue, but its text is released.
        self.add_done_callback(_release_request)


def _release_request(job: Future) -> None:
    assert isinstance(job, Job)
    job.request.clear()


class Workers:
    """Threads, queue and templates of a `Sandbox`; separate, so that a Sandbox can be collected.

    One worker is one thread with its templates. The thread starts them and outlives them, because
    the kernel ties "die with the parent" to the forking thread. If a template dies, or a child
    fails in set-up, the call is retried once in a new template. The second failure is
    `worker_died` or `setup_failed`, which are environment faults.

    A call that takes longer than `long_s` moves to the long lane: a spare template takes its place,
    so a few runaway calls do not delay many short ones. A call starts only if its memory limit fits
    into the free memory of the machine.
    """

    def __init__(self, count: int, spare: int, config: dict, isolation: str) -> None:
        self.config = config
        self.isolation = isolation
        self.count = count
        self.lane = threading.RLock()  # guards all attributes below
        self.resting: list[threading.Condition] = []  # one per idle worker, the latest last
        self.spares = threading.Condition(self.lane)  # idle spare threads
        self.memory = threading.Condition(self.lane)  # calls that wait for memory
        self.jobs: deque[Job] = deque()
        self.templates: dict[tuple[int, bool], Template] = {}  # by thread index and is_heavy
        self.closing = False
        self.short = 0  # calls in the short lane
        self.long = 0  # calls in the long lane
        self.idle = 0  # idle threads with a template
        self.running = 0  # calls with reserved memory
        self.measured_at = 0.0  # time of the last memory measurement
        self.left = 0  # free bytes at that time
        self.started: list[Future] = [Future() for _ in range(count)]
        self.threads = [
            threading.Thread(target=self._work, args=(i,), daemon=True, name=f"sandbox-{i}")
            for i in range(count + spare)
        ]
        for thread in self.threads:
            thread.start()

    def put(self, job: Job) -> Job:
        """Queue a job; RuntimeError if the sandbox is closed."""
        with self.lane:
            if self.closing:
                raise RuntimeError("This Sandbox is closed; make a new one.")
            self.jobs.append(job)
            self._wake()
        return job

    def _wake(self) -> None:
        """Wake one thread for one job; needless wake-ups would contend for the GIL."""
        if self.jobs and self.resting:
            self.resting.pop().notify()  # the most recent: its template is still in CPU caches
        elif self.jobs:
            self.spares.notify_all()

    def _work(self, index: int) -> None:
        """Run jobs in thread `index` until the sandbox is closed."""
        if index < self.count and not self._start_first(index):
            return
        while (job := self._next(index)) is not None:
            try:
                if job.set_running_or_notify_cancel():
                    self._answer(index, job)
            except OSError as error:  # in this process, e.g. no free descriptor
                job.set_result(self._died(error))
            except Exception as error:  # noqa: BLE001 - keep the thread alive for later jobs
                job.set_exception(error)
            finally:
                self._leave_lane(job)
            del job  # release it while this thread waits
        self._drop(index, heavy=False)
        self._drop(index, heavy=True)

    def _start_first(self, index: int) -> bool:
        """Start a worker's light template and report the outcome in `started`."""
        try:
            self._use(index, False, lambda template: None)
        except (TemplateDied, OSError) as error:
            message = f"The sandbox's template process did not start: {error}"
            self.started[index].set_exception(SandboxUnavailable(message))
            return False
        self.started[index].set_result(None)
        return True

    def _leave_lane(self, job: Job) -> None:
        """Free the job's slot in its lane."""
        with self.lane:
            if job.is_long:
                self.long -= 1
            else:
                self.short -= 1
            self._wake()

    def _move_to_long_lane(self, job: Job) -> None:
        with self.lane:
            if not job.is_long:
                job.is_long = True
                self.short -= 1
                self.long += 1
                self._wake()

    def _next(self, index: int) -> Job | None:
        """Wait for a job and a slot in the short lane; return None when closing."""
        is_worker = index < self.count  # otherwise a spare
        is_warm = is_worker or (index, False) in self.templates

        def is_ready() -> bool:
            # Spares replace calls in the long lane; a cold one starts only if no warm one is idle.
            is_useful = index - self.count < self.long and (is_warm or not self.idle)
            return self.closing or (bool(self.jobs) and self.short < self.count and is_useful)

        condition = threading.Condition(self.lane) if is_worker else self.spares
        with condition:
            if is_warm:
                self.idle += 1
            while not is_ready():
                if is_worker:
                    self.resting.append(condition)
                condition.wait()
            if is_warm:
                self.idle -= 1
            if self.closing:
                return None
            self.short += 1
            job = self.jobs.popleft()
            self._wake()
            return job

    def _start(self, index: int, heavy: bool) -> Template:
        """Start a template and wait until its imports are done."""
        warm_up = WARM_UP_HEAVY if heavy else WARM_UP_LIGHT
        config = {**self.config, "warm_up": warm_up, "heavy": heavy}
        with self.lane:
            if self.closing:
                raise TemplateDied("the sandbox is being closed")
            template = Template(config)
            self.templates[index, heavy] = template
        template.wait_ready()
        return template

    def _drop(self, index: int, heavy: bool) -> None:
        """Close a template if it is running."""
        with self.lane:
            template = self.templates.pop((index, heavy), None)
        if template is not None:
            template.close()

    def _answer(self, index: int, job: Job) -> None:
        """Run a job and set its result."""
        refusal = self._admit(job)
        if refusal:
            result = SandboxResult("queue_timeout", "", refusal, None, 0.0, "")
        else:
            try:
                result = self._run_with_retry(index, job)
            finally:
                with self.lane:
                    self.running -= 1
                    self.memory.notify()
        if self.closing and result.status == "worker_died":
            job.set_exception(RuntimeError("The Sandbox was closed during this call."))
        else:
            job.set_result(result)

    def _run_with_retry(self, index: int, job: Job) -> SandboxResult:
        """Run a job in a template, and once more if the template fails."""
        try:
            result = self._run(index, job, is_last=False)
            if result:
                return result
        except (TemplateDied, OSError) as error:
            if self.closing:
                return self._died(error)
        try:
            return self._run(index, job, is_last=True)
        except (TemplateDied, OSError) as error:
            return self._died(error)

    def _run(self, index: int, job: Job, is_last: bool) -> SandboxResult | None:
        """Run a job once; return None if a failure in set-up should be retried.

        Each attempt uses new memory files, because code may have changed those of a failed one.
        """
        text = "\n".join((*job.request["history"], job.request["code"]))
        names_heavy = _NAMES_HEAVY.search(text) is not None
        for heavy in (names_heavy, True):
            with call_files(job.request) as files:
                action = functools.partial(
                    Template.call,
                    files=files,
                    on_slow=lambda: self._move_to_long_lane(job),
                    slow_s=self.config["long_s"],
                )
                reply = self._use(index, heavy, action)
                if reply["status"] == "heavy":  # imports a heavy package without naming it
                    continue
                if reply["status"] == "setup_failed" and not is_last:
                    return None
                return self._build_result(reply, files)
        raise AssertionError("the heavy template rejected the call as heavy")

    def _build_result(self, reply: dict, files: list[int]) -> SandboxResult:
        _, _, stdout, stderr = files
        limit = self.config["output_chars"]
        hide = functools.partial(hide_paths, roots=self.config["roots"])
        return SandboxResult(
            reply["status"],
            hide(stream_text(stdout, limit)),
            hide(reply["reason"] or stream_text(stderr, limit)),
            reply["exit_code"],
            reply["duration_s"],
            self.isolation,
        )

    def _died(self, error: Exception) -> SandboxResult:
        return SandboxResult("worker_died", "", str(error), None, 0.0, self.isolation)

    def _admit(self, job: Job) -> str:
        """Wait for the call's memory; return "" or the reason why it cannot run."""
        limit = self.config["queue_timeout_s"]
        need = self.config["memory_mb"] << 20
        give_up = time.monotonic() + MEMORY_PATIENCE_S
        with self.lane:
            while not self.closing:
                now = time.monotonic()
                if limit is not None and now - job.queued > limit:
                    return f"the call waited longer than queue_timeout_s={limit}"
                if self._fits(need):
                    break
                if not self.running and now > give_up:
                    return (
                        f"less than memory_mb={self.config['memory_mb']} of memory is left on "
                        "this machine; lower memory_mb or free some"
                    )
                self.memory.wait(0.05)
            self.running += 1
            return ""

    def _use(self, index: int, heavy: bool, action: Callable[[Template], Any]) -> Any:
        """Apply `action` to a template; start it if needed and close it after a failure."""
        has_failed = True
        try:
            template = self.templates.get((index, heavy)) or self._start(index, heavy)
            reply = action(template)
            has_failed = isinstance(reply, dict) and reply["status"] == "setup_failed"
            return reply
        finally:
            if has_failed:
                self._drop(index, heavy)

    def _fits(self, need: int) -> bool:
        """Return True if `need` bytes are free beside all running calls (cached for 0.05 s)."""
        now = time.monotonic()
        if now > self.measured_at + 0.05:
            self.measured_at = now
            self.left = available_bytes()
        return self.left >= need + self.running * (self.config["memory_mb"] << 20)

    def close(self) -> None:
        """Cancel waiting calls, stop running ones and end all processes; idempotent."""
        with self.lane:
            self.closing = True
            waiting = self.jobs
            self.jobs = deque()
            for template in self.templates.values():
                template.process.terminate()
            for condition in (*self.resting, self.spares, self.memory):
                condition.notify_all()
        for job in waiting:
            job.cancel()
        for thread in self.threads:
            if thread is not threading.current_thread():  # called from a future's callback
                thread.join()
