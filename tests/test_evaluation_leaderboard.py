"""The leaderboard of several sets of answers: numbers by hand, broken arguments, the command.

Run: python -m pytest tests/test_evaluation_leaderboard.py
"""

import json
from dataclasses import replace

import pytest

from drlib.cli import main
from drlib.config import ROOT
from drlib.evaluation.answer_files import Usage
from drlib.evaluation.leaderboard import build_leaderboard, render_leaderboard
from drlib.evaluation.measures import adjust_holm, compare, summarise
from drlib.rewards.judges import Verdict
from tests.test_evaluation_answer_files import judged, row, write

C, W, E = Verdict.CORRECT, Verdict.INCORRECT, Verdict.JUDGE_ERROR


def with_usage(answers, usage):
    rows = tuple(tuple(replace(row, usage=usage) for row in each) for each in answers.rows)
    return replace(answers, rows=rows)


def test_rows_by_hand():
    sets = {
        "base": judged([C, W, W, W] * 5, [C, W, W, W] * 5),
        "same": judged([C, W, W, W] * 5),
        "best": with_usage(judged([C, C, C, E] * 5, [C, C, W, C] * 5), Usage(3, {}, cost=0.5)),
        "worst": judged([W, W, W, W] * 5),
    }
    found = build_leaderboard(sets)
    assert found["base"] == "base" and found["k"] == 1  # "same" has one round
    assert [row["name"] for row in found["rows"]] == ["best", "base", "same", "worst"]
    best, base, same, worst = found["rows"]
    assert best["accuracy"] == summarise(sets["best"])["accuracy"]
    assert best["accuracy"][0] == pytest.approx((1 + 1 + 0.5 + 1) / 4)
    assert best["errors"] == 5 and best["rounds"] == 2 and best["questions"] == 20
    assert best["calls"] == 3 and best["cost"] == 0.5 and "seconds" not in best
    assert "calls" not in base and base["comparison"] is None
    alone = {name: compare(sets[name], sets["base"]) for name in ("same", "best", "worst")}
    adjusted = dict(zip(alone, adjust_holm([one["p"] for one in alone.values()])))
    for shown in (best, same, worst):
        expected = alone[shown["name"]] | {"p_holm": adjusted[shown["name"]]}
        assert shown["comparison"] == expected
    assert best["comparison"]["difference"][0] == pytest.approx(0.875 - 0.25)
    assert best["comparison"]["p_holm"] == pytest.approx(3 * alone["best"]["p"])
    assert same["comparison"]["p_holm"] == 1.0


def test_table_has_the_columns_that_are_known():
    two = judged([C, W, W], [W, C, E])
    cells = render_leaderboard(build_leaderboard({"a|b": two, "c": two})).splitlines()
    assert cells[0] == (
        "| answers | accuracy [95%] | pass@2 | not judged | points over a\\|b | p (Holm) "
        "| detectable |"
    )
    assert cells[2].startswith("| a\\|b | 33.3% [") and cells[2].endswith("| (base) | - | - |")
    assert " | 100.0% | 1 | +0.0 [+0.0, +0.0] | 1.0000 | 0.0 |" in cells[3]
    one = with_usage(judged([C, W]), Usage(2, {}, 10, 5, 0.25, 1.5))
    cells = render_leaderboard(build_leaderboard({"a": one, "b": judged([W, W])})).splitlines()
    assert " calls per answer | read tokens per answer | said tokens per answer |" in cells[0]
    assert "pass@" not in cells[0] and "not judged" not in cells[0]
    assert " | 2 | 10 | 5 | 0.25 | 1.5 | " in cells[2] and " | - | - | - | - | - | " in cells[3]


def test_other_questions_are_refused():
    with pytest.raises(ValueError, match="needs two sets"):
        build_leaderboard({"a": judged([C])})
    with pytest.raises(ValueError, match="c and a: .*different questions"):
        build_leaderboard({"a": judged([C, W]), "b": judged([C, W]), "c": judged([C, W, W])})


def test_command(tmp_path, capsys):
    questions = [f"Q{n}?" for n in range(12)]
    files = {
        name: write(tmp_path / f"{name}.jsonl", [row(q, "x", text, usage=use) for q in questions])
        for name, text, use in (("good", "x", {"cost": 2}), ("bad", "y", {"cost": 1}))
    }
    out = tmp_path / "board.json"
    bad = f"{files['bad']},{files['bad']}"
    arguments = ["evaluate", "leaderboard", f"weak={bad}", f"strong={files['good']}"]
    assert main([*arguments, "--out", str(out)]) == 0
    first, second = capsys.readouterr().out.splitlines()[2:]
    assert first.startswith("| strong | 100.0%") and "+100.0 [+100.0, +100.0]" in first
    assert second.startswith("| weak | 0.0%") and "(base)" in second
    report = json.loads(out.read_text())
    assert report["judge"] == "rules" and report["base"] == "weak"
    assert report["files"] == {"weak": ["bad.jsonl"] * 2, "strong": ["good.jsonl"]}
    assert [row["rounds"] for row in report["rows"]] == [1, 2]
    assert "Q1" not in out.read_text()


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["a"], "'a' must be NAME=FILE"),
        (["=x.jsonl"], "must be NAME=FILE"),
        (["a="], "must be NAME=FILE"),
        (["a=x.jsonl", "a=y.jsonl"], "'a' names two sets"),
        (["a=x.jsonl", "b=y.jsonl"], "x.jsonl"),
    ],
)
def test_command_errors(capsys, sets, message):
    assert main(["evaluate", "leaderboard", *sets]) == 1
    assert message in capsys.readouterr().err


def test_committed_leaderboard_is_the_one_of_the_page():
    path = ROOT / "figures" / "reference" / "evaluation" / "leaderboard.json"
    found = json.loads(path.read_text())
    assert render_leaderboard(found) in (ROOT / "docs" / "evaluation.md").read_text()
    assert [row["questions"] for row in found["rows"]] == [50] * 4
