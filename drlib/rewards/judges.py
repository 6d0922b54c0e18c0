"""Judges: is a free-text answer to a benchmark question correct?

A judge maps (question, prediction, correct answers) to a `Judgement` with one of four verdicts. An
answer that could not be judged is a `judge_error`, never a wrong answer. `JUDGES` maps names to
factories; register your own there.

| name | correct is | used by |
|---|---|---|
| rules | one of the rules of `RULES` accepts a correct answer | short answers, without a model |
| exact | equal under `drlib.task.answers_match` | drlib's own questions |
| squad | equal after SQuAD's normalisation; score: F1 of words | HotpotQA, 2Wiki |
| musique | the same, without HotpotQA's rule for yes and no | MuSiQue |
| gaia | GAIA's quasi-exact match of numbers, lists and texts | GAIA |
| math | math-verify finds the same value | AIME, MATH-500, GSM8K |
| sets | the same items in any order; the score is the F1 of items | lists |
| table | the same rows and items; the score is the F1 of items | WideSearch |
| loose | all its parts occur in the text; score: share of them | FanOutQA |
| code | passes the tests that run after it in the sandbox | HumanEval |
| llm | a model says so (`drlib.rewards.llm_judge`) | BrowseComp, HLE, xbench, SimpleQA |
"""

import csv
import io
import json
import re
import secrets
import string
import threading
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction

from drlib.registry import Registry
from drlib.rewards.math_judge import ComparisonError, MathWorker, looks_like_math
from drlib.task import answers_match, is_identifier, normalise_answer, parse_number, split_list
from drlib.validation import require


class Verdict(StrEnum):
    """Outcome of a judgement."""

    CORRECT = "correct"
    INCORRECT = "incorrect"
    NOT_ATTEMPTED = "not_attempted"
    JUDGE_ERROR = "judge_error"


@dataclass(frozen=True)
class Judgement:
    """A verdict.

    Attributes:
        reason: the rule that accepted the answer, or the cause of an error.
        score: 0..1; graded judges (squad, sets, table) give partial credit, others 0 or 1.
        parts: other graded scores by name, 0..1, such as the F1 of rows.

    Raises:
        ValueError: the verdict is none of the four.
    """

    verdict: Verdict
    reason: str = ""
    score: float = 0.0
    parts: Mapping[str, float] = field(default_factory=dict, hash=False)

    def __post_init__(self):
        object.__setattr__(self, "verdict", Verdict(self.verdict))  # a judge may give the word


Judge = Callable[[str, str | None, Sequence[str]], Judgement]
JUDGES = Registry("judge")  # name -> factory of a Judge

_EXTRACTED = (
    re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE),
    re.compile(
        r"(?:^|[.!?] )\W*(?:the )?(?:final |exact )?answer(?: is)?\s*[:：]\s*(.+)$", re.I | re.M
    ),
    re.compile(r"^\W*最终答案\s*[:：]\s*(.+)$", re.M),
)
_DECORATION = '*_`"“” \t\n'
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def extract_answer(text: str) -> str:
    """Return the final answer that a longer text states, or the text itself.

    Recognised are the last `<answer>` block, the last line "Final answer: ..." (also "Exact
    answer:" and 最终答案, with any kind of colon), and the last `\\boxed{...}`.

    Example:
        >>> extract_answer("It was built in 1931.\\n**Final answer:** Oslo: the city")
        'Oslo: the city'
    """
    for pattern in _EXTRACTED:
        if found := pattern.findall(text):
            return _boxed(found[-1]).strip(_DECORATION)
    return _boxed(text)


