"""HTTP for tools: one bounded exchange, and `PageReader`, the backend of `visit` for live pages.

The policy chooses addresses, so a page may point at this machine, its network or cloud metadata.
Each host is resolved once and all its addresses must be public. The first address is contacted
directly with the URL's Host header and TLS name, so no second resolution can differ (DNS
rebinding). Redirects are checked in the same way; proxies from the environment are ignored. One
deadline covers resolution, TLS, headers and body. Only httpx's transport is used, because its
client also reads `Location` and cookies by itself, and raises on them. Not implemented: a second
address of a dead server, persistent connections, scripts.
"""

import contextlib
import functools
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from email.utils import parsedate_to_datetime
from ipaddress import ip_address, ip_network
from typing import Any, NamedTuple

import httpx

from drlib.tools.backends import ANSWERS, ToolFault
from drlib.tools.parse_file import parse_in_child
from drlib.worlds.reading import require_libraries

MAX_BYTES = 10_000_000  # of an unpacked body
MAX_REDIRECTS = 5  # per page
REDIRECTS = (301, 302, 303, 307, 308)
# Statuses with a more specific fault than their class.
STATUS_FAULTS = {
    401: "auth",
    404: "not_found",
    408: "timeout",
    410: "not_found",
    429: "rate_limited",
}
# Exceptions that a host can cause in httpx, name resolution and TLS.
BROKEN = (httpx.TransportError, httpx.DecodingError, httpx.InvalidURL, OSError, UnicodeError)
TYPES = {"text/html": ".html", "application/json": ".json", "application/pdf": ".pdf"}
# Of IPv6 only global unicast (2000::/3) is public, less the forms that carry an IPv4 address
# (Teredo, 6to4; mapped and NAT64 lie outside it). 168.63.129.16 is Azure's metadata.
CLOSED = [
    ip_network(net)
    for net in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "168.63.129.16",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/3",
        "::/3",
        "4000::/2",
        "8000::/1",
        "2001::/23",
        "2001:db8::/32",
        "2002::/16",
        "3fff::/20",
    )
]


def is_public(address: str) -> bool:
    """Return True if an IP address may be visited."""
    number = ip_address(address)
    return not any(number in net for net in CLOSED)


