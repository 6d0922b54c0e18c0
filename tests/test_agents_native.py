"""Agents with models that call tools in their own format, and with models that fail to.

Run: python -m pytest tests/test_agents_native.py
"""

import json

import pytest

from drlib.agents import Limits, ReAct
from drlib.agents.context import IdContext
from drlib.app import AskOptions, ask
from drlib.app.research import AskError, find_sources, render_report
from drlib.app.terminal import format_event
from drlib.chat.model_template import TemplateIds
from drlib.chat.prompts import FORMAT_HELP
from drlib.chat.tool_calls import Answer, FormatError, ToolCall, parse_native, render_call
from drlib.endpoint import ChatEndpoint
from drlib.models.api_engine import ApiEngine
from drlib.models.engine import Completion
from drlib.task import Task
from drlib.tools import TOOLS, Toolbox
from drlib.trajectory import Termination
from drlib.worlds import Entity, SmallWorld
from tests.scripted_server import Scripted
from tests.template_examples import tokenizer_of

WORLD = SmallWorld(
    [
        Entity("Norway", "territory", {"currency": "Krone", "capital": "Oslo"}),
        Entity("Oslo", "city", {"territory": "Norway"}, ("Oslo had 709,037 inhabitants.",)),
    ],
    "atlas",
)
TASK = Task("t", "What is the currency of Norway?", "Krone", "search", "a")


def call(name, arguments, ident):
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": ident, "type": "function", "function": {"name": name, "arguments": text}}


def search(query, ident):
    return call("search", {"query": [query]}, ident)


def run(say, limits=None, **tools):
    """Return (trajectory, request bodies, events) of one rollout over a server."""
    with Scripted(say) as server, Toolbox(WORLD, **tools) as toolbox:
        server.keep = True
        endpoint = ChatEndpoint(server.url, "scripted", timeout_s=5.0)
        schemas = [tool.function for tool in toolbox.tools.values()]
        agent = ReAct(ApiEngine(endpoint, pause_s=0.01, tools=schemas), toolbox, limits=limits)
        events = []

        def watch(*event):
            return events.extend(format_event(*event))

        (done,) = agent.run([TASK], temperature=0.0, watch=watch)
        return done, server.bodies, events


def pair_ids(messages):
    """Return the ids of all calls and of all responses, in order."""
    calls = [each["id"] for m in messages for each in m.get("tool_calls", ())]
    return calls, [m["tool_call_id"] for m in messages if m["role"] == "tool"]


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        ({"content": "Krone"}, "Krone"),
        ({"content": "It is the **Krone**.\n"}, "It is the **Krone**."),
        ({"content": "Krone", "reasoning_content": "I saw <answer>x</answer>."}, "Krone"),
        ({"content": "<think>Seen.</think>\n\nKrone"}, "Krone"),
        ({"content": "<answer>Krone</answer>"}, "Krone"),
        ({"content": [{"type": "text", "text": "Krone"}], "tool_calls": []}, "Krone"),
    ],
)
def test_turn_without_call_is_the_answer(message, answer):
    def say(messages):
        if messages[-1]["role"] == "tool":
            return {"role": "assistant", **message}
        return {"content": None, "tool_calls": [search("Norway", "a1")]}

    done, _, _ = run(say)
    assert (done.answer, done.termination) == (answer, Termination.ANSWERED)
    assert [result.tool for result in done.tool_results] == ["search"]


def test_text_mode_still_needs_an_answer_tag():
    with Scripted(lambda _: "Krone") as server, pytest.raises(AskError):
        ask(TASK.question, AskOptions(endpoint=server.url, model="scripted"))


@pytest.mark.parametrize("idents", [("a1", "b2", "c3"), ("", "", ""), ("x", "x", "")])
def test_parallel_calls_are_executed_and_answered(idents):
    def say(messages):
        if messages[-1]["role"] == "tool":
            return {"content": "Krone"}
        calls = [
            search("Norway", idents[0]),
            call("visit", {"url": ["Oslo"], "goal": "size"}, idents[1]),
            call("nothing", {}, idents[2]),
        ]
        return {"content": "I will look at both.", "tool_calls": calls}

    done, (_, body), events = run(say)
    assert [r.tool for r in done.tool_results] == ["search", "visit", "nothing"]
    assert [r.ok for r in done.tool_results] == [True, True, False]
    assert "709,037" in done.tool_results[1].text
    calls, responses = pair_ids(body["messages"])
    assert calls == responses and len(set(calls)) == 3
    if idents[0] == "a1":
        assert tuple(calls) == idents
    texts = [m["content"] for m in body["messages"] if m["role"] == "tool"]
    assert texts == [r.text for r in done.tool_results]
    assert body["messages"][1]["content"] == "I will look at both."
    shown = [(line.head, line.text) for line in events]
    assert shown[0] == ("writes", "I will look at both.") and shown[2][0] == "visit"


