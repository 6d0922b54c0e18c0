"""Client for language models behind OpenAI-compatible servers (vLLM, Ollama, OpenAI).

The `openai` package implements the protocol. Added here are limits on untrusted servers: one
deadline for the whole exchange (the package's timeouts apply to single reads, so a server that
sends one byte per second never times out), a maximum reply size, no redirect to another host, and
no API key except the given one.

A request is repeated only without an optional parameter that the server rejects, or with the other
name of the token limit; the endpoint remembers this. Not implemented: retries (callers know the
cost of a failure) and streaming.
"""

import email.utils
import json
import math
import threading
import time
import warnings
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import Any
from urllib.parse import urlsplit

from drlib.chat.server_errors import (
    collect_details,
    find_message,
    find_rejected,
    is_filtered,
    is_too_long,
)
from drlib.chat.server_messages import read_choice, read_message

MAX_REPLY = 1_000_000  # bytes
# Idle connections are dropped before servers close theirs (uvicorn, and so vLLM: after 5 s): a
# request on a connection that is just being closed fails without a response.
KEEP_ALIVE_S = 2.0
PASSING = (408, 409, 425, 429)  # a retry may succeed after these statuses and all from 500
PROMPT_STATUSES = (400, 413, 422)  # caused by the request, not by the server
# parameters without which a model generates as well; the others are needed or change the sampling
OPTIONAL = ("stop", "seed", "logprobs", "top_logprobs", "parallel_tool_calls", "stream_options")
RENAMES = {
    "max_tokens": "max_completion_tokens",
    "max_completion_tokens": "max_tokens",
}
# parameters that constrain the reply: without one of them it would mean something else
NEEDED = ("response_format", "structured_outputs")
SHOWN = 200  # characters of an unexpected body in an error


class EndpointError(Exception):
    """No reply: the server is unreachable, refuses, or sends too much.

    Args:
        message: cause.
        status: HTTP status; None if there was no response.
        retry_after_s: seconds that the server asked to wait.
        details: texts and codes of the server's error, for the properties below.
    """

    def __init__(
        self,
        message: str,
        status: int | None = None,
        retry_after_s: float = 0.0,
        details: str = "",
    ):
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s
        self.details = details

    @property
    def is_transient(self) -> bool:
        """True if a retry may succeed: the server was unreachable, late or busy."""
        return self.status is None or self.status in PASSING or self.status >= 500

    @property
    def is_too_long(self) -> bool:
        """True if the server refuses the prompt because it exceeds the context."""
        if self.status == 413:
            return True
        if self.status == 429:  # no retry helps a request above the limit of a minute
            return "request too large" in self.details.lower()
        return self.status in (None, 400, 422, 500) and is_too_long(self.details)

    @property
    def is_filtered(self) -> bool:
        """True if the server refuses the content of the prompt."""
        return self.status in (None, 400, 403, 422, 451) and is_filtered(self.details)


class EndpointTimeout(EndpointError):
    """No complete reply in time."""


