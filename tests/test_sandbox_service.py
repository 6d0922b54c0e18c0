"""The HTTP service as a real process, and its client: results, refusals, failures, clean-up."""

import asyncio
import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import psutil
import pytest

from drlib.sandbox import Sandbox, probe
from drlib.sandbox.remote import MAX_BODY_BYTES, TOKEN, Refused, SandboxClient
from tests.waiting import until

pytest.importorskip("fastapi", reason="the cluster extra is not installed")
pytest.importorskip("prometheus_client", reason="the cluster extra is not installed")
pytestmark = pytest.mark.skipif(
    probe().level not in ("standard", "strong"), reason=f"isolation here is {probe().level}"
)
SECRET = "a-secret-of-the-test"


class Service:
    """`drlib sandbox serve` in a separate process."""

    def __init__(self, *options, port=0, token="", host="127.0.0.1"):
        environment = {k: v for k, v in os.environ.items() if k != TOKEN}
        environment |= {TOKEN: token} if token else {}
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "drlib.cli",
                "sandbox",
                "serve",
                f"--host={host}",
                f"--port={port}",
                *options,
            ],
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        self.first = json.loads(self.process.stdout.readline())
        self.port, self.url = self.first["port"], f"http://127.0.0.1:{self.first['port']}"
        self.headers = {"Content-Type": "application/json"}
        self.headers |= {"Authorization": f"Bearer {token}"} if token else {}

    def ask(self, method, path, body=None, **headers):
        """Send one request; return (status, headers, body)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            body = json.dumps(body) if isinstance(body, dict | list) else body
            connection.request(method, path, body, self.headers | headers)
            reply = connection.getresponse()
            return reply.status, reply.headers, reply.read()
        finally:
            connection.close()

    def health(self):
        return json.loads(self.ask("GET", "/health")[2])

    def metric(self, name):
        """Sum one metric over its labels."""
        text = self.ask("GET", "/metrics")[2].decode()
        found = re.findall(rf"^drlib_sandbox_{name}(?:{{[^}}]*}})? (\S+)$", text, re.M)
        assert found, f"{name} is not in\n{text}"
        return sum(map(float, found))

    def family(self):
        """Return all processes below the service."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def kill(self, number=signal.SIGKILL):
        """Kill the service and return its exit code; no process may be left."""
        below = self.family() if self.process.poll() is None else []
        self.process.send_signal(number)
        code = self.process.wait(60)
        self.process.stdout.close()
        _, alive = psutil.wait_procs(below, 20)
        assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
        return code


@pytest.fixture(scope="module")
def service():
    made = Service("--workers=2", "--timeout=4")
    yield made
    assert made.kill(signal.SIGTERM) == 0


@pytest.fixture
def client(service):
    with SandboxClient(service.url) as made:
        yield made


def numbers(count, wait=0.0):
    return [f"import time; time.sleep({wait}); print({i})" for i in range(count)]


def texts(results):
    return [result.text for result in results]


# --- answers ----------------------------------------------------------------------------------


def test_client_results_equal_those_of_a_sandbox(service, client):
    with Sandbox(timeout_s=4.0) as here:
        for call in (
            {"code": "print(6 * 7)"},
            {"code": "1 / 0"},
            {"code": "print("},
            {"code": "print(input())", "stdin": "a\ud800"},
            {"code": "'\ud800'"},
            {"code": "print(x)", "history": ["x = 1", "x += 1", "1 / 0"]},
            {"code": "'é' * 3", "echo": True},
            {"code": "print('é' * 5000)"},
            {"code": "raise SystemExit(3)"},
        ):
            there, expected = client.run(**call), here.run(**call)
            assert replace(there, duration_s=0.0) == replace(expected, duration_s=0.0), call
    assert there.isolation == service.health()["isolation"]
    assert asyncio.run(client.arun("print(3)")).text == "3"
    assert texts(client.map(numbers(100))) == [str(i) for i in range(100)]
    assert client.run("while True: pass").status in ("timeout", "cpu_limit")
    with pytest.raises(TypeError, match="code must be text"):
        client.submit(b"print(1)")
    with pytest.raises(ValueError, match="16000000 is the limit"):
        client.submit("#" * 16_000_001)


