"""ChatEndpoint against a misbehaving loopback server."""

import json
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from drlib.endpoint import MAX_REPLY, ChatEndpoint, EndpointError, EndpointTimeout

MESSAGES = [{"role": "user", "content": "Oslo?"}]


class Server(BaseHTTPRequestHandler):
    """Server whose behaviour is selected by the first part of the path; records requests."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.seen.append((self.path, body, headers))
        # a client past its deadline disconnects
        with suppress(BrokenPipeError, ConnectionResetError):
            getattr(self, self.path.split("/")[1])()

    def good(self):
        self.reply(json.dumps({"choices": [{"message": {"content": "Norway"}}]}).encode())

    def silent(self):
        self.reply(json.dumps({"choices": [{"message": {"content": None}}]}).encode())

    def junk(self):
        self.reply(b"[" * 100_000)

    def long(self):
        self.reply(b" " * (MAX_REPLY + 1))

    def gone(self):
        self.reply(b"{}", status=404)

    def cut(self):
        self.reply(b'{"choices": ', **{"Content-Length": 1000})

    def moved(self):
        self.reply(b"", status=307, Location="/good/v1/chat/completions")

    def drip_head(self):
        self.wfile.write(b"HTTP/1.1 200 OK\r\n")
        self.drip(b"X-More: yes\r\n")

    def drip_body(self):
        self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        self.drip(b" ")

    def drip(self, piece):
        while not self.server.over.wait(0.05):
            self.wfile.write(piece)
            self.wfile.flush()

    def reply(self, body, status=200, **headers):
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    server.daemon_threads, server.seen, server.over = True, [], threading.Event()
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.over.set()
    server.shutdown()
    server.server_close()


def endpoint(server, kind, **options):
    return ChatEndpoint(f"http://127.0.0.1:{server.server_port}/{kind}/v1/", "tiny", **options)


def test_request_contains_key_and_options(server):
    chat = endpoint(server, "good", api_key="secret")
    assert chat.ask(MESSAGES, temperature=0) == "Norway"
    ((path, body, headers),) = server.seen
    assert path == "/good/v1/chat/completions" and headers["authorization"] == "Bearer secret"
    assert body == {"model": "tiny", "messages": MESSAGES, "temperature": 0}


def test_environment_keys_are_not_sent(server, monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, "of-another-server")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    assert endpoint(server, "good").ask(MESSAGES) == "Norway"
    ((_, _, headers),) = server.seen
    assert "of-another-server" not in str(headers) and "authorization" not in headers


@pytest.mark.parametrize("kind", ["silent", "junk"])
def test_invalid_completion_returns_none(server, kind):
    assert endpoint(server, kind).ask(MESSAGES) is None


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("gone", "HTTP 404 Not Found"),
        ("moved", "HTTP 307"),
        ("long", "exceeds 1000000 bytes"),
        ("cut", "RemoteProtocolError"),
    ],
)
def test_failing_server_is_requested_once(server, kind, reason):
    with pytest.raises(EndpointError, match=reason):
        endpoint(server, kind).ask(MESSAGES)
    assert len(server.seen) == 1


@pytest.mark.parametrize("kind", ["drip_head", "drip_body"])
def test_deadline_covers_the_whole_reply(server, kind):
    start = time.monotonic()
    with pytest.raises(EndpointTimeout, match=r"timeout: no complete reply within 0\.4 s"):
        endpoint(server, kind, timeout_s=0.4).ask(MESSAGES)
    assert time.monotonic() - start < 3


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9/v1", "no address", "ftp://x", "http://[", "http://x:y/v1", ""]
)
def test_unreachable_address(url):
    with pytest.raises(EndpointError):
        ChatEndpoint(url, "tiny", timeout_s=5).ask(MESSAGES)


class Closing(BaseHTTPRequestHandler):
    """Server that keeps connections, but drops a request that comes on one idle for over 2 s."""

    protocol_version = "HTTP/1.1"

    def setup(self):
        super().setup()
        self.server.connections += 1
        self.last = time.monotonic()

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        if time.monotonic() - self.last > 2.0:
            self.close_connection = True
            return
        body = json.dumps({"choices": [{"message": {"content": "Norway"}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.last = time.monotonic()

    def log_message(self, *_):
        pass


def test_idle_connections_are_not_used_again():
    with ThreadingHTTPServer(("127.0.0.1", 0), Closing) as server:
        server.daemon_threads, server.connections = True, 0
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        chat = endpoint(server, "good")
        assert [chat.ask(MESSAGES) for _ in range(2)] == ["Norway"] * 2
        assert server.connections == 1
        time.sleep(2.2)
        assert chat.ask(MESSAGES) == "Norway" and server.connections == 2
        server.shutdown()
