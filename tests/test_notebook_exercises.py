"""Exercises of the committed notebooks: right answers, usual mistakes, and where they are asked.

Run: python -m pytest tests/test_notebook_exercises.py
"""

import math
import re
from collections import Counter

import nbformat
import numpy as np
import pytest

from drlib import notebook
from drlib.notebook.execution import find
from drlib.notebook.exercises import EXERCISES
from drlib.notebook.grading import Choice

RIGHT = {  # by hand
    "two_winners": [-1 / 3, 1 / 6, 1 / 6],
    "naive_slope": lambda ratio, advantage, p: ratio * advantage * (1 + math.log(p)),
    "hidden_failure": "b",
    "long_losers": [(7 * 60 / 7 - 30) / 450, 0],
    "teaching_chance": lambda p, group: 1 - p**group - (1 - p) ** group,
    "paid_pages": "b",
    "sequence_weights": [2, 0, 0, 1],
    "geometric_mask": lambda rho, low, high: (
        [low <= np.prod(rho) ** (1 / len(rho)) <= high] * len(rho)
    ),
    "blind_rule": "c",
    "enough_engines": 5,
    "may_start": lambda places, lag, version, batch, done, running: max(
        0, min(places - running, (lag + version + 1) * batch - done - running)
    ),
    "dropped_groups": "a",
    "eleven_and_nine": [25, 0],
    "best_baseline": lambda chances, rewards: best_baseline(chances, rewards),
    "forgotten_mask": "c",
    "replayed_gates": [2 / 3, 1 / 3],
    "same_experts": lambda first, second: np.mean(
        [set(a) == set(b) for a, b in zip(first, second) if -1 not in (a[0], b[0])]
    ),
    "which_replay": "b",
    "two_answers_aged": [1 / 1.36, 1 / 1.36**4],
    "clip_factor": lambda r, a, low, high: 0 if (r > high if a > 0 else r < low) else r * a,
    "k1_as_a_loss": "b",
    "graded_advantage": 2 / 15,
    "supported_reward": lambda answer, correct, responses: (
        (answer.lower() == correct.lower())
        * (1.0 if answer.lower() in " ".join(responses).lower() else 0.5)
    ),
    "rising_threshold": "c",
    "forward_step": [-3 / 8, 1 / 2, -1 / 8],
    "reverse_step": lambda p, teacher: reverse_step(p, teacher),
    "mean_with_a_twin": "b",
    "two_of_five": [0.7, 0.1, 0.7],
    "subsets_with_success": lambda c, n, k: 1 - math.comb(n - c, k) / math.comb(n, k),
    "rounds_or_questions": "a",
    "equal_shares": [0.3072, 0.1106, 0.5821],
    "mixture_shares": lambda rates, weights: shares(
        [w * p * (1 - p) for p, w in zip(rates, weights)]
    ),
    "partial_credit": "a",
}
MISTAKES = {
    "two_winners": [[2 / 3, -1 / 3, -1 / 3], [1 / 3, -1 / 6, -1 / 6], [-0.25, 0.125, 0.125]],
    "naive_slope": [lambda r, a, p: r * a, lambda r, a, p: r * a * math.log(p)],
    "long_losers": [[-30 / 450, 0], [0, 30 / 450]],
    "teaching_chance": [lambda p, g: 1 - p**g, lambda p, g: 1 - (1 - p) ** g],
    "sequence_weights": [[1.008, 1.008, 1.008, 1], [2.22, 0, 0, 1]],
    "geometric_mask": [
        lambda rho, low, high: [float(low <= np.mean(rho) <= high)] * len(rho),
        lambda rho, low, high: [float(low <= r <= high) for r in rho],
        lambda rho, low, high: [float(low <= np.prod(rho) <= high)] * len(rho),
    ],
    "enough_engines": [6, 4],
    "may_start": [
        lambda c, lag, v, b, done, running: max(0, (lag + v + 1) * b - done - running),
        lambda c, lag, v, b, done, running: max(
            0, min(c - running, (lag + v) * b - done - running)
        ),
        lambda c, lag, v, b, done, running: min(c - running, (lag + v + 1) * b - done - running),
    ],
    "eleven_and_nine": [[25, 25], [1, 0], [5, 0]],
    "best_baseline": [np.dot, lambda chances, rewards: np.mean(rewards)],
    "replayed_gates": [[4 / 7, 3 / 7], [0.4, 0.2]],
    "same_experts": [
        lambda first, second: np.mean([a == b for a, b in zip(first, second)]),
        lambda first, second: np.mean([set(a) == set(b) for a, b in zip(first, second)]),
        lambda first, second: np.mean(
            [a[0] == b[0] for a, b in zip(first, second) if -1 not in (a[0], b[0])]
        ),
    ],
    "two_answers_aged": [[1.36, 1.36**4], [0.735, 0.735]],
    "clip_factor": [
        lambda r, a, low, high: r * a if low <= r <= high else 0,
        lambda r, a, low, high: min(max(r, low), high) * a,
        lambda r, a, low, high: 0 if r > high else r * a,
    ],
    "graded_advantage": [0.3, 4 / 5 - 2.8 / 4, -2 / 15],
    "supported_reward": [
        lambda answer, correct, responses: float(answer == correct),
        lambda answer, correct, responses: 1.0 if answer in " ".join(responses) else 0.5,
        lambda answer, correct, responses: (
            (answer.lower() == correct.lower()) * (1.0 if responses else 0.5)
        ),
    ],
    "forward_step": [[3 / 8, -1 / 2, 1 / 8], [-0.397, 0.423, -0.025]],
    "reverse_step": [
        lambda p, teacher: [t - q for q, t in zip(p, teacher)],
        lambda p, teacher: [q * math.log(t / q) for q, t in zip(p, teacher)],
        lambda p, teacher: [-x for x in reverse_step(p, teacher)],
    ],
    "two_of_five": [[0.7, 0.1, 0.4], [0.64, 0.16, 0.7]],
    "subsets_with_success": [
        lambda c, n, k: 1 - (1 - c / n) ** k,
        lambda c, n, k: math.comb(c, k) / math.comb(n, k),
    ],
    "equal_shares": [[1 / 3, 1 / 3, 1 / 3], [0.2326, 0.6460, 0.1214]],
    "mixture_shares": [
        lambda rates, weights: shares([p * (1 - p) for p in rates]),
        lambda rates, weights: shares([w * p for p, w in zip(rates, weights)]),
        lambda rates, weights: [w * p * (1 - p) for p, w in zip(rates, weights)],
    ],
}


