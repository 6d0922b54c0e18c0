"""Tests of the export formats: released field names, atomic files, reading back.

Run: python -m pytest tests/test_questions_export.py
"""

import json

import pytest
from datasets import Dataset, load_dataset

from drlib.chat.tool_calls import parse
from drlib.demonstrations import episodes as episodes_module
from drlib.demonstrations.funnel import Funnel
from drlib.demonstrations.oracle import Episode
from drlib.demonstrations.solver import Solver
from drlib.questions import export
from drlib.questions.queries import (
    And,
    Count,
    Or,
    Proj,
    evaluate_query,
    list_constants,
    measure_depth,
    to_text,
)
from drlib.questions.webshaper import read_loosely
from drlib.task import Task
from drlib.tools import Toolbox
from drlib.worlds.graph import Node
from drlib.worlds.library import Library
from drlib.worlds.store import Document, Part, Store

FACTS = [
    ("Norway", "currency", "Krone"),
    ("Svalbard", "currency", "Krone"),
    ("Norway", "language", "Sámi"),
    ("Finland", "language", "Sámi"),
    ("Finland", "currency", "Euro"),
    ("Norway", "code", "NO"),
]
BOTH = And((Proj("currency of", "Krone"), Proj("language of", "Sámi")))


@pytest.fixture(scope="module")
def world():
    nodes = [Node(t, "place") for t in ("Norway", "Svalbard", "Finland")]
    nodes += [Node(t, "thing") for t in ("Krone", "Euro", "Sámi")]
    pages, store = [Document(node.title, f"{node.title}.") for node in nodes], Store(None)
    store.update({"all": "1"}, lambda source: Part(pages, nodes, FACTS))
    return Library("tiny", store, "tiny")


def make_task(name, query, answer, question=None):
    question = question or f"Question {name}?"
    return Task(name, question, answer, "search", "w", query=to_text(query) if query else "")


TASKS = [
    make_task("a", BOTH, "Norway", 'Which "place"\u2028is it – Sámi?'),
    make_task("b", Count(Proj("currency of", "Krone")), "2"),
    make_task("c", Proj("code", BOTH), "NO"),
]


def test_question_rows_match_websailor_and_webdancer(tmp_path):
    rows = export.to_question_rows(TASKS)
    assert [list(row) for row in rows] == [["question", "answer"]] * 3
    tagged = export.to_question_rows(TASKS, "e2hqa")
    assert tagged == [row | {"tag": "e2hqa"} for row in rows]
    data = export.write_rows(tagged, tmp_path / "qa.jsonl")
    assert isinstance(data, Dataset) and data.to_list() == tagged
    assert (
        load_dataset(
            "json",
            data_files=str(tmp_path / "qa.jsonl"),
            split="train",
            cache_dir=str(tmp_path / "c"),
        ).to_list()
        == tagged
    )
    assert export.read_rows(tmp_path / "qa.jsonl") == tagged


def test_rollouts_round_trip_in_webdancer_format(world, tmp_path):
    toolbox = Toolbox(world)
    episodes = [Solver(toolbox).solve(t) for t in (TASKS[0], TASKS[2])]
    rows = episodes_module.export_attempts(episodes, toolbox.schemas, "crawlqa")
    for row, episode in zip(rows, episodes):
        assert list(row) == ["type", "task", "messages", "functions", "tool_calls", "answer", "tag"]
        assert row["type"] == "chatml" and row["answer"] == episode.task.answer
        assert [m["role"] for m in row["messages"]] == ["user", "assistant"] * (
            len(row["messages"]) // 2
        )
        assert [json.loads(f)["name"] for f in row["functions"]] == ["search", "visit"]
        calls = [{"name": r.tool, "arguments": r.arguments} for r in episode.tool_results]
        assert [json.loads(call) for call in row["tool_calls"]] == calls
    assert export.write_rows(rows, tmp_path / "traj.jsonl").to_list() == rows
    restored = episodes_module.read_attempts(tmp_path / "traj.jsonl")
    for one, episode in zip(restored, episodes):
        assert one.messages[1:] == episode.messages[1:] and one.correct
        assert one.task.question == episode.task.question.strip()
        assert Funnel().fault(one) is None


def test_rollouts_are_matched_to_tasks_by_id(tmp_path):
    """Two tasks share a question; an alias counts as correct if the task is passed."""
    twins = [
        Task(n, "Which?", "Somali Shilling", "search", "w", aliases=(a,))
        for n, a in (("one", "Shilling"), ("two", "Soomaali"))
    ]
    episodes = [Episode(twin, None, None).finish("So.", twin.aliases[0]) for twin in twins]
    export.write_rows(episodes_module.export_attempts(episodes, [], "x"), tmp_path / "traj.jsonl")
    restored = episodes_module.read_attempts(tmp_path / "traj.jsonl", twins)
    assert [e.task for e in restored] == twins and all(e.correct for e in restored)
    alone = episodes_module.read_attempts(tmp_path / "traj.jsonl")
    assert not any(e.correct for e in alone) and len({e.task.id for e in alone}) == 2
    mixed = episodes_module.read_attempts(tmp_path / "traj.jsonl", twins[1:])
    assert [e.correct for e in mixed] == [False, True]


