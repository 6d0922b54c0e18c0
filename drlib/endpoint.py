"""Client for language models behind OpenAI-compatible servers (vLLM, Ollama, OpenAI).

The `openai` package implements the protocol. Added here are limits on untrusted servers: one
deadline for the whole exchange (the package's timeouts apply to single reads, so a server that
sends one byte per second never times out), a maximum reply size, no redirect to another host, and
no API key except the given one.

Not implemented: retries (callers know the cost of a failure), streaming, tools, logprobs.
"""

import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from urllib.parse import urlsplit

MAX_REPLY = 1_000_000  # bytes
# Idle connections are dropped before servers close theirs (uvicorn, and so vLLM: after 5 s): a
# request on a connection that is just being closed fails without a response.
KEEP_ALIVE_S = 2.0
PASSING = (408, 409, 425, 429)  # a retry may succeed after these statuses and all from 500


class EndpointError(Exception):
    """No reply: the server is unreachable, refuses, or sends too much.

    Args:
        message: cause.
        status: HTTP status; None if there was no response.
        retry_after_s: seconds that the server asked to wait.
    """

    def __init__(self, message: str, status: int | None = None, retry_after_s: float = 0.0):
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s

    @property
    def is_transient(self) -> bool:
        """True if a retry may succeed: the server was unreachable, late or busy."""
        return self.status is None or self.status in PASSING or self.status >= 500


class EndpointTimeout(EndpointError):
    """No complete reply in time."""


class ChatEndpoint:
    """A model on an OpenAI-compatible server; safe for several threads.

    Args:
        url: base URL, such as "http://localhost:8000/v1".
        model: name of the model.
        timeout_s: seconds for one request, from the first byte sent to the last byte received.
        api_key: none is sent if it is empty, even if the environment contains one.

    Raises:
        EndpointError: `url` is no http(s) address.
    """

    def __init__(self, url: str, model: str, *, timeout_s: float = 60.0, api_key: str = ""):
        # imported here because they take a second and most worlds need no model
        import httpx2
        import openai

        if not _is_address(url):
            raise EndpointError(f"{url!r} is not an http(s) address")
        self.url = url.rstrip("/")
        self.model = model
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
        """Return the model's reply to a conversation; None if it is no chat completion.

        Args:
            messages: {"role": ..., "content": ...}.
            options: request parameters such as temperature.

        Raises:
            EndpointTimeout: no complete reply in time.
            EndpointError: no reply.
        """
        try:
            text = self.complete(messages, **options)["choices"][0]["message"]["content"]
        except (LookupError, TypeError):
            return None
        return text if isinstance(text, str) else None

    def complete(self, messages: Sequence[dict], **options) -> dict | None:
        """Return the server's whole reply to `messages`; None if it is no JSON object.

        Raises:
            EndpointTimeout: no complete reply in time.
            EndpointError: no reply.
        """
        create = self._client.chat.completions.with_streaming_response.create
        return self._reply(create, {"messages": list(messages), **options})

    def complete_ids(self, prompt: Sequence[int], **options) -> dict | None:
        """Complete token ids, on a server that accepts them (vLLM's `/completions`).

        Returns and raises like `complete`.
        """
        create = self._client.completions.with_streaming_response.create
        return self._reply(create, {"prompt": list(prompt), **options})

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

    def _reply(self, create: Callable, request: dict) -> dict | None:
        done: Future[bytes] = Future()
        deadline = time.monotonic() + self._timeout_s

        def work() -> None:
            try:
                done.set_result(self._exchange(create, request, deadline))
            except BaseException as error:  # noqa: BLE001 - handed over to the caller
                done.set_exception(error)

        # in a thread: name resolution and slow headers have no timeout
        threading.Thread(target=work, daemon=True).start()
        try:
            body = done.result(timeout=self._timeout_s)
        except self._late:
            raise EndpointTimeout(
                f"timeout: no complete reply within {self._timeout_s} s"
            ) from None
        except self._refused as error:
            raise _refusal(error) from None
        except self._broken as error:
            cause = error.__cause__ or error
            raise EndpointError(f"{type(cause).__name__}: {cause}") from None
        try:
            reply = json.loads(body)
        except (ValueError, RecursionError):
            return None
        return reply if isinstance(reply, dict) else None

    def _exchange(self, create: Callable, request: dict, deadline: float) -> bytes:
        """Return the body of the reply, read in pieces so that a long one is cut off."""
        body = b""
        with create(model=self.model, extra_headers=self._headers, **request) as reply:
            for piece in reply.iter_bytes():
                body += piece
                if time.monotonic() > deadline:
                    raise TimeoutError
                if len(body) > MAX_REPLY:
                    raise EndpointError(f"reply exceeds {MAX_REPLY} bytes")
        return body


def _refusal(error) -> EndpointError:
    """Convert an APIStatusError, with its status and the server's message."""
    response = error.response
    reason = error.body.get("message") if isinstance(error.body, dict) else None
    words = f": {reason[:300]}" if isinstance(reason, str) and reason else ""
    try:
        wait_s = float(response.headers.get("retry-after", 0))
    except ValueError:  # a date
        wait_s = 0.0
    message = f"HTTP {error.status_code} {response.reason_phrase}{words}"
    return EndpointError(message, error.status_code, max(wait_s, 0.0))


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid port or bracket
        return False
