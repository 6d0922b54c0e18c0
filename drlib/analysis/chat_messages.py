"""Chat messages of other programs: conversion to plain text, turns and tool results.

A message is a dictionary with `role` and `content`, as in OpenAI and Hugging Face chats. Thoughts
and tool calls in separate fields are moved into the content, in the tags of drlib.
"""

import json
import re
from collections.abc import Sequence

from drlib.chat.tool_calls import ToolCall, parse, render_call
from drlib.trajectory import ToolResult
from drlib.validation import require

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{{ '<|im_start|>assistant\n' }}"
)
_RESPONSE_TAG = re.compile(r"<tool_response>\n?(.*?)\n?</tool_response>", re.S)
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


def flatten_message(message: dict) -> dict:
    """Return the message with its thoughts and tool calls in its content, as text."""
    message = {name: value for name, value in message.items() if value is not None}
    content = message.get("content", "")
    if not isinstance(content, str):  # a list of blocks
        content = "".join(block["text"] for block in content)
    thought = message.pop("reasoning_content", "")
    if thought:
        content = f"<think>{thought}</think>{content}"
    for call in message.pop("tool_calls", ()):
        function = call.get("function", call)
        arguments = function["arguments"]
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
        # Parquet fills the arguments of other calls with null
        given = {name: value for name, value in arguments.items() if value is not None}
        content += render_call(function["name"], given)
    return message | {"content": content}


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
        ValueError: no assistant message, or the template drops one.

    """
    turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    require(bool(turns), "no assistant message; add one")
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


def extract_tool_results(messages: Sequence[dict]) -> list[ToolResult]:
    """Return one tool result for each assistant message that has a response.

    Responses are messages with role "tool" and `<tool_response>` tags. Responses to parallel calls
    are joined under the first call. The status comes from the message fields ok, is_error,
    isError, status or error. Without them, a blank text or one that starts with "No results" is
    "empty", and a text that starts like an error message is an error.
    """
    turns: list[tuple[str, list]] = []  # assistant text and its responses
    for message in messages:
        content = message["content"]
        if message["role"] == "assistant":
            turns.append((content, []))
        elif turns:
            texts = _RESPONSE_TAG.findall(content)
            if not texts and message["role"] == "tool":
                texts = [content]
            turns[-1][1].extend((text, message) for text in texts)
    return [_build_result(content, responses) for content, responses in turns if responses]


def _build_result(content: str, responses: list[tuple[str, dict]]) -> ToolResult:
    """Build the result of one turn from its assistant text and responses (text, message)."""
    errors = [_find_error(text, message) for text, message in responses]
    error = next(filter(None, errors), None)
    first_message = responses[0][1]
    tool, arguments = first_message.get("name", ""), {}
    action = parse(content)
    if isinstance(action, ToolCall):
        tool, arguments = action.name, action.arguments
    elif error:
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
