"""AgentFounder (arXiv 2509.13310, ICLR 2026, section 3): agentic continual pre-training.

The paper adds a stage between base model and post-training: 200 billion tokens at 32K and 100
billion at 128K of text about actions. No tool is executed, so the text is cheap.

    fas_plan    first order, planning: K different (analysis, first call) for a question, rejected
                if facts in memory contradict them
    fas_reason  first order, reasoning: a draft from prior knowledge, then the refined answer given
                the mapped facts, filtered by length and answer
    has         higher order: at each step of a finished trajectory N alternatives shuffled with
                the real one; the choice, the real step and its response; finally the decision
                whether the trajectory was right

As in the paper: the three kinds with their released fields, rejection, two length stages and replay
of general text. The memory is `drlib.questions.entity_memory`. Reduced: the teacher is templated
and errs at a given rate. The loss covers only what can be predicted (`own`): no questions, options,
facts or responses, and only the final decision of a failed trajectory. The paper trains on all
text.

`Teacher` draws the names in its options from the whole world, so a rule that checks whether a name
occurred before finds the real step in 99% of decisions. `CloseTeacher` uses relations and names
that were read, and only the question decides between them. With it, a tiny policy's cold
start answered 5.9 points fewer sampled search questions (three seeds;
figures/reference/findings/has_close.json).

`ActionRows` is the infinite stream on invented worlds that `pretrain.first_order_share` and
`pretrain.higher_order_share` mix into `cpt`. First-order questions come from all facts of a world,
or with `pretrain.first_order_questions=memory` from the pages that a few rollouts found. A language
model as teacher and judge: `drlib.demonstrations.model_teacher`.

Not implemented: alternatives that would also be right, rollouts whose programs fail, rows of more
than `MAX_TOKENS`, and question styles other than fact and chain.
"""

import itertools
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple, Protocol

from drlib.chat.template import ChatIds
from drlib.chat.tool_calls import END, Answer, ToolCall, parse, render_answer, render_call
from drlib.demonstrations.actions import InventedTools, Sample, join_pieces
from drlib.demonstrations.oracle import (
    FIRST,
    HOLDER,
    NEXT,
    Demonstrator,
    DemonstratorFaults,
    Episode,
)
from drlib.questions.chains import SearchQuestions
from drlib.questions.entity_memory import EntityMemory
from drlib.questions.wording import mentions
from drlib.task import Task, is_correct
from drlib.worlds import Entity, Names, SmallWorld, fictional_world

KEPT = "kept"  # the judge's word for a row that is used; any other is the reason against it
CHOICE = "I will choose option "
DECISION = "My decision is "
WORDS_A_HOP = 12  # of a refined answer: what is longer rambles
CIRCLES = 9  # times that a rambling answer says the same
DRAWS_A_PLAN = 4  # for each different plan that is wanted
DRAWS_OF_ALTERNATIVES = 1000  # to one step


class CptRow(NamedTuple):
    """A row of (role, text) `parts`.

    Roles: "user" asks, "tool" responds, "facts" and "given" are shown, "own" is predicted by the
    policy. `source_ids`: sources in the memory, or trajectories.
    """

    kind: str  # fas_plan, fas_reason or has
    parts: tuple[tuple[str, str], ...]
    entity_ids: tuple[str, ...]
    source_ids: tuple[str, ...]
    judge: str

    @property
    def text(self) -> str:
        """Return the whole text, for reading."""
        wrap = {"user": "Question: {}\n", "tool": "<tool_response>{}</tool_response>\n"}
        return "".join(wrap.get(role, "{}").replace("{}", part) for role, part in self.parts)


def sample_of(row: CptRow, chat: ChatIds) -> Sample:
    """Return the token ids of a row, with loss on the policy's own words."""
    encode: dict[str, Callable[[str], list[int]]]
    encode = {"user": chat.prompt, "tool": chat.tool_turn, "facts": chat.plain}
    pieces = [(encode.get(role, chat.encode)(text), role == "own") for role, text in row.parts]
    return join_pieces(pieces)


