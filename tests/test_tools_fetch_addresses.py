"""Live pages: hostile addresses, names and redirects to private networks.

Run: python -m pytest tests/test_tools_fetch_addresses.py
"""

import random
import re
import socket
import threading

import pytest

from drlib.tools import fetch
from drlib.tools.backends import ToolFault
from tests.web_servers import CLOSED, OPEN, fault, reader, site

pytest.importorskip("trafilatura")

__all__ = ["reader", "site"]  # fixtures
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
def test_hostile_addresses_are_refused_before_connecting(url, monkeypatch):
    """Use the system's name resolution, which accepts all number notations."""

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


def test_names_of_private_addresses_are_refused(site, reader):
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
def test_redirects_are_checked_like_addresses(site, reader, place, monkeypatch):
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


def test_redirects_are_followed_up_to_a_limit(site, reader):
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


def test_each_hop_is_resolved_once(site, reader):
    """Prevent DNS rebinding: the second, private answer must never be used."""
    answers = [[OPEN], [CLOSED], [CLOSED]]
    reader._resolver = lambda host: answers.pop(0)
    url = site.page("/a", b"fine", "text/plain")
    assert reader({"url": url}, 20.0)["text"] == "fine"
    assert len(answers) == 2 and site.seen[0][0] == OPEN
    assert fault(reader, url).kind == "refused"
    assert len(site.seen) == 1


def test_private_addresses_need_allow_private(site):
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
def test_failed_name_resolution(error, kind):
    def resolver(host):
        raise error

    assert fault(fetch.PageReader(resolver=resolver), "http://a.test/").kind == kind


def test_hanging_name_resolution_ends_at_the_deadline():
    over = threading.Event()
    reader = fetch.PageReader(resolver=lambda host: over.wait(60) and [])
    assert fault(reader, "http://a.test/", 0.3).kind == "timeout"
    over.set()


def test_random_addresses_return_typed_results():
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
