"""Chat messages of other programs: conversion to plain text, turns and tool results.

A message is a dictionary with `role` and `content`, as in OpenAI and Hugging Face chats. Thoughts
and tool calls in separate fields are moved into the content, in the tags of drlib.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from drlib.analysis.reading_notes import EmptyRolloutError, ReadingNotes
from drlib.analysis.row_files import repair_texts
from drlib.chat.tool_calls import FormatError, ToolCall, parse, render_call
from drlib.trajectory import ToolResult
from drlib.validation import require

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{{ '<|im_start|>assistant\n' }}"
)
# tags around the text of the environment: Qwen, Search-R1, ReTool and relatives
OBSERVATION_TAGS = (
    "tool_responses?|tool_results?|tool_outputs?|information|interpreter|observation"
    "|search_results?|function_results?|function_response|execution_results?|code_output"
)
_RESPONSE_TAG = re.compile(rf"<({OBSERVATION_TAGS})>\n?(.*?)\n?</\1>", re.S)
ROLES = {  # roles of other programs
    "human": "user",
    "gpt": "assistant",
    "model": "assistant",
    "ai": "assistant",
    "bot": "assistant",
    "chatgpt": "assistant",
    "agent": "assistant",
    "function": "tool",
    "function_response": "tool",
    "ipython": "tool",
    "tool_response": "tool",
    "tool_result": "tool",
    "observation": "tool",
    "environment": "tool",
    "developer": "system",
}
_ROLES = ("system", "user", "assistant", "tool")
_THOUGHTS = ("reasoning_content", "reasoning", "thinking", "thoughts", "reasoning_details")
_CALLS = ("tool_calls", "function_call")
_CALL_PARTS = ("tool_use", "tool_call", "toolCall", "function_call")  # types of content parts
# fields that are read, or that hold no text of the policy
_KNOWN_FIELDS = {
    *("role", "content", "refusal", *_THOUGHTS, *_CALLS),
    *("name", "tool_call_id", "tool_name", "id", "type", "index", "object", "created", "model"),
    *("timestamp", "weight", "loss", "sampled", "format_error", "stop_reason", "usage"),
    *("ok", "is_error", "isError", "status", "error", "logprobs"),
}
# prefixes of error messages
_ERROR_TEXT = re.compile(
    r"\[[\w ]*Error\]|Traceback \(|\{['\"]error['\"]:|[\w.]*(Error|Exception)\b"
)
# status fields of tool messages, and their values after a failure
_FAILED_BY = {
    "ok": (False,),
    "is_error": (True,),
    "isError": (True,),
    "status": ("error", "failed"),
}


def flatten_message(message: dict, notes: ReadingNotes | None = None, at: str = "message") -> dict:
    """Return the message with its thoughts and tool calls in its content, as text.

    A malformed call is rendered as it is, which `parse` rejects, and its reason is in the field
    `format_error`. Roles of other programs are replaced (`ROLES`).

    Args:
        message: message of a chat.
        notes: counts the fields that are not understood.
        at: name of the message in errors.

    Raises:
        ValueError: content without text, such as an image; the message names it.

    """
    require(isinstance(message, dict), f"{at} is {message!r}; use an object with role and content")
    notes = notes or ReadingNotes()
    message = {name: value for name, value in message.items() if value is not None}
    notes.count_unknown("message.", message, _KNOWN_FIELDS)
    role = message.get("role")
    if isinstance(role, str):
        lowered = role.lower()
        role = message["role"] = lowered if lowered in _ROLES else ROLES.get(lowered, role)
    parts = _list_parts(message.get("content", ""), f"{at}.content")
    content = "".join(_flatten_part(part, notes, where) for where, part in parts)
    if role == "user" and parts and all(part.get("type") == "tool_result" for _, part in parts):
        message["role"] = "tool"  # Anthropic sends tool results as the user's
    thought = _pop_thought(message, notes)
    if thought:
        content = f"<think>{thought}</think>{content}"
    refusal = message.pop("refusal", "")
    if isinstance(refusal, str) and refusal not in content:
        content += refusal
    calls = [call for name in _CALLS for call in _list_calls(message.pop(name, None))]
    content += "".join(map(_render_call_field, calls))
    calls += [part for _, part in parts if part.get("type") in _CALL_PARTS]
    malformed = [call for call in calls if _read_call(call) is None]
    if malformed:
        action = parse(_render_call_field(malformed[0]))
        message["format_error"] = action.reason if isinstance(action, FormatError) else "malformed"
    return message | {"content": content}


def _list_parts(content: Any, at: str) -> list[tuple[str, dict]]:
    """Return the parts of a content with their names; a text is one part."""
    if not isinstance(content, list):
        content = [content if isinstance(content, dict) else str(content)]
    parts = []
    for i, part in enumerate(content):
        if isinstance(part, str):
            part = {"type": "text", "text": part}
        require(part is None or isinstance(part, dict), f"{at}[{i}] is {part!r}; use an object")
        if part:
            parts.append((f"{at}[{i}]", part))
    return parts


def _flatten_part(part: dict, notes: ReadingNotes, at: str) -> str:
    """Return the text of one part of a content."""
    kind = part.get("type")
    if kind in ("thinking", "reasoning"):
        thought = _find_text(part)
        return f"<think>{thought}</think>" if thought else ""
    if kind in _CALL_PARTS:
        return _render_call_field(part)
    if kind == "tool_result":
        inner = _list_parts(part.get("content") or "", f"{at}.content")
        return "".join(_flatten_part(part, notes, where) for where, part in inner)
    if kind == "refusal":
        return part.get("refusal") or ""
    if kind == "redacted_thinking":
        notes.fields["message.content[redacted_thinking]"] += 1
        return ""
    if isinstance(part.get("text"), str) or kind in ("text", "input_text", "output_text"):
        return str(part.get("text") or "")
    raise ValueError(
        f"{at} has the type {kind!r}, which has no text: replace the part by a text, or remove the "
        "row; images, audio and files are not read"
    )


def _pop_thought(message: dict, notes: ReadingNotes) -> str:
    """Remove the fields of thoughts from a message and return the first one with a text."""
    found = {name: value for name in _THOUGHTS if (value := message.pop(name, None))}
    texts = {name: text for name, value in found.items() if (text := _find_text(value))}
    thought = next(iter(texts.values()), "")
    for name in found:
        # servers repeat one thought in several fields
        if texts.get(name, "").strip() not in thought or name not in texts:
            notes.fields[f"message.{name}"] += 1
    return thought


def _find_text(value: Any) -> str:
    """Return the text of a thought: a text, an object with one, or a list of them."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(map(_find_text, value))
    if isinstance(value, dict):
        names = ("text", "thinking", "reasoning", "content", "summary")
        return next((text for name in names if (text := _find_text(value.get(name)))), "")
    return ""