def shares(values):
    return [value / sum(values) for value in values]


def reverse_step(student, teacher):
    """p (A - mean of A), equation (2) of notebook 11."""
    advantages = [math.log(t / q) for q, t in zip(student, teacher)]
    mean = sum(q * a for q, a in zip(student, advantages))
    return [q * (a - mean) for q, a in zip(student, advantages)]


def best_baseline(chances, rewards):
    """Equation (4) of notebook 20, one sum per answer."""
    squares = [
        sum((float(k == j) - p) ** 2 for j, p in enumerate(chances)) for k in range(len(chances))
    ]
    weights = [p * s for p, s in zip(chances, squares)]
    return sum(w * r for w, r in zip(weights, rewards)) / sum(weights)


@pytest.mark.parametrize("name", sorted(EXERCISES))
def test_answers_by_hand_are_right(name):
    assert EXERCISES[name].grade(RIGHT[name]).startswith("right: ")


@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        pytest.param(name, mistake, id=f"{name}-{at}")
        for name, many in MISTAKES.items()
        for at, mistake in enumerate(many)
    ],
)
def test_usual_mistakes_are_not_right(name, mistake):
    assert EXERCISES[name].grade(mistake).startswith(("close: ", "not yet: "))


@pytest.mark.parametrize("name", [n for n, e in EXERCISES.items() if isinstance(e, Choice)])
def test_every_wrong_option_has_an_explanation(name):
    exercise = EXERCISES[name]
    assert exercise.right not in exercise.wrong
    for option in exercise.wrong:
        assert exercise.grade(option).startswith(f"not yet: {exercise.wrong[option]}")


def asked(path):
    """Yield (exercise, text above it, stored output) of each check in a notebook."""
    text = ""
    for cell in nbformat.read(path, 4).cells:
        text = cell.source if cell.cell_type == "markdown" else text
        for name in re.findall(r'notebook\.check\(\s*"(\w+)"', cell.source):
            yield name, text, "".join(output.get("text", "") for output in cell.outputs)


PAGES = {path.stem: list(asked(path)) for path in find(None)}


def test_every_exercise_is_asked_once():
    assert Counter(name for page in PAGES.values() for name, _, _ in page) == Counter([*EXERCISES])


@pytest.mark.parametrize("stem", [stem for stem, page in PAGES.items() if page])
def test_notebook_and_solution_agree(stem):
    """The page is unanswered and lists the options; its solution passes every check."""
    page, solved = PAGES[stem], list(asked(find(stem)[0].parent / "solutions" / f"{stem}.ipynb"))
    assert [name for name, _, _ in page] == [name for name, _, _ in solved]
    for name, question, stored in page:
        assert stored.startswith("no answer yet: "), name
        if isinstance(EXERCISES[name], Choice):
            options = {EXERCISES[name].right, *EXERCISES[name].wrong}
            assert set(re.findall(r"^- (\w):", question, re.M)) == options
    for name, _, stored in solved:
        assert re.search("^right: ", stored, re.M), name


def test_check_prints_short_lines(capsys):
    notebook.check("enough_engines", 5)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("right: ") and max(map(len, lines)) <= 96


def test_unknown_exercise_is_named():
    with pytest.raises(ValueError, match="unknown exercise 'two_winer': did you mean 'two_winn"):
        notebook.check("two_winer", 1)
