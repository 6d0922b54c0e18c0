"""`drlib ask --few-shot` and `--constrained`: help for models that do not write the format.

Servers are real loopback servers; models in folders are untrained.

Run: python -m pytest tests/test_app_small_models.py
"""

import json

import jsonschema
import pytest

from drlib.chat.template import load_any_tokenizer
from drlib.chat.tool_calls import FormatError, parse, render_answer
from drlib.chat.worked_example import ANSWER, QUESTION
from drlib.trajectory import Segment, load_trajectories
from tests.scripted_server import Scripted
from tests.template_examples import foreign_model
from tests.test_app import LOOK, NORWAY, TOUR_POLICY, researcher, run_ask, server_arguments


def call_then_answer(messages):
    """Return turns as JSON: a search, then the answer."""
    if "cldr:Norway" in messages[-1]["content"]:
        return json.dumps({"thought": "There.", "action": {"answer": "Norwegian Krone"}})
    call = {"name": "search", "arguments": {"query": ["Norway"]}}
    return json.dumps({"thought": "Look it up.", "action": call})


def read_schema(body):
    form = body["response_format"]
    assert form["type"] == "json_schema" and form["json_schema"]["strict"]
    return form["json_schema"]["schema"]


def rejected(value, schema):
    return not jsonschema.Draft202012Validator(schema).is_valid(value)


# ---- few-shot


def test_example_precedes_the_question_at_a_server(capsys, tmp_path):
    saved, report = tmp_path / "asked.parquet", tmp_path / "asked.md"
    with Scripted(researcher) as server:
        server.keep = True
        options = ["--few-shot", "--save", saved, "--report", report]
        status, out, err = run_ask(capsys, NORWAY, *server_arguments(server), *options)
    assert (status, err) == (0, "") and "Norwegian Krone" in out
    for body, size in zip(server.bodies, (6, 8)):
        roles = [message["role"] for message in body["messages"]]
        assert roles == ["system", *["user", "assistant"] * size][:size]
    shown = [message["content"] for message in server.bodies[0]["messages"]]
    assert shown[1] == QUESTION and shown[5] == NORWAY
    assert parse(shown[2]).name == "search" and parse(shown[4]).text == ANSWER
    assert shown[3].startswith("<tool_response>\n") and ANSWER in shown[3]
    (kept,) = load_trajectories(saved)
    assert kept.messages[1]["content"] == NORWAY and len(kept.tool_results) == 1
    assert ANSWER not in json.dumps(kept.messages) + report.read_text() + out
    assert [message["content"] for message in kept.metadata["example"]][::3] == shown[1:5:3]


def test_example_is_native_with_native_tools(capsys):
    with Scripted(lambda messages: "Norwegian Krone") as server:
        server.keep = True
        options = ["--few-shot", "--native-tools", "--quiet"]
        assert run_ask(capsys, NORWAY, *server_arguments(server), *options)[0] == 0
    _, question, call, response, answer, last = server.bodies[0]["messages"]
    assert call["tool_calls"][0]["function"]["name"] == "search"
    assert response["tool_call_id"] == call["tool_calls"][0]["id"]
    assert (question["content"], answer["content"]) == (QUESTION, ANSWER)
    assert last == {"role": "user", "content": NORWAY}


@pytest.mark.parametrize("copied", [ANSWER, "It is ilvane DOSTRELL.", "Quellmarrow"])
def test_answer_copied_from_the_example_is_no_answer(capsys, copied):
    with Scripted(lambda messages: render_answer(copied)) as server:
        arguments = [NORWAY, *server_arguments(server), "--quiet"]
        status, out, err = run_ask(capsys, *arguments, "--few-shot")
        assert (status, out) == (1, "") and copied in err and "--few-shot" in err
        assert run_ask(capsys, *arguments)[:2] == (0, f"{copied}\n")


