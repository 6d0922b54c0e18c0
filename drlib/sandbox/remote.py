"""Run calls in remote sandboxes: `SandboxClient` for `drlib sandbox serve`.

`RemoteRunner` is the common base with `RaySandbox`. Calls are sent in batches, as in rStar2-Agent's
code service (paper section 3.1), and each result returns as its call ends. Calls are stateless, so
those without an answer from a dead or full node are sent again: a call may run twice, but its
future is set once. A call without an answer at its deadline is `queue_timeout` or
`service_unavailable`, which are environment faults. Standard library only, so rollout workers need
no web framework. Left out: TLS.
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
MAX_BODY_BYTES = 32 << 20  # of a request
LINGER_S = 0.002  # wait of an incomplete batch for more calls of the same step
BATCH_CHARS = 1 << 20  # a larger batch is complete
CALL_ATTEMPTS = 4  # environment faults of one call before it fails, as in rStar2's client
CONNECT_S = 10.0
NO_ANSWER = (  # raised by replies that are not HTTP or not valid answers
    OSError,
    http.client.HTTPException,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    RecursionError,
)


def import_extra(name: str) -> types.ModuleType:
    """Import a module of the `cluster` extra; a missing one raises ImportError with the remedy."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f'{name} is missing: pip install "drlib[cluster]".') from error


def count_chars(call: dict) -> int:
    """Count the characters of a validated call."""
    return sum(map(len, (call["code"], call["stdin"], *call["history"])))


class Refused(RuntimeError):
    """The token is wrong: no call will succeed."""


class TooLarge(Exception):
    """A batch exceeds the size limit of a node."""


class Unreachable(Exception):
    """A node gave no complete answer; arguments: the reason and its requested pause in seconds."""


class _Job(Future):
    """A queued call, which is its own future."""

    def __init__(self, call: dict) -> None:
        super().__init__()
        self.call = call
        self.submitted = time.monotonic()
        self.faults = 0  # answers with an environment fault
        self.last: SandboxResult | None = None  # the latest of these answers


@dataclass(eq=False)
class _Node:
    """A remote sandbox with its load and its pause."""

    address: Any
    calls: int = 0  # calls of this client in progress
    paused_until: float = 0.0


class RemoteRunner(Runner):
    """Batching, routing and retries; a subclass implements sending one batch to one node.

    Args:
        addresses: addresses of the nodes.
        batch: calls per request, 1 to 64.
        in_flight: concurrent requests.
        deadline_s: seconds from a call's first sending after which it is `service_unavailable`
            (from its submission while no node answers at all).
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
        self._random = random.Random()  # separate, because training uses the global generator
        self._lock = threading.Lock()  # guards `_waiting`, `_senders` and the nodes' calls
        self._waiting: deque[_Job] = deque()
        self._senders: set[threading.Thread] = set()
        self._closed = threading.Event()
        self._last_answer = time.monotonic()
        self._fault = ""  # latest fault of a node
        self._closed_error: Exception = RuntimeError(
            f"This {type(self).__name__} is closed; make a new one."
        )

    def _put(self, request: dict) -> Future:
        job = _Job(request)
        if os.getpid() != self._pid:
            raise RuntimeError("Made in another process; make a new one in each forked process.")
        with self._lock:
            if self._closed.is_set():
                raise self._closed_error.with_traceback(None)
            self._waiting.append(job)
            if len(self._senders) < self._in_flight:
                sender = threading.Thread(target=self._send, daemon=True, name="sandbox-sender")
                self._senders.add(sender)
                sender.start()
        return job

    def _send(self) -> None:
        """Send batches until no call waits; an idle client has no threads."""
        while jobs := self._take():
            began = time.monotonic()
            is_retry = False
            while jobs:
                wait_s = self._seconds_until_ready()
                self._give_up(jobs, began, wait_s, is_retry)
                is_retry = True
                jobs = _not_done(jobs)
                if jobs and not self._closed.wait(wait_s):
                    self._attempt(jobs)
                jobs = _not_done(jobs)

    def _seconds_until_ready(self) -> float:
        """Return the seconds until a node accepts calls."""
        first = min(node.paused_until for node in self._nodes)
        return max(0.0, first - time.monotonic())

    def _give_up(self, jobs: list[_Job], began: float, wait_s: float, is_retry: bool) -> None:
        """Finish the `jobs` whose deadline ends before the next attempt, or all when closed."""
        next_attempt = time.monotonic() + wait_s
        for job in jobs:
            since = min(began, max(self._last_answer, job.submitted))
            if self._closed.is_set():
                job.set_exception(self._closed_error)
            elif (is_retry or wait_s) and next_attempt > since + self._deadline_s:
                unavailable = SandboxResult("service_unavailable", "", self._fault, None, 0.0, "")
                job.set_result(job.last or unavailable)

    def _take(self) -> list[_Job]:
        """Take the next batch; an empty one ends the thread."""
        if len(self._waiting) < self._batch:
            time.sleep(LINGER_S)
        jobs: list[_Job] = []
        size = 0  # characters
        with self._lock:
            while self._waiting and len(jobs) < self._batch and size < BATCH_CHARS:
                job = self._waiting.popleft()
                if job.set_running_or_notify_cancel():
                    jobs.append(job)
                    size += count_chars(job.call)
            if not jobs:
                self._senders.discard(threading.current_thread())
        return jobs

    def _attempt(self, jobs: list[_Job]) -> None:
        """Send `jobs` to one node; jobs without a valid answer remain not done."""
        node = self._choose(len(jobs))
        try:
            for index, result in self._run_batch(node.address, [job.call for job in jobs]):
                self._record(node, jobs[index], result)
            if not all(job.done() or job.last for job in jobs):
                raise Unreachable("no complete answer")
        except Unreachable as fault:
            reason, *requested = fault.args
            self._fault = str(reason)
            pause_s = max(self._draw_pause(), min(sum(requested), self._deadline_s))
            node.paused_until = time.monotonic() + pause_s
        except TooLarge as error:
            if len(jobs) == 1:
                jobs[0].set_exception(ValueError(f"The call is too large: {error}"))
            else:
                for job in jobs:
                    self._attempt([job])
        except Exception as error:  # noqa: BLE001 - a retry cannot help: every caller gets the error
            if isinstance(error, Refused):
                self._closed_error = error
                self._closed.set()
            for job in _not_done(jobs):
                job.set_exception(error)
        finally:
            with self._lock:
                node.calls -= len(jobs)

    def _choose(self, calls: int) -> _Node:
        """Choose a node by the power of two choices (Mitzenmacher 2001) on this client's calls."""
        with self._lock:
            now = time.monotonic()
            ready = [node for node in self._nodes if node.paused_until <= now] or self._nodes
            two = self._random.sample(ready, min(2, len(ready)))
            node = min(two, key=lambda one: one.calls)
            node.calls += calls
            return node

    def _record(self, node: _Node, job: _Job, result: SandboxResult) -> None:
        """Record a node's answer to a call."""
        self._last_answer = time.monotonic()
        if result.env_fault:  # a broken node fails fast and would attract all calls
            node.paused_until = self._last_answer + self._draw_pause()
            job.last = result
            if result.status != "queue_timeout":  # the node is busy, as with 429
                job.faults += 1
        if not job.done() and (not result.env_fault or job.faults == CALL_ATTEMPTS):
            job.set_result(result)

    def _draw_pause(self) -> float:
        """Draw the minimum pause of a node, seconds; random, so that clients do not synchronise."""
        return self._random.uniform(0.5, 1.5)

    def _run_batch(self, address: Any, calls: list[dict]) -> Iterator[tuple[int, SandboxResult]]:
        """Yield (index, result) as calls end; raise `Unreachable` if a retry may help."""

    def _abort(self) -> None:
        """Interrupt `_run_batch` in other threads."""

    def close(self) -> None:
        """Cancel waiting calls and give up running ones."""
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


