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

from drlib.sandbox.result import SandboxResult, stream_text
from drlib.sandbox.selftest import HEAVY, WARM_UP_HEAVY, WARM_UP_LIGHT, SandboxUnavailable
from drlib.sandbox.template import Session, Template, TemplateDied, call_files

_NAMES_HEAVY = re.compile("|".join(HEAVY))  # a guess: either template gives the same output
MEMORY_PATIENCE_S = 60.0  # how long a call waits for memory that others outside the sandbox hold


def available_bytes() -> int:
    """Memory that the machine, or the container's control group, has left; bytes."""
    left = psutil.virtual_memory().available
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(FileNotFoundError):  # no control group of the second version
        limit = (group / "memory.max").read_text().strip()
        if limit != "max":
            used = int((group / "memory.current").read_text())
            counts = (group / "memory.stat").read_text()
            cache = int(re.search(r"inactive_file (\d+)", counts)[1])  # which the kernel gives back
            left = min(left, int(limit) - used + cache)
    return left


class Job(Future):
    """A call, which is its own future. `held`: the session that may hold the state it starts from,
    and what to ask of it; `opens`: not a call at all but a new session; `reply`: what the template
    said in the end."""

    def __init__(
        self, request: dict, held: tuple[Session, dict] | None = None, opens: bool = False
    ) -> None:
        super().__init__()
        self.request = request
        self.held = held
        self.opens = opens
        self.reply: dict = {}
        self.queued = time.monotonic()
        self.is_long = False
        # A cancelled call waits on in the queue; it must not hold its text there.
        self.add_done_callback(lambda job: job.request.clear())


