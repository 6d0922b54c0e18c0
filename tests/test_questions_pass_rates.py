"""Tests of pass rates of agents against a scripted server, the gates, and data curation.

Run: python -m pytest tests/test_questions_pass_rates.py
"""

import json
from collections import Counter
from dataclasses import asdict, replace

import pytest

from drlib.agents import Limits, ReAct
from drlib.chat.tool_calls import render_answer, render_call
from drlib.cli.questions import main as questions_command
from drlib.endpoint import ChatEndpoint
from drlib.files import read_json_lines
from drlib.models.api_engine import ApiEngine
from drlib.questions import escalation as module
from drlib.questions.escalation import (
    CLOSED_BOOK_PROMPT,
    check_gates,
    filter_by_gates,
    keep_solvable,
    make_agent_solver,
    make_closed_book_solver,
    measure_pass_rates,
    rate_tasks,
)
from drlib.questions.replies import Replies
from drlib.rl.curriculum import DataCuration
from drlib.task import Task
from drlib.tools import Toolbox
from drlib.worlds import Entity, SmallWorld
from tests.scripted_server import Scripted

WORLD = SmallWorld(
    [
        Entity("Norway", "territory", {"currency": "Krone"}),
        Entity("Freedonia", "territory", {"currency": "Bluff"}),
        Entity("Sylvania", "territory", {"currency": "Wood"}),
    ],
    "atlas",
)
ANSWERS = {"Norway": "Krone", "Freedonia": "Bluff", "Sylvania": "Wood", "Nowhere": "Nothing"}
TASKS = [
    Task(f"t-{place}", f"What is the currency of {place}?", answer, "search", WORLD.version)
    for place, answer in ANSWERS.items()
]


def find_place(text):
    return next(place for place in ANSWERS if place in text)


def reply_as_researcher(messages):
    """Return a scripted reply: Norway from memory, other answers from tool results."""
    question = next(m["content"] for m in messages if m["role"] == "user")
    place, last = find_place(question), messages[-1]["content"]
    if messages[0]["content"] == CLOSED_BOOK_PROMPT:
        return "<think>Hm.</think> krone." if place == "Norway" else "Dollar"
    if not last.startswith("<tool_response>"):
        return "<think>Look.</think>" + render_call("search", {"query": [place]})
    seen = ANSWERS[place] if f"currency {ANSWERS[place]}" in last else "Dollar"
    if place == "Norway":
        seen = "Krone"
    return f"<think>Read.</think>{render_answer(seen)}"


def make_agent(server, closed_book=False, **how):
    toolbox = Toolbox(WORLD, closed_book=closed_book)
    engine = ApiEngine(ChatEndpoint(server.url, "scripted", timeout_s=20), pause_s=0.01, **how)
    return ReAct(engine, toolbox, limits=Limits(context_tokens=None, turn_tokens=200))


def test_tasks_are_rated_and_filtered_by_gates(tmp_path):
    with Scripted(reply_as_researcher) as server:
        solvers = {
            "closed_book": make_agent_solver(make_agent(server, closed_book=True)),
            "with_tools": make_agent_solver(make_agent(server)),
        }
        found = rate_tasks(TASKS, 3, folder=tmp_path / "rates", **solvers)
        assert [(task.closed_book, task.with_tools) for task in found] == [
            (1.0, None),  # not evaluated with tools
            (0.0, 1.0),
            (0.0, 1.0),
            (0.0, 0.0),
        ]
        kept, counts = filter_by_gates(found)
        assert [task.id for task in kept] == ["t-Freedonia", "t-Sylvania"]
        assert counts == {
            "kept": 2,
            "too easy: solved without tools": 1,
            "never solved with tools": 1,
        }
        requests = server.asked
        assert requests == 2 * 3 * (4 + 3)
        assert rate_tasks(TASKS, 3, folder=tmp_path / "rates", **solvers) == found
        assert server.asked == requests
        reworded = [replace(task, question=f"{task.question} Say it.") for task in TASKS[:1]]
        assert rate_tasks(reworded, 3, folder=tmp_path / "rates", **solvers)[0].closed_book == 1.0
        assert server.asked == requests + 6  # a reworded question is evaluated again


