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
    "two_answers_aged": [1 / 1.36, 1 / 1.36**4],
    "clip_factor": lambda r, a, low, high: 0 if (r > high if a > 0 else r < low) else r * a,
    "k1_as_a_loss": "b",
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
    "two_answers_aged": [[1.36, 1.36**4], [0.735, 0.735]],
    "clip_factor": [
        lambda r, a, low, high: r * a if low <= r <= high else 0,
        lambda r, a, low, high: min(max(r, low), high) * a,
        lambda r, a, low, high: 0 if r > high else r * a,
    ],
}


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
    """Return (exercise, text of the cell before, stored output) of each check in a notebook."""
    cells = nbformat.read(path, 4).cells
    for before, cell in zip(cells, cells[1:]):
        for name in re.findall(r'notebook\.check\(\s*"(\w+)"', cell.source):
            stored = "".join(output.get("text", "") for output in cell.outputs)
            yield name, before.source, stored


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
