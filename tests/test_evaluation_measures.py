"""Measures of judged answers: calibration, resources, budgets, citations, by hand and brute force.

Run: python -m pytest tests/test_evaluation_measures.py
"""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from drlib.agents.webweaver import Bank, assemble_report
from drlib.cli import main
from drlib.evaluation.answer_files import AnswerRow, JudgedAnswers, Usage, judge_files, read_answers
from drlib.evaluation.answer_report import render
from drlib.evaluation.benchmarks import BenchmarkItem
from drlib.evaluation.measures import (
    accuracy_under_budget,
    adjust_holm,
    calibration_errors,
    pass_hat_k,
    score_citations,
    sum_usage,
    summarise,
)
from drlib.rewards.judges import JUDGES, Judgement, Verdict
from drlib.tools.toolbox import ShownPage
from tests.test_evaluation_answer_files import row, write

C, W, N, E = Verdict.CORRECT, Verdict.INCORRECT, Verdict.NOT_ATTEMPTED, Verdict.JUDGE_ERROR


def answers(verdicts, **columns):
    """Return one round of answers with columns of further fields of their rows."""
    rows = [AnswerRow(f"q{i}", f"Q{i}?", ("x",), "x") for i in range(len(verdicts))]
    for name, values in columns.items():
        rows = [replace(row, **{name: value}) for row, value in zip(rows, values, strict=True)]
    keys = tuple(row.key for row in rows)
    return JudgedAnswers(keys, (tuple(map(Judgement, verdicts)),), (tuple(rows),))


# ---------------------------------------------------------------- pass^k


@pytest.mark.parametrize("n", [1, 2, 5, 6])
def test_pass_hat_k_is_the_share_of_subsets(n):
    for correct, k in itertools.product(range(n + 1), range(1, n + 1)):
        marks = [1] * correct + [0] * (n - correct)
        subsets = list(itertools.combinations(marks, k))
        expected = sum(map(all, subsets)) / len(subsets)
        assert pass_hat_k(correct, n, k) == pytest.approx(expected)
    with pytest.raises(ValueError, match="need k <= n"):
        pass_hat_k(0, 2, 3)


def test_summary_has_pass_hat_k_over_questions_with_k_answers():
    one, two = answers([C, W, C, C]), answers([C, C, E, W])
    both = JudgedAnswers(one.keys, one.judgements + two.judgements, one.rows + two.rows)
    found = summarise(both)
    assert found["pass^1"] == {"value": pytest.approx((1 + 0.5 + 1 + 0.5) / 4), "questions": 4}
    assert found["pass^2"] == {"value": pytest.approx(1 / 3), "questions": 3}
    assert "| pass^2: all of 2 correct | 33.3% |" in render(found)


# ---------------------------------------------------------------- calibration


