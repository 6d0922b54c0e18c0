"""Scores of answer files: measures by hand, broken files, the command.

Run: python -m pytest tests/test_evaluation_answer_files.py
"""

import itertools
import json
import math

import numpy as np
import pytest

from drlib.cli import main
from drlib.evaluation.answer_files import (
    AnswerRow,
    JudgedAnswers,
    hash_question,
    judge_files,
    read_answers,
)
from drlib.evaluation.answer_report import render, to_json
from drlib.evaluation.measures import bootstrap_interval, compare, pass_at_k, summarise
from drlib.rewards.judges import JUDGES, Judgement, Verdict

C, W, N, E = Verdict.CORRECT, Verdict.INCORRECT, Verdict.NOT_ATTEMPTED, Verdict.JUDGE_ERROR


def judged(*rounds, predictions=None):
    """Return the answers of some rounds, given as verdicts."""
    keys = tuple(f"q{i}" for i in range(len(rounds[0])))
    judgements = tuple(tuple(Judgement(v, "", float(v is C)) for v in each) for each in rounds)
    texts = predictions or tuple(tuple(str(v) for v in each) for each in rounds)
    return JudgedAnswers(keys, judgements, answer_rows(keys, texts))


def answer_rows(keys, texts):
    return tuple(tuple(AnswerRow(k, k, ("x",), text) for k, text in zip(keys, t)) for t in texts)


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def row(question, answer, prediction, **more):
    return {"question": question, "answer": answer, "prediction": prediction, **more}


# ---------------------------------------------------------------- measures


@pytest.mark.parametrize("n", [1, 2, 5, 6])
def test_pass_at_k_is_the_share_of_subsets(n):
    for correct, k in itertools.product(range(n + 1), range(1, n + 1)):
        marks = [1] * correct + [0] * (n - correct)
        subsets = list(itertools.combinations(marks, k))
        expected = sum(map(any, subsets)) / len(subsets)
        assert pass_at_k(correct, n, k) == pytest.approx(expected)
    with pytest.raises(ValueError, match="need k <= n"):
        pass_at_k(0, 2, 3)


def test_measures_by_hand():
    found = summarise(judged([C, W, N, C], [C, W, W, W], [C, C, W, W]))
    assert found["accuracy"][0] == pytest.approx(5 / 12)  # not pass@3, which is 3/4
    assert found["by_round"] == [0.5, 0.25, 0.5]
    # q0: 1; q1, q3: 1 of 3, so 1 - C(2, 2)/C(3, 2) = 2/3; q2: 0
    assert found["pass@2"]["value"] == pytest.approx((1 + 2 / 3 + 0 + 2 / 3) / 4)
    assert found["pass@3"] == {"value": 0.75, "questions": 4}
    assert found["verdicts"] == {
        "correct": 5,
        "incorrect": 6,
        "not_attempted": 1,
        "judge_error": 0,
    }
    assert found["given_attempted"] == pytest.approx(5 / 11)
    p, a = 5 / 11, 5 / 12
    assert found["f1"] == pytest.approx(2 * p * a / (p + a))
    assert found["score"] == pytest.approx(5 / 12)
    assert found["tongyi"] == {
        "Avg. Pass@k": pytest.approx(5 / 12),
        "Best Pass@1": 0.5,
        "Pass@k": 0.75,
    }


def test_errors_are_excluded_and_bounded():
    found = summarise(judged([C, E, W, E], [C, C, E, E]))
    # q0 2/2, q1 1/1, q2 0/1, q3 nothing
    assert found["accuracy"][0] == pytest.approx(2 / 3)
    assert found["bounds"] == (3 / 8, 7 / 8)
    assert found["pass@2"] == {"value": 1.0, "questions": 1}
    assert found["by_round"] == [0.5, 1.0]
    assert found["tongyi"]["Avg. Pass@k"] == pytest.approx(3 / 8)
    assert "accuracy with errors wrong, or right | 37.5%, 87.5%" in render(found)
    with pytest.raises(ValueError, match="none of 2 answers could be judged"):
        summarise(judged([E, E]))


def test_majority_counts_answers_not_verdicts():
    predictions = (("a", "x", None), ("b", "y", None), ("B", "z", "w"))
    found = summarise(judged([C, C, N], [W, W, N], [W, W, W], predictions=predictions))
    # q0: b wins with two votes; q1: a tie, the first answer; q2: the only answer
    assert found["majority"] == pytest.approx(1 / 3)


