"""Calibration of judges: rates by hand, coverage of the corrected interval.

Run: python -m pytest tests/test_evaluation_calibration.py
"""

import json
from collections import Counter

import numpy as np
import pytest

from drlib.cli import main
from drlib.evaluation.calibration import (
    RIGHT,
    WRONG,
    Calibration,
    build_calibration_set,
    calibrate,
    correct_accuracy,
)
from drlib.rewards.judges import JUDGES, Judgement, Verdict
from drlib.task import Task, is_correct


def task(name, answer, **more):
    return Task(name, f"What is {name}?", answer, "search", "v", **more)


TASKS = [task("a", "Oslo"), task("b", "Bergen", aliases=("Bjørgvin",)), task("c", "1931")]


def test_answers_have_their_labels():
    answers = build_calibration_set(TASKS)
    assert Counter(one.label for one in answers) == {True: 15, False: 18}
    assert {one.kind for one in answers} == RIGHT.keys() | WRONG.keys()
    by_question = {t.question: t for t in TASKS}
    for one in answers:
        about = by_question[one.question]
        assert one.golds == (about.answer, *about.aliases)
        if one.kind == "verbatim":
            assert is_correct(one.prediction, about)
        if not one.label:
            assert not is_correct(one.prediction, about)
    assert answers == build_calibration_set(TASKS)
    with pytest.raises(ValueError, match="two different answers"):
        build_calibration_set(TASKS[:1])


def test_rates_by_hand():
    def judge(question, prediction, golds):
        if "verdict" in prediction:
            return Judgement(Verdict.JUDGE_ERROR)
        return Judgement(Verdict.CORRECT if golds[0] in prediction else Verdict.INCORRECT)

    found = calibrate(judge, "contains", build_calibration_set(TASKS))
    # "case and stop" is missed but for the number; negation and two answers are accepted, and so is
    # "corrected", which names the correct answer first
    assert (found.accepted, found.right) == (13, 15)
    assert (found.rejected, found.wrong, found.errors) == (6, 15, 3)
    assert found.by_kind["case and stop"] == [1, 3, 1] and found.by_kind["negation"] == [0, 3, 0]
    assert (found.sensitivity, found.specificity) == (13 / 15, 6 / 15)


def test_correction_by_hand():
    judge = Calibration("x", 90, 100, 80, 100, 0, {})
    # q = 0.34 = 0.2 * 0.9 + 0.8 * 0.2
    estimate, low, high = correct_accuracy(340, 1000, judge)
    assert estimate == pytest.approx(0.2) and low < 0.2 < high
    assert correct_accuracy(100, 1000, judge)[0] == 0.0  # below the false positives
    assert correct_accuracy(950, 1000, judge)[0] == 1.0
    with pytest.raises(ValueError, match="no better than chance"):
        correct_accuracy(1, 2, Calibration("x", 50, 100, 50, 100, 0, {}))
    with pytest.raises(ValueError, match="no answers"):
        correct_accuracy(0, 0, judge)


@pytest.mark.parametrize("accuracy", [0.05, 0.4, 0.9])
@pytest.mark.parametrize(("sensitivity", "specificity"), [(0.9, 0.95), (0.75, 0.85), (0.98, 0.99)])
def test_the_corrected_interval_covers_the_accuracy(accuracy, sensitivity, specificity):
    draws, covered = np.random.default_rng(0), 0
    for _ in range(1000):
        n, rights, wrongs = 300, 150, 150
        true = draws.binomial(n, accuracy)
        judged = draws.binomial(true, sensitivity) + draws.binomial(n - true, 1 - specificity)
        calibration = Calibration(
            "x",
            draws.binomial(rights, sensitivity),
            rights,
            draws.binomial(wrongs, specificity),
            wrongs,
            0,
            {},
        )
        _, low, high = correct_accuracy(judged, n, calibration)
        covered += low <= accuracy <= high
    assert covered >= 930


def test_saved_and_loaded(tmp_path):
    found = calibrate(JUDGES["rules"](), "rules", build_calibration_set(TASKS))
    found.save(tmp_path / "c.json")
    assert Calibration.load(tmp_path / "c.json") == found
    (tmp_path / "other.json").write_text('{"a": 1}')
    with pytest.raises(ValueError, match="is no calibration"):
        Calibration.load(tmp_path / "other.json")


def test_commands(tmp_path, capsys):
    out = tmp_path / "rules.json"
    world = "folder:notebooks/tern"
    command = ["evaluate", "judge", "--judge", "rules", "--world", world, "-n", "20"]
    assert main([*command, "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "| wrong: near miss | 20 of 20 | 100.0%" in shown
    assert "| right: sentence | 0 of 20 | 0.0%" in shown
    row = {"question": "A?", "answer": "1", "prediction": "1"}
    answers = tmp_path / "a.jsonl"
    answers.write_text(json.dumps(row) + "\n")
    assert main(["evaluate", "answers", str(answers), "--calibration", str(out)]) == 0
    once = capsys.readouterr().out.splitlines()[-1]
    assert once.startswith("| accuracy, corrected for the judge's errors | 100.0% [")
    # three rounds of one question are no three questions
    rounds = [str(answers)] * 3
    assert main(["evaluate", "answers", *rounds, "--calibration", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == once
    assert main(["evaluate", "answers", str(answers), "--judge", "gaia", "--calibration", str(out)])
    assert "is of the judge rules" in capsys.readouterr().err
