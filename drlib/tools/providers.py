"""Live search engines and the Jina reader as backends; each is a row of `PROVIDERS`.

A row defines the request, the path of the hits in the reply and the mapping of their fields. Keys
are read from the environment at each call and sent in a header, so that no object, address, error
or log contains one. OpenAlex documents its key as a URL parameter, but its proxy accepts the
header. `/retrieve` is the server of Search-R1 and s3. Not implemented: paging, answer boxes,
filters, other APIs.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

import httpx

from drlib.tools.backends import ToolFault
from drlib.tools.fetch import check_status, exchange, web_address
from drlib.worlds.charsets import decode
from drlib.worlds.reading import clean, shorten

FIELDS = ("title", "url", "snippet", "date", "source")


class ProviderSpec(NamedTuple):
    """Definition of a provider."""

    base: str
    ask: Callable[[str, int], Any]  # (query, k) -> path to GET, or (path, JSON to POST)
    key: str = ""  # environment variable, optional if it ends in "?"
    hits: str = ""  # dotted path of the list in the reply
    fields: tuple[str, ...] = ()  # for each of `FIELDS`, alternative paths in a hit
    rebuild: Callable[[dict], dict] = dict  # prepares a hit for these paths
    header: str = "Authorization"  # header of the key


def _abstract(hit: dict) -> dict:
    """Add the abstract, rebuilt from {word: [positions]}."""
    index = hit.get("abstract_inverted_index") or {}
    placed = []
    for word, places in index.items():
        placed += [(int(place), word) for place in places]
    return {**hit, "abstract": " ".join(word for _, word in sorted(placed))}


def _passage(hit: dict) -> dict:
    """Flatten {"document": {"id", "contents": title, newline, text}, "score"} or a document."""
    document = hit.get("document", hit)
    title, _, text = document["contents"].partition("\n")
    return {**document, "title": title.strip(' "'), "text": text, "id": str(document.get("id", ""))}


PROVIDERS = {
    "serper": ProviderSpec(
        "https://google.serper.dev",
        lambda q, k: ("/search", {"q": q, "num": k}),
        "SERPER_API_KEY",
        "organic",
        ("title", "link", "snippet", "date", "source"),
        header="X-API-KEY",
    ),
    "serper_scholar": ProviderSpec(
        "https://google.serper.dev",
        lambda q, k: ("/scholar", {"q": q, "num": k}),
        "SERPER_API_KEY",
        "organic",
        ("title", "link pdfUrl", "snippet", "year", "publicationInfo"),
        header="X-API-KEY",
    ),
    "tavily": ProviderSpec(  # limits: 400 characters, 20 hits
        "https://api.tavily.com",
        lambda q, k: ("/search", {"query": q[:400], "max_results": min(k, 20)}),
        "TAVILY_API_KEY",
        "results",
        ("title", "url", "content", "published_date", ""),
    ),
    "searxng": ProviderSpec(
        "",
        lambda q, k: "/search?" + urlencode({"q": q, "format": "json"}),
        "",
        "results",
        ("title", "url", "content", "publishedDate", "engine"),
    ),
    "openalex": ProviderSpec(
        "https://api.openalex.org",
        lambda q, k: "/works?" + urlencode({"search": q, "per_page": k}),
        "OPENALEX_API_KEY?",
        "results",
        (
            "title",
            "primary_location.landing_page_url doi id",
            "abstract",
            "publication_date",
            "primary_location.source.display_name",
        ),
        _abstract,
    ),
    "retrieve": ProviderSpec(
        "",
        lambda q, k: ("/retrieve", {"queries": [q], "topk": k, "return_scores": True}),
        "",
        "result.0",
        ("title", "url id", "text", "", ""),
        _passage,
    ),
    "jina": ProviderSpec(
        "https://r.jina.ai", lambda url, k: f"/{web_address(url)}", "JINA_API_KEY"
    ),
}


class Provider:
    """Backend: {"query": str, "k": 1 to 100} -> at most k dicts of `FIELDS`, all strings.

    "jina" is a page backend: {"url": str} -> {"url", "title", "text" (Markdown)}. Its findings
    about a page are an answer ("refused") or "unreadable"; its own failures are faults.

    Args:
        name: key of `PROVIDERS`.
        base_url: scheme, host and port of the server; required for "searxng" and "retrieve".

    Raises:
        ValueError: unknown name, or a missing key or base_url.
    """

    def __init__(self, name: str, base_url: str = "") -> None:
        if name not in PROVIDERS:
            raise ValueError(f"unknown provider {name!r}: use one of {', '.join(PROVIDERS)}")
        self.name = name
        self._spec = PROVIDERS[name]
        self._reads_pages = name == "jina"
        self._base = (base_url or self._spec.base).rstrip("/")
        if not self._base:
            raise ValueError(f"{name} needs base_url, the address of the server")
        web_address(self._base)
        self._key_header()

    def _key_header(self) -> dict[str, str]:
        """Return the header with the key; {} if none is needed; ValueError if it is missing."""
        variable = self._spec.key.rstrip("?")
        required = self._spec.key != "" and not self._spec.key.endswith("?")
        key = os.environ.get(variable, "").strip()
        if not key and required:
            raise ValueError(
                f"{self.name} needs an API key: set the environment variable {variable}"
            )
        if not key:
            return {}
        return {self._spec.header: f"Bearer {key}" if self._spec.header == "Authorization" else key}

    def __call__(self, arguments: Mapping, timeout_s: float) -> Any:
        deadline = time.monotonic() + timeout_s
        text = arguments.get("url" if self._reads_pages else "query")
        k = arguments.get("k", 10)
        if not isinstance(text, str) or type(k) is not int or not 1 <= k <= 100:
            raise ToolFault("refused", "query and url are strings, k is 1 to 100")
        request = self._spec.ask(clean(text), k)
        path, payload = request if isinstance(request, tuple) else (request, None)
        accept = "text/plain" if self._reads_pages else "application/json"
        headers = {"Accept": accept, **self._key_header()}
        try:
            body = self._exchange(path, payload, headers, deadline)
            if self._reads_pages:
                return _page(text, body)
            return self._hits(json.loads(body))[:k]
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as wrong:
            kind = "unreadable" if self._reads_pages else "malformed"
            raise ToolFault(kind, f"{self.name}: {type(wrong).__name__}") from None
        except ToolFault as fault:
            of_page = self._reads_pages and fault.kind == "too_large"
            kind = "unreadable" if of_page else fault.kind
            raise ToolFault(kind, fault.detail, fault.retry_after_s) from None

    def _exchange(self, path: str, payload: Any, headers: Mapping, deadline: float) -> bytes:
        """Return the body of the reply to a GET, or a POST of `payload`."""
        url = web_address(self._base + path)
        status, _, body = exchange(url, deadline, headers, self._inspect, json=payload)
        if status == 400:  # invalid query; Serper also uses it for an empty account
            kind = "forbidden" if b"credit" in body.lower() else "refused"
            raise ToolFault(kind, f"{self.name} answered HTTP 400")
        return body

    def _inspect(self, status: int, headers: httpx.Headers) -> None:
        message = f"{self.name} answered HTTP {status}"
        of_page = self._reads_pages and status in (403, 404, 410, 451)
        if of_page or status in (414, 422):
            raise ToolFault("refused", message)
        if status in (404, 410):  # from a service this is no answer
            raise ToolFault("forbidden", f"{message}: is base_url right?")
        if self.name == "searxng" and status == 403:
            raise ToolFault("forbidden", f"{message}: add json to search.formats in its settings")
        if status != 400:
            check_status(status, headers, self.name)

    def _hits(self, reply: Any) -> list[dict[str, str]]:
        found = _get_path(reply, self._spec.hits)
        if not isinstance(found, list) or not all(isinstance(hit, dict) for hit in found):
            raise TypeError
        if not found and reply.get("unresponsive_engines"):
            raise ToolFault("server", f"the engines behind {self.name} do not answer")
        hits = [self._convert_hit(self._spec.rebuild(hit)) for hit in found]
        if not all(hit["title"] or hit["url"] for hit in hits):
            raise ValueError
        return hits

    def _convert_hit(self, hit: dict) -> dict[str, str]:
        return {field: _first_text(hit, paths) for field, paths in zip(FIELDS, self._spec.fields)}


def _page(url: str, body: bytes) -> dict[str, str]:
    head, mark, text = decode(body).partition("\nMarkdown Content:\n")
    if not mark:  # some server configurations omit the head
        text = head
        head = ""
    if not text.strip():
        raise ValueError
    title = head.partition("Title:")[2].partition("\n")[0].strip()
    return {"url": url, "title": title, "text": shorten(text.strip())}


def _get_path(value: Any, path: str) -> Any:
    """Return the value at a dotted path of a reply, or None."""
    for key in path.split("."):
        if isinstance(value, list):
            value = value[int(key)]
        else:
            value = (value or {}).get(key)
    return value


def _first_text(hit: dict, paths: str) -> str:
    """Return the first non-empty value of these paths; TypeError unless it is text or a year."""
    for path in paths.split():
        value = _get_path(hit, path)
        kinds = (str, int) if path == "year" else str
        if value is not None and not isinstance(value, kinds):
            raise TypeError
        if value:
            return clean(str(value))
    return ""
