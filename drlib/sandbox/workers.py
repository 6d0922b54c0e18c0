"""The threads behind a `Sandbox`: queue, lanes, memory, and the templates that answer.

One worker is one thread with its templates; it starts them and lives as long as they do, because
the kernel ties "die with the parent" to the thread that forked. If a template dies, it is started
again and the call is tried once more, as after a child that could not lock itself in; a second time
it is `worker_died` or `setup_failed`, faults of the environment.

A call that takes longer than `long_s` moves to the long lane: a spare template takes its place, so
that a few runaways do not hold up the many short calls. A call starts only when its memory limit
fits into what the machine has left.
"""

from __future__ import annotations

import contextlib
import functools
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import psutil

from drlib.sandbox.probing import HEAVY, WARM_UP_HEAVY, WARM_UP_LIGHT, SandboxUnavailable
from drlib.sandbox.result import SandboxResult, stream_text
from drlib.sandbox.template import Session, Template, TemplateDied, call_files

_NAMES_HEAVY = re.compile("|".join(HEAVY))  # a guess: either template gives the same output
MEMORY_PATIENCE_S = 60.0  # how long a call waits for memory that others outside the sandbox hold


def available_bytes() -> int:
    """Memory that the machine, or the container's control group, has left; bytes."""
    left = psutil.virtual_memory().available
    with contextlib.suppress(FileNotFoundError):  # no control group of the second version
        group = Path("/sys/fs/cgroup")
        if (limit := (group / "memory.max").read_text().strip()) != "max":
            used = int((group / "memory.current").read_text())
            cache = re.search(r"inactive_file (\d+)", (group / "memory.stat").read_text())
            left = min(left, int(limit) - used + int(cache[1]))  # which the kernel gives back
    return left


class Job(Future):
    """A call, which is its own future. `held`: the session that may hold the state it starts from,
    and what to ask of it; `opens`: not a call at all but a new session; `reply`: what the template
    said in the end."""

    def __init__(
        self, request: dict, held: tuple[Session, dict] | None = None, opens: bool = False
    ) -> None:
        super().__init__()
        self.request, self.held, self.opens, self.reply = request, held, opens, {}
        self.queued, self.is_long = time.monotonic(), False
        # A cancelled call waits on in the queue; it must not hold its text there.
        self.add_done_callback(lambda job: job.request.clear())