def _list_calls(value: Any) -> list:
    """Return the calls of a field: a list, one call, or either as JSON text."""
    if isinstance(value, str):
        value = load_json(value, value)
    if not isinstance(value, list):
        value = [value]
    return [call for call in value if call]


def _unwrap_call(call: Any) -> Any:
    """Return the object with the name and the arguments of a call, or the call if it has none."""
    if isinstance(call, str):
        call = load_json(call, call)
    if isinstance(call, dict):
        return next(
            (call[k] for k in ("function", "custom") if isinstance(call.get(k), dict)), call
        )
    return call


def _get_arguments(nested: dict) -> Any:
    """Return the arguments of a call: an object, or what the policy wrote instead."""
    name = next((k for k in ("arguments", "parameters", "input") if k in nested), None)
    raw = nested.get(name or "")
    if not isinstance(raw, str):
        return raw
    # the input of a custom tool is a text
    return load_json(raw, {"input": raw} if name == "input" else raw)


def _read_call(call: Any) -> tuple[str, dict] | None:
    """Return the name and the arguments of a call, or None if it is malformed."""
    nested = _unwrap_call(call)
    if not isinstance(nested, dict):
        return None
    name, arguments = nested.get("name"), _get_arguments(nested)
    if not isinstance(name, str) or not name.strip() or not isinstance(arguments, dict):
        return None
    try:
        json.dumps(arguments, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return None
    # Parquet fills the arguments of other calls with null
    return name, {key: value for key, value in arguments.items() if value is not None}


def _render_call_field(call: Any) -> str:
    """Render a call of a message; a malformed call is rendered as it is."""
    found = _read_call(call)
    if found:
        return render_call(*found)
    nested = _unwrap_call(call)
    if not isinstance(nested, dict):
        body = nested if isinstance(nested, str) else json.dumps(nested)
    else:
        arguments = _get_arguments(nested)
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False, default=str)
        name = json.dumps(nested.get("name"), ensure_ascii=False, default=str)
        body = f'{{"name": {name}, "arguments": {arguments}}}'
    return f"<tool_call>{body}</tool_call>"


