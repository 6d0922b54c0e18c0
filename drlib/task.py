"""Questions with verified answers, and the only implementation of answer matching.

Case, width, spaces and a final full stop are ignored. Numbers are compared exactly (as fractions,
not floats). Rewards, teachers, evaluation and analysis all use `is_correct`, so they cannot
disagree.
"""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

# bounded, so that "1e999999999" does not become a number with a billion digits
_DECIMAL = re.compile(r"[+-]?([0-9]{1,400}\.?[0-9]{0,400}|\.[0-9]{1,400})(e[+-]?[0-9]{1,3})?")
_THOUSANDS = re.compile(r"[+-]?[0-9]{1,3}(,[0-9]{3}){1,20}(\.[0-9]{1,400})?")
_QUOTIENT = re.compile(r"[+-]?[0-9]{1,400} ?/ ?[0-9]{1,400}")


@dataclass(frozen=True)
class Task:
    """A question with its verified answer.

    Args:
        id: unique; starts with the kind of arithmetic for python tasks ("python-KIND-...").
        question: text shown to the policy.
        answer: correct answer.
        kind: "search" (chain of hops), "python" (arithmetic) or "trail" (open-ended browsing).
        world: version of the world with the answer.
        hops: number of hops; 0 for a python task.
        start: entity at which the chain begins.
        relations: relations of the chain, in order.
        code: a correct program.
        aliases: other correct answers.
        query: the question in the query algebra (`drlib.questions.queries.to_text`).
        conditions: number of conditions that the answer must satisfy.
        picture: name of the question's picture in a `drlib.tools.pictures.Album`.
        closed_book: accuracy without tools (`drlib.questions.escalation`); None: not measured.
        with_tools: accuracy with tools; None: not measured.
    """

    id: str
    question: str
    answer: str
    kind: Literal["search", "python", "trail"]
    world: str
    hops: int = 0  # 0 for a python task
    start: str = ""
    relations: tuple[str, ...] = ()  # in order from `start`
    code: str = ""  # a correct program
    aliases: tuple[str, ...] = ()
    query: str = ""  # as `drlib.questions.queries.to_text`
    conditions: int = 1  # number of conditions on the answer
    picture: str = ""  # name in a `drlib.tools.pictures.Album`
    # shares of correct rollouts (`drlib.questions.escalation`); None: not measured
    closed_book: float | None = None
    with_tools: float | None = None

    @property
    def skill(self) -> str:
        """Key of the curriculum: hops (`h1`), conditions (`c2`), kind of arithmetic, or `trail`."""
        if self.kind == "python":
            return self.id.split("-")[1]
        if self.kind == "trail":
            return self.kind
        return f"c{self.conditions}" if self.conditions > 1 else f"h{self.hops}"

    @property
    def category(self) -> str:
        """Row label in tables: `python`, `search` (a chain), `2 conditions`, `trail`."""
        return f"{self.conditions} conditions" if self.conditions > 1 else self.kind


def is_correct(answer: str | None, task: Task) -> bool:
    """Return True if `answer` is the task's answer or an alias; None is incorrect.

    Example:
        >>> task = Task("t-1", "How many?", "12", "search", "v1", aliases=("twelve",))
        >>> is_correct("12.0", task), is_correct("Twelve.", task), is_correct(None, task)
        (True, True, False)
    """
    return is_accepted(answer, (task.answer, *task.aliases))


def is_accepted(answer: str | None, accepted: Iterable[str]) -> bool:
    """Return True if `answer` matches one of the `accepted` answers; None matches none."""
    return answer is not None and any(answers_match(answer, right) for right in accepted)


def answers_match(answer: str, expected: str) -> bool:
    """Return True if both are equal numbers ("12" and "12.0") or equal when normalised.

    An answer that is empty when normalised matches nothing.
    """
    answer, expected = normalise_answer(answer), normalise_answer(expected)
    if answer == expected:
        return bool(answer)
    left, right = _number(answer), _number(expected)
    return left is not None and left == right


def normalise_answer(text: str) -> str:
    """Apply NFKC, case folding, single spaces, and strip final full stops; idempotent."""
    text = unicodedata.normalize("NFKC", text).casefold()
    # case folding can leave a form that NFKC changes
    text = unicodedata.normalize("NFKC", text).replace("\N{MINUS SIGN}", "-")
    return " ".join(text.split()).rstrip(". ")


def _number(text: str) -> Fraction | None:
    """Return the exact value of a decimal, a quotient of integers, or digits with commas."""
    if _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    elif not (_DECIMAL.fullmatch(text) or _QUOTIENT.fullmatch(text)):
        return None
    try:
        return Fraction(text.replace(" ", ""))
    except ZeroDivisionError:
        return None