def published_errors(confidences, rights):
    """Return both errors as published, in loops; HLE's with its last bin."""
    pairs = sorted(zip(confidences, rights), key=lambda pair: pair[0])
    count = max(len(pairs) // 100, 1)
    bins = [pairs[i * 100 : (i + 1) * 100] for i in range(count)]
    bins[-1] = pairs[(count - 1) * 100 :]
    square = 0.0
    for some in bins:
        gap = sum(c for c, _ in some) / len(some) - sum(r for _, r in some) / len(some)
        square += len(some) / len(pairs) * gap**2
    error = 0.0
    for low in range(0, 100, 20):
        high = 101 if low == 80 else low + 20
        some = [(c, r) for c, r in pairs if low <= round(100 * c) < high]
        if some:
            gap = sum(c for c, _ in some) / len(some) - sum(r for _, r in some) / len(some)
            error += len(some) / len(pairs) * abs(gap)
    return math.sqrt(square), error


@pytest.mark.parametrize("n", [1, 7, 99, 100, 150, 199, 200, 250, 301])
def test_calibration_errors_are_the_published_ones(n):
    draws = np.random.default_rng(n)
    confidences = (draws.permutation(np.arange(n)) % 101 / 100).tolist()
    rights = draws.random(n) < 0.3
    judged = answers([C if right else W for right in rights], confidence=confidences)
    found = calibration_errors(judged)
    # answers of equal confidence are in the order of the file, in both
    rms, ece = published_errors(confidences, rights)
    assert found["rms"] == pytest.approx(rms) and found["ece"] == pytest.approx(ece)
    assert (found["stated"], found["unstated"]) == (n, 0)


def test_calibration_by_hand():
    judged = answers(
        [C, W, N, C, E, W], confidence=[0.9, 0.8, 0.6, None, 0.1, None]
    )  # 0.6 is in the fourth bin; the unjudged answer does not count
    found = calibration_errors(judged)
    assert found["ece"] == pytest.approx((2 * abs(0.85 - 0.5) + 0.6) / 3)
    assert found["rms"] == pytest.approx(abs((0.9 + 0.8 + 0.6) / 3 - 1 / 3))
    assert (found["stated"], found["unstated"]) == (3, 2)
    shown = render(summarise(judged))
    assert f"{found['rms']:.1%}; {found['ece']:.1%} (2 answers without confidence)" in shown
    assert calibration_errors(answers([C, W])) is None
    # 0.6 / 0.2 is less than 3 as floats; 100% is in the last bin
    edges = answers([C, W, W, C], confidence=[0.5, 0.6, 0.8, 1.0])
    assert calibration_errors(edges)["ece"] == pytest.approx((0.5 + 0.6 + 2 * 0.4) / 4)


@pytest.mark.parametrize(
    ("confidence", "prediction", "expected"),
    [
        (87, "x", 0.87),
        ("87%", "x", 0.87),
        ("87", "x", 0.87),
        ("Confidence: 87%", "x", 0.87),
        ("0.5%", "x", 0.005),
        (0, "x", 0.0),
        (100.0, "x", 1.0),
        (1, "x", 0.01),
        ("high", "x", None),
        (None, "x", None),
        (None, "Answer: x\nConfidence: 12%", 0.12),
        (None, "**Confidence:** 45.5 %", 0.455),
        (None, "confidence：30％", 0.3),
        (None, "Confidence: 10%, no. Confidence: 70%", 0.7),
        (None, "Confidence: 150%", None),
        (None, "My confidence rose by 20%", None),
        (55, "Confidence: 12%", 0.55),
    ],
)
def test_stated_confidence(tmp_path, confidence, prediction, expected):
    rows = [row("A?", "x", prediction, confidence=confidence)]
    (found,) = read_answers(write(tmp_path / "a.jsonl", rows))
    assert found.confidence == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize("confidence", [0.87, 101, "150%", "0.3", True, "-5%", -5, 1e-9, [90]])
def test_confidence_that_is_no_percent_is_refused(tmp_path, confidence):
    path = write(tmp_path / "a.jsonl", [row("A?", "x", "x", confidence=confidence)])
    with pytest.raises(ValueError, match="line 1: confidence is .*give percent"):
        read_answers(path)


# ---------------------------------------------------------------- resources


def test_parts_of_a_score_are_means_over_the_judged_answers():
    judged = answers([C, W, N, E])
    parts = [{"row F1": 1.0}, {"row F1": 0.5, "item F1": 0.75}, {}, {"row F1": 0.9}]
    some = tuple(
        replace(one, parts=part) for one, part in zip(judged.judgements[0], parts, strict=True)
    )
    measures = summarise(replace(judged, judgements=(some,)))
    assert measures["parts"] == pytest.approx({"row F1": 1.5 / 3, "item F1": 0.75 / 3})
    assert summarise(judged)["parts"] == {}
    assert "| mean row F1 | 0.500 |" in render(measures)


def test_usage_by_hand():
    rows = [
        AnswerRow("a", "", (), "", usage=Usage(2, {"search": 2}, 10, 5, 0.5, 1.0), termination="x"),
        AnswerRow("b", "", (), "", usage=Usage(1, {"visit": 1}, 30, None, 0.25, 2.0)),
        AnswerRow("c", "", (), "", "failed", usage=Usage(), termination="x"),
    ]
    found = sum_usage(rows)
    assert found["calls"] == {"sum": 3, "mean": 1.5, "answers": 2}
    assert found["read_tokens"] == {"sum": 40, "mean": 20, "answers": 2}
    assert found["said_tokens"] == {"sum": 5, "mean": 5, "answers": 1}
    assert found["cost"]["sum"] == 0.75 and found["seconds"]["mean"] == 1.5
    assert found["tools"] == {"search": 2, "visit": 1} and found["terminations"] == {"x": 2}
    assert sum_usage(rows[2:]) == {"tools": {}, "terminations": {"x": 1}}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def call(name):
    return f'<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>'


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([{"role": "user", "content": call("search")}, assistant("<answer>x</answer>")], {}),
        ([assistant(f"<think>t</think>{call('search')}"), assistant(call("visit"))], None),
        ([assistant(call("a") + call("b") + call("a"))], {"a": 2, "b": 1}),
        ([assistant("<tool_call>{broken</tool_call>")], {"format": 1}),
        (
            [assistant("", tool_calls=[{"function": {"name": "f"}}, {"name": "g"}])],
            {"f": 1, "g": 1},
        ),
        ([assistant("", tool_calls=[{"function": None}, 3])], {"unknown": 2}),
        ([assistant("<search>x</search>"), {"role": "tool", "content": "y"}], "unknown"),
        (
            [assistant("x"), {"role": "user", "content": "<tool_response>y</tool_response>"}],
            "unknown",
        ),
    ],
)
def test_calls_are_counted_in_messages(tmp_path, messages, expected):
    (found,) = read_answers(write(tmp_path / "a.jsonl", [row("A?", "x", "x", messages=messages)]))
    expected = {"search": 1, "visit": 1} if expected is None else expected
    if expected == "unknown":
        assert found.usage.calls is None and found.usage.tools == {}
    else:
        assert found.usage.tools == expected and found.usage.calls == sum(expected.values())


