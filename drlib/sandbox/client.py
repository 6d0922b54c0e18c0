"""Run calls in sandboxes elsewhere: `SandboxClient` for `python -m drlib.sandbox serve`.

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
TRIES = 4  # of a call that the sandbox itself failed (rStar2's client repeats as often)
CONNECT_S = 10.0


def require(name: str) -> types.ModuleType:
    """Import a module of the `cluster` extra."""
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
        self.call, self.submitted = call, time.monotonic()
        self.faults, self.last = 0, None  # answers that were the sandbox's own failure, the last


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
        self._batch, self._in_flight, self._deadline_s = batch, in_flight, deadline_s
        self._waiting: deque[_Job] = deque()
        self._senders: set[threading.Thread] = set()
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._random = random.Random()  # its own: training draws from the global one
        self._last_answer, self._fault, self._pid = time.monotonic(), "", os.getpid()
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
            began, tried = time.monotonic(), False
            while jobs := [job for job in jobs if not job.done()]:
                now = time.monotonic()
                wait_s = max(0.0, min(node.rests_until for node in self._nodes) - now)
                for job in jobs:
                    since = min(began, max(self._last_answer, job.submitted))
                    if self._closed.is_set():
                        job.set_exception(self._end)
                    elif (tried or wait_s) and now + wait_s > since + self._deadline_s:
                        job.set_result(
                            job.last
                            or SandboxResult("service_unavailable", "", self._fault, None, 0.0, "")
                        )
                left, tried = [job for job in jobs if not job.done()], True
                if left and not self._closed.wait(wait_s):
                    self._attempt(left)

    def _take(self) -> list[_Job]:
        """The next batch; an empty one is the end of the thread."""
        if len(self._waiting) < self._batch:
            time.sleep(LINGER_S)
        jobs, size = [], 0
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
        with self._lock:  # power of two choices (Mitzenmacher 2001) on our own calls
            now = time.monotonic()
            ready = [node for node in self._nodes if node.rests_until <= now] or self._nodes
            node = min(self._random.sample(ready, min(2, len(ready))), key=lambda n: n.calls)
            node.calls += len(jobs)
        try:
            for index, result in self._ask(node.address, [job.call for job in jobs]):
                job, self._last_answer = jobs[index], time.monotonic()
                if result.env_fault:  # quick to fail, a broken node would draw all calls
                    node.rests_until = self._last_answer + self._random.uniform(0.5, 1.5)
                    job.faults += result.status != "queue_timeout"  # too many calls: like 429
                    job.last = result
                if not job.done() and (not result.env_fault or job.faults == TRIES):
                    job.set_result(result)
            if not all(job.done() or job.last for job in jobs):
                raise Unreachable("no complete answer")
        except Unreachable as fault:
            self._fault, asked_s = str(fault.args[0]), sum(fault.args[1:])
            pause_s = max(self._random.uniform(0.5, 1.5), min(asked_s, self._deadline_s))
            node.rests_until = time.monotonic() + pause_s
        except TooLarge as error:
            if len(jobs) == 1:
                jobs[0].set_exception(ValueError(f"The call is too large: {error}"))
            else:
                for job in jobs:
                    self._attempt([job])
        except Exception as error:  # trying again is vain: every caller is told
            if isinstance(error, Refused):
                self._end = error
                self._closed.set()
            for job in jobs:
                if not job.done():
                    job.set_exception(error)
        finally:
            with self._lock:
                node.calls -= len(jobs)

    def _ask(self, address: Any, calls: list[dict]) -> Iterator[tuple[int, SandboxResult]]:
        """(index, result) as calls end; `Unreachable`, or another error where repeating is vain."""

    def _abort(self) -> None:
        """End what `_ask` waits for in other threads."""

    def close(self) -> None:
        """Cancel what waits and give up what is under way."""
        with self._lock:
            self._closed.set()
            waiting, self._waiting = self._waiting, deque()
            senders = self._senders - {threading.current_thread()}
        for job in waiting:
            job.cancel()
        self._abort()
        for sender in senders:
            sender.join()


class SandboxClient(Front):
    """The same surface as `Sandbox`, over HTTP; safe from many threads.

    Args:
        url: of one service or of several, `http://host:port`.
        token: what the services ask for; by default the variable DRLIB_SANDBOX_TOKEN.
        patience_s: seconds without a byte after which a service counts as dead; longer than its
            queue time-out and call time-out together.

    The rest as in `Front`. A wrong token (401, 403) ends the client: `Refused` from every call, now
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
        urls = [urlsplit(u.rstrip("/")) for u in ([url] if isinstance(url, str) else url)]
        if not urls or any(u.scheme != "http" or not u.hostname for u in urls):
            raise ValueError(f"url is {url!r}; give http://host:port, or a list of those.")
        super().__init__(urls, batch, in_flight, deadline_s)
        token = os.environ.get(TOKEN, "") if token is None else token
        self._headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        self._patience_s, self._sockets = patience_s, weakref.WeakSet()

    def _ask(self, address: SplitResult, calls: list[dict]) -> Iterator[tuple[int, SandboxResult]]:
        message = {"calls": [{**c, "id": str(i)} for i, c in enumerate(calls)]}
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
            text = f"{address.netloc}: {reply.status}"
            if reply.status in (408, 429) or reply.status >= 500:
                raise Unreachable(text, float(reply.headers.get("Retry-After", "0")))
            if reply.status != 200:
                text += f" {reply.read(500).decode('utf-8', 'replace')}"
                kind = {401: Refused, 403: Refused, 413: TooLarge}.get(reply.status, RuntimeError)
                raise kind(f"{text} (The token is that of {TOKEN}.)" if kind is Refused else text)
            while line := reply.readline():
                answer = json.loads(line)
                index = range(len(calls)).index(int(answer.pop("id")))
                yield index, SandboxResult(**answer)
        except (
            OSError,
            http.client.HTTPException,
            ValueError,
            TypeError,
            LookupError,
            AttributeError,
            RecursionError,
        ) as error:  # not HTTP, or not an answer of ours
            raise Unreachable(f"{address.netloc}: {type(error).__name__}: {error}") from error
        finally:
            connection.close()

    def _abort(self) -> None:
        for channel in list(self._sockets):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                channel.shutdown(socket.SHUT_RDWR)
