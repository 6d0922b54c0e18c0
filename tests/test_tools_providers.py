"""Live providers against a replay server on loopback: each one's reply, and every fault."""

import contextlib
import email.utils
import http.server
import json
import logging
import random
import socket
import threading
import time
import traceback
from urllib.parse import parse_qs, urlsplit

import pytest

from drlib.tools import fetch
from drlib.tools.backends import KINDS, ToolFault
from drlib.tools.providers import FIELDS, PROVIDERS, Provider

KEY = "k3y-that-nobody-may-see"
SEARCH = sorted(set(PROVIDERS) - {"jina"})
QUESTION = "what is Zürich & co?"


def hit(title, url, snippet, date="", source=""):
    return dict(zip(FIELDS, (title, url, snippet, date, source), strict=True))


# provider: (the reply as it is recorded in shape, the hits that it stands for)
RECORDED = {
    "serper": (
        {
            "searchParameters": {"q": "x"},
            "knowledgeGraph": {"title": "Z"},
            "organic": [
                {
                    "title": "A",
                    "link": "https://a.org",
                    "snippet": "of a",
                    "date": "Jan 2, 2024",
                    "position": 1,
                },
                {"title": "B", "link": "https://b.org", "source": "B News", "position": 2},
            ],
        },
        [
            hit("A", "https://a.org", "of a", "Jan 2, 2024"),
            hit("B", "https://b.org", "", "", "B News"),
        ],
    ),
    "serper_scholar": (
        {
            "organic": [
                {
                    "title": "P",
                    "link": "https://p.org",
                    "publicationInfo": "A Author - Journal, 2020",
                    "snippet": "s",
                    "year": 2020,
                    "citedBy": 7,
                },
                {"title": "Q", "pdfUrl": "https://q.org/q.pdf", "snippet": "t"},
            ]
        },
        [
            hit("P", "https://p.org", "s", "2020", "A Author - Journal, 2020"),
            hit("Q", "https://q.org/q.pdf", "t"),
        ],
    ),
    "tavily": (
        {
            "query": "x",
            "answer": None,
            "results": [
                {
                    "title": "A",
                    "url": "https://a.org",
                    "content": "c",
                    "score": 0.9,
                    "raw_content": None,
                }
            ],
        },
        [hit("A", "https://a.org", "c")],
    ),
    "searxng": (
        {
            "query": "x",
            "results": [
                {
                    "title": "A",
                    "url": "https://a.org",
                    "content": "c",
                    "engine": "wikipedia",
                    "publishedDate": None,
                    "score": 1.0,
                }
            ],
            "unresponsive_engines": [],
        },
        [hit("A", "https://a.org", "c", "", "wikipedia")],
    ),
    "openalex": (
        {
            "meta": {"count": 2},
            "results": [
                {
                    "id": "https://openalex.org/W1",
                    "title": "A",
                    "doi": "https://doi.org/10.1/x",
                    "publication_date": "2021-05-04",
                    "abstract_inverted_index": {
                        "of": [1, 4],
                        "The": [0],
                        "cats": [2],
                        "and": [3],
                        "dogs": [5],
                    },
                    "primary_location": {
                        "landing_page_url": "https://a.org",
                        "pdf_url": None,
                        "source": {"display_name": "Journal of A"},
                    },
                },
                {
                    "id": "https://openalex.org/W2",
                    "title": None,
                    "doi": None,
                    "publication_date": "2020-01-01",
                    "abstract_inverted_index": None,
                    "primary_location": None,
                },
            ],
        },
        [
            hit("A", "https://a.org", "The of cats and of dogs", "2021-05-04", "Journal of A"),
            hit("", "https://openalex.org/W2", "", "2020-01-01"),
        ],
    ),
    "retrieve": (
        {
            "result": [
                [
                    {
                        "document": {"id": "17", "contents": '"Moon"\nIt is round.\nIt is far.'},
                        "score": 9.5,
                    },
                    {"id": 3, "contents": "Sun\nHot.", "url": "https://sun.org"},
                ]
            ]
        },
        [hit("Moon", "17", "It is round.\nIt is far."), hit("Sun", "https://sun.org", "Hot.")],
    ),
}
MARKDOWN = (
    "Title: The moon\n\nURL Source: https://a.org/\n\nMarkdown Content:\n# Moon\n\nIt is round.\n"
)


