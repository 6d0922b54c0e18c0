"""Questions with verified answers, and the only implementation of answer matching.

Answers are compared as text, number, date or list (`Task.answer_type`), after a normalisation that
ignores case and typography. Numbers are compared exactly (as fractions, not floats). Rewards,
teachers, evaluation and analysis all use `is_correct`, so they cannot disagree.
"""

import re
import unicodedata
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from fractions import Fraction
from typing import Literal, get_args

AnswerType = Literal["auto", "text", "number", "date", "list"]

# bounded, so that "1e999999999" does not become a number with a billion digits
_DECIMAL = re.compile(r"[+-]?([0-9]{1,400}\.?[0-9]{0,400}|\.[0-9]{1,400})(e[+-]?[0-9]{1,3})?")
_THOUSANDS = re.compile(r"[+-]?[1-9][0-9]{0,2}([ ,'])[0-9]{3}(\1[0-9]{3}){0,20}(\.[0-9]{1,400})?")
_QUOTIENT = re.compile(r"[+-]?[0-9]{1,400} ?/ ?[0-9]{1,400}")
_MIXED = re.compile(r"([+-]?)([0-9]{1,400}) ([0-9]{1,400} ?/ ?[0-9]{1,400})")
_IDENTIFIER = re.compile(
    r"[+-]?0[0-9][0-9., '/]*"  # leading zeros
    r"|[0-9]+\.[0-9]*[1-9]0+"  # trailing zeros of a fraction that is not only zeros
    r"|\+[0-9]{7,}"  # a telephone number
)

# Characters without a width that Unicode counts as letters or marks: joiners of graphemes, fillers
# of Hangul and Khmer, variation selectors.
_FILLERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\uffa0") | {
    chr(point) for point in (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))
}
_FINAL_STOPS = ". 。।॥۔።។။།։᠃᙮⸼꓿"
_TYPOGRAPHY = str.maketrans(
    dict.fromkeys("‘’‚‛ʹʻʼʽˈ՚׳′‵`´ꞌ", "'")
    | dict.fromkeys("“”„‟«»״″‶〝〞〟", '"')
    | dict.fromkeys("‐‑‒–—―⁃−⸺⸻־᠆", "-")
    | {"\N{FRACTION SLASH}": "/", "\N{DIVISION SLASH}": "/", "\N{WAVE DASH}": "~"}
    | {"\N{ARABIC DECIMAL SEPARATOR}": ".", "\N{ARABIC THOUSANDS SEPARATOR}": ","}
    | {"\N{MULTIPLICATION SIGN}": "x", "\N{BRAILLE PATTERN BLANK}": " "}
)
_SPACED_DASH = re.compile(r"(?<=\S) - (?=\S)")
# Between groups of three digits these spaces can only separate thousands.
_GROUP_SPACE = re.compile(r"(?<=\d)[\u00a0\u2007\u2009\u202f](?=\d{3}(?!\d))")
_SUPERSCRIPTS = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁱⁿ]+")
_SUBSCRIPTS = re.compile(r"(?<=\d)[₀₁₂₃₄₅₆₇₈₉₊₋]+")  # "H₂O" and "H2O" are the same
_BUILT_FRACTION = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹]+[/\u2044\u2215][₀₁₂₃₄₅₆₇₈₉]+")
_VULGAR_FRACTION = re.compile("[¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞↉]")
# "km2", "km^2" and "km²" are the same unit.
_AREA = re.compile(r"(?<![a-z])((?:[kcdm]?m|ft|in|mi|yd))([23])(?![0-9a-z])")
_ORDINAL = re.compile(r"\b([0-9]{1,2})(?:st|nd|rd|th)\b")
_DATE_LAYOUTS = ("%Y-%m-%d", "%Y/%m/%d", "%d %B %Y", "%B %d %Y", "%d %b %Y", "%b %d %Y", "%d.%m.%Y")