class Teacher:
    """Writes candidates, wrong ones at the rate `fault`. It has the names and relations of the
    questions but checks nothing; the judge does.
    """

    def __init__(self, names: Sequence[str], relations: Iterable[str], fault: float = 0.5):
        self.names = list(names)
        # the longest first: "former currency" is no "currency"
        self.relations = sorted(relations, key=lambda relation: (-len(relation), relation))
        self.fault = fault
        self.relation = re.compile("|".join(map(re.escape, self.relations)))

    def _mistake(self, kinds: int, rng: random.Random) -> int | None:
        """Sample the kind of mistake, or none."""
        return rng.randrange(kinds) if rng.random() < self.fault else None

    def plan(self, task: Task, rng: random.Random) -> str:
        """Write an analysis and the first call, possibly wrong.

        Mistakes: an immediate answer, another start, another relation, or malformed arguments.
        """
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
        """Write the answer from the facts, possibly wrong or circular.

        Args:
            values: values of the task's relations, in order.
        """
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
        """Return `n` different (thought, call) pairs that could replace `step`.

        `messages`, the conversation before the step, is ignored. ValueError: there are fewer.
        """
        found: dict[str, None] = {}
        for _ in range(DRAWS_OF_ALTERNATIVES):
            if len(found) == n:
                return [*found]
            other = self._alternative(step, rng)
            if other != step:
                found[other] = None
        raise ValueError(f"found {len(found)} alternatives of {n} to {step!r}")

    def _alternative(self, step: str, rng: random.Random) -> str:
        """Return one (thought, call) that could replace `step`."""
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
        """Return KEPT, or the conflict between the plan and the memory's facts; calls no tool."""
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
    """Return up to `k` different judged plans for one question, rejected ones included.

    ValueError: the task is no chain question.
    """
    _check_chain(task)
    found = dict.fromkeys(teacher.plan(task, rng) for _ in range(DRAWS_A_PLAN * k))
    sources = {source for known in memory.list_statements(task.start) for source in known.sources}
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
    """Return the judged row of a draft, the facts in random order, and the refined answer.

    ValueError: the task is no chain question, or the memory does not know the chain.
    """
    _check_chain(task)
    values = [task.start]
    facts: dict[str, tuple[str, ...]] = {}  # text -> sources
    for relation in task.relations:
        known = memory.recall(values[-1], relation)
        if not known:
            raise ValueError(f"the memory knows no {relation} of {values[-1]!r}")
        facts |= {
            statement.text: statement.sources for statement in memory.list_statements(values[-1])
        }
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


class Decision(NamedTuple):
    """A decision of a higher-order row.

    Attributes:
        read: the question, then each response before the decision.
        options: the steps that were shown.
        real: index of the step that was taken.
    """

    read: tuple[str, ...]
    options: tuple[str, ...]
    real: int


def list_decisions(row: CptRow) -> list[Decision]:
    """Parse the decisions of a row of `higher_order`, in order."""
    read, options = [row.parts[0][1]], ""
    found = []
    for role, text in row.parts[1:]:
        if role == "tool":
            read.append(text)
        elif text.startswith(CHOICE):
            number = int(text.partition("\n")[0].removeprefix(CHOICE))
            steps = tuple(line.split(". ", 1)[1] for line in options.strip("\n").split("\n"))
            found.append(Decision(tuple(read), steps, number - 1))
        else:
            options = text
    return found


class Widener(Protocol):
    """Writer of alternative steps."""

    @property
    def names(self) -> Sequence[str]:
        """Valid search terms."""

    def alternatives(
        self, messages: Sequence[dict], step: str, n: int, rng: random.Random
    ) -> list[str]:
        """Return `n` alternatives to `step` after `messages`; ValueError if there are none."""


def higher_order(
    messages: Sequence[dict],
    correct: bool,
    source: str,
    teacher: Widener,
    n: int,
    rng: random.Random,
) -> CptRow:
    """Return the decisions of one finished trajectory, named by `source`.

    A turn without a response (the answer) has no options. ValueError: fewer than `n` alternatives.
    """
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
    """Return the search terms of these steps' calls."""
    actions = [parse(step) for step in steps]
    queries = [act.arguments.get("query") for act in actions if isinstance(act, ToolCall)]
    return {str(title) for query in queries if isinstance(query, list) for title in query}


def context_stages(samples: Iterable[Sample], short: int, limit: int) -> list[list[Sample]]:
    """Return rows of up to `short` tokens, then the longer ones up to the context `limit`."""
    found = list(samples)
    brief = [sample for sample in found if len(sample) <= short]
    longer = [sample for sample in found if short < len(sample) <= limit]
    return [brief, longer]


def with_replay(
    own: Iterator[Sample], replay: Iterator[Sample], share: float, rng: random.Random
) -> Iterator[Sample]:
    """Mix samples of `replay` into `own`: a share of `share` on average."""
    while True:
        yield next(replay if rng.random() < share else own)


_NUMBER = re.compile(r"\d+")
_OPERATION = re.compile(r"(?<=[\d) ])[+*-](?=[\d( ])")
OPEN = "<think>"
CLOSE = "</think>"