def test_reasoning_or_refusal_alone_is_no_answer(tmp_path):
    """Such replies are not server errors, which would be retried and stop the requests."""
    for part in ("reasoning", "reasoning_content", "refusal"):
        with Scripted(lambda messages, part=part: {"content": None, part: "Hm"}) as server:
            endpoint = ChatEndpoint(server.url, "scripted", timeout_s=20)
            replies = Replies(endpoint, tmp_path / f"{part}.jsonl", calls=30, pause_s=0.01)
            assert measure_pass_rates(TASKS, make_closed_book_solver(replies), 2) == [0.0] * len(
                TASKS
            )
            assert server.asked == replies.spent_calls == 2 * len(TASKS)
            assert replies.ask([{"role": "user", "content": "?"}]) == ("", "")


def test_closed_book_sends_one_request_per_seed(tmp_path):
    with Scripted(reply_as_researcher) as server:
        server.keep = True
        replies = Replies(
            ChatEndpoint(server.url, "scripted", timeout_s=20),
            tmp_path / "r.jsonl",
            calls=10,
            pause_s=0.01,
        )
        assert measure_pass_rates(TASKS, make_closed_book_solver(replies), 2) == [
            1.0,
            0.0,
            0.0,
            0.0,
        ]
        assert Counter(body["seed"] for body in server.bodies) == {0: 4, 1: 4}
        assert measure_pass_rates(TASKS, make_closed_book_solver(replies), 2) == [
            1.0,
            0.0,
            0.0,
            0.0,
        ]
        assert server.asked == 8
        # two requests are left in the budget: tasks that can be judged are judged
        rates = measure_pass_rates(TASKS[:2], make_closed_book_solver(replies), 4)
        assert rates == [1.0, 0.0] and server.asked == 10


def test_environment_faults_are_excluded_from_rates(tmp_path):
    faults = dict.fromkeys(range(2, 4), "500")
    with Scripted(reply_as_researcher, faults.get) as server:
        agent = make_agent(server, attempts=1, concurrency=1)
        path = tmp_path / "tools.jsonl"
        # the first rollout uses requests 0 and 1; the second and third fail
        assert measure_pass_rates(TASKS[1:2], make_agent_solver(agent), 3, path) == [1.0]
        (row,) = read_json_lines(path)
        assert (row["right"], row["judged"]) == (1, 1)
        faults |= dict.fromkeys(range(4, 6), "500")
        assert measure_pass_rates(TASKS[2:3], make_agent_solver(agent), 2, path) == [None]
        assert check_gates(replace(TASKS[2], closed_book=0.0)) == "not judged with tools"
        assert check_gates(TASKS[2]) == "not judged closed book"
        assert measure_pass_rates(TASKS[2:3], make_agent_solver(agent), 2, path) == [
            1.0
        ]  # evaluated again