def test_results_stream_with_the_ids_of_their_calls(service):
    calls = [
        {"code": f"import time; time.sleep({0.8 - 0.8 * i}); print({i})", "id": f"n{i}"}
        for i in range(2)
    ] + [{"code": "print(input())", "stdin": "in"}]
    status, _, body = service.ask("POST", "/run", {"calls": calls})
    got = [(r["id"], r["stdout"]) for r in map(json.loads, body.splitlines())]
    assert status == 200 and got[-1] == ("n0", "0\n")
    assert sorted(got) == [("2", "in\n"), ("n0", "0\n"), ("n1", "1\n")]


def test_two_hundred_clients_get_their_own_results(service):
    async def call_once(number):
        with SandboxClient(service.url) as mine:
            codes = [f"print({number}, {k}, input())" for k in range(2)]
            answers = [mine.submit(code, stdin=str(-number)) for code in codes]
            return [(await asyncio.wrap_future(answer)).text for answer in answers]

    async def call_all():
        return await asyncio.gather(*map(call_once, range(200)))

    got = asyncio.run(call_all())
    assert got == [[f"{i} {k} {-i}" for k in range(2)] for i in range(200)]


def test_metrics_count_all_calls(service, client):
    names = ("calls_total", r"seconds_count(?={part=.run)", r"seconds_count(?={part=.wait)")
    before = [service.metric(name) for name in names]
    client.map(numbers(30) + ["1 / 0"] * 5)
    assert [service.metric(name) - b for name, b in zip(names, before, strict=True)] == [35] * 3
    assert service.metric("open_calls") == 0
    health = service.health()
    assert health["status"] == "ok" and health["workers"] == 2 and health["queued"] == 0
    assert all(psutil.pid_exists(pid) for pid in health["templates"]) and health["templates"]


# --- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"", "body"),
        (b"{", "body"),
        (b"\xff\xfe\x00", "body"),
        (b"[" * 100_000, "body"),
        (b"1" * 5000, "body"),
        ([], "calls"),
        ({}, "calls"),
        ({"calls": {}}, "calls"),
        ({"calls": []}, "calls"),
        ({"calls": [{"code": ""}] * 65}, "calls"),
        ({"calls": [{"code": ""}, 3]}, "calls[1]"),
        ({"calls": [{}]}, "calls[0].code"),
        ({"calls": [{"code": 3}]}, "calls[0].code"),
        ({"calls": [{"code": None}]}, "code"),
        ({"calls": [{"code": "", "stdin": 1}]}, "calls[0].stdin"),
        ({"calls": [{"code": "", "history": [1]}]}, "calls[0].history"),
        ({"calls": [{"code": "", "history": 5}]}, "calls[0]"),
        ({"calls": [{"code": "", "id": 5}]}, "calls[0].id"),
        ({"calls": [{"code": "", "id": "\ud800"}]}, "calls[0].id"),
        ({"calls": [{"code": "", "timeout": 99}]}, "timeout"),
        ({"calls": [{"code": "", "a\ud800": 99}]}, "calls[0]"),
        ({"calls": [{"code": "#" * 16_000_001}]}, "calls[0]"),
    ],
)
def test_bad_input_names_the_field(body, named, service):
    before = service.metric("calls_total")
    status, _, text = service.ask("POST", "/run", body)
    assert status == 422 and named in json.loads(text)["detail"]
    assert service.metric("calls_total") == before