class Replay(http.server.ThreadingHTTPServer):
    """Answers every request with `reply`: (status, headers, body), or what writes to the socket."""

    daemon_threads = True

    def __init__(self):
        self.reply, self.seen = (200, {}, b"{}"), []
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def says(self, value, status=200, **headers):
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.reply = (status, {k.replace("_", "-"): v for k, v in headers.items()}, body)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.seen.append((self.command, self.path, dict(self.headers), body))
        if callable(self.server.reply):
            with contextlib.suppress(OSError):
                self.server.reply(self.wfile)
            self.close_connection = True
            return
        status, headers, body = self.server.reply
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    do_GET = do_POST

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    for variable in ("SERPER_API_KEY", "TAVILY_API_KEY", "JINA_API_KEY", "OPENALEX_API_KEY"):
        monkeypatch.setenv(variable, KEY)
    with Replay() as server:
        yield server
        server.shutdown()


def ask(server, name, k=10, timeout_s=20.0):
    arguments = {"url": "https://a.org/x?y=1"} if name == "jina" else {"query": QUESTION, "k": k}
    return Provider(name, server.url)(arguments, timeout_s)


def fault(server, name="serper", timeout_s=20.0):
    with pytest.raises(ToolFault) as raised:
        ask(server, name, timeout_s=timeout_s)
    return raised.value


@pytest.mark.parametrize("name", SEARCH)
def test_recorded_replies_become_hits_and_no_proxy_is_used(server, name, monkeypatch):
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    reply, hits = RECORDED[name]
    server.says(reply)
    assert ask(server, name) == hits
    assert ask(server, name, k=1) == hits[:1]
    assert Provider(name, server.url).name == name


def test_what_is_sent(server):
    sent = {}
    for name in SEARCH:
        server.says(RECORDED[name][0])
        ask(server, name, k=30)
        sent[name] = server.seen.pop()
    method, path, headers, body = sent["serper"]
    assert (method, path, json.loads(body)) == ("POST", "/search", {"q": QUESTION, "num": 30})
    assert headers["X-API-KEY"] == KEY and headers["Content-Type"] == "application/json"
    assert sent["serper_scholar"][1] == "/scholar"
    assert json.loads(sent["tavily"][3]) == {"query": QUESTION, "max_results": 20}
    assert sent["tavily"][2]["Authorization"] == f"Bearer {KEY}"
    assert json.loads(sent["retrieve"][3]) == {
        "queries": [QUESTION],
        "topk": 30,
        "return_scores": True,
    }
    for name, wanted in (
        ("searxng", {"q": [QUESTION], "format": ["json"]}),
        ("openalex", {"search": [QUESTION], "per_page": ["30"]}),
    ):
        method, path, headers, _ = sent[name]
        assert method == "GET" and parse_qs(urlsplit(path).query) == wanted
    assert sent["openalex"][2]["Authorization"] == f"Bearer {KEY}"
    assert "Authorization" not in sent["searxng"][2] and "Authorization" not in sent["retrieve"][2]


