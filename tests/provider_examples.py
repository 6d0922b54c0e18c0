"""Recorded replies of live providers, and a server that replays them."""

import contextlib
import http.server
import json
import threading

import pytest

from drlib.tools.backends import ToolFault
from drlib.tools.providers import FIELDS, PROVIDERS, Provider

KEY = "k3y-that-nobody-may-see"
SEARCH = sorted(set(PROVIDERS) - {"jina"})
QUESTION = "what is Zürich & co?"


def hit(title, url, snippet, date="", source=""):
    return dict(zip(FIELDS, (title, url, snippet, date, source), strict=True))


# provider -> (recorded reply, expected hits)
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
    """Server that answers every request with `reply`.

    The reply is (status, headers, body) or a function that writes to the socket.
    """

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


def check(hits):
    assert isinstance(hits, list)
    for found in hits:
        assert tuple(found) == FIELDS and all(isinstance(v, str) for v in found.values())
        assert found["title"] or found["url"]
    json.dumps(hits, ensure_ascii=False).encode()