def _boxed(text: str) -> str:
    """Return the content of the last `\\boxed{...}` with its nested braces, or the text."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return text
    depth = 0
    for end in range(start + len("\\boxed"), len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[start + len("\\boxed{") : end]
    return text


# ---------------------------------------------------------------- rules

# units that are written in several ways; each maps to one name
_UNITS = {
    name: names.split()[0]
    for names in (
        "% percent pct",
        "$ usd dollar dollars us$",
        "€ eur euro euros",
        "£ gbp pound pounds",
        "km kilometer kilometers kilometre kilometres",
        "m meter meters metre metres",
        "cm centimeter centimeters centimetre centimetres",
        "mm millimeter millimeters millimetre millimetres",
        "kg kilogram kilograms kilogramme kilogrammes",
        "g gram grams gramme grammes",
        "s sec secs second seconds",
        "min mins minute minutes",
        "h hr hrs hour hours",
        "l liter liters litre litres",
        "°c celsius c",
        "m^2 m2",
        "mi mile miles",
        "ft foot feet",
        "lb lbs",
    )
    for name in names.split()
}
_UNITS |= {"degrees celsius": "°c", "square metres": "m^2", "square meters": "m^2"}
_CURRENCIES = ("dollars", "usd", "euros", "pounds")  # also after a sign: "$5 dollars"
_NO_UNITS = {"or", "and", "not", "but", "to", "until", "versus"}
_NUMBER_WORDS = dict(
    zip(
        "zero one two three four five six seven eight nine ten eleven twelve".split(),
        map(str, range(13)),
    )
)
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_SCALES |= {"万": 10**4, "亿": 10**8}
_QUANTITY = re.compile(
    r"(?P<sign>[+-]?)(?P<before>[$€£]|us\$|usd|eur|gbp)?\s*"
    r"(?P<number>[+-]?(?:[0-9][0-9., '/]*[0-9]|[0-9]|\.[0-9]+)(?:e[+-]?[0-9]{1,3})?)\s*"
    r"(?P<scale>thousand|million|billion|trillion|万|亿)?\s*(?P<unit>[^0-9]*(?:\^[23])?)"
)


def quantities_match(answer: str, expected: str) -> bool:
    """Return True if both are a number with the same unit, however it is written.

    If the correct answer has no unit, the answer may have one. Units are not converted. Digits that
    are written like an identifier (`is_identifier`) are no numbers.

    Example:
        >>> quantities_match("5 million dollars", "$5,000,000"), quantities_match("5 km", "5 mi")
        (True, False)
    """
    left, right = _quantity(answer), _quantity(expected)
    if left is None or right is None or left[0] != right[0]:
        return False
    return left[1] == right[1] or not right[1]


def _quantity(text: str) -> tuple[Fraction, str] | None:
    """Return (value, unit) of a number with at most one unit."""
    text = normalise_answer(text)
    first, _, rest = text.partition(" ")
    if first in _NUMBER_WORDS:
        text = f"{_NUMBER_WORDS[first]} {rest}".strip()
    found = _QUANTITY.fullmatch(text)
    if found is None or is_identifier(found["number"]):
        return None
    value = parse_number(found["number"])
    unit = found["unit"].strip()
    is_named_twice = bool(found["before"] and unit) and unit not in _CURRENCIES
    words = unit.split()
    if value is None or is_named_twice or len(words) > 3 or not _NO_UNITS.isdisjoint(words):
        return None
    unit = unit or found["before"] or ""
    sign = -1 if found["sign"] == "-" else 1
    return sign * value * _SCALES.get(found["scale"], 1), _UNITS.get(unit, unit)


def words_match(answer: str, expected: str) -> bool:
    """Return True if both are equal without punctuation and articles.

    Texts with digits or with the symbols of names such as C++ and C# are not compared.

    Example:
        >>> words_match("The Beatles", "Beatles"), words_match("C#", "C"), words_match("3.1", "31")
        (True, False, False)
    """
    words = _plain_words(expected)
    return bool(words) and _plain_words(answer) == words


def _plain_words(text: str) -> str:
    text = normalise_answer(text)
    if re.search(r"[0-9+#=<>*/\\^|-]", text):
        return ""
    kept = "".join(c for c in text if unicodedata.category(c)[0] != "P" and c not in "`´")
    return " ".join(_ARTICLES.sub(" ", kept).split())


RULES: dict[str, Callable[[str, str], bool]] = {
    "text": answers_match,
    "date": lambda answer, expected: answers_match(answer, expected, "date"),
    "list": lambda answer, expected: answers_match(answer, expected, "list"),
    "quantity": quantities_match,
    "words": words_match,
}


@JUDGES.register("rules")
def judge_by_rules(math: bool = True) -> Judge:
    """Create the judge that tries every rule on the prediction and on the answer that it states.

    Args:
        math: also compare formulas with math-verify.
    """
    worker = MathWorker()

    def judge(question: str, prediction: str | None, golds: Sequence[str]) -> Judgement:
        _check_golds(question, golds)
        if prediction is None or not normalise_answer(prediction):
            return Judgement(Verdict.NOT_ATTEMPTED)
        final = extract_answer(prediction).strip(_DECORATION)
        stated = dict.fromkeys((prediction, final))
        for name, rule in RULES.items():
            if any(rule(text, gold) for text in stated for gold in golds):
                return Judgement(Verdict.CORRECT, name, 1.0)
        for gold in golds if math else ():
            decided = _quantity(gold) is not None and _quantity(final) is not None
            is_boxed = "\\boxed" in prediction
            is_formula = looks_like_math(gold) or looks_like_math(final)
            if not is_boxed and (decided or not is_formula):
                continue
            try:
                if worker.equal(gold, final):
                    return Judgement(Verdict.CORRECT, "math", 1.0)
            except ComparisonError as error:
                return Judgement(Verdict.JUDGE_ERROR, str(error))
        return Judgement(Verdict.INCORRECT)

    return judge


@JUDGES.register("exact")
def judge_exact() -> Judge:
    """Create the judge of drlib's own questions."""

    def accepts(prediction: str, gold: str) -> float:
        return float(answers_match(prediction, gold))

    return _graded(accepts, "exact")


