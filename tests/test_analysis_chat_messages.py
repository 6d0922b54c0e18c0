"""Messages of other programs: malformed calls, thoughts, legacy calls, roles and content parts.

Run: python -m pytest tests/test_analysis_chat_messages.py
"""

import json
import math

import pytest

from drlib.analysis.chat_messages import flatten_message
from drlib.analysis.inputs import read_rollouts
from drlib.analysis.token_table import find_responses, token_statistics
from drlib.chat.tool_calls import FormatError, ToolCall, parse
from drlib.trajectory import Termination
from tests.test_analysis_inputs import (
    tokenizer,  # noqa: F401 - a fixture
    write_lines,
)

USER = {"role": "user", "content": "Which code?"}
ANSWER = {"role": "assistant", "content": "<answer>MWK</answer>"}


def build_call(arguments, name="search"):
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}


MALFORMED = {
    "cut": build_call('{"q": "x'),
    "empty": build_call(""),
    "NaN": build_call(math.nan),
    "a list": build_call([1]),
    "null": build_call(None),
    # others of the kind
    "NaN inside": build_call('{"k": NaN}'),
    "a list as text": build_call('["x"]'),
    "a number": build_call(3),
    "Python's quotes": build_call("{'q': 'x'}"),
    "text after it": build_call('{"q": "x"} and more'),
    "infinity": build_call({"k": math.inf}),
    "no name": {"function": {"arguments": "{}"}},
    "a name of another type": build_call("{}", name=7),
    "no arguments": {"function": {"name": "search"}},
    "not a call": "search(x)",
    "a half surrogate and cut": build_call('{"q": "\\ud83d'),
}


@pytest.mark.parametrize("call", MALFORMED.values(), ids=MALFORMED)
def test_malformed_call_is_a_format_error_of_its_rollout(tokenizer, tmp_path, call):
    turn = {"role": "assistant", "content": None, "tool_calls": [call]}
    bad = {"messages": [USER, turn, {"role": "tool", "content": "call rejected"}, ANSWER]}
    last = {"messages": [USER, turn]}
    good = {"messages": [USER, ANSWER]}
    path = write_lines(tmp_path / "a.jsonl", [good, bad, last, good])
    first, middle, ended, final = read_rollouts(path, tokenizer)
    assert first.answer == middle.answer == final.answer == "MWK"
    assert isinstance(parse(middle.messages[1]["content"]), FormatError)
    (result,) = middle.tool_results
    assert (result.tool, result.ok, result.error) == ("format", False, "format")
    assert ended.termination == Termination.FORMAT and ended.answer is None
    assert len(token_statistics([first, middle, ended, final])) > 0


def test_malformed_calls_keep_what_the_policy_wrote(tokenizer, tmp_path):
    for arguments in ('{"q": "Malawi', "Malawi", '{"q": "Malawi"}}'):
        message = flatten_message({"role": "assistant", "tool_calls": [build_call(arguments)]})
        assert arguments in message["content"] and "search" in message["content"]


@pytest.mark.parametrize(
    "field",
    [
        {"tool_calls": [build_call('{"q": "x"}')]},
        {"tool_calls": [build_call({"q": "x", "page": None})]},
        {"tool_calls": build_call('{"q": "x"}')},
        {"tool_calls": json.dumps([build_call({"q": "x"})])},
        {"tool_calls": [None, json.dumps(build_call('{"q": "x"}'))]},
        {"function_call": {"name": "search", "arguments": '{"q": "x"}'}},
        {"tool_calls": [{"name": "search", "parameters": {"q": "x"}}]},
        {"content": [{"type": "tool_use", "id": "t", "name": "search", "input": {"q": "x"}}]},
    ],
)
def test_calls_are_read_from_all_fields(field):
    message = flatten_message({"role": "assistant", "content": "", **field})
    assert parse(message["content"]) == ToolCall("search", {"q": "x"})
    assert "format_error" not in message


@pytest.mark.parametrize(
    "field",
    [
        {"reasoning_content": "Look."},
        {"reasoning": "Look."},
        {"thinking": "Look."},
        {"reasoning_details": [{"type": "reasoning.text", "text": "Look."}]},
        {"reasoning_details": [{"type": "reasoning.summary", "summary": "Look."}]},
        {"reasoning": "Look.", "reasoning_content": "Look."},
        {"reasoning": {"summary": [{"type": "summary_text", "text": "Look."}]}},
        {"thoughts": ["Lo", "ok."]},
        {"reasoning": None, "thinking": "Look."},
    ],
)
def test_thoughts_are_read_from_all_fields(field):
    message = flatten_message({"role": "assistant", "content": "<answer>x</answer>", **field})
    assert message["content"] == "<think>Look.</think><answer>x</answer>"


