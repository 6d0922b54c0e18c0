"""Errors of chat servers: their text, and what they refuse (length, content, a parameter)."""

import json
import re
from collections.abc import Collection, Iterator
from typing import Any

MAX_DETAILS = 4000  # characters
ECHOES = ("input", "ctx", "url", "request", "body", "messages", "failed_generation")

_CONTEXT = re.compile(
    r"context[ _-]?(?:length|window|size|limit|overflow|budget)|context (?:shift|the overflows)"
    r"|exceeds?_context|range of input length|(?:string|prompt|input)_above_max"
    r"|max(?:imum)?[ _](?:number of )?(?:allowed )?(?:input|prompt|model|sequence|seq)[ _]?\w*"
    r"|(?:model|prompt|input|max)[ _]tokens?[ _](?:limit|exceed|count exceed)|tokens?_limit_reached"
    r"|reduce (?:the |your )?(?:\w+ )?(?:length|prompt|inputs?|messages?|conversation)"
    r"|inputs?`? tokens|input token count|too many (?:\w+ )?tokens(?! per)",
    re.I,
)
_TOO_LONG = re.compile(
    r"too[ _](?:long|large|big)|longer than|prompt exceeds"
    r"|(?:prompt|inputs?|messages?|request|conversation|sequence|content|tokens?)\b[^.;]{0,60}?"
    r"(?:exceed|longer than|larger than)",
    re.I,
)
# limits of other parts of a request, and of rates
_OTHER_LIMIT = re.compile(
    r"(?:array|stop|tools?|tool_calls?|metadata|user|name|id|logit_bias|functions?|image|file"
    r"|max_(?:completion_|new_|output_)?tokens)\W{0,3}[^.]{0,30}(?:too|exceed|longer|larger)"
    r"|\b(?:quota|rate.limit|per (?:minute|min|day|hour)|credits?|balance)\b",
    re.I,
)
_FILTERED = re.compile(
    r"content[ _-]?(?:filter|policy|moderation|management|safety|violation)|responsible.?ai"
    r"|prohibited[ _]content|data.?inspection|content exists risk|high risk|flagged|moderation"
    r"|usage polic|safety (?:system|filter|setting|check|reason|polic)|guardrail"
    r"|(?:sensitive|inappropriate|unsafe|harmful) (?:content|information|words?)",
    re.I,
)
_UNSUPPORTED = re.compile(
    r"unsupported|not support|n't support|unrecogni[sz]ed|unknown|unexpected|not permitted"
    r"|not allowed|forbidden|cannot find|not available|deprecated|no longer|not implemented"
    r"|default|incompatible|not compatible|disabled|additional propert|extra "
    r"|cannot be (?:used|set|specified)|use '?max_",
    re.I,
)
_INVALID = re.compile(r"invalid|must|too |at most|expected|out of range|less|greater|exceed", re.I)


def collect_details(body: Any) -> str:
    """Return the texts, codes and names of parameters in an error's body, as one text.

    Echoes of the request are left out, because they contain every parameter and the question.
    """
    return "\n".join(_iter_texts(body))[:MAX_DETAILS]


def _iter_texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if name not in ECHOES:
                yield from _iter_texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _iter_texts(inner)
    elif isinstance(value, str) and value[:1] in "{[" and (loaded := _load(value)) is not None:
        yield from _iter_texts(loaded)  # a gateway quotes another server's body
    elif isinstance(value, str | int) and not isinstance(value, bool):
        yield str(value)


def _load(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def find_message(body: Any) -> str:
    """Return the message of an error's body, "" without one."""
    if isinstance(body, str):
        return body
    if isinstance(body, list):
        return "; ".join(filter(None, map(find_message, body)))
    if isinstance(body, dict):
        names = ("error", "message", "msg", "detail", "details", "errors", "title", "code", "type")
        found = next((text for name in names if (text := find_message(body.get(name)))), "")
        place = body.get("loc")  # of FastAPI
        return f"{'.'.join(map(str, place))}: {found}" if isinstance(place, list) else found
    return ""


def is_too_long(details: str) -> bool:
    """Return True if an error's details say that the prompt exceeds the model's context."""
    if _CONTEXT.search(details):
        return True
    return bool(_TOO_LONG.search(details)) and not _OTHER_LIMIT.search(details)


def is_filtered(details: str) -> bool:
    """Return True if an error's details say that a filter refused the content."""
    return bool(_FILTERED.search(details))


def find_rejected(details: str, names: Collection[str], optional: Collection[str]) -> str | None:
    """Return the one of `names` that an error's details reject, None without one.

    Args:
        details: see `collect_details`.
        names: parameters of the request.
        optional: parameters for which an invalid value counts as well.
    """
    found = []
    for name in names:
        word = re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", details)
        quoted = re.search(rf"['\"`]{re.escape(name)}['\"`]", details)
        rejects = _UNSUPPORTED.search(details) or (name in optional and _INVALID.search(details))
        if word and rejects:
            found.append((quoted is None, word.start(), name))
    return min(found)[2] if found else None