@JUDGES.register("math")
def judge_math() -> Judge:
    """Create the judge that compares values with math-verify.

    A correct answer that math-verify cannot read is a judge error.
    """
    worker = MathWorker()

    def judge(question: str, prediction: str | None, golds: Sequence[str]) -> Judgement:
        _check_golds(question, golds)
        if prediction is None or not prediction.strip():
            return Judgement(Verdict.NOT_ATTEMPTED)
        try:
            found = [worker.equal(gold, extract_answer(prediction)) for gold in golds]
        except ComparisonError as error:
            return Judgement(Verdict.JUDGE_ERROR, str(error))
        if any(found):
            return Judgement(Verdict.CORRECT, "math", 1.0)
        if None in found:
            gold = golds[found.index(None)]
            return Judgement(Verdict.JUDGE_ERROR, f"math-verify cannot read {gold[:80]!r}")
        return Judgement(Verdict.INCORRECT)

    return judge


# ---------------------------------------------------------------- published rules

_CLOSED = ("yes", "no", "noanswer")


def normalise_squad(text: str) -> str:
    """Return `text` in SQuAD's normal form: lower case, no ASCII punctuation, no articles.

    Source: the evaluation of SQuAD (arXiv 1606.05250). "C++" and "C#" both become "c".
    """
    kept = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(_ARTICLES.sub(" ", kept).split())


def word_f1(answer: str, expected: str, closed: bool = True) -> float:
    """Return the F1 of the words of two answers in SQuAD's normal form.

    Args:
        closed: yes, no and noanswer match only themselves, as in HotpotQA (not in MuSiQue).
    """
    left, right = normalise_squad(answer), normalise_squad(expected)
    if closed and left != right and (left in _CLOSED or right in _CLOSED):
        return 0.0
    if not left or not right:
        return float(left == right)
    words, wanted = left.split(), right.split()
    same = sum((Counter(words) & Counter(wanted)).values())
    return 2 * same / (len(words) + len(wanted))