@pytest.mark.parametrize("native", [[], ["--native-tools"]])
def test_example_is_part_of_the_prompt_of_a_folder(capsys, tmp_path, native):
    folder = foreign_model(tmp_path / "model")
    records = {}
    for name, options in (("few", ["--few-shot"]), ("plain", [])):
        saved = tmp_path / f"{name}.parquet"
        limits = ["--turn-tokens", 8, "--calls", 1, "--save", saved, *native]
        assert run_ask(capsys, NORWAY, "--folder", folder, *limits, *options)[0] == 1
        (records[name],) = load_trajectories(saved)
    few, plain = records["few"], records["plain"]
    tokenizer = load_any_tokenizer(folder)
    first = few.generated.argmax()
    prompt = tokenizer.decode(few.token_ids[:first])
    assert prompt.index(QUESTION) < prompt.index(ANSWER) < prompt.index(NORWAY)
    assert prompt.count("<|im_start|>assistant") == 3 and not few.generated[:first].any()
    assert set(few.segments[:first].tolist()) == {Segment.PROMPT, Segment.TEMPLATE}
    assert [m["content"] for m in few.messages[:2]] == [m["content"] for m in plain.messages[:2]]
    assert ANSWER not in json.dumps(few.messages) and "example" not in plain.metadata
    start = plain.generated.argmax()
    assert tokenizer.decode(plain.token_ids[:start]).count("<|im_start|>assistant") == 1


# ---- constrained, servers


def test_server_receives_the_schema_and_turns_as_json(capsys, tmp_path):
    saved = tmp_path / "asked.parquet"
    with Scripted(call_then_answer) as server:
        server.keep = True
        options = [*server_arguments(server), "--constrained", "--few-shot", "--save", saved]
        status, out, err = run_ask(capsys, NORWAY, *options)
    assert (status, err) == (0, "") and "Answer  Norwegian Krone" in out
    schema = read_schema(server.bodies[0])
    assert read_schema(server.bodies[1]) == schema
    sent = [json.loads(m["content"]) for m in server.bodies[1]["messages"] if is_turn(m)]
    assert len(sent) == 3 and not any(rejected(turn, schema) for turn in sent)
    assert sent[2]["thought"] == "Look it up." and sent[1]["action"] == {"answer": ANSWER}
    (kept,) = load_trajectories(saved)
    assert kept.messages[2]["content"] == LOOK
    system = server.bodies[0]["messages"][0]["content"]
    assert '"name": "search"' in system and "<tool_call>" not in system


def is_turn(message):
    return message["role"] == "assistant"


def test_schema_admits_calls_of_the_offered_tools_and_answers(capsys):
    with Scripted(call_then_answer) as server:
        server.keep = True
        run_ask(capsys, NORWAY, *server_arguments(server), "--constrained", "--quiet")
    schema = read_schema(server.bodies[0])

    def turn(**action):
        return {"thought": "", "action": action}

    assert not rejected(turn(answer="Oslo"), schema)
    assert not rejected(turn(name="search", arguments={"query": ["a"]}), schema)
    assert not rejected(turn(name="python", arguments={"code": "1"}), schema)
    assert rejected(turn(name="google", arguments={"query": ["a"]}), schema)
    assert rejected(turn(name="search", arguments={"query": "a"}), schema)
    assert rejected(turn(name="search", arguments={"query": ["a"], "k": 1}), schema)
    assert rejected(turn(name="python", arguments={"query": ["a"]}), schema)
    assert rejected(turn(answer="Oslo", name="search"), schema)
    assert rejected({"action": {"answer": "Oslo"}}, schema)


@pytest.mark.parametrize("status", [400, 422])
def test_server_that_rejects_the_constraint_is_an_error(capsys, status):
    def reject(body):
        words = "Unsupported parameter: 'response_format'"
        return (status, {"error": {"message": words}}) if "response_format" in body else None

    with Scripted(researcher) as server:
        server.whole = reject
        arguments = [NORWAY, *server_arguments(server), "--quiet"]
        code, out, err = run_ask(capsys, *arguments, "--constrained")
        assert (code, out, server.asked) == (1, "", 1) and err.count("\n") == 1
        assert "Unsupported parameter" in err and "--constrained" in err and "--omit" not in err
        assert run_ask(capsys, *arguments)[0] == 0


