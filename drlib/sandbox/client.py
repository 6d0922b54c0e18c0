"""Run calls in sandboxes elsewhere: `SandboxClient` for `drlib sandbox serve`.

`Front` is what it shares with the Ray front. Calls are sent in batches, as in rStar2-Agent's code
service (paper section 3.1), and each is answered as it ends, so a slow one does not hold up its
batch. Calls are stateless, so those that a dead or full node left without an answer are sent again,
at once if another node does not rest: a call may run twice, its future gets one answer. One that
has none at its deadline is `queue_timeout` or `service_unavailable`, faults of the environment.
Standard library only: rollout workers need no web framework. Left out: snapshots, TLS.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib
import json
import os
import random
import socket
import threading
import time
import types
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

from drlib.sandbox.pool import Runner
from drlib.sandbox.result import SandboxResult

TOKEN = "DRLIB_SANDBOX_TOKEN"
MAX_BODY_BYTES = 32 << 20  # of a request; a service takes no more
LINGER_S = 0.002  # how long a batch that is not full waits for more calls of the same step
BATCH_CHARS = 1 << 20  # a batch with more is full
CALL_TRIES = 4  # of a call that the sandbox itself failed (rStar2's client repeats as often)
CONNECT_S = 10.0
NO_ANSWER = (  # what is raised by what is not HTTP, or not an answer of ours
    OSError,
    http.client.HTTPException,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    RecursionError,
)


def import_extra(name: str) -> types.ModuleType:
    """Import a module of the `cluster` extra; ImportError with the remedy where it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f'{name} is missing: pip install "drlib[cluster]".') from error


def size_of(call: dict) -> int:
    """Characters of a checked call."""
    return sum(map(len, (call["code"], call["stdin"], *call["history"])))


class Refused(RuntimeError):
    """The token is wrong: no call will ever be answered."""


class TooLarge(Exception):
    """A batch has more bytes than a node takes."""


class Unreachable(Exception):
    """A node gave no (complete) answer; its arguments: why, and the seconds that it asks for."""


class _Job(Future):
    """A call, which is its own future."""

    def __init__(self, call: dict) -> None:
        super().__init__()
        self.call = call
        self.submitted = time.monotonic()
        self.faults = 0  # answers that were the sandbox's own failure
        self.last: SandboxResult | None = None  # the last of these


@dataclass(eq=False)
class _Node:
    address: Any
    calls: int = 0  # of ours, there now
    rests_until: float = 0.0


