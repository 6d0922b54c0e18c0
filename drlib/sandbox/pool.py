"""Run generated Python code: `Sandbox` keeps warm template processes and hands them calls.

Each call runs in a single-use child of a warm template process; `workers.py` says how calls queue,
`zygote.py` and `child.py` what happens in one, `layers.py` and `seccomp.py` what holds it in. Fails
closed: `probe()` tries every layer, and below `min_level` there is no sandbox. The observation
(`SandboxResult.text`) is a fixed function of what the code did, without a clock.

State between calls comes in two forms with one meaning: `history` runs earlier cells again
(rStar2-Agent), and a `Snapshot` holds the process that has run them, so that the branches of a
group pay for a shared prefix once; one that is lost is replayed.
Left out: priorities between callers, and cgroups around templates (they need delegation).
"""

from __future__ import annotations

import asyncio
import os
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Self

from drlib.sandbox import selftest
from drlib.sandbox.packages import PACKAGES
from drlib.sandbox.result import SandboxResult
from drlib.sandbox.selftest import LEVELS, Probe
from drlib.sandbox.template import Session
from drlib.sandbox.workers import Job, Workers

MAX_REQUEST_CHARS = 16_000_000
_WEAK = (
    "Sandbox runs with WEAK isolation: code can read this user's files and use the network. Do not "
    "run a policy you do not trust."
)
Cells = Sequence[str]  # code, in the order in which it runs


def check_call(code: str, stdin: str = "", history: Cells = (), echo: bool = False) -> dict:
    """The request that a call amounts to; TypeError or ValueError names the argument."""
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


class Runner(ABC):
    """What runs code, here or elsewhere: everything in terms of `_put` and `close`."""

    def submit(self, code: str, stdin: str = "", history: Cells = (), echo: bool = False) -> Future:
        """Queue a call; a `concurrent.futures.Future[SandboxResult]`.

        Args:
            code: Python source; only what it prints is seen.
            stdin: what `input()` reads.
            history: earlier cells, run again silently and without their errors in the same
                namespace before `code` (rStar2-Agent's replayed sessions).
            echo: also print the value of an expression that ends `code`, as a notebook does.
        """
        return self._put(check_call(code, stdin, history, echo))

    @abstractmethod
    def _put(self, request: dict) -> Future:
        """Queue a checked call: {"code", "stdin", "history", "echo"}."""

    def run(
        self, code: str, stdin: str = "", history: Cells = (), echo: bool = False
    ) -> SandboxResult:
        """Run `code` after the cells of `history`, with `stdin` as its input, and wait for its
        result; `echo` prints the value of an expression at its end."""
        return self.submit(code, stdin, history, echo).result()

    async def arun(
        self, code: str, stdin: str = "", history: Cells = (), echo: bool = False
    ) -> SandboxResult:
        """The result of `code` as `run` gives it, awaited: the event loop goes on meanwhile."""
        return await asyncio.wrap_future(self.submit(code, stdin, history, echo))

    def map(self, codes: Iterable[str]) -> list[SandboxResult]:
        """Run several independent calls, as many at a time as there are workers; in order."""
        futures = [self.submit(code) for code in codes]
        return [future.result() for future in futures]

    @abstractmethod
    def close(self) -> None:
        """End everything that belongs to this runner."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _check_number(name: str, value: float, least: float) -> None:
    """TypeError or ValueError where a setting is no number of at least `least`; where `least` is a
    whole number, so must the setting be."""
    if isinstance(least, int) and not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}; it must be a whole number.")
    if not least <= value < 1e6:
        raise ValueError(f"{name} is {value!r}; it must be {least} to a million.")


class Sandbox(Runner):
    """Warm, isolated Python for generated code; a context manager, safe from many threads.

    Args:
        workers: short calls that run at the same time, each with a template of about 12 MB and,
            from the first call on that names numpy or sympy, a second one of 70 MB.
        timeout_s: wall clock of one call, seconds (CPU time may reach it rounded up plus 1).
        memory_mb: address space of one call beyond the template's own; calls wait while the
            machine has less left than all that run may use.
        min_level: the least isolation to accept: "strong", "standard", or by choice "weak".
        output_chars: characters kept of each of stdout and stderr.
        queue_timeout_s: a call whose turn comes later has the status queue_timeout; None waits.
        long_s: after so many seconds a call leaves its place to the next one...
        long_workers: ...while at most so many spare templates (started when needed) make up for it.
        found: an earlier `probe()`, for tests of machines with less.

    Raises:
        SandboxUnavailable: this machine offers less than `min_level`.
        ValueError: an argument out of range.
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

    def _put(self, request: dict, **job: Any) -> Job:
        if os.getpid() != self._pid:
            raise RuntimeError(
                "This Sandbox belongs to the process that made it; make a new one "
                "in each forked process."
            )
        return self._workers.put(Job(request, **job))

    def session(self) -> Snapshot:
        """The state before any code, to branch from; close it (or leave its `with`) when done."""
        session = None
        if self.isolation == "strong":
            job = self._put(check_call(""), opens=True)
            job.result()
            session = job.reply.get("session")
        return Snapshot(self, session, 0, (), None)

    def template_pids(self) -> list[int]:
        """Process ids of the templates that run now."""
        templates = list(self._workers.templates.values())
        return [template.process.pid for template in templates]

    def close(self) -> None:
        """End every process of this sandbox and remove its folders; waiting calls are cancelled."""
        if os.getpid() == self._pid:
            self._finalizer()