class ChatEndpoint:
    """A model on an OpenAI-compatible server; safe for several threads.

    Args:
        url: base URL, such as "http://localhost:8000/v1".
        model: name of the model.
        timeout_s: seconds for one request, from the first byte sent to the last byte received.
        api_key: none is sent if it is empty, even if the environment contains one.
        omit: parameters that are never sent, because the server rejects them.

    Raises:
        EndpointError: `url` is no http(s) address.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        timeout_s: float = 60.0,
        api_key: str = "",
        omit: Collection[str] = (),
    ):
        # imported here because they take a second and most worlds need no model
        import httpx2
        import openai

        if not _is_address(url):
            raise EndpointError(f"{url!r} is not an http(s) address")
        self.url = url.rstrip("/")
        self.model = model
        self._omitted = set(omit)
        self._renamed: dict[str, str] = {}
        self._lock = threading.Lock()
        self._timeout_s = timeout_s
        self._late = (TimeoutError, openai.APITimeoutError, httpx2.TimeoutException)
        self._refused = openai.APIStatusError
        # failed requests and interrupted replies
        self._broken = (openai.APIConnectionError, httpx2.HTTPError)
        # the package would read these from the environment, where they belong to another server
        omitted = ["OpenAI-Organization", "OpenAI-Project"]
        omitted += [] if api_key else ["Authorization"]
        self._headers = dict.fromkeys(omitted, openai.Omit())
        self._client = openai.OpenAI(
            base_url=self.url,
            api_key=api_key or "none",
            max_retries=0,
            http_client=openai.DefaultHttpxClient(
                follow_redirects=False,
                timeout=timeout_s,
                limits=httpx2.Limits(keepalive_expiry=KEEP_ALIVE_S),
            ),
        )

    def ask(self, messages: Sequence[dict[str, str]], **options) -> str | None:
        """Return the model's reply to a conversation; None if it contains no text.

        Args:
            messages: {"role": ..., "content": ...}.
            options: request parameters such as temperature.

        Raises:
            EndpointTimeout: no complete reply in time.
            EndpointError: no reply.
        """
        reply = self.complete(messages, **options)
        try:
            return read_message(read_choice(reply)).text
        except ValueError:
            return None

    def complete(self, messages: Sequence[dict], **options) -> dict:
        """Return the server's whole reply to `messages`.

        Raises:
            EndpointTimeout: no complete reply in time.
            EndpointError: no reply, or one that is no JSON object.
        """
        create = self._client.chat.completions.with_streaming_response.create
        return self._adapt(create, {"messages": list(messages)}, options, OPTIONAL)

    def complete_ids(self, prompt: Sequence[int], **options) -> dict:
        """Complete token ids, on a server that accepts them (vLLM's `/completions`).

        Returns and raises like `complete`.
        """
        create = self._client.completions.with_streaming_response.create
        return self._adapt(create, {"prompt": list(prompt)}, options, ("seed",))

    def post(self, path: str, body: dict, timeout_s: float) -> None:
        """POST to the server's root beside `/v1`, such as vLLM's `/collective_rpc`.

        Raises:
            EndpointError: the request failed.
        """
        url = self.url.removesuffix("/v1") + path
        try:
            how = {"timeout": timeout_s, "headers": self._headers}
            self._client.post(url, cast_to=object, body=body, options=how)
        except self._refused as error:
            raise _refusal(error) from None
        except self._broken as error:
            raise EndpointError(f"{url}: {type(error).__name__}: {error}") from None

    def _adapt(
        self, create: Callable, request: dict, options: dict, optional: Collection[str]
    ) -> dict:
        """Send a request without the parameters that the server rejects."""
        while True:
            with self._lock:
                sent = {
                    self._renamed.get(name, name): value
                    for name, value in options.items()
                    if name not in self._omitted
                }
                omitted = tuple(self._omitted)
            if isinstance(sent.get("extra_body"), dict):
                extra = sent["extra_body"].items()
                sent["extra_body"] = {name: value for name, value in extra if name not in omitted}
            try:
                return self._reply(create, request | sent)
            except EndpointError as error:
                self._learn(error, sent, optional)

    def _learn(self, error: EndpointError, sent: dict, optional: Collection[str]) -> None:
        """Remember the parameter that an error rejects; raise the error if that does not help."""
        names = {*sent, *(sent.get("extra_body") or {})} - {"extra_body"}
        is_other = error.status not in (400, 422, 500, 501) or error.is_too_long
        name = None if is_other else find_rejected(error.details, names, optional)
        if name is None or name in NEEDED:
            raise error
        with self._lock:
            if name in RENAMES and name in sent and name not in self._renamed.values():
                self._renamed[name] = RENAMES[name]
            elif name in optional and name in sent:
                if name not in self._omitted:
                    warnings.warn(
                        f"{self.url} rejects the parameter {name}: it is left out", stacklevel=5
                    )
                self._omitted.add(name)
            else:
                remedy = f"leave it out with --omit {name}, or ChatEndpoint(..., omit=[{name!r}])"
                message = f"{error}; the server rejects the parameter {name}: {remedy}"
                raise EndpointError(message, error.status, details=error.details) from None

    def _reply(self, create: Callable, request: dict) -> dict:
        done: Future[tuple[bytes, str, str]] = Future()
        deadline = time.monotonic() + self._timeout_s

        def work() -> None:
            try:
                done.set_result(self._exchange(create, request, deadline))
            except BaseException as error:  # noqa: BLE001 - handed over to the caller
                done.set_exception(error)

        # in a thread: name resolution and slow headers have no timeout
        threading.Thread(target=work, daemon=True).start()
        try:
            body, kind, address = done.result(timeout=self._timeout_s)
        except self._late:
            raise EndpointTimeout(
                f"timeout: no complete reply within {self._timeout_s} s"
            ) from None
        except self._refused as error:
            raise _refusal(error) from None
        except self._broken as error:
            cause = error.__cause__ or error
            raise EndpointError(f"{type(cause).__name__}: {cause}") from None
        return _parse_body(body, kind, address)

    def _exchange(self, create: Callable, request: dict, deadline: float) -> tuple[bytes, str, str]:
        """Return body, type and address of the reply, read in pieces to cut off a long one."""
        body = b""
        with create(model=self.model, extra_headers=self._headers, **request) as reply:
            for piece in reply.iter_bytes():
                body += piece
                if time.monotonic() > deadline:
                    raise TimeoutError
                if len(body) > MAX_REPLY:
                    raise EndpointError(f"reply exceeds {MAX_REPLY} bytes")
            kind = reply.headers.get("content-type", "").partition(";")[0].strip()
            return body, kind, str(reply.http_response.url)


def _parse_body(body: bytes, kind: str, address: str) -> dict:
    """Return the JSON object of a body with status 200.

    Raises:
        EndpointError: it is something else, or an error without a status of its own.
    """
    try:
        reply = json.loads(body)
    except (ValueError, RecursionError):
        reply = None
    if not isinstance(reply, dict):
        text = " ".join(body[: 4 * SHOWN].decode("utf-8", "replace").split())[:SHOWN]
        content = f"{kind or 'content without a type'}: {text!r}" if body.strip() else "no content"
        raise EndpointError(
            f"{address} sent no JSON object but {content}; check the address, which usually ends "
            "in /v1, and whether a proxy or login page replies in its place"
        )
    error = reply.get("error") or (reply if reply.get("object") == "error" else None)
    if error and not reply.get("choices"):
        code = error.get("code", error.get("status")) if isinstance(error, dict) else None
        status = int(code) if str(code).isdecimal() and 400 <= int(code) < 600 else None
        text = find_message(error)[:300] or "an error without a message"
        raise EndpointError(f"{address}: {text}", status, details=collect_details(reply))
    return reply


def _refusal(error) -> EndpointError:
    """Convert an APIStatusError, with its status and the server's message."""
    response = error.response
    try:
        body: Any = json.loads(response.content)
    except (ValueError, RecursionError):
        body = " ".join(response.text.split())
    reason = find_message(body)[:300]
    message = f"HTTP {error.status_code} {response.reason_phrase}{': ' if reason else ''}{reason}"
    wait_s = _read_retry_after(response.headers)
    return EndpointError(message, error.status_code, wait_s, collect_details(body))


def _read_retry_after(headers) -> float:
    """Return the seconds of Retry-After, which may be a date; 0 without a valid one."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            wait_s = float(headers.get(name, "")) * unit_s
        except ValueError:
            continue
        return max(wait_s, 0.0) if math.isfinite(wait_s) else 0.0
    try:
        date = email.utils.parsedate_to_datetime(headers.get("retry-after", ""))
        return max(date.timestamp() - time.time(), 0.0)
    except (ValueError, TypeError, OverflowError):
        return 0.0


def parse_names(text: str) -> list[str]:
    """Return the names in a comma-separated list, such as the value of `--omit`."""
    return [name for part in text.split(",") if (name := part.strip())]


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid port or bracket
        return False
