"""What a real model is told of its task, its tools and the form of a turn.

Structure as in Tongyi DeepResearch (inference/prompt.py of its repository: task, answer tags, tools
as JSON lines, form of a call, date at the end), the words are ours. The tour's small policy has
learned all of this and is told nothing.
"""

import datetime
import json
from collections.abc import Iterable

HEAD = """You answer questions by research. Look things up before you answer, check what you find \
against a second source where you can, and say only what your sources support.

In each turn, think first inside <think></think>. Then do exactly one thing: call one tool, or, \
when you know enough, give the final answer inside <answer></answer>. The answer is short: a name, \
a number, a date, or what the question asks for."""

TOOLS = """You may call these tools, one JSON schema a line:
<tools>
{tools}
</tools>

A call is a JSON object with the tool's name and its arguments:
<tool_call>
{{"name": "the tool's name", "arguments": {{"the parameter": "its value"}}}}
</tool_call>
Wait for the response, which comes inside <tool_response></tool_response>; never write one."""


def research_prompt(tools: Iterable[dict] = (), today: datetime.date | None = None) -> str:
    """The system prompt; `tools`: schemas to be told as text, none where the server tells them."""
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    parts = [HEAD, *([TOOLS.format(tools=lines)] if lines else [])]
    today = today or datetime.date.today()
    return "\n\n".join([*parts, f"Current date: {today.isoformat()}"])
