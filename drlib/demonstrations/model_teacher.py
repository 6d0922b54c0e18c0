"""A language model as AgentFounder's teacher and judge (arXiv 2509.13310, section 3).

The rows are those of `drlib.demonstrations.agentfounder`; no tool is executed. For a question and
the statements of a memory that entail its answer:

    fas_plan    the model sees the question only and writes a first step, K times; the judge also
                sees the statements and the answer and rejects misleading steps
    fas_reason  the model answers from its own knowledge (the draft), then again with the
                statements; kept if the second answer is right and its reasoning not too long
    has         at each step of a finished trajectory the model writes N alternatives, which are
                not executed but shuffled with the step taken

The model writes JSON, which is converted to turns of our format, so a missing bracket costs a row
but is never trained on. An unreadable reply, a missing verdict and an exhausted budget are recorded
in a row's `judge`: only judged rows are kept.

Not implemented: plans of several steps, a judge that corrects.
"""

import random
import re
from collections.abc import Sequence
from typing import Any

from drlib.chat.json_replies import extract_json
from drlib.chat.tool_calls import END, Answer, ToolCall, parse, render_answer, render_call
from drlib.demonstrations.agentfounder import KEPT, CptRow
from drlib.questions.escalation import CLOSED_BOOK_PROMPT
from drlib.questions.replies import Replies, make_prompt
from drlib.task import Task, is_correct

TOOLS = """\
search: {"query": ["..", ".."]} finds pages; visit: {"url": ["https://.."], "goal": ".."} reads
them; python: {"code": ".."} computes"""
STEP = '{"thought": "one to three sentences", "tool": "search", "arguments": {"query": [".."]}}'
PLAN = f"""\
You plan research. Think about how the user's question can be answered and decide on the first tool
call. Do not answer the question, and do not guess. The tools are
{TOOLS}.
Reply with JSON and nothing else: {STEP}"""
JUDGE = """\
You judge the first step of a researcher, who does not know what you know:
{known}
The answer of the question is: {answer}
Does this step begin a way to it, by the statements above? A step that guesses, asks about something
else, or asks for nothing does not. Reply with "yes", or with "no: " and why, and nothing else."""
REFINE = """\
Answer the user's question. From memory you said: {draft}. These statements are true:
{known}
Use those that matter, and say where your memory was wrong. Reply with JSON and nothing else:
{{"reasoning": "a few sentences", "answer": "a name, a date or a number"}}"""
OTHERS = f"""\
You see a researcher at work. Think of COUNT other steps in the place of the last one: each another
idea of what to do there, better or worse. Nobody will take them. The tools are
{TOOLS}.
Reply with a JSON list of COUNT steps and nothing else, each of them
{STEP} or {{"thought": "..", "answer": ".."}}"""
WORDS_A_STATEMENT = 25  # of a refined answer's reasoning: what is longer rambles
UNREADABLE = "it cannot be read"
_VERDICT = re.compile(r"\W*(yes|no)\b", re.IGNORECASE)