def test_calls_beyond_the_limit_are_not_sent_without_response():
    def say(messages):
        if "tools" not in said_last:
            said_last["tools"] = True
            return {"content": None, "tool_calls": [search(str(i), f"i{i}") for i in range(3)]}
        return {"content": "Krone"}

    said_last = {}
    done, bodies, _ = run(say, Limits(calls=2, force_answer=True))
    assert len(done.tool_results) == 2 and done.answer == "Krone"
    calls, responses = pair_ids(bodies[-1]["messages"])
    assert calls == responses == ["i0", "i1"]
    assert bodies[-1]["messages"][-1]["role"] == "user"


def test_invalid_call_beside_valid_ones_is_an_error_of_its_own():
    def say(messages):
        if len(messages) > 1:
            return {"content": "Krone"}
        broken = call("search", '{"query": [', "b")
        return {"content": None, "tool_calls": [search("Norway", "a"), broken, search("x", "c")]}

    done, bodies, _ = run(say)
    assert [r.error for r in done.tool_results] == ["", "format", "empty"]
    assert done.answer == "Krone"
    roles = [m["role"] for m in bodies[-1]["messages"]]
    assert roles == ["user", "assistant", "user", "user", "user"]  # all as text


@pytest.mark.parametrize(
    ("text", "actions"),
    [
        ("Oslo", [Answer("Oslo")]),
        ("<think>a</think>\n Oslo <|im_end|>", [Answer("Oslo")]),
        ("thought</think>Oslo", [Answer("Oslo")]),
        ("<think>a</think> ", [FormatError("no tool call or answer.")]),
        ("", [FormatError("no tool call or answer.")]),
        ("<think>a", [FormatError("think is not closed.")]),
        ("<answer>Oslo</answer> more", [Answer("Oslo")]),
        (
            "text" + render_call("a", {"x": "</tool_call>"}) + "\n" + render_call("b", {}),
            [ToolCall("a", {"x": "</tool_call>"}), ToolCall("b", {})],
        ),
        (
            render_call("a", {}) + "<tool_call>{</tool_call>" + render_call("c", {}),
            [
                ToolCall("a", {}),
                FormatError("tool call is not valid JSON."),
                ToolCall("c", {}),
            ],
        ),
        (
            render_call("a", {}) + '<tool_call>{"name": "b"',
            [ToolCall("a", {}), FormatError("tool call is not closed.")],
        ),
        (render_call("a", {}) + "<answer>x</answer>", [ToolCall("a", {})]),
    ],
)
def test_native_turns_are_parsed(text, actions):
    assert parse_native(text) == actions


@pytest.mark.parametrize("native", [True, False])
def test_several_observations_of_token_ids_open_one_turn(native):
    tokenizer = tokenizer_of("qwen3")
    tools = [TOOLS["search"].function] if native else ()
    chat = TemplateIds(tokenizer, tools, tool_role="tool" if native else "user")
    assert chat.has_native_tools is native
    context = IdContext(chat, "question")
    context.take_unread()
    turn = chat.encode("turn")
    context.add_turn(Completion(turn))
    context.observe("one")
    context.observe("two")
    context.add_user("three")
    ids = context.take_unread()
    text = tokenizer.decode(ids)
    assert text.count(tokenizer.decode(chat.assistant_start)) == 1
    assert text.endswith(tokenizer.decode(chat.assistant_start))
    assert [text.count(word) for word in ("one", "two", "three")] == [1, 1, 1]
    assert text.count("<|im_end|>") == 4  # of the policy's turn and of each message


