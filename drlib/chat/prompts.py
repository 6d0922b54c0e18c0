"""What an agent says to its policy where a context begins or ends otherwise than by a question.

A summary is asked for and handed on (ReSum), reports are merged (Heavy), a searcher is shown the
first results (s3). The texts stand here and not beside the agents, because a policy that is trained
for these agents reads them before any agent runs: the tokenizer has a piece for each of their
lines (`PHRASES`), and `drlib.demonstrations.skills` writes the samples.

Left out: wordings in other languages.
"""

import datetime
import json
import re
from collections.abc import Iterable, Sequence

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

GATHER = """{question}

You gather what somebody else will answer this from. The first results:
{information}

In each turn mark the results that matter, by their numbers, at most {keep}: \
<important_info>[1, 3]</important_info>. Then ask for more, <query>a search query</query>, or end: \
<search_complete>"""

# What a tokenizer may keep whole: every line of these texts, and of a context-managed round
# (`drlib.chat.tool_calls.workspace`), that is the same each time.
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

_SUMMARY = re.compile("<summary>(.*?)</summary>", re.DOTALL)


def extract_summary(text: str) -> str:
    """The summary in a turn, "" where it has none."""
    found = _SUMMARY.search(text)
    return found[1].strip() if found else ""


def merge_prompt(question: str, runs: Sequence[tuple[str, str | None]]) -> str:
    """What a merger reads of `runs`, the report and the answer of each."""
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