class ModelTeacher:
    """Writes rows with the model behind `writer`.

    Args:
        judge: replies of the model that judges plans; None: the writer judges, in separate
            requests.
        names: names that a call may search for (`CptRow.entity_ids`).
    """

    def __init__(self, writer: Replies, judge: Replies | None = None, names: Sequence[str] = ()):
        self.writer, self.judge = writer, judge or writer
        self.names: Sequence[str] = list(names)

    def plans(
        self, task: Task, known: Sequence[str], sources: Sequence[str], k: int
    ) -> list[CptRow]:
        """Return up to `k` different plans for one question, judged (rejected ones too).

        known: the statements that entail its answer; sources: their sources.
        """
        found: dict[str, str] = {}  # plan -> why there is none, "" for one
        for number in range(k):
            reply = self.writer.ask(make_prompt(PLAN, task.question), seed=number)
            plan, fault = _step(reply.text) if not reply.failed else ("", reply.failed)
            if not fault and not isinstance(parse(plan), ToolCall):
                fault = "no tool call"
            found.setdefault(plan or reply.text or fault, fault)
        return [
            CptRow(
                "fas_plan",
                (("user", task.question), ("own", plan + END)),
                (task.start,),
                tuple(sources),
                fault or self._verdict(plan, task, known),
            )
            for plan, fault in found.items()
        ]

    def _verdict(self, plan: str, task: Task, known: Sequence[str]) -> str:
        """Return KEPT, the judge's objection, or the reason why there is no verdict."""
        system = JUDGE.format(known=_lines(known), answer=task.answer)
        reply = self.judge.ask(make_prompt(system, f"{task.question}\n\n{plan}"), temperature=0)
        if reply.failed:
            return f"not judged: {reply.failed}"
        said = reply.text.rpartition("</think>")[2].strip()
        word = _VERDICT.match(said)
        if word is None:
            return "not judged: no verdict"
        return KEPT if word[1].casefold() == "yes" else f"the judge: {said}"

    def reasoning(self, task: Task, known: Sequence[str], sources: Sequence[str]) -> CptRow:
        """Return the judged row of a draft, the statements and the refined answer."""
        draft = self.writer.ask(make_prompt(CLOSED_BOOK_PROMPT, task.question))
        fault, refined = draft.failed, ""
        said = draft.text.rpartition("</think>")[2].strip()
        if not fault:
            system = REFINE.format(draft=said, known=_lines(known))
            reply = self.writer.ask(make_prompt(system, task.question))
            fault = reply.failed
            if not fault:
                refined, fault = _refined(reply.text, task, len(known))
        parts = (
            ("user", task.question),
            ("given", f"Draft: {said}.\n"),
            ("facts", "".join(f"{one}\n" for one in known)),
            ("own", refined + END),
        )
        return CptRow("fas_reason", parts, (task.start,), tuple(sources), fault or KEPT)

    def alternatives(
        self, messages: Sequence[dict], step: str, n: int, rng: random.Random
    ) -> list[str]:
        """Return `n` other steps to replace `step` after `messages`, all different.

        Raises:
            ValueError: the model gives fewer.
        """
        before = "\n\n".join(f"{one['role']}: {one['content']}" for one in messages)
        asked = make_prompt(OTHERS.replace("COUNT", str(n)), f"{before}\n\nThe last step:\n{step}")
        reply = self.writer.ask(asked, seed=rng.getrandbits(31))
        if reply.failed:
            raise ValueError(f"no alternatives: {reply.failed}")
        read = [_turn(one) for one in extract_json(reply.text, list)]
        found = [turn for turn in dict.fromkeys(filter(None, read)) if turn != step]
        if len(found) < n:
            raise ValueError(f"found {len(found)} alternatives of {n} to {step!r}")
        return found[:n]


def _step(said: str) -> tuple[str, str]:
    """Parse a model's JSON to a turn; return (turn, reason if there is none)."""
    try:
        turn = _turn(extract_json(said, dict))
    except ValueError:
        turn = ""
    return turn, "" if turn else UNREADABLE


def _turn(made: Any) -> str:
    """Convert a step to a turn of our format; "" if it is not a step."""
    if not isinstance(made, dict) or not isinstance(made.get("thought"), str):
        return ""
    if isinstance(made.get("tool"), str) and isinstance(made.get("arguments"), dict):
        action = render_call(made["tool"], made["arguments"])
    elif isinstance(made.get("answer"), str):
        action = render_answer(made["answer"])
    else:
        return ""
    turn = f"<think>{made['thought'].strip()}</think>{action}"
    return turn if isinstance(parse(turn), ToolCall | Answer) else ""


def _refined(said: str, task: Task, statements: int) -> tuple[str, str]:
    """Return (the refined answer as a turn, reason for its rejection)."""
    try:
        made = extract_json(said, dict)
        reasoning, answer = str(made["reasoning"]).strip(), str(made["answer"]).strip()
    except (ValueError, KeyError):
        return "", UNREADABLE
    turn = f"<think>{reasoning}</think>{render_answer(answer)}"
    if len(reasoning.split()) > WORDS_A_STATEMENT * statements:
        return turn, "too long"
    action = parse(turn)
    right = isinstance(action, Answer) and is_correct(action.text, task)
    return turn, "" if right else "another answer"


def _lines(known: Sequence[str]) -> str:
    return "\n".join(f"- {one}" for one in known)