class Snapshot(Runner):
    """The state after some cells; any number of calls can start from it, none changes it.

    At level "strong" a process that stands still holds the state (at most 16 a session, which have
    `memory_mb` of their own together); elsewhere, and when that process is lost, the cells are run
    again, to the same output: random numbers depend on the cells alone. Held is memory alone: where
    a cell leaves a thread, a timer, an open file or shared memory behind, its state is made by
    running the cells again, and where one has made a file, so are all of its session. Differences
    that remain: a replay has one `timeout_s` for all its cells; in a held state the numbers of
    processes and threads are others and change from cell to cell, code may not signal itself, and
    `os.wait` finds a child that never ends. The branches of one session run one at a time.

    Attributes:
        history: the cells so far.
        result: how the last of them ended; None before any.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        session: Session | None,
        number: int,
        history: tuple[str, ...],
        result: SandboxResult | None,
    ) -> None:
        self.history = history
        self.result = result
        self._sandbox = sandbox
        self._session = session
        self._number = number  # of the state in the session

    @property
    def live(self) -> bool:
        """Whether a process holds the state; otherwise each call runs the cells again."""
        return self._session is not None and self._session.alive

    def submit(self, code: str, stdin: str = "", history: Cells = (), echo: bool = False) -> Future:
        """Queue a call that starts from this state; a `concurrent.futures.Future[SandboxResult]`.

        Args:
            code: Python source; only what it prints is seen.
            stdin: what `input()` reads.
            history: must be empty, the snapshot is the history (ValueError otherwise).
            echo: also print the value of an expression that ends `code`, as a notebook does.
        """
        if history:
            raise ValueError("A snapshot has its history already; use snapshot.then(cell).")
        return super().submit(code, stdin, self.history, echo)

    def _put(self, request: dict, keep: bool = False) -> Job:
        if not self.live:
            return self._sandbox._put(request)
        asked = {"at": self._number, "keep": keep}
        return self._sandbox._put(request, held=(self._session, asked))

    def then(self, cell: str) -> Snapshot:
        """The state after `cell` (its `result` says how that went): an exception leaves what the
        cell did before it, as in a notebook; a cell that was stopped (time, memory, a signal)
        leaves the state as it was."""
        job = self._put(check_call(cell, "", self.history), keep=True)
        result = job.result()
        if result.status not in ("ok", "error"):
            return Snapshot(self._sandbox, None, 0, self.history, result)
        history = (*self.history, cell)
        number = job.reply.get("held")
        if number is None:
            return Snapshot(self._sandbox, None, 0, history, result)
        return Snapshot(self._sandbox, self._session, number, history, result)

    def close(self) -> None:
        """Let go of the held process; closing the state before any code ends the whole session."""
        if self._session is None:
            return
        if self._number == 0:
            self._session.close()
        else:
            self._session.call({"release": self._number}, (), lambda: None, 1.0)
        self._session = None
