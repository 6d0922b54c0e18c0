"""Untrusted clients of the HTTP service: slow and huge bodies, browsers, bad settings."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

pytest.importorskip("fastapi", reason="the cluster extra is not installed")
pytest.importorskip("prometheus_client", reason="the cluster extra is not installed")

from drlib.sandbox import probe
from drlib.sandbox.remote import TOKEN, SandboxClient
from drlib.sandbox.service import MAX_UNREAD
from tests.test_sandbox_service import SECRET, Service, service
from tests.waiting import HANG_S, until

pytestmark = pytest.mark.skipif(
    probe().level not in ("standard", "strong"), reason=f"isolation here is {probe().level}"
)
__all__ = ["service"]  # a fixture
CALL = {"calls": [{"code": "print(1)"}]}
QUICK = 2.0  # seconds, for an honest call of milliseconds on a machine that others use as well


def head(length=33_000_000, kind="application/json"):
    """Build the head of a request with a body of this size."""
    lines = ("POST /run HTTP/1.1", "Host: localhost", f"Content-Type: {kind}")
    return "\r\n".join((*lines, f"Content-Length: {length}", "", "")).encode()


class UntrustedClients:
    """Connections that send `first` and then single bytes; `answers` holds the replies.

    An answer is "" if the service only closed the connection.

    """

    def __init__(self, made, count, first=b"", start=None):
        self._port = made.port
        self._first = (head() if start is None else start) + first
        self._over, self.answers = threading.Event(), []
        self._threads = [threading.Thread(target=self._drip, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _drip(self):
        with socket.create_connection(("127.0.0.1", self._port)) as channel:
            answer = b""
            try:
                channel.sendall(self._first)
                channel.settimeout(0.25)
                while not self._over.is_set():
                    channel.sendall(b" ")
                    try:
                        part = channel.recv(1000)
                    except TimeoutError:
                        continue
                    answer += part
                    if not part:
                        break
            except ConnectionError:
                pass
            if not self._over.is_set():
                self.answers.append(answer[9:12].decode())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._over.set()
        for thread in self._threads:
            thread.join(30)


@pytest.fixture
def alone():
    """Start a service for one test."""
    made = Service("--workers=1")
    yield made
    assert made.kill(signal.SIGTERM) == 0


def seconds(made, body=CALL):
    """Measure the seconds of a normal call."""
    began = time.monotonic()
    status, _, text = made.ask("POST", "/run", body)
    assert status == 200 and json.loads(text)["stdout"] == "1\n"
    return time.monotonic() - began


# --- slow and huge bodies -----------------------------------------------------------------------


def test_slow_bodies_are_dropped_without_delaying_others(alone):
    with UntrustedClients(alone, 64) as crowd:
        time.sleep(0.5)
        assert max(seconds(alone) for _ in range(5)) < QUICK
        assert crowd.answers == []
        until(lambda: len(crowd.answers) == 64, 100)
        assert set(crowd.answers) == {"408"}
    assert seconds(alone) < QUICK


def test_too_many_slow_bodies_do_not_block_the_service(alone):
    with UntrustedClients(alone, 700):
        time.sleep(1)
        for _ in range(8):
            assert seconds(alone) < QUICK
            assert len(psutil.Process(alone.process.pid).net_connections("tcp")) < 600
            time.sleep(0.2)


def test_incomplete_bodies_are_limited_and_large_calls_succeed(alone):
    process = psutil.Process(alone.process.pid)
    before = process.memory_info().rss
    code = "#" * 8_000_000 + "\nprint(1)"
    with UntrustedClients(alone, 40, b" " * 16_000_000) as crowd:  # 640 MB
        peak, took = 0, []
        for _ in range(8):
            time.sleep(0.1)
            took.append(seconds(alone))
            peak = max(peak, process.memory_info().rss - before)
        assert seconds(alone, {"calls": [{"code": code}]}) < 3 * QUICK
        assert max(took) < QUICK and peak < MAX_UNREAD + (100 << 20)
        until(lambda: len(crowd.answers) == 40, 100)
        assert set(crowd.answers) <= {"408", "429", ""}
    until(lambda: process.memory_info().rss - before < 100 << 20, 100)


def test_steady_slow_body_is_accepted(alone):
    padding = b" " * (3 * 70_000)
    body = json.dumps(CALL).encode()
    with socket.create_connection(("127.0.0.1", alone.port), timeout=30) as channel:
        channel.sendall(head(len(padding) + len(body)))
        for place in range(3):
            channel.sendall(padding[:70_000])
            time.sleep(2.5 if place < 2 else 1.5)
        channel.sendall(body)
        assert channel.recv(12) == b"HTTP/1.1 200"


def test_rejected_client_cannot_keep_sending(alone):
    with UntrustedClients(alone, 3, start=head(kind="text/plain")) as crowd:
        until(lambda: len(crowd.answers) == 3, 100)
        assert set(crowd.answers) == {"415"}


# --- browsers -----------------------------------------------------------------------------------

LOCAL = (
    "127.0.0.1",
    "127.0.0.1:8731",
    "localhost",
    "LocalHost:1",
    "127.8.9.10:80",
    "[::1]",
    "[::1]:8731",
    "[0:0:0:0:0:0:0:1]:2",
)
FOREIGN = (
    "evil.example",
    "evil.example:8731",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "evil.example#127.0.0.1",
    "evil@127.0.0.1",
    "127.0.0.1@evil.example",
    "10.0.0.1",
    "0.0.0.0",
    "[::2]",
    "[::1",
    "::1",
    "",
    " ",
    "localhost:8731:1",
    "127.0.0.999",
    "1.2.3.4:8731",
    "localhost,evil.example",
    "\xff",
    "[::ffff:10.0.0.1]",
    "2130706433",
)


@pytest.mark.parametrize("host", LOCAL)
def test_loopback_hosts_need_no_token(service, host):
    assert service.ask("GET", "/health", Host=host)[0] == 200
    assert service.ask("POST", "/run", CALL, Host=host, Origin=f"http://{host}")[0] == 200


@pytest.mark.parametrize("host", FOREIGN)
def test_rebound_host_is_rejected_with_the_remedy(service, host):
    """DNS rebinding: the Host is a foreign name that resolves to this machine."""
    before = service.metric("calls_total")
    for method, path, body in (
        ("GET", "/health", None),
        ("GET", "/metrics", None),
        ("POST", "/run", CALL),
    ):
        status, _, text = service.ask(method, path, body, Host=host)
        assert status == 403 and TOKEN in json.loads(text)["detail"]
    assert service.metric("calls_total") == before


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "https://evil.example:8731",
        "",
        "file://",
        "http://10.0.0.1",
        "http://localhost.evil.example",
        "localhost",
        "chrome-extension://abcdef",
    ],
)
def test_foreign_origin_is_rejected_with_the_remedy(service, origin):
    before = service.metric("calls_total")
    status, _, text = service.ask("POST", "/run", CALL, Origin=origin)
    assert status == 403 and TOKEN in json.loads(text)["detail"] and repr(origin) in text.decode()
    assert service.metric("calls_total") == before


def test_request_without_a_host_is_rejected(service):
    with socket.create_connection(("127.0.0.1", service.port), timeout=30) as channel:
        channel.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert channel.recv(12).endswith(b" 403")


def test_client_works_with_every_loopback_name(service):
    for name in ("127.0.0.1", "localhost"):
        with SandboxClient(f"http://{name}:{service.port}") as client:
            assert client.run("print(2)").text == "2"


def test_token_permits_any_host():
    made = Service(token=SECRET)
    try:
        for more in ({"Host": "node7.cluster:8731"}, {"Origin": "http://evil.example"}):
            assert made.ask("POST", "/run", CALL, **more)[0] == 200
            assert made.ask("POST", "/run", CALL, Authorization="Bearer x", **more)[0] == 401
    finally:
        made.kill(signal.SIGTERM)


# --- settings -----------------------------------------------------------------------------------

NUMBERS = [
    ("port", "99999", "65535"),
    ("port", "65536", "65535"),
    ("port", "-1", "65535"),
    ("max-queue", "0", "64"),
    ("max-queue", "-5", "64"),
    ("workers", "0", "1"),
    ("workers", "-2", "1"),
    ("memory-mb", "0", "16"),
    ("output-chars", "-1", "2"),
    ("timeout", "nan", "0.01"),
    ("timeout", "-1", "0.01"),
    ("timeout", "inf", "0.01"),
    ("queue-timeout", "nan", "0.01"),
    ("queue-timeout", "0", "0.01"),
]


def run_python(arguments):
    """Run a Python process to its end; return its result. A process that serves fails."""
    clean = {name: value for name, value in os.environ.items() if name != TOKEN}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=clean, capture_output=True, text=True, timeout=HANG_S, check=False
    )


def test_command_line_numbers_are_checked():
    serving = ["-m", "drlib.cli", "sandbox", "serve", "--port=0"]
    orders = [[*serving, f"--{name}={value}"] for name, value, _ in NUMBERS]
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(run_python, orders))
    for (name, value, limit), process in zip(NUMBERS, done, strict=True):
        last = process.stderr.splitlines()[-1]
        assert process.returncode and not process.stdout, name
        assert last.startswith(f"ValueError: {name.replace('-', '_')}"), last
        assert value in last and limit in last, last


@pytest.mark.parametrize("port", ["99999", "65536 + 8731", "-1", "float('nan')"])
def test_invalid_port_raises(port):
    code = (
        f"from drlib.sandbox.service import serve; serve('127.0.0.1', {port}, 2000, timeout_s=4.0)"
    )
    last = run_python(["-c", code]).stderr.splitlines()[-1]
    assert last == f"ValueError: port is {eval(port)}; give a number from 0 to 65535."