@JUDGES.register("squad")
def judge_squad(closed: bool = True) -> Judge:
    """Create the judge by SQuAD's exact match; its score is `word_f1`."""

    def accepts(prediction: str, gold: str) -> bool:
        return normalise_squad(prediction) == normalise_squad(gold)

    return _graded(lambda prediction, gold: word_f1(prediction, gold, closed), "squad", accepts)


@JUDGES.register("musique")
def judge_musique() -> Judge:
    """Create the judge of MuSiQue: `judge_squad`, with yes and no scored as other words."""
    return judge_squad(closed=False)


def gaia_match(answer: str, expected: str) -> bool:
    """Return True under GAIA's quasi-exact match (arXiv 2311.12983, section 3.3).

    A number is compared as a number without $, % and thousands separators; a list, with "," or ";"
    in the correct answer, item by item in order; another text without spaces, case and punctuation.

    Example:
        >>> gaia_match("$1,000", "1000"), gaia_match("a, 2.0", "a; 2"), gaia_match("St X", "st.x")
        (True, True, True)
    """
    if (number := _gaia_number(expected)) is not None:
        return _gaia_number(answer) == number
    if re.search("[,;]", expected):
        items, wanted = (re.split("[,;]", text) for text in (answer, expected))
        return len(items) == len(wanted) and all(
            _gaia_number(item) == number
            if (number := _gaia_number(gold)) is not None
            else _gaia_text(item, keep=True) == _gaia_text(gold, keep=True)
            for item, gold in zip(items, wanted)
        )
    return _gaia_text(answer) == _gaia_text(expected)


def _gaia_number(text: str) -> float | None:
    try:
        return float(re.sub("[$%,]", "", text).strip())
    except ValueError:
        return None


def _gaia_text(text: str, keep: bool = False) -> str:
    """Return a text without spaces, in lower case; without punctuation unless `keep`."""
    folded = re.sub(r"\s", "", text).lower()
    return folded if keep else "".join(c for c in folded if c not in string.punctuation)


@JUDGES.register("gaia")
def judge_gaia() -> Judge:
    """Create the judge by GAIA's quasi-exact match."""
    return _graded(lambda prediction, gold: float(gaia_match(prediction, gold)), "gaia")


def set_f1(answer: str, expected: str) -> float:
    """Return the F1 of the items of two lists, 2 hits / (given + expected), in any order.

    Repeated items cost precision.

    Example:
        >>> set_f1("Oslo, Rome", "Bergen and Oslo"), set_f1("Bergen, Oslo", "Oslo, Bergen")
        (0.5, 1.0)
    """
    given, wanted = (split_list(normalise_answer(text)) for text in (answer, expected))
    if not given or not wanted:
        return 0.0
    left = list(wanted)
    for item in given:
        same = next((other for other in left if answers_match(item, other)), None)
        if same is not None:
            left.remove(same)
    return 2 * (len(wanted) - len(left)) / (len(given) + len(wanted))


@JUDGES.register("sets")
def judge_sets() -> Judge:
    """Create the judge of lists without order; its score is `set_f1`."""
    return _graded(set_f1, "sets")


# ---------------------------------------------------------------- tables


@dataclass(frozen=True)
class TableScore:
    """F1 of complete rows and of single items, 0..1 (WideSearch, arXiv 2508.07999, section 4)."""

    row_f1: float
    item_f1: float


