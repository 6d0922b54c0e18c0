"""answer_file: rows are appended at once, and a killed run resumes without repetition.

Run: python -m pytest tests/test_agents_batch_answers.py
"""

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter

import pytest

from drlib.agents import ReAct
from drlib.agents.batch_answers import answer_file
from drlib.chat.tool_calls import render_answer
from drlib.endpoint import ChatEndpoint
from drlib.files import read_json_lines
from drlib.models.api_engine import ApiEngine
from drlib.task import Task
from drlib.tools import Toolbox
from tests.scripted_server import Scripted
from tests.waiting import until

TASKS = [Task(f"t{n}", f"Question {n}?", str(n), "search", "none") for n in range(12)]
PROGRAM = """
from drlib.agents import ReAct
from drlib.agents.batch_answers import answer_file
from drlib.endpoint import ChatEndpoint
from drlib.models.api_engine import ApiEngine
from drlib.tools import Toolbox
from tests.test_agents_batch_answers import TASKS

with Toolbox(None) as toolbox:
    engine = ApiEngine(ChatEndpoint({url!r}, "scripted", timeout_s=30), concurrency=2)
    answer_file(ReAct(engine, toolbox), TASKS, {path!r})
"""


def number_of(messages):
    return messages[0]["content"].split()[1].rstrip("?")


def answer(server, path, **how):
    with Toolbox(None) as toolbox:
        engine = ApiEngine(ChatEndpoint(server.url, "scripted", timeout_s=10), pause_s=0.01, **how)
        return answer_file(ReAct(engine, toolbox), TASKS, path)


def test_every_task_has_one_row_and_one_rollout(tmp_path):
    path = tmp_path / "deep" / "iter1.jsonl"
    with Scripted(lambda m: render_answer(number_of(m))) as server:
        rows = answer(server, path)
        assert [row["prediction"] for row in rows] == [str(n) for n in range(12)]
        assert answer(server, path) == rows and server.asked == 12
    assert sorted(row["task_id"] for row in read_json_lines(path)) == sorted(t.id for t in TASKS)
    assert set(rows[0]) >= {"question", "answer", "prediction", "termination", "messages"}
    assert {row["costs"]["calls"] for row in rows} == {0}
    assert all(row["costs"]["sampled"] == row["usage"]["said_tokens"] > 0 for row in rows)


def test_killed_run_resumes(tmp_path):
    path = tmp_path / "iter1.jsonl"
    with Scripted(lambda m: render_answer(number_of(m)), delay_s=0.15) as server:
        server.keep = True
        program = textwrap.dedent(PROGRAM).format(url=server.url, path=str(path))
        child = subprocess.Popen([sys.executable, "-c", program], env=dict(os.environ))
        until(lambda: path.exists() and path.read_text().count("\n") >= 4)
        child.send_signal(signal.SIGKILL)
        child.wait()
        with path.open("a") as file:
            file.write('{"task_id": "t1')  # a truncated line
        before = {row["task_id"] for row in map(json.loads, path.read_text().splitlines()[:-1])}
        rows = answer(server, path)
    times_asked = Counter(number_of(body["messages"]) for body in server.bodies)
    assert 4 <= len(before) < 12 and all(times_asked[ident[1:]] == 1 for ident in before)
    assert sum(times_asked.values()) <= 12 + 2, "what was under way, at most, was asked again"
    assert [row["prediction"] for row in rows] == [str(n) for n in range(12)]
    assert len(read_json_lines(path)) == 12


def test_environment_faults_are_repeated(tmp_path):
    path = tmp_path / "iter1.jsonl"
    with Scripted(lambda m: render_answer("x"), lambda n: "500" if n < 3 else None) as server:
        broken = answer(server, path, concurrency=1, attempts=3)
        assert [row["termination"] for row in broken][:2] == ["env_fault", "answered"]
        rows = answer(server, path, concurrency=1)
        assert server.asked == 3 + 11 + 1
    assert {row["termination"] for row in rows} == {"answered"}
    assert len(read_json_lines(path)) == 12


def test_foreign_files_and_duplicate_ids_are_rejected(tmp_path):
    path = tmp_path / "notes.jsonl"
    path.write_text('{"a": 1}\n')
    with Scripted(lambda m: render_answer("x")) as server:
        with pytest.raises(ValueError, match="line 1 is not an answer of this program"):
            answer(server, path)
        assert path.read_text() == '{"a": 1}\n' and server.asked == 0
        with pytest.raises(ValueError, match="1 tasks share an id"), Toolbox(None) as toolbox:
            engine = ApiEngine(ChatEndpoint(server.url, "scripted"))
            answer_file(ReAct(engine, toolbox), [TASKS[0], TASKS[0]], tmp_path / "new.jsonl")
