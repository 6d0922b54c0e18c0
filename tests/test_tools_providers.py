"""Live providers against a loopback replay server: requests and converted replies.

Run: python -m pytest tests/test_tools_providers.py
"""

import email.utils
import json
import time
from urllib.parse import parse_qs, urlsplit

import pytest

from drlib.tools.backends import ToolFault
from drlib.tools.providers import Provider
from tests.provider_examples import (
    KEY,
    MARKDOWN,
    QUESTION,
    RECORDED,
    SEARCH,
    ask,
    fault,
    server,
)

__all__ = ["server"]  # a fixture


@pytest.mark.parametrize("name", SEARCH)
def test_recorded_replies_become_hits_without_proxy(server, name, monkeypatch):
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    reply, hits = RECORDED[name]
    server.says(reply)
    assert ask(server, name) == hits
    assert ask(server, name, k=1) == hits[:1]
    assert Provider(name, server.url).name == name


def test_request_format(server):
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
    for name, expected in (
        ("searxng", {"q": [QUESTION], "format": ["json"]}),
        ("openalex", {"search": [QUESTION], "per_page": ["30"]}),
    ):
        method, path, headers, _ = sent[name]
        assert method == "GET" and parse_qs(urlsplit(path).query) == expected
    assert sent["openalex"][2]["Authorization"] == f"Bearer {KEY}"
    assert "Authorization" not in sent["searxng"][2] and "Authorization" not in sent["retrieve"][2]


def test_jina_reader(server):
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
    assert fault(server, "jina").kind == "unreadable"  # an empty page is not a fault of Jina
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
def test_missing_key_is_reported_on_creation(monkeypatch, name, variable):
    for value in (None, "", "  "):
        monkeypatch.delenv(variable, raising=False)
        if value is not None:
            monkeypatch.setenv(variable, value)
        with pytest.raises(ValueError, match=f"environment variable {variable}"):
            Provider(name)


def test_invalid_settings_are_refused(server, monkeypatch):
    for name in ("searxng", "retrieve"):
        with pytest.raises(ValueError, match=f"{name} needs base_url"):
            Provider(name)
    with pytest.raises(ValueError, match="unknown provider 'google'.*serper, "):
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
    assert len(server.seen) == 1  # no redirect is followed, no request is repeated


def test_searxng_403_contains_the_remedy(server):
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
