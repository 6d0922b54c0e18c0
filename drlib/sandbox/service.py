"""A `Sandbox` behind HTTP: `drlib sandbox serve`.

POST /run takes {"calls": [{"code", "stdin", "history", "echo", "id"}, ...]} and answers a line of
JSON for each call as it ends. GET /health, and GET /metrics for Prometheus. Loopback only, unless
DRLIB_SANDBOX_TOKEN is set: then every request needs `Authorization: Bearer <token>`. Without one,
what a page in a browser of this machine may send is refused: a Host that only a rebound name would
have, an Origin from elsewhere.

What is accepted is bounded in calls and in characters; a batch beyond is told to come back (429).
When a client goes away, or the service is told to stop, calls that wait are not run and those that
run come to their end. Connections without a whole request end after 5 s, or when their body comes
too slowly; the oldest ends at once where there are too many, or too many bytes in unfinished
bodies: strangers cannot take all the places. Requests are checked by hand: pydantic refuses the
lone surrogates that Python code may hold. Left out: snapshots; TLS and limits for each address (a
proxy's work: strangers who connect thousands of times a second still cost CPU).
"""  # no `from __future__ import annotations`: FastAPI must see the type of `request`

import asyncio
import dataclasses
import hmac
import ipaddress
import json
import os
import re
import signal
import socket
import time
from concurrent.futures import Future

from drlib.sandbox.client import MAX_BODY_BYTES, TOKEN, import_extra, size_of
from drlib.sandbox.pool import Sandbox, check_call
from drlib.sandbox.result import SandboxResult

fastapi = import_extra("fastapi")
prometheus = import_extra("prometheus_client")
uvicorn = import_extra("uvicorn")
ClientDisconnect = import_extra("starlette.requests").ClientDisconnect
StreamingResponse = import_extra("fastapi.responses").StreamingResponse
AutoHTTPProtocol = import_extra("uvicorn.protocols.http.auto").AutoHTTPProtocol
Refusal = fastapi.HTTPException
MAX_BATCH = 64  # calls of a request
MAX_HELD_CHARS = 256 << 20  # of all calls that wait or run
MAX_UNREAD = 256 << 20  # bytes of all bodies that have not come to their end
BODY_SECONDS = 60.0  # from a body's first byte to its last
PACE_SECONDS = 5.0  # in which it must end or bring...
PACE_BYTES = 64 << 10  # ...so many bytes, and then again
MAX_IDLE = 512  # connections without a whole request
IDLE_SECONDS = 5.0  # that one may stay so
STEPS = [0.001 * 2**k for k in range(16)]  # of the histograms: 1 ms to 33 s
STOPPED = SandboxResult("service_unavailable", "", "the service was stopped", None, 0.0, "")


