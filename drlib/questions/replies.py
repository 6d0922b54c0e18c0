"""Replies of a language model, cached on disk, within a budget and with retries.

Each reply is appended at once as a JSON line under a digest of model, messages and options, so a
restarted program requests only what is missing. The budget includes earlier runs and is never
exceeded. Transient errors (`EndpointError.is_transient`) are retried with growing pauses; after
`MAX_FAILED` failed prompts in a row no further request is sent. Only one process may use a file.
"""

import hashlib
import json
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from drlib.chat.server_messages import MAX_COUNT, read_choice, read_message
from drlib.endpoint import PROMPT_STATUSES, ChatEndpoint, EndpointError
from drlib.files import append_json_line, resume_json_lines
from drlib.validation import require

MAX_FAILED = 5  # failed prompts in a row until requests stop
LONGEST_PAUSE_S = 30.0
FRAME = 32  # tokens that a chat template adds to a message, at most
Item = TypeVar("Item")
Result = TypeVar("Result")


class Reply(NamedTuple):
    """A model's reply.

    Attributes:
        text: the content; empty if the model only reasoned or refused.
        failed: why there is no reply; empty if there is one.
    """

    text: str
    failed: str = ""


class Replies:
    """Cached replies of the model behind `endpoint`; thread-safe.

    Args:
        endpoint: the chat endpoint.
        path: JSON-lines file of the replies.
        calls: largest number of requests, including retries and earlier runs.
        tokens: largest number of prompt and completion tokens; None: no limit. A request reserves
            its largest possible cost (one token per prompt byte and `max_tokens`) until the server
            reports the actual cost.
        max_tokens: completion limit per request.
        attempts: requests per prompt, at least 1.
        pause_s: pause before the second request; doubled each time with up to 50% jitter, at most
            30 s.
        workers: concurrent prompts.
        options: options of every request, such as `{"temperature": 0}`.

    Raises:
        ValueError: a setting or a line of `path` is invalid.
    """

    def __init__(
        self,
        endpoint: ChatEndpoint,
        path: str | Path,
        *,
        calls: int,
        tokens: int | None = None,
        max_tokens: int = 1024,
        attempts: int = 5,
        pause_s: float = 0.5,
        workers: int = 8,
        options: dict[str, Any] | None = None,
    ):
        least = min(calls, attempts, workers, max_tokens)
        require(least >= 1, f"{calls=}, {attempts=}, {workers=} and {max_tokens=} start at 1")
        self.endpoint, self.path = endpoint, Path(path)
        self.calls, self.tokens, self.max_tokens = calls, tokens, max_tokens
        self.attempts, self.pause_s, self.workers = attempts, pause_s, workers
        self.options = dict(options or {})
        self.spent_calls = self.spent_tokens = 0
        self._reserved = 0  # tokens of pending requests
        self._failed = 0  # prompts in a row
        self._changed = threading.Condition()
        self._asked: dict[str, Future[Reply]] = {}
        self._load()

    def each(self, work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Apply `work` to each item with `workers` threads and return the results in order."""
        with ThreadPoolExecutor(self.workers, thread_name_prefix="drlib-replies") as pool:
            return list(pool.map(work, items))

    def ask(self, messages: Sequence[dict[str, str]], **options) -> Reply:
        """Return the reply to `messages`, from the cache if possible; failed prompts are sent
        again.
        """
        asked = {"messages": [*messages], "max_tokens": self.max_tokens, **self.options, **options}
        text = json.dumps([self.endpoint.model, asked], sort_keys=True, ensure_ascii=False)
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        with self._changed:
            known = self._asked.get(digest)
            if known is None:
                mine = self._asked[digest] = Future()
        if known is not None:
            return known.result()
        try:
            reply = self._fetch(digest, asked)
        except BaseException as error:
            self._asked.pop(digest)
            mine.set_exception(error)
            raise
        if reply.failed:
            self._asked.pop(digest)
        mine.set_result(reply)
        return reply

    def _fetch(self, digest: str, asked: dict) -> Reply:
        """Request a reply and store it; a failure is stored too if it cost requests."""
        most = _bound_tokens(asked)
        text, failed, calls, tokens = None, "", 0, 0
        fault = None
        for attempt in range(self.attempts):
            refusal = self._reserve(most)
            if refusal:
                failed = refusal
                break
            calls += 1
            text, used, fault = self._send(asked, most)
            tokens += used
            failed = str(fault or "")
            if fault is None or not fault.is_transient:
                break
            if attempt + 1 < self.attempts:
                longer_s = self.pause_s * 2**attempt * (1 + random.random() / 2)
                time.sleep(min(max(longer_s, fault.retry_after_s), LONGEST_PAUSE_S))
        if calls:
            row = {"asked": digest, "text": text, "failed": failed, "calls": calls}
            own = fault is not None and fault.status in PROMPT_STATUSES
            with self._changed:
                append_json_line(self.path, row | {"tokens": tokens})
                self._failed = self._failed + (not own) if fault else 0
        return Reply(text or "", failed)

    def _reserve(self, most: int) -> str:
        """Reserve a request of `most` tokens; return why that is impossible, or an empty string."""
        with self._changed:
            while True:
                if self._failed >= MAX_FAILED:
                    return f"not asked: the endpoint failed {MAX_FAILED} times in a row"
                if self.spent_calls >= self.calls:
                    return f"budget: {self.calls} calls are spent"
                wanted = self.spent_tokens + self._reserved + most
                if self.tokens is None or wanted <= self.tokens:
                    break
                if not self._reserved:
                    return f"budget: {self.tokens} tokens are spent"
                self._changed.wait()  # pending requests may cost less than they reserve
            self.spent_calls += 1
            self._reserved += most
            return ""

    def _send(self, asked: dict, most: int) -> tuple[str | None, int, EndpointError | None]:
        """Send one request; return its text, its tokens and its error."""
        text, used, fault = None, most, None
        try:
            text, used = _parse_completion(self.endpoint.complete(**asked), most)
        except EndpointError as error:
            fault = error
            used = (
                most if error.status is None else 0
            )  # timeout: the model may have generated everything
        finally:
            with self._changed:
                self._reserved -= most
                self.spent_tokens += used
                self._changed.notify_all()
        return text, used, fault

    def _load(self) -> None:
        """Load the replies of earlier runs."""
        for number, row in resume_json_lines(self.path):
            try:
                self.spent_calls += row["calls"]
                self.spent_tokens += row["tokens"]
                if not row["failed"]:
                    self._asked[row["asked"]] = Future()
                    self._asked[row["asked"]].set_result(Reply(str(row["text"])))
            except (LookupError, TypeError) as error:
                message = f"{self.path}, line {number} is no cached reply ({error!r})"
                raise ValueError(f"{message}: choose another file") from error


def _bound_tokens(asked: dict) -> int:
    """Return an upper bound of a request's tokens: no token is shorter than a byte."""
    said = sum(len(one["content"].encode("utf-8", "replace")) for one in asked["messages"])
    return said + FRAME * len(asked["messages"]) + asked["max_tokens"]


def _parse_completion(reply: dict, most: int) -> tuple[str, int]:
    """Return the text and the tokens of a chat completion; "" for reasoning or a refusal alone.

    Raises:
        EndpointError: the completion is malformed; a retry may succeed.
    """
    try:
        choice = read_choice(reply)
        message = read_message(choice)
    except ValueError as error:
        raise EndpointError(f"a malformed reply: {error}") from None
    text = message.text
    if text is None and message.thought:
        text = ""
    fields = choice.get("message")
    if isinstance(fields, dict) and fields.get("content") is None and fields.get("refusal"):
        text = ""
    if text is None:
        raise EndpointError("a malformed reply: the message has no content")
    usage = reply.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    used = [usage.get(f"{of}_tokens") for of in ("prompt", "completion")]
    counted = all(type(count) is int and 0 <= count <= MAX_COUNT for count in used)
    return text, sum(used) if counted else most


def make_prompt(system: str, user: str) -> list[dict[str, str]]:
    """Return a system and a user message."""
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]