def test_webshaper_rows_contain_the_query(world, tmp_path):
    rows, without = export.to_webshaper_rows(TASKS, world)
    assert without == 1 and [row["id"] for row in rows] == ["a", "c"]  # a count has no triples
    assert list(rows[0]) == ["id", "question", "formalization", "answer", "urls"]
    assert sorted(rows[0]["formalization"]) == [
        ["?", "currency", "C@Krone"],
        ["?", "language", "C@Sámi"],
    ]
    assert rows[0]["urls"] == ["tiny:Krone", "tiny:Norway", "tiny:Sámi"]
    assert rows[1]["urls"] == rows[0]["urls"]  # NO is a literal value without a page
    assert export.write_rows(rows, tmp_path / "shaper.jsonl").to_list() == rows
    read = export.read_rows(tmp_path / "shaper.jsonl")
    queries = [read_loosely(row["formalization"]) for row in read]
    assert [measure_depth(query) for query in queries] == [1, 2]
    for old, row, query in zip((TASKS[0], TASKS[2]), read, queries):
        assert (row["id"], row["question"], row["answer"]) == (old.id, old.question, old.answer)
        assert evaluate_query(query, world.graph) == {old.answer}
    # a task without a query has no row either
    assert export.to_webshaper_rows([make_task("d", None, "x")], world) == ([], 1)


def test_released_files_with_faults_are_read(tmp_path):
    path = tmp_path / "webshaper.jsonl"
    triples = [["?", "plays for", "V@X"], ["V@X", "lies in", "C@Rio"], ["V@X", "is", "C@club"]]
    wide = [["?", "plays for", "C@A", "C@2004"]]  # 75 of the 6,080 released rows are not triples
    mute = [["V@X", "is when it was", "C@May"]]  # one of the 500 does not name the target
    rows = [
        {"id": 7, "question": "Who?", "formalization": triples, "answer": "Pelé", "urls": []},
        {"id": "8", "question": "When?", "formalization": wide, "answer": 1958, "urls": ["u"]},
        {"question": "Where?", "answer": "Rio"},
        {"question": "What?", "formalization": mute, "answer": "May"},
    ]
    lines = "\n\n".join(json.dumps(row) for row in rows)
    path.write_text("\ufeff" + lines + "\n", encoding="utf-8")  # a byte order mark and empty lines
    assert export.read_rows(path) == rows
    with pytest.raises(ValueError, match="no condition names"):
        read_loosely(mute)
    assert {*list_constants(read_loosely(wide))} == {"A", "2004"}
    first = read_loosely(triples)
    assert measure_depth(first) == 2 and isinstance(first, Proj)
    assert not isinstance(first.of, str | Or)

    rollouts = tmp_path / "traj.jsonl"
    replies = [
        '<think>a</think><tool_call>{"name": "search", "arguments": {"query": ["x"]}}</tool_call>',
        "<think>b</think><answer>Rio</answer>",
    ]
    messages = [
        {"role": "system", "content": "You are"},
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": replies[0]},
        {"role": "user", "content": "<tool_response>\nx is in Rio\n</tool_response>"},
        {"role": "assistant", "content": replies[1]},
    ]
    export.write_rows(
        [{"type": "chatml", "task": "?", "messages": messages, "answer": "Rio"}], rollouts
    )
    (episode,) = episodes_module.read_attempts(rollouts)
    assert episode.correct and episode.messages[2] == {"role": "tool", "content": "x is in Rio"}
    assert parse(episode.messages[1]["content"]).name == "search"


@pytest.mark.parametrize(
    "text, message",
    [
        ('{"question": "a"}', "line 1 lacks answer"),
        ('{"question": "a", "answer": "b"}\n[1, 2]', "line 2 lacks question, answer"),
        ('{"question": "a", "answer": "b"}\n{"question": "a", "ans', "line 2 is not valid JSON"),
        ('{"question": "", "answer": 0}', "line 1 lacks question"),
    ],
)
def test_invalid_rows_are_reported_by_line(tmp_path, text, message):
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        export.read_rows(path)


def test_write_rows_is_atomic(tmp_path):
    path = tmp_path / "rows.jsonl"
    export.write_rows([{"question": "q", "answer": "a"}], path)
    before = path.read_bytes()
    with pytest.raises(TypeError):  # bytes are not JSON
        export.write_rows([{"question": "q", "answer": "a"}, {"question": b"q"}], path)
    with pytest.raises(ValueError, match="no rows for .*rows.jsonl"):
        export.write_rows([], path)
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["rows.jsonl"]
