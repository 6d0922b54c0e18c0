"""Questions written by a language model from an entity memory, in the styles of AgentFounder.

AgentFounder (arXiv 2509.13310, section 3.1; Tongyi DeepResearch, arXiv 2510.24701, section 3.4.1)
shows a model the statements about sampled entities and trusts its questions. Here the model names
the statements that its answer follows from, and the claim is checked: the answer occurs in one
(fact), is computed from their numbers (numeric) or needs two linked ones (multi-hop); a report
needs at least three. A second call without the answer must then agree.
"""

import ast
import operator
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

from drlib.chat.json_replies import extract_json
from drlib.questions.chains import digest_text
from drlib.questions.entity_memory import EntityMemory
from drlib.questions.replies import Replies, make_prompt
from drlib.questions.wording import mentions
from drlib.task import AnswerType, Task, answers_match, is_accepted

CRAFT = """\
You write questions for a quiz from numbered statements. Use the statements alone, not what you
know besides. {wish}
Do not say the answer in the question, and do not speak of statements. Reply with JSON and nothing
else: {{"question": "..", "answer": "..", "statements": [the numbers of those that the answer
follows from]{more}}}"""
WISHES = {
    "fact": "Ask for one name, date or number that a statement says of {entity}; name {entity}.",
    "numeric": (
        "Ask for a number that no statement says and that follows from two or more numbers in them,"
        ' such as a difference; name {entity}. In "expression" compute it exactly, with the numbers'
        " as they are written and + - * / ( )."
    ),
    "multi-hop": (
        "Ask for what two statements say together: begin with {entity}, which you name, go to"
        " something that a statement links with it, which you do not name, and ask for what another"
        " statement says of that."
    ),
    "report": (
        "Ask for a short report about {entity}, named, that has to bring three or more of the"
        ' statements together. The "answer" is "".'
    ),
}
ANSWER = """\
Answer the user's question from the statements below alone, with a name, a date or a number and
nothing else. If they do not say it, or say more than one answer, reply UNKNOWN.
{statements}"""
NEEDED = """\
Which of the numbered statements below does a report need that does what the user asks for? Reply
with a JSON list of their numbers and nothing else.
{statements}"""
OWN_STATEMENTS, LINKED_STATEMENTS = (
    6,
    4,
)  # statements shown per entity
LINKED_ENTITIES = 2  # further entities that are shown
HUB = 20  # an entity with this many statements ("person") is no meaningful link
REPORT_POINTS = 3  # statements of a report, at least
MAX_EXPRESSION = 200  # letters of an expression
UNREADABLE = "it cannot be read"
_NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?")
_OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class ShownStatement(NamedTuple):
    """A statement shown to the model, with its entities and its sources."""

    text: str
    entities: tuple[str, ...]
    sources: tuple[str, ...]


class CraftedQuestion(NamedTuple):
    """A question of one style about one entity, or the reason why there is none.

    Attributes:
        known: the statements that the answer follows from.
        reason: why the question was rejected; empty if it was kept.
        detail: the reply or the error behind `reason`.
        answer: empty for a report.
    """

    style: str
    entity: str
    question: str = ""
    answer: str = ""
    known: tuple[ShownStatement, ...] = ()
    reason: str = ""
    detail: str = ""

    def task(self, world: str) -> Task:
        """Return the question as a task of `world`.

        Raises:
            ValueError: the question was rejected or is a report.
        """
        if self.reason or self.style == "report":
            reason = self.reason or "it is a report"
            raise ValueError(f"no task with one answer ({reason}): pass accepted questions only")
        digest = digest_text(f"{world}|{self.question}|{self.answer}")
        hops = len(self.known) if self.style == "multi-hop" else 1
        name = f"crafted-{self.style}-{digest}"
        return Task(
            name,
            self.question,
            self.answer,
            "search",
            world,
            hops,
            start=self.entity,
            answer_type=self.answer_type,
        )

    @property
    def answer_type(self) -> AnswerType:
        """Numeric questions are answered by a number, the others by what the answer looks like."""
        return "number" if self.style == "numeric" else "auto"


class _ParsedQuestion(NamedTuple):
    """The fields of a model's reply."""

    question: str
    answer: str
    used: tuple[ShownStatement, ...]
    expression: str


