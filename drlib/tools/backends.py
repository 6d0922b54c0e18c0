"""The interface of a tool backend, and `ToolFault`, the exception by which it fails.

A backend is a callable `(arguments, timeout_s) -> value` for one operation (a query, a page, a
program). Arguments and value consist of JSON types; its `name` becomes `ToolResult.source`. It
returns the value or raises `ToolFault`. Any other exception is a bug. `reliability.py` handles
faults.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

# kind -> True if a retry with the same backend may help
FAULT_KINDS = {
    "timeout": True,
    "connection": True,
    "rate_limited": True,
    "server": True,
    "malformed": True,
    "auth": False,
    "forbidden": False,
    "refused": False,
    "not_found": False,
    "too_large": False,
    "unreachable": True,
    "unreadable": False,  # of one page's host or content, see `PAGE_FAULTS`
    "skipped": False,  # not called: breaker open, or rate limit beyond the deadline
}
ANSWERS = ("refused", "not_found")  # answers of the world, not infrastructure faults
# not infrastructure faults either, but another backend may have the page
PAGE_FAULTS = ("unreachable", "unreadable")


class ToolFault(Exception):
    """A backend could not do its work.

    Only kinds in `ANSWERS` and `PAGE_FAULTS` are caused by the policy's arguments.

    Args:
        kind: one of `FAULT_KINDS`.
        detail: cause, for the log; the observation of the policy is a fixed text.
        retry_after_s: seconds that the server asked to wait (HTTP `Retry-After`).

    `transient` is True if the same backend may succeed later.

    Raises:
        ValueError: unknown kind.
    """

    def __init__(self, kind: str, detail: str = "", retry_after_s: float | None = None) -> None:
        if kind not in FAULT_KINDS:
            raise ValueError(f"unknown fault kind {kind!r}: use one of {', '.join(FAULT_KINDS)}")
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind = kind
        self.detail = detail
        self.transient = FAULT_KINDS[kind]
        self.retry_after_s = retry_after_s


class Backend(Protocol):
    """One source of one operation."""

    @property
    def name(self) -> str:
        """Becomes `ToolResult.source`."""

    def __call__(self, arguments: Mapping[str, Any], timeout_s: float) -> Any:
        """Return the value for `arguments` within `timeout_s` seconds, or raise `ToolFault`."""


class FunctionBackend(NamedTuple):
    """A function `(arguments, timeout_s) -> value` as a backend."""

    name: str
    function: Callable[[Mapping[str, Any], float], Any]

    def __call__(self, arguments: Mapping[str, Any], timeout_s: float) -> Any:
        return self.function(arguments, timeout_s)


def digest(*parts: Any) -> str:
    """Return the SHA-256 (hex) of JSON values in canonical form."""
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def uniform(*parts: Any) -> float:
    """Return a number in [0, 1) that depends on `parts` only, whatever the threads do."""
    digits = digest(*parts)[:13]  # 52 bits, the precision of a float
    return int(digits, 16) / 16**13
