"""The format of a turn: tool calls and answers, with a strict parser.

All stages share the format of Qwen/Hermes and Tongyi DeepResearch (report, appendix A) without its
blank lines: `<think>..</think><tool_call>{json}</tool_call>` or
`<think>..</think><answer>..</answer>`; an observation is a user turn with a `<tool_response>`. A
turn has one action.

JSON is parsed before names are examined (upstream greps the call for "python" and so runs searches
as code). A rejected turn's observation is one of `FORMAT_REASONS`.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

PAD = "<|endoftext|>"
START = "<|im_start|>"
END = "<|im_end|>"
TAGS = (
    PAD,
    START,
    END,
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<answer>",
    "</answer>",
)
ROLES = ("system\n", "user\n", "assistant\n")  # follow START
MAX_DEPTH = 32  # of a call's JSON

_NO_ACTION = "no tool call or answer."
_OPEN_THINK = "think is not closed."
_OPEN_CALL = "tool call is not closed."
_NOT_JSON = "tool call is not valid JSON."
_NOT_A_CALL = "tool call needs a name and arguments, nothing else."
_BAD_NAME = "name must be a text."
_BAD_ARGUMENTS = "arguments must be a JSON object."
_BAD_CODE = "code must be closed, not empty, and only for python."
_OPEN_ANSWER = "answer is not closed."
_EMPTY_ANSWER = "answer is empty."
_TOOL_RESPONSE = "policy wrote a tool response."
_MARKER = "policy wrote a chat marker."
_NOT_UNICODE = "text is not valid Unicode."
FORMAT_REASONS = (
    _NO_ACTION,
    _OPEN_THINK,
    _OPEN_CALL,
    _NOT_JSON,
    _NOT_A_CALL,
    _BAD_NAME,
    _BAD_ARGUMENTS,
    _BAD_CODE,
    _OPEN_ANSWER,
    _EMPTY_ANSWER,
    _TOOL_RESPONSE,
    _MARKER,
    _NOT_UNICODE,
)
# Tags that a policy may write into its own turn, inventing observations, and the format errors.
FOREIGN_TAGS = ("<tool_response>", "</tool_response>", START)
FOREIGN_REASONS = (_TOOL_RESPONSE, _MARKER)


@dataclass(frozen=True)
class ToolCall:
    """A well-formed call; the toolbox checks that the tool exists."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """The end of a rollout; never empty."""

    text: str


@dataclass(frozen=True)
class FormatError:
    """A rejected turn; `reason` is one of `FORMAT_REASONS`."""

    reason: str


_TAG = re.compile(r"<think>|<tool_call>|<answer>")
# tags that agents read in a turn, besides those of the format
AGENT_TAGS = (
    *("report", "summary", "query", "important_info", "search_complete"),
    *("write_outline", "write", "citation", "terminate"),
)
_FORMAT_TAG = re.compile("|".join(map(re.escape, TAGS)))
_THOUGHT_TAG = re.compile(rf"{_FORMAT_TAG.pattern}|</?(?:{'|'.join(AGENT_TAGS)})>")
# Markup of other models' chat templates (turns, tools, media), which servers read as tokens.
_FOREIGN_MARKUP = re.compile(
    r"<\|[^<>\s]{1,40}>|<[^<>|\s]{1,40}\|>"  # <|eot_id|>, <|turn>, <turn|>
    r"|<｜[^<>]{1,40}｜>"  # DeepSeek, with wide bars
    r"|<(?:start|end)_of_\w{1,20}>|</?s>|<(?:bos|eos|pad|unk|sop|eop|image|video|audio)>"
    r"|<</?SYS>>|\[/?(?:INST|gMASK|[A-Z]{2,12}_(?:PROMPT|TOOLS|RESULTS|CALLS|CONTENT))\]"
    r"|\]~!?b[\[\]]|\[e~\["  # MiniMax
)
_CALL_START = re.compile(r"<tool_call>\s*(?={)")
_CODE = re.compile(r"\s*<code>(.*?)</code>\s*</tool_call>", re.DOTALL)
_REPORT = re.compile("<report>(.*?)</report>", re.DOTALL)
_OPEN = {"<think>": _OPEN_THINK, "<tool_call>": _OPEN_CALL, "<answer>": _OPEN_ANSWER}


def parse(text: str | bytes) -> ToolCall | Answer | FormatError:
    """Return the first action of an assistant turn, or a FormatError. Never raises.

    Thoughts are skipped with their tags; a turn that closes an unopened thought started inside one
    (templates may open it in the prompt). Text after the first action is ignored, but a tool
    response or chat marker rejects the turn, because the policy invented an observation. Tags in
    the strings of a call's JSON are text.

    Args:
        text: the turn; bytes are UTF-8.

    >>> parse("<think>done</think><answer>Oslo</answer>")
    Answer(text='Oslo')
    """
    try:
        text = text.decode("utf-8") if isinstance(text, bytes) else text
        text.encode("utf-8")
    except UnicodeError:
        return FormatError(_NOT_UNICODE)
    text = text.rstrip().removesuffix(END)
    visible = mask_call_strings(text)
    if "<tool_response>" in visible or "</tool_response>" in visible:
        return FormatError(_TOOL_RESPONSE)
    if any(marker in visible for marker in (PAD, START, END)):
        return FormatError(_MARKER)
    tag, closes = _action_in(visible)
    if tag is None:
        return FormatError(_NO_ACTION)
    if closes < 0:
        return FormatError(_OPEN[tag[0]])
    body = text[tag.end() : closes].strip()
    if tag[0] == "<answer>":
        return Answer(body) if body else FormatError(_EMPTY_ANSWER)
    try:
        return _parse_call(body)
    except (ValueError, RecursionError):
        return FormatError(_NOT_JSON)


def parse_native(text: str) -> list[ToolCall | Answer | FormatError]:
    """Return the actions of a turn whose calls use the model's own tool format.

    Such a turn may have several calls. One without a call is the answer. Never empty, never raises.

    >>> parse_native("Oslo")
    [Answer(text='Oslo')]
    """
    first = parse(text)
    if first == FormatError(_NO_ACTION):
        answer = text.rpartition("</think>")[2].rstrip().removesuffix(END).strip()
        return [Answer(answer) if answer else first]
    actions = [first]
    rest = text[len(truncate_after_action(text)) :]
    while not isinstance(first, Answer) and "<tool_call>" in mask_call_strings(rest):
        actions.append(parse(rest))
        rest = rest[len(truncate_after_action(rest)) :]
    return actions


def render_workspace(question: str, report: str, action: str, observation: str) -> str:
    """Render the prompt of a context-managed round: question, report, last action and observation.

    Tongyi DeepResearch, section 1; WebResearcher.
    """
    return (
        f"Question: {question}\nReport: {report or 'empty'}\n"
        f"Last action: {action or 'none'}\nLast observation: {observation or 'none'}"
    )


def extract_report(text: str) -> str:
    """Return the report of a context-managed turn, "" without one."""
    match = _REPORT.search(text)
    return match[1].strip() if match else ""


def truncate_after_action(text: str) -> str:
    """Return the turn up to the end of its first action; all of it without one."""
    tag, closes = _action_in(mask_call_strings(text))
    return text[: closes + len(f"</{tag[0][1:]}")] if tag and closes >= 0 else text


def mask_call_strings(text: str) -> str:
    """Replace every "<" in the JSON or code of a call by NUL, so that only real tags are found.

    JSON has "<" in strings only. Positions are unchanged. A call whose JSON cannot be read is not
    masked: its first closing tag ends it.
    """
    parts, done, at = [], 0, 0
    while call := _CALL_START.search(text, at):
        start = at = call.end()
        try:
            _, end = _ANY_JSON.raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        code = _CODE.match(text, end)
        spans = [(start, end)]
        if code and "<tool_call>" not in code[1]:  # else the code of this call is not closed
            spans.append(code.span(1))
        for first, last in spans:
            parts += [text[done:first], text[first:last].replace("<", "\0")]
            done = at = last
    return "".join([*parts, text[done:]])


def _action_in(text: str) -> tuple[re.Match | None, int]:
    """Return the opening tag of the first action and the position of its closing tag.

    (tag of the thought, -1) for an unclosed thought; (None, -1) without an action.
    """
    at = _after_open_thought(text)
    while tag := _TAG.search(text, at):
        at = text.find("</" + tag[0][1:], tag.end())
        if at < 0 or tag[0] != "<think>":
            return tag, at
    return None, -1


def _after_open_thought(text: str) -> int:
    """Return the end of a thought that was opened in the prompt, else 0."""
    opens = text.find("<think>")
    closes = text.find("</think>")
    began_inside = closes >= 0 and not 0 <= opens < closes
    return closes + len("</think>") if began_inside else 0


def _parse_call(body: str) -> ToolCall | FormatError:
    call, end = _JSON.raw_decode(body)
    # reject JSON that Python accepts but tools may not; each raises ValueError too
    text = json.dumps(call, ensure_ascii=False, allow_nan=False, indent=1)  # NaN and infinity
    text.encode("utf-8")  # lone surrogates
    # explicit depth limit: Python's recursion limit depends on the caller's stack
    if max(len(line) - len(line.lstrip(" ")) for line in text.split("\n")) >= MAX_DEPTH:
        raise ValueError("nested too deeply")
    if not isinstance(call, dict) or set(call) != {"name", "arguments"}:
        return FormatError(_NOT_A_CALL)
    name, arguments = call["name"], call["arguments"]
    if not isinstance(name, str) or not name.strip():
        return FormatError(_BAD_NAME)
    if not isinstance(arguments, dict):
        return FormatError(_BAD_ARGUMENTS)
    rest = body[end:].strip()
    if rest.startswith("<code>"):  # Tongyi's form: arguments {}, then the program
        code = rest.removeprefix("<code>").removesuffix("</code>").strip("\r\n")
        python = name in ("PythonInterpreter", "python") and not arguments
        if not (python and rest.endswith("</code>") and code.strip()):
            return FormatError(_BAD_CODE)
        return ToolCall("python", {"code": code})
    if rest:
        return FormatError(_NOT_JSON)
    return ToolCall(name, arguments)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("duplicate key")
    return dict(pairs)


_JSON = json.JSONDecoder(object_pairs_hook=_unique)
_ANY_JSON = json.JSONDecoder()


def render_call(name: str, arguments: dict[str, Any]) -> str:
    """Render `<tool_call>{"name": .., "arguments": ..}</tool_call>`, the inverse of `parse`.

    A tag inside the JSON is written with an escaped "<", because its token would end the call.
    """
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False, allow_nan=False)
    body = _FORMAT_TAG.sub(lambda tag: "\\u003c" + tag[0][1:], body)
    return f"<tool_call>{body}</tool_call>"


def escape_tags(text: str) -> str:
    """Break the tags of this chat format and of other models' templates with a space.

    A page can then neither end its tool response nor forge a turn.

    >>> escape_tags("</tool_response><|eot_id|>[INST]")
    '< /tool_response>< |eot_id|>[ INST]'
    """
    for markup in (_FORMAT_TAG, _FOREIGN_MARKUP):
        text = markup.sub(lambda tag: f"{tag[0][0]} {tag[0][1:]}", text)
    return text


def escape_thought(text: str) -> str:
    """Break every tag in a thought with a space: also those that agents read in a turn."""
    return _THOUGHT_TAG.sub(lambda tag: f"< {tag[0][1:]}", text)


def render_answer(text: str) -> str:
    """Render `<answer>..</answer>`."""
    return f"<answer>{text}</answer>"
