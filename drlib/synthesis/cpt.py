"""Agentic continual pre-training: actions synthesised without executing one.

AgentFounder (arXiv 2509.13310, section 3) widens what a base model has seen of acting, before any
demonstration, by text that needs no tool:

    fas_plan    first order, planning: K different (analysis, first call) for a question, rejected
                where the facts of the memory contradict them
    fas_reason  first order, reasoning: a draft from what one knows, then the refined answer given
                the mapped facts, kept by length and by its answer
    has         higher order: at each step of a finished trajectory N alternatives that nobody
                tries, shuffled with the real one; the choice, the real step and the real response;
                at the end the decision whether it was right

The teacher is templated and errs at a stated rate, so that rejection has work to do. Loss lies on
what can be predicted (`own`): not on questions, options, facts and responses, nor on the steps of
a failed trajectory, of which only the decision is learned (the paper trains on all of its text).
Left out: a language model as teacher and judge.
"""

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from drlib.chat import ChatIds
from drlib.format import END, Answer, ToolCall, parse, render_answer, render_call
from drlib.synthesis.actions import Sample, join
from drlib.synthesis.memory import Memory
from drlib.synthesis.oracle import FIRST, NEXT
from drlib.task import Task, is_correct

KEPT = "kept"  # the judge's word for a row that is used; any other is the reason against it
CHOICE = "I will choose option "
DECISION = "My decision is "
WORDS_A_HOP = 12  # of a refined answer: what is longer rambles
TRIES = 1000


class Row(NamedTuple):
    """`parts`: (role, text). Roles: "user" asks, "tool" responds, "facts" and "given" are shown,
    "own" is what the policy is to predict. `source_ids`: sources of the memory, or trajectories."""

    kind: str  # fas_plan, fas_reason or has
    parts: tuple[tuple[str, str], ...]
    entity_ids: tuple[str, ...]
    source_ids: tuple[str, ...]
    judge: str

    @property
    def text(self) -> str:
        """All of it, as a person reads it."""
        wrap = {"user": "Question: {}\n", "tool": "<tool_response>{}</tool_response>\n"}
        return "".join(wrap.get(role, "{}").replace("{}", part) for role, part in self.parts)


def sample(row: Row, chat: ChatIds) -> Sample:
    """Token ids, with loss on the row's own words."""
    encode = {"user": chat.prompt, "tool": chat.tool_turn, "facts": chat.plain}
    return join([(encode.get(role, chat.encode)(text), role == "own") for role, text in row.parts])


class Teacher:
    """Writes candidates, at a rate of `fault` wrong ones; knows the names and the relations (those
    of questions), but checks nothing: that is the judge's part."""

    def __init__(self, names: Sequence[str], relations: Iterable[str], fault: float = 0.5):
        self.names, self.relations = list(names), sorted(relations, key=lambda r: (-len(r), r))
        self.fault, self._relation = fault, re.compile("|".join(map(re.escape, self.relations)))

    def plan(self, task: Task, rng: random.Random) -> str:
        """An analysis and the first call, right or wrong."""
        start, (first, *rest) = task.start, task.relations
        wrong = rng.randrange(4) if rng.random() < self.fault else None
        if wrong == 0:
            return f"<think>I know this.</think>{render_answer(rng.choice(self.names))}"
        start = rng.choice(self.names) if wrong == 1 else start
        first = rng.choice(self.relations) if wrong == 2 else first
        then = "".join(" " + rng.choice(NEXT).format(r=r) for r in rest) * rng.randint(0, 1)
        call = render_call("search", {"query": start if wrong == 3 else [start]})
        return f"<think>{rng.choice(FIRST).format(r=first)}{then}</think>{call}"

    def refine(self, task: Task, values: Sequence[str], rng: random.Random) -> str:
        """The answer from the facts; `values`: those of the task's relations, in order."""
        wrong = rng.randrange(3) if rng.random() < self.fault else None
        steps = [f"The {r} is {v}." for r, v in zip(task.relations, values)]
        steps = steps * 9 if wrong == 0 else steps  # goes round in circles
        answer = {1: task.start, 2: rng.choice(self.names)}.get(wrong, values[-1])
        return f"<think>{' '.join(steps)}</think>{render_answer(answer)}"

    def alternative(self, step: str, rng: random.Random) -> str:
        """Another (thought, call) in the place of `step`."""
        action, name, wrong = parse(step), rng.choice(self.names), rng.randrange(4)
        if wrong == 0 or not isinstance(action, ToolCall):
            return f"<think>I know this.</think>{render_answer(name)}"
        if action.name == "python":
            digits = str.maketrans(rng.choice("0123456789"), rng.choice("0123456789"))
            arguments = {"code": str(action.arguments.get("code")).translate(digits)}
        else:
            arguments = {"query": name if wrong == 1 else [name]}
        thought = step.partition("</think>")[0]
        if wrong == 2:
            thought = "<think>" + rng.choice(NEXT).format(r=rng.choice(self.relations))
        return f"{thought}</think>{render_call(action.name, arguments)}"

    def judge(self, plan: str, task: Task, memory: Memory) -> str:
        """KEPT, or why the memory's facts speak against the plan. No tool is asked."""
        action, named = parse(plan), self._relation.search(plan.partition("</think>")[0])
        query = action.arguments.get("query") if isinstance(action, ToolCall) else None
        if not (isinstance(query, list) and query and named):
            return "no look-up"
        reached = {value for value, _ in memory.recall(query[0], named[0])}
        if not reached:
            return "no such fact"
        for _ in task.relations[1:]:
            reached = {v for e in reached for r in self.relations for v, _ in memory.recall(e, r)}
        return KEPT if task.answer in reached else "does not lead to the answer"


