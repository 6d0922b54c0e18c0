"""Tests of pass rates of agents against a scripted server, the gates, and data curation.

Run: python -m pytest tests/test_questions_pass_rates.py
"""

import json
from collections import Counter
from dataclasses import asdict, replace

import pytest

from drlib.agents import Limits, ReAct
from drlib.chat.tool_calls import render_answer, render_call
from drlib.endpoint import ChatEndpoint
from drlib.files import read_json_lines
from drlib.models.api_engine import ApiEngine
from drlib.questions import escalation as module
from drlib.questions.escalation import (
    CLOSED_BOOK_PROMPT,
    check_gates,
    filter_by_gates,
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


def place_in(text):
    return next(place for place in ANSWERS if place in text)


def researcher(messages):
    """Scripted model: knows Norway, and answers with what a tool returns."""
    asked = next(m["content"] for m in messages if m["role"] == "user")
    place, last = place_in(asked), messages[-1]["content"]
    if messages[0]["content"] == CLOSED_BOOK_PROMPT:
        return "<think>Hm.</think> krone." if place == "Norway" else "Dollar"
    if not last.startswith("<tool_response>"):
        return "<think>Look.</think>" + render_call("search", {"query": [place]})
    seen = ANSWERS[place] if f"currency {ANSWERS[place]}" in last else "Dollar"
    if place == "Norway":
        seen = "Krone"
    return f"<think>Read.</think>{render_answer(seen)}"


def agent_of(server, closed_book=False, **how):
    toolbox = Toolbox(WORLD, closed_book=closed_book)
    engine = ApiEngine(ChatEndpoint(server.url, "scripted", timeout_s=20), pause_s=0.01, **how)
    return ReAct(engine, toolbox, limits=Limits(context_tokens=None, turn_tokens=200))


def test_agents_closed_book_and_with_tools_are_rated_and_gated(tmp_path):
    with Scripted(researcher) as server:
        attempts = {
            "closed_book": make_agent_solver(agent_of(server, closed_book=True)),
            "with_tools": make_agent_solver(agent_of(server)),
        }
        found = rate_tasks(TASKS, 3, folder=tmp_path / "rates", **attempts)
        assert [(task.closed_book, task.with_tools) for task in found] == [
            (1.0, None),  # not tried with tools
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
        asked = server.asked
        assert asked == 2 * 3 * (4 + 3)
        assert rate_tasks(TASKS, 3, folder=tmp_path / "rates", **attempts) == found
        assert server.asked == asked
        reworded = [replace(task, question=f"{task.question} Say it.") for task in TASKS[:1]]
        assert rate_tasks(reworded, 3, folder=tmp_path / "rates", **attempts)[0].closed_book == 1.0
        assert server.asked == asked + 6  # another question is tried anew


def test_who_only_thinks_or_refuses_has_answered_nothing(tmp_path):
    """It is no server error, which would be retried and stop the requests."""
    for part in ("reasoning", "reasoning_content", "refusal"):
        with Scripted(lambda messages, part=part: {"content": None, part: "Hm"}) as server:
            endpoint = ChatEndpoint(server.url, "scripted", timeout_s=20)
            replies = Replies(endpoint, tmp_path / f"{part}.jsonl", calls=30, pause_s=0.01)
            assert measure_pass_rates(TASKS, make_closed_book_solver(replies), 2) == [0.0] * len(
                TASKS
            )
            assert server.asked == replies.spent_calls == 2 * len(TASKS)
            assert replies.ask([{"role": "user", "content": "?"}]) == ("", "")


def test_by_heart_asks_the_question_alone_once_a_seed(tmp_path):
    with Scripted(researcher) as server:
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
        # three more are wanted a task, two are left of the budget: who can be judged is judged
        rates = measure_pass_rates(TASKS[:2], make_closed_book_solver(replies), 4)
        assert rates == [1.0, 0.0] and server.asked == 10


def test_an_attempt_that_the_environment_broke_does_not_count(tmp_path):
    faults = dict.fromkeys(range(2, 4), "500")
    with Scripted(researcher, faults.get) as server:
        agent = agent_of(server, attempts=1, concurrency=1)
        path = tmp_path / "tools.jsonl"
        # the first attempt takes requests 0 and 1, the second and the third break
        assert measure_pass_rates(TASKS[1:2], make_agent_solver(agent), 3, path) == [1.0]
        (row,) = read_json_lines(path)
        assert (row["right"], row["judged"]) == (1, 1)
        faults |= dict.fromkeys(range(4, 6), "500")
        assert measure_pass_rates(TASKS[2:3], make_agent_solver(agent), 2, path) == [None]
        assert check_gates(replace(TASKS[2], closed_book=0.0)) == "not judged with tools"
        assert check_gates(TASKS[2]) == "not judged closed book"
        assert measure_pass_rates(TASKS[2:3], make_agent_solver(agent), 2, path) == [
            1.0
        ]  # tried again


def test_a_killed_run_goes_on_behind_the_last_batch(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BATCH", 2)
    asked = []

    def attempt(tasks, n):
        asked.append([task.id for task in tasks])
        if len(asked) == 2:
            raise KeyboardInterrupt
        return [[True, False] for _ in tasks]

    path = tmp_path / "deep" / "tools.jsonl"
    with pytest.raises(KeyboardInterrupt):
        measure_pass_rates(TASKS, attempt, 2, path)
    with path.open("a") as file:
        file.write('{"tried": "ab')
    assert measure_pass_rates(TASKS + TASKS[:1], attempt, 2, path) == [0.5] * 5
    assert asked == [["t-Norway", "t-Freedonia"]] + [["t-Sylvania", "t-Nowhere"]] * 2


def test_a_threshold_lets_some_closed_book_answers_pass():
    sometimes = replace(TASKS[0], closed_book=0.25, with_tools=0.5)
    assert check_gates(sometimes).startswith("too easy") and check_gates(sometimes, easy=0.25) == ""
    with pytest.raises(ValueError, match="easy must be in"):
        check_gates(sometimes, easy=1.5)


def test_bad_attempts_and_files_are_named(tmp_path):
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


def test_curation_begins_with_what_is_solved_sometimes():
    rates = [1.0, 0.5, 0.25, 0.0]
    tasks = [replace(task, closed_book=0.0, with_tools=rate) for task, rate in zip(TASKS, rates)]
    kept, _ = filter_by_gates(tasks)
    curation = DataCuration({task.id: task.with_tools for task in kept})
    assert curation.state["active"] == ["t-Freedonia", "t-Sylvania"]


def test_rates_go_through_json_and_rows_without_them_are_read():
    task = replace(TASKS[0], closed_book=0.0, with_tools=0.25, aliases=("NOK",))
    row = json.loads(json.dumps(asdict(task)))

    def read(row):
        return Task(**row | {name: tuple(row[name]) for name in ("relations", "aliases")})

    assert read(row) == task
    old = {name: value for name, value in row.items() if name not in ("closed_book", "with_tools")}
    assert read(old) == replace(task, closed_book=None, with_tools=None)
