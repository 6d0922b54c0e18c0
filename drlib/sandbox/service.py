"""A `Sandbox` behind HTTP: `python -m drlib.sandbox serve`.

POST /run takes {"calls": [{"code", "stdin", "history", "echo", "id"}, ...]} and answers a line of
JSON for each call as it ends. GET /health, and GET /metrics for Prometheus. Loopback only, unless
DRLIB_SANDBOX_TOKEN is set: then every request needs `Authorization: Bearer <token>`.

What is accepted is bounded in calls and in characters; a batch beyond is told to come back (429).
When a client goes away, or the service is told to stop, calls that wait are not run and those that
run come to their end. Connections without a request end after 5 s, the oldest at once where there
are too many: strangers cannot take all the places. Requests are checked by hand: pydantic refuses
the lone surrogates that Python code may hold. Left out: snapshots; TLS and limits for each address
(a proxy's work: strangers who connect thousands of times a second still cost CPU).
"""  # no `from __future__ import annotations`: FastAPI must see the type of `request`

import asyncio
import dataclasses
import hmac
import ipaddress
import json
import os
import signal
import socket
import time
from concurrent.futures import Future

from drlib.sandbox.client import MAX_BODY_BYTES, TOKEN, require, size_of
from drlib.sandbox.pool import Sandbox, check_call
from drlib.sandbox.result import SandboxResult

fastapi, kit, uvicorn = require("fastapi"), require("prometheus_client"), require("uvicorn")
Gone, Refusal = require("starlette.requests").ClientDisconnect, fastapi.HTTPException
MAX_CALLS = 64
MAX_HELD_CHARS = 256 << 20  # of all calls that wait or run
BODY_SECONDS, READERS = 60.0, 8  # bodies are read a few at a time: they are not counted yet
MAX_IDLE, IDLE_SECONDS = 512, 5.0  # connections without a request
STEPS = [0.001 * 2**k for k in range(16)]  # of the histograms: 1 ms to 33 s
STOPPED = SandboxResult("service_unavailable", "", "the service was stopped", None, 0.0, "")


class Service:
    """One sandbox: admission, accounts and `app`, the FastAPI application."""

    def __init__(self, sandbox: Sandbox, max_queue: int, token: str) -> None:
        self.sandbox, self.max_queue, self.token = sandbox, max_queue, token
        self.open: dict[Future, int] = {}  # characters of each call that waits or runs
        self.stopping, self.readers = False, asyncio.Semaphore(READERS)
        self.registry = kit.CollectorRegistry()
        how = {"registry": self.registry, "namespace": "drlib_sandbox"}
        self.calls = kit.Counter("calls", "Accepted calls that have ended.", ["status"], **how)
        self.refused = kit.Counter("refused_calls", "Calls of batches answered 429.", **how)
        self.seconds = kit.Histogram("seconds", "Of a call: its wait, its run.", ["part"],
                                     buckets=STEPS, **how)  # fmt: skip
        now = kit.Gauge("open_calls", "Calls that wait or run now.", ["state"], **how)
        for state in ("queued", "running"):
            now.labels(state).set_function(lambda state=state: self.count()[state])
        self.app = fastapi.FastAPI(openapi_url=None, dependencies=[fastapi.Depends(self.check)])
        self.app.post("/run")(self.run)
        self.app.get("/health")(self.health)
        self.app.get("/metrics")(self.metrics)

    def count(self) -> dict[str, int]:
        running = [future.running() for future in list(self.open)]
        return {"queued": running.count(False), "running": running.count(True)}

    def accept(self, calls: list[dict]) -> list[Future]:
        """Queue all the calls, or none where that would be too much (429)."""
        sizes = [size_of(call) for call in calls]
        held = sum(list(self.open.values())) + sum(sizes)
        full = self.count()["queued"] + len(calls) > self.max_queue
        if full or held > MAX_HELD_CHARS or self.stopping:
            self.refused.inc(len(calls))
            raise Refusal(429, "too many calls wait", {"Retry-After": "1"})
        futures = [self.sandbox.submit(**call) for call in calls]
        began = time.monotonic()
        for future, size in zip(futures, sizes, strict=True):
            self.open[future] = size
            future.add_done_callback(lambda f: self._ended(f, time.monotonic() - began))
        return futures

    def _ended(self, future: Future, seconds: float) -> None:
        del self.open[future]
        if future.cancelled() or future.exception():
            self.calls.labels("cancelled").inc()
            return
        self.calls.labels(future.result().status).inc()
        run = future.result().duration_s
        self.seconds.labels("run").observe(run)
        self.seconds.labels("wait").observe(max(0.0, seconds - run))

    def stop(self) -> None:
        """Accept no more and cancel what waits."""
        self.stopping = True
        for future in list(self.open):
            future.cancel()

    async def check(self, request: fastapi.Request) -> None:
        """Before every answer: the token."""
        shown = request.headers.get("authorization", "").encode("latin-1")
        if self.token and not hmac.compare_digest(shown, f"Bearer {self.token}".encode()):
            raise Refusal(401, "Authorization: Bearer with the service's token is needed")

    async def run(self, request: fastapi.Request):
        try:
            ids, calls = parse(await self._read(request))
        except ValueError as error:
            raise Refusal(422, str(error).encode("utf-8", "replace").decode()) from error
        futures = self.accept(calls)
        answers = [asyncio.ensure_future(_answer(i, f)) for i, f in zip(ids, futures, strict=True)]
        gone = asyncio.ensure_future(request.receive())  # the client has left, or has its reply
        gone.add_done_callback(lambda _: [future.cancel() for future in futures])

        async def lines():
            try:
                for ended in asyncio.as_completed(answers):
                    yield json.dumps(await ended) + "\n"
            finally:
                gone.cancel()

        reply = require("fastapi.responses").StreamingResponse
        return reply(lines(), media_type="application/x-ndjson")

    async def _read(self, request: fastapi.Request) -> bytes:
        # Browsers send other types to any page's address without asking; this one they ask for.
        if request.headers.get("content-type", "").split(";")[0] != "application/json":
            raise Refusal(415, "Content-Type: application/json is needed")
        body = bytearray()
        try:
            async with self.readers, asyncio.timeout(BODY_SECONDS):
                async for part in request.stream():
                    body += part
                    if len(body) > MAX_BODY_BYTES:
                        raise Refusal(413, f"body: {MAX_BODY_BYTES} bytes is the limit")
        except (TimeoutError, Gone) as error:
            raise Refusal(408, "body: it did not come to its end") from error
        return bytes(body)

    async def health(self):
        return {"status": "ok", "isolation": self.sandbox.isolation, **self.count(),
                "workers": self.sandbox.workers, "templates": self.sandbox.template_pids()}

    async def metrics(self):
        return fastapi.Response(kit.generate_latest(self.registry), media_type="text/plain")