def test_usage_of_the_row_comes_first(tmp_path):
    usage = {"calls": 7, "prompt_tokens": 5, "said_tokens": 2, "cost": 0.0, "turns": 3}
    messages = [assistant(call("search"))]
    rows = [row("A?", "x", "x", messages=messages, usage=usage, termination="answered")]
    (found,) = read_answers(write(tmp_path / "a.jsonl", rows))
    assert found.usage == Usage(7, {"search": 1}, 5, 2, 0.0, None)
    assert found.termination == "answered"
    rows[0] |= {"usage": {"read_tokens": 4}, "costs": {"calls": 9, "sampled": 8, "contexts": 1}}
    (found,) = read_answers(write(tmp_path / "c.jsonl", rows))  # researchers are counted
    assert found.usage == Usage(9, {"search": 1}, 4, 8, None, None)
    (bare,) = read_answers(write(tmp_path / "b.jsonl", [row("A?", "x", "x")]))
    assert bare.usage == Usage() and bare.usage.calls is None


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"usage": [1]}, "usage must be an object"),
        ({"costs": [1]}, "costs must be an object"),
        ({"usage": {"cost": -1}}, "usage has cost -1"),
        ({"usage": {"seconds": "3"}}, "usage has seconds '3'"),
        ({"usage": {"read_tokens": math.nan}}, "usage has read_tokens nan"),
        ({"usage": {"cost": math.inf}}, "usage has cost inf"),
        ({"usage": {"said_tokens": True}}, "usage has said_tokens True"),
        ({"usage": {"calls": 1.5}}, "usage has calls 1.5"),
        ({"usage": {"tools": {"search": "2"}}}, "usage has tools"),
        ({"messages": "x"}, "messages must be a list"),
        ({"citations": "x"}, "citations must be a list"),
    ],
)
def test_broken_fields_are_named(tmp_path, more, message):
    path = write(tmp_path / "a.jsonl", [row("A?", "x", "x", **more)])
    with pytest.raises(ValueError, match=f"a.jsonl, line 1.*{message}"):
        read_answers(path)


# ---------------------------------------------------------------- budgets


def test_accuracy_under_a_budget_by_hand():
    usages = [Usage(n) for n in (0, 2, 3, 5, None)]
    judged = answers([C, C, W, C, C], usage=usages)
    found = accuracy_under_budget(judged)
    assert found["questions"] == 4  # the calls of the last are unknown
    assert found["accuracy"] == {1: 1 / 4, 2: 2 / 4, 4: 2 / 4, 8: 3 / 4}
    assert accuracy_under_budget(answers([C])) is None


def test_budgets_are_means_over_questions():
    one = answers([C, C], usage=[Usage(1), Usage(1)])
    two = answers([C, E], usage=[Usage(4), Usage(1)])
    both = JudgedAnswers(one.keys, one.judgements + two.judgements, one.rows + two.rows)
    # q0: 1 of 2 with one call, q1: 1 of 1
    assert accuracy_under_budget(both)["accuracy"] == {1: 0.75, 2: 0.75, 4: 1.0}
    shown = render(summarise(both))
    assert "| accuracy with at most b calls | 1: 75.0%, 2: 75.0%, 4: 100.0% |" in shown


# ---------------------------------------------------------------- citations


