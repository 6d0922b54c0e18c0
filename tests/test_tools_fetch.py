"""Live pages: real sockets on loopback, hostile addresses, redirects, slow and huge servers."""

import contextlib
import gzip
import http.server
import random
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time

import pytest

pytest.importorskip("trafilatura")

from drlib.tools import fetch  # noqa: E402
from drlib.tools import ReliabilityPolicy, Toolbox  # noqa: E402
from drlib.tools.backends import ANSWERS, PAGE, ToolFault  # noqa: E402
from drlib.worlds import reading  # noqa: E402

OPEN, CLOSED = "127.0.0.2", "127.0.0.1"  # in these tests the first plays a public address


class Site:
    """A web site on 127.0.0.2 and, at the same port, the private 127.0.0.1."""

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

        self.servers = [http.server.ThreadingHTTPServer((OPEN, 0), Handler)]
        self.port = self.servers[0].server_address[1]
        self.servers.append(http.server.ThreadingHTTPServer((CLOSED, self.port), Handler))
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
    """A reader for which 127.0.0.2, and nothing else here, is public."""
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
    """What went wrong, as the exchange named it; outside it is an answer about the page."""
    with pytest.raises(ToolFault) as raised:
        reader({"url": url}, timeout_s)
    outer = raised.value
    assert outer.kind in (*ANSWERS, *PAGE)
    kind, _, detail = outer.detail.partition(": ")
    if outer.kind in ANSWERS:
        return outer
    assert outer.transient is (kind in ("timeout", "connection", "server", "rate_limited"))
    return ToolFault(kind, detail, outer.retry_after_s)


def test_a_page_is_read_with_host_header_and_without_proxies(site, reader, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://{CLOSED}:1")
    url = site.page("/a?b=c", b"<title>T</title><p>x <b>y</b></p>")
    page = reader({"url": url}, 20.0)
    assert page == {"url": url, "title": "T", "text": "x y"} or page["text"] == "x\ny"
    address, path, headers = site.seen[0]
    assert (address, path, headers["Host"]) == (OPEN, "/a?b=c", f"example.test:{site.port}")


def test_text_json_pdf_charsets_and_gzip(site, reader):
    read = lambda url: reader({"url": url}, 20.0)["text"]  # noqa: E731
    assert read(site.page("/t", "plain é".encode(), "text/plain")) == "plain é"
    assert read(site.page("/c", b"a,b", "Text/CSV; charset=utf-8")) == "a,b"
    assert read(site.page("/j", b'{"a": 1}', "application/json")) == '{"a": 1}'
    assert read(site.page("/s", "語".encode("gbk"), 'text/plain; charset="gbk"')) == "語"
    assert read(site.page("/p", b"ok", "text/plain; charset=punycode")) == "ok"
    packed = site.page("/g", gzip.compress(b"packed"), "text/plain", Content_Encoding="gzip")
    assert read(packed) == "packed"
    assert fault(reader, site.page("/b", b"%PDF-1.4", "application/pdf")).kind == "malformed"


@pytest.mark.parametrize(
    "kind",
    [
        "image/png",
        "video/mp4",
        "application/octet-stream",
        "application/zip",
        "application/xhtml+xml",
        "",
        "texthtml",
    ],
)
def test_other_content_types_are_refused_by_name(site, reader, kind):
    wrong = fault(reader, site.page("/x", b"x", kind))
    assert wrong.kind == "refused" and repr(kind) in wrong.detail


HOSTILE = [
    "http://127.0.0.1/",
    "http://127.1/",
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0x7f.1/",
    "http://0177.0.0.1/",
    "http://017700000001/",
    "http://localhost/",
    "http://0/",
    "http://0.0.0.0/",
    "http://[::1]/",
    "http://[::]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]/",
    "http://[::127.0.0.1]/",
    "http://[2002:7f00:1::]/",
    "http://[64:ff9b::7f00:1]/",
    "http://[64:ff9b:1::a00:1]/",
    "http://[2001:0:7f00:1::]/",
    "http://[fe80::1]/",
    "http://[fc00::1]/",
    "http://[fd00:ec2::254]/",
    "http://[ff02::1]/",
    "http://[2001:db8::1]/",
    "http://10.0.0.1/",
    "http://172.16.0.1/",
    "http://172.31.255.255/",
    "http://192.168.1.1/",
    "http://100.64.0.1/",
    "http://100.100.100.200/",
    "http://169.254.169.254/latest/meta-data/",
    "http://168.63.129.16/",
    "http://192.0.0.192/",
    "http://198.18.0.1/",
    "http://224.0.0.1/",
    "http://240.0.0.1/",
    "http://255.255.255.255/",
    "http://user@93.184.216.34/",
    "http://user:pass@example.com/",
    "http://a\\@127.0.0.1/",
    "http://127.0.0.1#@example.com/",
    "http://127。0。0。1/",
    "http://①②⑦.⓪.⓪.①/",
    "file:///etc/passwd",
    "ftp://127.0.0.1/",
    "gopher://127.0.0.1/",
    "javascript:alert(1)",
    "data:text/html,x",
    "//127.0.0.1/",
    "/etc/passwd",
    "",
    "http://",
    "http:///x",
    "http://[::1",
    "http://127.0.0.1:99999/",
    "http://127.0.0.1:0/",
    "http://a\nb/",
    "http://a\r\nHost: b/",
    "http://\ud800/",
    "http://a/\ud800",
    "x" * 70_000,
    None,
    7,
    ["http://example.com"],
]


@pytest.mark.parametrize("url", HOSTILE, ids=lambda url: repr(url)[:40])
def test_hostile_addresses_are_refused_before_any_connection(url, monkeypatch):
    """With the system's own look-up, which knows all notations of numbers."""

    def never(*_args, **_options):
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket, "create_connection", never)
    assert fault(fetch.PageReader(), url).kind == "refused"


