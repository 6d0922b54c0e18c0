"""HTTP service for a `Sandbox`: `drlib sandbox serve`.

POST /run takes {"calls": [{"code", "stdin", "history", "echo", "id"}, ...]} and streams one JSON
object per line as calls end. GET /health, and GET /metrics for Prometheus. The service listens on
loopback, unless DRLIB_SANDBOX_TOKEN is set: then every request needs `Authorization: Bearer
<token>`. Without a token, requests from pages in a local browser are rejected by their Host (DNS
rebinding) and Origin.

Accepted calls are limited in number and characters; a batch beyond the limit gets 429. When a
client disconnects or the service stops, waiting calls are cancelled and running ones finish.
Connections without a complete request close after 5 s or if their body arrives too slowly. The
oldest closes at once if there are too many connections or unfinished bytes. Requests are validated
by hand, because pydantic rejects the lone surrogates that Python code may contain. Left out: TLS
and limits per address, which belong to a proxy.
"""  # no `from __future__ import annotations`: FastAPI needs the type of `request`

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
from typing import TYPE_CHECKING, Any

from drlib.sandbox.pool import Sandbox, check_call
from drlib.sandbox.remote import MAX_BODY_BYTES, TOKEN, count_chars, import_extra
from drlib.sandbox.result import SandboxResult

if TYPE_CHECKING:
    import fastapi
    import prometheus_client as prometheus
    import uvicorn
    from fastapi.responses import StreamingResponse
    from starlette.requests import ClientDisconnect
    from uvicorn.protocols.http.h11_impl import H11Protocol as AutoHTTPProtocol
else:  # a missing extra raises an error with the remedy
    fastapi = import_extra("fastapi")
    prometheus = import_extra("prometheus_client")
    uvicorn = import_extra("uvicorn")
    ClientDisconnect = import_extra("starlette.requests").ClientDisconnect
    StreamingResponse = import_extra("fastapi.responses").StreamingResponse
    AutoHTTPProtocol = import_extra("uvicorn.protocols.http.auto").AutoHTTPProtocol
Refusal = fastapi.HTTPException
MAX_BATCH = 64  # calls per request
MAX_OPEN_CHARS = 256 << 20  # of all waiting and running calls
MAX_UNREAD = 256 << 20  # bytes of all incomplete bodies
BODY_SECONDS = 60.0  # first to last byte of a body
PACE_SECONDS = 5.0  # a body must end or deliver PACE_BYTES in this interval
PACE_BYTES = 64 << 10
MAX_IDLE = 512  # connections without a complete request
IDLE_SECONDS = 5.0  # life of an idle connection
STEPS = [0.001 * 2**k for k in range(16)]  # histogram buckets: 1 ms to 33 s
STOPPED = SandboxResult("service_unavailable", "", "the service was stopped", None, 0.0, "")