@pytest.mark.parametrize("say", [researcher, lambda messages: '{"action": {"answer": "Oslo"}}'])
def test_server_that_ignores_the_constraint_is_an_error(capsys, say):
    with Scripted(say) as server:
        options = [*server_arguments(server), "--constrained", "--quiet"]
        status, out, err = run_ask(capsys, NORWAY, *options)
    assert (status, out, server.asked) == (1, "", 1) and err.count("\n") == 1
    assert "response_format" in err and "does not constrain" in err


def test_truncated_json_is_the_token_limit(capsys):
    cut = {"message": {"content": '{"thought": "I wond'}, "finish_reason": "length"}
    with Scripted(researcher) as server:
        server.whole = lambda body: {"choices": [cut]}
        options = [*server_arguments(server), "--constrained", "--quiet"]
        status, _, err = run_ask(capsys, NORWAY, *options)
    assert status == 1 and "--turn-tokens" in err


def test_tags_inside_json_do_not_act(capsys):
    """A thought or answer in JSON may quote tags: they are text."""

    def say(messages):
        thought = "<answer>wrong</answer>"
        return json.dumps({"thought": thought, "action": {"answer": "a</answer>b"}})

    with Scripted(say) as server:
        options = [*server_arguments(server), "--constrained", "--quiet"]
        status, out, _ = run_ask(capsys, NORWAY, *options)
    assert (status, out) == (0, "a< /answer>b\n")


# ---- constrained, folders


def test_every_turn_of_an_untrained_folder_is_valid(capsys, tmp_path):
    folder, saved = foreign_model(tmp_path / "model"), tmp_path / "asked.parquet"
    options = ["--folder", folder, "--constrained", "--calls", 2, "--turn-tokens", 6000]
    options += ["--temperature", 1, "--save", saved]
    run_ask(capsys, NORWAY, *options)
    (kept,) = load_trajectories(saved)
    turns = [m["content"] for m in kept.messages if is_turn(m)]
    assert turns and not any(isinstance(parse(turn), FormatError) for turn in turns)
    assert all(result.tool != "format" for result in kept.tool_results)


@pytest.mark.parametrize("name", ["rejects", "ignores"])
def test_token_server_without_structured_outputs_is_an_error(capsys, tmp_path, name):
    """A server of token ids as vLLM's, which rejects the grammar or drops it."""
    folder = foreign_model(tmp_path / "model")
    tokenizer = load_any_tokenizer(folder)
    turn = [*tokenizer.encode("Norwegian Krone"), tokenizer.eos_token_id]
    received = []
    capsys.readouterr()

    def reply(body):
        received.append(body["structured_outputs"]["grammar"])
        if name == "rejects":
            return 400, {"error": {"message": "structured_outputs: extra fields not permitted"}}
        logprobs = {"token_logprobs": [-1.0] * len(turn)}
        return {"choices": [{"token_ids": turn, "logprobs": logprobs, "finish_reason": "stop"}]}

    with Scripted(researcher) as server:
        server.whole = reply
        options = ["--folder", folder, *server_arguments(server), "--constrained", "--quiet"]
        status, out, err = run_ask(capsys, NORWAY, *options)
    assert (status, out, len(received)) == (1, "", 1) and err.count("\n") == 1
    assert "structured_outputs" in err and "--constrained" in err and "--omit" not in err
    assert '"enum": ["search"]' in received[0]


SERVER = ("--endpoint", "http://127.0.0.1:9/v1", "--model", "m")
CONFLICTS = {
    "tour": (["--few-shot"], "--few-shot needs --endpoint or --folder"),
    "tour constrained": (["--constrained"], "--constrained needs --endpoint or --folder"),
    "agent": (["--constrained", "--agent", "heavy", *SERVER], "supports the agents react"),
    "preset": (["--few-shot", "--preset", "tongyi", *SERVER], "--preset"),
    "native": (["--constrained", "--native-tools", *SERVER], "--native-tools"),
    "omitted": (["--constrained", "--omit", "response_format", *SERVER], "--omit"),
    "policy": (["--few-shot", "--folder", TOUR_POLICY], "trained on the format"),
}


@pytest.mark.parametrize("name", CONFLICTS)
def test_options_that_exclude_each_other(capsys, name):
    arguments, words = CONFLICTS[name]
    status, out, err = run_ask(capsys, NORWAY, *arguments)
    assert (status, out) == (1, "") and words in err and err.count("\n") == 1