class Service:
    """One sandbox: admission, accounts and `app`, the FastAPI application."""

    def __init__(self, sandbox: Sandbox, max_queue: int, token: str) -> None:
        self.sandbox = sandbox
        self.max_queue = max_queue
        self.token = token
        self.open: dict[Future, int] = {}  # characters of each call that waits or runs
        self.stopping = False
        self.bodies: dict[int, bytearray] = {}  # that are being read, the oldest first
        self._make_accounts()
        self.app = fastapi.FastAPI(openapi_url=None, dependencies=[fastapi.Depends(self.check)])
        self.app.post("/run")(self.run)
        self.app.get("/health")(self.health)
        self.app.get("/metrics")(self.metrics)

    def _make_accounts(self) -> None:
        self.registry = prometheus.CollectorRegistry()
        ours = {"registry": self.registry, "namespace": "drlib_sandbox"}
        self.calls = prometheus.Counter(
            "calls", "Accepted calls that have ended.", ["status"], **ours
        )
        self.refused = prometheus.Counter("refused_calls", "Calls of batches answered 429.", **ours)
        self.seconds = prometheus.Histogram(
            "seconds", "Of a call: its wait, its run.", ["part"], buckets=STEPS, **ours
        )
        now = prometheus.Gauge("open_calls", "Calls that wait or run now.", ["state"], **ours)
        now.labels("queued").set_function(lambda: self.count()["queued"])
        now.labels("running").set_function(lambda: self.count()["running"])

    def count(self) -> dict[str, int]:
        """Calls that wait and calls that run now."""
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
        """Before every answer: the token; without one, who may ask at all."""
        if not self.token:
            check_local(request.headers, TOKEN)
        shown = request.headers.get("authorization", "").encode("latin-1")
        if self.token and not hmac.compare_digest(shown, f"Bearer {self.token}".encode()):
            raise Refusal(401, "Authorization: Bearer with the service's token is needed")

    async def run(self, request: fastapi.Request):
        """POST /run: a line of JSON for each call as it ends."""
        try:
            ids, calls = parse_batch(await self._read(request))
        except ValueError as error:
            raise Refusal(422, str(error).encode("utf-8", "replace").decode()) from error
        futures = self.accept(calls)
        answers = [
            asyncio.ensure_future(_answer(ident, future))
            for ident, future in zip(ids, futures, strict=True)
        ]
        gone = asyncio.ensure_future(request.receive())  # the client has left, or has its reply
        gone.add_done_callback(lambda _: [future.cancel() for future in futures])

        async def lines():
            try:
                for ended in asyncio.as_completed(answers):
                    yield json.dumps(await ended) + "\n"
            finally:
                gone.cancel()

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    async def _read(self, request: fastapi.Request) -> bytearray:
        # Browsers send other types to any page's address without asking; this one they ask for.
        if request.headers.get("content-type", "").split(";")[0] != "application/json":
            raise Refusal(415, "Content-Type: application/json is needed")
        body = bytearray()
        self.bodies[id(body)] = body
        try:
            await self._fill(body, request)
            return body
        except (TimeoutError, ClientDisconnect) as error:
            # Nobody reads on: without a close, what still drips in would keep the connection.
            why = "body: it did not come to its end in time"
            raise Refusal(408, why, {"Connection": "close"}) from error
        finally:
            self.bodies.pop(id(body), None)

    async def _fill(self, body: bytearray, request: fastapi.Request) -> None:
        """Read to the end; TimeoutError where that is slow, `ClientDisconnect`, or a refusal."""
        now = asyncio.get_running_loop().time
        end = now() + BODY_SECONDS
        fresh = 0  # bytes since the pace was looked at last
        async with asyncio.timeout(PACE_SECONDS) as clock:
            async for part in request.stream():
                if id(body) not in self.bodies:
                    why = "body: too many come at once"
                    raise Refusal(429, why, {"Retry-After": "1", "Connection": "close"})
                body += part
                fresh += len(part)
                if len(body) > MAX_BODY_BYTES:
                    raise Refusal(413, f"body: {MAX_BODY_BYTES} bytes is the limit")
                if fresh >= PACE_BYTES:
                    clock.reschedule(min(end, now() + PACE_SECONDS))
                    fresh = 0
                self._make_room()

    def _make_room(self) -> None:
        """Drop the oldest unfinished bodies where all of them together are too many bytes."""
        held = sum(map(len, self.bodies.values()))
        for key, body in list(self.bodies.items()):
            if held <= MAX_UNREAD:
                return
            if len(body) > PACE_BYTES:  # to drop a small one would free next to nothing
                held -= len(body)
                del self.bodies[key]
                body.clear()

    async def health(self):
        """GET /health."""
        return {
            "status": "ok",
            "isolation": self.sandbox.isolation,
            **self.count(),
            "workers": self.sandbox.workers,
            "templates": self.sandbox.template_pids(),
        }

    async def metrics(self):
        """GET /metrics, as Prometheus reads it."""
        text = prometheus.generate_latest(self.registry)
        return fastapi.Response(text, media_type="text/plain")


async def _answer(ident: str, future: Future) -> dict:
    try:
        result = await asyncio.wrap_future(future)
    except (asyncio.CancelledError, RuntimeError):
        result = STOPPED
    return {"id": ident, **dataclasses.asdict(result)}


