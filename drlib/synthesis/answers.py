"""When two answers are the same: case, width, spaces and a full stop do not make one wrong.

Numbers are compared as numbers, exactly (fractions, no floats). The reward, the demonstrators and
the evaluation all ask here, so that they cannot disagree.
"""

import re
import unicodedata
from fractions import Fraction

# bounded on purpose: "1e999999999" must not become a number with a billion digits
NUMBER = re.compile(r"[+-]?([0-9]{1,400}\.?[0-9]{0,400}|\.[0-9]{1,400})(e[+-]?[0-9]{1,3})?")
THOUSANDS = re.compile(r"[+-]?[0-9]{1,3}(,[0-9]{3}){1,20}(\.[0-9]{1,400})?")
QUOTIENT = re.compile(r"[+-]?[0-9]{1,400} ?/ ?[0-9]{1,400}")


def answers_match(answer: str, expected: str) -> bool:
    """Equal as numbers where both are numbers ("12" and "12.0"), else equal when normalised."""
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
    if THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    elif not (NUMBER.fullmatch(text) or QUOTIENT.fullmatch(text)):
        return None
    try:
        return Fraction(text.replace(" ", ""))
    except ZeroDivisionError:
        return None
