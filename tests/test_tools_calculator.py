"""Calculator: exact results, and fixed texts for invalid expressions.

Run: python -m pytest tests/test_tools_calculator.py
"""

import pytest

from drlib.tools import Toolbox


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("0.1 + 0.2", "0.3"),
        ("123456789012345678.25 * 4", "493827156049382713"),
        ("7 // 2", "3"),
        ("123456789012345678 * 10", "1234567890123456780"),
        ("-7 % 3", "2"),
        ("2**-2", "0.25"),
        ("1/3", "0.333333333333333"),
        ("(1/3) * 3", "1"),
        ("round(2.675, 2)", "2.68"),
        ("sqrt(2)", "1.4142135623731"),
        ("max(1, 2.5) - min(3, abs(-4))", "-0.5"),
        ("1e3", "1000"),
        ("floor(-0.5) + ceil(0.5)", "0"),
        ("1_000 * 2", "2000"),
        ("0**0", "1"),
        ("1**10**9", "1"),
    ],
)
def test_exact_results(expression, text):
    with Toolbox(None, calculator=True) as toolbox:
        result = toolbox.call("calculator", {"expression": expression})
    assert result.ok and result.text == text and result.source == "calculator"


REAL = "Error: not an arithmetic expression with a real value."
LARGE = "Error: a number is too large or too small."
ZERO = "Error: division by zero."


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("9**9**9", LARGE),
        ("2**99999", LARGE),
        ("(1/2)**99999", LARGE),
        ("1e999999999", LARGE),
        ("1e-999999999", LARGE),
        ("1" + "+1" * 300, LARGE),
        ("9" * 399, None),
        ("(2**4000)**2", LARGE),
        ("sqrt(2**4000)", LARGE),
        ("1/0", ZERO),
        ("5 % 0", ZERO),
        ("1 // (1-1)", ZERO),
        ("0**-1", ZERO),
        ("__import__('os').getcwd()", REAL),
        ("open('x')", REAL),
        ("(lambda: 1)()", REAL),
        ("x", REAL),
        ("'a' * 9", REAL),
        ("True + 1", REAL),
        ("1 if 1 else 2", REAL),
        ("1, 2", REAL),
        ("2j", REAL),
        ("sqrt(-1)", REAL),
        ("abs(1, 2)", REAL),
        ("max()", REAL),
        ("max(1)", REAL),
        ("", REAL),
        ("abs", REAL),
        ("round(1, 0.5)", REAL),
        ("1 <<  9", REAL),
        ("[1][0]", REAL),
        ("\0", REAL),
        ("\ud800", REAL),
        ("1 +", REAL),
        ("(" * 399, REAL),
        ("-" * 390 + "1", None),
        ("f'{1}'", REAL),
    ],
    ids=repr,
)
def test_invalid_expressions_return_fixed_texts(expression, text):
    with Toolbox(None, calculator=True) as toolbox:
        result = toolbox.call("calculator", {"expression": expression})
    assert result.ok is (text is None) and not result.env_fault
    assert text is None or result.text == text
