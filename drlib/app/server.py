"""Web page of `drlib ask --serve`.

GET / returns the page. POST /ask takes {"question": ...} and streams one JSON line per event:
{"head", "run", "text"}, then {"answer", "sources", "usage"} or {"error"}. POST /stop, or closing
the page, cancels the question. One question at a time; a second one gets status 409.

Loopback only unless DRLIB_ASK_TOKEN is set. Requests then need `Authorization: Bearer <token>`,
which the page reads from its URL fragment (`/#<token>`; browsers do not send it). Without a token,
cross-site requests are refused as in `drlib.sandbox.service`. Text from pages and models is
inserted as text, never as markup, and the page loads no external resource.
"""  # no `from __future__ import annotations`: FastAPI evaluates the type of `request`

import asyncio
import hmac
import ipaddress
import json
import os
import secrets
import socket
import threading
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path

from drlib.app.research import AskError, AskSession
from drlib.app.terminal import format_event, strip_controls
from drlib.sandbox.remote import import_extra
from drlib.sandbox.service import check_local
from drlib.validation import require

fastapi = import_extra("fastapi")
uvicorn = import_extra("uvicorn")
StreamingResponse = import_extra("fastapi.responses").StreamingResponse
HTTPError = fastapi.HTTPException
PAGE = Path(__file__).with_name("page.html")
TOKEN = "DRLIB_ASK_TOKEN"
MAX_QUESTION_CHARS = 10_000
MAX_LINE_CHARS = 4_000  # per event
POLICY = (
    "default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Cancelled(Exception):
    """The question was stopped by the user."""


class RunningQuestion:
    """A question that is being researched in its own thread."""

    def __init__(self, session: AskSession, text: str):
        self._session = session
        self._text = text
        self._stopped = threading.Event()
        self._loop = asyncio.get_running_loop()
        self.lines: asyncio.Queue[dict | None] = asyncio.Queue()
        self.thread = threading.Thread(target=self._work, daemon=True)

    def stop(self) -> None:
        """Cancel at the next event of the rollout."""
        self._stopped.set()

    def _send(self, line: dict | None) -> None:
        self._loop.call_soon_threadsafe(self.lines.put_nowait, line)

    def _watch(self, event: str, state, value) -> None:
        if self._stopped.is_set() and event != "end":
            raise Cancelled
        for line in format_event(event, state, value):
            self._send(line._asdict() | {"text": strip_controls(line.text)[:MAX_LINE_CHARS]})

    def _work(self) -> None:
        try:
            result = self._session.ask(self._text, self._watch)
            self._send(
                {
                    "answer": strip_controls(result.answer),
                    "sources": [asdict(source) for source in result.sources],
                    "usage": result.usage,
                }
            )
        except Cancelled:
            self._send({"error": "stopped"})
        except (AskError, ValueError) as error:
            self._send({"error": strip_controls(str(error))})
        except BaseException as error:
            self._send({"error": f"{type(error).__name__}: {strip_controls(str(error))}"})
            raise
        finally:
            self._send(None)


class AskServer:
    """Routes of the web page; `app` is the FastAPI application."""

    def __init__(self, session: AskSession, token: str):
        self.session = session
        self.token = token
        self.current: RunningQuestion | None = None
        self.app = fastapi.FastAPI(openapi_url=None)
        protected = [fastapi.Depends(self.check)]
        self.app.get("/")(self.page)
        self.app.post("/ask", dependencies=protected)(self.ask)
        self.app.post("/stop", dependencies=protected)(self.stop)

    async def check(self, request: fastapi.Request) -> None:  # type: ignore[name-defined]
        """Check the token of a request; without one, check that the request is local."""
        if not self.token:
            check_local(request.headers, TOKEN)
            return
        credentials = request.headers.get("authorization", "").encode("latin-1")
        if not hmac.compare_digest(credentials, f"Bearer {self.token}".encode()):
            raise HTTPError(
                401,
                "missing or wrong token: open URL/#TOKEN with the value of DRLIB_ASK_TOKEN",
            )

    async def page(self):
        """Return the page (GET /)."""
        nonce = secrets.token_urlsafe(16)
        text = PAGE.read_text(encoding="utf-8").replace("NONCE", nonce)
        headers = {
            "Content-Security-Policy": POLICY.format(nonce=nonce),
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
        }
        return fastapi.Response(text, media_type="text/html", headers=headers)

    async def ask(self, request: fastapi.Request):  # type: ignore[name-defined]
        """Research a question and stream its events (POST /ask)."""
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            raise HTTPError(415, "send the question as application/json")
        text = _parse_question(await request.body())
        if self.current is not None:
            raise HTTPError(409, "another question is running: stop it or wait")
        self.current = RunningQuestion(self.session, text)
        self.current.thread.start()
        return StreamingResponse(self._lines(self.current), media_type="application/x-ndjson")

    async def _lines(self, question: RunningQuestion) -> AsyncIterator[str]:
        """Yield one JSON line per event; a disconnected client cancels its question.

        The stream ends when the server accepts the next question.
        """
        try:
            while (line := await question.lines.get()) is not None:
                yield json.dumps(line) + "\n"
            await self._free(question)
        finally:
            if self.current is question:  # the client disconnected
                question.stop()
                asyncio.get_running_loop().create_task(self._free(question))

    async def _free(self, question: RunningQuestion) -> None:
        """Wait until the worker thread ends, because an engine runs one rollout at a time."""
        while question.thread.is_alive():
            await asyncio.sleep(0.01)
        self.current = None

    async def stop(self):
        """Cancel the current question (POST /stop)."""
        if self.current is not None:
            self.current.stop()
        return {"stopping": self.current is not None}


def _parse_question(body: bytes) -> str:
    """Return the question in a request body; status 422 if it is invalid."""
    try:
        question = json.loads(body)["question"]
        require(isinstance(question, str) and len(question.strip()) > 0, "the question is empty")
        require(
            len(question) <= MAX_QUESTION_CHARS,
            f"the question exceeds {MAX_QUESTION_CHARS} characters",
        )
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise HTTPError(422, f'give {{"question": "..."}} ({error})') from None
    return question


def serve(session: AskSession, host: str, port: int) -> None:
    """Print the address and serve until Ctrl-C.

    Raises:
        ValueError: the host is public and there is no token, or the token is not ASCII.
    """
    token = os.environ.get(TOKEN, "")
    address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4]
    is_public = not ipaddress.ip_address(address[0]).is_loopback
    require(
        token.isascii() and bool(token or not is_public),
        f"set {TOKEN} to a long secret of ASCII characters to serve on {host}",
    )
    with socket.create_server(address[:2]) as listener:
        url = f"http://{host}:{listener.getsockname()[1]}/"
        print(f"drlib ask: {url}{f'#{token}' * bool(token)} (Ctrl-C stops)", flush=True)
        settings = uvicorn.Config(
            AskServer(session, token).app, log_level="warning", timeout_graceful_shutdown=2
        )
        asyncio.run(uvicorn.Server(settings).serve(sockets=[listener]))