def test_citations_by_hand(tmp_path):
    pages = [ShownPage("Oslo", "w://oslo", "text"), ShownPage("Bergen", "w://bergen", "text")]
    bank = Bank({f"id_{i}": page for i, page in enumerate(pages, 1)})
    report = assemble_report("Q?", [("A", "x [id_1]. y [id_1, id_2].")], bank)
    item = BenchmarkItem("q", "Q?", ("x",), {"required_documents": ["oslo", "Tromsø", "Moss"]})
    other = BenchmarkItem("r", "R?", ("x",), {"supporting_facts": {"title": ["A", "A", "B"]}})
    third = BenchmarkItem("s", "S?", ("x",), {"wiki_links": ["https://a"]})
    rows = [
        {"id": "q", "prediction": report},
        {"id": "r", "prediction": "x", "citations": [{"title": "a", "url": "u"}, "B", "B"]},
        {"id": "s", "prediction": "x", "citations": []},
    ]
    read = read_answers(write(tmp_path / "a.jsonl", rows), [item, other, third])
    assert [len(one.cited) for one in read] == [2, 2, 0]
    found = score_citations(read)
    # precision: 1 of 2, 2 of 2, none; recall: 1 of 3, 2 of 2, 0 of 1
    assert found == {"precision": 0.75, "recall": pytest.approx(4 / 9), "answers": 3}
    assert score_citations(read[2:]) == {"precision": None, "recall": 0.0, "answers": 1}
    (plain,) = read_answers(write(tmp_path / "b.jsonl", [{"id": "q", "prediction": "x"}]), [item])
    assert plain.cited is None and score_citations([plain]) is None


# ---------------------------------------------------------------- Holm


def test_holm_by_hand_and_against_the_definition():
    assert adjust_holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert adjust_holm([0.9, 0.6]) == [1.0, 1.0] and adjust_holm([]) == []
    draws = np.random.default_rng(0)
    for _ in range(50):
        p = (draws.random(5) / 10).tolist()
        order, rejected = np.argsort(p), set()
        for rank, i in enumerate(order):  # step down until one is not rejected
            if p[i] > 0.05 / (5 - rank):
                break
            rejected.add(i)
        assert {i for i, q in enumerate(adjust_holm(p)) if q <= 0.05} == rejected


# ---------------------------------------------------------------- the command


def test_command_shows_the_measures(tmp_path, capsys):
    rows = [
        row(
            "A?",
            "1",
            "1\nConfidence: 90%",
            messages=[assistant(call("sea|rch"))],
            usage={"cost": 0.5, "seconds": 2},
            termination="answered",
        ),
        row(
            "B?",
            "1",
            "2",
            messages=[assistant(call("visit")), assistant(call("visit"))],
            usage={"cost": 0.25},
            termination="turns",
        ),
    ]
    rows[0]["prediction"] = "<answer>1</answer> Confidence: 90%"
    path, out = write(tmp_path / "a.jsonl", rows), tmp_path / "out.json"
    assert main(["evaluate", "answers", str(path), "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "| calls per answer | 1.5 (sum 3) |" in shown
    assert "| cost per answer | 0.375 (sum 0.75) |" in shown
    assert "| seconds per answer | 2 (sum 2) (1 answers) |" in shown
    assert "| calls by tool | visit 2, sea\\|rch 1 |" in shown
    assert "| terminations | answered 1, turns 1 |" in shown
    assert "| accuracy with at most b calls | 1: 50.0%, 2: 50.0% |" in shown
    measures = json.loads(out.read_text())["measures"]
    assert measures["calibration"]["stated"] == 1
    assert measures["calibration"]["rms"] == pytest.approx(0.1)


def test_tools_that_a_policy_invents_are_hidden_for_protected_benchmarks(tmp_path):
    item = BenchmarkItem("q", "Q?", ("Zanzibar",), protected=True)
    turns = [assistant(call(name)) for name in ("search", "Zanzibar", "Pemba", "PythonInterpreter")]
    rows = [{"id": "q", "prediction": "x", "messages": turns}]
    (found,) = read_answers(write(tmp_path / "a.jsonl", rows), [item])
    assert found.usage.tools == {"search": 1, "other": 2, "PythonInterpreter": 1}
    assert found.usage.calls == 4


def test_rows_show_no_text(tmp_path):
    rows = [row("Secret?", "Zanzibar", "Zanzibar", category="Hidden", citations=["Pemba"])]
    judged = judge_files([write(tmp_path / "a.jsonl", rows)], JUDGES["rules"]())
    shown = repr(judged)
    assert not any(text in shown for text in ("Secret", "Zanzibar", "Hidden", "Pemba"))
