"""Exact arithmetic on an expression, without `eval`.

Only numbers, operators and a few functions of Python's syntax tree are evaluated, as fractions: 0.1
+ 0.2 is 0.3. Sizes are checked before anything is computed, so 9**9**9 is rejected at once. Roots
are floats. A non-integer result has 15 significant digits.
"""

import ast
import math
import operator
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

MAX_EXPRESSION_CHARS = 400
MAX_BITS = 4096  # of numerator and denominator
MAX_DIGITS = 99  # largest number of digits for `round`, before or after the point
ERRORS = {
    ZeroDivisionError: "Error: division by zero.",
    OverflowError: "Error: a number is too large or too small.",
    Exception: "Error: not an arithmetic expression with a real value.",
}
# Exceptions of parsing or evaluating an expression.
NOT_COMPUTED = (
    ArithmeticError,
    SyntaxError,
    ValueError,
    TypeError,
    KeyError,
    RecursionError,
    MemoryError,
)


def calculate(expression: str) -> dict[str, str]:
    """Evaluate an expression.

    Returns:
        {"text", "status"}: the value and "ok", or one of `ERRORS` and "arguments".

    Example:
        >>> calculate("0.1 + 0.2")
        {'text': '0.3', 'status': 'ok'}
    """
    expression = expression.strip()
    try:
        if len(expression) > MAX_EXPRESSION_CHARS:
            raise OverflowError
        tree = ast.parse(expression, mode="eval")
        return {"text": _format_value(_evaluate(tree.body, expression)), "status": "ok"}
    except NOT_COMPUTED as error:
        text = next(text for kind, text in ERRORS.items() if isinstance(error, kind))
        return {"text": text, "status": "arguments"}


def _evaluate(node: ast.expr, text: str) -> Fraction:
    """Evaluate a node of the syntax tree of `text`; raise one of `NOT_COMPUTED` if invalid."""
    match node:
        case ast.Constant(value=float()):  # the written digits, which a float would round
            value = Decimal(ast.get_source_segment(text, node))
            if abs(value.adjusted()) > MAX_BITS:
                raise OverflowError
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            pass
        case ast.BinOp(left, operation, right):
            value = _KNOWN[type(operation)](_evaluate(left, text), _evaluate(right, text))
        case ast.UnaryOp(operation, operand):
            value = _KNOWN[type(operation)](_evaluate(operand, text))
        case ast.Call(ast.Name(name), arguments, []):
            value = _KNOWN[name](*[_evaluate(argument, text) for argument in arguments])
        case _:
            raise ValueError("neither a number nor an operation")
    value = Fraction(value)
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise OverflowError
    return value


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        return Fraction(repr(float(base) ** float(exponent)))  # a complex result raises ValueError
    larger = max(abs(base.numerator), base.denominator)
    bits = larger.bit_length() - 1
    if bits * abs(exponent) > MAX_BITS:
        raise OverflowError
    return base ** int(exponent)


def _round(value: Fraction, digits: Fraction = Fraction(0)) -> Fraction:
    if digits.denominator != 1 or abs(digits) > MAX_DIGITS:
        raise ValueError("a number of digits is whole and small")
    return round(value, int(digits))


def _root(value: Fraction) -> Fraction:
    return _power(value, Fraction(1, 2))


# Implementation of each operator and function.
_KNOWN: dict[Any, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
    "abs": abs,
    "ceil": math.ceil,
    "floor": math.floor,
    "max": max,
    "min": min,
    "round": _round,
    "sqrt": _root,
}


def _format_value(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    with localcontext(prec=15):
        decimal = Decimal(value.numerator) / Decimal(value.denominator)
        return f"{decimal.normalize():g}"