def score_table(answer: str, expected: str, keys: int = 1) -> TableScore:
    """Compare two tables, in Markdown or csv with a header.

    Columns are matched by their names without case and spaces; rows by the key, the first columns
    of the correct table; other items by `RULES`. Rows of the answer that match none, and repeated
    rows, cost precision.

    Args:
        keys: columns of the key, unless the correct table marks them by names in bold (**name**).

    Raises:
        ValueError: the correct table is no table.
    """
    wanted, found = _read_table(expected), _read_table(answer)
    require(len(wanted) > 1, "the correct table has no rows: choose another judge")
    keys = sum(name.startswith("**") for name in wanted[0]) or keys
    names, rows = [_fold_name(name) for name in wanted[0]], wanted[1:]
    if len(found) < 2:
        return TableScore(0.0, 0.0)
    header = [_fold_name(name) for name in found[0]]
    order = [header.index(name) if name in header else None for name in names]
    given = [["" if at is None else row[at] for at in order] for row in found[1:]]
    left = list(rows)
    items = whole = 0
    for row in given:
        same = next((w for w in left if all(map(_items_match, row[:keys], w[:keys]))), None)
        if same is None:
            continue
        left.remove(same)
        hits = sum(map(_items_match, row, same))
        items += hits
        whole += hits == len(names)
    n, m, width = len(given), len(rows), len(names)
    return TableScore(2 * whole / (n + m), 2 * items / ((n + m) * width))


def _items_match(item: str, gold: str) -> bool:
    if not gold.strip():
        return not item.strip()
    return any(rule(item, gold) for rule in RULES.values())


