"""AgentFounder (arXiv 2509.13310, ICLR 2026, section 3): agentic continual pre-training.

The paper: between base model and post-training stands a stage of text about acting, of 200 billion
tokens at 32K and 100 billion at 128K. First-order action synthesis writes plans and reasoning for
questions from a memory of statements by entity; higher-order action synthesis widens finished
trajectories by actions that nobody tried. No tool is executed, so the text is cheap.

    fas_plan    first order, planning: K different (analysis, first call) for a question, rejected
                where the facts of the memory contradict them
    fas_reason  first order, reasoning: a draft from what one knows, then the refined answer given
                the mapped facts, kept by length and by its answer
    has         higher order: at each step of a finished trajectory N alternatives that nobody
                tries, shuffled with the real one; the choice, the real step and the real response;
                at the end the decision whether it was right

Taken from it: the three kinds with their released fields, rejection, two length stages and replay
of general text; the memory is `drlib.synthesis.memory`. Reduced: the teacher is templated and errs
at a stated rate, so that rejection has work to do; loss lies on what can be predicted (`own`), not
on questions, options, facts and responses, nor on the steps of a failed trajectory, of which only
the decision is learned (the paper trains on all of its text). The tour's smaller stage is
`drlib.synthesis.actions`. Harder alternatives: `drlib.synthesis.alternatives`; a language model as
teacher and judge: `drlib.synthesis.model_teacher`.
"""

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from drlib.chat.template import ChatIds
from drlib.chat.tool_calls import END, Answer, ToolCall, parse, render_answer, render_call
from drlib.synthesis.actions import Sample, join_pieces
from drlib.synthesis.memory import EntityMemory
from drlib.synthesis.oracle import FIRST, NEXT
from drlib.task import Task, is_correct

KEPT = "kept"  # the judge's word for a row that is used; any other is the reason against it
CHOICE = "I will choose option "
DECISION = "My decision is "
WORDS_A_HOP = 12  # of a refined answer: what is longer rambles
CIRCLES = 9  # times that a rambling answer says the same
DRAWS_A_PLAN = 4  # for each different plan that is wanted
DRAWS_OF_ALTERNATIVES = 1000  # to one step


class CptRow(NamedTuple):
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


def sample_of(row: CptRow, chat: ChatIds) -> Sample:
    """Token ids, with loss on the row's own words."""
    encode = {"user": chat.prompt, "tool": chat.tool_turn, "facts": chat.plain}
    pieces = [(encode.get(role, chat.encode)(text), role == "own") for role, text in row.parts]
    return join_pieces(pieces)


