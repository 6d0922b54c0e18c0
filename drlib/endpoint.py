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
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from urllib.parse import urlsplit

MAX_REPLY = 1_000_000  # bytes
PASSING = (408, 409, 425, 429)  # statuses after which, and all from 500 on, another try may go well


class EndpointError(Exception):
    """No reply: the server cannot be reached, refuses, or sends too much, as the message says.

    status: of HTTP, None where it never came to one. retry_after_s: what the server asks for.
    """

    def __init__(self, message: str, status: int | None = None, retry_after_s: float = 0.0):
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s

    @property
    def passing(self) -> bool:
        """Whether another try may go well: the server was not reached, was late, or is busy."""
        return self.status is None or self.status in PASSING or self.status >= 500


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
        try:
            text = self.complete(messages, **options)["choices"][0]["message"]["content"]
        except (LookupError, TypeError):
            return None
        return text if isinstance(text, str) else None

    def complete(self, messages: Sequence[dict], **options) -> dict | None:
        """The server's whole reply to `messages`; None when it is no JSON object.

        Raises:
            EndpointError: the server gave no reply; EndpointTimeout: not in time.
        """
        create = self._client.chat.completions.with_streaming_response.create
        return self._reply(create, {"messages": list(messages), **options})

    def complete_ids(self, prompt: Sequence[int], **options) -> dict | None:
        """The same behind token ids, for a server that takes them (vLLM's `/completions`)."""
        create = self._client.completions.with_streaming_response.create
        return self._reply(create, {"prompt": list(prompt), **options})

    def tell(self, path: str, body: dict, timeout_s: float) -> None:
        """POST to the server's root, beside `/v1`: what a server can do besides (vLLM's
        `/collective_rpc`). EndpointError: it does not."""
        url = self.url.removesuffix("/v1") + path
        try:
            how = {"timeout": timeout_s, "headers": self._headers}
            self._client.post(url, cast_to=object, body=body, options=how)
        except self._refused as error:
            raise _refusal(error) from None
        except self._broken as error:
            raise EndpointError(f"{url}: {type(error).__name__}: {error}") from None

    def _reply(self, create: Callable, asked: dict) -> dict | None:
        done: Future[bytes] = Future()
        deadline = time.monotonic() + self._timeout_s

        def work() -> None:
            try:
                done.set_result(self._exchange(create, asked, deadline))
            except BaseException as error:  # noqa: BLE001 - handed over to the caller
                done.set_exception(error)

        # neither the system's look-up of a name nor dripped headers know a time-out
        threading.Thread(target=work, daemon=True).start()
        try:
            body = done.result(timeout=self._timeout_s)
        except self._late:
            raise EndpointTimeout(f"timeout: no end within {self._timeout_s} s") from None
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

    def _exchange(self, create: Callable, asked: dict, deadline: float) -> bytes:
        """The body of the reply, piece by piece, so that a long one is not read to its end."""
        body = b""
        with create(model=self.model, extra_headers=self._headers, **asked) as reply:
            for piece in reply.iter_bytes():
                body += piece
                if time.monotonic() > deadline:
                    raise TimeoutError
                if len(body) > MAX_REPLY:
                    raise EndpointError(f"more than {MAX_REPLY} bytes")
        return body


def _refusal(error) -> EndpointError:
    """What an APIStatusError says: its status, and the server's own words where there are some."""
    response = error.response
    said = error.body.get("message") if isinstance(error.body, dict) else None
    words = f": {said[:300]}" if isinstance(said, str) and said else ""
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
    except ValueError:  # a port that is no number, half a bracket
        return False
