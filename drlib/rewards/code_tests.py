"""A program as the answer, tested in the sandbox.

Every call runs in a sandbox of its own, after the program. The expected value is compared outside
of the sandbox, so a program cannot pass by printing, exiting early, replacing built-ins or reading
the tests: it would have to know a value that it never sees.
"""

import ast
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from drlib.rewards.functions import REWARDS, Reward, RewardResult, has_env_fault
from drlib.rewards.judges import extract_program
from drlib.task import Task
from drlib.trajectory import Trajectory
from drlib.validation import require

if TYPE_CHECKING:
    from drlib.sandbox import Sandbox


@lru_cache(maxsize=4)
def _open_sandbox(timeout_s: float) -> "Sandbox":
    """Return the sandbox that all rewards of this process share."""
    from drlib.sandbox import Sandbox  # other rewards do without

    return Sandbox(timeout_s=timeout_s)


@REWARDS.register("code_tests")
def code_tests(
    *, tests: Sequence[Sequence[str]], graded: bool = False, timeout_s: float = 5.0
) -> Reward:
    """Create the reward of a program: 1 if it passes all tests, else 0.

    Usually it is a task's own verifier: {"reward": "code_tests", "arguments": {"tests": [["f(2)",
    "4"], ["f(0)", "0"]]}}.

    Args:
        tests: pairs of a call and the `repr` of its value.
        graded: reward the share of passed tests.
        timeout_s: seconds for a call; slower ones fail.

    Raises:
        ValueError: no tests, or a call that is no expression.
    """
    require(bool(tests), 'code_tests needs tests, such as [["f(2)", "4"]]')
    for call, _ in tests:
        try:
            ast.parse(call, mode="eval")
        except SyntaxError as error:
            raise ValueError(f"the call {call!r} of a test is no expression: {error}") from None

    def reward(trajectory: Trajectory, task: Task) -> RewardResult:
        if has_env_fault(trajectory):
            return RewardResult(None)
        if not (trajectory.answer or "").strip():
            return RewardResult(0.0, {"tests": 0.0})
        program = extract_program(trajectory.answer or "")
        calls = [f"{program}\n\nprint('\\n' + repr({call}))" for call, _ in tests]
        done = _open_sandbox(timeout_s).map(calls)
        if any(result.env_fault for result in done):
            return RewardResult(None)
        passed = [
            result.ok and is_same_value(result.stdout.rstrip("\n").rpartition("\n")[2], expected)
            for result, (_, expected) in zip(done, tests)
        ]
        share = sum(passed) / len(passed)
        return RewardResult(share if graded else float(share == 1), {"tests": share})

    return reward


def is_same_value(printed: str, expected: str) -> bool:
    """Return True if two `repr` texts are equal, or literals of one type with one value."""
    if printed == expected:
        return True
    left, right = _read_literal(printed), _read_literal(expected)
    return left is not None and type(left) is type(right) and left == right


def _read_literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