class Teacher:
    """Writes candidates, at a rate of `fault` wrong ones; knows the names and the relations (those
    of questions), but checks nothing: that is the judge's part."""

    def __init__(self, names: Sequence[str], relations: Iterable[str], fault: float = 0.5):
        self.names = list(names)
        # the longest first: "former currency" is no "currency"
        self.relations = sorted(relations, key=lambda relation: (-len(relation), relation))
        self.fault = fault
        self.relation = re.compile("|".join(map(re.escape, self.relations)))

    def _mistake(self, kinds: int, rng: random.Random) -> int | None:
        """Which of so many kinds of mistake is made, if one is."""
        return rng.randrange(kinds) if rng.random() < self.fault else None

    def plan(self, task: Task, rng: random.Random) -> str:
        """An analysis and the first call, right or wrong: an answer at once, another start, another
        relation, or arguments of the wrong form."""
        start = task.start
        first, *rest = task.relations
        mistake = self._mistake(4, rng)
        if mistake == 0:
            return f"<think>I know this.</think>{render_answer(rng.choice(self.names))}"
        if mistake == 1:
            start = rng.choice(self.names)
        if mistake == 2:
            first = rng.choice(self.relations)
        later = "".join(" " + rng.choice(NEXT).format(r=relation) for relation in rest)
        later *= rng.randint(0, 1)  # a plan may look further, or not
        call = render_call("search", {"query": start if mistake == 3 else [start]})
        return f"<think>{rng.choice(FIRST).format(r=first)}{later}</think>{call}"

    def refine(self, task: Task, values: Sequence[str], rng: random.Random) -> str:
        """The answer from the facts, or in circles, or another answer; `values`: those of the
        task's relations, in order."""
        mistake = self._mistake(3, rng)
        steps = [f"The {relation} is {value}." for relation, value in zip(task.relations, values)]
        if mistake == 0:
            steps = steps * CIRCLES
        another = rng.choice(self.names)
        answer = {1: task.start, 2: another}.get(mistake, values[-1])
        return f"<think>{' '.join(steps)}</think>{render_answer(answer)}"

    def alternatives(
        self, messages: Sequence[dict], step: str, n: int, rng: random.Random
    ) -> list[str]:
        """`n` other (thought, call) in the place of `step`, all different; what was said before
        (`messages`) is not looked at. ValueError: there are not so many."""
        found: dict[str, None] = {}
        for _ in range(DRAWS_OF_ALTERNATIVES):
            if len(found) == n:
                return [*found]
            other = self._alternative(step, rng)
            if other != step:
                found[other] = None
        raise ValueError(f"found {len(found)} alternatives of {n} to {step!r}")

    def _alternative(self, step: str, rng: random.Random) -> str:
        """Another (thought, call) in the place of `step`."""
        action = parse(step)
        name = rng.choice(self.names)
        kind = rng.randrange(4)
        if kind == 0 or not isinstance(action, ToolCall):
            return f"<think>I know this.</think>{render_answer(name)}"
        if action.name == "python":
            digits = str.maketrans(rng.choice("0123456789"), rng.choice("0123456789"))
            arguments = {"code": str(action.arguments.get("code")).translate(digits)}
        else:
            arguments = {"query": name if kind == 1 else [name]}
        thought = step.partition("</think>")[0]
        if kind == 2:
            thought = "<think>" + rng.choice(NEXT).format(r=rng.choice(self.relations))
        return f"{thought}</think>{render_call(action.name, arguments)}"

    def judge(self, plan: str, task: Task, memory: EntityMemory) -> str:
        """KEPT, or why the memory's facts speak against the plan. No tool is asked."""
        action = parse(plan)
        named = self.relation.search(plan.partition("</think>")[0])
        query = action.arguments.get("query") if isinstance(action, ToolCall) else None
        if not (isinstance(query, list) and query and named):
            return "no look-up"
        reached = {value for value, _ in memory.recall(query[0], named[0])}
        if not reached:
            return "no such fact"
        for _ in task.relations[1:]:  # any relation may be the next one
            reached = {
                value
                for entity in reached
                for relation in self.relations
                for value, _ in memory.recall(entity, relation)
            }
        return KEPT if task.answer in reached else "does not lead to the answer"


def _check_chain(task: Task) -> None:
    if not task.relations:
        raise ValueError(
            f"task {task.id} is no chain of look-ups (its relations are empty): take "
            "search questions of chain_questions"
        )


def plans(
    task: Task, memory: EntityMemory, teacher: Teacher, k: int, rng: random.Random
) -> list[CptRow]:
    """Up to `k` different plans for one question, judged (rejected ones too).
    ValueError: the task is no chain question."""
    _check_chain(task)
    found = dict.fromkeys(teacher.plan(task, rng) for _ in range(DRAWS_A_PLAN * k))
    sources = {source for known in memory.about(task.start) for source in known.sources}
    return [
        CptRow(
            "fas_plan",
            (("user", task.question), ("own", plan + END)),
            (task.start,),
            tuple(sorted(sources)),
            teacher.judge(plan, task, memory),
        )
        for plan in list(found)[:k]
    ]


