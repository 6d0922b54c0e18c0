"""Prompts of agents: system prompt, summaries (ReSum), merging (Heavy), gathering (s3), delegation.

They are here and not with the agents, because a policy trained for these agents reads them before
any agent runs: the tokenizer has a piece for each constant part (`PHRASES`), and the pre-training
samples contain them.

The system prompt has the structure of Tongyi DeepResearch (inference/prompt.py of its repository:
task, answer tags, tools as JSON lines, call format, date last) in our own words. The tour's policy
has learned it and gets no system prompt.
"""

import datetime
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from drlib.files import write_atomic

RESUME = "{question}\nSummary of the work so far: {summary}"
SUMMARISE = """The context is nearly full, and what you say now is all that you will know of it. \
Write down between <summary></summary> what was found, with its sources, and what is missing."""

MERGE = """{question}

{n} researchers have worked on this question, each without the others. Their reports:

{reports}

Weigh what each report rests on, and give the one answer that they support best together. That \
most of them agree counts for something, but a single well-founded report may be right. A report \
without an answer counts for what it found."""
REPORT = "Report {number}: {report}\nIts answer: {answer}"

CONFIDENCE = """{question}

An agent worked on this question. What it found: {facts}
Its answer: {answer}

How likely is this answer right? Give a number from 0, surely wrong, to 100, surely right, as your \
answer."""
NEGATIVE = """{question}
These answers were given before and are not certain enough: {answers}. Look for another one."""

GATHER = """{question}

You gather what somebody else will answer this from. The first results:
{information}

In each turn mark the results that matter, by their numbers, at most {keep}: \
<important_info>[1, 3]</important_info>. Then ask for more, <query>a search query</query>, or end: \
<search_complete>"""

PLAN = """{question}

You do not research this yourself: workers do. A worker has tools and returns a short answer, but \
knows nothing except the sub-question that you give it. Delegate one sub-question at a time, so \
that it can be understood alone. When the answers suffice, give the final answer."""
RECAP = """{part}

This is a part of the question: {question}
Answer the part only, in a few words."""
# What the planner reads of a worker without an answer.
NO_ANSWER = {
    "calls": "No answer: the worker has used all its calls.",
    "context": "No answer: the worker's context is full.",
    "length": "No answer: a turn of the worker was too long.",
    "loop": "No answer: the worker repeated one call.",
    "format": "No answer: the worker's turns could not be read.",
}

# Constant parts of these texts and of a context-managed round
# (`drlib.chat.tool_calls.render_workspace`); the tokenizer may keep each as one piece.
PHRASES = (
    "\nSummary of the work so far: ",
    SUMMARISE,
    "<summary>",
    "</summary>",
    MERGE.partition("{n}")[2].partition("{reports}")[0],
    MERGE.partition("{reports}")[2],
    "Report ",
    "\nIts answer: ",
    "Question: ",
    "\nReport: ",
    "\nLast action: ",
    "\nLast observation: ",
    "<report>",
    "</report>",
    GATHER.partition("{question}")[2].partition("{information}")[0],
    GATHER.partition("{information}")[2].partition("{keep}")[0],
    GATHER.partition("{keep}")[2],
    "<important_info>[",
    "]</important_info>",
    "<query>",
    "</query>",
    "<search_complete>",
)

# The same for a planner and its workers (`drlib.agents.planner_worker`).
DELEGATION_PHRASES = (
    PLAN.partition("{question}")[2],
    '{"name": "delegate", "arguments": {"question": "',
    *NO_ANSWER.values(),
)

_TOOL_LIST = re.compile("<tools>\n(.*?)\n</tools>", re.DOTALL)
_SUMMARY = re.compile("<summary>(.*?)</summary>", re.DOTALL)


def extract_summary(text: str) -> str:
    """Return the summary in a turn, "" without one."""
    match = _SUMMARY.search(text)
    return match[1].strip() if match else ""


def merge_prompt(question: str, runs: Sequence[tuple[str, str | None]]) -> str:
    """Build the merger's prompt from the (report, answer) of each run."""
    reports = [
        REPORT.format(number=number, report=report or "empty", answer=answer or "none")
        for number, (report, answer) in enumerate(runs, 1)
    ]
    return MERGE.format(question=question, n=len(runs), reports="\n\n".join(reports))


HEAD = """You answer questions by research. Look things up before you answer, check what you find \
against a second source where you can, and say only what your sources support.

In each turn, think first inside <think></think>. Then do exactly one thing: call one tool, or, \
when you know enough, give the final answer inside <answer></answer>. The answer is short: a name, \
a number, a date, or what the question asks for."""