def resolve(host: str) -> list[str]:
    """Return the addresses of a host name, or of a number in any notation."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(address[0]) for _, _, _, _, address in found]


def web_address(text: Any, base: httpx.URL | None = None) -> httpx.URL:
    """Parse an http(s) URL without user info, relative to `base`.

    A text with a scheme is not joined, because implementations disagree on the host of "http:x".

    Raises:
        ToolFault: "refused" for anything else.
    """
    try:
        url = httpx.URL(text)
        if base and text and not url.scheme:
            url = base.join(text)
        good = _is_web_address(url)
    except (httpx.InvalidURL, ValueError, TypeError):
        good = False
    if not good:
        raise ToolFault("refused", f"{text!r:.200} is not an http(s) address without a user name")
    return url


def _is_web_address(url: httpx.URL) -> bool:
    if url.scheme not in ("http", "https") or not url.host or url.userinfo:
        return False
    return url.port is None or 0 < url.port < 65536


def exchange(
    url: httpx.URL,
    deadline: float,
    headers: Mapping[str, str],
    inspect: Callable[[int, httpx.Headers], None],
    *,
    json: Any = None,
    look_up: Callable[[str], str] = lambda host: host,
) -> tuple[int, httpx.Headers, bytes]:
    """Send a GET, or a POST of `json`, and return (status, headers, body).

    Args:
        url: address.
        deadline: `time.monotonic` value by which it ends.
        headers: additional headers.
        inspect: receives status and headers before the body is read, and may raise.
        json: body of a POST.
        look_up: returns the address to contact for a host; the system's resolution by default.

    Raises:
        ToolFault: the message contains nothing that was sent.
    """
    sent = {"Host": url.netloc, "User-Agent": "drlib", "Accept-Encoding": "gzip", **headers}
    host = url.raw_host.decode()
    method = "POST" if json else "GET"

    def work() -> tuple[int, httpx.Headers, bytes]:
        # Connect to the address; TLS and the Host header use the host name.
        target = url.copy_with(host=look_up(host))
        waits = httpx.Timeout(
            _remaining_s(deadline)
        ).as_dict()  # per read; `_run_with_deadline` bounds the total
        extensions = {"sni_hostname": host, "timeout": waits}
        request = httpx.Request(method, target, headers=sent, json=json, extensions=extensions)
        with contextlib.closing(transport.handle_request(request)) as reply:
            inspect(reply.status_code, reply.headers)
            return reply.status_code, reply.headers, _body(reply, deadline)

    try:
        with httpx.HTTPTransport(verify=_tls(), trust_env=False) as transport:
            return _run_with_deadline(deadline, work)
    except (TimeoutError, httpx.TimeoutException):
        raise ToolFault("timeout", f"{host} did not answer in time") from None
    except BROKEN as error:
        raise ToolFault("connection", f"{host}: {type(error).__name__}") from None


@functools.cache
def _tls() -> ssl.SSLContext:
    return httpx.create_ssl_context()


def _remaining_s(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _run_with_deadline(deadline: float, work: Callable[[], Any]) -> Any:
    """Run `work()` in a thread; system resolution and slow headers have no timeout."""
    done = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - handed over to the caller, whatever it is
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done.result(timeout=_remaining_s(deadline))


def _body(reply: httpx.Response, deadline: float) -> bytes:
    """Read and decompress the body in pieces; a gzip bomb stops after 64 kB (at most 64 MB)."""
    coding = reply.headers.get("content-encoding", "")
    # stacked encodings would multiply the bound
    if coding not in ("", "identity", "gzip", "deflate"):
        raise ToolFault("malformed", f"content encoding {coding!r:.40} was not asked for")
    body = bytearray()
    for piece in reply.iter_bytes():
        body += piece
        as_sent = reply.num_bytes_downloaded
        if len(body) > MAX_BYTES or as_sent > MAX_BYTES:
            raise ToolFault("too_large", f"the body has more than {MAX_BYTES} bytes")
        _remaining_s(deadline)
    return bytes(body)


def check_status(status: int, headers: httpx.Headers, who: str) -> None:
    """Raise the `ToolFault` of an HTTP status outside 200-299."""
    if 200 <= status < 300:
        return
    if status in STATUS_FAULTS:
        kind = STATUS_FAULTS[status]
    elif status >= 500:
        kind = "server"
    else:
        kind = "forbidden" if status >= 400 else "malformed"
    after = _parse_retry_after(headers.get("retry-after", ""))
    raise ToolFault(kind, f"{who} answered HTTP {status}", after)


def _parse_retry_after(wait: str) -> float | None:
    """Parse `Retry-After`, in seconds or as a date (RFC 9110, section 10.2.3)."""
    try:
        if re.fullmatch("[0-9]{1,9}", wait):
            return max(0.0, int(wait))
        return max(0.0, parsedate_to_datetime(wait).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):
        return None


class Fetched(NamedTuple):
    """A page as its server sent it.

    Args:
        url: address after redirects.
        suffix: file suffix of its content type, such as ".html".
        charset: declared encoding, or "".
        body: its bytes.
    """

    url: str
    suffix: str
    charset: str
    body: bytes


class PageReader:
    """Backend: {"url": an http(s) address} -> {"url" (after redirects), "title", "text"}.

    Reads HTML, text, JSON and PDF. Other types, and addresses outside the public internet, are
    "refused". The policy chose the host, so its failures are answers about the page and no
    `env_fault`: "unreachable" (no resolution, no connection, cut, slow, 408, 429, 5xx) is retried,
    "unreadable" (other 4xx, too large, broken content) is not. An outage of our own network cannot
    be distinguished here; faults of a `Provider` do void rollouts.

    Args:
        allow_private: allow any address, for tests and private networks.
        resolver: host -> addresses.
    """

    name = "web"

    def __init__(
        self, *, allow_private: bool = False, resolver: Callable[[str], list[str]] = resolve
    ) -> None:
        require_libraries()
        self._allow_private = allow_private
        self._resolver = resolver

    def __call__(self, arguments: Mapping, timeout_s: float) -> dict[str, str]:
        try:
            return self._read(arguments, time.monotonic() + timeout_s)
        except ToolFault as fault:
            if fault.kind in ANSWERS:
                raise
            may_pass = fault.transient and fault.kind != "malformed"
            kind = "unreachable" if may_pass else "unreadable"
            raise ToolFault(kind, str(fault), fault.retry_after_s) from None

    def _read(self, arguments: Mapping, deadline: float) -> dict[str, str]:
        page = self.fetch(arguments.get("url"), deadline - time.monotonic())
        rest = max(0.001, deadline - time.monotonic())  # 0 would disable the timeout
        parsed = parse_in_child(page.suffix, page.body, rest, page.charset)
        return {"url": page.url, **parsed}

    def fetch(
        self, address: Any, timeout_s: float, permits: Callable[[str], bool] = lambda url: True
    ) -> "Fetched":
        """Fetch a page with its redirects within `timeout_s` seconds.

        Args:
            address: http(s) URL.
            timeout_s: seconds.
            permits: returns True if an address may be requested; also called for each redirect.

        Raises:
            ToolFault: no page.
        """
        deadline = time.monotonic() + timeout_s
        url = web_address(address)
        accept = {"Accept": "text/html,text/*,application/json,application/pdf"}
        for _ in range(MAX_REDIRECTS + 1):
            if not permits(str(url)):
                raise ToolFault("refused", f"{url} is not permitted")
            status, headers, body = exchange(url, deadline, accept, _inspect, look_up=self._look_up)
            if status not in REDIRECTS:
                return Fetched(str(url), *_type(headers), body)
            url = web_address(_location(headers), url)
        raise ToolFault("refused", f"more than {MAX_REDIRECTS} redirects")

    def _look_up(self, host: str) -> str:
        try:
            addresses = self._resolver(host)
            visitable = self._allow_private or all(map(is_public, addresses))
        except (OSError, ValueError) as error:  # ValueError: not a valid host name
            down = isinstance(error, OSError) and error.errno != socket.EAI_NONAME
            kind = "connection" if down else "not_found"
            raise ToolFault(kind, f"{host} has no address") from None
        if not addresses or not visitable:
            raise ToolFault("refused", f"{host} is at {addresses}, not on the public internet")
        return addresses[0]


def _location(headers: httpx.Headers) -> str | None:
    """Return the target of a redirect; "refused" if there are several."""
    places = {*headers.get_list("location")}
    if len(places) > 1:
        raise ToolFault("refused", f"a redirect to {len(places)} places at once")
    return places.pop() if places else None


def _inspect(status: int, headers: httpx.Headers) -> None:
    if status not in REDIRECTS:
        check_status(status, headers, "the page")
        _type(headers)


def _type(headers: httpx.Headers) -> tuple[str, str]:
    """Return (file suffix, charset) of a content type; "refused" if it is not supported."""
    kind, _, rest = headers.get("content-type", "").lower().partition(";")
    kind = kind.strip()
    suffix = TYPES.get(kind, "")
    if not suffix and kind.startswith("text/"):
        suffix = ".txt"
    if not suffix:
        raise ToolFault("refused", f"content type {kind!r:.80} is not read")
    charset = re.search(r"charset=[\"']?([\w.:-]{1,40})", rest)
    return suffix, charset[1] if charset else ""
