"""The turn parser: actions, format errors, and totality."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drlib.chat.tool_calls import (
    FORMAT_REASONS,
    TAGS,
    Answer,
    FormatError,
    ToolCall,
    parse,
    render_call,
    truncate_after_action,
)

SEARCH = ToolCall("search", {"query": ["Gabon"]})
CALL = render_call("search", {"query": ["Gabon"]})


@pytest.mark.parametrize(
    "text, action",
    [
        (CALL, SEARCH),
        (f"<think>a</think>{CALL}<|im_end|>", SEARCH),
        (f" \n<think>\na\n</think>\n\n{CALL}\n<|im_end|>\n", SEARCH),
        (
            '<tool_call>\n{"name" : "search",\n"arguments":{"query":["Gabon"]}}\n</tool_call>',
            SEARCH,
        ),
        ("<answer> Paris \n</answer>", Answer("Paris")),
        ("I know.<answer>Paris</answer>", Answer("Paris")),
        # only the first action counts
        (f"<answer>Paris</answer>{CALL}", Answer("Paris")),
        (f"{CALL}<answer>Paris</answer>", SEARCH),
        (f"{CALL}<tool_call>junk", SEARCH),
        ("<answer>Paris</answer><think>Or", Answer("Paris")),
        # actions inside thoughts are ignored
        (f"<think>maybe <answer>Rome</answer></think>{CALL}", SEARCH),
        (f"<think>a</think><think>{CALL}</think><answer>Paris</answer>", Answer("Paris")),
        ("so <answer>Rome</answer>?</think><answer>Paris</answer>", Answer("Paris")),
        # "python" in a query does not make it a program
        (
            render_call("search", {"query": ["python <code>1</code>"]}),
            ToolCall("search", {"query": ["python <code>1</code>"]}),
        ),
        (
            '<tool_call>{"name": "PythonInterpreter", "arguments": {}}\n'
            '<code>\nif x:\n  print("}")\n</code></tool_call>',
            ToolCall("python", {"code": 'if x:\n  print("}")'}),
        ),
        (render_call("python", {"code": "print('é')"}), ToolCall("python", {"code": "print('é')"})),
        (render_call("clock", {}), ToolCall("clock", {})),
    ],
)
def test_actions(text, action):
    assert parse(text) == action
    assert parse(text.encode()) == action


def call(body):
    return f"<tool_call>{body}</tool_call>"


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "no tool call or answer."),
        ("Paris", "no tool call or answer."),
        ("<think>a</think>", "no tool call or answer."),
        (f"<think>{CALL}</think>", "no tool call or answer."),
        ("<answer>Rome</answer></think>", "no tool call or answer."),
        (f"<think>a{CALL}", "think is not closed."),
        (f"<think>a</think><think>b{CALL}", "think is not closed."),
        (CALL.removesuffix("</tool_call>"), "tool call is not closed."),
        ("<answer>Paris", "answer is not closed."),
        ("<answer> \n</answer>", "answer is empty."),
        (f"{CALL}<|im_end|><tool_response>x", "policy wrote a tool response."),
        (f"<think><tool_response></think>{CALL}", "policy wrote a tool response."),
        (f"{CALL}</tool_response>", "policy wrote a tool response."),
        (f"{CALL}<|im_end|>{CALL}", "policy wrote a chat marker."),
        (f"<|im_start|>assistant\n{CALL}", "policy wrote a chat marker."),
        ("<answer>\ud800</answer>", "text is not valid Unicode."),
        (call(""), "tool call is not valid JSON."),
        (call("search Gabon"), "tool call is not valid JSON."),
        (call("{'name': 'search', 'arguments': {}}"), "tool call is not valid JSON."),
        (call('{"name": "search", "arguments": {}} and more'), "tool call is not valid JSON."),
        (call('{"name": "a", "name": "b", "arguments": {}}'), "tool call is not valid JSON."),
        (call('{"name": "a", "arguments": {"x": 1, "x": 1}}'), "tool call is not valid JSON."),
        (call('{"name": "a", "arguments": {"x": NaN}}'), "tool call is not valid JSON."),
        (call('{"name": "a", "arguments": {"x": -Infinity}}'), "tool call is not valid JSON."),
        (call('{"name": "a", "arguments": {"x": 1e999}}'), "tool call is not valid JSON."),
        (
            call('{"name": "a", "arguments": {"x": ' + "1" * 5000 + "}}"),
            "tool call is not valid JSON.",
        ),
        (call('{"name": "a", "arguments": {"x": "\\ud800"}}'), "tool call is not valid JSON."),
        (call('{"name": "a", "arguments": {"\\ud800": 1}}'), "tool call is not valid JSON."),
        (call("[" * 40 + "]" * 40), "tool call is not valid JSON."),
        (call("[" * 100_000), "tool call is not valid JSON."),
        (call('["search", {}]'), "tool call needs a name and arguments, nothing else."),
        (call('{"name": "search"}'), "tool call needs a name and arguments, nothing else."),
        (
            call('{"name": "a", "arguments": {}, "id": 1}'),
            "tool call needs a name and arguments, nothing else.",
        ),
        (call('{"name": " ", "arguments": {}}'), "name must be a text."),
        (call('{"name": 3, "arguments": {}}'), "name must be a text."),
        (call('{"name": "a", "arguments": "{}"}'), "arguments must be a JSON object."),
        (call('{"name": "a", "arguments": null}'), "arguments must be a JSON object."),
        (
            call('{"name": "python", "arguments": {}}<code>print(1)'),
            "code must be closed, not empty, and only for python.",
        ),
        (
            call('{"name": "python", "arguments": {}}<code> </code>'),
            "code must be closed, not empty, and only for python.",
        ),
        (
            call('{"name": "search", "arguments": {}}<code>1</code>'),
            "code must be closed, not empty, and only for python.",
        ),
        (
            call('{"name": "python", "arguments": {"code": "2"}}<code>1</code>'),
            "code must be closed, not empty, and only for python.",
        ),
    ],
)
def test_format_errors(text, reason):
    assert parse(text) == FormatError(reason)
    assert reason in FORMAT_REASONS


PIECES = st.sampled_from(
    [
        *TAGS,
        "{",
        "}",
        "[",
        "]",
        '"',
        ":",
        ",",
        '"name"',
        '"arguments"',
        "NaN",
        "1e999",
        "\\ud83d",
        "<code>",
        "</code>",
        "python",
        "\ud800",
        " ",
        "\n",
        '{"name": "python", "arguments": {}}',
        CALL,
    ]
)


@settings(max_examples=500, deadline=None)
@given(st.lists(PIECES | st.text(max_size=3), max_size=14).map("".join))
def test_parser_is_total(text):
    check_total(parse(text))


@settings(max_examples=200, deadline=None)
@given(
    st.binary(max_size=60)
    | st.lists(PIECES.map(lambda p: p.encode("utf-8", "surrogatepass")), max_size=10).map(b"".join)
)
def test_parser_is_total_on_bytes(data):
    check_total(parse(data))
    assert parse(b"\xff" + data) == FormatError("text is not valid Unicode.")


def check_total(action):
    if isinstance(action, FormatError):
        assert action.reason in FORMAT_REASONS
    elif isinstance(action, Answer):
        assert action.text == action.text.strip() != ""
    else:
        assert isinstance(action, ToolCall) and action.name.strip()
        json.dumps(action.arguments, allow_nan=False, ensure_ascii=False).encode("utf-8")


WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(
    lambda s: not any(tag in s for tag in TAGS)
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | WORDS
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(WORDS.filter(str.strip), st.dictionaries(WORDS, JSON, max_size=3), WORDS)
def test_render_and_parse_are_inverse(name, arguments, thought):
    text = f"<think>{thought}</think>{render_call(name, arguments)}"
    assert parse(text) == ToolCall(name, arguments)


TAGGED = [
    {"code": "print('</tool_call>')"},
    {"query": ["<tool_call>", "what does <|im_end|> mean?"]},
    {"code": "s = '</think>'\nt = '<think>' + \"<tool_response>\""},
    {"url": ["https://example.org/<answer>Rome</answer>"], "goal": "</tool_response>"},
    {"</tool_call>": {"<|im_start|>": ["<|endoftext|>", "\\<think>", "\\\\</think>"]}},
]


@pytest.mark.parametrize("arguments", TAGGED)
def test_tags_in_arguments_survive(arguments):
    for thought in ("", "<think>Look.</think>", "Look.</think>"):
        text = thought + render_call("python", arguments)
        assert parse(text) == ToolCall("python", arguments)
        assert truncate_after_action(text + "<answer>x</answer>") == text
    inside = render_call("python", arguments)[len("<tool_call>") : -len("</tool_call>")]
    assert not any(tag in inside for tag in TAGS)  # no tag becomes a token


@pytest.mark.parametrize("arguments", TAGGED)
def test_unescaped_tags_in_strings_are_text(arguments):
    """Models of servers write tags inside strings as they are."""
    body = json.dumps({"name": "python", "arguments": arguments}, ensure_ascii=False)
    text = f"<think>a</think><tool_call>\n{body}\n</tool_call>"
    assert parse(text) == ToolCall("python", arguments)
    assert truncate_after_action(text + CALL) == text
    assert parse(text + "<tool_response>x") == FormatError("policy wrote a tool response.")


def test_tags_in_a_program_after_its_call_are_text():
    program = "print('</tool_call>')\nprint('<tool_response> </code>')"
    text = call(f'{{"name": "python", "arguments": {{}}}}\n<code>{program}</code>\n')
    assert parse(text) == ToolCall("python", {"code": program})
    assert truncate_after_action(text + CALL) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f'<tool_call>{{"name": "search</tool_call>{CALL}', "tool call is not valid JSON."),
        (f'<tool_call>{{"q": "x</tool_call>"{CALL}', "tool call is not valid JSON."),
        (
            '<tool_call>{"name": "a", "arguments": {"x": "</tool_call>"}}',
            "tool call is not closed.",
        ),
    ],
)
def test_first_tag_closes_a_call_without_readable_json(text, reason):
    assert parse(text) == FormatError(reason)


ANY_TEXT = st.lists(st.sampled_from(TAGS) | st.text(max_size=3), max_size=5).map("".join)


@settings(max_examples=300, deadline=None)
@given(ANY_TEXT.filter(str.strip), st.dictionaries(ANY_TEXT, ANY_TEXT | st.lists(ANY_TEXT)))
def test_render_and_parse_are_inverse_with_tags(name, arguments):
    assert parse(render_call(name, arguments)) == ToolCall(name, arguments)


@pytest.mark.parametrize("text", ["a <b> c", "x < 3", "é\\u003c", "<html>", "a</toolcall>"])
def test_calls_without_tags_are_rendered_as_json(text):
    body = json.dumps({"name": "python", "arguments": {"code": text}}, ensure_ascii=False)
    assert render_call("python", {"code": text}) == f"<tool_call>{body}</tool_call>"