def reasoning(task: Task, memory: EntityMemory, teacher: Teacher, rng: random.Random) -> CptRow:
    """A draft, the mapped facts in any order, the refined answer; judged.
    ValueError: the task is no chain question, or the memory does not know the chain."""
    _check_chain(task)
    values = [task.start]
    facts: dict[str, tuple[str, ...]] = {}  # text -> sources
    for relation in task.relations:
        known = memory.recall(values[-1], relation)
        if not known:
            raise ValueError(f"the memory knows no {relation} of {values[-1]!r}")
        facts |= {statement.text: statement.sources for statement in memory.about(values[-1])}
        values.append(known[0][0])
    shown = rng.sample(sorted(facts), len(facts))
    refined = teacher.refine(task, values[1:], rng)
    draft = rng.choice(teacher.names)
    parts = (
        ("user", task.question),
        ("given", f"Draft: {draft}.\n"),
        ("facts", "".join(f"{fact}\n" for fact in shown)),
        ("own", refined + END),
    )
    sources = tuple(sorted({source for some in facts.values() for source in some}))
    return CptRow("fas_reason", parts, tuple(values), sources, _judged(refined, task))


def _judged(refined: str, task: Task) -> str:
    action = parse(refined)
    if len(refined.split()) > WORDS_A_HOP * len(task.relations):
        return "too long"
    if not (isinstance(action, Answer) and is_correct(action.text, task)):
        return "another answer"
    return KEPT


class Widener(Protocol):
    """Who thinks of other steps; `names` are those that a call may search for."""

    names: Sequence[str]

    def alternatives(
        self, messages: Sequence[dict], step: str, n: int, rng: random.Random
    ) -> list[str]:
        """`n` others in the place of `step`, behind `messages`. ValueError: there are none."""


def higher_order(
    messages: Sequence[dict],
    correct: bool,
    source: str,
    teacher: Widener,
    n: int,
    rng: random.Random,
) -> CptRow:
    """The decisions of one finished trajectory; `source` names it. A turn without a response (the
    answer) is no decision between calls and has no options. ValueError: no `n` alternatives."""
    said = "own" if correct else "given"
    parts = [("user", messages[0]["content"])]
    steps = [message["content"] for message in messages[1::2]]
    responses = [message["content"] for message in messages[2::2]]
    for number, (step, response) in enumerate(zip(steps, [*responses, None])):
        if response is None:
            parts.append((said, step))
            continue
        others = teacher.alternatives(messages[: 2 * number + 1], step, n, rng)
        shown = rng.sample([step, *others], n + 1)
        parts.append(("given", "".join(f"{i}. {o}\n" for i, o in enumerate(shown, 1))))
        parts.append((said, f"{CHOICE}{shown.index(step) + 1}\n{step}{END}"))
        parts.append(("tool", response))
    parts.append(("own", f"\n{DECISION}{'Correct' if correct else 'Incorrect'}{END}"))
    entities = tuple(sorted(_asked_for(steps) & {*teacher.names}))
    return CptRow("has", tuple(parts), entities, (source,), KEPT)


def _asked_for(steps: Iterable[str]) -> set[str]:
    """What the calls of these steps search for."""
    actions = [parse(step) for step in steps]
    queries = [act.arguments.get("query") for act in actions if isinstance(act, ToolCall)]
    return {str(title) for query in queries if isinstance(query, list) for title in query}


def context_stages(samples: Iterable[Sample], short: int, limit: int) -> list[list[Sample]]:
    """Rows of up to `short` tokens, then the longer ones up to `limit`, the policy's context."""
    found = list(samples)
    brief = [sample for sample in found if len(sample) <= short]
    longer = [sample for sample in found if short < len(sample) <= limit]
    return [brief, longer]


def with_replay(
    own: Iterator[Sample], replay: Iterator[Sample], share: float, rng: random.Random
) -> Iterator[Sample]:
    """`own` with general text between, on average `share` of the samples."""
    while True:
        yield next(replay if rng.random() < share else own)
