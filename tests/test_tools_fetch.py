"""Live pages: supported contents, and the fault of each error.

Run: python -m pytest tests/test_tools_fetch.py
"""

import gzip
import socket
import time

import pytest

from drlib.tools import ReliabilityPolicy, Toolbox
from drlib.worlds import charsets
from tests.web_servers import CLOSED, OPEN, fault, reader, site

pytest.importorskip("trafilatura")

__all__ = ["reader", "site"]  # fixtures


def test_page_is_read_with_host_header_and_without_proxies(site, reader, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://{CLOSED}:1")
    url = site.page("/a?b=c", b"<title>T</title><p>x <b>y</b></p>")
    page = reader({"url": url}, 20.0)
    assert page == {"url": url, "title": "T", "text": "x y"} or page["text"] == "x\ny"
    address, path, headers = site.seen[0]
    assert (address, path, headers["Host"]) == (OPEN, "/a?b=c", f"example.test:{site.port}")


def test_text_json_pdf_charsets_and_gzip(site, reader):
    def read(url):
        return reader({"url": url}, 20.0)["text"]

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
def test_other_content_types_are_refused(site, reader, kind):
    wrong = fault(reader, site.page("/x", b"x", kind))
    assert wrong.kind == "refused" and repr(kind) in wrong.detail


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


def test_page_faults_are_answers_about_that_page_only(site, reader):
    """Check 401, 503, a closed port, no response and broken bytes."""
    site.raw["/silent"] = lambda out: time.sleep(1)
    with socket.socket() as closed_socket:  # bound, not listening
        closed_socket.bind((OPEN, 0))
        bad = [
            site.page("/401", status=401),
            site.page("/503", status=503),
            f"http://example.test:{closed_socket.getsockname()[1]}/",
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
    assert paths.count("/503") == 2 and paths.count("/401") == 6  # retried and not retried


@pytest.mark.parametrize(
    "name", ["idna", "-idna", "punycode", "-punycode", ":punycode", "_punycode", "Puny-Code"]
)
def test_quadratic_codecs_are_never_used(site, reader, name):
    body = b"a" * 300_000 + b"-" + b"9z" * 300_000  # as punycode: minutes
    url = site.page("/a", body, f"text/plain; charset={name}")
    assert reader({"url": url}, 5.0)["text"].startswith("aaa")
    assert charsets.decode(b"abc-", name) == "abc-" and not charsets.codec(name)
    assert charsets.codec("GBK") == "gb18030" and charsets.codec("a\0b") == ""
