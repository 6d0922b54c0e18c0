"""Hostile pages and servers: odd redirects, floods, random bytes.

Real sockets on loopback, as in test_tools_fetch.py: 127.0.0.2 stands for a public address,
127.0.0.1 at the same port for a private one, which no redirect may reach.
"""

import gzip
import random
import threading
import time
import zlib

import pytest

pytest.importorskip("trafilatura")

from drlib.tools import ReliabilityPolicy, Toolbox, fetch
from drlib.tools.backends import ANSWERS, PAGE_FAULTS, ToolFault
from tests.waiting import until
from tests.web_servers import OPEN, fault, reader, site

__all__ = ["reader", "site"]  # fixtures
OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
ONCE = ReliabilityPolicy(attempts=1, timeout_s=5.0)


def redirect(*places):
    """Return a raw redirect to these targets."""
    lines = b"".join(b"Location: " + place + b"\r\n" for place in places)
    reply = b"HTTP/1.1 302 Found\r\n" + lines + b"Content-Length: 0\r\n\r\n"
    return lambda out: out.write(reply)


def observe(reader, url):
    """Return the observation of `Toolbox.call` for a page; it must never raise."""
    with Toolbox(None, backends={"visit": [reader]}, policies={"visit": ONCE}) as toolbox:
        return toolbox.call("visit", {"url": [url], "goal": "g"})


def addresses(site):
    """Return the local addresses that received a connection."""
    return {address for address, _, _ in site.seen}


PRIVATE = [
    b"http:\\\\127.0.0.1:%d\\x",
    b"http:127.0.0.1:%d",
    b"http:/127.0.0.1:%d/",
    b"//127.0.0.1:%d",
    b"http:////127.0.0.1:%d/",
    b"http:\\/127.0.0.1:%d/",
    b"http://127.1:%d/",
    b"http://0x7f.1:%d/",
    b"HTTP:\\\\127.0.0.1:%d\\x",
    b"http://example.test@127.0.0.1:%d/",
    b"http://2130706433:%d/",
    b"http://[::ffff:127.0.0.1]:%d/",
    "http://127。0。0。1:%d/".encode(),
    b"  //127.0.0.1:%d/",
    b"http://127.0.0.1:%d\\@example.test/",
]
ODD = [
    b"http:x",
    b"http:",
    b"http:/x",
    b"https:443",
    b"https:x",
    b"http:?x",
    b"http:#x",
    b"http:\\\\",
    b"http://[",
    b"http://]",
    b"http://[::1",
    b"http://[::1]x/",
    b"http://[fe80::1%25lo]/",
    b"http://a:99999/",
    b"http://a:0/",
    b"http://a:-1/",
    b"http://a:b/",
    b"http://user@:80",
    b"http://user:word@example.test/",
    b"http://:80",
    b"http://",
    b"http:///x",
    b"//",
    b"///",
    b"",
    b"http://ex ample.test/",
    b"http://xn--a/",
    b"http://xn--\xff.test/",
    b"http://a..b/",
    b"http://\xff\xfe/",
    "http://\u202eexample.test/".encode(),
    "http://a\u3002\u3002/".encode(),
    b"http://" + b"x" * 300 + b".test/",
    b"http://" + b"\xc3\xa9" * 3_000 + b"/",
    b"x" * 70_000,
    b"file:///etc/passwd",
    b"file:x",
    b"javascript:alert(1)",
    b"data:text/html,x",
    b"about:blank",
    b"mailto:a@b",
    b"x:",
    b"1:2",
    b"://",
    b":",
    b"http://a\x01/",
    b"\x7f",
    b"a\tb:\tc://",
]


@pytest.mark.parametrize("place", ODD, ids=lambda place: repr(place)[:40])
def test_odd_redirect_is_an_answer_with_its_reason(site, reader, place):
    site.raw["/a"] = redirect(place)
    url = f"http://example.test:{site.port}/a"
    wrong = fault(reader, url)
    assert wrong.kind in ("refused", "not_found", "connection") and wrong.detail
    result = observe(reader, url)
    assert result.text == f"Error: {url} could not be accessed."
    assert (result.ok, result.error, result.env_fault) == (False, "empty", False)
    assert addresses(site) == {OPEN}


@pytest.mark.parametrize("place", [b"http:x", b"http:\\\\127.0.0.1\\x", b"https:443", b"https:"])
def test_redirect_without_a_host_is_refused(site, reader, place):
    site.raw["/a"] = redirect(place)
    wrong = fault(reader, f"http://example.test:{site.port}/a")
    assert wrong.kind == "refused" and repr(place.decode()) in wrong.detail
    assert [path for _, path, _ in site.seen] == ["/a"], "it is not read as a path either"


