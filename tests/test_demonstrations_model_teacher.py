"""AgentFounder with a language model as teacher and judge, and the `craft` command.

A scripted model that makes errors is served over real HTTP. Synthesis runs no tool.

Run: python -m pytest tests/test_demonstrations_model_teacher.py
"""

import json
import random

import pytest

from drlib.chat.tool_calls import Answer, ToolCall, parse, render_answer, render_call
from drlib.cli import craft as craft_command
from drlib.demonstrations.agentfounder import CHOICE, DECISION, KEPT, higher_order, sample_of
from drlib.demonstrations.model_teacher import ModelTeacher
from drlib.endpoint import ChatEndpoint
from drlib.files import read_json_lines
from drlib.questions.escalation import CLOSED_BOOK_PROMPT
from drlib.questions.replies import Replies
from drlib.task import Task
from drlib.tools import Toolbox
from tests.agent_examples import tour_chat
from tests.scripted_server import Scripted

chat = tour_chat
TASK = Task("t", "Which instrument does the captain play?", "tin whistle", "search", "tern", 2)
KNOWN = ["The captain of Ottermaid is Silvan Pookley.", "He plays the tin whistle."]
SEARCH = {"thought": "Who is it?", "tool": "search", "arguments": {"query": ["Ottermaid"]}}


@pytest.fixture(autouse=True)
def no_tool(monkeypatch):
    """Check that synthesis never calls a tool."""
    calls = []
    monkeypatch.setattr(Toolbox, "call", lambda self, *a, **k: calls.append(a))
    yield
    assert calls == []


class Model:
    """Replies by the kind of request: "plan", "judge", "draft", "refine" or "others".

    A list is returned one element per request.
    """

    def __init__(self, **replies):
        self.replies = {
            "plan": json.dumps(SEARCH),
            "judge": "<think>hm</think>Yes.",
            "draft": "fiddle",
            "refine": json.dumps({"reasoning": "He plays it.", "answer": "tin whistle"}),
            "others": json.dumps([SEARCH | {"thought": str(n)} for n in range(9)]),
        } | replies
        self.asked = []

    def say(self, messages):
        system = messages[0]["content"]
        starts = {
            "You plan": "plan",
            "You judge": "judge",
            "You see": "others",
            CLOSED_BOOK_PROMPT: "draft",
        }
        kind = next((k for start, k in starts.items() if system.startswith(start)), "refine")
        self.asked.append((kind, system, messages[1]["content"]))
        said = self.replies[kind]
        return said.pop(0) if isinstance(said, list) else said


@pytest.fixture
def make_teacher(tmp_path):
    """Return a function that serves a model and returns its teacher."""
    servers = []

    def start(model, calls=99):
        server = Scripted(model.say).__enter__()
        servers.append(server)
        path = tmp_path / f"{len(servers)}.jsonl"
        endpoint = ChatEndpoint(server.url, "scripted")
        return ModelTeacher(Replies(endpoint, path, calls=calls, workers=1), names=["Ottermaid"])

    yield start
    for server in servers:
        server.__exit__()


def test_plans_are_written_without_the_facts(make_teacher):
    other = SEARCH | {"thought": "The harbours.", "arguments": {"query": ["harbour"]}}
    guess = {"thought": "I know.", "answer": "fiddle"}
    plans = [json.dumps(SEARCH), json.dumps(SEARCH), json.dumps(other), json.dumps(guess), "eh?"]
    model = Model(plan=plans, judge=["yes", "No: it asks about harbours."])
    rows = make_teacher(model).plans(TASK, KNOWN, ["ferries.md"], k=5)
    assert [row.judge for row in rows] == [
        KEPT,
        "the judge: No: it asks about harbours.",
        "no tool call",
        "it cannot be read",
    ]
    plan = rows[0].parts[1][1].removesuffix("<|im_end|>")
    assert parse(plan) == ToolCall("search", {"query": ["Ottermaid"]})
    assert (rows[0].kind, rows[0].source_ids) == ("fas_plan", ("ferries.md",))
    for kind, system, user in model.asked:
        has_facts = KNOWN[0] in system and TASK.answer in system
        assert has_facts == (kind == "judge")
        assert TASK.question in user and (plan in user or kind == "plan" or "harbour" in user)


@pytest.mark.parametrize("said", ["", "maybe", "I would say yes", "yesterday"])
def test_reply_without_a_verdict_is_not_kept(make_teacher, said):
    (row,) = make_teacher(Model(judge=said)).plans(TASK, KNOWN, [], k=1)
    assert row.judge == "not judged: no verdict"


