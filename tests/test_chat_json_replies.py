"""JSON in the replies of models: reasoning, citations, fences, drafts and cut replies."""

import time

import pytest

from drlib.chat.json_replies import extract_json

ROW = '{"subject": "Ada", "relation": "tutor", "object": "Bob", "evidence": "Ada, tutor of Bob"}'
ROWS = [{"subject": "Ada", "relation": "tutor", "object": "Bob", "evidence": "Ada, tutor of Bob"}]


@pytest.mark.parametrize(
    "reply",
    [
        f"[{ROW}]",
        f"Based on [1] and [2]: [{ROW}]",
        f"[{ROW}]\n\nSource: [1], page [2, 3].",
        f"See [the manual](x) [1]. [{ROW}] (from [2]",
        f"<think>Perhaps [] or [{{}}]?</think>[{ROW}]",
        f"so [1, 2] it is </think>\n[{ROW}]",
        f"[THINK]a draft: [1][/THINK][{ROW}]",
        f"◁think▷ [0] ◁/think▷ [{ROW}]",
        f"<thinking>[{{}}]</thinking>```json\n[{ROW}]\n```",
        f"<|channel|>analysis<|message|>[7]<|end|><|channel|>final<|message|>[{ROW}]",
        f"```json\n[{ROW}]\n```\nEach fact is quoted [1].",
        f"```\n[{ROW}]\n```\n[]",
        f'{{"facts": [{ROW}]}}',
        f'{{"result": {{"facts": [{ROW}], "count": 1}}}}',
        f"The set {{x : x > 0}} and f[0] = g[i]. [{ROW}]",
        f"A first draft [{{}}], and now [{ROW}]",
    ],
)
def test_array_of_objects_is_found(reply):
    assert extract_json(reply, list) == ROWS


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        ('Not {x}, but {"a": {"b": [1]}} [2]', {"a": {"b": [1]}}),
        ('{"a": 0}</think>{"a": 1}', {"a": 1}),
        ('First {"a": 0}. Better: {"a": 1}', {"a": 1}),
        ('[{"a": 1}]', {"a": 1}),
        ('{"text": "closes </think> and [1"}', {"text": "closes </think> and [1"}),
        ('Sure:\n```json\n{"text": "two\nlines"}\n```', {"text": "two\nlines"}),
    ],
)
def test_object_is_found(reply, value):
    assert extract_json(reply, dict) == value


@pytest.mark.parametrize(
    ("reply", "value"), [("[1, 3]", [1, 3]), ("Needed: [2]", [2]), ("None: []", [])]
)
def test_array_of_other_values_is_found(reply, value):
    assert extract_json(reply, list) == value


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "No facts.",
        "[see below]",
        f"<think>I could say [{ROW}]",
        f"<think>[{ROW}]</think>There are none.",
        f"[{ROW}, {{",
        f'[{ROW}, {{"subject": "Bo',
        f"Based on [1]: [{ROW}, {ROW[:-1]}",
        '[{"tags": ["x"]}, {"tags": ["y"',
        '[{"a": ' * 50_000,
        '{"a":[' * 50_000,
        "{" * 100_000,
        "[" * 100_000,
        '["' * 100_000,
        "[1" * 100_000,
    ],
)
def test_missing_or_truncated_array_is_an_error(reply):
    start = time.monotonic()
    with pytest.raises(ValueError, match=r"JSON|list"):
        extract_json(reply, list)
    assert time.monotonic() - start < 5