def _build_error(reply: http.client.HTTPResponse, host: str) -> Exception:
    """Translate a status other than 200 to an exception."""
    text = f"{host}: {reply.status}"
    if reply.status in (408, 429) or reply.status >= 500:
        return Unreachable(text, float(reply.headers.get("Retry-After", "0")))
    text += f" {reply.read(500).decode('utf-8', 'replace')}"
    if reply.status in (401, 403):
        return Refused(f"{text} (Set {TOKEN} to the service's token.)")
    return TooLarge(text) if reply.status == 413 else RuntimeError(text)


class SandboxClient(RemoteRunner):
    """Thread-safe HTTP client with the interface of `Sandbox`.

    A wrong token (401, 403) closes the client: this and every later call raises `Refused`. A call
    that is too large (413) or rejected otherwise sets ValueError or RuntimeError in its own future.

    Args:
        url: one or several services, `http://host:port`.
        token: secret of the services; default: environment variable DRLIB_SANDBOX_TOKEN.
        batch: calls per request, 1 to 64.
        in_flight: concurrent requests.
        patience_s: seconds without a byte after which a service counts as dead; must exceed its
            queue time-out plus call time-out.
        deadline_s: seconds from a call's first sending after which it is `service_unavailable`
            (from its submission while no service answers at all).
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
        texts = [url] if isinstance(url, str) else url
        urls = [urlsplit(text.rstrip("/")) for text in texts]
        if not urls or any(parts.scheme != "http" or not parts.hostname for parts in urls):
            raise ValueError(f"url is {url!r}; give http://host:port, or a list of those.")
        super().__init__(urls, batch, in_flight, deadline_s)
        token = os.environ.get(TOKEN, "") if token is None else token
        self._headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        self._patience_s = patience_s
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def _run_batch(
        self, address: SplitResult, calls: list[dict]
    ) -> Iterator[tuple[int, SandboxResult]]:
        numbered = [{**call, "id": str(number)} for number, call in enumerate(calls)]
        message = {"calls": numbered}
        body = json.dumps(message, ensure_ascii=False).encode("utf-8", "surrogatepass")
        if len(body) > MAX_BODY_BYTES:
            raise TooLarge(f"{len(body)} bytes as JSON; {MAX_BODY_BYTES} is the limit.")
        connection = http.client.HTTPConnection(address.hostname, address.port, CONNECT_S)
        try:
            connection.connect()
            channel = connection.sock  # the connection drops it once the reply has started
            channel.settimeout(self._patience_s)
            self._sockets.add(channel)
            if self._closed.is_set():
                return
            with contextlib.suppress(
                ConnectionError
            ):  # it may reply before the request is complete
                connection.request("POST", address.path + "/run", body, self._headers)
            reply = connection.getresponse()
            if reply.status != 200:
                raise _build_error(reply, address.netloc)
            while line := reply.readline():
                answer = json.loads(line)
                index = range(len(calls)).index(int(answer.pop("id")))  # ValueError: unknown id
                yield index, SandboxResult(**answer)
        except NO_ANSWER as error:
            raise Unreachable(f"{address.netloc}: {type(error).__name__}: {error}") from error
        finally:
            connection.close()

    def _abort(self) -> None:
        for channel in list(self._sockets):
            with contextlib.suppress(OSError):  # already closed
                channel.shutdown(socket.SHUT_RDWR)