@pytest.mark.parametrize("place", PRIVATE, ids=lambda place: repr(place)[:40])
def test_redirects_never_reach_a_private_address(site, monkeypatch, place):
    """Use the system's name resolution, which accepts all number notations."""
    real = fetch.is_public
    monkeypatch.setattr(fetch, "is_public", lambda a: a == OPEN or real(a))
    names = {"example.test": [OPEN]}
    reader = fetch.PageReader(resolver=lambda host: names.get(host) or fetch.resolve(host))
    site.page("/x", b"secret", "text/plain")
    site.page("/", b"secret", "text/plain")
    site.raw["/a"] = redirect(place % site.port)
    result = observe(reader, f"http://example.test:{site.port}/a")
    assert not result.env_fault and "secret" not in result.text
    assert addresses(site) == {OPEN}


def test_several_redirect_targets_are_refused(site, reader):
    last = site.page("/end", b"end", "text/plain")
    first = last.replace("/end", "/a")
    site.raw["/a"] = redirect(b"/end", b"/end")
    assert reader({"url": first}, 5.0)["text"] == "end"
    site.raw["/a"] = redirect(b"/end", b"/other")
    wrong = fault(reader, first)
    assert wrong.kind == "refused" and "2 places" in wrong.detail


def test_ordinary_redirects_are_still_followed(site, reader):
    site.page("/b/end", b"end", "text/plain")
    for place in (
        b"/b/end",
        b"b/end",
        b"./b/end",
        b"//example.test:%d/b/end" % site.port,
        b"../b/end",
        b"/b/%65nd",
        b"/b/end#part",
    ):
        site.raw["/a"] = redirect(place)
        site.page("/b/%65nd", b"end", "text/plain")
        assert reader({"url": f"http://example.test:{site.port}/a"}, 5.0)["text"] == "end", place


@pytest.mark.parametrize("url", ["https://.example.test:{}/", "http://scoped.test:{}/"])
def test_names_rejected_by_tls_or_httpx(site, url):
    """Check a name that TLS cannot send and a zoned address that httpx rejects."""
    own = fetch.PageReader(
        allow_private=True,
        resolver=lambda host: ["fe80::1%1"] if host == "scoped.test" else [OPEN],
    )
    assert fault(own, url.format(site.port), 3.0).kind == "connection"


# ---------------------------------------------------------------------------------------------
# servers


def flood(first, piece):
    """Send `first`, then `piece` as fast as it is read, until the client stops."""

    def write(out):
        out.write(first)
        while True:
            out.write(piece)

    return write


CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("write", "kinds"),
    [
        (flood(b"", b"HTTP/1.1 103 Early Hints\r\nLink: y\r\n\r\n" * 500), ("timeout",)),
        (flood(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 500), ("connection",)),
        (flood(CHUNKED, b"1\r\na\r\n" * 500), ("timeout", "too_large")),
        (flood(CHUNKED + b"1;", b"x" * 500), ("connection",)),
        (flood(CHUNKED + b"0\r\n", b"X: y\r\n" * 500), ("connection",)),
        (lambda out: out.write(CHUNKED + b"f" * 40 + b"\r\n"), ("connection",)),
        (lambda out: out.write(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n"), ("connection",)),
        (
            lambda out: out.write(OK + b"Content-Length: " + b"9" * 5_000 + b"\r\n\r\n"),
            ("connection",),
        ),
        (lambda out: out.write(OK + b"Content-Length: 99999999999999\r\n\r\nx"), ("connection",)),
        (lambda out: out.write(OK + b"Content-Length: -1\r\n\r\nx"), ("connection",)),
        (lambda out: out.write(OK + b"Content-Encoding: \xff\r\n\r\nx"), ("malformed",)),
    ],
    ids=[
        "1xx",
        "headers",
        "chunks",
        "extension",
        "trailers",
        "chunk size",
        "upgrade",
        "digits",
        "length",
        "negative",
        "encoding",
    ],
)
def test_floods_and_oversized_headers_end_at_the_deadline(site, reader, write, kinds):
    before = threading.active_count()
    site.raw["/a"] = write
    began = time.monotonic()
    assert fault(reader, f"http://example.test:{site.port}/a", 1.0).kind in kinds
    assert time.monotonic() - began < 3
    until(lambda: threading.active_count() <= before)  # the server's threads run in this process


@pytest.mark.parametrize(
    "body",
    [
        b"<div>" * 30_000,
        b"<b><p><table><tr><td>" * 5_000,
        b"<svg><g>" * 20_000,
        b"<!--" * 100_000,
        b"&#x110000;&#0;&#xD800;&bogus;" * 1_000,
        b"\0" * 5_000 + b"<p>x",
        b"<meta charset=idna><p>x",
        b"<?xml version='1.0' encoding='\xff'?><p>x",
        b"<base href='http:x'><a href='http://['>x</a>",
    ],
    ids=lambda body: repr(body[:20]),
)
def test_parser_breaking_html_is_read_or_reported(site, reader, body):
    result = observe(reader, site.page("/a", body))
    assert not result.env_fault and (result.ok or result.error == "empty")


# ---------------------------------------------------------------------------------------------
# at random

PIECES = [
    b"http",
    b"https",
    b"://",
    b":",
    b"/",
    b"//",
    b"@",
    b"[",
    b"]",
    b"::1",
    b"127.0.0.1",
    b"%",
    b"%zz",
    b"%00",
    b"\\",
    b"\\\\",
    b"#",
    b"?",
    b".",
    b"a",
    b"\xc3\xa9",
    b"\xff",
    b"0x7f",
    b"2130706433",
    b" ",
    b"\t",
    b"99999",
    b"xn--",
    b"\xe3\x80\x82",
    b"example.test",
    b"file",
    b"data:",
    b";",
    b",",
    b"\x01",
    b"\xe2\x80\xae",
    b"x" * 70,
]
STARTS = (b"", b"http:", b"http://", b"https://", b"//", b"http:\\\\", b"/")
CODINGS = {b"gzip": gzip.compress, b"deflate": zlib.compress, b"br": bytes, b"gzip, gzip": bytes}
CHARSETS = (b"hex", b"rot13", b"undefined", b"unicode_escape", b"utf-7", b"os.path", b"\xe9", b"..")
DATES = (
    b"9" * 5_000,
    b"-1",
    b"nan",
    b"Mon, 99 Foo 99999 99:99:99 +9999999",
    b"Mon",
    b",",
    b"1 Jan",
    b"Mon, 01 Jan 0001 00:00:00 GMT",
    b"Mon, 31 Dec 9999 23:59:59 -2359",
)


def random_redirect(rng):
    lines = b""
    for _ in range(rng.choice((1, 1, 1, 2))):
        place = rng.choice(STARTS) + b"".join(rng.choices(PIECES, k=rng.randrange(8)))
        lines += b"Location: " + place + b"\r\n"
    return b"HTTP/1.1 302 Found\r\n" + lines + b"Content-Length: 0\r\n\r\n"


def random_page(rng):
    status = rng.choice((b"200", b"200", b"200", b"204", b"304", b"429", b"503", b"999"))
    head = b"HTTP/1.1 " + status + b" X\r\nContent-Type: text/plain; charset="
    head += rng.choice(CHARSETS) + b"\r\nRetry-After: " + rng.choice(DATES) + b"\r\n"
    body = rng.choice((b"", b"hello", rng.randbytes(300), b"a" * 70_000))
    if rng.random() < 0.4:
        coding = rng.choice([*CODINGS])
        head += b"Content-Encoding: " + coding + b"\r\n"
        body = CODINGS[coding](body)[: rng.randrange(400)]
    if rng.random() < 0.4:
        head += b"Transfer-Encoding: chunked\r\n"
        body = b"%x\r\n%s\r\n%s\r\n\r\n" % (len(body), body, rng.choice((b"0", b"-1", b"zz")))
    return head + b"\r\n" + body


@pytest.mark.filterwarnings("ignore:invalid escape:DeprecationWarning")  # "unicode_escape"
@pytest.mark.parametrize("make", [random_redirect, random_page])
def test_random_raw_replies_return_typed_results(site, reader, make):
    rng = random.Random(8)
    kinds, replies = set(), {}
    site.raw["/a"] = lambda out: out.write(replies["now"])
    for _ in range(1_500):
        data = bytearray(make(rng))
        if rng.random() < 0.2:
            data[rng.randrange(min(300, len(data)))] = rng.randrange(256)
        replies["now"] = bytes(data)
        try:
            reader({"url": f"http://example.test:{site.port}/a"}, 10.0)
        except ToolFault as wrong:
            assert wrong.kind in (*PAGE_FAULTS, *ANSWERS), replies["now"]
            assert not wrong.detail.startswith("timeout"), replies["now"]
            kinds.add(wrong.kind)
    assert {"unreachable", "refused" if make is random_redirect else "unreadable"} <= kinds
    assert addresses(site) == {OPEN}