class Workers:
    """Threads, queue and templates; apart from `Sandbox` so that a forgotten one is collected."""

    def __init__(self, count: int, spare: int, config: dict, isolation: str) -> None:
        self.config, self.isolation, self.count = config, isolation, count
        self.lane = threading.RLock()  # guards all that follows
        self.resting: list[threading.Condition] = []  # one an idle thread, the latest last
        self.spares = threading.Condition(self.lane)  # where spare threads do
        self.memory = threading.Condition(self.lane)  # where calls wait for memory
        self.jobs: deque[Job] = deque()
        self.templates: dict[tuple[int, bool], Template] = {}  # by thread, and whether heavy
        self.closing = False
        self.short = self.long = 0  # calls in each lane
        self.idle = 0  # threads with a template that wait for a call
        self.running = 0  # calls whose memory is spoken for
        self.looked = self.left = 0.0  # when memory was looked at, and how much there was
        self.started: list[Future] = [Future() for _ in range(count)]
        self.threads = [
            threading.Thread(target=self._work, args=(i,), daemon=True, name=f"sandbox-{i}")
            for i in range(count + spare)
        ]
        for thread in self.threads:
            thread.start()

    def put(self, job: Job) -> Job:
        """Queue a job; RuntimeError where nobody would take it any more."""
        with self.lane:
            if self.closing:
                raise RuntimeError("This Sandbox is closed; make a new one.")
            self.jobs.append(job)
            self._wake()
        return job

    def _wake(self) -> None:
        """One thread for one job: each that wakes in vain costs the others the interpreter."""
        if self.jobs and self.resting:
            self.resting.pop().notify()  # whose template the processor still has in its caches
        elif self.jobs:
            self.spares.notify_all()

    def _work(self, index: int) -> None:
        if index < self.count:
            try:
                self._use(index, False, lambda template: None)
            except (TemplateDied, OSError) as error:
                words = f"The sandbox's template process did not start: {error}"
                self.started[index].set_exception(SandboxUnavailable(words))
                return
            self.started[index].set_result(None)
        while (job := self._next(index)) is not None:
            try:
                if job.set_running_or_notify_cancel():
                    self._answer(index, job)
            except OSError as error:  # of this process: no descriptor left to look or write with
                job.set_result(self._died(error))
            except Exception as error:  # noqa: BLE001 - a thread that ends would answer nobody
                job.set_exception(error)
            finally:
                with self.lane:
                    self.long -= job.is_long
                    self.short -= not job.is_long
                    self._wake()
            del job
        for heavy in (False, True):
            self._drop(index, heavy)

    def _turn_long(self, job: Job) -> None:
        with self.lane:
            if not job.is_long:
                job.is_long = True
                self.short -= 1
                self.long += 1
                self._wake()

    def _next(self, index: int) -> Job | None:
        """The next job for this thread, with a place among the short calls; None at the end."""
        warm = index < self.count or (index, False) in self.templates

        def ready() -> bool:
            # A spare helps out for as many calls as turned long, a cold one only if no other can.
            useful = index - self.count < self.long and (warm or not self.idle)
            return self.closing or (self.jobs and self.short < self.count and useful)

        own = index < self.count
        place = threading.Condition(self.lane) if own else self.spares
        with place:
            self.idle += warm
            while not ready():
                self.resting += [place] * own
                place.wait()
            self.idle -= warm
            if self.closing:
                return None
            self.short += 1
            job = self.jobs.popleft()
            self._wake()
            return job

    def _start(self, index: int, heavy: bool) -> Template:
        warm_up = WARM_UP_HEAVY if heavy else WARM_UP_LIGHT
        config = {**self.config, "warm_up": warm_up, "heavy": heavy}
        with self.lane:
            if self.closing:
                raise TemplateDied("the sandbox is being closed")
            template = self.templates[index, heavy] = Template(config)
        template.wait_ready()
        return template

    def _drop(self, index: int, heavy: bool) -> None:
        with self.lane:
            template = self.templates.pop((index, heavy), None)
        if template is not None:
            template.close()

    def _answer(self, index: int, job: Job) -> None:
        if reason := self._admit(job):
            result = SandboxResult("queue_timeout", "", reason, None, 0.0, "")
        else:
            try:
                result = self._try_twice(index, job)
            finally:
                with self.lane:
                    self.running -= 1
                    self.memory.notify()
        if self.closing and result.status == "worker_died":
            job.set_exception(RuntimeError("The Sandbox was closed during this call."))
        else:
            job.set_result(result)

    def _try_twice(self, index: int, job: Job) -> SandboxResult:
        result = self._try_held(job) if job.held else None
        for last in (False, True):
            try:
                result = result or self._try(index, job, last)
                if result:
                    return result
            except (TemplateDied, OSError) as error:
                if last or self.closing:
                    return self._died(error)

    def _try_held(self, job: Job) -> SandboxResult | None:
        """From the held state; None where it is lost."""
        session, request = job.held
        with self.lane:  # a state that is held takes memory as long as it lives
            fits = self._fits(2 * self.config["memory_mb"] << 20)
        request = {**request, "keep": request["keep"] and fits}
        with call_files(job.request) as files:
            reply = session.call(request, files, **self._late(job))
            if reply is None or reply["status"] == "lost":
                return None
            job.reply = reply
            return self._result(reply, files)

    def _try(self, index: int, job: Job, last: bool) -> SandboxResult | None:
        """One attempt in a template, by running the history, with memory files of its own: those of
        an attempt that failed are what its code has made of them. None where it is worth another
        attempt."""
        if job.opens:
            session = self._use(index, True, Template.open_session)
            job.reply = {"session": session}
            return SandboxResult("ok", "", "", 0, 0.0, self.isolation)
        text = "\n".join((*job.request["history"], job.request["code"]))
        for heavy in (_NAMES_HEAVY.search(text) is not None, True):
            with call_files(job.request) as files:
                act = functools.partial(Template.call, files=files, **self._late(job))
                reply = self._use(index, heavy, act)
                if reply["status"] == "heavy":  # it imports a package that it does not name
                    continue
                if reply["status"] == "setup_failed" and not last:
                    return None
                job.reply = reply
                return self._result(reply, files)

    def _late(self, job: Job) -> dict:
        """What is done where a reply takes long, see `template.Channel.call`."""
        return {"late": lambda: self._turn_long(job), "late_s": self.config["long_s"]}

    def _result(self, reply: dict, files: list[int]) -> SandboxResult:
        out, err = (stream_text(fd, self.config["output_chars"]) for fd in files[2:])
        return SandboxResult(
            reply["status"],
            out,
            reply["reason"] or err,
            reply["exit_code"],
            reply["duration_s"],
            self.isolation,
        )

    def _died(self, error: Exception) -> SandboxResult:
        return SandboxResult("worker_died", "", str(error), None, 0.0, self.isolation)

    def _admit(self, job: Job) -> str:
        """Wait until the call's memory is there; why it cannot run, or ""."""
        limit, need = self.config["queue_timeout_s"], self.config["memory_mb"] << 20
        patient = time.monotonic() + MEMORY_PATIENCE_S
        with self.lane:
            while not self.closing:
                now = time.monotonic()
                if limit is not None and now - job.queued > limit:
                    return f"the call waited longer than queue_timeout_s={limit}"
                if self._fits(need):
                    break
                if not self.running and now > patient:
                    return (
                        f"less than memory_mb={self.config['memory_mb']} of memory is left on "
                        "this machine; lower memory_mb or free some"
                    )
                self.memory.wait(0.05)
            self.running += 1
            return ""

    def _use(self, index: int, heavy: bool, action: Callable[[Template], Any]) -> Any:
        """`action` on the template, which is started if need be and dropped where it fails."""
        failed = True
        try:
            done = action(self.templates.get((index, heavy)) or self._start(index, heavy))
            failed = isinstance(done, dict) and done["status"] == "setup_failed"
            return done
        finally:
            if failed:
                self._drop(index, heavy)

    def _fits(self, need: int) -> bool:
        """Whether `need` bytes are left beside all that runs; looks at most every 0.05 s."""
        now = time.monotonic()
        if now > self.looked + 0.05:
            self.looked, self.left = now, available_bytes()
        return self.left >= need + self.running * (self.config["memory_mb"] << 20)

    def close(self) -> None:
        """Cancel what waits, stop what runs, end every process; may be called twice."""
        with self.lane:
            self.closing = True
            waiting, self.jobs = self.jobs, deque()
            for template in self.templates.values():
                template.process.terminate()
            for place in (*self.resting, self.spares, self.memory):
                place.notify_all()
        for job in waiting:
            job.cancel()
        for thread in self.threads:
            if thread is not threading.current_thread():  # a callback of a future may close us
                thread.join()
