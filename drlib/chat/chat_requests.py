"""Chat completions, the server's side: read requests of OpenAI clients, build replies and errors.

`drlib.chat.server_messages` is the client's side. A request is read into `ChatRequest`, whose
messages compare equal if they mean the same: content without outer white space, calls by name and
parsed arguments. Identifiers of calls and thoughts (`reasoning_content`) do not take part.
"""

import json
import time
from dataclasses import dataclass, field
from typing import Any

from drlib.chat.tool_calls import Answer, ToolCall, parse_native, render_call

MODEL = "policy"  # name of the served model; any other name is accepted as well
# Options with a meaning for the reply that the gateway cannot give: refused unless at the default.
REFUSED: dict[str, tuple[Any, ...]] = {
    "stream": (None, False),
    "n": (None, 1),
    "stop": (None, [], ""),
    "logprobs": (None, False),
    "response_format": (None, {"type": "text"}),
    "tool_choice": (None, "auto", "none"),
    "functions": (None, []),
    "function_call": (None, "auto", "none"),
}
READ = ("model", "messages", "tools", "max_tokens", "max_completion_tokens", *REFUSED)
HARMLESS = ("user", "metadata", "store", "stream_options", "parallel_tool_calls")
REMEDIES = {
    "stream": "streaming is not supported: send stream=false",
    "n": "one choice per request is supported: send n=1, and several requests for several answers",
}


class RequestError(Exception):
    """Refusal of a request, returned to the client as an OpenAI error object.

    Args:
        message: cause and remedy.
        status: HTTP status; OpenAI's clients repeat 408, 409, 429 and 5xx.
        code: such as "context_length_exceeded".
        param: the refused field of the request.
    """

    def __init__(
        self, message: str, status: int = 400, code: str | None = None, param: str | None = None
    ):
        super().__init__(message)
        self.status, self.code, self.param = status, code, param

    def body(self) -> dict:
        """Return the error object."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        fields = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": fields}


@dataclass(frozen=True)
class ChatMessage:
    """A message; equal messages mean the same.

    Attributes:
        role: "system", "user", "assistant" or "tool".
        calls: name and arguments of each call of an assistant, arguments as sorted JSON.
        call_ids: ids of these calls; of a tool's message, the id that it answers.
    """

    role: str
    text: str
    calls: tuple[tuple[str, str], ...] = ()
    call_ids: tuple[str, ...] = field(default=(), compare=False)

    def render(self) -> str:
        """Return an assistant's message as text of a turn."""
        calls = (render_call(name, json.loads(arguments)) for name, arguments in self.calls)
        return self.text + "".join(calls)


@dataclass(frozen=True)
class ChatRequest:
    """A request for one turn.

    Attributes:
        messages: optional system message, a user message, and what followed.
        tools: function schemas {"name", "description", "parameters"}.
        reads_calls: calls in the turn are returned as calls, not as text.
        max_tokens: limit of the turn; None: none.
        ignored: options that have no effect, because training sets the sampling.
    """

    messages: tuple[ChatMessage, ...]
    tools: tuple[dict, ...] = ()
    reads_calls: bool = False
    max_tokens: int | None = None
    ignored: dict[str, Any] = field(default_factory=dict)


def _check(holds: bool, message: str, param: str) -> None:
    if not holds:
        raise RequestError(message, param=param)


def parse_request(body: bytes) -> ChatRequest:
    """Read the body of a chat completion request.

    Raises:
        RequestError: not a request, or one with an option that is not supported.
    """
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise RequestError("the body must be a JSON object")
    for name, supported in REFUSED.items():
        remedy = REMEDIES.get(name, f"{name} is not supported: leave it out")
        _check(fields.get(name) in supported, remedy, name)
    sent = fields.get("messages")
    _check(isinstance(sent, list) and bool(sent), "messages must be a list", "messages")
    messages = [parse_message(message) for message in sent]
    tools = tuple(_parse_tool(tool) for tool in fields.get("tools") or ())
    limits = [fields.get(name) for name in ("max_completion_tokens", "max_tokens")]
    limit = next((value for value in limits if value is not None), None)
    is_count = limit is None or (isinstance(limit, int) and limit >= 1)
    _check(is_count, "max_tokens must be at least 1", "max_tokens")
    return ChatRequest(
        _arrange(messages),
        tools,
        bool(tools) and fields.get("tool_choice") != "none",
        limit,
        {k: v for k, v in fields.items() if k not in (*READ, *HARMLESS) and v is not None},
    )


