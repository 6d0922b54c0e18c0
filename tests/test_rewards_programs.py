"""Judges of FanOutQA (parts of an answer) and HumanEval (programs in the real sandbox).

Run: python -m pytest tests/test_rewards_programs.py
"""

import json

import pytest

from drlib.rewards.judges import JUDGES, loose_accuracy
from drlib.sandbox import Sandbox, SandboxResult

# ---------------------------------------------------------------- loose


@pytest.mark.parametrize(
    ("answer", "gold", "score"),
    [
        ("It is Oslo.", "oslo", 1),
        ("Osloer", "Oslo", 0),
        ("In New   York City!", "New York", 1),
        ("1,234,567 people", 1234567, 1),
        ("1234567 people", "1,234,567", 1),
        ("12 people", "1234567", 0),
        ("It costs $5 or more", "$5", 1),  # the original finds no part that begins with a sign
        ("It costs $50", "$5", 0),
        ("C++ and C#", ["C++", "C#"], 1),
        ("a, b", ["a", "b", "c"], 2 / 3),
        ("Oslo: yes, Lund: no", {"Oslo": True, "Lund": False}, 1),
        ("Oslo: true", {"Oslo": True}, 1 / 2),
        ("Oslo 709037", {"Oslo": 709037, "Bergen": 289330}, 1 / 2),
        ("Tim, Win 1980", {"Win": "1980", "Tim": ""}, 1),  # an empty part does not count
        ("3.5", 3.5, 1),
        ("35", 3.6, 0),
        ("São Paulo", "Sa\u0303o Paulo", 1),  # decomposed
        ("nothing", True, 0),
    ],
)
def test_share_of_parts(answer, gold, score):
    text = gold if isinstance(gold, str) else json.dumps(gold)
    assert loose_accuracy(answer, text) == pytest.approx(score)
    judged = JUDGES["loose"]()("q", answer, [text])
    assert judged.score == pytest.approx(score)
    assert judged.verdict == ("correct" if score == 1 else "incorrect")


def test_the_whole_text_is_searched_and_the_best_answer_counts():
    judge = JUDGES["loose"]()
    assert judge("q", "Oslo.\n\nFinal answer: Lund", ["Oslo"]).verdict == "correct"
    judged = judge("q", "a b", ['["a", "x", "y"]', '["b", "x"]'])
    assert (judged.verdict, judged.score) == ("incorrect", 0.5)
    assert judge("q", None, ["a"]).verdict == judge("q", " ", ["a"]).verdict == "not_attempted"
    with pytest.raises(ValueError, match="has no words"):
        judge("q", "a", ["[]"])


# ---------------------------------------------------------------- code

PROMPT = 'from math import sqrt\n\n\ndef root(x):\n    """Return the square root of x."""'
TESTS = "def check(f):\n    assert f(9) == 3\n    assert f(16) == 4\n\ncheck(root)\n"
BODY = "    return sqrt(x)\n"


@pytest.fixture(scope="module")
def code():
    return JUDGES["code"](timeout_s=2.0)


@pytest.mark.parametrize(
    "answer",
    [
        BODY,
        f"\n\n{BODY}",
        "def root(x):\n    return x ** 0.5\n",
        f"{PROMPT}\n{BODY}",
        f"Here it is.\n```python\n{PROMPT}\n{BODY}```\nIt works.",
        f"```\nno code\n```\nNow:\n```python\n{BODY}```",
        f"```py\n{BODY}\n```",
    ],
)
def test_right_programs(answer, code):
    assert code(PROMPT, answer, [TESTS]).verdict == "correct"


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ("    return 3\n", "error"),
        ("    return sqrt(x\n", "error"),
        ("I do not know.", "error"),
        ("    return sqrt(x)\n\nimport sys\nsys.exit(0)\n", "ok"),
        ("    return sqrt(x)\n\nimport os\nos._exit(0)\n", "ok"),
        ("    while True:\n        pass\n", "timeout"),
        ("    return sqrt(x)\n\nprint('0' * 16)\nraise SystemExit\n", "ok"),
    ],
)
def test_wrong_programs(answer, status, code):
    judged = code(PROMPT, answer, [TESTS])
    assert (judged.verdict, judged.score) == ("incorrect", 0) and status in judged.reason


def test_programs_without_result_are_not_wrong_answers(code, monkeypatch):
    assert code(PROMPT, None, [TESTS]).verdict == code(PROMPT, "\n", [TESTS]).verdict
    assert code(PROMPT, "\n", [TESTS]).verdict == "not_attempted"
    with pytest.raises(ValueError, match="no correct answer"):
        code(PROMPT, BODY, [])
    failed = SandboxResult("worker_died", "", "", None, 0.0, "")
    monkeypatch.setattr(Sandbox, "run", lambda self, program: failed)
    judged = JUDGES["code"]()(PROMPT, BODY, [TESTS])
    assert judged.verdict == "judge_error" and "worker_died" in judged.reason


def test_one_of_several_tests_suffices(code):
    assert code(PROMPT, BODY, ["assert False", TESTS]).verdict == "correct"