@pytest.mark.parametrize(
    "address",
    [
        "93.184.216.34",
        "8.8.8.8",
        "1.1.1.1",
        "172.32.0.1",
        "100.128.0.1",
        "2606:4700::1111",
        "2a00:1450::1",
    ],
)
def test_public_addresses_are_public(address):
    assert fetch.is_public(address)


def test_names_that_mean_private_addresses_are_refused(site, reader):
    for host in ("inside.test", "both.test", "none.test", CLOSED):
        assert fault(reader, f"http://{host}:{site.port}/").kind == "refused"
    assert fault(reader, f"http://odd.test:{site.port}/").kind == "not_found"
    assert site.seen == []


@pytest.mark.parametrize(
    "place",
    [
        "http://inside.test:{}/secret",
        "http://127.0.0.1:{}/secret",
        "//127.0.0.1:{}/secret",
        "http://[::1]:{}/secret",
        "http://me@example.test:{}/secret",
        "file:///etc/passwd",
        "http://169.254.169.254/",
        "http://2130706433:{}/secret",
    ],
)
def test_redirects_pass_the_same_gate(site, reader, place, monkeypatch):
    monkeypatch.setattr(
        reader,
        "_resolver",
        lambda host: {"example.test": [OPEN], "inside.test": [CLOSED], "2130706433": [CLOSED]}.get(
            host, [host]
        ),
    )
    site.page("/secret", b"<p>secret</p>")
    url = site.page("/a", status=302, Location=place.format(site.port))
    assert fault(reader, url).kind == "refused"
    assert [path for _, path, _ in site.seen] == ["/a"]


def test_permitted_redirects_are_followed_to_a_bound(site, reader):
    last = site.page("/end", b"<p>end</p>")
    for i in range(7):
        site.page(f"/{i}", status=307, Location="/end" if i == 0 else f"/{i - 1}")
    page = reader({"url": last.replace("/end", "/4")}, 20.0)
    assert (page["url"], page["text"]) == (last, "end")
    assert "redirects" in fault(reader, last.replace("/end", "/6")).detail
    there = f"http://other.test:{site.port}/end"
    assert reader({"url": site.page("/x", status=301, Location=there)}, 20.0)["url"] == there
    assert fault(reader, site.page("/no", status=302)).kind == "refused"
    assert reader({"url": site.page("/made", b"made", "text/plain", 201, Location="/x")}, 20.0)


def test_a_resolver_that_changes_its_answer_is_asked_once_a_hop(site, reader):
    """DNS rebinding: the second answer is private. It must never be dialled."""
    answers = [[OPEN], [CLOSED], [CLOSED]]
    reader._resolver = lambda host: answers.pop(0)
    url = site.page("/a", b"fine", "text/plain")
    assert reader({"url": url}, 20.0)["text"] == "fine"
    assert len(answers) == 2 and site.seen[0][0] == OPEN
    assert fault(reader, url).kind == "refused"
    assert len(site.seen) == 1


def test_private_addresses_only_when_asked_for(site):
    url = site.page("/a", b"mine", "text/plain").replace("example.test", CLOSED)
    assert fault(fetch.PageReader(), url).kind == "refused"
    assert fetch.PageReader(allow_private=True)({"url": url}, 20.0)["text"] == "mine"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (socket.gaierror(socket.EAI_NONAME, "no"), "not_found"),
        (socket.gaierror(socket.EAI_AGAIN, "later"), "connection"),
        (UnicodeError("label too long"), "not_found"),
    ],
)
def test_look_ups_that_fail(error, kind):
    def resolver(host):
        raise error

    assert fault(fetch.PageReader(resolver=resolver), "http://a.test/").kind == kind


def test_a_look_up_that_hangs_ends_with_the_call():
    over = threading.Event()
    reader = fetch.PageReader(resolver=lambda host: over.wait(60) and [])
    assert fault(reader, "http://a.test/", 0.3).kind == "timeout"
    over.set()


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, "auth"),
        (403, "forbidden"),
        (404, "not_found"),
        (410, "not_found"),
        (418, "forbidden"),
        (429, "rate_limited"),
        (500, "server"),
        (503, "server"),
        (304, "malformed"),
    ],
)
def test_statuses(site, reader, status, kind):
    assert fault(reader, site.page("/a", status=status, Retry_After="7")).kind == kind


