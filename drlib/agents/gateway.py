"""HTTP server through which agents of any framework ask the policy for turns.

It speaks OpenAI's chat completions on loopback. `/rollout/NAME/v1/chat/completions` belongs to the
rollout NAME; `/v1/chat/completions` takes the name from the API key. A `RolloutQueue` per rollout
connects the agent's requests with the code that samples and records them
(`drlib.agents.external`).

Not supported: streaming, several choices, constrained turns.
"""  # no `from __future__ import annotations`: FastAPI needs the type of `request`

import asyncio
import socket
import threading
import time
from typing import Any

from drlib.agents.request_queue import RolloutQueue
from drlib.chat.chat_requests import MODEL, RequestError
from drlib.sandbox.remote import import_extra
from drlib.sandbox.service import Server, check_local, fastapi

JSONResponse = import_extra("fastapi.responses").JSONResponse
HTTPException = import_extra("starlette.exceptions").HTTPException
MAX_BODY_BYTES = 16 << 20
RETRY_HEADER = "x-stainless-retry-count"  # of OpenAI's clients: number of earlier attempts
CLIENT_CLOSED = 499  # status of a request without a client, as in nginx
START_S = 30.0
GRACE_S = 1


class Gateway:
    """The server and the queues of its rollouts; a context manager.

    Args:
        port: of loopback; 0: any free one.

    Raises:
        ImportError: the extra `cluster` is missing.
        OSError: the port is taken.
    """

    def __init__(self, port: int = 0):
        self._queues: dict[str, RolloutQueue] = {}
        self._listener = socket.create_server(("127.0.0.1", port), backlog=1024)
        # asyncio sets it only for sockets with an explicit protocol; without it, replies wait 40 ms
        self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port = self._listener.getsockname()[1]
        self.app = fastapi.FastAPI(openapi_url=None, dependencies=[fastapi.Depends(_check_origin)])
        for prefix in ("", "/rollout/{name}"):
            self.app.post(f"{prefix}/v1/chat/completions")(self._complete)
            self.app.get(f"{prefix}/v1/models")(_list_models)
        for kind in (HTTPException, RequestError):
            self.app.exception_handler(kind)(_show_error)
        service: Any = self  # has app and stop()
        self._server = Server(service, GRACE_S)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._listener]}, daemon=True
        )

    def __enter__(self) -> "Gateway":
        self._thread.start()
        end = time.monotonic() + START_S
        while not self._server.started:
            if time.monotonic() > end or not self._thread.is_alive():
                raise OSError(f"the gateway did not start on port {self.port}")
            time.sleep(0.002)
        return self

    def __exit__(self, *error) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._listener.close()

    def open(self, name: str) -> RolloutQueue:
        """Return the queue of a new rollout, which the server accepts from now on."""
        if name in self._queues:
            raise ValueError(f"rollout {name!r} is open already: give each rollout its own name")
        self._queues[name] = RolloutQueue(name)
        return self._queues[name]

    def url(self, name: str) -> str:
        """Return the base URL of a rollout."""
        return f"http://127.0.0.1:{self.port}/rollout/{name}/v1"

    def stop(self) -> None:
        """Refuse all requests; called by the server when it shuts down."""
        for queue in self._queues.values():
            queue.close(RequestError("the gateway was stopped", 503, "gateway_stopped"))

    async def _complete(self, request: fastapi.Request, name: str = ""):
        """POST /v1/chat/completions."""
        name = name or request.headers.get("authorization", "").removeprefix("Bearer ")
        queue = self._queues.get(name)
        if queue is None:
            raise RequestError(
                f"no rollout {name!r}: use the base URL or API key that the agent was given; "
                "after a restart, earlier rollouts are lost",
                404,
                "rollout_not_found",
            )
        body = await _read(request)
        is_retry = request.headers.get(RETRY_HEADER, "0") != "0"
        # in a thread, because the request may be tokenised and placed at once
        pending = await asyncio.to_thread(queue.submit, body, is_retry)
        reply = asyncio.wrap_future(pending.reply)
        left = asyncio.ensure_future(request.receive())  # returns when the client disconnects
        await asyncio.wait((reply, left), return_when=asyncio.FIRST_COMPLETED)
        left.cancel()
        if not reply.done():
            pending.is_lost = True
            return fastapi.Response(status_code=CLIENT_CLOSED)
        return JSONResponse(reply.result())


async def _read(request: fastapi.Request) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise RequestError(f"the body exceeds {MAX_BODY_BYTES} bytes", 413)
    return bytes(body)


async def _check_origin(request: fastapi.Request) -> None:
    """Refuse requests of web pages in a local browser."""
    try:
        check_local(request.headers, "")
    except HTTPException as error:
        message = "the gateway is for programs on this machine: Host or Origin names another one"
        raise RequestError(message, error.status_code) from error


async def _list_models(name: str = "") -> dict:
    """GET /v1/models."""
    model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "drlib"}
    return {"object": "list", "data": [model]}


async def _show_error(request: fastapi.Request, error: Any):
    """Return an error, such as an unknown path, as an OpenAI error object."""
    if not isinstance(error, RequestError):
        error = RequestError(str(error.detail), error.status_code)
    return JSONResponse(error.body(), error.status)