def test_bootstrap_covers_the_mean():
    draws, covered = np.random.default_rng(0), 0
    for seed in range(60):
        values = (draws.random(80) < 0.3).astype(float)
        mean, low, high = bootstrap_interval(values, seed)
        assert low <= mean <= high and mean == values.mean()
        covered += low <= 0.3 <= high
        half = 1.96 * math.sqrt(mean * (1 - mean) / 80)
        assert (high - low) / 2 == pytest.approx(half, rel=0.15)
    assert covered >= 53  # of 60, at a nominal 95%


def test_comparison_by_hand():
    ours, theirs = judged([C, C, C, W], [C, C, W, W]), judged([C, W, W, W], [C, W, W, W])
    found = compare(ours, theirs)
    # differences: 0, 1, 0.5, 0
    assert found["difference"][0] == pytest.approx(0.375) and found["questions"] == 4
    # of 16 sign patterns, those with |0 +- 1 +- 0.5 + 0| = 1.5: half of them
    assert found["p"] == pytest.approx(0.5, abs=0.02)
    deviation = np.std([0, 1, 0.5, 0], ddof=1)
    assert found["detectable"] == pytest.approx(2.8016 * deviation / 2)
    mirrored = compare(theirs, ours)
    assert mirrored["difference"][0] == pytest.approx(-0.375)
    assert mirrored["p"] == found["p"]
    assert compare(ours, ours)["p"] == 1.0


def test_comparison_pairs_by_question_and_leaves_errors_out():
    ours = judged([C, W, C])
    keys = ("q2", "q1", "q0")
    verdicts = (tuple(Judgement(v) for v in (E, W, C)),)
    theirs = JudgedAnswers(keys, verdicts, answer_rows(keys, ((None,) * 3,)))
    found = compare(ours, theirs)  # q0: 1 - 1, q1: 0 - 0, q2: not judged
    assert found["difference"] == (0, 0, 0) and found["questions"] == 2
    assert found["detectable"] == 0
    with pytest.raises(ValueError, match="different questions"):
        compare(ours, judged([C, W]))
    with pytest.raises(ValueError, match="only 0 questions"):
        compare(ours, judged([E, E, E]))


def test_permutation_test_keeps_its_level():
    """Two equally good sets differ at 5% in about 5% of the comparisons."""
    draws, rejected = np.random.default_rng(1), 0
    for seed in range(200):
        sets = [judged(*(np.where(draws.random((1, 40)) < 0.5, C, W).tolist())) for _ in "ab"]
        rejected += compare(*sets, seed)["p"] <= 0.05
    assert 2 <= rejected <= 20


# ---------------------------------------------------------------- files


def test_rounds_are_aligned_by_question(tmp_path):
    one = write(tmp_path / "iter1.jsonl", [row("A?", "1", "1"), row("B?", ["x", "y"], "y")])
    two = write(tmp_path / "iter2.jsonl", [row("B?", ["x", "y"], None), row("A?", "1", "2")])
    found = judge_files([one, two], JUDGES["rules"]())
    assert [[j.verdict for j in each] for each in found.judgements] == [[C, C], [W, N]]
    assert found.keys == (hash_question("A?"), hash_question("B?"))


def test_failed_runs_are_no_wrong_answers(tmp_path):
    rows = [
        row("A?", "1", "1"),
        row("B?", "1", "[Failed]"),
        {"question": "C?", "answer": "1", "error": "no server"},
    ]
    found = judge_files([write(tmp_path / "a.jsonl", rows)], JUDGES["rules"]())
    assert [j.verdict for j in found.judgements[0]] == [C, E, E]
    assert found.judgements[0][2].reason == "no server"


