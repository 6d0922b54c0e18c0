"""Presets of published agents: requests in the form that the models were trained on.

The replies are ours, in the form that is recorded for each model; the server is real.

Run: python -m pytest tests/test_agents_preset.py
"""

import datetime
import hashlib
import json

import pytest

from drlib.agents.preset import list_presets, load_preset, read_prompt
from drlib.app import AskOptions, ask
from drlib.app.research import AskError, preset_options
from drlib.app.terminal import format_event
from drlib.cli.ask import main
from drlib.models.api_engine import MessageFormat
from tests.scripted_server import Scripted

QUESTION = "What is the currency of Norway, and 6 * 7?"
THOUGHT = "I need <answer> tags later, and a page first."
SEARCH = (
    '<tool_call>\n{"name": "search", "arguments": {"query": ["Norway", "currency"]}}\n</tool_call>'
)
VISIT = (
    '<tool_call>\n{"name": "visit", "arguments": {"url": ["Norway"], "goal": "its currency"}}\n'
    "</tool_call>"
)
PYTHON = (
    '<tool_call>\n{"name": "PythonInterpreter", "arguments": {}}\n<code>\nx = 6 * 7\nprint(x)\n'
    "</code>\n</tool_call>"
)
ANSWER = "<answer>Norwegian Krone, 42</answer>"


def replies(*messages):
    """Return a model that sends these messages, one a turn."""
    turns = iter(messages)
    return lambda _: next(turns)


def run(name, say, tmp_path, events=None, **options):
    """Return (result, request bodies) of one question."""
    with Scripted(say) as server:
        server.keep = True
        chosen = AskOptions(
            endpoint=server.url, model="scripted", **preset_options(name), **options
        )
        watch = None if events is None else lambda *event: events.extend(format_event(*event))
        return ask(QUESTION, chosen, watch), server.bodies


def test_tongyi_requests_have_the_published_form(tmp_path):
    published = tmp_path / "prompt.py"
    published.write_text('import missing\nSYSTEM_PROMPT = """Tools: none.\n\nCurrent date: """\n')
    turns = [f"<think>\n{THOUGHT}\n</think>\n{call}" for call in (SEARCH, VISIT, PYTHON)]
    turns += [f"<think>\nDone.\n</think>\n{ANSWER}"]
    events = []
    result, bodies = run(
        "tongyi",
        replies(*(f"\n{turn}\n" for turn in turns)),
        tmp_path,
        events,
        system_prompt=f"{published}:SYSTEM_PROMPT",
    )
    assert result.answer == "Norwegian Krone, 42"
    today = datetime.date.today().isoformat()
    expected = [
        {"role": "system", "content": f"Tools: none.\n\nCurrent date: {today}"},
        {"role": "user", "content": QUESTION},
    ]
    observations = [r.text for r in result.trajectory.tool_results]
    for turn, observation, body in zip(turns, observations, bodies):
        assert body["messages"] == expected
        response = f"<tool_response>\n{observation}\n</tool_response>"
        expected += [{"role": "assistant", "content": turn}, {"role": "user", "content": response}]
    assert bodies[-1]["messages"] == expected
    first, second = observations[0].split("\n=======\n")
    assert first.startswith("1. [Norway](cldr:Norway)") and "Krone" in first
    assert "\n10. [" in second and "\n11. [" not in second
    assert observations[1].startswith("The useful information in Norway for user goal its currency")
    assert observations[2] == "42"
    for body in bodies:
        assert body["stop"] == ["\n<tool_response>", "<tool_response>"]
        sampling = ("temperature", "top_p", "presence_penalty", "max_tokens")
        assert [body[name] for name in sampling] == [0.85, 0.95, 1.1, 10_000]
        assert "tools" not in body
    assert [line.head for line in events][:3] == ["thinks", "search", "reads"]


def test_tongyi_joins_separate_reasoning(tmp_path):
    first = {"role": "assistant", "content": SEARCH, "reasoning_content": f"\n{THOUGHT}\n"}
    _, bodies = run("tongyi", replies(first, ANSWER), tmp_path)
    sent = bodies[1]["messages"][2]["content"]
    escaped = THOUGHT.replace("<answer>", "< answer>")
    assert sent == f"<think>\n{escaped}\n</think>{SEARCH}"


def test_tongyi_prompt_of_drlib_lists_the_available_tools(tmp_path):
    _, bodies = run("tongyi", replies(ANSWER), tmp_path)
    prompt = bodies[0]["messages"][0]["content"]
    lines = prompt.partition("<tools>\n")[2].partition("\n</tools>")[0].splitlines()
    functions = {tool["function"]["name"]: tool["function"] for tool in map(json.loads, lines)}
    assert list(functions) == ["search", "visit", "PythonInterpreter"]
    query = functions["search"]["parameters"]["properties"]["query"]
    assert (query["type"], query["items"]["type"], query["minItems"]) == ("array", "string", 1)
    assert functions["visit"]["parameters"]["required"] == ["url", "goal"]
    assert functions["PythonInterpreter"]["parameters"]["properties"] == {}
    assert prompt.endswith(f"Current date: {datetime.date.today().isoformat()}")