def test_the_jina_reader(server):
    server.says(MARKDOWN.encode())
    assert ask(server, "jina") == {
        "url": "https://a.org/x?y=1",
        "title": "The moon",
        "text": "# Moon\n\nIt is round.",
    }
    assert server.seen[0][:2] == ("GET", "/https://a.org/x?y=1")
    assert server.seen[0][2]["Authorization"] == f"Bearer {KEY}"
    server.says(b"only text")
    assert ask(server, "jina")["text"] == "only text"
    server.says(b"Title: x\n\nMarkdown Content:\n\n")
    assert fault(server, "jina").kind == "unreadable"  # the page is empty: no fault of Jina
    for url in ("file:///etc/passwd", "https://me:pw@a.org/", 3, "a\nb"):
        with pytest.raises(ToolFault) as raised:
            Provider("jina", server.url)({"url": url}, 5.0)
        assert raised.value.kind == "refused"


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("serper", "SERPER_API_KEY"),
        ("serper_scholar", "SERPER_API_KEY"),
        ("tavily", "TAVILY_API_KEY"),
        ("jina", "JINA_API_KEY"),
    ],
)
def test_a_missing_key_is_named_when_the_backend_is_made(monkeypatch, name, variable):
    for value in (None, "", "  "):
        monkeypatch.delenv(variable, raising=False)
        if value is not None:
            monkeypatch.setenv(variable, value)
        with pytest.raises(ValueError, match=f"environment variable {variable}"):
            Provider(name)


def test_other_settings_that_are_wrong_are_named(server, monkeypatch):
    for name in ("searxng", "retrieve"):
        with pytest.raises(ValueError, match=f"{name} needs base_url"):
            Provider(name)
    with pytest.raises(ValueError, match="no provider 'google'.*serper, "):
        Provider("google")
    for url in ("https://key@host.org", "ftp://host.org", "host.org"):
        with pytest.raises((ToolFault, ValueError), match="address"):
            Provider("searxng", url)
    monkeypatch.delenv("OPENALEX_API_KEY")
    server.says(RECORDED["openalex"][0])
    assert ask(server, "openalex") and "Authorization" not in server.seen[0][2]


def test_bad_arguments_are_refused(server):
    for wrong in (
        {},
        {"query": 3},
        {"query": None},
        {"query": ["a"]},
        {"query": "a", "k": 0},
        {"query": "a", "k": 101},
        {"query": "a", "k": "5"},
        {"query": "a", "k": True},
    ):
        with pytest.raises(ToolFault) as raised:
            Provider("serper", server.url)(wrong, 5.0)
        assert raised.value.kind == "refused" and server.seen == []


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, "auth"),
        (403, "forbidden"),
        (404, "forbidden"),
        (410, "forbidden"),
        (400, "refused"),
        (429, "rate_limited"),
        (500, "server"),
        (503, "server"),
        (414, "refused"),
        (422, "refused"),
        (402, "forbidden"),
        (432, "forbidden"),
        (302, "malformed"),
        (204, "malformed"),
    ],
)
@pytest.mark.parametrize("name", ["serper", "openalex", "jina"])
def test_statuses(server, name, status, kind):
    if name == "jina":  # about the page
        kind = {403: "refused", 404: "refused", 410: "refused", 204: "unreadable"}.get(status, kind)
    server.says(b"" if status == 204 else b'{"message": "no"}', status, Location="/elsewhere")
    assert fault(server, name).kind == kind
    assert len(server.seen) == 1  # nothing is followed, nothing is asked again


def test_searxng_says_what_its_403_means(server):
    server.says(b"", 403)
    for name in ("searxng", "serper"):
        assert ("search.formats" in fault(server, name).detail) is (name == "searxng")


def test_retry_after_in_seconds_and_as_a_date(server):
    soon = email.utils.formatdate(time.time() + 50, usegmt=True)
    past = email.utils.formatdate(time.time() - 50, usegmt=True)
    for value, low, high in (("7", 7, 7), ("0", 0, 0), (soon, 40, 50), (past, 0, 0)):
        server.says(b"", 429, Retry_After=value)
        assert low <= fault(server).retry_after_s <= high
    for value in ("", "soon", "-3", "1e9", "9" * 5000, "²", "Mon, 99 Foo 20000 99:99:99 GMT"):
        server.says(b"", 429, Retry_After=value)
        assert fault(server).retry_after_s is None
    server.says(b"", 503, Retry_After="3")
    assert fault(server).retry_after_s == 3.0