def test_what_is_wrong_with_a_page_voids_no_rollout_and_stops_no_other_page(site, reader):
    """401, 503, a closed port, silence, broken bytes: each an answer about that one page."""
    site.raw["/silent"] = lambda out: time.sleep(1)
    with socket.socket() as held:  # bound, not listening
        held.bind((OPEN, 0))
        bad = [
            site.page("/401", status=401),
            site.page("/503", status=503),
            f"http://example.test:{held.getsockname()[1]}/",
            f"http://example.test:{site.port}/silent",
            site.page("/b", b"%PDF-1.4", "application/pdf"),
        ]
        good = site.page("/good", b"fine", "text/plain")
        policy = ReliabilityPolicy(attempts=2, timeout_s=0.8, backoff_s=0.01, breaker_failures=1)
        with Toolbox(None, backends={"visit": [reader]}, policies={"visit": policy}) as toolbox:
            for url in bad:
                result = toolbox.call("visit", {"url": [url], "goal": ""})
                assert result.text == f"Error: {url} could not be accessed."
                assert (result.ok, result.error, result.env_fault) == (False, "empty", False)
                assert not toolbox.call("visit", {"url": [bad[0]], "goal": ""}).cache_hit
            assert toolbox.call("visit", {"url": [good], "goal": ""}).ok
    paths = [path for _, path, _ in site.seen]
    assert paths.count("/503") == 2 and paths.count("/401") == 6  # tried again, and not


@pytest.mark.parametrize(
    "name", ["idna", "-idna", "punycode", "-punycode", ":punycode", "_punycode", "Puny-Code"]
)
def test_an_encoding_that_takes_hours_is_not_used_under_any_spelling(site, reader, name):
    body = b"a" * 300_000 + b"-" + b"9z" * 300_000  # as punycode: minutes
    url = site.page("/a", body, f"text/plain; charset={name}")
    assert reader({"url": url}, 5.0)["text"].startswith("aaa")
    assert reading.decode(b"abc-", name) == "abc-" and not reading.codec(name)
    assert reading.codec("GBK") == "gbk" and reading.codec("a\0b") == ""


OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"


def drip(first, piece, pause=0.02, times=2_000):
    def write(out):
        out.write(first)
        for _ in range(times):
            out.write(piece)
            out.flush()
            time.sleep(pause)

    return write


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
def test_servers_that_misbehave(site, reader, write, kind):
    site.raw["/a"] = write
    assert fault(reader, f"http://example.test:{site.port}/a", 1.0).kind == kind


def test_no_server_at_all(reader):
    with socket.socket() as held:  # bound, not listening
        held.bind((OPEN, 0))
        url = f"http://example.test:{held.getsockname()[1]}/"
        assert fault(reader, url).kind == "connection"


def test_bodies_are_bounded_as_sent_and_as_unpacked(site, reader, monkeypatch):
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


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_tls_checks_the_name_of_the_url_at_the_pinned_address(tmp_path, reader, monkeypatch):
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
    with Handler.serve(context) as port:
        trusting = ssl.create_default_context(cafile=tmp_path / "cert.pem")
        assert fault(reader, f"https://example.test:{port}/").kind == "connection"  # not trusted
        monkeypatch.setattr(fetch, "_tls", lambda: trusting)
        assert reader({"url": f"https://example.test:{port}/"}, 20.0)["text"] == "secure"
        assert fault(reader, f"https://other.test:{port}/").kind == "connection"  # another name
    assert names == ["example.test", "example.test", "other.test"]


class Handler(http.server.BaseHTTPRequestHandler):
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
        server.handle_error = lambda *_: None  # handshakes that the client breaks off
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()
        server.server_close()


def test_random_replies_give_typed_results_only(site, reader):
    """Bytes in place of HTTP, bytes after a good head, and changed heads."""
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
            assert wrong.kind in (*PAGE, *ANSWERS), replies["now"]
            assert not wrong.detail.startswith("timeout"), replies["now"]
            kinds.add(wrong.kind)
    assert set(PAGE) <= kinds


def test_random_addresses_give_typed_results_only():
    rng = random.Random(7)
    pieces = [
        "http",
        "https",
        "://",
        ":",
        "/",
        "@",
        "[",
        "]",
        "::1",
        "127.0.0.1",
        "%",
        "\\",
        "#",
        "?",
        ".",
        "a",
        "é",
        "\ud800",
        "0x7f",
        "\n",
        " ",
        "99999",
        "xn--",
        "。",
        "\0",
    ]
    for _ in range(2_000):
        url = rng.choice(["", "http://", "https://"])
        url += "".join(rng.choices(pieces, k=rng.randrange(1, 8)))
        try:
            assert re.match("https?$", fetch.web_address(url).scheme)
        except ToolFault as wrong:
            assert wrong.kind == "refused"