def test_other_refusals_and_random_bytes(service, client):
    assert service.ask("POST", "/run", b"{}", **{"Content-Type": "text/plain"})[0] == 415
    assert service.ask("GET", "/run")[0] == 405 and service.ask("GET", "/other")[0] == 404
    with suppress(OSError):  # the answer came, and the connection ended, before all was sent
        assert service.ask("POST", "/run", b" " * (MAX_BODY_BYTES + 1))[0] == 413
    draw = random.Random(3)
    for _ in range(200):
        assert service.ask("POST", "/run", draw.randbytes(10_000))[0] == 422
    for _ in range(100):  # not even HTTP
        with socket.create_connection(("127.0.0.1", service.port)) as raw:
            raw.settimeout(60)
            try:
                raw.sendall(draw.randbytes(10_000))
                raw.shutdown(socket.SHUT_WR)
                answer = raw.recv(100)
            except ConnectionError:
                continue
            assert not answer or answer.startswith(b"HTTP/1.1 4")
    assert client.run("print(1)").text == "1" and service.health()["status"] == "ok"


def test_every_route_needs_the_token():
    command = [sys.executable, "-m", "drlib.cli", "sandbox", "serve", "--port=0"]
    free = {k: v for k, v in os.environ.items() if k != TOKEN}
    for host in ("0.0.0.0", "::"):
        refused = subprocess.run(
            [*command, "--host", host], env=free, capture_output=True, text=True, check=False
        )
        assert refused.returncode and TOKEN in refused.stderr and not refused.stdout
    full = subprocess.run([*command, "--max-queue=63"], env=free, capture_output=True, check=False)
    assert full.returncode and b"max_queue is 63" in full.stderr
    made = Service(token=SECRET, host="0.0.0.0")
    try:
        for shown in ("", "Bearer ", "Bearer wrong", SECRET, f"Bearer {SECRET}x", "Bearer \xff"):
            for method, path in (("POST", "/run"), ("GET", "/health"), ("GET", "/metrics")):
                body = {"calls": [{"code": "1"}]} if method == "POST" else None
                assert made.ask(method, path, body, Authorization=shown)[0] == 401
        assert "calls_total{" not in made.ask("GET", "/metrics")[2].decode()  # nothing was run
        with SandboxClient(made.url, SECRET) as right:
            assert right.run("print(1)").text == "1"
        with SandboxClient(made.url, "wrong", batch=1, in_flight=1) as wrong:
            waiting = [wrong.submit("print(1)")]
            with pytest.raises(Refused, match="401"):
                while True:  # until submitting itself says so
                    waiting.append(wrong.submit("print(1)"))
            for future in waiting:
                with pytest.raises(Refused, match=f"401.*{TOKEN}"):
                    future.result(30)
    finally:
        made.kill(signal.SIGTERM)


def test_idle_connections_do_not_block_the_service():
    made, crowd = Service(token=SECRET), []
    try:
        for _ in range(1100):  # more than it accepts in all
            crowd.append(socket.create_connection(("127.0.0.1", made.port)))
            assert len(crowd) % 100 or made.health()["status"] == "ok"
        until(lambda: len(psutil.Process(made.process.pid).net_connections("tcp")) < 600)
        until(lambda: len(psutil.Process(made.process.pid).net_connections("tcp")) < 5)
    finally:
        for stranger in crowd:
            stranger.close()
        made.kill(signal.SIGTERM)


def test_full_queue_rejects_batches_and_the_client_retries():
    made = Service("--workers=1", "--max-queue=64")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(
            made.ask, "POST", "/run", {"calls": [{"code": c} for c in numbers(64, 0.05)]}
        )
        until(lambda: made.health()["queued"] > 10)
        status, headers, _ = made.ask("POST", "/run", {"calls": [{"code": "print(1)"}] * 64})
        assert status == 429 and int(headers["Retry-After"]) >= 1
        assert made.metric("refused_calls_total") == 64
        with SandboxClient(made.url, batch=32, in_flight=6) as many:
            assert texts(many.map(numbers(128))) == [str(i) for i in range(128)]
        assert first.result()[0] == 200
    assert made.metric("calls_total") == 64 + 128
    made.kill(signal.SIGTERM)