COERCED = [
    ("python", {"code": ["print(1)"]}, {"code": "print(1)"}),
    ("calculator", {"expression": 17500}, {"expression": "17500"}),
    ("search", {"query": "Norway"}, {"query": ["Norway"]}),
    ("search", {"query": 1984}, {"query": ["1984"]}),
    ("search", {"query": ["Norway", 1.5]}, {"query": ["Norway", "1.5"]}),
    ("visit", {"url": "Oslo"}, {"url": ["Oslo"], "goal": "the question"}),
    ("visit", {"url": ["Oslo"], "goal": ["size"]}, {"url": ["Oslo"], "goal": "size"}),
]


@pytest.mark.parametrize(("name", "given", "expected"), COERCED)
def test_unambiguous_arguments_are_converted(name, given, expected):
    assert TOOLS[name].coerce(given) == expected
    assert TOOLS[name].argument_error(given) != ""
    assert TOOLS[name].argument_error(expected) == ""


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("search", {"query": {"q": "Norway"}}),
        ("search", {"query": True}),
        ("search", {}),
        ("search", {"query": []}),
        ("calculator", {"expression": ["1", "2"]}),
        ("calculator", {"expression": None}),
    ],
)
def test_ambiguous_arguments_stay_errors(name, given):
    assert TOOLS[name].argument_error(TOOLS[name].coerce(given)) != ""


def test_only_lenient_toolboxes_convert():
    with Toolbox(WORLD, coerce=True) as lenient, Toolbox(WORLD) as strict:
        assert "709,037" in lenient.call("visit", {"url": "Oslo"}).text
        assert strict.call("visit", {"url": "Oslo"}).error == "arguments"


def answer_after(texts):
    """Return a model that writes these texts, one a turn, then the answer."""
    turns = iter(texts)
    return lambda _: next(turns, "<answer>Krone</answer>")


def test_unreadable_turns_get_the_expected_form_once(capsys):
    with Scripted(answer_after(["I think Krone.", "Krone!"])) as server:
        server.keep = True
        lines = []
        options = AskOptions(endpoint=server.url, model="scripted")

        def watch(*event):
            return lines.extend(format_event(*event))

        assert ask(TASK.question, options, watch=watch).answer == "Krone"
    helps = [m["content"] for m in server.bodies[-1]["messages"] if FORMAT_HELP in m["content"]]
    assert len(helps) == 1 and "<tool_call>\n{" in helps[0]
    unreadable = [line.text for line in lines if line.head == "unreadable"]
    assert ["I think Krone." in unreadable[0], "Krone!" in unreadable[1]] == [True, True]


@pytest.mark.parametrize("native", [False, True])
def test_three_unreadable_turns_end_the_run_with_remedies(native):
    broken = {"content": None, "tool_calls": [call("search", "{", "a")]} if native else "Krone."
    with Scripted(lambda _: broken) as server:
        options = AskOptions(endpoint=server.url, model="scripted", native=native)
        with pytest.raises(AskError) as caught:
            ask(TASK.question, options)
        assert server.asked == 3
    for word in ("template", "--native-tools", "larger model", "drlib train sft"):
        assert word in str(caught.value)


def test_opened_pages_are_separate_from_listed_ones():
    def say(messages):
        step = sum(m["role"] == "tool" for m in messages)
        calls = [
            search("territory", "a"),
            call("visit", {"url": ["Oslo"], "goal": "g"}, "b"),
            call("visit", {"url": ["cldr:Norway"], "goal": "g"}, "c"),
        ]
        return (
            {"content": None, "tool_calls": [calls[step]]} if step < 3 else {"content": "709,037"}
        )

    done, _, _ = run(say)
    sources = {source.title: source for source in find_sources(done)}
    assert sorted(sources) == ["Norway", "Oslo"]
    assert all(source.opened for source in sources.values())
    assert sources["Oslo"].supports and not sources["Norway"].supports
    done.tool_results[1:] = []
    listed = find_sources(done)
    assert listed and not any(source.opened for source in listed)


def test_report_lists_opened_pages_as_sources():
    def say(messages):
        if messages[-1]["role"] != "tool":
            calls = [search("Norway", "a"), call("visit", {"url": ["Oslo"]}, "b")]
            return {"content": None, "tool_calls": calls}
        return {"content": "Krone"}

    with Scripted(say) as server:
        options = AskOptions(endpoint=server.url, model="scripted", native=True)
        report = render_report("q", ask(TASK.question, options))
    sources, _, listed = report.partition("## Listed by searches, not opened")
    assert "## Sources" in sources and "[Oslo]" in sources and "[Norway]" not in sources
    assert "[Norway]" in listed and "[Oslo]" not in listed
