"""The one client of language models behind OpenAI-compatible servers (vLLM, Ollama, OpenAI itself).

The `openai` package speaks the protocol. Added here is what a server must not be trusted with: one
deadline for the whole exchange (the package's time-outs are those of a single read, so that a
server which sends a byte a second is never late), a bound on the size of a reply, no redirect to
another host, and no key but the one that was given.

Left out: retries (the callers know what a failure costs them), streaming, tools, logprobs.
"""

import json
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from urllib.parse import urlsplit

MAX_REPLY = 1_000_000  # bytes


class EndpointError(Exception):
    """No reply: the server cannot be reached, refuses, or sends too much, as the message says."""


class EndpointTimeout(EndpointError):
    """No whole reply in time."""


class ChatEndpoint:
    """The model called `model` at the base URL `url` ("http://localhost:8000/v1").

    timeout_s: of one question, from the first byte sent to the last one read. api_key: none is sent
    when it is empty, also when the environment holds one for another server. May be used by
    several threads.

    Raises:
        EndpointError: `url` is no address of a server.
    """

    def __init__(self, url: str, model: str, *, timeout_s: float = 60.0, api_key: str = ""):
        # lazily: they take a second, and most worlds and questions need no model
        import httpx2
        import openai

        if not _is_address(url):
            raise EndpointError(f"{url!r} is not an http(s) address")
        self.url = url.rstrip("/")
        self.model = model
        self._timeout_s = timeout_s
        self._late = (TimeoutError, openai.APITimeoutError, httpx2.TimeoutException)
        self._refused = openai.APIStatusError
        # of the request; of a reply that breaks off
        self._broken = (openai.APIConnectionError, httpx2.HTTPError)
        # the package takes these from the environment, which means another server by them
        unsaid = ["OpenAI-Organization", "OpenAI-Project"]
        unsaid += [] if api_key else ["Authorization"]
        self._headers = dict.fromkeys(unsaid, openai.Omit())
        self._client = openai.OpenAI(
            base_url=self.url,
            api_key=api_key or "none",
            max_retries=0,
            http_client=openai.DefaultHttpxClient(follow_redirects=False, timeout=timeout_s),
        )

    def ask(self, messages: Sequence[dict[str, str]], **options) -> str | None:
        """What the model says to `messages` ({"role": .., "content": ..}); None when the reply is
        no chat completion. options: such as temperature.

        Raises:
            EndpointError: the server gave no reply; EndpointTimeout: not in time.
        """
        done: Future[bytes] = Future()
        deadline = time.monotonic() + self._timeout_s

        def work() -> None:
            try:
                done.set_result(self._exchange(messages, options, deadline))
            except BaseException as error:  # noqa: BLE001 - handed over to the caller
                done.set_exception(error)

        # neither the system's look-up of a name nor dripped headers know a time-out
        threading.Thread(target=work, daemon=True).start()
        try:
            body = done.result(timeout=self._timeout_s)
        except self._late:
            raise EndpointTimeout(f"timeout: no end within {self._timeout_s} s") from None
        except self._refused as error:
            reason = error.response.reason_phrase
            raise EndpointError(f"HTTP {error.status_code} {reason}") from None
        except self._broken as error:
            cause = error.__cause__ or error
            raise EndpointError(f"{type(cause).__name__}: {cause}") from None
        try:
            text = json.loads(body)["choices"][0]["message"]["content"]
        except (ValueError, LookupError, TypeError, RecursionError):
            return None
        return text if isinstance(text, str) else None

    def _exchange(self, messages: Sequence[dict], options: dict, deadline: float) -> bytes:
        """The body of the reply, piece by piece, so that a long one is not read to its end."""
        create = self._client.chat.completions.with_streaming_response.create
        body = b""
        asked = {"model": self.model, "messages": list(messages), **options}
        with create(extra_headers=self._headers, **asked) as reply:
            for piece in reply.iter_bytes():
                body += piece
                if time.monotonic() > deadline:
                    raise TimeoutError
                if len(body) > MAX_REPLY:
                    raise EndpointError(f"more than {MAX_REPLY} bytes")
        return body


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, half a bracket
        return False
