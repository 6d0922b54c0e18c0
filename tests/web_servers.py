"""A loopback web site, a page reader that treats it as public, and slow responses."""

import contextlib
import http.server
import threading
import time

import pytest

from drlib.tools import fetch
from drlib.tools.backends import ANSWERS, PAGE_FAULTS, ToolFault

OPEN, CLOSED = "127.0.0.2", "127.0.0.1"  # the first represents a public address


def servers_on_one_port(handler, attempts=20):
    """Return servers on OPEN and CLOSED that share a port free on both addresses."""
    for attempt in range(attempts):
        public = http.server.ThreadingHTTPServer((OPEN, 0), handler)
        try:
            return [public, http.server.ThreadingHTTPServer((CLOSED, public.server_port), handler)]
        except OSError:  # another process listens on this port of CLOSED
            public.server_close()
            if attempt == attempts - 1:
                raise


class Site:
    """Web site on 127.0.0.2 and, at the same port, on the private 127.0.0.1."""

    def __init__(self):
        self.seen, self.pages, self.raw = [], {}, {}
        site = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                site.seen.append((self.server.server_address[0], self.path, dict(self.headers)))
                if self.path in site.raw:
                    with contextlib.suppress(OSError):
                        site.raw[self.path](self.wfile)
                    self.close_connection = True
                    return
                status, headers, body = site.pages.get(self.path, (404, {}, b""))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.servers = servers_on_one_port(Handler)
        self.port = self.servers[0].server_address[1]
        for server in self.servers:
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()

    def page(self, path, body=b"<p>hello</p>", kind="text/html", status=200, **headers):
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        self.pages[path] = (status, {"Content-Type": kind, **given}, body)
        return f"http://example.test:{self.port}{path}"

    def close(self):
        for server in self.servers:
            server.shutdown()
            server.server_close()


@pytest.fixture
def site():
    site = Site()
    yield site
    site.close()


@pytest.fixture
def reader(monkeypatch):
    """Return a reader for which only 127.0.0.2 is public."""
    real = fetch.is_public
    monkeypatch.setattr(fetch, "is_public", lambda a: a == OPEN or real(a))
    names = {
        "example.test": [OPEN],
        "other.test": [OPEN],
        "inside.test": [CLOSED],
        "both.test": [OPEN, CLOSED],
        "none.test": [],
        "odd.test": ["not an address"],
    }
    return fetch.PageReader(resolver=lambda host: names.get(host, [host]))


def fault(reader, url, timeout_s=20.0):
    """Return the fault named by the exchange."""
    with pytest.raises(ToolFault) as raised:
        reader({"url": url}, timeout_s)
    outer = raised.value
    assert outer.kind in (*ANSWERS, *PAGE_FAULTS)
    kind, _, detail = outer.detail.partition(": ")
    if outer.kind in ANSWERS:
        return outer
    assert outer.transient is (kind in ("timeout", "connection", "server", "rate_limited"))
    return ToolFault(kind, detail, outer.retry_after_s)


OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"


def drip(first, piece, pause=0.02, times=2_000):
    def write(out):
        out.write(first)
        for _ in range(times):
            out.write(piece)
            out.flush()
            time.sleep(pause)

    return write
