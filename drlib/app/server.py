"""Web page and OpenAI-compatible API of `drlib ask --serve`.

GET / returns the page. POST /ask takes {"question": ...} and streams one JSON line per event:
{"head", "run", "text"}, then {"answer", "sources", "usage"} or {"error"}. POST /v1/chat/completions
and GET /v1/models speak OpenAI's protocol. A client that disconnects cancels its question, POST
/stop all of them. Questions beyond `parallel` wait in a queue. GET /history returns waiting,
running and earlier questions, GET /history/ID an earlier one with its events.

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
import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from drlib.app import chat_api
from drlib.app.history import STOPPED, History
from drlib.app.research import AskError, AskSession
from drlib.app.terminal import format_event, strip_controls
from drlib.sandbox.remote import import_extra
from drlib.sandbox.service import check_local
from drlib.validation import require

fastapi = import_extra("fastapi")
uvicorn = import_extra("uvicorn")
StreamingResponse = import_extra("fastapi.responses").StreamingResponse
JSONResponse = import_extra("fastapi.responses").JSONResponse
HTTPError = fastapi.HTTPException
PAGE = Path(__file__).with_name("page.html")
TOKEN = "DRLIB_ASK_TOKEN"
MAX_QUESTION_CHARS = 10_000
MAX_LINE_CHARS = 4_000  # per event
MAX_BODY = 1_000_000  # bytes of a request
MAX_WAITING = 16  # questions in the queue
MAX_HISTORY = 1_000  # questions returned at once
POLL_S = 0.2  # between two checks of the client's connection
CLIENT_CLOSED = 499  # status of a request without a client, as in nginx
POLICY = (
    "default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Cancelled(Exception):
    """The question was stopped by the user."""


class AskedQuestion:
    """A question that waits in the queue or is researched in its own thread.

    Attributes:
        lines: its events; None is the end.
    """

    def __init__(self, session: AskSession, text: str, history: History):
        self._session = session
        self._text = text
        self._history = history
        self._asked_at = datetime.now(UTC)
        self._started = time.monotonic()
        self._stopped = threading.Event()
        self._events: list[dict] = []
        self._has_ended = False
        self._loop = asyncio.get_running_loop()
        self.lines: asyncio.Queue[dict | None] = asyncio.Queue()
        self.thread = threading.Thread(target=self._work, daemon=True)

    @property
    def is_active(self) -> bool:
        """True until the last line is in the history."""
        return not self._has_ended

    def describe(self, position: int = 0) -> dict:
        """Return the question as a row of the history.

        Args:
            position: in the queue; 0: it is being researched.
        """
        return {
            "id": None,
            "asked_at": self._asked_at.isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - self._started, 1),
            "question": self._text,
            "status": "waiting" if position else "running",
            "position": position,
        }

    def show_position(self, position: int) -> None:
        """Send the position in the queue as an event."""
        text = f"number {position} in the queue"
        self.lines.put_nowait({"head": "waits", "run": 0, "text": text, "position": position})

    def stop(self) -> None:
        """Cancel at the next event of the rollout."""
        self._stopped.set()

    def _send(self, line: dict | None) -> None:
        self._loop.call_soon_threadsafe(self.lines.put_nowait, line)

    def _watch(self, event: str, state, value) -> None:
        if self._stopped.is_set() and event != "end":
            raise Cancelled
        for line in format_event(event, state, value):
            shown = line._asdict() | {"text": strip_controls(line.text)[:MAX_LINE_CHARS]}
            self._events.append(shown)
            self._send(shown)

    def _work(self) -> None:
        try:
            result = self._session.ask(self._text, self._watch)
            self._end(
                {
                    "answer": strip_controls(result.answer),
                    "sources": [asdict(source) for source in result.sources],
                    "usage": result.usage,
                }
            )
        except Cancelled:
            self._end({"error": STOPPED})
        except (AskError, ValueError) as error:
            self._end({"error": strip_controls(str(error))})
        except BaseException as error:
            self._end({"error": f"{type(error).__name__}: {strip_controls(str(error))}"})
            raise
        finally:
            self._send(None)

    def _end(self, line: dict) -> None:
        """Send the last line, and keep it with the events."""
        seconds = time.monotonic() - self._started
        self._history.add(self._text, seconds, line, self._events)
        self._has_ended = True
        self._send(line)


class AskServer:
    """Routes of the page and the API; `app` is the FastAPI application.

    Args:
        parallel: questions that are researched at the same time; others wait in a queue.
        history: where questions and answers are kept; None: in memory.
    """

    def __init__(
        self,
        session: AskSession,
        token: str,
        *,
        parallel: int = 1,
        history: History | None = None,
    ):
        self.session = session
        self.token = token
        self.history = history or History()
        self.parallel = parallel
        self.running: list[AskedQuestion] = []
        self.waiting: list[AskedQuestion] = []  # the first one starts next
        self._ends: set[asyncio.Task] = set()
        self.app = fastapi.FastAPI(openapi_url=None)
        protected = [fastapi.Depends(self.check)]
        self.app.get("/")(self.page)
        for method, path, function in (
            ("POST", "/ask", self.ask),
            ("POST", "/stop", self.stop),
            ("GET", "/history", self.list_history),
            ("GET", "/history/{number}", self.find_history),
            ("GET", "/v1/models", self.list_models),
            ("POST", "/v1/chat/completions", self.complete),
        ):
            self.app.add_api_route(path, function, methods=[method], dependencies=protected)

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
        text = _parse_question(await _read_body(request))
        self._require_room()

        async def lines() -> AsyncIterator[str]:
            async for line in self._research(text):
                yield json.dumps(line) + "\n"

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    async def complete(self, request: fastapi.Request):  # type: ignore[name-defined]
        """Answer a request of an OpenAI client (POST /v1/chat/completions)."""
        try:
            body = json.loads(await _read_body(request))
            text, stream, wants_usage = chat_api.read_question(body)
            _require_length(text)
        except (ValueError, RecursionError) as error:
            return JSONResponse(chat_api.error(str(error), "invalid_request_error"), 400)
        self._require_room()
        if stream:
            chunks = self._chunks(text, wants_usage)
            return StreamingResponse(chunks, media_type="text/event-stream")
        reply = asyncio.create_task(self._complete_whole(text))
        gone = asyncio.create_task(_wait_for_disconnect(request))
        try:
            await asyncio.wait({reply, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not reply.done():
                error = chat_api.error("the client disconnected", "request_cancelled")
                return JSONResponse(error, CLIENT_CLOSED)
            return reply.result()
        finally:  # a cancelled reply stops its question
            reply.cancel()
            gone.cancel()

    async def _complete_whole(self, text: str):
        """Return the reply without streaming."""
        reasoning = ""
        async for line in self._research(text):
            if "error" in line:
                return JSONResponse(chat_api.error(line["error"], "server_error"), 502)
            if "answer" in line:
                return chat_api.Reply().whole(reasoning, line)
            reasoning += chat_api.render_trace(line)
        raise AssertionError("research without an end")

    async def _chunks(self, text: str, wants_usage: bool) -> AsyncIterator[str]:
        """Yield server-sent events: the trace as reasoning, then the answer."""
        reply = chat_api.Reply()
        chunks = [reply.chunk({"role": "assistant", "content": ""})]
        async for line in self._research(text):
            if "error" in line:
                chunks.append(chat_api.error(line["error"], "server_error"))
            elif "answer" in line:
                chunks.append(reply.chunk({"content": chat_api.render_answer(line)}))
                chunks.append(reply.chunk({}, "stop"))
                chunks += [reply.usage_chunk(line)] if wants_usage else []
            else:
                chunks.append(reply.chunk({"reasoning_content": chat_api.render_trace(line)}))
            for chunk in chunks:
                yield f"data: {json.dumps(chunk)}\n\n"
            chunks = []
        yield "data: [DONE]\n\n"

    def _require_room(self) -> None:
        if len(self.waiting) >= MAX_WAITING:
            raise HTTPError(429, f"{len(self.waiting)} questions are waiting: try again later")

    async def _research(self, text: str) -> AsyncIterator[dict]:
        """Yield the events of a question in its turn; closing the iterator cancels it."""
        question = AskedQuestion(self.session, text, self.history)
        self.waiting.append(question)
        self._start_next()
        if question in self.waiting:
            question.show_position(len(self.waiting))
        try:
            while (line := await question.lines.get()) is not None:
                yield line
        finally:
            question.stop()
            if question in self.waiting:
                self._leave_queue(question)
            else:
                # a task: the client may be gone, and this iterator cancelled
                end = asyncio.get_running_loop().create_task(self._free(question))
                self._ends.add(end)
                end.add_done_callback(self._ends.discard)

    def _start_next(self) -> None:
        """Start waiting questions while there are free slots."""
        while self.waiting and len(self.running) < self.parallel:
            question = self.waiting[0]
            self.running.append(question)
            question.thread.start()
            self._leave_queue(question)

    def _leave_queue(self, question: AskedQuestion) -> None:
        """Remove a question from the queue; those behind it get their new positions."""
        place = self.waiting.index(question)
        del self.waiting[place]
        for position, behind in enumerate(self.waiting[place:], place + 1):
            behind.show_position(position)

    async def _free(self, question: AskedQuestion) -> None:
        """Start the next question when the thread has ended."""
        while question.thread.is_alive():
            await asyncio.sleep(0.01)
        self.running.remove(question)
        self._start_next()

    async def stop(self):
        """Cancel all running questions (POST /stop)."""
        for question in self.running:
            question.stop()
        return {"stopping": bool(self.running)}

    async def list_models(self):
        """Return the only model (GET /v1/models)."""
        model = {"id": chat_api.MODEL, "object": "model", "created": 0, "owned_by": "drlib"}
        return {"object": "list", "data": [model]}

    async def list_history(self, limit: int = 50):
        """Return waiting, running and earlier questions, newest first (GET /history)."""
        queue = [each.describe(place) for place, each in enumerate(self.waiting, 1)]
        active = [each.describe() for each in self.running if each.is_active]
        earlier = self.history.list(min(max(limit, 1), MAX_HISTORY))
        return [*reversed(queue), *reversed(active), *earlier]

    async def find_history(self, number: int):
        """Return an earlier question with its events (GET /history/ID)."""
        found = self.history.find(number)
        if found is None:
            raise HTTPError(404, f"no question {number} in the history")
        return found


async def _wait_for_disconnect(request: fastapi.Request) -> None:  # type: ignore[name-defined]
    """Return when the client has closed its connection."""
    while not await request.is_disconnected():
        await asyncio.sleep(POLL_S)


async def _read_body(request: fastapi.Request) -> bytes:  # type: ignore[name-defined]
    """Return the body of a JSON request; status 413 or 415 if it is too large or not JSON."""
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise HTTPError(415, "send the question as application/json")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY:
            raise HTTPError(413, f"the request exceeds {MAX_BODY} bytes")
    return body


def _require_length(question: str) -> None:
    require(
        len(question) <= MAX_QUESTION_CHARS,
        f"the question exceeds {MAX_QUESTION_CHARS} characters",
    )


def _parse_question(body: bytes) -> str:
    """Return the question in a request body; status 422 if it is invalid."""
    try:
        question = json.loads(body)["question"]
        require(isinstance(question, str) and len(question.strip()) > 0, "the question is empty")
        _require_length(question)
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise HTTPError(422, f'give {{"question": "..."}} ({error})') from None
    return question


def serve(
    session: AskSession,
    host: str,
    port: int,
    *,
    parallel: int = 1,
    history: History | None = None,
) -> None:
    """Print the address and serve until Ctrl-C; see `AskServer`.

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
        # asyncio sets it only for sockets with an explicit protocol; without it, replies wait 40 ms
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        url = f"http://{host}:{listener.getsockname()[1]}/"
        print(f"drlib ask: {url}{f'#{token}' * bool(token)} (Ctrl-C stops)", flush=True)
        server = AskServer(session, token, parallel=parallel, history=history)
        settings = uvicorn.Config(server.app, log_level="warning", timeout_graceful_shutdown=2)
        asyncio.run(uvicorn.Server(settings).serve(sockets=[listener]))
