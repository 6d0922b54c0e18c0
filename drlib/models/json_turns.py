"""Turns as JSON objects, for servers with structured output (`response_format`).

The server constrains every turn to the schema of `drlib.chat.turn_grammar`. Turns are converted to
drlib's tags when they are read and back when they are sent. A reply that does not follow the schema
is an error, because some servers ignore the parameter.
"""

import json
from collections.abc import Sequence
from typing import NoReturn

from drlib.chat.server_messages import ServerMessage
from drlib.chat.tool_calls import (
    Answer,
    ToolCall,
    escape_tags,
    escape_thought,
    parse,
    render_answer,
    render_call,
)
from drlib.chat.turn_grammar import build_turn_schema
from drlib.endpoint import EndpointError

NOT_APPLIED = (
    "the server accepted {name} but returned a turn that does not follow it ({text!r}): it does "
    "not constrain its replies; leave --constrained out or use another server"
)
SHOWN = 80  # characters of a turn in an error


class JsonTurns:
    """Turns as JSON objects ({"thought", "action"}) for a server with `response_format`.

    Has the interface of `drlib.models.api_engine.MessageFormat`.

    Args:
        tools: schemas (`Toolbox.schemas`).
    """

    margins = ("", "")

    def __init__(self, tools: Sequence[dict]):
        named = {"name": "turn", "strict": True, "schema": build_turn_schema(tools)}
        self.options = {"response_format": {"type": "json_schema", "json_schema": named}}

    def read(self, message: ServerMessage, is_complete: bool = True) -> ServerMessage:
        """Return a server's message with drlib's tags.

        Raises:
            EndpointError: a complete reply does not follow the schema.
        """
        try:
            turn = json.loads(message.text or "", strict=False)
            text = f"<think>{escape_thought(turn['thought'])}</think>"
            return message._replace(text=text + _render_action(turn["action"]))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            if not is_complete:
                return message
            raise_not_applied("response_format", message.text or "")

    def write(self, messages: Sequence[dict]) -> list[dict]:
        """Return OpenAI's messages with the policy's turns as JSON."""
        return [
            message | {"content": _write_turn(message["content"])}
            if message["role"] == "assistant"
            else message
            for message in messages
        ]


def raise_not_applied(name: str, text: str) -> NoReturn:
    """Raise EndpointError: the server ignored the request parameter `name` in the turn `text`."""
    # with a status, because a retry would not help
    raise EndpointError(NOT_APPLIED.format(name=name, text=text[:SHOWN]), 200) from None


def _render_action(action: dict) -> str:
    if set(action) == {"answer"}:
        return render_answer(escape_tags(action["answer"]).strip())
    if set(action) != {"name", "arguments"} or not isinstance(action["arguments"], dict):
        raise ValueError("neither a call nor an answer")
    return render_call(action["name"], action["arguments"])


def _write_turn(text: str) -> str:
    """Convert a turn with tags to JSON; one without an action (cut by a limit) stays text."""
    thought, closing, _ = text.partition("</think>")
    thought = thought.rpartition("<think>")[2].strip() if closing else ""
    match parse(text):
        case ToolCall(name, arguments):
            action: dict = {"name": name, "arguments": arguments}
        case Answer(answer):
            action = {"answer": answer}
        case _:
            return text
    return json.dumps({"thought": thought, "action": action}, ensure_ascii=False)