class Workers:
    """Threads, queue and templates; apart from `Sandbox` so that a forgotten one is collected."""

    def __init__(self, count: int, spare: int, config: dict, isolation: str) -> None:
        self.config = config
        self.isolation = isolation
        self.count = count
        self.lane = threading.RLock()  # guards all that follows
        self.resting: list[threading.Condition] = []  # one an idle thread, the latest last
        self.spares = threading.Condition(self.lane)  # where spare threads do
        self.memory = threading.Condition(self.lane)  # where calls wait for memory
        self.jobs: deque[Job] = deque()
        self.templates: dict[tuple[int, bool], Template] = {}  # by thread, and whether heavy
        self.closing = False
        self.short = 0  # calls in the short lane
        self.long = 0  # and in the long one
        self.idle = 0  # threads with a template that wait for a call
        self.running = 0  # calls whose memory is spoken for
        self.looked = 0.0  # when memory was looked at
        self.left = 0  # bytes that there were then
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
        """The life of one thread."""
        if index < self.count and not self._start_first(index):
            return
        while (job := self._next(index)) is not None:
            try:
                if job.set_running_or_notify_cancel():
                    self._answer(index, job)
            except OSError as error:  # of this process: no descriptor left to look or write with
                job.set_result(self._died(error))
            except Exception as error:  # noqa: BLE001 - a thread that ends would answer nobody
                job.set_exception(error)
            finally:
                self._leave_lane(job)
            del job  # it would be kept while this thread waits
        self._drop(index, heavy=False)
        self._drop(index, heavy=True)

    def _start_first(self, index: int) -> bool:
        """Start a worker's light template, and tell who waits for it whether that went well."""
        try:
            self._use(index, False, lambda template: None)
        except (TemplateDied, OSError) as error:
            words = f"The sandbox's template process did not start: {error}"
            self.started[index].set_exception(SandboxUnavailable(words))
            return False
        self.started[index].set_result(None)
        return True

    def _leave_lane(self, job: Job) -> None:
        with self.lane:
            if job.is_long:
                self.long -= 1
            else:
                self.short -= 1
            self._wake()

    def _turn_long(self, job: Job) -> None:
        with self.lane:
            if not job.is_long:
                job.is_long = True
                self.short -= 1
                self.long += 1
                self._wake()

    def _next(self, index: int) -> Job | None:
        """The next job for this thread, with a place among the short calls; None at the end."""
        is_worker = index < self.count  # otherwise a spare
        warm = is_worker or (index, False) in self.templates

        def ready() -> bool:
            # A spare helps out for as many calls as turned long, a cold one only if no other can.
            useful = index - self.count < self.long and (warm or not self.idle)
            return self.closing or (self.jobs and self.short < self.count and useful)

        place = threading.Condition(self.lane) if is_worker else self.spares
        with place:
            if warm:
                self.idle += 1
            while not ready():
                if is_worker:
                    self.resting.append(place)
                place.wait()
            if warm:
                self.idle -= 1
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
            template = Template(config)
            self.templates[index, heavy] = template
        template.wait_ready()
        return template

    def _drop(self, index: int, heavy: bool) -> None:
        with self.lane:
            template = self.templates.pop((index, heavy), None)
        if template is not None:
            template.close()

    def _answer(self, index: int, job: Job) -> None:
        """Give a job its result."""
        why_not = self._admit(job)
        if why_not:
            result = SandboxResult("queue_timeout", "", why_not, None, 0.0, "")
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
        """From the state that is held, or in a template, and once more where that fails."""
        if job.held:
            result = self._try_held(job)
            if result:
                return result
        try:
            result = self._try(index, job, last=False)
            if result:
                return result
        except (TemplateDied, OSError) as error:
            if self.closing:
                return self._died(error)
        try:
            return self._try(index, job, last=True)
        except (TemplateDied, OSError) as error:
            return self._died(error)

    def _try_held(self, job: Job) -> SandboxResult | None:
        """From the held state; None where it is lost."""
        session, asked = job.held
        with self.lane:  # a state that is held takes memory as long as it lives
            fits = self._fits(2 * self.config["memory_mb"] << 20)
        request = {**asked, "keep": asked["keep"] and fits}
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
        names_heavy = _NAMES_HEAVY.search(text) is not None
        for heavy in (names_heavy, True):
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
        """The arguments of a template's `call` that say what is done where the reply takes long."""
        return {"late": lambda: self._turn_long(job), "late_s": self.config["long_s"]}

    def _result(self, reply: dict, files: list[int]) -> SandboxResult:
        _, _, stdout, stderr = files
        limit = self.config["output_chars"]
        return SandboxResult(
            reply["status"],
            stream_text(stdout, limit),
            reply["reason"] or stream_text(stderr, limit),
            reply["exit_code"],
            reply["duration_s"],
            self.isolation,
        )

    def _died(self, error: Exception) -> SandboxResult:
        return SandboxResult("worker_died", "", str(error), None, 0.0, self.isolation)

    def _admit(self, job: Job) -> str:
        """Wait until the call's memory is there; why it cannot run, or ""."""
        limit = self.config["queue_timeout_s"]
        need = self.config["memory_mb"] << 20
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
            template = self.templates.get((index, heavy)) or self._start(index, heavy)
            done = action(template)
            failed = isinstance(done, dict) and done["status"] == "setup_failed"
            return done
        finally:
            if failed:
                self._drop(index, heavy)

    def _fits(self, need: int) -> bool:
        """Whether `need` bytes are left beside all that runs; looks at most every 0.05 s."""
        now = time.monotonic()
        if now > self.looked + 0.05:
            self.looked = now
            self.left = available_bytes()
        return self.left >= need + self.running * (self.config["memory_mb"] << 20)

    def close(self) -> None:
        """Cancel what waits, stop what runs, end every process; may be called twice."""
        with self.lane:
            self.closing = True
            waiting = self.jobs
            self.jobs = deque()
            for template in self.templates.values():
                template.process.terminate()
            for place in (*self.resting, self.spares, self.memory):
                place.notify_all()
        for job in waiting:
            job.cancel()
        for thread in self.threads:
            if thread is not threading.current_thread():  # a callback of a future may close us
                thread.join()