class Front(Runner):
    """Batches, routing and repetition; a subclass says how one batch is put to one node.

    Args:
        addresses: of the nodes.
        batch: calls sent together, 1 to 64.
        in_flight: batches under way at the same time.
        deadline_s: seconds from a call's first sending (or, while nothing answers at all, from its
            submission) after which it is `service_unavailable`.
    """

    def __init__(self, addresses: Sequence, batch: int, in_flight: int, deadline_s: float) -> None:
        if not (1 <= batch <= 64 and in_flight >= 1 and deadline_s > 0):
            raise ValueError(
                f"batch={batch} must be 1 to 64, in_flight={in_flight} at least 1, "
                f"deadline_s={deadline_s} above 0."
            )
        self._nodes = [_Node(address) for address in addresses]
        self._batch = batch
        self._in_flight = in_flight
        self._deadline_s = deadline_s
        self._pid = os.getpid()
        self._random = random.Random()  # its own: training draws from the global one
        self._lock = threading.Lock()  # guards what waits, who sends, and the nodes' calls
        self._waiting: deque[_Job] = deque()
        self._senders: set[threading.Thread] = set()
        self._closed = threading.Event()
        self._last_answer = time.monotonic()
        self._fault = ""  # what was wrong with a node last
        self._end = RuntimeError(f"This {type(self).__name__} is closed; make a new one.")

    def _put(self, request: dict) -> Future:
        job = _Job(request)
        if os.getpid() != self._pid:
            raise RuntimeError("Made in another process; make a new one in each forked process.")
        with self._lock:
            if self._closed.is_set():
                raise self._end.with_traceback(None)
            self._waiting.append(job)
            if len(self._senders) < self._in_flight:
                sender = threading.Thread(target=self._send, daemon=True, name="sandbox-sender")
                self._senders.add(sender)
                sender.start()
        return job

    def _send(self) -> None:
        """Deliver batches until no call waits; an idle client has no threads."""
        while jobs := self._take():
            began = time.monotonic()
            tried = False
            while jobs:
                wait_s = self._time_until_a_node_is_ready()
                self._give_up(jobs, began, wait_s, tried)
                tried = True
                jobs = _not_done(jobs)
                if jobs and not self._closed.wait(wait_s):
                    self._attempt(jobs)
                jobs = _not_done(jobs)

    def _time_until_a_node_is_ready(self) -> float:
        """Seconds."""
        first = min(node.rests_until for node in self._nodes)
        return max(0.0, first - time.monotonic())

    def _give_up(self, jobs: list[_Job], began: float, wait_s: float, tried: bool) -> None:
        """Answer those of `jobs`, sent since `began`, whose deadline would be over before the next
        attempt; all of them where this client is closed."""
        next_attempt = time.monotonic() + wait_s
        for job in jobs:
            since = min(began, max(self._last_answer, job.submitted))
            if self._closed.is_set():
                job.set_exception(self._end)
            elif (tried or wait_s) and next_attempt > since + self._deadline_s:
                nobody = SandboxResult("service_unavailable", "", self._fault, None, 0.0, "")
                job.set_result(job.last or nobody)

    def _take(self) -> list[_Job]:
        """The next batch; an empty one is the end of the thread."""
        if len(self._waiting) < self._batch:
            time.sleep(LINGER_S)
        jobs: list[_Job] = []
        size = 0  # characters
        with self._lock:
            while self._waiting and len(jobs) < self._batch and size < BATCH_CHARS:
                job = self._waiting.popleft()
                if job.set_running_or_notify_cancel():
                    jobs.append(job)
                    size += size_of(job.call)
            if not jobs:
                self._senders.discard(threading.current_thread())
        return jobs

    def _attempt(self, jobs: list[_Job]) -> None:
        """Put `jobs` to one node; those that are not done then have had no (good) answer."""
        node = self._choose(len(jobs))
        try:
            for index, result in self._ask(node.address, [job.call for job in jobs]):
                self._note(node, jobs[index], result)
            if not all(job.done() or job.last for job in jobs):
                raise Unreachable("no complete answer")
        except Unreachable as fault:
            why, *asked = fault.args
            self._fault = str(why)
            pause_s = max(self._pause(), min(sum(asked), self._deadline_s))
            node.rests_until = time.monotonic() + pause_s
        except TooLarge as error:
            if len(jobs) == 1:
                jobs[0].set_exception(ValueError(f"The call is too large: {error}"))
            else:
                for job in jobs:
                    self._attempt([job])
        except Exception as error:  # noqa: BLE001 - trying again is vain: every caller is told
            if isinstance(error, Refused):
                self._end = error
                self._closed.set()
            for job in _not_done(jobs):
                job.set_exception(error)
        finally:
            with self._lock:
                node.calls -= len(jobs)

    def _choose(self, calls: int) -> _Node:
        """The node for so many calls: power of two choices (Mitzenmacher 2001) on our own calls."""
        with self._lock:
            now = time.monotonic()
            ready = [node for node in self._nodes if node.rests_until <= now] or self._nodes
            two = self._random.sample(ready, min(2, len(ready)))
            node = min(two, key=lambda one: one.calls)
            node.calls += calls
            return node

    def _note(self, node: _Node, job: _Job, result: SandboxResult) -> None:
        """Take a node's answer to a call."""
        self._last_answer = time.monotonic()
        if result.env_fault:  # quick to fail, a broken node would draw all calls
            node.rests_until = self._last_answer + self._pause()
            job.last = result
            if result.status != "queue_timeout":  # too many calls there: like 429
                job.faults += 1
        if not job.done() and (not result.env_fault or job.faults == CALL_TRIES):
            job.set_result(result)

    def _pause(self) -> float:
        """Seconds that a node rests at least; by chance, or all clients would come back at once."""
        return self._random.uniform(0.5, 1.5)

    def _ask(self, address: Any, calls: list[dict]) -> Iterator[tuple[int, SandboxResult]]:
        """(index, result) as calls end; `Unreachable`, or another error where repeating is vain."""

    def _abort(self) -> None:
        """End what `_ask` waits for in other threads."""

    def close(self) -> None:
        """Cancel what waits and give up what is under way."""
        with self._lock:
            self._closed.set()
            waiting = self._waiting
            self._waiting = deque()
            senders = self._senders - {threading.current_thread()}
        for job in waiting:
            job.cancel()
        self._abort()
        for sender in senders:
            sender.join()


