"""The client against services that are broken, busy, or accept less than it sends."""

import contextlib
import json
import socketserver
import threading

import pytest

from drlib.sandbox import probe
from drlib.sandbox.remote import MAX_BODY_BYTES, SandboxClient
from tests.test_sandbox_service import Service, numbers, texts

pytestmark = pytest.mark.skipif(
    probe().level not in ("standard", "strong"), reason=f"isolation here is {probe().level}"
)


@pytest.fixture(scope="module")
def service():
    made = Service("--workers=2", "--timeout=4")
    yield made
    made.kill()


@pytest.fixture
def client(service):
    with SandboxClient(service.url) as made:
        yield made


def reply(status, body=b"", *headers):
    head = [f"HTTP/1.1 {status} said", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*head, "Connection: close", "", ""]).encode() + body


BROKEN = {
    "too slow": reply(408),
    "asks for an hour": reply(503, b"", "Retry-After: 3600"),
    "asks for ever": reply(429, b"", "Retry-After: inf"),
    "null": reply(200, b"null\n"),
    "asks for nan": reply(503, b"", "Retry-After: nan"),
    "a list": reply(200, b"[1]\n"),
    "asks for a date": reply(503, b"", "Retry-After: Fri, 31 Dec 1999 23:59:59 GMT"),
    "deep": reply(200, b"[" * 100_000 + b"\n"),
    "text": reply(200, b'{"id": "x"}\n'),
    "closes at once": b"",
    "error": b"HTTP/1.1 500 no\r\nContent-Length: 2\r\n\r\nno",
    "not http": b"\x00\xff" * 50,
    "not json": b"HTTP/1.1 200 ok\r\nContent-Length: 6\r\n\r\nhello\n",
    "cut": b'HTTP/1.1 200 ok\r\nContent-Length: 900\r\n\r\n{"id": "0", "status": "ok", "stdo',
    "no answers": b"HTTP/1.1 200 ok\r\nContent-Length: 0\r\n\r\n",
    "a stranger's": b'HTTP/1.1 200 ok\r\nContent-Length: 13\r\n\r\n{"id": "-1"}\n',
    "a fault": b"HTTP/1.1 200 ok\r\nConnection: close\r\n\r\n"
    + json.dumps(
        {
            "id": "0",
            "status": "setup_failed",
            "stdout": "",
            "stderr": "",
            "exit_code": None,
            "duration_s": 0.0,
            "isolation": "",
        }
    ).encode()
    + b"\n",
}


@contextlib.contextmanager
def serve_replies(make_reply):
    """Start a server that answers each request with `make_reply(body)`; yield its address."""

    class Answer(socketserver.StreamRequestHandler):
        timeout = 30

        def handle(self):
            size = 0
            while (line := self.rfile.readline()) not in (b"", b"\r\n"):
                if line.lower().startswith(b"content-length:"):
                    size = int(line.split(b":")[1])
            self.wfile.write(make_reply(self.rfile.read(size)))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_service_loses_no_call(kind, service):
    asked = []
    with serve_replies(lambda body: asked.append(1) or BROKEN[kind]) as broken:
        # Each call is answered long before the hour that one of them asks for; and as every batch
        # begins where the last one ended, the broken one is asked a few times and not for each.
        with SandboxClient([broken, service.url], batch=1, in_flight=1, deadline_s=100) as client:
            for i in range(30):
                assert client.submit(f"print({i})").result(60).text == str(i)
    assert 1 <= len(asked) < 20


def test_too_large_batches_are_split(service):
    def proxy(body):  # one before the service that takes less
        if len(body) > 2000:
            return reply(413, b"proxy: too large")
        status, _, answer = service.ask("POST", "/run", body)
        return reply(status, answer)

    with serve_replies(proxy) as url, SandboxClient(url, batch=32) as client:
        futures = [client.submit(code) for code in [*numbers(31), "#" * 3000]]
        assert texts(f.result() for f in futures[:-1]) == [str(i) for i in range(31)]
        with pytest.raises(ValueError, match=r"too large.*413.*proxy"):
            futures[-1].result()


def test_too_large_call_raises_in_its_own_future(client):
    futures = [client.submit(code) for code in [*numbers(4), "#" + "\x01" * 6_000_000, "print(4)"]]
    with pytest.raises(ValueError, match=f"too large.*{MAX_BODY_BYTES}"):
        futures.pop(4).result()
    assert texts(f.result() for f in futures) == [str(i) for i in range(5)]


def test_deadline_applies_while_all_nodes_are_paused():
    with (
        serve_replies(lambda body: reply(503, b"", "Retry-After: 3600")) as url,
        SandboxClient(url, deadline_s=1.0) as client,
    ):
        for _ in range(2):  # the second finds it resting
            result = client.submit("print(1)").result(30)
            assert result.status == "service_unavailable" and "503" in result.stderr
