"""A question with its verified answer, and the one place that says whether an answer is right.

Case, width, spaces and a full stop do not make an answer wrong. Numbers are compared as numbers,
exactly (fractions, no floats). The reward, the demonstrators, the evaluation and the analysis all
ask here, so that they cannot disagree.
"""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

# bounded on purpose: "1e999999999" must not become a number with a billion digits
_DECIMAL = re.compile(r"[+-]?([0-9]{1,400}\.?[0-9]{0,400}|\.[0-9]{1,400})(e[+-]?[0-9]{1,3})?")
_THOUSANDS = re.compile(r"[+-]?[0-9]{1,3}(,[0-9]{3}){1,20}(\.[0-9]{1,400})?")
_QUOTIENT = re.compile(r"[+-]?[0-9]{1,400} ?/ ?[0-9]{1,400}")


@dataclass(frozen=True)
class Task:
    """A question with its verified answer."""

    id: str
    question: str
    answer: str
    kind: Literal["search", "python", "trail"]
    world: str
    hops: int = 0  # look-ups; a python task has none
    start: str = ""
    relations: tuple[str, ...] = ()  # the chain from `start`, first look-up first
    code: str = ""  # a correct program
    aliases: tuple[str, ...] = ()
    query: str = ""  # what it asks, as `drlib.synthesis.queries.to_text`
    conditions: int = 1  # things that it names, each of which narrows the answer
    picture: str = ""  # what it asks about, by its name in a `drlib.tools.pictures.Album`
    # shares of attempts that were right (`drlib.synthesis.pass_rates`); None: not tried, or nobody
    # could judge
    closed_book: float | None = None
    with_tools: float | None = None

    @property
    def skill(self) -> str:
        """What the curriculum counts by: look-ups (`h1`), conditions (`c2`), the kind of sum, or
        `trail`."""
        if self.kind == "python":
            return self.id.split("-")[1]
        if self.kind == "trail":
            return self.kind
        return f"c{self.conditions}" if self.conditions > 1 else f"h{self.hops}"

    @property
    def counted_as(self) -> str:
        """What tables count it among: `python`, `search` (a chain), `2 conditions`, `trail`, ..."""
        return f"{self.conditions} conditions" if self.conditions > 1 else self.kind


def is_correct(answer: str | None, task: Task) -> bool:
    """Whether `answer` is the task's answer or an alias of it; None, no answer, is not."""
    return is_accepted(answer, (task.answer, *task.aliases))


def is_accepted(answer: str | None, accepted: Iterable[str]) -> bool:
    """Whether `answer` is one of the `accepted`; None, no answer, is none of them."""
    return answer is not None and any(answers_match(answer, right) for right in accepted)


def answers_match(answer: str, expected: str) -> bool:
    """Equal as numbers where both are numbers ("12" and "12.0"), else equal when normalised.

    An answer of which nothing is left when it is normalised matches nothing.
    """
    answer, expected = normalise_answer(answer), normalise_answer(expected)
    if answer == expected:
        return bool(answer)
    left, right = _number(answer), _number(expected)
    return left is not None and left == right


def normalise_answer(text: str) -> str:
    """NFKC, casefold, single spaces, no full stop at the end; twice changes nothing more."""
    text = unicodedata.normalize("NFKC", text).casefold()
    # casefolding can leave a form that NFKC still changes
    text = unicodedata.normalize("NFKC", text).replace("\N{MINUS SIGN}", "-")
    return " ".join(text.split()).rstrip(". ")


def _number(text: str) -> Fraction | None:
    """The exact value of a decimal, a quotient of integers or digits with thousands commas."""
    if _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    elif not (_DECIMAL.fullmatch(text) or _QUOTIENT.fullmatch(text)):
        return None
    try:
        return Fraction(text.replace(" ", ""))
    except ZeroDivisionError:
        return None