def test_interrupted_run_resumes_after_the_last_batch(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BATCH", 2)
    batches = []

    def solve(tasks, n):
        batches.append([task.id for task in tasks])
        if len(batches) == 2:
            raise KeyboardInterrupt
        return [[True, False] for _ in tasks]

    path = tmp_path / "deep" / "tools.jsonl"
    with pytest.raises(KeyboardInterrupt):
        measure_pass_rates(TASKS, solve, 2, path)
    with path.open("a") as file:
        file.write('{"tried": "ab')
    assert measure_pass_rates(TASKS + TASKS[:1], solve, 2, path) == [0.5] * 5
    assert batches == [["t-Norway", "t-Freedonia"]] + [["t-Sylvania", "t-Nowhere"]] * 2


def test_check_gates_threshold():
    sometimes = replace(TASKS[0], closed_book=0.25, with_tools=0.5)
    assert check_gates(sometimes).startswith("too easy") and check_gates(sometimes, easy=0.25) == ""
    with pytest.raises(ValueError, match="easy must be in"):
        check_gates(sometimes, easy=1.5)


def test_invalid_results_and_files_are_errors(tmp_path):
    with pytest.raises(ValueError, match="n=0 rollouts"):
        measure_pass_rates(TASKS, lambda tasks, n: [], 0)
    with pytest.raises(ValueError, match="results per task instead of 2"):
        measure_pass_rates(TASKS, lambda tasks, n: [[True]] * len(tasks), 2)
    with pytest.raises(ValueError, match="results per task instead of 2"):
        measure_pass_rates(TASKS, lambda tasks, n: [[True, True]], 2)
    for line in ('{"tried": 1}', "[]", '{"tried": "a", "right": 0, "judged": 0}'):
        (tmp_path / "x.jsonl").write_text(f"{line}\n")
        with pytest.raises(ValueError, match="x.jsonl, line 1, is no rate"):
            measure_pass_rates(TASKS, lambda tasks, n: [], 2, tmp_path / "x.jsonl")
    assert measure_pass_rates([], lambda tasks, n: [], 2) == []


def test_curation_starts_with_partly_solved_tasks():
    rates = [1.0, 0.5, 0.25, 0.0]
    tasks = [replace(task, closed_book=0.0, with_tools=rate) for task, rate in zip(TASKS, rates)]
    kept, _ = filter_by_gates(tasks)
    curation = DataCuration({task.id: task.with_tools for task in kept})
    assert curation.state["active"] == ["t-Freedonia", "t-Sylvania"]


def test_rates_round_trip_through_json():
    task = replace(TASKS[0], closed_book=0.0, with_tools=0.25, aliases=("NOK",))
    row = json.loads(json.dumps(asdict(task)))

    tuples = ("relations", "aliases", "entities")

    def read(row):
        return Task(**row | {name: tuple(row[name]) for name in tuples})

    assert read(row) == task
    old = {name: value for name, value in row.items() if name not in ("closed_book", "with_tools")}
    assert read(old) == replace(task, closed_book=None, with_tools=None)


@pytest.mark.parametrize(
    "message",
    [
        {"content": [{"type": "text", "text": "Os"}, {"type": "text", "text": "lo"}]},
        {"content": {"type": "text", "text": "Oslo"}, "usage": None},
        {"content": [{"type": "thinking", "thinking": "Hm"}, {"type": "text", "text": "Oslo"}]},
        "Oslo",
    ],
)
def test_shapes_of_a_reply(tmp_path, message):
    with Scripted(lambda messages: "unused") as server:
        usage = {"prompt_tokens": -1, "completion_tokens": 10**18}
        server.whole = lambda body: {"choices": [{"message": message}], "usage": usage}
        endpoint = ChatEndpoint(server.url, "scripted", timeout_s=20)
        replies = Replies(endpoint, tmp_path / "r.jsonl", calls=3, tokens=10**6, pause_s=0.01)
        assert replies.ask([{"role": "user", "content": "?"}]) == ("Oslo", "")
    assert 0 < replies.spent_tokens < 10**4


def test_seeds_need_one_of_five_right_rollouts(tmp_path):
    results = {
        "Norway": [True] * 5,
        "Freedonia": [False] * 4 + [True],
        "Sylvania": [False] * 5,
        "Nowhere": [None] * 5,
    }
    asked = []

    def attempt(tasks, n):
        asked.extend(task.id for task in tasks)
        return [results[find_place(task.question)][:n] for task in tasks]

    path = tmp_path / "rates.jsonl"
    kept, counts = keep_solvable(TASKS, attempt, path=path)
    assert [find_place(task.question) for task in kept] == ["Norway", "Freedonia"]
    assert [task.with_tools for task in kept] == [1.0, 0.2]
    assert counts == {"kept": 2, "too few right rollouts": 1, "not judged": 1}
    asked.clear()
    assert keep_solvable(TASKS, attempt, path=path)[0] == kept
    assert asked == ["t-Nowhere"], "only what could not be judged is tried again"
    assert len(keep_solvable(TASKS, attempt, least=2)[0]) == 1
    results["Norway"] = [None, None, None, True, False]  # half of the judged ones
    assert len(keep_solvable(TASKS[:1], attempt, least=2)[0]) == 1
    for least in (0, 6):
        with pytest.raises(ValueError, match=f"least={least} must be between 1 and n=5"):
            keep_solvable(TASKS, attempt, least=least)


def test_command_filters_a_file_with_the_tour_policy(tmp_path, capsys):
    rows = [
        {
            "id": place,
            "question": f"Find the currency of {place}.",
            "answer": answer,
            "aliases": [],
            "query": "",
            "difficulty": {"look_ups": 1, "conditions": 1},
            "answer_type": "auto",
            "page": "",
            "world": "tour",
        }
        for place, answer in (("Norway", "Norwegian Krone"), ("Norway", "Wood"))
    ]
    file, out = tmp_path / "train.jsonl", tmp_path / "seeds.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert questions_command(["solvable", str(file), "--out", str(out), "--attempts", "5"]) == 0
    (kept,) = read_json_lines(out)
    assert kept["answer"] == "Norwegian Krone" and 0 < kept["with_tools"] <= 1
    assert "kept: 1" in capsys.readouterr().out
    assert questions_command(["solvable", str(file), "--out", str(out), "--least", "9"]) == 1
    assert "least=9" in capsys.readouterr().err
    file.write_text('{"question": "Who?"}\n')
    assert questions_command(["solvable", str(file), "--out", str(out)]) == 1
    assert "no file of drlib dataset: a row lacks 'difficulty'" in capsys.readouterr().err