def test_field_names_in_any_case_and_numbers(tmp_path):
    rows = [{"Question": "A?", "Answer": 12, "Prediction": 12.0, "ID": 7, "aliases": ["x"]}]
    path = tmp_path / "a.jsonl"
    path.write_text("\ufeff" + json.dumps(rows[0]) + "\n", encoding="utf-8")
    (found,) = read_answers(path)
    assert (found.key, found.golds, found.prediction) == ("7", ("12", "x"), "12.0")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"question": "A?", "answer": "1"}', "line 2 lacks 'prediction'"),
        ('{"question": "A?", "prediction": "1"}', "line 2 lacks 'answer'"),
        ('{"question": " ", "answer": "1", "prediction": "1"}', "line 2 lacks 'question'"),
        ('{"question": "A?", "answer": "", "prediction": "1"}', "line 2 has an empty answer"),
        ('{"question": "A?", "answer": [], "prediction": "1"}', "line 2 has an empty answer"),
        ('{"question": "A?", "answer": "1", "prediction": ["1"]}', "prediction must be a text"),
        ('{"question": "First?", "answer": "1", "prediction": "1"}', "line 2 repeats the question"),
        ("[1]", "line 2 is no JSON object"),
        ('{"question": "A?", "ans', "line 2 is not valid JSON"),
    ],
)
def test_broken_rows_are_named(tmp_path, line, message):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(row("First?", "1", "1")) + "\n" + line + "\n")
    with pytest.raises(ValueError, match=message):
        read_answers(path)


def test_other_questions_or_answers_are_refused(tmp_path):
    one = write(tmp_path / "1.jsonl", [row("A?", "1", "1")])
    other = write(tmp_path / "2.jsonl", [row("B?", "1", "1")])
    changed = write(tmp_path / "3.jsonl", [row("A?", "2", "1")])
    with pytest.raises(ValueError, match="asks other questions"):
        judge_files([one, other], JUDGES["rules"]())
    with pytest.raises(ValueError, match="differs from that in"):
        judge_files([one, changed], JUDGES["rules"]())
    (tmp_path / "4.jsonl").write_text("")
    with pytest.raises(ValueError, match="has no rows"):
        judge_files([tmp_path / "4.jsonl"], JUDGES["rules"]())


def test_the_report_contains_no_texts(tmp_path):
    path = write(tmp_path / "a.jsonl", [row("Secret question?", "Zanzibar", "Zanzibar")])
    text = to_json(judge_files([path], JUDGES["rules"]()), [path], "rules")
    assert "Secret" not in text and "Zanzibar" not in text
    data = json.loads(text)
    assert data["rows"] == [
        {"question": hash_question("Secret question?"), "verdicts": ["correct"], "scores": [1.0]}
    ]


# ---------------------------------------------------------------- the command


def test_command(tmp_path, capsys):
    files = [
        write(tmp_path / f"iter{i}.jsonl", [row("A?", "1", "1"), row("B?", "x", answer)])
        for i, answer in enumerate(("x", "y", "[Failed]"), 1)
    ]
    out = tmp_path / "report.json"
    assert main(["evaluate", "answers", *map(str, files), "--out", str(out)]) == 0
    shown = capsys.readouterr()
    assert "| questions x rounds | 2 x 3 |" in shown.out
    assert "not judged: the run failed" in shown.err
    measures = json.loads(out.read_text())["measures"]
    assert measures["accuracy"][0] == pytest.approx(0.75)  # (3/3 + 1/2) / 2
    assert measures["tongyi"]["Avg. Pass@k"] == pytest.approx((1 + 0.5 + 0.5) / 3)


def test_command_compares(tmp_path, capsys):
    questions = [f"Q{n}?" for n in range(12)]
    good = write(tmp_path / "good.jsonl", [row(q, "x", "x") for q in questions])
    bad = write(tmp_path / "bad.jsonl", [row(q, "x", "y") for q in questions])
    assert main(["evaluate", "answers", str(good), "--against", str(bad)]) == 0
    shown = capsys.readouterr().out
    assert "| difference in accuracy, points | +100.0 [+100.0, +100.0] |" in shown
    assert "| questions | 12 |" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--judge", "ruls"], "unknown judge 'ruls'"),
        (["--judge", "llm"], "needs a server"),
    ],
)
def test_command_errors(tmp_path, capsys, arguments, message):
    path = write(tmp_path / "a.jsonl", [row("A?", "1", "1")])
    assert main(["evaluate", "answers", str(path), *arguments]) == 1
    assert message in capsys.readouterr().err


def test_command_names_a_missing_file(tmp_path, capsys):
    assert main(["evaluate", "answers", str(tmp_path / "none.jsonl")]) == 1
    assert "none.jsonl" in capsys.readouterr().err