HEAD_NATIVE = """You answer questions by research. Look things up before you answer, check what \
you find against a second source where you can, and say only what your sources support.

In each turn, call one or more tools, or, when you know enough, give the final answer without any \
call. The answer is short: a name, a number, a date, or what the question asks for."""

HEAD_JSON = """You answer questions by research. Look things up before you answer, check what you \
find against a second source where you can, and say only what your sources support.

In each turn, write one JSON object. Its "thought" is what you think. Its "action" is exactly one \
thing: a call of one tool, or, when you know enough, the final answer. The answer is short: a \
name, a number, a date, or what the question asks for."""

# After a turn that cannot be parsed.
FORMAT_HELP = """Write either one tool call:
<tool_call>
{"name": "search", "arguments": {"query": ["what to search for"]}}
</tool_call>
or the final answer:
<answer>the answer</answer>"""
FORMAT_HELP_PLANNER = """Write either one tool call:
<tool_call>
{"name": "delegate", "arguments": {"question": "a sub-question"}}
</tool_call>
or the final answer:
<answer>the answer</answer>"""
FORMAT_HELP_NATIVE = "Call a tool by its name with a JSON object of arguments, or write the answer."

# For a model that learns the tools' formats in training; schemas would be most of its tokens.
BRIEF_PROMPT = "Use the tools search and python, then answer."
PROMPT_FILE = "system_prompt.txt"  # in the folder of a model that was trained with its own prompt

FORMAT_HELP_JSON = """Write either one tool call:
{"thought": "why", "action": {"name": "search", "arguments": {"query": ["what to search for"]}}}
or the final answer:
{"thought": "why", "action": {"answer": "the answer"}}"""

TOOLS = """You may call these tools, one JSON schema a line:
<tools>
{tools}
</tools>

A call is a JSON object with the tool's name and its arguments:
<tool_call>
{{"name": "the tool's name", "arguments": {{"the parameter": "its value"}}}}
</tool_call>
Wait for the response, which comes inside <tool_response></tool_response>; never write one."""


TOOLS_JSON = """You may call these tools, one JSON schema a line:
{tools}

A call: {{"thought": "why", "action": {{"name": "the tool's name", "arguments": {{"the parameter": \
"its value"}}}}}}
The answer: {{"thought": "why", "action": {{"answer": "the answer"}}}}
Wait for the response, which comes inside <tool_response></tool_response>; never write one."""


def save_trained_prompt(folder: Path, system: str) -> None:
    """Store the system prompt that a model was trained with beside its weights."""
    write_atomic(folder / PROMPT_FILE, system)


def load_trained_prompt(folder: Path) -> str | None:
    """Return the system prompt stored by `save_trained_prompt`; None if there is none."""
    file = folder / PROMPT_FILE
    return file.read_text(encoding="utf-8") if file.is_file() else None


def replace_tools(
    system: str | None, tools: Sequence[dict], has_native_tools: bool = False
) -> str | None:
    """Return the system prompt with other tools, for a task with tools of its own.

    Args:
        system: brief, or with a list of tools; None stays None, for a policy without a prompt.
        tools: schemas.
        has_native_tools: tools are part of the model's template or of the server's request.

    Raises:
        ValueError: the tools are not part of the prompt.
    """
    if system is None:
        return None
    if system == BRIEF_PROMPT:
        *names, last = [tool["name"] for tool in tools] or [""]
        several = f"tools {', '.join(names)} and {last}" if names else f"tool {last}"
        return f"Use the {several}, then answer." if last else "Answer."
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    replaced, n = _TOOL_LIST.subn(lambda found: f"<tools>\n{lines}\n</tools>", system)
    if has_native_tools or n != 1:
        raise ValueError(
            "an environment's tools need a system prompt that lists tools: use model.tool_format="
            "prompt or brief, and no native tool calls"
        )
    return replaced


def research_prompt(
    tools: Iterable[dict] = (), today: datetime.date | None = None, *, is_json: bool = False
) -> str:
    """Build the system prompt.

    Args:
        tools: schemas listed as text, none if passed natively.
        today: date at the end; None for the current one.
        is_json: turns are JSON objects (`drlib.models.json_turns`).
    """
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    if is_json:
        parts = [HEAD_JSON, TOOLS_JSON.format(tools=lines)]
    else:
        parts = [HEAD, TOOLS.format(tools=lines)] if lines else [HEAD_NATIVE]
    today = today or datetime.date.today()
    return "\n\n".join([*parts, f"Current date: {today.isoformat()}"])