class Service:
    """Admission, metrics and the FastAPI application `app` of one sandbox."""

    def __init__(self, sandbox: Sandbox, max_queue: int, token: str) -> None:
        self.sandbox = sandbox
        self.max_queue = max_queue
        self.token = token
        self.open: dict[Future, int] = {}  # characters of each waiting or running call
        self.stopping = False
        self.bodies: dict[int, bytearray] = {}  # incomplete bodies, the oldest first
        self._create_metrics()
        self.app = fastapi.FastAPI(openapi_url=None, dependencies=[fastapi.Depends(self.check)])
        self.app.post("/run")(self.run)
        self.app.get("/health")(self.health)
        self.app.get("/metrics")(self.metrics)

    def _create_metrics(self) -> None:
        self.registry = prometheus.CollectorRegistry()
        options: dict[str, Any] = {"registry": self.registry, "namespace": "drlib_sandbox"}
        self.calls = prometheus.Counter("calls", "Finished calls.", ["status"], **options)
        self.refused = prometheus.Counter("refused_calls", "Calls rejected with 429.", **options)
        self.seconds = prometheus.Histogram(
            "seconds", "Waiting and running time of a call.", ["part"], buckets=STEPS, **options
        )
        now = prometheus.Gauge("open_calls", "Waiting and running calls.", ["state"], **options)
        now.labels("queued").set_function(lambda: self.count()["queued"])
        now.labels("running").set_function(lambda: self.count()["running"])

    def count(self) -> dict[str, int]:
        """Count waiting and running calls."""
        running = [future.running() for future in list(self.open)]
        return {"queued": running.count(False), "running": running.count(True)}

    def accept(self, calls: list[dict]) -> list[Future]:
        """Queue all calls, or reject all with 429 above the limits."""
        sizes = [count_chars(call) for call in calls]
        chars = sum(list(self.open.values())) + sum(sizes)
        is_full = self.count()["queued"] + len(calls) > self.max_queue
        if is_full or chars > MAX_OPEN_CHARS or self.stopping:
            self.refused.inc(len(calls))
            raise Refusal(429, "too many waiting calls", {"Retry-After": "1"})
        futures = [self.sandbox.submit(**call) for call in calls]
        began = time.monotonic()
        for future, size in zip(futures, sizes, strict=True):
            self.open[future] = size
            future.add_done_callback(lambda f: self._record(f, time.monotonic() - began))
        return futures

    def _record(self, future: Future, seconds: float) -> None:
        """Update the metrics for a finished call."""
        del self.open[future]
        if future.cancelled() or future.exception():
            self.calls.labels("cancelled").inc()
            return
        self.calls.labels(future.result().status).inc()
        run = future.result().duration_s
        self.seconds.labels("run").observe(run)
        self.seconds.labels("wait").observe(max(0.0, seconds - run))

    def stop(self) -> None:
        """Accept no more calls and cancel waiting ones."""
        self.stopping = True
        for future in list(self.open):
            future.cancel()

    async def check(self, request: fastapi.Request) -> None:
        """Check the token of a request, or without a token, its origin."""
        if not self.token:
            check_local(request.headers, TOKEN)
        header = request.headers.get("authorization", "").encode("latin-1")
        if self.token and not hmac.compare_digest(header, f"Bearer {self.token}".encode()):
            raise Refusal(401, "Authorization: Bearer with the service's token is required")

    async def run(self, request: fastapi.Request):
        """POST /run: stream one line of JSON per call as it ends."""
        try:
            ids, calls = parse_batch(await self._read(request))
        except ValueError as error:
            raise Refusal(422, str(error).encode("utf-8", "replace").decode()) from error
        futures = self.accept(calls)
        answers = [
            asyncio.ensure_future(_answer(ident, future))
            for ident, future in zip(ids, futures, strict=True)
        ]
        disconnect = asyncio.ensure_future(request.receive())  # or the reply is complete
        disconnect.add_done_callback(lambda _: [future.cancel() for future in futures])

        async def lines():
            try:
                for ended in asyncio.as_completed(answers):
                    yield json.dumps(await ended) + "\n"
            finally:
                disconnect.cancel()

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    async def _read(self, request: fastapi.Request) -> bytearray:
        # Browsers send other types cross-origin without a preflight request.
        if request.headers.get("content-type", "").split(";")[0] != "application/json":
            raise Refusal(415, "Content-Type: application/json is required")
        body = bytearray()
        self.bodies[id(body)] = body
        try:
            await self._fill(body, request)
            return body
        except (TimeoutError, ClientDisconnect) as error:
            # The body is not read further, so the connection must close.
            reason = "body: incomplete within the time limit"
            raise Refusal(408, reason, {"Connection": "close"}) from error
        finally:
            self.bodies.pop(id(body), None)

    async def _fill(self, body: bytearray, request: fastapi.Request) -> None:
        """Read a body; raises TimeoutError if slow, `ClientDisconnect`, or a refusal."""
        now = asyncio.get_running_loop().time
        end = now() + BODY_SECONDS
        recent = 0  # bytes since the last pace check
        async with asyncio.timeout(PACE_SECONDS) as clock:
            async for part in request.stream():
                if id(body) not in self.bodies:
                    reason = "body: too many concurrent bodies"
                    raise Refusal(429, reason, {"Retry-After": "1", "Connection": "close"})
                body += part
                recent += len(part)
                if len(body) > MAX_BODY_BYTES:
                    raise Refusal(413, f"body: {MAX_BODY_BYTES} bytes is the limit")
                if recent >= PACE_BYTES:
                    clock.reschedule(min(end, now() + PACE_SECONDS))
                    recent = 0
                self._drop_oldest_bodies()

    def _drop_oldest_bodies(self) -> None:
        """Drop the oldest incomplete bodies while their total exceeds MAX_UNREAD."""
        total = sum(map(len, self.bodies.values()))
        for key, body in list(self.bodies.items()):
            if total <= MAX_UNREAD:
                return
            if len(body) > PACE_BYTES:  # dropping a small one frees almost nothing
                total -= len(body)
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
        """GET /metrics in the format of Prometheus."""
        text = prometheus.generate_latest(self.registry)
        return fastapi.Response(text, media_type="text/plain")