def _read_table(text: str) -> list[list[str]]:
    """Return header and rows, all of the header's width."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    piped = [line for line in lines if line.startswith("|")]
    if piped:
        cells = [
            [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            for line in piped
        ]
        cells = [row for row in cells if not all(re.fullmatch(":?-+:?", cell) for cell in row)]
    else:
        lines = [line for line in lines if not line.startswith("```")]
        cells = list(csv.reader(io.StringIO("\n".join(lines)), skipinitialspace=True))
    if not cells:
        return []
    width = len(cells[0])
    rows = [(row + [""] * width)[:width] for row in cells[1:]]
    return [cells[0], *rows]


def _fold_name(name: str) -> str:
    """Return the name of a column without case, spaces and bold."""
    return "".join(normalise_answer(name.replace("*", "")).split())


@JUDGES.register("table")
def judge_table(keys: int = 1) -> Judge:
    """Create the judge of tables; correct if every row is, its score is the F1 of items."""

    def judge(question: str, prediction: str | None, golds: Sequence[str]) -> Judgement:
        _check_golds(question, golds)
        if prediction is None or not prediction.strip():
            return Judgement(Verdict.NOT_ATTEMPTED)
        scores = [score_table(extract_answer(prediction), gold, keys) for gold in golds]
        best = max(scores, key=lambda score: (score.row_f1, score.item_f1))
        verdict = Verdict.CORRECT if best.row_f1 == 1 else Verdict.INCORRECT
        parts = {"row F1": best.row_f1, "item F1": best.item_f1}
        return Judgement(verdict, f"row F1 {best.row_f1:.3f}", best.item_f1, parts)

    return judge


# ---------------------------------------------------------------- parts of an answer


def loose_accuracy(text: str, expected: str) -> float:
    """Return the share of the parts of the correct answer that occur in `text`, 0..1.

    The loose accuracy of FanOutQA (arXiv 2402.14116, section 4): parts are compared as whole words,
    in lower case, without punctuation and separators of thousands. The original also compares
    lemmas instead of words, counts an empty part as found, and never finds a part that begins or
    ends with a sign, such as "$5".

    Args:
        expected: a text, or a list or a record (names and values are parts) as JSON.

    Example:
        >>> loose_accuracy("Oslo has 709,037 people.", '{"Oslo": 709037, "Bergen": 289330}')
        0.5
    """
    words = _loose_words(text)
    parts = [part for part in map(_loose_words, _parts(expected)) if part]
    require(bool(parts), f"the correct answer {expected[:80]!r} has no words")
    found = [bool(re.search(rf"(?<!\w){re.escape(part)}(?!\w)", words)) for part in parts]
    return sum(found) / len(found)


def _parts(expected: str) -> list[str]:
    try:
        value = json.loads(expected)
    except ValueError:
        return [expected]
    if isinstance(value, dict):
        value = [*value, *value.values()]
    names = {True: "yes", False: "no"}
    parts = value if isinstance(value, list) else [value]
    return [names[part] if isinstance(part, bool) else str(part) for part in parts]


def _loose_words(text: str) -> str:
    text = re.sub(r"(?<=\d),(?=\d)", "", unicodedata.normalize("NFC", text).lower())
    return " ".join(re.sub(r"[,.?!:;]", "", text).split())


@JUDGES.register("loose")
def judge_loose() -> Judge:
    """Create the judge of FanOutQA: correct if the complete text has every part of the answer."""

    def judge(question: str, prediction: str | None, golds: Sequence[str]) -> Judgement:
        _check_golds(question, golds)
        if prediction is None or not prediction.strip():
            return Judgement(Verdict.NOT_ATTEMPTED)
        best = max(loose_accuracy(prediction, gold) for gold in golds)
        return Judgement(Verdict.CORRECT if best == 1 else Verdict.INCORRECT, "loose", best)

    return judge


# ---------------------------------------------------------------- programs

_FENCE = re.compile(r"^```[ \t]*(?:python|py)?[ \t]*\n(.*?)^```", re.DOTALL | re.MULTILINE | re.I)


def extract_program(text: str) -> str:
    """Return the last code block of a text, or the text without one."""
    blocks = _FENCE.findall(text)
    return blocks[-1] if blocks else text.strip("\n")


@JUDGES.register("code")
def judge_code(timeout_s: float = 5.0) -> Judge:
    """Create the judge that runs question, prediction and a correct answer as one program.

    The question is the beginning of a Python program, the correct answer its tests, and the
    prediction the continuation or complete functions; of a text with code blocks, the last one is
    taken. It is correct if the tests end without an error. The sandbox starts at the first use.

    The tests share a process with the program, which could read them. Train with `code_tests`.

    Args:
        timeout_s: seconds for one program; slower ones are incorrect.
    """
    sandboxes: list = []
    lock = threading.Lock()

    def judge(question: str, prediction: str | None, golds: Sequence[str]) -> Judgement:
        _check_golds(question, golds)
        if prediction is None or not prediction.strip():
            return Judgement(Verdict.NOT_ATTEMPTED)
        from drlib.sandbox import Sandbox  # the other judges do without

        with lock:
            sandbox = sandboxes[0] if sandboxes else Sandbox(timeout_s=timeout_s)
            sandboxes[:] = [sandbox]
        code = extract_program(prediction)
        for gold in golds:
            end = secrets.token_hex(8)  # printed after the tests, in case the program exits earlier
            done = sandbox.run(f"{question}\n{code}\n\n{gold}\nprint({end!r})")
            if done.env_fault:
                return Judgement(Verdict.JUDGE_ERROR, f"the sandbox failed: {done.status}")
            if done.ok and done.stdout.rstrip().endswith(end):
                return Judgement(Verdict.CORRECT, "tests", 1.0)
        return Judgement(Verdict.INCORRECT, done.status)

    return judge


def _graded(
    score: Callable[[str, str], float],
    name: str,
    accepts: Callable[[str, str], bool] | None = None,
) -> Judge:
    """Create a judge from a score of one correct answer.

    Args:
        accepts: whether an answer is correct; default: its score is 1.
    """

    def judge(question: str, prediction: str | None, golds: Sequence[str]) -> Judgement:
        _check_golds(question, golds)
        if prediction is None or not prediction.strip():
            return Judgement(Verdict.NOT_ATTEMPTED)
        final = extract_answer(prediction)
        best = max(score(final, gold) for gold in golds)
        is_right = any(accepts(final, gold) for gold in golds) if accepts else best == 1
        verdict = Verdict.CORRECT if is_right else Verdict.INCORRECT
        return Judgement(verdict, name if is_right else "", best)

    return judge


def _check_golds(question: str, golds: Sequence[str]) -> None:
    usable = not isinstance(golds, str) and bool(golds) and all(map(str.strip, golds))
    require(usable, f"no correct answer for {question[:80]!r}: give at least one, none empty")
