"""Chat messages of other programs: their text turn by turn, and the tool results in them.

A message is a dictionary with a `role` and a `content`, as in OpenAI's and Hugging Face's chats.
Thoughts and calls that stand in fields of their own are written into the content, in our tags.
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
# how a text begins that reports an error
_ERROR_TEXT = re.compile(
    r"\[[\w ]*Error\]|Traceback \(|\{['\"]error['\"]:|[\w.]*(Error|Exception)\b"
)
# fields of a tool's message that say whether it worked, and their values where it did not
_FAILED_BY = {
    "ok": (False,),
    "is_error": (True,),
    "isError": (True,),
    "status": ("error", "failed"),
}


def flatten_message(message: dict) -> dict:
    """The message with thoughts and calls written into its content, which is text."""
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
        # Parquet writes null for the arguments of other calls
        given = {name: value for name, value in arguments.items() if value is not None}
        content += render_call(function["name"], given)
    return message | {"content": content}


def render_turns(messages: list[dict], tokenizer, tools) -> list[str]:
    """The text up to the last assistant's turn: others' words and assistants' words in turns.

    It is what the tokenizer's chat template makes of plain messages (ChatML without one), with the
    assistants' words as they stand. ValueError: no assistant, or a template that hides one.
    """
    turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    require(bool(turns), "no message of an assistant")
    *earlier, last = turns
    # templates drop the thoughts of earlier turns: a mark stands for each turn meanwhile
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
    pieces = re.split("\ue000(\\d+)\ue000", text)  # between the marks, and the marks' numbers
    all_there = pieces[1::2] == [str(i) for i in earlier]
    require(all_there, "the tokenizer's chat template does not show every assistant's turn")
    pieces[1::2] = [messages[i]["content"] for i in earlier]
    return [*pieces, messages[last]["content"]]


def extract_tool_results(messages: Sequence[dict]) -> list[ToolResult]:
    """One result for each assistant's turn that was responded to.

    Responses are messages of the role tool and `<tool_response>` tags; those of parallel calls are
    joined, under the first call. A field of the message says whether it worked (ok, is_error,
    isError, status, error). Else a text without words or with "No results" at its start is "empty",
    and one that starts like an error is one.
    """
    turns: list[tuple[str, list]] = []  # what the assistant said, and what it was responded
    for message in messages:
        content = message["content"]
        if message["role"] == "assistant":
            turns.append((content, []))
        elif turns:
            texts = _RESPONSE_TAG.findall(content)
            if not texts and message["role"] == "tool":
                texts = [content]
            turns[-1][1].extend((text, message) for text in texts)
    return [_build_result(said, responses) for said, responses in turns if responses]


def _build_result(said: str, responses: list[tuple[str, dict]]) -> ToolResult:
    """The result of one turn; responses: (text, message) of each."""
    errors = [_find_error(text, message) for text, message in responses]
    error = next(filter(None, errors), None)
    first_message = responses[0][1]
    tool, arguments = first_message.get("name", ""), {}
    action = parse(said)
    if isinstance(action, ToolCall):
        tool, arguments = action.name, action.arguments
    elif error:
        tool = error = "format"
    text = "\n".join(text for text, _ in responses)
    return ToolResult(tool, arguments, text, error is None, error)


def _find_error(text: str, message: dict) -> str | None:
    """Return the error of a response as text, "empty", or None without an error."""
    told = message.get("error")
    for name, failed in _FAILED_BY.items():
        if name in message:
            return str(told or "error") if message[name] in failed else None
    if told or _ERROR_TEXT.match(text):
        return str(told or "error")
    return "empty" if not text.strip() or text.startswith("No results") else None
