"""Functions as tools: schema, conversion of arguments, and what cannot be registered.

Run: python -m pytest tests/test_tools_function_tool.py
"""

import enum
from typing import Literal

import pytest
from transformers.utils import get_json_schema

from drlib import register
from drlib.tools import TOOLS, Toolbox, trl_environment
from drlib.tools.definitions import Parameter, Tool
from drlib.tools.function_tool import FunctionTool


@pytest.fixture(autouse=True)
def registry():
    before = dict(TOOLS)
    yield
    for name in set(TOOLS) - set(before):
        del TOOLS[name]


def convert(
    amount: float,
    unit: Literal["km", "mi"],
    places: int = 1,
    names: list[str] | None = None,
    exact: bool = False,
    options: dict | None = None,
) -> str:
    """Convert a distance.

    Args:
        amount: How much.
        unit: Unit of the amount.
        places: Decimal places.
        names: Names to show.
        exact: Whether to round.
        options: More options.
    """
    return f"{amount:.{places}f} {unit} {names} {exact} {options}"


def test_schema_of_a_function():
    register.tool("convert", convert)
    with Toolbox(None) as toolbox:
        (schema,) = toolbox.schemas
    assert schema["name"] == "convert" and schema["description"] == "Convert a distance."
    assert schema["parameters"] == {
        "type": "object",
        "properties": {
            "amount": {"type": "number"},
            "unit": {"type": "string", "enum": ["km", "mi"]},
            "places": {"type": "integer"},
            "names": {"type": "array", "items": {"type": "string"}, "nullable": True},
            "exact": {"type": "boolean"},
            "options": {"type": "object", "nullable": True},
        },
        "required": ["amount", "unit"],
    }
    described = TOOLS["convert"].function["function"]["parameters"]["properties"]
    assert described["places"] == {"type": "integer", "description": "Decimal places."}


def test_decorator_keeps_the_function():
    @register.tool("double")
    def double(number: int) -> int:
        """Double a number.

        Args:
            number: The number.
        """
        return 2 * number

    assert double(4) == 8
    with Toolbox(None) as toolbox:
        assert toolbox.call("double", {"number": "21"}).text == "42"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"amount": 2, "unit": "km"}, "2.0 km None False None"),
        ({"amount": "2.55", "unit": "mi", "places": "2"}, "2.55 mi None False None"),
        ({"amount": [3], "unit": ["km"]}, "3.0 km None False None"),
        ({"amount": 1, "unit": "km", "names": "a"}, "1.0 km ['a'] False None"),
        ({"amount": 1, "unit": "km", "names": [1, "b"]}, "1.0 km ['1', 'b'] False None"),
        ({"amount": 1, "unit": "km", "exact": "true"}, "1.0 km None True None"),
        ({"amount": 1, "unit": "km", "options": {"a": 1}}, "1.0 km None False {'a': 1}"),
        ({"amount": 1, "unit": "km", "places": 0.0, "colour": "red"}, "1 km None False None"),
    ],
)
def test_arguments_are_converted(arguments, text):
    register.tool("convert", convert)
    with Toolbox(None) as toolbox:
        result = toolbox.call("convert", arguments)
    assert (result.text, result.ok) == (text, True)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"unit": "km"}, "amount"),
        ({"amount": "much", "unit": "km"}, "amount"),
        ({"amount": 1, "unit": "yard"}, "unit"),
        ({"amount": 1, "unit": "km", "places": 1.5}, "places"),
        ({"amount": 1, "unit": "km", "names": [["a"], "b"]}, "names"),
        ({"amount": 1, "unit": "km", "options": [1]}, "options"),
        ({"amount": None, "unit": "km"}, "amount"),
    ],
)
def test_wrong_arguments_name_the_parameter(arguments, word):
    register.tool("convert", convert)
    with Toolbox(None) as toolbox:
        result = toolbox.call("convert", arguments)
    assert not result.ok and result.error == "arguments" and not result.env_fault
    assert word in result.text


def test_equal_arguments_of_other_types_share_one_call():
    made = []

    def count(n: int) -> int:
        """Count.

        Args:
            n: A number.
        """
        made.append(n)
        return n

    register.tool("count", count)
    with Toolbox(None) as toolbox:
        assert [toolbox.call("count", {"n": n}).text for n in (5, "5", [5])] == ["5"] * 3
    assert made == [5]


def test_values_are_written_as_json():
    def table(n: int) -> list[dict]:
        """Make rows.

        Args:
            n: How many.
        """
        return None if n == 0 else [{"row": i, "é": True} for i in range(n)]

    register.tool("table", table)
    with Toolbox(None) as toolbox:
        assert toolbox.call("table", {"n": 1}).text == '[{"row": 0, "é": true}]'
        with pytest.raises(TypeError, match="tool table returned NoneType"):
            toolbox.call("table", {"n": 0})


def no_hint(text):
    """Do it.

    Args:
        text: A text.
    """


def no_docstring(text: str):
    return text


def no_description(text: str, other: str):
    """Do it.

    Args:
        text: A text.
    """


def many(*texts: str):
    """Do it.

    Args:
        texts: Texts.
    """


def positional(text: str, /):
    """Do it.

    Args:
        text: A text.
    """


async def later(text: str):
    """Do it.

    Args:
        text: A text.
    """


class Colour(enum.Enum):
    RED = 1


def odd_type(text: complex):
    """Do it.

    Args:
        text: A number.
    """


@pytest.mark.parametrize(
    ("function", "word"),
    [
        (no_hint, "text"),
        (no_docstring, "docstring"),
        (no_description, "other"),
        (many, "texts"),
        (positional, "text"),
        (later, "async"),
        (odd_type, "complex"),
    ],
)
def test_functions_without_a_schema_are_rejected_at_registration(function, word):
    with pytest.raises(ValueError, match=rf"tool 'x'.*{word}"):
        register.tool("x", function)
    assert "x" not in TOOLS


@pytest.mark.parametrize("thing", ["text", 3, Colour, object(), {"name": "x"}, len])
def test_only_functions_and_tools_are_registered(thing):
    with pytest.raises(TypeError, match="tool 'x' must be a function"):
        register.tool("x", thing)


@pytest.mark.parametrize("name", ["two words", "a.b", "é", "x" * 65])
def test_names_that_servers_reject(name):
    with pytest.raises(ValueError, match="64 letters"):
        register.tool(name, convert)


def test_name_of_a_tool_is_its_key():
    tool = Tool("join", "Join.", (Parameter("a", "A."),), run=str)
    with pytest.raises(ValueError, match="registered under another name: 'join'"):
        register.tool("other", tool)


def test_methods_are_tools():
    class Counter:
        total = 0

        def add(self, n: int) -> int:
            """Add a number.

            Args:
                n: The number.
            """
            self.total += n
            return self.total

    register.tool("add", Counter().add)
    with Toolbox(None) as toolbox:
        assert [toolbox.call("add", {"n": n}).text for n in (2, 3)] == ["2", "5"]


def test_function_is_a_tool_of_trl():
    register.tool("convert", convert)
    with Toolbox(None) as toolbox:
        environment = trl_environment(toolbox)()
        assert get_json_schema(environment.convert) == TOOLS["convert"].function
        assert environment.convert(amount=1, unit="km") == "1.0 km None False None"
        assert environment.results[0].ok


def test_defaults_are_values_not_parameters_of_the_call():
    tool = FunctionTool.from_function("convert", convert)
    (operation,) = tool.operands({"amount": "1", "unit": "km"})
    assert operation == {
        "amount": 1.0,
        "unit": "km",
        "places": 1,
        "names": None,
        "exact": False,
        "options": None,
    }