def drip(first, piece):
    def write(out):
        out.write(first)
        for _ in range(1_000):
            out.write(piece)
            time.sleep(0.02)

    return write


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
def test_the_whole_call_has_one_deadline(server, write):
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
    with socket.socket() as held, pytest.raises(ToolFault) as raised:
        held.bind(("127.0.0.1", 0))  # bound, not listening
        Provider("serper", f"http://127.0.0.1:{held.getsockname()[1]}")({"query": "a"}, 5.0)
    assert raised.value.kind == "connection"


def test_huge_bodies(server, monkeypatch):
    monkeypatch.setattr(fetch, "MAX_BYTES", 1_000)
    server.says({"organic": [], "x": "y" * 1_000})
    assert (fault(server).kind, fault(server, "jina").kind) == ("too_large", "unreadable")


def broken(name):
    """The recorded reply with one thing in it replaced by another type, one after the other."""
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
def test_replies_of_a_wrong_shape_are_malformed_or_still_hits(name, monkeypatch):
    monkeypatch.setenv(PROVIDERS[name].key.strip("?") or "UNUSED", KEY)
    backend, replies = Provider(name, "http://127.0.0.1"), []
    monkeypatch.setattr("drlib.tools.providers.exchange", lambda *a, **b: (200, {}, replies[-1]))
    malformed = 0
    for value in broken(name):
        replies.append(json.dumps(value).encode())
        try:
            check(backend({"query": "a"}, 5.0))
        except ToolFault as wrong:
            assert wrong.kind == "malformed"
            malformed += 1
    assert malformed > 20


def check(hits):
    assert isinstance(hits, list)
    for found in hits:
        assert tuple(found) == FIELDS and all(isinstance(v, str) for v in found.values())
        assert found["title"] or found["url"]
    json.dumps(hits, ensure_ascii=False).encode()


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


def test_a_key_is_in_no_object_address_error_or_log(server, caplog):
    caplog.set_level(logging.DEBUG)
    for name in PROVIDERS:
        backend = Provider(name, server.url)
        assert KEY not in repr(backend) + repr(vars(backend))
        for reply in ((401, {}, KEY.encode()), (200, {}, b"")):
            server.reply = reply
            arguments = {"url": "https://a.org"} if name == "jina" else {"query": "a"}
            with pytest.raises(ToolFault) as raised:
                backend(arguments, 20.0)
            told = "".join(traceback.format_exception(raised.value)) + repr(raised.value)
            assert KEY not in told
    assert all(KEY not in path for _, path, _, _ in server.seen)
    assert KEY not in caplog.text


def test_a_key_that_no_header_can_carry_is_not_shown(server, monkeypatch):
    for bad in ("secret\nkey", "secret é"):
        monkeypatch.setenv("SERPER_API_KEY", bad)
        with pytest.raises((ToolFault, ValueError)) as raised:
            ask(server, "serper")
        assert "secret" not in "".join(traceback.format_exception(raised.value))


def test_random_replies_give_typed_results_only(server, monkeypatch):
    """10,000 bodies through the parsers of all providers, 1,000 of them through a socket."""
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
        direct = lambda *a, body=body, **b: (200, {}, body)  # noqa: E731
        monkeypatch.setattr("drlib.tools.providers.exchange", real if i % 10 == 0 else direct)
        try:
            value = backend({"query": "a", "url": "https://a.org"}, 20.0)
            if backend.name == "jina":
                json.dumps(value, ensure_ascii=False).encode()
            else:
                check(value)
        except ToolFault as wrong:
            assert wrong.kind in KINDS
            kinds.add(wrong.kind)
    assert kinds == {"malformed", "unreadable"}
