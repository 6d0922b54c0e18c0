"""The format of a turn: how a tool call and an answer are written, and the strict parser of both.

All stages share one format, that of Qwen/Hermes and Tongyi DeepResearch (report, appendix A)
without its blank lines: `<think>..</think><tool_call>{json}</tool_call>` or
`<think>..</think><answer>..</answer>`; an observation is a user turn with a `<tool_response>`.

JSON is read before names are looked at (upstream greps the call for "python" and so runs searches
as code); what is refused becomes the next observation, with one of `FORMAT_REASONS`.
Left out: several calls in a turn.
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
MAX_DEPTH = 32  # of the JSON in a call

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
# What a policy that imagines the world writes in its own turn, and why `parse` refuses it.
FOREIGN_TAGS = ("<tool_response>", "</tool_response>", START)
FOREIGN_REASONS = (_TOOL_RESPONSE, _MARKER)


@dataclass(frozen=True)
class ToolCall:
    """A well-formed call; whether the tool exists is the toolbox's business."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What ends a rollout; never empty."""

    text: str


@dataclass(frozen=True)
class FormatError:
    """`reason` is one of `FORMAT_REASONS`."""

    reason: str


_TAG = re.compile(r"<think>|<tool_call>|<answer>")
_REPORT = re.compile("<report>(.*?)</report>", re.DOTALL)
_OPEN = {"<think>": _OPEN_THINK, "<tool_call>": _OPEN_CALL, "<answer>": _OPEN_ANSWER}


def parse(text: str | bytes) -> ToolCall | Answer | FormatError:
    """The first action of an assistant turn, or why there is none. Never raises; bytes are UTF-8.

    Thoughts are skipped, tags and all; a turn that closes a thought it never opened began inside
    one (templates that open it in the prompt do that). What follows the first action does not
    count, but a tool response or chat marker anywhere spoils the turn: the policy imagined the
    world.
    """
    try:
        text = text.decode("utf-8") if isinstance(text, bytes) else text
        text.encode("utf-8")
    except UnicodeError:
        return FormatError(_NOT_UNICODE)
    text = text.rstrip().removesuffix(END)
    if "<tool_response>" in text or "</tool_response>" in text:
        return FormatError(_TOOL_RESPONSE)
    if any(marker in text for marker in (PAD, START, END)):
        return FormatError(_MARKER)
    tag, closes = _action_in(text)
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


def render_workspace(question: str, report: str, action: str, observation: str) -> str:
    """What a context-managed round reads (Tongyi DeepResearch, section 1; WebResearcher): question,
    report, last action and observation, and nothing else of what was."""
    return (
        f"Question: {question}\nReport: {report or 'empty'}\n"
        f"Last action: {action or 'none'}\nLast observation: {observation or 'none'}"
    )


def extract_report(text: str) -> str:
    """The report of a context-managed turn, "" where it has none."""
    found = _REPORT.search(text)
    return found[1].strip() if found else ""


def truncate_after_action(text: str) -> str:
    """The turn up to the close of its first action; all of it where it has none."""
    tag, closes = _action_in(text)
    return text[: closes + len(f"</{tag[0][1:]}")] if tag and closes >= 0 else text


def _action_in(text: str) -> tuple[re.Match | None, int]:
    """The opening tag of the first action, thoughts skipped, and where its closing tag stands; that
    of a thought which is not closed, and -1; None and -1 where there is no action."""
    at = _after_open_thought(text)
    while tag := _TAG.search(text, at):
        at = text.find("</" + tag[0][1:], tag.end())
        if at < 0 or tag[0] != "<think>":
            return tag, at
    return None, -1


def _after_open_thought(text: str) -> int:
    """Where a turn's own text begins: behind a thought that the prompt opened, or at the start."""
    opens = text.find("<think>")
    closes = text.find("</think>")
    began_inside = closes >= 0 and not 0 <= opens < closes
    return closes + len("</think>") if began_inside else 0


def _parse_call(body: str) -> ToolCall | FormatError:
    call, end = _JSON.raw_decode(body)
    # what Python reads as JSON but a tool would choke on; each of these is a ValueError too
    text = json.dumps(call, ensure_ascii=False, allow_nan=False, indent=1)  # NaN, infinite
    text.encode("utf-8")  # a lone surrogate, written as an escape
    # a depth of our own: where Python's recursion ends depends on the caller's stack
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
    if rest.startswith("<code>"):  # Tongyi's form: arguments {}, then the program itself
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


def render_call(name: str, arguments: dict[str, Any]) -> str:
    """`<tool_call>{"name": .., "arguments": ..}</tool_call>`; `parse` gives the same back."""
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False, allow_nan=False)
    return f"<tool_call>{body}</tool_call>"


def render_answer(text: str) -> str:
    return f"<answer>{text}</answer>"