@dataclass(frozen=True)
class Task:
    """A question with its verified answer.

    Args:
        id: unique; starts with the kind of arithmetic for python tasks ("python-KIND-...").
        question: text shown to the policy.
        answer: correct answer.
        kind: "search" (chain of hops), "python" (arithmetic), "trail" (open-ended browsing), or the
            name of the environment.
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
        answer_type: how answers are compared (`answers_match`).
        page: title of the answer's page, if a person would name the answer differently (in a folder
            "people/ingrid.md" is "Ingrid Solheim").
        environment: data from which the task's environment (`drlib.environments`) builds its state,
            as JSON; "" without an environment.
        verifier: name and arguments of the reward that judges this task, as JSON; "" for that of
            the run.
        entities: entities of the chain after `start`, in order; the last one is the answer.

    Raises:
        ValueError: unknown `answer_type`.
    """

    id: str
    question: str
    answer: str
    kind: str
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
    answer_type: AnswerType = "auto"
    page: str = ""  # title of the answer's page if a person would name it differently
    environment: str = ""  # JSON from which the environment `kind` builds the task's state
    verifier: str = ""  # JSON: {"reward": name, "arguments": {...}}
    entities: tuple[str, ...] = ()  # of the chain after `start`

    def __post_init__(self):
        if self.answer_type not in get_args(AnswerType):
            raise ValueError(
                f"task {self.id!r}: answer_type={self.answer_type!r} is unknown: choose one of "
                f"{', '.join(get_args(AnswerType))}"
            )

    @property
    def target(self) -> str:
        """Name of the answer in the world's graph: its page, or the answer itself."""
        return self.page or self.answer

    @property
    def skill(self) -> str:
        """Key of the curriculum: hops (`h1`), conditions (`c2`), kind of arithmetic, or `kind`."""
        if self.kind == "python" and not self.environment:
            return self.id.split("-")[1]
        if self.kind == "trail" or self.environment:
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
    return is_accepted(answer, (task.answer, *task.aliases), task.answer_type)


def is_accepted(
    answer: str | None, accepted: Iterable[str], answer_type: AnswerType = "auto"
) -> bool:
    """Return True if `answer` matches one of the `accepted` answers; None matches none."""
    return answer is not None and any(
        answers_match(answer, right, answer_type) for right in accepted
    )


def answers_match(answer: str, expected: str, answer_type: AnswerType = "auto") -> bool:
    """Return True if both answers are equal when normalised, or have the same value.

    An answer that is empty when normalised matches nothing.

    Args:
        answer: answer to judge.
        expected: correct answer.
        answer_type: values to compare besides the normalised texts. "text": none. "number": exact
            numbers. "date": calendar dates. "list": items in any order, each compared as "auto".
            "auto": numbers, unless one is written like an identifier (`is_identifier`).

    Example:
        >>> answers_match("3.1", "3.10"), answers_match("3.1", "3.10", "number")
        (False, True)
        >>> answers_match("7 Nov 1867", "1867-11-07", "date")
        True
    """
    answer, expected = normalise_answer(answer), normalise_answer(expected)
    if answer == expected:
        return bool(answer)
    if answer_type == "date":
        day = _parse_date(answer)
        return day is not None and day == _parse_date(expected)
    if answer_type == "list":
        return _lists_match(split_list(answer), split_list(expected))
    if answer_type == "text":
        return False
    if answer_type == "auto" and (is_identifier(answer) or is_identifier(expected)):
        return False
    left = parse_number(answer)
    return left is not None and left == parse_number(expected)


def infer_answer_type(values: Iterable[str]) -> AnswerType:
    """Return the type that all answers to one kind of question share, e.g. a table's column.

    Returns:
        "number" or "date" if every value is one and none is written like an identifier, else
        "text"; also "text" without values.

    Example:
        >>> infer_answer_type(["80331", "01067"]), infer_answer_type(["1,204", "88"])
        ('text', 'number')
    """
    texts = [normalise_answer(value) for value in values]
    if texts and all(parse_number(text) is not None for text in texts):
        return "text" if any(map(is_identifier, texts)) else "number"
    if texts and all(_parse_date(text) for text in texts):
        return "date"
    return "text"


def is_identifier(text: str) -> bool:
    """Return True if digits are written in a way that a number's value would lose.

    These are leading zeros ("02134"), trailing zeros of a fraction ("3.10") and a plus sign before
    seven digits or more (a telephone number).
    """
    return _IDENTIFIER.fullmatch(normalise_answer(text)) is not None