async def _answer(ident: str, future: Future) -> dict:
    """Wait for a call and build its reply."""
    try:
        result = await asyncio.wrap_future(future)
    except (asyncio.CancelledError, RuntimeError):
        result = STOPPED
    return {"id": ident, **dataclasses.asdict(result)}


def parse_batch(body: bytes | bytearray) -> tuple[list[str], list[dict]]:
    """Parse a request to (ids, calls); a ValueError names the field."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"body: not JSON ({error})") from error
    calls = message.get("calls") if isinstance(message, dict) else None
    if not isinstance(calls, list) or not 1 <= len(calls) <= MAX_BATCH:
        raise ValueError(f"calls: must be a list of 1 to {MAX_BATCH} calls")
    ids, checked = [], []
    for index, call in enumerate(calls):
        try:
            call = {"code": None, "id": str(index), **call}
            ident = call.pop("id")
            if not isinstance(ident, str) or not ident.isascii() or len(ident) > 200:
                raise ValueError("id must be at most 200 characters of ASCII text")
            ids.append(ident)
            checked.append(check_call(**call))
        except (TypeError, ValueError) as error:
            raise ValueError(f"calls[{index}].{error}") from error
    return ids, checked


class Protocol(AutoHTTPProtocol):
    """HTTP protocol with a limit on idle connections, which uvicorn lacks."""

    def connection_made(self, transport) -> None:
        """Start the idle timer; close the oldest idle connection above MAX_IDLE."""
        super().connection_made(transport)
        self.since = self.loop.time()
        self.loop.call_later(IDLE_SECONDS, lambda: self.cycle or transport.close())
        idle = [connection for connection in self.connections if connection.is_idle()]
        if len(idle) > MAX_IDLE:
            oldest = min(idle, key=lambda connection: connection.since)
            oldest.transport.close()

    def on_response_complete(self) -> None:
        """Limit the time to finish a body whose response is already complete."""
        super().on_response_complete()
        answered = self.cycle
        if answered.more_body:
            self.loop.call_later(IDLE_SECONDS, lambda: self._close_if_unfinished(answered))

    def _close_if_unfinished(self, answered) -> None:
        if self.cycle is answered:
            self.transport.close()

    def is_idle(self) -> bool:
        """Return True if the connection has no complete request to answer."""
        if self.transport.is_closing():
            return False
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body


class Server(uvicorn.Server):
    """uvicorn server that stops its service on shutdown."""

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
        """Stop the service, then shut down."""
        self.service.stop()
        await super().shutdown(sockets)


def check_local(headers, token: str) -> None:
    """Reject (403) requests of a web page: any domain name may resolve to 127.0.0.1.

    token: name of the environment variable that enables remote access.
    """
    remedy = f"set {token} for remote access"
    host = ",".join(headers.getlist("host"))  # none or several headers never match
    if not _is_loopback(host):
        raise Refusal(403, f"Host {host!r:.100} is not a loopback address or localhost: {remedy}")
    for origin in headers.getlist("origin"):
        if not _is_loopback(origin.partition("://")[2]):
            raise Refusal(403, f"Origin {origin!r:.100} is not this machine: {remedy}")


def _is_loopback(netloc: str) -> bool:
    """Return True if `host[:port]` is localhost or a loopback address in its usual notation."""
    form = r"(?:\[([0-9a-f:.]+)\]|([0-9.]+|localhost))(?::[0-9]{0,5})?"
    found = re.fullmatch(form, netloc.lower())
    try:
        name = found[1] or found[2]
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except (TypeError, ValueError):  # no match, or an invalid address
        return False


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}; give a number from {low} to {high}.")


def serve(host: str, port: int, max_queue: int, **settings) -> int:
    """Serve until SIGTERM or SIGINT; the first line on stdout is JSON with the port.

    Raises:
        ValueError: a number is out of range, or `host` needs a token.
    """
    # getaddrinfo takes a port modulo 65536. `Sandbox` checks the other numbers.
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
        # asyncio sets it only for sockets with an explicit protocol; without it, replies wait 40 ms
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        service = Service(sandbox, max_queue, token)
        server = Server(service, int(settings["timeout_s"]) + 10)
        for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn re-raises its own signals
            signal.signal(number, lambda *_: setattr(server, "should_exit", True))
        print(json.dumps({"port": listener.getsockname()[1], "pid": os.getpid()}), flush=True)
        asyncio.run(server.serve(sockets=[listener]))
    return 0
