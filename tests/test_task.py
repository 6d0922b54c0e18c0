"""Answer matching: numbers, identifiers, typography, scripts, dates and lists."""

import random
import sys
from unicodedata import category

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drlib.questions.chains import (
    PYTHON_KINDS,
    enumerate_chains,
    make_python_task,
    make_search_task,
)
from drlib.task import Task, answers_match, infer_answer_type, is_correct, normalise_answer
from drlib.worlds.small import Entity, SmallWorld


def task_with(answer, answer_type="auto"):
    return Task("t", "q", answer, "search", "w", answer_type=answer_type)


@pytest.mark.parametrize(
    ("answer", "expected", "same"),
    [
        ("Paris", "paris", True),
        ("  New\u00a0\n York. ", "new york", True),
        ("Straße", "STRASSE", True),
        ("cote d'or", "Côte d’Or", False),
        ("ﬁle", "file", True),
        ("Paris, France", "Paris", False),
        ("", "", False),
        ("12", "12.0", True),
        ("+12.", "12", True),
        ("1,234.50", "1234.5", True),
        ("1,23", "123", False),
        ("\N{MINUS SIGN}3", "-3", True),
        ("2/6", "1/3", True),
        ("1/0", "1/0", True),
        ("1/0", "2/0", False),
        ("1e3", "1000", True),
        ("12 apples", "12", False),
        ("0.30000000000000004", "0.3", False),
        ("nan", "nan", True),
        ("inf", "1e999", False),
        ("1e999999999", "1e999999998", False),
        ("9" * 5000, "9" * 5001, False),
    ],
)
def test_answers_match(answer, expected, same):
    assert answers_match(answer, expected) is same
    assert answers_match(expected, answer) is same


@given(st.text(), st.text())
@settings(max_examples=300, deadline=None)
def test_matching_is_symmetric_and_normalising_idempotent(left, right):
    assert answers_match(left, right) == answers_match(right, left)
    assert normalise_answer(normalise_answer(left)) == normalise_answer(left)


def test_normalising_is_idempotent_on_every_character():
    """Every assigned character, and a hundredth of those without a meaning of their own."""
    empty = {"Cn", "Co", "Cs"}  # unassigned, private, surrogates: five in six
    some = [p for p in range(sys.maxunicode + 1) if p % 101 == 0 or category(chr(p)) not in empty]
    assert len(some) > 150_000
    for point in some:
        once = normalise_answer(chr(point))
        assert normalise_answer(once) == once, hex(point)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("3.1", "3.10"),
        ("2134", "02134"),
        ("1.2", "1.20"),
        ("7", "007"),
        ("1067", "01067"),
        ("4930123456", "+4930123456"),
        ("0", "000"),
        ("12.5", "12.50"),
        ("0612345678", "612345678"),
        ("0,123", "123"),
    ],
)
def test_identifiers_are_text_unless_the_task_says_number(answer, expected):
    assert not is_correct(answer, task_with(expected))
    assert not is_correct(expected, task_with(answer))
    assert is_correct(expected, task_with(expected))
    if "," not in answer:
        assert is_correct(answer, task_with(expected, "number"))


@pytest.mark.parametrize("answer", ["12.0", "1e1", "1,000"])
def test_a_text_answer_is_not_compared_by_value(answer):
    plain = {"12.0": "12", "1e1": "10", "1,000": "1000"}[answer]
    assert is_correct(answer, task_with(plain))
    assert not is_correct(answer, task_with(plain, "text"))


