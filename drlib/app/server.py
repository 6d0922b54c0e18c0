"""`python -m drlib.app --serve`: the same research behind one page in a browser.

GET / is the page. POST /ask takes {"question": ...} and answers a line of JSON for each thing that
happens, as it happens: {"head", "run", "text"}, and at the end {"answer", "sources", "usage"} or
{"error"}. POST /stop ends the question that is worked at; so does a page that is closed. One
question at a time: a second one is told so (409).

Loopback only, unless DRLIB_ASK_TOKEN is set: then every question needs `Authorization: Bearer
<token>`, which the page takes from its own address (`/#<token>`; a browser never sends that part).
Without a token, what another site's page may send is refused, as in `drlib.sandbox.service`. What
pages and models say is put into the page as text, never as markup, and nothing is loaded from
anywhere.

Left out: several people at once, a history.
"""  # no `from __future__ import annotations`: FastAPI must see the type of `request`

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

from drlib.app.research import Asker, AskError
from drlib.app.terminal import lines_of, plain
from drlib.sandbox.client import import_extra
from drlib.sandbox.service import check_local
from drlib.validation import require

fastapi = import_extra("fastapi")
uvicorn = import_extra("uvicorn")
StreamingResponse = import_extra("fastapi.responses").StreamingResponse
Refusal = fastapi.HTTPException
PAGE = Path(__file__).with_name("page.html")
TOKEN = "DRLIB_ASK_TOKEN"
LONGEST = 10_000  # characters of a question
SHOWN = 4_000  # characters of a line
POLICY = (
    "default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Cancelled(Exception):
    """Somebody pressed stop."""


class Question:
    """One question while it is worked at, in a thread of its own."""

    def __init__(self, asker: Asker, text: str):
        self._asker = asker
        self._text = text
        self._stopped = threading.Event()
        self._loop = asyncio.get_running_loop()
        self.lines: asyncio.Queue[dict | None] = asyncio.Queue()
        self.thread = threading.Thread(target=self._work, daemon=True)

    def stop(self) -> None:
        """End it with whatever happens next."""
        self._stopped.set()

    def _tell(self, line: dict | None) -> None:
        self._loop.call_soon_threadsafe(self.lines.put_nowait, line)

    def _watch(self, what: str, at, value) -> None:
        if self._stopped.is_set() and what != "end":
            raise Cancelled
        for line in lines_of(what, at, value):
            self._tell(line._asdict() | {"text": plain(line.text)[:SHOWN]})

    def _work(self) -> None:
        try:
            done = self._asker.ask(self._text, self._watch)
            self._tell(
                {
                    "answer": plain(done.answer),
                    "sources": [asdict(source) for source in done.sources],
                    "usage": done.usage,
                }
            )
        except Cancelled:
            self._tell({"error": "stopped"})
        except (AskError, ValueError) as error:
            self._tell({"error": plain(str(error))})
        except BaseException as error:
            self._tell({"error": f"{type(error).__name__}: {plain(str(error))}"})
            raise
        finally:
            self._tell(None)


class Desk:
    """Where questions are taken: `app`, the FastAPI application."""

    def __init__(self, asker: Asker, token: str):
        self.asker = asker
        self.token = token
        self.current: Question | None = None
        self.app = fastapi.FastAPI(openapi_url=None)
        guarded = [fastapi.Depends(self.check)]
        self.app.get("/")(self.page)
        self.app.post("/ask", dependencies=guarded)(self.ask)
        self.app.post("/stop", dependencies=guarded)(self.stop)

    async def check(self, request: fastapi.Request) -> None:
        """Before a question: the token; without one, who may ask at all."""
        if not self.token:
            check_local(request.headers, TOKEN)
            return
        shown = request.headers.get("authorization", "").encode("latin-1")
        if not hmac.compare_digest(shown, f"Bearer {self.token}".encode()):
            raise Refusal(401, "this page's address ends in #TOKEN, the value of DRLIB_ASK_TOKEN")

    async def page(self):
        """GET /."""
        nonce = secrets.token_urlsafe(16)
        text = PAGE.read_text(encoding="utf-8").replace("NONCE", nonce)
        headers = {
            "Content-Security-Policy": POLICY.format(nonce=nonce),
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
        }
        return fastapi.Response(text, media_type="text/html", headers=headers)

    async def ask(self, request: fastapi.Request):
        """POST /ask."""
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            raise Refusal(415, "a question is application/json")
        text = _question(await request.body())
        if self.current is not None:
            raise Refusal(409, "a question is being worked at: stop it, or wait")
        self.current = Question(self.asker, text)
        self.current.thread.start()
        return StreamingResponse(self._lines(self.current), media_type="application/x-ndjson")

    async def _lines(self, question: Question) -> AsyncIterator[str]:
        """What happens, a line of JSON each; a page that goes away stops its question.

        The lines end when the desk is free: who has read them all may ask again at once.
        """
        try:
            while (line := await question.lines.get()) is not None:
                yield json.dumps(line) + "\n"
            await self._free(question)
        finally:
            if self.current is question:  # the page went away
                question.stop()
                asyncio.get_running_loop().create_task(self._free(question))

    async def _free(self, question: Question) -> None:
        """The desk is free when the work has ended, not before: an engine has one user."""
        while question.thread.is_alive():
            await asyncio.sleep(0.01)
        self.current = None

    async def stop(self):
        """POST /stop."""
        if self.current is not None:
            self.current.stop()
        return {"stopping": self.current is not None}


def _question(body: bytes) -> str:
    """Of a request. 422: there is none."""
    try:
        asked = json.loads(body)["question"]
        require(isinstance(asked, str) and len(asked.strip()) > 0, "an empty question")
        require(len(asked) <= LONGEST, f"a question of more than {LONGEST} characters")
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise Refusal(422, f'give {{"question": "..."}} ({error})') from None
    return asked


def serve(asker: Asker, host: str, port: int) -> None:
    """Serve until Ctrl-C; says where. ValueError: others could ask, and there is no token."""
    token = os.environ.get(TOKEN, "")
    address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4]
    open_to_others = not ipaddress.ip_address(address[0]).is_loopback
    require(
        token.isascii() and bool(token or not open_to_others),
        f"set {TOKEN} to a long secret of ASCII characters to serve on {host}",
    )
    with socket.create_server(address[:2]) as listener:
        where = f"http://{host}:{listener.getsockname()[1]}/"
        print(f"drlib.app: {where}{f'#{token}' * bool(token)} (Ctrl-C stops)", flush=True)
        settings = uvicorn.Config(
            Desk(asker, token).app, log_level="warning", timeout_graceful_shutdown=2
        )
        asyncio.run(uvicorn.Server(settings).serve(sockets=[listener]))