def parse_batch(body: bytes | bytearray) -> tuple[list[str], list[dict]]:
    """(ids, calls) of a request; a ValueError names the field."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"body: not JSON ({error})") from error
    calls = message.get("calls") if isinstance(message, dict) else None
    if not isinstance(calls, list) or not 1 <= len(calls) <= MAX_BATCH:
        raise ValueError(f"calls: a list of 1 to {MAX_BATCH} calls is needed")
    ids, checked = [], []
    for place, call in enumerate(calls):
        try:
            call = {"code": None, "id": str(place), **call}
            ident = call.pop("id")
            if not isinstance(ident, str) or not ident.isascii() or len(ident) > 200:
                raise ValueError("id must be at most 200 characters of ASCII text")
            ids.append(ident)
            checked.append(check_call(**call))
        except (TypeError, ValueError) as error:
            raise ValueError(f"calls[{place}].{error}") from error
    return ids, checked


class Protocol(AutoHTTPProtocol):
    """uvicorn's, which itself would wait for ever for a request that does not come."""

    def connection_made(self, transport) -> None:
        """Give the new connection its time; where there are too many idle ones, end the oldest."""
        super().connection_made(transport)
        self.since = self.loop.time()
        self.loop.call_later(IDLE_SECONDS, lambda: self.cycle or transport.close())
        idle = [connection for connection in self.connections if connection.is_idle()]
        if len(idle) > MAX_IDLE:
            oldest = min(idle, key=lambda connection: connection.since)
            oldest.transport.close()

    def on_response_complete(self) -> None:
        """Who is answered before all is said may end it in a while, but not go on for ever."""
        super().on_response_complete()
        answered = self.cycle
        if answered.more_body:
            self.loop.call_later(IDLE_SECONDS, lambda: self._leave(answered))

    def _leave(self, answered) -> None:
        if self.cycle is answered:
            self.transport.close()

    def is_idle(self) -> bool:
        """Whether it takes a place without a whole request that is still to be answered."""
        if self.transport.is_closing():
            return False
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body


class Server(uvicorn.Server):
    """uvicorn's, for one service, which it tells when it is to stop."""

    def __init__(self, service: Service, grace_s: int) -> None:
        settings = uvicorn.Config(
            service.app,
            log_level="warning",
            access_log=False,
            http=Protocol,
            backlog=128,
            limit_concurrency=1024,
            timeout_graceful_shutdown=grace_s,
        )
        super().__init__(settings)
        self.service = service

    async def shutdown(self, sockets=None) -> None:
        """As uvicorn calls it."""
        self.service.stop()
        await super().shutdown(sockets)


def check_local(headers, token: str) -> None:
    """Refuse (403) what a page in a browser may send; anyone may point a name of his at 127.0.0.1.
    token: the environment variable whose value would let others in."""
    remedy = f"set {token} to be asked from elsewhere"
    host = ",".join(headers.getlist("host"))  # none, or several: no form of a loopback address
    if not _is_loopback(host):
        raise Refusal(403, f"Host {host!r:.100} is no loopback address or localhost: {remedy}")
    for origin in headers.getlist("origin"):
        if not _is_loopback(origin.partition("://")[2]):
            raise Refusal(403, f"Origin {origin!r:.100} is not of this machine: {remedy}")


def _is_loopback(netloc: str) -> bool:
    """Whether `host[:port]` is localhost or a loopback address in its usual notation."""
    form = r"(?:\[([0-9a-f:.]+)\]|([0-9.]+|localhost))(?::[0-9]{0,5})?"
    found = re.fullmatch(form, netloc.lower())
    try:
        name = found[1] or found[2]
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except (TypeError, ValueError):  # no such form, no such number
        return False


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}; give a number from {low} to {high}.")


def serve(host: str, port: int, max_queue: int, **settings) -> int:
    """Serve until SIGTERM or SIGINT; the first line on stdout is JSON with the port.

    ValueError: a number out of range, or no token where others could ask.
    """
    # The system's look-up takes a port modulo 65536; the other numbers are checked by `Sandbox`.
    _check_range("port", port, 0, 65535)
    _check_range("max_queue", max_queue, MAX_BATCH, 10**9)
    token = os.environ.get(TOKEN, "")
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    if not (token.isascii() and (token or ipaddress.ip_address(address[0]).is_loopback)):
        raise ValueError(f"Set {TOKEN} to a long secret of ASCII characters to serve on {host}.")
    with (
        socket.create_server(address[:2], family=family) as listener,
        Sandbox(**settings) as sandbox,
    ):
        service = Service(sandbox, max_queue, token)
        server = Server(service, int(settings["timeout_s"]) + 10)
        for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn raises its own again in the end
            signal.signal(number, lambda *_: setattr(server, "should_exit", True))
        print(json.dumps({"port": listener.getsockname()[1], "pid": os.getpid()}), flush=True)
        asyncio.run(server.serve(sockets=[listener]))
    return 0
