"""Live providers: late, cut, huge and malformed replies, and secrecy of API keys.

Run: python -m pytest tests/test_tools_providers_faults.py
"""

import json
import logging
import random
import socket
import time
import traceback
from functools import partial

import pytest

from drlib.tools import fetch
from drlib.tools.backends import FAULT_KINDS, ToolFault
from drlib.tools.providers import PROVIDERS, Provider
from tests.provider_examples import (
    KEY,
    MARKDOWN,
    RECORDED,
    SEARCH,
    ask,
    check,
    fault,
    server,
)
from tests.web_servers import drip

__all__ = ["server"]  # a fixture

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "write",
    [
        lambda out: time.sleep(2),
        drip(HEAD, b"X: y\r\n"),
        drip(HEAD + b"\r\n", b" "),
    ],
    ids=["silent", "headers", "body"],
)
def test_one_deadline_covers_the_call(server, write):
    server.reply = write
    assert fault(server, timeout_s=0.5).kind == "timeout"


def test_cut_connections(server):
    body = json.dumps(RECORDED["serper"][0]).encode()
    length = f"Content-Length: {len(body)}\r\n\r\n".encode()
    server.reply = lambda out: out.write(HEAD + length + body[:40])
    assert fault(server).kind == "connection"
    server.reply = lambda out: None
    assert fault(server).kind == "connection"
    server.reply = lambda out: out.write(HEAD + b"\r\n" + body[:40])  # no length: cut JSON
    assert fault(server).kind == "malformed"
    with socket.socket() as closed_socket, pytest.raises(ToolFault) as raised:
        closed_socket.bind(("127.0.0.1", 0))  # bound, not listening
        Provider("serper", f"http://127.0.0.1:{closed_socket.getsockname()[1]}")(
            {"query": "a"}, 5.0
        )
    assert raised.value.kind == "connection"


def test_huge_bodies(server, monkeypatch):
    monkeypatch.setattr(fetch, "MAX_BYTES", 1_000)
    server.says({"organic": [], "x": "y" * 1_000})
    assert (fault(server).kind, fault(server, "jina").kind) == ("too_large", "unreadable")


def iter_broken_replies(name):
    """Yield the recorded reply with one value replaced by another type."""
    good = json.dumps(RECORDED[name][0])

    def places(value, path=()):
        yield path
        inner = enumerate(value) if isinstance(value, list) else getattr(value, "items", list)()
        for key, child in inner:
            yield from places(child, (*path, key))

    for path in places(json.loads(good)):
        for other in (7, "text", [], {}, [7], [[]], {"a": 7}, True, None):
            spot = value = json.loads(good)
            if not path:
                yield other
                continue
            for key in path[:-1]:
                spot = spot[key]
            spot[path[-1]] = other
            yield value


@pytest.mark.parametrize("name", SEARCH)
def test_altered_replies_are_malformed_or_still_hits(name, monkeypatch):
    monkeypatch.setenv(PROVIDERS[name].key.strip("?") or "UNUSED", KEY)
    backend, replies = Provider(name, "http://127.0.0.1"), []
    monkeypatch.setattr("drlib.tools.providers.exchange", lambda *a, **b: (200, {}, replies[-1]))
    malformed = 0
    for value in iter_broken_replies(name):
        replies.append(json.dumps(value).encode())
        try:
            check(backend({"query": "a"}, 5.0))
        except ToolFault as wrong:
            assert wrong.kind == "malformed"
            malformed += 1
    assert malformed > 20


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>busy</html>",
        b'{"organic": [',
        b"[]",
        b"null",
        b"7",
        b'"organic"',
        b"{}",
        b'{"organic": null}',
        b'{"organic": {}}',
        b'{"organic": ""}',
        b'{"organic": [7]}',
        b'{"organic": [[["title", "a"], ["link", "b"]]]}',
        b'{"organic": [{}]}',
        b'{"organic": [{"title": 7, "link": "a"}]}',
        b'{"organic": [{"title": "a", "link": ["b"]}]}',
        b'{"organic": [{"title": "a", "link": "b", "snippet": {}}]}',
        b"\xff\xfe{",
        b"\0" * 9,
        b"[" * 100_000,
        b'{"organic": [{"title": "a", "date": true}]}',
        b"9" * 10_000,
    ],
)
def test_malformed_replies(server, body):
    server.says(body)
    wrong = fault(server)
    assert wrong.kind == "malformed" and wrong.detail.startswith("serper")


def test_lone_surrogates_do_not_pass(server):
    server.says(b'{"organic": [{"title": "a\\ud800b", "link": "c"}]}')
    assert ask(server, "serper")[0]["title"] == "a?b"
    assert Provider("serper", server.url)({"query": "a\ud800"}, 5.0)


def test_key_never_appears_in_objects_errors_or_logs(server, caplog):
    caplog.set_level(logging.DEBUG)
    for name in PROVIDERS:
        backend = Provider(name, server.url)
        assert KEY not in repr(backend) + repr(vars(backend))
        for reply in ((401, {}, KEY.encode()), (200, {}, b"")):
            server.reply = reply
            arguments = {"url": "https://a.org"} if name == "jina" else {"query": "a"}
            with pytest.raises(ToolFault) as raised:
                backend(arguments, 20.0)
            error_text = "".join(traceback.format_exception(raised.value)) + repr(raised.value)
            assert KEY not in error_text
    assert all(KEY not in path for _, path, _, _ in server.seen)
    assert KEY not in caplog.text


def test_invalid_key_is_not_shown(server, monkeypatch):
    for bad in ("secret\nkey", "secret é"):
        monkeypatch.setenv("SERPER_API_KEY", bad)
        with pytest.raises((ToolFault, ValueError)) as raised:
            ask(server, "serper")
        assert "secret" not in "".join(traceback.format_exception(raised.value))


def answer_with(body, *_arguments, **_options):
    """Return a replacement for `exchange`."""
    return 200, {}, body


def test_random_replies_return_typed_results(server, monkeypatch):
    """Parse 10,000 bodies with all parsers, 1,000 of them through a socket."""
    rng, kinds = random.Random(8), set()
    backends = [Provider(name, server.url) for name in PROVIDERS]
    real = fetch.exchange
    for i in range(10_000):
        backend = backends[i % len(backends)]
        body = bytearray(json.dumps(RECORDED.get(backend.name, [MARKDOWN])[0]).encode())
        for _ in range(rng.randrange(6)):
            body[rng.randrange(len(body))] = rng.randrange(256)
        body = bytes(body) if rng.random() < 0.7 else rng.randbytes(rng.randrange(200))
        server.says(body)
        direct = partial(answer_with, body)
        monkeypatch.setattr("drlib.tools.providers.exchange", real if i % 10 == 0 else direct)
        try:
            value = backend({"query": "a", "url": "https://a.org"}, 20.0)
            if backend.name == "jina":
                json.dumps(value, ensure_ascii=False).encode()
            else:
                check(value)
        except ToolFault as wrong:
            assert wrong.kind in FAULT_KINDS
            kinds.add(wrong.kind)
    assert kinds == {"malformed", "unreadable"}
