"""Requests of an external agent on their way to the rollout that answers them.

A `RolloutQueue` belongs to one rollout. The HTTP server (`drlib.agents.gateway`) submits requests
from its threads, and the rollout (`drlib.agents.external`) takes them one after the other.

A repeated request gets the reply of the first one: if the client says that it is a retry (OpenAI's
clients do), or if the first client left before its reply. Nothing is sampled or recorded twice
because of a lost connection.
"""

import hashlib
import threading
from collections import deque
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any

from drlib.chat.chat_requests import ChatRequest, RequestError, parse_request


class PendingRequest:
    """A request and the future of its reply.

    Attributes:
        is_lost: the client left before the reply; True until it repeats the request.
    """

    def __init__(self, request: ChatRequest):
        self.request = request
        self.reply: Future[dict] = Future()
        self.is_lost = False

    def answer(self, reply: dict) -> None:
        """Send the reply, unless the gateway was stopped meanwhile."""
        with suppress(InvalidStateError):
            self.reply.set_result(reply)

    def refuse(self, error: RequestError) -> None:
        """Send an error, unless there is a reply."""
        with suppress(InvalidStateError):
            self.reply.set_exception(error)


class AgentEnd:
    """The end of an agent: its answer, or the fault that ended it."""

    def __init__(self, answer: Any = None, fault: BaseException | None = None):
        self.answer, self.fault = answer, fault


class RolloutQueue:
    """Requests of one rollout: `submit` adds them, `next` returns a future of one at a time."""

    def __init__(self, name: str):
        self.name = name
        self._lock = threading.Lock()
        self._waiting: deque[PendingRequest] = deque()
        self._by_digest: dict[bytes, PendingRequest] = {}
        self._wanted: Future | None = None  # returned by `next` and without result
        self._end: AgentEnd | None = None
        self._current: PendingRequest | None = None
        self._refusal: RequestError | None = None  # of all requests, once the rollout has ended

    def submit(self, body: bytes, is_retry: bool) -> PendingRequest:
        """Queue a request; a repeated one is the earlier one.

        Raises:
            RequestError: an unsupported request, or the rollout has ended.
        """
        digest = hashlib.sha256(body).digest()
        with self._lock:
            earlier = self._by_digest.get(digest)
            if earlier is not None and (is_retry or earlier.is_lost):
                earlier.is_lost = False
                return earlier
            if self._refusal is not None:
                raise self._refusal
        pending = PendingRequest(parse_request(body))
        with self._lock:
            self._by_digest[digest] = pending
            self._waiting.append(pending)
        self._deliver()
        return pending

    def finish(self, end: AgentEnd) -> None:
        """Report the end of the agent; requests that still wait are refused."""
        with self._lock:
            self._end = self._end or end
        self._deliver()

    def next(self) -> "Future[PendingRequest | AgentEnd]":
        """Return a future of the next request, or of the end of the agent."""
        wanted: Future = Future()
        with self._lock:
            self._wanted = wanted
        self._deliver()
        return wanted

    def _deliver(self) -> None:
        with self._lock:
            if self._wanted is None or not (self._end or self._waiting):
                return
            wanted, self._wanted = self._wanted, None
            event = self._end or self._waiting.popleft()
            self._current = event if isinstance(event, PendingRequest) else None
        wanted.set_result(event)  # outside the lock, because it runs the rollout's code

    def close(self, refusal: RequestError) -> None:
        """Refuse the current request and all later ones."""
        with self._lock:
            if self._refusal is not None:
                return
            self._refusal = refusal
            left = [self._current, *self._waiting]
            self._waiting.clear()
        for pending in left:
            if pending is not None:
                pending.refuse(refusal)