def test_exhausted_budget_keeps_nothing(make_teacher):
    (row,) = make_teacher(Model(), calls=1).plans(TASK, KNOWN, [], k=1)
    assert row.judge == "not judged: budget: 1 calls are spent"
    row = make_teacher(Model(), calls=1).reasoning(TASK, KNOWN, [])
    assert row.judge == "budget: 1 calls are spent"


@pytest.mark.parametrize(
    ("refined", "judge"),
    [
        ({"reasoning": "He plays it.", "answer": "tin whistle"}, KEPT),
        ({"reasoning": "word " * 51, "answer": "tin whistle"}, "too long"),
        ({"reasoning": "As I said.", "answer": "fiddle"}, "another answer"),
        ({"reasoning": "No answer."}, "it cannot be read"),
    ],
)
def test_reasoning_is_kept_by_answer_and_length(make_teacher, refined, judge, chat):
    model = Model(refine=json.dumps(refined))
    row = make_teacher(model).reasoning(TASK, KNOWN, ["ferries.md"])
    assert row.judge == judge and row.kind == "fas_reason"
    kinds = [kind for kind, *_ in model.asked]
    assert kinds == ["draft", "refine"] and KNOWN[0] not in model.asked[0][1]
    assert "fiddle" in model.asked[1][1] and KNOWN[1] in model.asked[1][1]
    assert dict(row.parts)["facts"] == "".join(f"{one}\n" for one in KNOWN)
    if judge == KEPT:
        own = dict(row.parts)["own"].removesuffix("<|im_end|>")
        assert parse(own) == Answer("tin whistle")
        sample = sample_of(row, chat)
        assert 0 < sum(sample.loss) < len(sample)


STEPS = [
    "<think>Who?</think>" + render_call("search", {"query": ["Ottermaid"]}),
    "<think>Now I know.</think>" + render_answer("tin whistle"),
]
MESSAGES = [
    {"role": "user", "content": TASK.question},
    {"role": "assistant", "content": STEPS[0]},
    {"role": "tool", "content": "The captain of Ottermaid is Silvan Pookley."},
    {"role": "assistant", "content": STEPS[1]},
]


def test_model_adds_alternatives_to_a_decision(make_teacher):
    model = Model()
    row = higher_order(MESSAGES, True, "a-1", make_teacher(model), 3, random.Random(0))
    options = row.parts[1][1].splitlines()
    assert len(options) == 4 and row.judge == KEPT
    number = int(row.parts[2][1].split("\n")[0].removeprefix(CHOICE))
    assert options[number - 1] == f"{number}. {STEPS[0]}"
    assert row.parts[-1][1].startswith(f"\n{DECISION}Correct")
    ((_, _, user),) = model.asked  # one request for the one call; the answer has no options
    assert TASK.question in user and user.endswith(STEPS[0])


@pytest.mark.parametrize(
    "said", ["none", "[]", json.dumps([SEARCH, SEARCH]), json.dumps([1, {"thought": 2}])]
)
def test_too_few_model_alternatives_raise(make_teacher, said):
    with pytest.raises(ValueError, match="alternatives of 3|no JSON list"):
        higher_order(MESSAGES, True, "a-1", make_teacher(Model(others=said)), 3, random.Random(0))


# ---------------------------------------------------------------- the craft command


class Writer(Model):
    """Also writes questions about the first language in the prompt, and answers them."""

    def __init__(self, **replies):
        super().__init__(**replies)
        self.answers = {}

    def say(self, messages):
        system, user = (message["content"] for message in messages)
        if system.startswith("You write"):
            lines = [line for line in user.splitlines() if ". The language of " in line]
            if not lines:
                return "nothing that I can ask"
            number, text = lines[0].split(". ", 1)
            thing, value = text.removeprefix("The language of ").rstrip(".").split(" is ")
            question = f"Which language do they speak in {thing}?"
            self.answers[question] = value
            written = {"question": question, "answer": value, "statements": [int(number)]}
            return json.dumps(written)
        if system.startswith("Answer the user's question from the statements"):
            return self.answers[user]
        if system.startswith("Answer the user's question. From memory"):
            return json.dumps({"reasoning": "It is said.", "answer": self.answers[user]})
        return super().say(messages)


