"""JSON in the text of a model: after its reasoning, in a code fence, or between prose."""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

Kind = TypeVar("Kind", bound=dict | list)

# the end of the reasoning of Qwen, DeepSeek, Magistral, Kimi, Seed and gpt-oss
_THOUGHT_END = re.compile(
    r"</(?:think|thinking|thought|reasoning|seed:think)>|\[/THINK\]|◁/think▷"
    r"|<\|channel\|>final<\|message\|>"
)
_THOUGHT_START = re.compile(r"<(?:think|thinking|thought|reasoning|seed:think)>|\[THINK\]|◁think▷")
_FENCE = re.compile(
    r"^[ \t]*```(?:json\w*)?[ \t]*\n(.*?)\n[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE
)
_VALUE_START = re.compile(r"\[\s*[\[{\"]|{\s*\"")  # not a citation such as [1
_BRACKET = re.compile(r"{(?=\s*[\"}])|\[(?=\s*[\]\[{\"\d\-tfnNI])")  # not that of code or prose
MAX_STARTS = 1000  # brackets that start no JSON, because each costs time in the size of the text
_DECODER = json.JSONDecoder(strict=False)  # models write line breaks inside strings


def extract_json(text: str, kind: type[Kind]) -> Kind:
    """Return the JSON object or array in a model's reply.

    Reasoning, prose and citations such as [1] are skipped. Among several values the order of
    preference is: in a code fence, made of objects, not empty, the last.

    Args:
        text: the reply.
        kind: dict or list.

    Raises:
        ValueError: the reply contains no such value, or it is cut off or nested too deeply.
    """
    reply = _skip_reasoning(text)
    blocks = [block[1] for block in _FENCE.finditer(reply)]
    for part in [*reversed(blocks), reply]:
        spans = list(_iter_values(part))
        if any(span.is_cut for span in spans):  # inner values are no replies of their own
            raise ValueError(
                f"the JSON in the reply {reply.strip()[:80]!r} is cut off or nested too deeply"
            )
        values = [value for span in spans for value in _select(span.value, kind)]
        if values:
            return max(enumerate(values), key=lambda one: (_rank(one[1]), one[0]))[1]
    raise ValueError(f"no JSON {kind.__name__} in the reply {reply.strip()[:80]!r}")


def _skip_reasoning(text: str) -> str:
    """Return the text after its reasoning; "" if the reasoning is not closed."""
    spans = list(_iter_values(text))
    ends = [
        end.end()
        for end in _THOUGHT_END.finditer(text)
        if not any(span.start < end.start() < span.end for span in spans)  # in a JSON string
    ]
    reply = text[ends[-1] :] if ends else text
    return "" if _THOUGHT_START.match(reply.lstrip()) else reply


class _Span(NamedTuple):
    """An outermost JSON value in a text, or the start of one that is cut off or too deep."""

    start: int
    end: int
    value: Any = None
    is_cut: bool = False


def _iter_values(text: str) -> Iterator[_Span]:
    """Yield the outermost JSON objects and arrays in a text, up to one that cannot be read."""
    at, size, failed = 0, len(text.rstrip()), 0
    while failed < MAX_STARTS and (bracket := _BRACKET.search(text, at)):
        start = bracket.start()
        try:
            value, at = _DECODER.raw_decode(text, start)
            yield _Span(start, at, value)
        except RecursionError:
            yield _Span(start, start, is_cut=True)
            return
        except json.JSONDecodeError as error:
            at = bracket.end()
            failed += 1
            is_cut = error.pos >= size or error.msg.startswith("Unterminated string")
            if is_cut and _VALUE_START.match(text, start):
                yield _Span(start, start, is_cut=True)
                return
        except ValueError:  # a number of too many digits
            at = bracket.end()
            failed += 1


def _select(value: Any, kind: type[Kind]) -> list[Kind]:
    """Return the value if it has the kind, else the only outermost value of the kind in it."""
    if isinstance(value, kind):
        return [value]
    inner = value.values() if isinstance(value, dict) else value
    found = [
        part for each in inner if isinstance(each, dict | list) for part in _select(each, kind)
    ]
    return found if len(found) == 1 else []


def _rank(value: dict | list) -> int:
    """Return 2 for an object or an array of objects, 1 for other values, 0 if it is empty."""
    has_objects = isinstance(value, dict) or all(isinstance(each, dict) for each in value)
    return 1 + has_objects if value else 0