def test_queue_timeout_is_an_environment_fault():
    made = Service("--workers=1", "--queue-timeout=0.5")
    body = made.ask("POST", "/run", {"calls": [{"code": c} for c in numbers(10, 0.2)]})[2]
    statuses = {r["id"]: r["status"] for r in map(json.loads, body.splitlines())}
    assert statuses["0"] == "ok" and statuses["9"] == "queue_timeout"
    with SandboxClient(made.url) as client:  # goes on asking: runaways do not fail the others
        runaways = [client.submit(code) for code in numbers(5, 0.4)]
        innocent = [client.submit(f"print({i})") for i in range(5)]
        assert texts(f.result() for f in runaways + innocent) == [str(i) for i in range(5)] * 2
    with SandboxClient(made.url, deadline_s=2.0) as hasty:
        late = hasty.map(numbers(30, 0.4))[-1]
    assert late.status == "queue_timeout" and late.env_fault
    assert made.kill(signal.SIGTERM) == 0


# --- deaths -----------------------------------------------------------------------------------


def test_restarted_service_loses_no_call():
    made = Service("--workers=2")
    answered = []
    with SandboxClient(made.url, batch=16) as client:
        futures = [client.submit(code) for code in numbers(300)]
        for i, future in enumerate(futures):
            future.add_done_callback(lambda f, i=i: answered.append((i, f.result().text)))
        until(lambda: len(answered) >= 30)
        made.kill()
        assert len(answered) < 300
        again = Service("--workers=2", port=made.port)
        try:
            assert texts(f.result() for f in futures) == [str(i) for i in range(300)]
            until(lambda: len(answered) == 300)
            assert sorted(answered) == sorted((i, str(i)) for i in range(300))
        finally:
            assert again.kill(signal.SIGTERM) == 0


def test_disconnected_client_cancels_its_waiting_calls(service):
    def count(status):
        text = service.ask("GET", "/metrics")[2].decode()
        found = re.search(rf'calls_total{{status="{status}"}} (\S+)', text)
        return float(found[1]) if found else 0.0

    before = count("ok"), count("cancelled")
    body = json.dumps({"calls": [{"code": c} for c in numbers(64, 0.3)]})
    connection = http.client.HTTPConnection("127.0.0.1", service.port)
    connection.request("POST", "/run", body, service.headers)
    until(lambda: service.health()["running"] > 0)
    connection.close()
    until(lambda: service.health()["running"] + service.health()["queued"] == 0)
    ran, cancelled = count("ok") - before[0], count("cancelled") - before[1]
    assert ran + cancelled == 64 and 1 <= ran < cancelled


def test_sigterm_finishes_running_calls_and_leaves_nothing():
    made = Service("--workers=1")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(
            made.ask, "POST", "/run", {"calls": [{"code": c} for c in numbers(8, 1.0)]}
        )
        until(lambda: made.health()["running"] > 0)
        time.sleep(0.3)
        assert made.kill(signal.SIGTERM) == 0
        status, _, body = asked.result()
    results = {r["id"]: r for r in map(json.loads, body.splitlines())}
    assert status == 200 and len(results) == 8 and results["0"]["stdout"] == "0\n"
    assert results["7"]["status"] == "service_unavailable"
    with pytest.raises(OSError):
        made.health()


def test_missing_service_is_an_environment_fault():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with SandboxClient(f"http://127.0.0.1:{port}", deadline_s=0.3) as client:
        for result in client.map(numbers(50)):
            assert result.status == "service_unavailable" and result.env_fault
            assert "refused" in result.stderr and result.text.startswith("SandboxError")


def test_a_closed_client_ends_every_future(service):
    client = SandboxClient(service.url, batch=2, in_flight=1)
    futures = [client.submit(code) for code in numbers(8, 2.0)]
    until(lambda: futures[0].running())
    client.close()
    client.close()
    for future in futures:
        with pytest.raises((RuntimeError, CancelledError)):
            future.result(0)
    with pytest.raises(RuntimeError, match="closed"):
        client.submit("1")


def test_bad_settings_are_named(service):
    for url in ("", "127.0.0.1:1", "ftp://host", [], ["http://h:1", "http://"]):
        with pytest.raises(ValueError, match="url"):
            SandboxClient(url)
    for name, value in (("batch", 0), ("batch", 65), ("in_flight", 0), ("deadline_s", 0)):
        with pytest.raises(ValueError, match=name):
            SandboxClient(service.url, **{name: value})
