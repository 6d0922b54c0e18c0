"""Grading of answers to exercises: numbers, a choice, or a function.

A grade is one text that begins with "right", "close", "not yet" or "no answer yet". The expected
answer is no secret, it is only not on the page. It is computed by the library where possible, so
that a change of the library changes the exercise too.
"""

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from drlib.registry import suggest_name

NEAR = 0.25  # relative difference that counts as close
TRIALS = 20  # random inputs of a function


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """Texts that all kinds of exercises share.

    Args:
        how: form of an answer ("three numbers, for example [0.1, 0.2, 0.3]").
        hint: shown after a wrong answer; it does not contain the answer.
        why: shown after the right answer.
    """

    how: str
    hint: str
    why: str

    def grade(self, answer: Any) -> str:
        """Return the feedback on an answer; None and `...` mean that there is none yet."""
        if answer is None or answer is ...:
            return f"no answer yet: give {self.how}, and run this cell again"
        return self._compare(answer)

    def _compare(self, answer: Any) -> str:
        raise TypeError("use Numbers, Choice or Function")

    def _right(self) -> str:
        return f"right: {self.why}"


@dataclass(frozen=True, kw_only=True)
class Numbers(Exercise):
    """Exercise whose answer is a number or an array.

    Args:
        expected: computes the right answer.
        tolerance: largest absolute difference of each number; 0 for counts.
    """

    expected: Callable[[], ArrayLike]
    tolerance: float = 0.005

    def _compare(self, answer: Any) -> str:
        expected = _array(self.expected())
        given = _array(answer)
        if given is None or given.shape != expected.shape or not np.isfinite(given).all():
            return f"not yet: give {self.how}, not {answer!r:.60}"
        error = given - expected
        wrong = np.abs(error) > self.tolerance
        if not wrong.any():
            return self._right()
        return _describe_error(given, expected, wrong) or f"not yet: {self.hint}"


@dataclass(frozen=True, kw_only=True)
class Choice(Exercise):
    """Exercise whose answer is the letter of an option.

    Args:
        right: name of the right option.
        wrong: explanation by name of each wrong option.
    """

    how: str = 'the letter of an option, for example "a"'
    right: str
    wrong: dict[str, str]

    def _compare(self, answer: Any) -> str:
        name = str(answer).strip().lower()
        if name == self.right:
            return self._right()
        if name in self.wrong:
            return f"not yet: {self.wrong[name]} {self.hint}"
        return (
            f"not yet: unknown option {answer!r}. {suggest_name(name, {self.right, *self.wrong})}"
        )


@dataclass(frozen=True, kw_only=True)
class Function(Exercise):
    """Exercise whose answer is a function, compared with a reference on 20 random inputs.

    A function that returns None counts as no answer.

    Args:
        reference: function with the right values, a number or an array.
        draw: makes the arguments of one call from a random number generator.
        tolerance: largest absolute difference.
    """

    reference: Callable[..., ArrayLike]
    draw: Callable[[random.Random], tuple]
    tolerance: float = 1e-4

    def grade(self, answer: Any) -> str:
        """Return the feedback on a function; its first failing input is part of it."""
        if callable(answer) and _call(answer, self.draw(random.Random(0)))[0] is None:
            answer = None
        return super().grade(answer)

    def _compare(self, answer: Any) -> str:
        if not callable(answer):
            return f"not yet: give {self.how}, not {answer!r:.60}"
        rng = random.Random(0)
        calls = [self.draw(rng) for _ in range(TRIALS)]
        failures = [text for text in (self._failure(answer, call) for call in calls) if text]
        if not failures:
            return self._right()
        passed = TRIALS - len(failures)
        if 2 * passed >= TRIALS:
            return f"close: right for {passed} of {TRIALS} random inputs. {failures[0]}"
        return f"not yet: {self.hint} {failures[0]}"

    def _failure(self, function: Callable, arguments: tuple) -> str:
        """Describe the wrong result of one call; empty if it is right."""
        result, error = _call(function, arguments)
        shown = ", ".join(map(repr, arguments))
        call = f"{getattr(function, '__name__', 'answer')}({shown})"
        if error:
            return f"{call} raises {error}."
        expected, given = _array(self.reference(*arguments)), _array(result)
        if given is None or given.shape != expected.shape:
            return f"{call} returns {result!r:.60}; wanted: {self.how}."
        if np.all(np.abs(given - expected) <= self.tolerance):
            return ""
        return f"{call} returns {_show(given)}, the library {_show(expected)}."


def _call(function: Callable, arguments: tuple) -> tuple[Any, str]:
    """Return (result, ""), or ("", error) if the call fails."""
    try:
        return function(*copy.deepcopy(arguments)), ""
    except Exception as error:  # noqa: BLE001 - the reader's function may raise anything
        return "", f"{type(error).__name__}: {error}"


def _array(values: Any) -> np.ndarray | None:
    """Return numbers as float64, also tensors with a gradient; None if they are no numbers."""
    try:
        return np.asarray(values.detach() if hasattr(values, "detach") else values, dtype=float)
    except (TypeError, ValueError, RuntimeError):
        return None


def _show(values: np.ndarray) -> str:
    """Return numbers with four digits after the point at most."""
    return str(np.round(values, 4).tolist())


def _describe_error(given: np.ndarray, expected: np.ndarray, wrong: np.ndarray) -> str:
    """Return "close: ..." with the difference, or an empty text if the answer is far away."""
    error = given - expected
    scale = np.abs(expected).max() or 1.0
    if np.allclose(given, -expected, atol=0.01 * scale):
        return "close: the sign is opposite."
    factor = _common_factor(given, expected)
    if factor:
        return f"close: every number is {factor:.3g} times the right one."
    if np.abs(error).max() <= NEAR * scale:
        worst = f"; number {np.abs(error).argmax() + 1} differs most" if error.size > 1 else ""
        return f"close: the difference is {error.flat[np.abs(error).argmax()]:+.3g}{worst}."
    if error.size > 1 and 2 * wrong.sum() <= error.size:
        at = int(wrong.argmax())
        right = f"{(~wrong).sum()} of {wrong.size} numbers are right"
        return f"close: {right}; number {at + 1} differs by {error.flat[at]:+.3g}."
    return ""


def _common_factor(given: np.ndarray, expected: np.ndarray) -> float:
    """Return c if given = c * expected for at least two non-zero numbers, else 0."""
    used = expected != 0
    if used.sum() < 2 or np.any(given[~used] != 0):
        return 0.0
    ratios = given[used] / expected[used]
    same = np.ptp(ratios) <= 0.02 * np.abs(ratios).max()
    return float(ratios.mean()) if same else 0.0