def _not_done(jobs: list[_Job]) -> list[_Job]:
    return [job for job in jobs if not job.done()]


def _refusal(reply: http.client.HTTPResponse, who: str) -> Exception:
    """What a status other than 200 means."""
    text = f"{who}: {reply.status}"
    if reply.status in (408, 429) or reply.status >= 500:
        return Unreachable(text, float(reply.headers.get("Retry-After", "0")))
    text += f" {reply.read(500).decode('utf-8', 'replace')}"
    if reply.status in (401, 403):
        return Refused(f"{text} (The token is that of {TOKEN}.)")
    return TooLarge(text) if reply.status == 413 else RuntimeError(text)


class SandboxClient(Front):
    """The same surface as `Sandbox`, over HTTP; safe from many threads.

    Args:
        url: of one service or of several, `http://host:port`.
        token: what the services ask for; by default the variable DRLIB_SANDBOX_TOKEN.
        batch: calls sent together, 1 to 64.
        in_flight: batches under way at the same time.
        patience_s: seconds without a byte after which a service counts as dead; longer than its
            queue time-out and call time-out together.
        deadline_s: seconds from a call's first sending (or, while nothing answers at all, from its
            submission) after which it is `service_unavailable`.

    A wrong token (401, 403) ends the client: `Refused` from every call, now
    and later. A call that a service finds too large (413) or refuses otherwise is a ValueError or a
    RuntimeError of its own future.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        token: str | None = None,
        *,
        batch: int = 32,
        in_flight: int = 8,
        patience_s: float = 120.0,
        deadline_s: float = 300.0,
    ) -> None:
        given = [url] if isinstance(url, str) else url
        urls = [urlsplit(one.rstrip("/")) for one in given]
        if not urls or any(one.scheme != "http" or not one.hostname for one in urls):
            raise ValueError(f"url is {url!r}; give http://host:port, or a list of those.")
        super().__init__(urls, batch, in_flight, deadline_s)
        token = os.environ.get(TOKEN, "") if token is None else token
        self._headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        self._patience_s = patience_s
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def _ask(self, address: SplitResult, calls: list[dict]) -> Iterator[tuple[int, SandboxResult]]:
        numbered = [{**call, "id": str(number)} for number, call in enumerate(calls)]
        message = {"calls": numbered}
        body = json.dumps(message, ensure_ascii=False).encode("utf-8", "surrogatepass")
        if len(body) > MAX_BODY_BYTES:
            raise TooLarge(f"{len(body)} bytes as JSON; {MAX_BODY_BYTES} is the limit.")
        connection = http.client.HTTPConnection(address.hostname, address.port, CONNECT_S)
        try:
            connection.connect()
            channel = connection.sock  # the connection forgets it when the reply has begun
            channel.settimeout(self._patience_s)
            self._sockets.add(channel)
            if self._closed.is_set():
                return
            with contextlib.suppress(ConnectionError):  # it may have answered before the end
                connection.request("POST", address.path + "/run", body, self._headers)
            reply = connection.getresponse()
            if reply.status != 200:
                raise _refusal(reply, address.netloc)
            while line := reply.readline():
                answer = json.loads(line)
                index = range(len(calls)).index(
                    int(answer.pop("id"))
                )  # ValueError: no call of ours
                yield index, SandboxResult(**answer)
        except NO_ANSWER as error:
            raise Unreachable(f"{address.netloc}: {type(error).__name__}: {error}") from error
        finally:
            connection.close()

    def _abort(self) -> None:
        for channel in list(self._sockets):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                channel.shutdown(socket.SHUT_RDWR)