def _check_chain(task: Task) -> None:
    if not task.relations:
        raise ValueError(
            f"task {task.id} is no chain of look-ups (its relations are empty): take "
            "search questions of chain_questions"
        )


def plans(task: Task, memory: Memory, teacher: Teacher, k: int, rng: random.Random) -> list[Row]:
    """Up to `k` different plans for one question, judged (rejected ones too).
    ValueError: the task is no chain question."""
    _check_chain(task)
    found = dict.fromkeys(teacher.plan(task, rng) for _ in range(4 * k))
    about = tuple(sorted({source for s in memory.about(task.start) for source in s.sources}))
    return [
        Row(
            "fas_plan",
            (("user", task.question), ("own", plan + END)),
            (task.start,),
            about,
            teacher.judge(plan, task, memory),
        )
        for plan in list(found)[:k]
    ]


def reasoning(task: Task, memory: Memory, teacher: Teacher, rng: random.Random) -> Row:
    """A draft, the mapped facts in any order, the refined answer; judged.
    ValueError: the task is no chain question, or the memory does not know the chain."""
    _check_chain(task)
    values, facts = [task.start], {}
    for relation in task.relations:
        if not (known := memory.recall(values[-1], relation)):
            raise ValueError(f"the memory knows no {relation} of {values[-1]!r}")
        facts |= {s.text: s.sources for s in memory.about(values[-1])}
        values.append(known[0][0])
    shown = rng.sample(sorted(facts), len(facts))
    refined = teacher.refine(task, values[1:], rng)
    action, draft = parse(refined), rng.choice(teacher.names)
    judge = KEPT
    if len(refined.split()) > WORDS_A_HOP * len(task.relations):
        judge = "too long"
    elif not (isinstance(action, Answer) and is_correct(action.text, task)):
        judge = "another answer"
    parts = (
        ("user", task.question),
        ("given", f"Draft: {draft}.\n"),
        ("facts", "".join(f"{fact}\n" for fact in shown)),
        ("own", refined + END),
    )
    sources = sorted({source for some in facts.values() for source in some})
    return Row("fas_reason", parts, tuple(values), tuple(sources), judge)


def higher_order(
    messages: Sequence[dict],
    correct: bool,
    source: str,
    teacher: Teacher,
    n: int,
    rng: random.Random,
) -> Row:
    """The decisions of one finished trajectory; `source` names it. A turn without a response (the
    answer) is no decision between calls and has no options. ValueError: no `n` alternatives."""
    said, parts = "own" if correct else "given", [("user", messages[0]["content"])]
    for message, response in zip(messages[1::2], [*messages[2::2], None]):
        step, choice = message["content"], ""
        if response:
            options = {step: None}
            for _ in range(TRIES):
                if len(options) > n:
                    break
                options[teacher.alternative(step, rng)] = None
            else:
                raise ValueError(f"found {len(options) - 1} alternatives of {n} to {step!r}")
            shown = rng.sample(list(options), n + 1)
            parts.append(("given", "".join(f"{i}. {o}\n" for i, o in enumerate(shown, 1))))
            choice = f"{CHOICE}{shown.index(step) + 1}\n"
        parts.append((said, choice + step + END * bool(response)))
        parts += [("tool", response["content"])] if response else []
    parts.append(("own", f"\n{DECISION}{'Correct' if correct else 'Incorrect'}{END}"))
    actions = [parse(message["content"]) for message in messages[1::2]]
    queries = [a.arguments.get("query") for a in actions if isinstance(a, ToolCall)]
    asked = {str(title) for query in queries if isinstance(query, list) for title in query}
    return Row("has", tuple(parts), tuple(sorted(asked & {*teacher.names})), (source,), KEPT)


def length_stages(samples: Iterable[Sample], short: int, limit: int) -> list[list[Sample]]:
    """Rows of up to `short` tokens, then the longer ones up to `limit`, the policy's context."""
    found = list(samples)
    return [[s for s in found if len(s) <= short], [s for s in found if short < len(s) <= limit]]


def with_replay(
    own: Iterator[Sample], replay: Iterator[Sample], share: float, rng: random.Random
) -> Iterator[Sample]:
    """`own` with general text between, on average `share` of the samples."""
    while True:
        yield next(replay if rng.random() < share else own)