def parse_message(message: Any) -> ChatMessage:
    """Read one message.

    Raises:
        RequestError: an unknown role, pictures, or malformed calls.
    """
    where = "messages"
    _check(isinstance(message, dict), "a message must be a JSON object", where)
    role = {"developer": "system"}.get(message.get("role"), message.get("role"))
    known = role in ("system", "user", "assistant", "tool")
    _check(known, f"role {role!r} is not supported: use system, user, assistant or tool", where)
    text = _read_content(message.get("content"))
    if role == "tool":
        return ChatMessage(role, text, (), (str(message.get("tool_call_id")),))
    if role != "assistant":
        return ChatMessage(role, text)
    calls, ids = [], []
    for call in message.get("tool_calls") or ():
        inner = call.get("function") if isinstance(call, dict) else None
        well_formed = isinstance(inner, dict) and isinstance(inner.get("name"), str)
        _check(well_formed, "a tool call needs a function with a name", where)
        calls.append((inner["name"], _sort_json(inner.get("arguments"))))
        ids.append(str(call.get("id")))
    return ChatMessage(role, text.strip(), tuple(calls), tuple(ids))


def _read_content(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    _check(isinstance(content, list), "content must be a text or a list of parts", "messages")
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        _check(kind == "text", f"content of type {kind!r} is not supported: send text", "messages")
    return "".join(str(part.get("text", "")) for part in content)


def _sort_json(arguments: Any) -> str:
    """Return a call's arguments as sorted JSON, for comparison."""
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
        _check(isinstance(value, dict), "arguments of a call must be a JSON object", "messages")
        return json.dumps(value, sort_keys=True, ensure_ascii=False)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"arguments of a call are not JSON: {error}", param="messages") from None


def _parse_tool(tool: Any) -> dict:
    function = tool.get("function") if isinstance(tool, dict) else None
    well_formed = isinstance(function, dict) and isinstance(function.get("name"), str)
    _check(well_formed, "a tool must be a function with a name", "tools")
    return function


def _arrange(messages: list[ChatMessage]) -> tuple[ChatMessage, ...]:
    """Check the order of messages and join leading system messages."""
    head = next((i for i, m in enumerate(messages) if m.role != "system"), len(messages))
    system = "\n\n".join(message.text for message in messages[:head])
    body = messages[head:]
    _check(
        bool(body) and body[0].role == "user" and body[-1].role != "assistant",
        "messages must be system messages, then a user message, and end with a user or tool one",
        "messages",
    )
    asked: tuple[str, ...] = ()
    for before, message in zip([None, *body], body):
        _check(message.role != "system", "system messages must be the first ones", "messages")
        if message.role == "assistant":
            in_turn = before is not None and before.role != "assistant"
            _check(in_turn, "an assistant message cannot follow another one", "messages")
            asked = message.call_ids
        if message.role == "tool":
            answers_call = message.call_ids[0] in asked
            _check(answers_call, "tool_call_id names no call of the last assistant", "messages")
    return (*([ChatMessage("system", system)] if head else []), *body)


def build_reply(
    text: str, request: ChatRequest, finish_reason: str, tokens: tuple[int, int], name: str
) -> dict:
    """Return the chat completion of a turn.

    Args:
        text: the turn, with its tags.
        finish_reason: of the `Completion`.
        tokens: of the prompt and of the turn.
        name: unique in the rollout; part of the ids of reply and calls.
    """
    message: dict[str, Any] = {"role": "assistant", "content": text}
    calls: list[ToolCall] = []
    if request.reads_calls:
        actions = parse_native(text)
        calls = [action for action in actions if isinstance(action, ToolCall)]
        answers = [action.text for action in actions if isinstance(action, Answer)]
        # an unreadable turn stays text, as the agent must see it to react
        message["content"] = None if calls else answers[0] if answers else text
        thought = text.partition("<think>")[2].partition("</think>")[0].strip()
        if thought:
            message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = [
            {
                "id": f"call_{name}_{number}",
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for number, call in enumerate(calls)
        ]
    is_cut = finish_reason in ("length", "context")
    reason = "length" if is_cut else "tool_calls" if calls else "stop"
    prompt, turn = tokens
    return {
        "id": f"chatcmpl-{name}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": reason, "logprobs": None}],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": turn,
            "total_tokens": prompt + turn,
        },
    }