def test_tongyi_lists_articles_and_files_if_the_toolbox_has_them():
    preset = load_preset("tongyi")
    names = [
        tool["function"]["name"]
        for tool in preset.list_functions(["search", "google_scholar", "parse_file", "other"])
    ]
    assert names == ["search", "google_scholar", "parse_file"]


def test_full_context_asks_for_the_answer(tmp_path):
    def say(messages):
        return ANSWER if messages[-1]["content"].startswith("The limit") else SEARCH

    preset = load_preset("tongyi")
    assert preset.limits == {"turns": 100, "answer_at_tokens": 110 * 1024}
    with Scripted(say) as server:
        server.keep = True
        server.whole = lambda body: {
            "choices": [{"message": {"content": say(body["messages"])}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 110 * 1024 - 3, "completion_tokens": 2},
        }
        options = preset_options("tongyi")
        result = ask(QUESTION, AskOptions(endpoint=server.url, model="scripted", **options))
    assert result.answer == "Norwegian Krone, 42"
    assert len(server.bodies) == 2  # the observation exceeds the limit
    assert result.trajectory.metadata["forced"] == "length"


def rstar_call(code, ident, **others):
    arguments = json.dumps({"code": code, **others})
    function = {"name": "python_code_with_standard_io", "arguments": arguments}
    return {"id": ident, "type": "function", "function": function}


def test_rstar2_requests_have_the_published_form(tmp_path):
    call = rstar_call("print(int(input()) * 7)\n1 / 2", "c1", input="6")
    bad = rstar_call("1 / 0", "c2", input="")
    say = replies(
        {"role": "assistant", "content": f"\n{THOUGHT}\n</reason>\n", "tool_calls": [call]},
        {"role": "assistant", "content": "An <answer> needs care.", "tool_calls": [bad]},
        f"So 42.\n</reason>\n{ANSWER}",
    )
    events = []
    template = tmp_path / "question.txt"
    template.write_text("Use \\boxed{} here.\n{question}")
    result, bodies = run("rstar2", say, tmp_path, events, question_prompt=str(template))
    assert result.answer == "Norwegian Krone, 42"
    user = {"role": "user", "content": f"Use \\boxed{{}} here.\n{QUESTION}"}
    assert bodies[0]["messages"] == [user]
    (tool,) = bodies[0]["tools"]
    assert tool["function"]["name"] == "python_code_with_standard_io"
    assert tool["function"]["parameters"]["required"] == ["code", "input"]
    success, failure = (r.text for r in result.trajectory.tool_results)
    lines = success.splitlines()
    assert lines[:3] == ["Tool call success", "stdout: 42", "0.5"]
    assert lines[-1].startswith("execution time: 0.") and lines[-1].endswith("s")
    assert failure.startswith("Tool call failure\nreason: \nstderr: ")
    assert "ZeroDivisionError" in failure
    assert [r.ok for r in result.trajectory.tool_results] == [True, False]
    sent = bodies[-1]["messages"]
    called = {"name": call["function"]["name"]}
    arguments = [json.loads(m["tool_calls"][0]["function"].pop("arguments")) for m in sent[1::2]]
    assert arguments == [json.loads(each["function"]["arguments"]) for each in (call, bad)]
    escaped = "An < answer> needs care."
    assert sent == [
        user,
        {
            "role": "assistant",
            "content": f"<reason>\n{THOUGHT}\n</reason>\n",
            "tool_calls": [{"id": "c1", "type": "function", "function": called}],
        },
        {"role": "tool", "content": success, "tool_call_id": "c1"},
        {
            "role": "assistant",
            "content": f"<reason>{escaped}",
            "tool_calls": [{"id": "c2", "type": "function", "function": called}],
        },
        {"role": "tool", "content": failure, "tool_call_id": "c2"},
    ]
    assert [(b["temperature"], b["max_tokens"]) for b in bodies] == [(1.0, 8192)] * 3
    assert [line.head for line in events][:2] == ["thinks", "python_code_with_standard_io"]


def test_rstar2_reads_calls_that_the_server_left_in_the_text(tmp_path):
    text = json.dumps({"name": "python_code_with_standard_io", "arguments": {"code": "print(42)"}})
    say = replies(f"Run it.\n</reason>\n<tool_call>\n{text}\n</tool_call>", ANSWER)
    result, _ = run("rstar2", say, tmp_path)
    assert "stdout: 42" in result.trajectory.tool_results[0].text


def test_endless_program_is_a_worker_timeout(tmp_path):
    from drlib.sandbox import Sandbox
    from drlib.tools.standard_io import StandardIOTool

    with Sandbox(workers=1, timeout_s=1) as sandbox:
        value = StandardIOTool.from_sandbox(sandbox).answer({"code": "while 1: pass", "input": ""})
    assert value["text"].startswith("Tool call failure\nreason: worker_timeout\n")
    assert value["status"] == "timeout" and not value["env_fault"]


def test_prompts_are_read_without_execution(tmp_path):
    plain = tmp_path / "prompt.txt"
    plain.write_text("as it is\n")
    assert read_prompt(str(plain)) == "as it is\n"
    module = tmp_path / "prompt.py"
    module.write_text(
        f'open({str(tmp_path / "ran")!r}, "w")\nA: str = ("x" "y")\nB = f"{{A}}"\nC = A\nD = 3\n'
    )
    assert read_prompt(f"{module}:A") == "xy"
    for missing in ("B", "C", "D", "E"):
        with pytest.raises(ValueError, match=f"no text constant '{missing}'.* one of A"):
            read_prompt(f"{module}:{missing}")
    with pytest.raises(ValueError, match="CONSTANT"):
        read_prompt(str(module))
    with pytest.raises(ValueError, match=r"none\.txt"):
        read_prompt(str(tmp_path / "none.txt"))
    module.write_text("A = (")
    with pytest.raises(ValueError, match="no Python file"):
        read_prompt(f"{module}:A")
    assert not (tmp_path / "ran").exists()


def test_published_prompt_is_recognised_by_its_hash():
    from dataclasses import replace

    preset = load_preset("tongyi")
    assert "--system-prompt FILE.py:SYSTEM_PROMPT" in preset.describe_prompt("")
    assert "differs" in preset.describe_prompt("another")
    known = replace(preset.prompt, sha256=hashlib.sha256(b"a prompt").hexdigest())
    assert replace(preset, prompt=known).describe_prompt("a prompt") == ""
    assert "--question-prompt FILE" in load_preset("rstar2").describe_prompt("")
    assert load_preset("rstar2").describe_prompt("", "{question}") == ""


def test_command_takes_the_values_of_the_preset_unless_given(capsys, tmp_path):
    with Scripted(lambda _: ANSWER) as server:
        server.keep = True
        arguments = [QUESTION, "--preset", "tongyi", "--endpoint", server.url]
        arguments += ["--model", "scripted", "--quiet"]
        assert main(arguments) == 0
        assert main([*arguments, "--temperature", "0.1", "--turn-tokens", "99"]) == 0
    out, err = capsys.readouterr()
    assert out == "Norwegian Krone, 42\n" * 2
    assert err.count("--system-prompt") == 2 == err.count("\n")
    sampling = [(body["temperature"], body["max_tokens"]) for body in server.bodies]
    assert sampling == [(0.85, 10_000), (0.1, 99)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"preset": "tonyi", "endpoint": "http://x/v1", "model": "m"}, "did you mean 'tongyi'"),
        ({"preset": "tongyi"}, "--preset needs --endpoint"),
        ({"preset": "tongyi", "endpoint": "http://x/v1", "model": "m", "native": True}, "as text"),
        ({"system_prompt": "x.txt"}, "need --preset"),
    ],
)
def test_options_that_do_not_fit_are_errors(options, words):
    with pytest.raises(AskError, match=words):
        AskOptions(**options)


def test_question_prompt_without_a_place_for_the_question_is_an_error(tmp_path):
    template = tmp_path / "question.txt"
    template.write_text("no place")
    with pytest.raises(AskError, match=r"has no \{question\}"):
        run("rstar2", replies(ANSWER), tmp_path, question_prompt=str(template))


@pytest.mark.parametrize("name", list_presets())
def test_every_preset_loads_and_names_its_tools_once(name):
    preset = load_preset(name)
    names = [tool["name"] for tool in preset.tools]
    assert len(set(names)) == len(names) > 0
    for tool in preset.tools:
        assert set(tool["required"]) <= set(tool["parameters"])
    assert "{question}" in preset.messages.question


def test_message_format_changes_only_the_first_user_message_and_thoughts():
    form = MessageFormat("<r>", "</r>", True, "Q: {question}")
    messages = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "<think>a</think>b"},
        {"role": "assistant", "content": "a</think>b"},
        {"role": "user", "content": "two"},
    ]
    contents = [message["content"] for message in form.write(messages)]
    assert contents == ["Q: one", "<r>a</r>b", "<r>a</r>b", "two"]
    assert MessageFormat().write(messages[1:2])[0]["content"] == "<think>a</think>b"