async def _answer(ident: str, future: Future) -> dict:
    try:
        result = await asyncio.wrap_future(future)
    except (asyncio.CancelledError, RuntimeError):
        result = STOPPED
    return {"id": ident, **dataclasses.asdict(result)}


def parse(body: bytes) -> tuple[list[str], list[dict]]:
    """(ids, calls) of a request; a ValueError names the field."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"body: not JSON ({error})") from error
    calls = message.get("calls") if isinstance(message, dict) else None
    if not isinstance(calls, list) or not 1 <= len(calls) <= MAX_CALLS:
        raise ValueError(f"calls: a list of 1 to {MAX_CALLS} calls is needed")
    ids, checked = [], []
    for place, call in enumerate(calls):
        try:
            call = {"code": None, "id": str(place), **call}
            ids.append(call.pop("id"))
            if not isinstance(ids[-1], str) or not ids[-1].isascii() or len(ids[-1]) > 200:
                raise ValueError("id must be at most 200 characters of ASCII text")
            checked.append(check_call(**call))
        except (TypeError, ValueError) as error:
            raise ValueError(f"calls[{place}].{error}") from error
    return ids, checked


class Protocol(require("uvicorn.protocols.http.auto").AutoHTTPProtocol):
    """uvicorn's, which itself would wait for ever for a request that does not come."""

    def connection_made(self, transport) -> None:
        super().connection_made(transport)
        self.since = self.loop.time()
        self.loop.call_later(IDLE_SECONDS, lambda: self.cycle or transport.close())
        idle = [c for c in self.connections if not c.transport.is_closing()
                and (c.cycle is None or c.cycle.response_complete)]  # fmt: skip
        if len(idle) > MAX_IDLE:
            min(idle, key=lambda c: c.since).transport.close()


class Server(uvicorn.Server):
    """Tells the service when it is to stop."""

    async def shutdown(self, sockets=None) -> None:
        self.service.stop()
        await super().shutdown(sockets)


def serve(host: str, port: int, max_queue: int, **settings) -> int:
    """Serve until SIGTERM or SIGINT; the first line on stdout is JSON with the port."""
    token = os.environ.get(TOKEN, "")
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    if not (token.isascii() and (token or ipaddress.ip_address(address[0]).is_loopback)):
        raise ValueError(f"Set {TOKEN} to a long secret of ASCII characters to serve on {host}.")
    if max_queue < MAX_CALLS:
        raise ValueError(f"max_queue is {max_queue}; a batch may have {MAX_CALLS} calls.")
    with (socket.create_server(address[:2], family=family) as listener,
          Sandbox(**settings) as sandbox):  # fmt: skip
        service = Service(sandbox, max_queue, token)
        server = Server(uvicorn.Config(
            service.app, log_level="warning", access_log=False, http=Protocol, backlog=128,
            limit_concurrency=1024, timeout_graceful_shutdown=int(settings["timeout_s"]) + 10))
        server.service = service
        for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn raises its own again in the end
            signal.signal(number, lambda *_: setattr(server, "should_exit", True))
        print(json.dumps({"port": listener.getsockname()[1], "pid": os.getpid()}), flush=True)
        asyncio.run(server.serve(sockets=[listener]))
    return 0