def normalise_answer(text: str) -> str:
    """Return `text` in the form in which answers are compared; idempotent.

    Ignored are case, width, invisible characters, the kind of dash, apostrophe, quotation mark and
    space, and final full stops of any script. Decimal digits of all scripts become ASCII digits.
    Superscripts and fractions stay distinct: "10²" becomes "10^2" and "5½" becomes "5 1/2".
    """
    if text.isascii() and text.isprintable():
        text = text.casefold()
    else:
        text = _fold_unicode(text)
    text = _AREA.sub(r"\1^\2", _SPACED_DASH.sub("-", " ".join(text.split())))
    return text.rstrip(_FINAL_STOPS)


def _fold_unicode(text: str) -> str:
    """Return the compatibility form (NFKC) in lower case, without changing values."""
    text = "".join(c for c in text if not _is_invisible(c))
    text = _GROUP_SPACE.sub(",", text)
    text = _BUILT_FRACTION.sub(_plain_fraction, text)
    text = _VULGAR_FRACTION.sub(_plain_fraction, text)
    text = _SUPERSCRIPTS.sub(lambda found: "^" + found[0], text)
    text = _SUBSCRIPTS.sub(lambda found: "_" + found[0], text)
    # NFKC would turn an acute accent into a space with a combining mark
    text = unicodedata.normalize("NFKC", text.translate(_TYPOGRAPHY)).casefold()
    # case folding can leave a form that NFKC changes
    text = unicodedata.normalize("NFKC", text).translate(_TYPOGRAPHY)
    return "".join(
        str(unicodedata.decimal(c)) if c.isdecimal() and not c.isascii() else c for c in text
    )


def _is_invisible(character: str) -> bool:
    """Return True for characters without a width: format characters, controls, fillers."""
    if character in _FILLERS:
        return True
    return unicodedata.category(character) in ("Cf", "Cc") and not character.isspace()


def _plain_fraction(found: re.Match) -> str:
    """Return a one-character or built fraction as "n/d", after a space if a digit precedes."""
    fraction = unicodedata.normalize("NFKC", found[0]).replace("\N{FRACTION SLASH}", "/")
    before = found.string[: found.start()]
    return f" {fraction}" if before and before[-1].isdecimal() else fraction


def parse_number(text: str) -> Fraction | None:
    """Return the exact value of a decimal, a quotient, a mixed number or grouped digits."""
    if _THOUSANDS.fullmatch(text):
        text = re.sub("[ ,']", "", text)
    elif mixed := _MIXED.fullmatch(text):
        whole, part = Fraction(mixed[2]), parse_number(mixed[3])
        if part is None:
            return None
        return -(whole + part) if mixed[1] == "-" else whole + part
    elif not (_DECIMAL.fullmatch(text) or _QUOTIENT.fullmatch(text)):
        return None
    try:
        return Fraction(text.replace(" ", ""))
    except ZeroDivisionError:
        return None


def _parse_date(text: str) -> date | None:
    """Return the day of a normalised date with a written-out month, or year first.

    "3/4/2020" is no date: day and month cannot be told apart.
    """
    text = " ".join(_ORDINAL.sub(r"\1", text).replace(",", " ").replace(" of ", " ").split())
    for layout in _DATE_LAYOUTS:
        with suppress(ValueError):
            return datetime.strptime(text, layout).date()
    return None


def split_list(text: str) -> list[str]:
    """Return the items of a normalised list, split at ";" if it occurs, else at "," and "and"."""
    separator = ";" if ";" in text else r"[,،、]|\band\b|&"
    items = (normalise_answer(item) for item in re.split(separator, text))
    return [item.removeprefix("and ") for item in items if item]


def _lists_match(left: list[str], right: list[str]) -> bool:
    """Return True if the items match one to one, in any order."""
    if len(left) != len(right):
        return False
    remaining = list(right)
    for item in left:
        match = next((other for other in remaining if answers_match(item, other)), None)
        if match is None:
            return False
        remaining.remove(match)
    return bool(left)
