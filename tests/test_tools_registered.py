"""Registered tools with their own code: offered, called and cached like built-in ones.

Run: python -m pytest tests/test_tools_registered.py
"""

import pytest

from drlib.tools import TOOLS, ReliabilityPolicy, Toolbox, ToolFault
from drlib.tools.definitions import Parameter, Tool

WORDS = Parameter("words", "The words.", many=True)
GLUE = Parameter("glue", "What stands between them.")


@pytest.fixture
def calls(monkeypatch):
    """Register `join`; return the list of its calls."""
    calls = []

    def join(words, glue):
        calls.append((words, glue))
        if glue == "down":
            raise ToolFault("server", "it is down")
        return None if glue == "nothing" else glue.join(words)

    monkeypatch.setitem(TOOLS, "join", Tool("join", "Joins words.", (WORDS, GLUE), run=join))
    return calls


def test_registered_tool_is_in_every_later_toolbox(monkeypatch):
    with Toolbox(None) as before:
        assert before.schemas == []
        tool = Tool("join", "Joins words.", (WORDS, GLUE), run=lambda words, glue: "")
        monkeypatch.setitem(TOOLS, "join", tool)
        assert before.schemas == [] and not before.call("join", {}).ok
    with Toolbox(None) as after:
        (schema,) = after.schemas
    assert schema["name"] == "join" and schema["parameters"]["required"] == ["words", "glue"]


def test_call_is_one_operation_and_equal_calls_share_it(calls):
    with Toolbox(None) as toolbox:
        first = toolbox.call("join", {"words": ["a", "b"], "glue": "-", "colour": "red"})
        again = toolbox.call("join", {"glue": "-", "words": ["a", "b"]})
        other = toolbox.call("join", {"words": ["a", "b"], "glue": "+"})
    assert (first.text, first.ok, first.source, first.attempts) == ("a-b", True, "join", 1)
    assert (again.text, again.cache_hit, other.text) == ("a-b", True, "a+b")
    assert calls == [(["a", "b"], "-"), (["a", "b"], "+")]


def test_invalid_arguments_never_reach_the_tool(calls):
    with Toolbox(None) as toolbox:
        for arguments in ({"words": "a", "glue": "-"}, {"words": ["a"]}, {"words": [], "glue": ""}):
            result = toolbox.call("join", arguments)
            assert not result.ok and result.error == "arguments" and not result.env_fault
    assert calls == []


def test_tool_fault_is_an_environment_fault(calls):
    with Toolbox(None) as toolbox:
        down = toolbox.call("join", {"words": ["a"], "glue": "down"})
    assert down.env_fault and down.error == "server" and "unavailable" in down.text
    with Toolbox(
        None, policies={"join": ReliabilityPolicy(attempts=3, backoff_s=0.001)}
    ) as patient:
        assert patient.call("join", {"words": ["a"], "glue": "down"}).attempts == 3


def test_tool_without_text_raises(calls):
    with (
        Toolbox(None) as toolbox,
        pytest.raises(TypeError, match="tool join: run returned NoneType"),
    ):
        toolbox.call("join", {"words": ["a"], "glue": "nothing"})