def craft(
    memory: EntityMemory,
    wishes: Iterable[tuple[str, str]],
    writer: Replies,
    reader: Replies | None = None,
    seed: int | str = 0,
) -> list[CraftedQuestion]:
    """Write and verify a question for each (entity, style), in order.

    Args:
        memory: statements by entity.
        wishes: pairs of an entity and a key of `WISHES`.
        writer: replies of the model that writes the questions.
        reader: replies of the model that verifies the answers; None: `writer`.
        seed: seed of the statements shown.

    Raises:
        ValueError: a style is unknown, or the memory has no statement about an entity.
    """
    wishes = [*wishes]
    for entity, style in wishes:
        if style not in WISHES:
            raise ValueError(f"unknown style {style!r}: choose one of {', '.join(WISHES)}")
        if not memory.list_statements(entity):
            raise ValueError(f"the memory has no statement about {entity!r}: add one or drop it")

    def one(wish: tuple[str, str]) -> CraftedQuestion:
        """Write and verify one question."""
        entity, style = wish
        shown = sample_statements(memory, entity, random.Random(f"craft-{seed}-{entity}-{style}"))
        made = _write_question(entity, style, shown, writer)
        return made if made.reason else _verify_answer(made, shown, reader or writer)

    return _drop_repeats(writer.each(one, wishes))


def count_outcomes(crafted: Iterable[CraftedQuestion]) -> dict[str, dict[str, int]]:
    """Count the outcomes of each style; "kept" counts the accepted questions."""
    found: dict[str, Counter] = {}
    for each in crafted:
        found.setdefault(each.style, Counter())[each.reason or "kept"] += 1
    return {style: dict(found[style].most_common()) for style in WISHES if style in found}


def sample_statements(
    memory: EntityMemory, entity: str, rng: random.Random
) -> list[ShownStatement]:
    """Sample statements about `entity` and about entities that share a statement with it,
    shuffled.
    """
    own = memory.list_statements(entity)
    some = rng.sample(own, min(OWN_STATEMENTS, len(own)))
    beside = sorted({title for one in some for title in memory.find_entities(one)} - {entity})
    beside = [title for title in beside if len(memory.list_statements(title)) < HUB]
    for title in rng.sample(beside, min(LINKED_ENTITIES, len(beside))):
        theirs = [
            one for one in memory.list_statements(title) if entity not in memory.find_entities(one)
        ]
        some += rng.sample(theirs, min(LINKED_STATEMENTS, len(theirs)))
    texts = dict.fromkeys(some)
    shown = [
        ShownStatement(one.text, tuple(memory.find_entities(one)), one.sources) for one in texts
    ]
    return rng.sample(shown, len(shown))


def number_statements(known: Sequence[ShownStatement]) -> str:
    """Return the statements as text, one numbered line each, starting at 1."""
    return "\n".join(f"{number}. {one.text}" for number, one in enumerate(known, 1))


# ---- writing


def _write_question(
    entity: str, style: str, shown: list[ShownStatement], writer: Replies
) -> CraftedQuestion:
    """Request one question and check it by the rules of its style."""
    more = ', "expression": ".."' if style == "numeric" else ""
    system = CRAFT.format(wish=WISHES[style].format(entity=entity), more=more)
    reply = writer.ask(make_prompt(system, number_statements(shown)))
    if reply.failed:
        return CraftedQuestion(style, entity, reason=reply.failed)
    try:
        parsed = _parse_question(reply.text, shown)
    except ValueError as error:
        return CraftedQuestion(style, entity, reason=UNREADABLE, detail=str(error))
    reason = _find_general_fault(parsed, entity) or CHECKS[style](parsed, shown)
    return CraftedQuestion(
        style, entity, parsed.question, parsed.answer, parsed.used, reason, reply.text
    )


def _parse_question(text: str, shown: list[ShownStatement]) -> _ParsedQuestion:
    """Parse the model's JSON reply.

    Raises:
        ValueError: a field is missing or has the wrong type.
    """
    found = extract_json(text, dict)
    question, answer = found.get("question"), found.get("answer", "")
    numbers, expression = found.get("statements"), found.get("expression", "")
    if not (isinstance(question, str) and question.strip()):
        raise ValueError("there is no question")
    if type(answer) in (int, float):
        answer = str(answer)
    if not (isinstance(answer, str) and isinstance(expression, str)):
        raise ValueError("its answer or its expression is no text")
    if not (isinstance(numbers, list) and numbers):
        raise ValueError("it names no statement")
    if not all(type(n) is int and 1 <= n <= len(shown) for n in numbers):
        raise ValueError(f"it names statements that are not there: {numbers}")
    used = tuple(shown[n - 1] for n in dict.fromkeys(numbers))
    return _ParsedQuestion(" ".join(question.split()), answer.strip(), used, expression)


def _find_general_fault(parsed: _ParsedQuestion, entity: str) -> str:
    """Return the fault that every style forbids, or an empty string."""
    if not mentions(parsed.question, entity):
        return "it does not say what it is about"
    if parsed.answer and mentions(parsed.question, parsed.answer):
        return "it gives its answer away"
    if "statement" in parsed.question.casefold():
        return "it speaks of statements"
    return ""


def _find_fact_fault(parsed: _ParsedQuestion, _shown: list[ShownStatement]) -> str:
    """Return why no used statement supports the answer, or an empty string."""
    if not parsed.answer or not any(mentions(one.text, parsed.answer) for one in parsed.used):
        return "no statement says its answer"
    return ""


