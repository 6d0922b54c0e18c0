"""Live pages: real sockets to slow, oversized, interrupted or impersonating servers.

Run: python -m pytest tests/test_tools_fetch_servers.py
"""

import contextlib
import gzip
import http.server
import random
import shutil
import socket
import ssl
import subprocess
import threading
import time

import pytest

from drlib.tools import fetch
from drlib.tools.backends import ANSWERS, PAGE_FAULTS, ToolFault
from tests.web_servers import OK, OPEN, drip, fault, reader, site

pytest.importorskip("trafilatura")

__all__ = ["reader", "site"]  # fixtures


@pytest.mark.parametrize(
    ("write", "kind"),
    [
        (drip(OK + b"\r\n", b"x"), "timeout"),  # the body
        (drip(OK, b"X: y\r\n"), "timeout"),  # the headers
        (drip(b"HTTP/1.1 2", b"0"), "timeout"),  # the first line
        (drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), "timeout"),
        (lambda out: time.sleep(3), "timeout"),
        (lambda out: out.write(OK + b"Content-Length: 100\r\n\r\nhalf"), "connection"),
        (lambda out: out.write(OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhal"), "connection"),
        (lambda out: out.write(b"hello"), "connection"),
        (lambda out: out.write(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 300_000), "connection"),
        (lambda out: None, "connection"),
    ],
    ids=[
        "body",
        "headers",
        "line",
        "continue",
        "silent",
        "cut",
        "cut chunk",
        "no HTTP",
        "head",
        "nothing",
    ],
)
def test_misbehaving_servers(site, reader, write, kind):
    site.raw["/a"] = write
    assert fault(reader, f"http://example.test:{site.port}/a", 1.0).kind == kind


def test_no_server(reader):
    with socket.socket() as closed_socket:  # bound, not listening
        closed_socket.bind((OPEN, 0))
        url = f"http://example.test:{closed_socket.getsockname()[1]}/"
        assert fault(reader, url).kind == "connection"


def test_body_size_limits_before_and_after_unpacking(site, reader, monkeypatch):
    monkeypatch.setattr(fetch, "MAX_BYTES", 100_000)
    site.raw["/endless"] = drip(OK + b"\r\n", b"x" * 10_000, 0.0, 100_000)
    assert fault(reader, f"http://example.test:{site.port}/endless").kind == "too_large"
    bomb = gzip.compress(b"0" * 50_000_000)
    url = site.page("/bomb", bomb, "text/plain", Content_Encoding="gzip")
    assert len(bomb) < 100_000 and fault(reader, url).kind == "too_large"
    for coding in ("gzip, gzip", "br", "zstd", "x-gzip"):
        wrong = fault(reader, site.page("/c", bomb, "text/plain", Content_Encoding=coding))
        assert wrong.kind == "malformed"
    bad = site.page("/d", b"no gzip at all", "text/plain", Content_Encoding="gzip")
    assert fault(reader, bad).kind == "connection"
    assert len(reader({"url": site.page("/e", b"x" * 100_000, "text/plain")}, 20.0)["text"]) > 9


class SecureHandler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        self.wfile.write(b"secure")

    def log_message(self, *_):
        pass

    @classmethod
    @contextlib.contextmanager
    def serve(cls, context):
        server = http.server.ThreadingHTTPServer((OPEN, 0), cls)
        server.handle_error = lambda *_: None  # ignore handshakes aborted by the client
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()
        server.server_close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_tls_verifies_the_host_name_at_the_pinned_address(tmp_path, reader, monkeypatch):
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-keyout",
            "key.pem",
            "-out",
            "cert.pem",
            "-subj",
            "/CN=example.test",
            "-addext",
            "subjectAltName=DNS:example.test",
        ],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    names = []
    context.sni_callback = lambda sock, name, ctx: names.append(name)
    with SecureHandler.serve(context) as port:
        trusting = ssl.create_default_context(cafile=tmp_path / "cert.pem")
        assert fault(reader, f"https://example.test:{port}/").kind == "connection"  # not trusted
        monkeypatch.setattr(fetch, "_tls", lambda: trusting)
        assert reader({"url": f"https://example.test:{port}/"}, 20.0)["text"] == "secure"
        assert fault(reader, f"https://other.test:{port}/").kind == "connection"  # another name
    assert names == ["example.test", "example.test", "other.test"]


def test_random_replies_return_typed_results(site, reader):
    """Send bytes instead of HTTP, bytes after valid headers, and altered headers."""
    rng, kinds = random.Random(6), set()
    heads = [
        b"",
        OK + b"\r\n",
        OK + b"Content-Encoding: gzip\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n",
    ]
    replies = {}
    site.raw["/a"] = lambda out: out.write(replies["now"])
    for _ in range(400):
        data = bytearray(rng.choice(heads) + rng.randbytes(rng.randrange(200)))
        for _ in range(rng.choice([0, 0, 1, 3]) if data else 0):
            data[rng.randrange(len(data))] = rng.randrange(256)
        replies["now"] = bytes(data)
        try:
            page = reader({"url": f"http://example.test:{site.port}/a"}, 10.0)
            assert set(page) == {"url", "title", "text"}
        except ToolFault as wrong:
            assert wrong.kind in (*PAGE_FAULTS, *ANSWERS), replies["now"]
            assert not wrong.detail.startswith("timeout"), replies["now"]
            kinds.add(wrong.kind)
    assert set(PAGE_FAULTS) <= kinds
