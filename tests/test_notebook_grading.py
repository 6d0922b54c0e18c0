"""Feedback on answers: numbers, choices and functions.

Run: python -m pytest tests/test_notebook_grading.py
"""

import math

import numpy as np
import pytest
import torch

from drlib.notebook.grading import TRIALS, Choice, Function, Numbers

TEXTS = {"how": "two numbers", "hint": "think again.", "why": "because."}
PAIR = Numbers(**TEXTS, expected=lambda: [0.5, -0.25])
COUNT = Numbers(**TEXTS, expected=lambda: 5, tolerance=0)
LETTER = Choice(**TEXTS, right="b", wrong={"a": "A is wrong.", "c": "C is wrong."})
SQUARE = Function(**TEXTS, reference=lambda x: x * x, draw=lambda rng: (rng.randrange(-9, 10),))


@pytest.mark.parametrize("exercise", [PAIR, COUNT, LETTER, SQUARE])
@pytest.mark.parametrize("answer", [None, ...])
def test_empty_answer_is_told_the_form(exercise, answer):
    assert exercise.grade(answer).startswith("no answer yet: give two numbers")


@pytest.mark.parametrize(
    "answer",
    [
        [0.5, -0.25],
        (1 / 2, -1 / 4),
        [0.504, -0.246],
        np.array([0.5, -0.25]),
        torch.tensor([0.5, -0.25], requires_grad=True),
        [torch.tensor(0.5), np.float32(-0.25)],
    ],
)
def test_right_numbers_in_any_container(answer):
    assert PAIR.grade(answer) == "right: because."


@pytest.mark.parametrize(
    ("answer", "feedback"),
    [
        ([0.6, -0.25], "close: the difference is +0.1; number 1 differs most."),
        ([0.5, -0.35], "close: the difference is -0.1; number 2 differs most."),
        ([-0.5, 0.25], "close: the sign is opposite."),
        ([1.0, -0.5], "close: every number is 2 times the right one."),
        ([0.375, -0.1875], "close: every number is 0.75 times the right one."),
        ([0.5, 0.75], "close: 1 of 2 numbers are right; number 2 differs by +1."),
        ([3.0, 3.0], "not yet: think again."),
        ([0.0, 0.0], "not yet: think again."),
        ([0.5], "not yet: give two numbers, not [0.5]"),
        ([0.5, math.nan], "not yet: give two numbers, not [0.5, nan]"),
        ("half", "not yet: give two numbers, not 'half'"),
    ],
)
def test_wrong_numbers_get_the_difference_or_the_hint(answer, feedback):
    assert PAIR.grade(answer) == feedback


def test_count_is_exact_and_single():
    assert COUNT.grade(5) == COUNT.grade(torch.tensor(5)) == "right: because."
    assert COUNT.grade(6) == "close: the difference is +1."
    assert COUNT.grade(-5) == "close: the sign is opposite."
    assert COUNT.grade(9).startswith("not yet: think")
    assert COUNT.grade([5]).startswith("not yet: give")


def test_zero_answer_can_be_graded():
    nothing = Numbers(**TEXTS, expected=lambda: [0.0, 0.0])
    assert nothing.grade([0, 0]).startswith("right")
    assert nothing.grade([0.1, 0]).startswith("close: the difference is +0.1")
    assert nothing.grade([7, 7]).startswith("not yet")


def test_choice_explains_the_wrong_option():
    assert LETTER.grade(" B ") == "right: because."
    assert LETTER.grade("a") == "not yet: A is wrong. think again."
    assert LETTER.grade("z") == "not yet: unknown option 'z'. Known: a, b, c"
    assert LETTER.grade(2).startswith("not yet: unknown option 2")


def test_function_is_compared_on_random_inputs():
    assert SQUARE.grade(lambda x: x**2) == "right: because."
    assert SQUARE.grade(lambda x: torch.tensor(float(x * x))) == "right: because."
    assert SQUARE.grade(lambda x: None).startswith("no answer yet")
    assert SQUARE.grade(4).startswith("not yet: give two numbers, not 4")


def test_first_failing_input_is_shown():
    def double(x):
        return 2 * x

    shown = SQUARE.grade(double)
    assert shown.startswith("not yet: think again. double(")
    call, _, rest = shown.partition("double(")[2].partition(")")
    assert rest == f" returns {2.0 * int(call)}, the library {float(int(call) ** 2)}."


def test_function_that_is_mostly_right_is_close():
    feedback = SQUARE.grade(lambda x: x * x if x != 4 else 0)
    assert feedback.startswith("close: right for ")
    assert f"of {TRIALS} random inputs" in feedback
    assert "(4) returns 0.0, the library 16.0." in feedback


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: 1 / 0, "raises ZeroDivisionError: division by zero."),
        (lambda: 1, "raises TypeError"),
        (lambda x: [x, x], "; wanted: two numbers."),
        (lambda x: "many", "returns 'many'; wanted: two numbers."),
    ],
)
def test_function_that_fails_gets_feedback(function, message):
    feedback = SQUARE.grade(function)
    assert feedback.startswith("not yet: think again. <lambda>(") and message in feedback


def test_function_cannot_change_the_inputs_of_the_reference():
    total = Function(
        **TEXTS, reference=lambda xs: sum(xs), draw=lambda rng: ([rng.random(), rng.random()],)
    )

    def emptying(xs):
        found = xs[0] + xs[1]
        xs.clear()
        return found

    assert total.grade(emptying) == "right: because."