class CloseTeacher(Teacher):
    """Teacher whose alternatives use only names and relations that were read."""

    def alternatives(
        self, messages: Sequence[dict], step: str, n: int, rng: random.Random
    ) -> list[str]:
        """Return `n` different steps that ask for something else.

        They use names and relations of the question and the last response. ValueError: there are
        fewer.
        """
        read = "\n".join(message["content"] for message in (messages[0], messages[-1]))
        thought, _, call = step.partition(CLOSE)
        action = parse(step)
        if isinstance(action, ToolCall) and action.name == "python":
            programs = _other_programs(str(action.arguments.get("code")), n)
            calls = [render_call("python", {"code": program}) for program in programs]
            found = [f"{thought}{CLOSE}{call}" for call in calls]
        else:
            found = self._other_look_ups(thought.removeprefix(OPEN), call, read, n, rng)
        if len(found) < n:
            raise ValueError(f"found {len(found)} alternatives of {n} to {step!r}")
        return rng.sample(found, n)

    def _other_look_ups(
        self, thought: str, call: str, read: str, n: int, rng: random.Random
    ) -> list[str]:
        """Return turns with another (relation, name): both read before if there are enough, else an
        unread relation, and finally an unread name.
        """
        named = self.relation.search(thought)
        relation, name = named[0] if named else "", _searched(call)
        relations = dict.fromkeys(self.relation.findall(read)) if named else {"": None}
        every_relation = self.relations if named else []
        every_name = self.names if name else [""]  # an empty query stays one
        names = [one for one in every_name if mentions(read, one)] or [name]
        pairs: dict[tuple[str, str], None] = {}
        wider = (relations, names), (every_relation, names), (relations, every_name)
        for some_relations, some_names in wider:
            if len(pairs) < n:
                pairs |= dict.fromkeys(itertools.product(some_relations, some_names))
                pairs.pop((relation, name), None)
        return [
            f"{OPEN}{_reworded(thought, relation, other, rng)}{CLOSE}"
            f"{call.replace(_quoted(name), _quoted(other_name)) if name else call}"
            for other, other_name in pairs
        ]


def _searched(call: str) -> str:
    """Return the name that a call searches for, in a list or not."""
    action = parse(call)
    query = action.arguments.get("query") if isinstance(action, ToolCall) else None
    return next((str(one) for one in (query if isinstance(query, list) else [query]) if one), "")


def _quoted(name: str) -> str:
    """Quote a text as in a call."""
    return json.dumps(name, ensure_ascii=False)


def _reworded(thought: str, relation: str, other: str, rng: random.Random) -> str:
    """Return the thought with another relation, in one of its wordings."""
    for wordings in (FIRST, NEXT, HOLDER):
        if relation and thought in [wording.format(r=relation) for wording in wordings]:
            return rng.choice(wordings).format(r=other)
    return thought.replace(relation, other) if relation else thought


def _other_programs(code: str, n: int) -> list[str]:
    """Return programs with two numbers swapped or another operation; if these are fewer than `n`,
    also with a slightly different number.
    """
    numbers = [*_NUMBER.finditer(code)]
    found = [_swapped(code, one, other) for one, other in itertools.combinations(numbers, 2)]
    for place in _OPERATION.finditer(code):
        found += [_with(code, place, operation) for operation in "+-*"]
    alike = [*dict.fromkeys(program for program in found if program != code)]
    if len(alike) >= n:
        return alike
    off = [_with(code, number, str(int(number[0]) + d)) for number in numbers for d in (1, 2, 3)]
    return [*dict.fromkeys(alike + off)]


def _with(code: str, place: re.Match, text: str) -> str:
    return code[: place.start()] + text + code[place.end() :]


def _swapped(code: str, one: re.Match, other: re.Match) -> str:
    """Swap two numbers; `one` precedes `other`."""
    between = code[one.end() : other.start()]
    return code[: one.start()] + other[0] + between + one[0] + code[other.end() :]


Kind = Literal["fas", "has"]
HIT = re.compile(r"^\d+\. \[(.+?)\]\(", re.MULTILINE)  # a page among the results of a search
QUESTIONS = 8  # of an invented world
MAX_HOPS = 2
MAX_TOKENS = 320  # of a row
PLANS = 2  # of a question
ALTERNATIVES = 2  # of a step
# The hand whose trajectories are widened: a wrong one teaches its decision alone.
HAND = DemonstratorFaults(guess=0.1, stop_early=0.15, bad_code=0, bad_query=0.2, loop=0)


