"""HTTP service for rewards: `drlib rewards serve` (V-Triune's verifier server, arXiv 2505.18129).

POST /judge takes {"reward", "arguments", "samples": [{"id", "trajectory", "task"}, ...]} and
streams one JSON line per sample as it is judged: {"id", "value", "parts"}, or {"id", "error",
"message"} with the error "raised", "timeout" or "stopped". A fault is never a score. GET /health
has the counts.

The service listens on loopback, unless DRLIB_REWARDS_TOKEN is set: then every request needs
`Authorization: Bearer <token>`. A sample runs in a thread of its own. Python cannot end a thread,
so a verifier that exceeds its time limit occupies one until it returns; if too many do, the service
rejects samples with 503.
"""  # no `from __future__ import annotations`: FastAPI needs the type of `request`

import asyncio
import hmac
import ipaddress
import json
import os
import signal
import socket
import threading
from collections import Counter
from contextlib import suppress
from functools import lru_cache
from typing import Any

from drlib.registry import load_plugins
from drlib.rewards.functions import Reward, RewardResult, make_reward
from drlib.rewards.remote_reward import TOKEN, decode_task, decode_trajectory
from drlib.sandbox.remote import import_extra
from drlib.sandbox.service import Refusal, Server, check_local, fastapi
from drlib.validation import require

StreamingResponse = import_extra("fastapi.responses").StreamingResponse
MAX_BATCH = 256  # samples per request
MAX_BODY_BYTES = 256 << 20
BODY_SECONDS = 60.0
MAX_OVERDUE = 64  # threads of verifiers that exceeded their time


