"""Messages of chat servers: content, reasoning and calls, in the shapes that servers send."""

import json
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

MAX_COUNT = 10**8  # tokens; a larger count is not one of tokens
THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking", "thought", "reasoning_details")
THOUGHT_PARTS = ("thinking", "reasoning", "thought")
CALL_PARTS = ("tool_use", "tool_call", "function_call")
SHOWN = 200  # characters of a malformed reply in an error


class ServerCall(NamedTuple):
    """A native call; arguments that are no JSON stay text."""

    name: str
    arguments: Any
    id: str


class ServerMessage(NamedTuple):
    """The parts of an assistant's message; `text` is None without content or refusal."""

    text: str | None
    thought: str
    calls: list[ServerCall]


def read_choice(reply: Any) -> dict:
    """Return the first choice of a chat completion.

    Raises:
        ValueError: there is none; the message shows the reply.
    """
    choices = reply.get("choices") if isinstance(reply, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        raise ValueError(f"no choices in the reply {_show(reply)}")
    if choice.get("error"):
        raise ValueError(f"the server reports an error: {_show(choice['error'])}")
    return choice


def read_message(choice: dict) -> ServerMessage:
    """Return the message of a choice.

    Raises:
        ValueError: no message, or content or calls of an unknown shape.
    """
    found = (choice.get(name) for name in ("message", "delta", "text"))
    message = next((each for each in found if each is not None), None)
    if isinstance(message, str | list):
        message = {"content": message}
    if not isinstance(message, dict):
        raise ValueError(f"no message in the choice {_show(choice)}")
    parts = list(_iter_parts(message.get("content")))
    texts = [text for part in parts if (text := _read_text_part(part)) is not None]
    text = "".join(texts) if texts else _read_text(message.get("refusal"))
    thoughts = (_read_text(message.get(name)) for name in THOUGHT_FIELDS)
    thought = next((each for each in thoughts if each), "")
    inside = (_read_text(part) for part in parts if part.get("type") in THOUGHT_PARTS)
    thought = thought or "".join(each for each in inside if each)
    calls = message.get("tool_calls") or message.get("function_call") or []
    calls = [calls] if isinstance(calls, dict) else calls
    if not isinstance(calls, list):
        raise ValueError(f"tool_calls are {_show(calls)}")
    calls = [*calls, *(part for part in parts if part.get("type") in CALL_PARTS)]
    return ServerMessage(text, thought, [_read_call(call) for call in calls])


def read_usage(reply: dict) -> tuple[int, int]:
    """Return the counted prompt and completion tokens; 0 for a missing or impossible count."""
    usage = reply.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    prompt = usage.get("prompt_tokens", usage.get("input_tokens"))
    return _read_count(prompt), _read_count(
        usage.get("completion_tokens", usage.get("output_tokens"))
    )


def _read_count(value: Any) -> int:
    try:
        count = float(value)
    except (TypeError, ValueError, OverflowError):
        return 0
    return int(count) if math.isfinite(count) and 0 <= count <= MAX_COUNT else 0


def _iter_parts(content: Any) -> Iterator[dict]:
    """Yield the parts of a content as objects; a text is one part."""
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, str):
            yield {"type": "text", "text": part}
        elif isinstance(part, dict):
            yield part
        elif part is not None:
            raise ValueError(f"the content is {_show(content)}")


def _read_text_part(part: dict) -> str | None:
    """Return the text of a part that is no thought or call; None for pictures and the like."""
    if part.get("type") in (*THOUGHT_PARTS, *CALL_PARTS):
        return None
    return _read_text(part)


def _read_text(value: Any) -> str | None:
    """Return the text of a text, an object with one, or a list of them; None without one."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        texts = [text for each in value if (text := _read_text(each)) is not None]
        return "".join(texts) if texts else None
    if isinstance(value, dict):
        names = ("text", "thinking", "reasoning", "thought", "refusal", "content", "value")
        found = (_read_text(value.get(name)) for name in (*names, "summary"))
        return next((text for text in found if text is not None), None)
    return None


def _read_call(call: Any) -> ServerCall:
    inner = call.get("function") if isinstance(call, dict) else None
    inner = inner if isinstance(inner, dict) else call
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
        raise ValueError(f"no name in the tool call {_show(call)}")
    names = ("arguments", "input", "parameters", "args")
    arguments = next((inner[name] for name in names if inner.get(name) is not None), {})
    ident = call.get("id")
    return ServerCall(inner["name"], _load(arguments), ident if isinstance(ident, str) else "")


def _load(arguments: Any) -> Any:
    """Return arguments as an object, also if they are JSON text, or JSON text in JSON text."""
    for _ in range(2):
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments) if arguments.strip() else {}
            except (ValueError, RecursionError):
                return arguments
    return arguments


def _show(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = str(type(value))
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