@pytest.mark.parametrize(
    "content",
    [
        [
            {"type": "thinking", "thinking": "Look.", "signature": "s"},
            {"type": "text", "text": "x"},
        ],
        [{"type": "reasoning", "text": "Look."}, {"type": "output_text", "text": "x"}],
        [None, {"type": "thinking", "thinking": "Look."}, "x", {"type": "text", "text": None}],
    ],
)
def test_thoughts_in_content_parts_are_read(content):
    message = flatten_message({"role": "assistant", "content": content})
    assert message["content"] == "<think>Look.</think>x"


@pytest.mark.parametrize(
    "fields, content",
    [
        ({"content": None, "refusal": "I cannot help."}, "I cannot help."),
        ({"content": [{"type": "refusal", "refusal": "No."}]}, "No."),
        ({"content": "", "reasoning": "Bad.", "refusal": "No."}, "<think>Bad.</think>No."),
        ({"content": {"type": "text", "text": "one part"}}, "one part"),
        ({"content": 42}, "42"),
        ({"content": []}, ""),
    ],
)
def test_refusals_and_odd_contents_are_read(fields, content):
    assert flatten_message({"role": "assistant", **fields})["content"] == content


@pytest.mark.parametrize(
    "role", ["Tool", "tool", "function", "ipython", "observation", "environment", "tool_response"]
)
def test_roles_of_tools_give_tool_results(tokenizer, tmp_path, role):
    call = {"role": "assistant", "content": None, "function_call": build_call('{"q": "x"}')}
    observation = {"role": role, "name": "search", "content": "found it"}
    path = write_lines(tmp_path / "a.jsonl", [{"messages": [USER, call, observation, ANSWER]}])
    (t,) = read_rollouts(path, tokenizer)
    (result,) = t.tool_results
    assert (result.tool, result.text, result.ok) == ("search", "found it", True)
    assert [status for *_, status in find_responses(t)] == ["ok"]


def test_tool_results_in_parts_of_a_user_message_are_observations(tokenizer, tmp_path):
    use = {"type": "tool_use", "id": "t1", "name": "search", "input": {"q": "x"}}
    parts = [{"type": "text", "text": "found it"}]
    results = [
        {"type": "tool_result", "tool_use_id": "t1", "content": parts},
        {"type": "tool_result", "tool_use_id": "t1", "content": "found it"},
    ]
    for result in results:
        chat = [
            USER,
            {"role": "assistant", "content": [{"type": "text", "text": "I look."}, use]},
            {"role": "user", "content": [result]},
            ANSWER,
        ]
        (t,) = read_rollouts(write_lines(tmp_path / "a.jsonl", [{"messages": chat}]), tokenizer)
        assert [(r.tool, r.text) for r in t.tool_results] == [("search", "found it")]


def test_fields_that_are_not_understood_are_counted_once_per_file(tokenizer, tmp_path):
    odd = ANSWER | {"annotations": [{"url": "u"}], "audio": {"data": "x"}, "citations": []}
    rows = [{"messages": [USER, odd], "dataset": "nq"}, {"messages": [USER, odd, ANSWER]}] * 2
    with pytest.warns(UserWarning) as found:
        assert len(list(read_rollouts(write_lines(tmp_path / "a.jsonl", rows), tokenizer))) == 4
    (warning,) = found
    text = str(warning.message)
    assert "message.annotations (4)" in text and "message.audio (4)" in text
    assert "dataset (2)" in text and "citations" not in text and "a.jsonl" in text


def test_encrypted_thoughts_are_counted(tokenizer, tmp_path):
    turns = [
        ANSWER | {"reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]},
        {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}, "hm"]},
        ANSWER | {"reasoning": "one thought", "reasoning_content": "another"},
    ]
    for turn, name in zip(turns, ("reasoning_details", "redacted_thinking", "reasoning")):
        path = write_lines(tmp_path / "a.jsonl", [{"messages": [USER, turn]}])
        with pytest.warns(UserWarning, match=name):
            list(read_rollouts(path, tokenizer))


def test_empty_turns_between_others_do_not_stop_the_analysis(tokenizer, tmp_path):
    empty = {"role": "assistant", "content": ""}
    said = {"role": "assistant", "content": "hm"}
    tool = {"role": "tool", "content": "found it"}
    chats = [
        [USER, said, empty, ANSWER],
        [USER, said, empty, tool, ANSWER],
        [USER, empty, said, tool, empty, USER, ANSWER],
    ]
    path = write_lines(tmp_path / "a.jsonl", [{"messages": chat} for chat in chats])
    found = list(read_rollouts(path, tokenizer))
    assert len(token_statistics(found).names) == 3
    assert [len(find_responses(t)) for t in found] == [0, 1, 1]