class RewardService:
    """Admission, threads and the FastAPI application `app`.

    Args:
        threads: samples judged at the same time.
        timeout_s: time limit of a sample.
        max_queue: waiting samples above which requests get 429.
        token: secret of the clients; "": loopback only.
    """

    def __init__(self, threads: int, timeout_s: float, max_queue: int, token: str):
        self.timeout_s, self.max_queue, self.token = timeout_s, max_queue, token
        self.slots = asyncio.Semaphore(threads)
        self.counts: Counter[str] = Counter()  # judged, raised, timeout, open, overdue
        self.stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.build = lru_cache(maxsize=256)(_build_reward)
        self.app = fastapi.FastAPI(openapi_url=None, dependencies=[fastapi.Depends(self.check)])
        self.app.post("/judge")(self.judge)
        self.app.get("/health")(self.health)

    async def check(self, request: fastapi.Request) -> None:
        """Check the token of a request, or without a token, its origin."""
        if not self.token:
            check_local(request.headers, TOKEN)
        header = request.headers.get("authorization", "").encode("latin-1")
        if self.token and not hmac.compare_digest(header, f"Bearer {self.token}".encode()):
            raise Refusal(401, "Authorization: Bearer with the service's token is required")

    async def health(self) -> dict:
        """GET /health."""
        return {"status": "ok", **self.counts}

    async def judge(self, request: fastapi.Request):
        """POST /judge: stream one line of JSON per sample as it is judged."""
        try:
            message = parse_request(await self._read(request))
        except (ValueError, RecursionError) as error:
            raise Refusal(422, str(error).encode("utf-8", "replace").decode()) from error
        samples = message["samples"]
        if self.counts["open"] + len(samples) > self.max_queue or self.stopped.done():
            raise Refusal(429, "too many waiting samples", {"Retry-After": "1"})
        if self.counts["overdue"] >= MAX_OVERDUE:
            raise Refusal(503, f"{MAX_OVERDUE} verifiers exceeded their time and still run")
        self.counts["open"] += len(samples)
        reward = (message["reward"], json.dumps(message["arguments"]))
        tasks = [asyncio.ensure_future(self._answer(sample, reward)) for sample in samples]
        for task in tasks:
            task.add_done_callback(lambda _: self.counts.subtract(["open"]))

        async def lines():
            pending = set(tasks)
            try:
                while pending:
                    done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                    yield "".join(json.dumps(task.result()) + "\n" for task in done)
            finally:  # the client may have left
                for task in tasks:
                    task.cancel()

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    async def _read(self, request: fastapi.Request) -> bytes:
        # Browsers send other types cross-origin without a preflight request.
        if request.headers.get("content-type", "").split(";")[0] != "application/json":
            raise Refusal(415, "Content-Type: application/json is required")
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for part in request.stream():
                    body += part
                    if len(body) > MAX_BODY_BYTES:
                        raise Refusal(413, f"body: {MAX_BODY_BYTES} bytes is the limit")
        except TimeoutError as error:
            reason = "body: incomplete within the time limit"
            raise Refusal(408, reason, {"Connection": "close"}) from error
        return bytes(body)

    async def _answer(self, sample: dict, reward: tuple[str, str]) -> dict:
        """Judge one sample in a thread; return its line."""
        async with self.slots:
            found = await self._run(sample, reward)
        self.counts[found.get("error", "judged")] += 1
        return {"id": sample["id"], **found}

    async def _run(self, sample: dict, reward: tuple[str, str]) -> dict:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[dict] = loop.create_future()

        def work() -> None:
            found = self._judge(sample, reward)
            with suppress(RuntimeError):  # the loop may have closed
                loop.call_soon_threadsafe(future.set_result, found)

        thread = threading.Thread(target=work, daemon=True, name="reward")
        thread.start()
        either: list[asyncio.Future[Any]] = [future, self.stopped]
        await asyncio.wait(either, timeout=self.timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if future.done():
            return future.result()
        if self.stopped.done():
            return {"error": "stopped", "message": "the service was stopped"}
        self.counts["overdue"] += 1
        future.add_done_callback(lambda _: self.counts.subtract(["overdue"]))
        name = sample["task"].get("id")
        return {"error": "timeout", "message": f"task {name}: no reward in {self.timeout_s:g} s"}

    def _judge(self, sample: dict, reward: tuple[str, str]) -> dict:
        """Return the fields of a sample's answer."""
        try:
            judge, task = self.build(*reward), decode_task(sample["task"])
            result: RewardResult = judge(decode_trajectory(sample["trajectory"]), task)
            return {"value": result.value, "parts": result.parts}
        except Exception as error:  # noqa: BLE001 - a verifier may be the user's code
            name = sample["task"].get("id")
            return {"error": "raised", "message": f"task {name}: {type(error).__name__}: {error}"}

    def stop(self) -> None:
        """Accept no more samples; give up running ones."""
        if not self.stopped.done():
            self.stopped.set_result(None)


def _build_reward(name: str, arguments: str) -> Reward:
    require(name != "remote", "a reward service cannot use the reward remote")
    return make_reward(name, **json.loads(arguments))


def parse_request(body: bytes) -> dict[str, Any]:
    """Parse a request; a ValueError names the field."""
    message = json.loads(body)
    require(isinstance(message, dict), "the body must be a JSON object")
    samples = message.get("samples")
    is_list = isinstance(samples, list) and 1 <= len(samples) <= MAX_BATCH
    require(is_list, f"samples: must be a list of 1 to {MAX_BATCH} samples")
    for index, sample in enumerate(samples):
        is_complete = isinstance(sample, dict) and {"id", "trajectory", "task"} <= {*sample}
        is_complete = is_complete and isinstance(sample["task"], dict)
        require(is_complete, f"samples[{index}]: needs id, trajectory and task")
    require(isinstance(message.get("reward"), str), "reward: must be the name of a reward")
    message.setdefault("arguments", {})
    require(isinstance(message["arguments"], dict), "arguments: must be an object")
    return message


def serve(
    host: str, port: int, threads: int, timeout_s: float, max_queue: int, plugins: str = ""
) -> int:
    """Serve until SIGTERM or SIGINT; the first line on stdout is JSON with the port.

    Raises:
        ValueError: a number is out of range, or `host` needs a token.
    """
    require(0 <= port <= 65535, f"port={port} must be in 0..65535")
    require(threads >= 1 and timeout_s > 0, "threads must be at least 1, timeout above 0")
    require(max_queue >= MAX_BATCH, f"max_queue={max_queue} must be at least {MAX_BATCH}")
    load_plugins(plugins)
    token = os.environ.get(TOKEN, "")
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    is_safe = bool(token) or ipaddress.ip_address(address[0]).is_loopback
    require(
        token.isascii() and is_safe,
        f"set {TOKEN} to a long secret of ASCII characters to serve on {host}",
    )

    async def run(listener: socket.socket) -> None:
        service: Any = RewardService(threads, timeout_s, max_queue, token)  # has app and stop()
        server = Server(service, 5)
        for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn re-raises its own signals
            signal.signal(number, lambda *_: setattr(server, "should_exit", True))
        await server.serve(sockets=[listener])

    with socket.create_server(address[:2], family=family, backlog=1024) as listener:
        # asyncio sets it only for sockets with an explicit protocol; without it, replies wait 40 ms
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        print(json.dumps({"port": listener.getsockname()[1], "pid": os.getpid()}), flush=True)
        asyncio.run(run(listener))
    return 0