def load_json(text: str, default: Any) -> Any:
    """Return the value of a JSON text with repaired texts, or `default` if it is not JSON."""
    try:
        return repair_texts(json.loads(text), None)
    except (ValueError, RecursionError):
        return default


def render_turns(messages: list[dict], tokenizer, tools) -> list[str]:
    """Render messages with the chat template, split into context and assistant texts in turn.

    Args:
        messages: messages from `flatten_message`.
        tokenizer: tokenizer with a chat template; ChatML is used without one.
        tools: tool schemas for the template, or None.

    Returns:
        Texts up to the last assistant message: context, assistant, context, assistant, ...
        Assistant texts are unchanged.

    Raises:
        EmptyRolloutError: no assistant message.
        ValueError: the template drops an assistant message.

    """
    turns = [i for i, message in enumerate(messages) if is_sampled(message)]
    if not turns:
        raise EmptyRolloutError("no assistant message; add one")
    *earlier, last = turns
    # templates drop the thoughts of earlier turns, so render placeholders and replace them later
    marked = [
        message | {"content": f"\ue000{i}\ue000"} if i in earlier else message
        for i, message in enumerate(messages[:last])
    ]
    text = tokenizer.apply_chat_template(
        marked,
        tools=tools,
        chat_template=tokenizer.chat_template or CHATML,
        add_generation_prompt=True,
        tokenize=False,
    )
    pieces = re.split("\ue000(\\d+)\ue000", text)  # texts and placeholder indices in turn
    is_complete = pieces[1::2] == [str(i) for i in earlier]
    require(
        is_complete,
        "the chat template of the tokenizer drops assistant messages; use another template",
    )
    pieces[1::2] = [messages[i]["content"] for i in earlier]
    return [*pieces, messages[last]["content"]]


def is_sampled(message: dict) -> bool:
    """Return True if the policy sampled the message; examples in a prompt have sampled=False."""
    return message["role"] == "assistant" and message.get("sampled", True)


def is_observation(message: dict) -> bool:
    """Return True if the environment wrote the message."""
    return message["role"] == "tool" or (
        message["role"] != "assistant" and bool(_RESPONSE_TAG.search(message["content"]))
    )


def extract_tool_results(messages: Sequence[dict]) -> list[ToolResult]:
    """Return one tool result for each assistant message that has a response.

    Responses are messages with role "tool" and tags such as `<tool_response>`. Responses to
    parallel calls are joined under the first call. The status comes from the message fields ok,
    is_error, isError, status or error. Without them, a blank text or one that starts with
    "No results" is "empty", and a text that starts like an error message is an error.
    """
    turns: list[tuple[dict, list]] = []  # assistant message and its responses
    for message in messages:
        content = message["content"]
        if is_sampled(message):
            turns.append((message, []))
        elif turns and message["role"] != "assistant":
            texts = [text for _, text in _RESPONSE_TAG.findall(content)]
            if not texts and message["role"] == "tool":
                texts = [content]
            turns[-1][1].extend((text, message) for text in texts)
    return [_build_result(turn, responses) for turn, responses in turns if responses]


def _build_result(turn: dict, responses: list[tuple[str, dict]]) -> ToolResult:
    """Build the result of one turn from its message and responses (text, message)."""
    errors = [_find_error(text, message) for text, message in responses]
    error = next(filter(None, errors), None)
    first_message = responses[0][1]
    tool, arguments = first_message.get("name", ""), {}
    action = parse(turn["content"])
    if isinstance(action, ToolCall):
        tool, arguments = action.name, action.arguments
    elif error or turn.get("format_error"):
        tool = error = "format"
    text = "\n".join(text for text, _ in responses)
    return ToolResult(tool, arguments, text, error is None, error)


def _find_error(text: str, message: dict) -> str | None:
    """Return the error of a response, "empty" without content, or None."""
    reported = message.get("error")
    for name, failed in _FAILED_BY.items():
        if name in message:
            return str(reported or "error") if message[name] in failed else None
    if reported or _ERROR_TEXT.match(text):
        return str(reported or "error")
    return "empty" if not text.strip() or text.startswith("No results") else None
