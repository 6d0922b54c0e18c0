"""A language model as AgentFounder's teacher and judge, and the command that uses it: over real
HTTP, with a scripted model that errs; no tool runs.

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
    """Whatever is synthesised here, no tool runs."""
    calls = []
    monkeypatch.setattr(Toolbox, "call", lambda self, *a, **k: calls.append(a))
    yield
    assert calls == []


class Model:
    """Replies by what it is asked for: "plan", "judge", "draft", "refine" or "others"; a list is
    said one after the other."""

    def __init__(self, **says):
        self.says = {
            "plan": json.dumps(SEARCH),
            "judge": "<think>hm</think>Yes.",
            "draft": "fiddle",
            "refine": json.dumps({"reasoning": "He plays it.", "answer": "tin whistle"}),
            "others": json.dumps([SEARCH | {"thought": str(n)} for n in range(9)]),
        } | says
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
        said = self.says[kind]
        return said.pop(0) if isinstance(said, list) else said


@pytest.fixture
def taught(tmp_path):
    """model -> its teacher, behind a server."""
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


def test_plans_are_written_blind_and_judged_by_what_is_known(taught):
    other = SEARCH | {"thought": "The harbours.", "arguments": {"query": ["harbour"]}}
    guess = {"thought": "I know.", "answer": "fiddle"}
    plans = [json.dumps(SEARCH), json.dumps(SEARCH), json.dumps(other), json.dumps(guess), "eh?"]
    model = Model(plan=plans, judge=["yes", "No: it asks about harbours."])
    rows = taught(model).plans(TASK, KNOWN, ["ferries.md"], k=5)
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
        knows = KNOWN[0] in system and TASK.answer in system
        assert knows == (kind == "judge")
        assert TASK.question in user and (plan in user or kind == "plan" or "harbour" in user)


@pytest.mark.parametrize("said", ["", "maybe", "I would say yes", "yesterday"])
def test_a_judge_without_a_verdict_keeps_nothing(taught, said):
    (row,) = taught(Model(judge=said)).plans(TASK, KNOWN, [], k=1)
    assert row.judge == "not judged: no verdict"


def test_a_spent_budget_keeps_nothing(taught):
    (row,) = taught(Model(), calls=1).plans(TASK, KNOWN, [], k=1)
    assert row.judge == "not judged: budget: 1 calls are spent"
    row = taught(Model(), calls=1).reasoning(TASK, KNOWN, [])
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
def test_reasoning_is_kept_by_its_answer_and_its_length(taught, refined, judge, chat):
    model = Model(refine=json.dumps(refined))
    row = taught(model).reasoning(TASK, KNOWN, ["ferries.md"])
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


def test_decisions_are_widened_by_the_model(taught):
    model = Model()
    row = higher_order(MESSAGES, True, "a-1", taught(model), 3, random.Random(0))
    options = row.parts[1][1].splitlines()
    assert len(options) == 4 and row.judge == KEPT
    number = int(row.parts[2][1].split("\n")[0].removeprefix(CHOICE))
    assert options[number - 1] == f"{number}. {STEPS[0]}"
    assert row.parts[-1][1].startswith(f"\n{DECISION}Correct")
    ((_, _, user),) = model.asked  # of the one call; the answer has no options
    assert TASK.question in user and user.endswith(STEPS[0])


@pytest.mark.parametrize(
    "said", ["none", "[]", json.dumps([SEARCH, SEARCH]), json.dumps([1, {"thought": 2}])]
)
def test_a_model_that_thinks_of_too_few_is_an_error(taught, said):
    with pytest.raises(ValueError, match="alternatives of 3|no JSON list"):
        higher_order(MESSAGES, True, "a-1", taught(Model(others=said)), 3, random.Random(0))


# ---------------------------------------------------------------- the command


class Writer(Model):
    """Also writes questions and answers them: the first language that it is shown."""

    def __init__(self, **says):
        super().__init__(**says)
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
            made = {"question": question, "answer": value, "statements": [int(number)]}
            return json.dumps(made)
        if system.startswith("Answer the user's question from the statements"):
            return self.answers[user]
        if system.startswith("Answer the user's question. From memory"):
            return json.dumps({"reasoning": "It is said.", "answer": self.answers[user]})
        return super().say(messages)


def run(out, url, *more):
    usual = ["--world", "tour", "-n", "12", "--url", url, "--model", "scripted", "--out", str(out)]
    return craft_command.main([*usual, "--styles", "fact", *more])


def test_the_command_writes_questions_rows_and_a_card_and_goes_on(tmp_path, capsys):
    attempts = tmp_path / "attempts.jsonl"
    row = {"question": TASK.question, "answer": "tin whistle", "prediction": "Tin whistle."}
    tagged = {
        "role": "user",
        "content": f"<tool_response>\n{MESSAGES[2]['content']}\n</tool_response>",
    }
    told = [{"role": "system", "content": "You research."}, *MESSAGES[:2], tagged, MESSAGES[3]]
    attempts.write_text(json.dumps(row | {"messages": told}) + "\n")
    with Scripted(Writer().say) as server:
        out = tmp_path / "made"
        assert run(out, server.url, "--attempts", str(attempts)) == 0
        first, asked = sorted(out.iterdir()), server.asked
        texts = [path.read_bytes() for path in first]
        assert run(out, server.url, "--attempts", str(attempts)) == 0
        assert server.asked == asked  # nothing is asked for twice, and the bytes are the same
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


def test_another_model_reads_and_judges(tmp_path):
    """The writer is never asked for an answer or a verdict, the reader for nothing else."""
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
    kept = [(folder / "rows.jsonl").read_bytes() for folder in (out, alone)]
    assert kept[0] == kept[1]


def test_the_command_says_what_is_wrong(tmp_path, capsys):
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