def memory_of(world: SmallWorld) -> EntityMemory:
    """Return a memory of the world's facts and its pages' statements about each entity."""
    memory = EntityMemory(world.entities)
    for entity in world.entities.values():
        for relation, value in entity.facts.items():
            memory.add_fact(entity.title, relation, value, f"{world.name}/{entity.title}")
        memory.add_text(f"{entity.title} is a {entity.kind}.", f"{world.name}/{entity.title}")
    return memory


def memory_of_attempts(world: SmallWorld, attempts: Iterable[Episode]) -> EntityMemory:
    """Return a memory of the facts on pages found by rollouts, wrong ones included; the source of a
    fact is the rollout's number.
    """
    memory = EntityMemory()
    for number, episode in enumerate(attempts):
        source = f"{world.name}/attempt-{number}"
        for result in episode.tool_results:
            for title in HIT.findall(result.text):
                for relation, value in world.entities[title].facts.items():
                    memory.add_fact(title, relation, value, source)
    return memory


def recalled(memory: EntityMemory, world: SmallWorld) -> SmallWorld:
    """Return the part of `world` that the memory can recall for questions: every (entity, relation)
    with exactly one known value.
    """
    known = []
    for entity in world.entities.values():
        values = {
            relation: [value for value, _ in memory.recall(entity.title, relation)]
            for relation in entity.facts
        }
        facts = {relation: found[0] for relation, found in values.items() if len(found) == 1}
        if facts:
            known.append(Entity(entity.title, entity.kind, facts))
    return SmallWorld(known, f"the memory of {world.name}", scheme=world.scheme)


class ActionRows:
    """Infinite stream of rows, with names made from `names`; a search shows `results` hits.

    from_memory: make first-order rows from a memory of rollouts, not of all facts.
    close: use alternatives that were read (`CloseTeacher`).
    """

    def __init__(
        self,
        names: Names,
        chat: ChatIds,
        results: int,
        from_memory: bool = False,
        close: bool = False,
    ):
        self.names = names
        self.close = close
        self.chat = chat
        self.results = results
        self.from_memory = from_memory

    def stream(self, seed: int | str, kind: Kind) -> Iterator[Sample]:
        """Yield rows; the same seed gives the same stream."""
        rng = random.Random(f"{kind}-{seed}")
        while True:
            world = fictional_world(rng.getrandbits(60), self.names)
            make = self._first_order if kind == "fas" else self._higher_order
            for row in make(world, rng):
                sample = sample_of(row, self.chat)
                if row.judge == KEPT and len(sample) <= MAX_TOKENS:
                    yield sample

    def _first_order(self, world: SmallWorld, rng: random.Random) -> Iterator[CptRow]:
        """Yield judged plans and a judged refined answer for each question."""
        memory, known = memory_of(world), world
        if self.from_memory:
            memory = memory_of_attempts(world, self._attempts(world, rng))
            known = recalled(memory, world)
        teacher = _teacher(world)
        source = SearchQuestions(known, None, MAX_HOPS)
        depths = [hops for hops in range(1, MAX_HOPS + 1) if source.answers(hops)]
        for _ in range(QUESTIONS if depths else 0):
            task = source.draw(rng.choice(depths), rng)
            yield from plans(task, memory, teacher, PLANS, rng)
            yield reasoning(task, memory, teacher, rng)

    def _higher_order(self, world: SmallWorld, rng: random.Random) -> Iterator[CptRow]:
        """Yield the decisions of an imperfect teacher's rollouts."""
        teacher = _teacher(world, CloseTeacher if self.close else Teacher)
        for number, episode in enumerate(self._attempts(world, rng)):
            if episode.tool_results:
                name = f"{world.name}/{number}"
                said = episode.messages
                yield higher_order(said, episode.correct, name, teacher, ALTERNATIVES, rng)

    def _attempts(self, world: SmallWorld, rng: random.Random) -> Iterator[Episode]:
        """Return an imperfect teacher's rollouts on a few questions."""
        hand = Demonstrator(HAND, sorted(world.entities))
        source = SearchQuestions(world, None, MAX_HOPS)
        for _ in range(QUESTIONS):
            task = source.draw(rng.randint(1, MAX_HOPS), rng)
            yield hand.play(task, InventedTools(task, world, self.results, rng), rng)


def _teacher(world: SmallWorld, kind: type[Teacher] = Teacher) -> Teacher:
    relations = {relation for entity in world.entities.values() for relation in entity.facts}
    return kind(sorted(world.entities), relations)