@pytest.mark.parametrize(
    ("answer", "other"),
    [
        ("10²", "102"),
        ("2⁸", "28"),
        ("10⁻³", "10-3"),
        ("x²", "x2"),
        ("5½", "51/2"),
        ("10₂", "102"),
        ("2ⁿ", "2n"),
        ("3¼ inches", "31/4 inches"),
    ],
)
def test_compatibility_forms_keep_their_value(answer, other):
    assert not is_correct(answer, task_with(other))
    assert not is_correct(other, task_with(answer))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        # apostrophes and quotation marks
        ("Côte d'Ivoire", "Côte d’Ivoire"),
        ("Hawai'i", "Hawaiʻi"),
        ("O´Brien", "O'Brien"),
        ("„Faust“", '"Faust"'),
        ("«Война и мир»", "“Война и мир”"),
        # dashes
        ("Jean‑Luc", "Jean-Luc"),
        ("1990–1995", "1990-1995"),
        ("–5", "-5"),
        ("1914 — 1918", "1914-1918"),
        ("תל־אביב", "תל-אביב"),
        # invisible characters
        ("Os​lo", "Oslo"),
        ("﻿Paris", "Paris"),
        ("Donau­dampfschiff", "Donaudampfschiff"),
        ("‎חיפה‏", "חיפה"),
        ("⁦Kairo⁩", "Kairo"),
        ("Se⁠oul", "Seoul"),
        ("❤️", "❤"),
        # punctuation, digits, fractions and separators of other scripts
        ("东京。", "东京"),
        ("दिल्ली।", "दिल्ली"),
        ("لاہور۔", "لاہور"),
        ("Երևան։", "Երևան"),
        ("አዲስ አበባ።", "አዲስ አበባ"),
        ("١٢", "12"),
        ("१८५७", "1857"),
        ("๒๕๖๐", "2560"),
        ("۳٫۵", "3.5"),
        ("½", "1/2"),
        ("0.75", "¾"),
        ("5½", "5.5"),
        ("1¹⁄₂", "1.5"),
        ("1 234 567", "1234567"),
        ("12 345", "12,345"),
        ("1'234'567", "1234567"),
        ("2 000.5", "2000.5"),
        ("٤٬٥٠٠", "4500"),
        ("10²", "10^2"),
        ("12 km²", "12 km2"),
        ("H₂O", "H2O"),
    ],
)
def test_typography_does_not_matter(answer, expected):
    assert is_correct(answer, task_with(expected)) and is_correct(expected, task_with(answer))


@pytest.mark.parametrize(
    "answer",
    ["1867-11-07", "7 November 1867", "Nov 7, 1867", "7th of November 1867", "07.11.1867"],
)
def test_dates_are_compared_by_day(answer):
    assert is_correct(answer, task_with("November 7, 1867", "date"))
    assert not is_correct(answer, task_with("November 8, 1867", "date"))
    assert not is_correct(answer, task_with("November 7, 1867", "text"))


def test_dates_without_a_clear_order_match_nothing():
    expected = task_with("2020-04-03", "date")
    assert not is_correct("3/4/2020", expected) and not is_correct("2020", expected)
    assert not is_correct("April 2020", expected) and not is_correct("4 April 2020", expected)


@pytest.mark.parametrize(
    ("answer", "expected", "same"),
    [
        ("Oslo, Bergen and Trondheim", "Bergen, Oslo, Trondheim", True),
        ("Oslo and Bergen", "Oslo; Bergen", True),
        ("b, and a", "a, b", True),
        ("1.0; 2", "2; 1", True),
        ("Oslo, Oslo", "Oslo, Bergen", False),
        ("Oslo", "Oslo, Bergen", False),
        ("Oslo, Bergen, Bodø", "Oslo, Bergen", False),
        ("02134, 3.1", "2134, 3.1", False),
        ("Smith, John; Doe, Jane", "Doe, Jane; Smith, John", True),
    ],
)
def test_lists_match_in_any_order(answer, expected, same):
    assert is_correct(answer, task_with(expected, "list")) is same
    assert answers_match(expected, answer, "list") is same


def test_unknown_answer_type_is_refused():
    with pytest.raises(ValueError, match="integer"):
        task_with("12", "integer")


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (["80331", "01067"], "text"),
        (["3.9", "3.10", "3.11"], "text"),
        (["+4930123456", "+4930654321"], "text"),
        (["1,204", "88", "2.5"], "number"),
        (["1867-11-07", "3 May 1901"], "date"),
        (["1867-11-07", "unknown"], "text"),
        ([], "text"),
    ],
)
def test_infer_answer_type_from_all_values(values, found):
    assert infer_answer_type(values) == found


def test_synthesis_sets_the_answer_type():
    world = SmallWorld(
        [
            Entity("Ada", "person", {"town": "Ulm", "postal code": "89073", "age": "41"}),
            Entity("Bo", "person", {"town": "Jena", "postal code": "07743", "age": "7"}),
            Entity("Ulm", "town", {}),
            Entity("Jena", "town", {}),
        ]
    )
    types = {
        chain.relations: make_search_task(chain, world, 0).answer_type
        for chain in enumerate_chains(world, 1)
    }
    assert types == {("town",): "text", ("postal code",): "text", ("age",): "number"}
    rng = random.Random(0)
    assert all(make_python_task(rng, kind).answer_type == "number" for kind in PYTHON_KINDS)
