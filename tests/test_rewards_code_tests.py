"""Programs as answers in the real sandbox: right ones, wrong ones, and attempts to cheat.

Run: python -m pytest tests/test_rewards_code_tests.py
"""

from dataclasses import replace

import pytest

from drlib.rewards import code_tests
from drlib.rewards.code_tests import is_same_value
from drlib.rewards.functions import _example as example
from drlib.rewards.functions import make_reward
from drlib.sandbox import SandboxResult
from drlib.task import Task

TASK = Task("t", "Write f(x), the square of x.", "see tests", "code", "w")
TESTS = [["f(9)", "81"], ["f(-2)", "4"], ["[f(i) for i in range(3)]", "[0, 1, 4]"]]
RIGHT = "def f(x):\n    return x * x"

CHEATS = {
    "prints": "print(81)\nprint(4)\nf = lambda x: None",
    "prints all values": "print('81\\n4\\n[0, 1, 4]')\nf = lambda x: None",
    "exits": "import sys\nprint(81)\nsys.exit(0)",
    "exits hard": "import os\nprint(81, flush=True)\nos._exit(0)",
    "equals everything": (
        "class Any(int):\n"
        "    def __eq__(self, other): return True\n"
        "    def __repr__(self): return 'Any'\n"
        "def f(x): return Any()"
    ),
    "replaces repr": "import builtins\nbuiltins.repr = lambda x: '81'\ndef f(x): return 0",
    "replaces print": "def print(*a): __import__('sys').stdout.write('81')\ndef f(x): return 0",
    "reads its source": (
        "import sys\n"
        "def f(x):\n"
        "    frame = sys._getframe(1)\n"
        "    texts = [c for c in frame.f_code.co_consts if isinstance(c, str)]\n"
        "    print(*texts, open(__file__).read() if '__file__' in globals() else '')\n"
        "    return texts[-1] if texts else 0"
    ),
    "prints at the end": "import atexit\natexit.register(print, 81)\ndef f(x): return 0",
    "comments the call": "f = lambda x: 0\nprint('81') #",
    "opens a text": 'f = lambda x: 0\nprint(81)\n"""',
    "raises": "def f(x): raise SystemExit(0)",
    "one case": "def f(x): return 81",
}


def answered(text):
    trajectory = example(text)
    return replace(trajectory, answer=text)


@pytest.mark.parametrize("text", [RIGHT, f"Here it is:\n```python\n{RIGHT}\n```\nDone."])
def test_right_programs(text):
    found = make_reward("code_tests", tests=TESTS)(answered(text), TASK)
    assert found.value == 1.0 and found.parts == {"tests": 1.0}


def test_share_of_tests():
    one_third = answered("def f(x):\n    return x * x if x > 5 else 0")
    assert make_reward("code_tests", tests=TESTS)(one_third, TASK).value == 0.0
    graded = make_reward("code_tests", tests=TESTS, graded=True)(one_third, TASK)
    assert graded.value == pytest.approx(1 / 3)


@pytest.mark.parametrize("name", CHEATS)
def test_cheats_pass_no_complete_test_set(name):
    assert make_reward("code_tests", tests=TESTS)(answered(CHEATS[name]), TASK).value == 0.0


def test_printing_programs_pass_with_the_right_value():
    text = "def f(x):\n    print('thinking', end='')\n    return x * x"
    assert make_reward("code_tests", tests=TESTS)(answered(text), TASK).value == 1.0


def test_time_limit():
    reward = make_reward("code_tests", tests=[["f(1)", "1"]], timeout_s=1.0)
    assert reward(answered("def f(x):\n    while True: pass"), TASK).value == 0.0


def test_sandbox_faults_are_not_judged(monkeypatch):
    class Broken:
        def map(self, codes):
            return [SandboxResult("worker_died", "", "", None, 0.0, "")] * len(codes)

    monkeypatch.setattr(code_tests, "_open_sandbox", lambda timeout_s: Broken())
    assert make_reward("code_tests", tests=TESTS)(answered(RIGHT), TASK).value is None


def test_no_answer_and_environment_faults():
    reward = make_reward("code_tests", tests=TESTS)
    assert reward(example(None), TASK).value == 0.0
    failed = answered(RIGHT)
    failed.tool_results[0].env_fault = True
    assert reward(failed, TASK).value is None


def test_as_the_verifier_of_a_task():
    verifier = '{"reward": "code_tests", "arguments": {"tests": [["f(3)", "9"]]}}'
    found = make_reward("by_task")(answered(RIGHT), replace(TASK, verifier=verifier))
    assert found.value == 1.0 and found.parts == {"code/tests": 1.0, "code/code_tests": 1.0}


@pytest.mark.parametrize(
    ("printed", "expected", "same"),
    [
        ("4", "4", True),
        ("{1, 2}", "{2, 1}", True),
        ("{'a': 1, 'b': 2}", "{'b': 2, 'a': 1}", True),
        ("True", "1", False),
        ("4.0", "4", False),
        ("None", "0", False),
        ("<object>", "<object>", True),
        ("<object>", "4", False),
        ("", "4", False),
    ],
)
def test_equal_values(printed, expected, same):
    assert is_same_value(printed, expected) == same


@pytest.mark.parametrize(
    ("tests", "message"), [([], "needs tests"), ([["x = 1", "1"]], "is no expression")]
)
def test_settings_that_do_not_fit(tests, message):
    with pytest.raises(ValueError, match=message):
        make_reward("code_tests", tests=tests)