def run(out, url, *more):
    options = [
        "--world",
        "tour",
        "-n",
        "12",
        "--url",
        url,
        "--model",
        "scripted",
        "--out",
        str(out),
    ]
    return craft_command.main([*options, "--styles", "fact", *more])


def test_craft_writes_its_files_and_resumes(tmp_path, capsys):
    attempts = tmp_path / "attempts.jsonl"
    row = {"question": TASK.question, "answer": "tin whistle", "prediction": "Tin whistle."}
    tagged = {
        "role": "user",
        "content": f"<tool_response>\n{MESSAGES[2]['content']}\n</tool_response>",
    }
    messages = [{"role": "system", "content": "You research."}, *MESSAGES[:2], tagged, MESSAGES[3]]
    attempts.write_text(json.dumps(row | {"messages": messages}) + "\n")
    with Scripted(Writer().say) as server:
        out = tmp_path / "made"
        assert run(out, server.url, "--attempts", str(attempts)) == 0
        first, asked = sorted(out.iterdir()), server.asked
        texts = [path.read_bytes() for path in first]
        assert run(out, server.url, "--attempts", str(attempts)) == 0
        assert server.asked == asked  # no repeated request, and the files are bit-identical
        assert [path.read_bytes() for path in first] == texts
    questions = read_json_lines(out / "questions.jsonl")
    kept = [one for one in questions if not one["reason"]]
    assert len(questions) == 12 and kept
    assert all(one["known"][0]["sources"] for one in kept)
    rows = read_json_lines(out / "rows.jsonl")
    assert {row["kind"] for row in rows} == {"fas_plan", "fas_reason", "has"}
    assert all(row["judge"] == KEPT for row in rows)
    (has,) = (row for row in rows if row["kind"] == "has")
    assert has["source_ids"] == ["attempts.jsonl:1"]
    assert ["tool", MESSAGES[2]["content"]] in has["parts"]  # without its tags
    card = (out / "README.md").read_text()
    assert f"| fact | kept | {len(kept)} |" in card and "| has | kept | 1 |" in card
    assert capsys.readouterr().out.endswith("README.md\n")


def test_reader_model_reads_and_judges(tmp_path):
    """The writer receives no answer or verdict requests, the reader only those."""
    writer, reader = Writer(), Writer()
    reader.answers = writer.answers
    with Scripted(writer.say) as server, Scripted(reader.say) as other:
        other.model = "second"
        out = tmp_path / "made"
        assert run(out, server.url, "--reader", "second", "--reader-url", other.url) == 0
        alone = tmp_path / "alone"
        assert run(alone, server.url) == 0
    judged = [kind for kind, *_ in reader.asked]
    assert "judge" in judged and {"plan", "draft", "refine"}.isdisjoint(judged)
    by_reader, by_both = (
        read_json_lines(out / "readings.jsonl"),
        read_json_lines(alone / "replies.jsonl"),
    )
    by_writer = read_json_lines(out / "replies.jsonl")
    assert len(by_reader) + len(by_writer) == len(by_both) and by_reader and by_writer
    assert not (alone / "readings.jsonl").exists()
    assert "read and judged by second," in (out / "README.md").read_text()
    rows_by_folder = [(folder / "rows.jsonl").read_bytes() for folder in (out, alone)]
    assert rows_by_folder[0] == rows_by_folder[1]


def test_craft_rejects_invalid_arguments(tmp_path, capsys):
    with Scripted(Model(plan="eh?").say) as server:
        wrong = tmp_path / "wrong.jsonl"
        wrong.write_text('{"question": "?"}\n')
        empty = tmp_path / "empty.jsonl"
        empty.write_text('{"question": "?", "answer": "", "prediction": "", "messages": []}\n')
        for arguments, message in (
            (["--styles", "poem"], "unknown style 'poem'"),
            (["--styles", ","], "--styles is empty"),
            (["-n", "0"], "-n and --plans must be at least 1"),
            (["--reader-url", server.url], "--reader-url requires --reader"),
            (["--world", "nowhere"], "unknown world 'nowhere'"),
            (["--attempts", str(wrong)], "wrong.jsonl:1 is no attempt"),
            (["--attempts", str(empty)], "empty.jsonl:1 is no attempt"),
            (["--url", "localhost"], "is not an http(s) address"),
            ([], "no question was kept: {'it cannot be read': 12}"),
        ):
            assert run(tmp_path / "out", server.url, *arguments) == 1
            assert message in capsys.readouterr().err