def _find_numeric_fault(parsed: _ParsedQuestion, shown: list[ShownStatement]) -> str:
    """Return why the answer is not computed from the statements, or an empty string."""
    there = {number for one in parsed.used for number in _find_numbers(one.text)}
    try:
        value, taken = evaluate_expression(parsed.expression)
    except ValueError:
        return "its expression cannot be computed"
    if len(taken) < 2 or not {*taken} <= there:
        return "its numbers are not in its statements"
    if not answers_match(parsed.answer, str(value), "number"):
        return "its answer is not what it computes"
    if any(mentions(one.text, parsed.answer) for one in shown):
        return "a statement says its answer"
    return ""


def _find_multi_hop_fault(parsed: _ParsedQuestion, shown: list[ShownStatement]) -> str:
    """Return why the statements are no chain of two hops, or an empty string."""
    reason = _find_fact_fault(parsed, shown)
    if reason:
        return reason
    named = {title for one in shown for title in one.entities if mentions(parsed.question, title)}
    holds = [one for one in shown if mentions(one.text, parsed.answer)]
    if any(mentions(one.text, title) for one in holds for title in named):
        return "one statement is enough"
    begins = [one for one in parsed.used if any(mentions(one.text, title) for title in named)]
    ends = [one for one in parsed.used if one in holds]
    if not any({*first.entities} & {*last.entities} - named for first in begins for last in ends):
        return "nothing links its statements"
    return ""


def _find_report_fault(parsed: _ParsedQuestion, _shown: list[ShownStatement]) -> str:
    """Return why the report needs too few statements, or an empty string."""
    return "" if len(parsed.used) >= REPORT_POINTS else "it needs too few statements"


CHECKS: dict[str, Callable[[_ParsedQuestion, list[ShownStatement]], str]] = {
    "fact": _find_fact_fault,
    "numeric": _find_numeric_fault,
    "multi-hop": _find_multi_hop_fault,
    "report": _find_report_fault,
}


def evaluate_expression(expression: str) -> tuple[Fraction, list[Fraction]]:
    """Evaluate an arithmetic expression exactly.

    Returns:
        The value and the numbers that occur in the expression.

    Raises:
        ValueError: it is not arithmetic with + - * / ( ).
    """
    text = re.sub(r"(?<=\d),(?=\d{3})", "", expression[:MAX_EXPRESSION])
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        taken: list[Fraction] = []
        return _evaluate_node(tree, taken), taken
    except (SyntaxError, ZeroDivisionError, RecursionError, MemoryError) as error:
        raise ValueError(f"no sum: {expression[:80]!r}") from error


def _evaluate_node(node: ast.expr, taken: list[Fraction]) -> Fraction:
    """Return the value of a syntax node and append its numbers to `taken`."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        taken.append(Fraction(str(node.value)))
        return taken[-1]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate_node(node.operand, taken)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        left, right = _evaluate_node(node.left, taken), _evaluate_node(node.right, taken)
        return _OPERATIONS[type(node.op)](left, right)
    raise ValueError(f"no sum: {ast.dump(node)[:80]}")


def _find_numbers(text: str) -> list[Fraction]:
    """Return the numbers in `text`; thousands separators are removed."""
    return [Fraction(number.replace(",", "")) for number in _NUMBER.findall(text)]


# ---- verification


def _verify_answer(
    made: CraftedQuestion, shown: list[ShownStatement], reader: Replies
) -> CraftedQuestion:
    """Let a reader answer without the reference answer; return the question with a reason if it
    disagrees.
    """
    wanted = NEEDED if made.style == "report" else ANSWER
    reply = reader.ask(
        make_prompt(wanted.format(statements=number_statements(shown)), made.question)
    )
    if reply.failed:
        return made._replace(reason=reply.failed)
    if made.style != "report":
        answer = reply.text.rpartition("</think>")[2].strip()
        right = is_accepted(answer, [made.answer], made.answer_type)
        reason = "" if right else "a reader comes to another answer"
        return made._replace(reason=reason, detail=answer)
    try:
        needed = extract_json(reply.text, list)
    except ValueError as error:
        return made._replace(reason="the reader's list cannot be read", detail=str(error))
    brought = {shown[n - 1] for n in needed if type(n) is int and 1 <= n <= len(shown)}
    reason = "" if {*made.known} <= brought else "a reader does not need its statements"
    return made._replace(reason=reason, detail=reply.text)


def _drop_repeats(crafted: list[CraftedQuestion]) -> list[CraftedQuestion]:
    """Reject each question whose text was accepted before."""
    asked, found = set(), []
    for each in crafted:
        key = each.question.casefold()
        again = not each.reason and key in asked
        found.append(each._replace(reason="asked before") if again else each)
        asked |= set() if each.reason else {key}
    return found
