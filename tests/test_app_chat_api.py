"""`drlib ask --serve` for OpenAI clients, with a queue and a history.

Run: python -m pytest tests/test_app_chat_api.py
"""

import sqlite3
import threading
import time
from contextlib import ExitStack
from itertools import count

import httpx
import openai
import pytest

from drlib.app import chat_api
from drlib.app.history import MEMORY_ROWS, STOPPED, History
from drlib.app.server import MAX_BODY, MAX_WAITING
from drlib.chat.tool_calls import render_answer, render_call
from drlib.cli.ask import main
from tests.scripted_server import Scripted
from tests.test_app_server import LOOK, NORWAY, served
from tests.waiting import until


def visitor(messages):
    """Search, open the page, and answer."""
    observed = sum(m["content"].startswith("<tool_response>") for m in messages)
    visit = render_call("visit", {"url": ["cldr:Norway"], "goal": "currency"})
    answer = render_answer("Norwegian Krone")
    turns = [LOOK, f"<think>Open it.</think>{visit}", f"<think>There.</think>{answer}"]
    return turns[min(observed, 2)]


@pytest.fixture(scope="module")
def model():
    with Scripted(visitor) as model:
        model.keep = True
        yield model


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    return tmp_path_factory.mktemp("history") / "asked.sqlite"


@pytest.fixture(scope="module")
def url(model, history):
    with served(model, "--parallel", "2", "--history", str(history)) as (url, _):
        yield url


@pytest.fixture
def plain_model(model):
    yield model
    model.say, model.delay_s = visitor, 0.0


def client(url, key="none"):
    return openai.OpenAI(base_url=f"{url}v1", api_key=key, max_retries=0)


def user(text):
    return [{"role": "user", "content": text}]


def test_openai_client_gets_answer_sources_and_reasoning(url):
    with client(url) as api:
        assert [each.id for each in api.models.list()] == ["drlib"]
        reply = api.chat.completions.create(model="drlib", messages=user(NORWAY))
    choice = reply.choices[0]
    assert choice.message.content == "Norwegian Krone\n\nSources:\n- [Norway](cldr:Norway)"
    assert choice.finish_reason == "stop" and choice.message.role == "assistant"
    heads = [line.partition(":")[0] for line in choice.message.reasoning_content.splitlines()]
    assert heads == ["thinks", "search", "reads", "thinks", "visit", "reads", "thinks"]
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens > 0


def test_openai_client_streams(url):
    with client(url) as api:
        stream = api.chat.completions.create(
            model="drlib",
            messages=user(NORWAY),
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
    assert len({chunk.id for chunk in chunks}) == 1
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    reasoning = [getattr(delta, "reasoning_content", None) for delta in deltas]
    content = "".join(delta.content or "" for delta in deltas)
    assert (
        sum(each is not None for each in reasoning) == 7 and reasoning[1] == "thinks: Look it up.\n"
    )
    assert content.startswith("Norwegian Krone\n\nSources:")
    assert deltas[0].role == "assistant" and chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == [] and chunks[-1].usage.prompt_tokens > 0


def test_earlier_turns_are_part_of_the_question(url, model):
    messages = [
        {"role": "system", "content": "Be brief."},
        *user("Where is Oslo?"),
        {"role": "assistant", "content": "In Norway."},
        {"role": "user", "content": [{"type": "text", "text": "And its currency?"}]},
    ]
    with client(url) as api:
        api.chat.completions.create(model="drlib", messages=messages)
    asked = model.bodies[-1]["messages"][1]["content"]
    assert asked.endswith("user: Where is Oslo?\nassistant: In Norway.\n\nAnd its currency?")
    assert "Be brief" not in asked


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({}, "messages"),
        ({"messages": []}, "last message"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "last message"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image_url"),
        ({"messages": "hello"}, "list"),
        ([], "object"),
        ({"messages": [{"role": "user", "content": "x" * 10_001}]}, "10000"),
    ],
)
def test_invalid_requests_are_errors_of_openai(url, model, body, word):
    before = model.asked
    reply = httpx.post(f"{url}v1/chat/completions", json=body)
    assert reply.status_code == 400 and model.asked == before
    assert word in reply.json()["error"]["message"]
    assert reply.json()["error"]["type"] == "invalid_request_error"


def test_failures_are_errors_of_openai(url, plain_model):
    plain_model.say = lambda messages: None  # exceeds the context
    with client(url) as api:
        with pytest.raises(openai.APIStatusError, match="the limit of context"):
            api.chat.completions.create(model="drlib", messages=user(NORWAY))
        with pytest.raises(openai.APIError, match="the limit of context"):
            list(api.chat.completions.create(model="drlib", messages=user(NORWAY), stream=True))


@pytest.mark.parametrize("path", ["ask", "v1/chat/completions"])
def test_large_bodies_are_refused(url, path):
    def parts():
        for _ in range(40):
            yield b"x" * 100_000

    headers = {"Content-Type": "application/json"}
    reply = httpx.post(f"{url}{path}", content=parts(), headers=headers)
    assert reply.status_code == 413 and str(MAX_BODY) in reply.json()["detail"]


def test_questions_run_in_parallel_and_others_wait(url, plain_model):
    gate = threading.Event()

    def gated(messages):
        assert gate.wait(100)
        return visitor(messages)

    plain_model.say, plain_model.most = gated, 0
    replies = [[] for _ in range(5)]

    def ask(number):
        with client(url) as api:
            chunks = api.chat.completions.create(model="drlib", messages=user(NORWAY), stream=True)
            replies[number].extend(chunk.choices[0].delta for chunk in chunks)  # one by one

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()

    def list_positions(deltas):
        lines = [getattr(delta, "reasoning_content", None) or "" for delta in list(deltas)]
        return [int(line.split()[2]) for line in lines if line.startswith("waits: number ")]

    until(lambda: sorted(map(list_positions, replies)) == [[], [], [1], [2], [3]])
    until(lambda: plain_model.running == 2)
    live = httpx.get(f"{url}history").json()[:5]
    assert [row["status"] for row in live] == ["waiting"] * 3 + ["running"] * 2
    assert [row["position"] for row in live] == [3, 2, 1, 0, 0]
    gate.set()
    for thread in threads:
        thread.join()
    contents = ["".join(delta.content or "" for delta in deltas) for deltas in replies]
    assert all(content.startswith("Norwegian Krone") for content in contents)
    moves = sorted(map(list_positions, replies))
    assert moves[:3] == [[], [], [1]] and plain_model.most == 2
    assert moves[3:] == [[2, 1], [3, 2, 1]]


def test_full_queue_is_refused(url, plain_model):
    steps = count()
    plain_model.say = lambda messages: render_call("search", {"query": [f"page {next(steps)}"]})
    plain_model.delay_s = 1.0
    lines = []
    with ExitStack() as stack:
        for number in range(MAX_WAITING + 2):
            ask = httpx.stream("POST", f"{url}ask", json={"question": NORWAY}, timeout=60)
            reply = stack.enter_context(ask)
            assert reply.status_code == 200
            lines.append(reply.iter_lines())  # kept: a collected iterator closes the stream
            assert ("waits" in next(lines[-1])) == (number >= 2)
        refused = httpx.post(f"{url}ask", json={"question": NORWAY})
        assert refused.status_code == 429 and "16 questions" in refused.json()["detail"]
    plain_model.say, plain_model.delay_s = visitor, 0.0
    with client(url) as api:  # all of them are cancelled
        api.chat.completions.create(model="drlib", messages=user(NORWAY))


def test_history_keeps_answers_and_failures(url, plain_model, history):
    def active():
        rows = httpx.get(f"{url}history", params={"limit": 1000}).json()
        return [row for row in rows if row["status"] in ("waiting", "running")]

    until(lambda: not active())  # questions of earlier tests, whose clients have disconnected
    before = len(httpx.get(f"{url}history", params={"limit": 1000}).json())
    httpx.post(f"{url}ask", json={"question": "First?"}, timeout=60)
    plain_model.say = lambda messages: None
    httpx.post(f"{url}ask", json={"question": "Second?"}, timeout=60)
    second, first = httpx.get(f"{url}history", params={"limit": 2}).json()
    assert (first["question"], first["answer"]) == ("First?", "Norwegian Krone")
    assert first["sources"][0]["url"] == "cldr:Norway" and first["usage"]["calls"] == 2
    assert second["question"] == "Second?" and second["answer"] is None
    assert "limit of context" in second["error"] and second["seconds"] >= 0
    assert [first["status"], second["status"]] == ["answered", "failed"]
    assert "events" not in first
    stored = httpx.get(f"{url}history/{first['id']}").json()
    assert stored.pop("events")[1] == {"head": "search", "run": 0, "text": "['Norway']"}
    assert stored == first
    assert len(httpx.get(f"{url}history", params={"limit": 1000}).json()) == before + 2
    with sqlite3.connect(history) as db:
        assert db.execute("SELECT COUNT(*) FROM questions").fetchone() == (before + 2,)


def test_history_is_kept_between_starts(tmp_path):
    path = tmp_path / "asked.sqlite"
    for question in ("one", "two"):
        history = History(path)
        history.add(question, 1.26, {"answer": "a", "sources": [], "usage": {"calls": 1}})
        history.close()
    history = History(path)
    assert [row["question"] for row in history.list(9)] == ["two", "one"]
    assert history.list(1)[0]["seconds"] == 1.3 and history.list(1)[0]["usage"] == {"calls": 1}
    history.close()
    (tmp_path / "text").write_text("no database, but a text that is long enough to be none" * 20)
    with pytest.raises(ValueError, match="is not a history"):
        History(tmp_path / "text")


def test_history_in_memory_keeps_the_last_questions():
    history = History()
    for number in range(MEMORY_ROWS + 2):
        history.add(str(number), 0.0, {"error": STOPPED}, [{"text": str(number)}])
    rows = history.list(1000)
    assert [rows[0]["question"], rows[-1]["question"]] == [str(MEMORY_ROWS + 1), "2"]
    assert rows[0]["status"] == "stopped" and history.find(2) is None
    assert history.find(rows[0]["id"])["events"] == [{"text": str(MEMORY_ROWS + 1)}]
    history.close()


def test_history_of_an_earlier_version_is_extended(tmp_path):
    path = tmp_path / "asked.sqlite"
    with sqlite3.connect(path) as db:
        db.execute(
            "CREATE TABLE questions (id INTEGER PRIMARY KEY, asked_at, seconds, question, answer, "
            "error, sources, usage)"
        )
        db.execute(
            "INSERT INTO questions VALUES (7, '2026-01-01', 1, 'old', 'yes', NULL, '[]', '{}')"
        )
    history = History(path)
    assert history.find(7)["answer"] == "yes" and history.find(7)["events"] == []
    history.add("new", 1.0, {"answer": "a", "sources": [], "usage": {}}, [{"text": "t"}])
    assert history.find(8)["events"] == [{"text": "t"}]
    history.close()


@pytest.mark.parametrize("waits", [False, True])
def test_disconnected_client_without_stream_stops_its_question(url, plain_model, waits):
    steps = count()
    plain_model.say = lambda messages: render_call("search", {"query": [f"page {next(steps)}"]})
    plain_model.delay_s = 0.2
    gone = f"Gone, {waits}?"

    def find_statuses():
        rows = httpx.get(f"{url}history").json()
        return [row["status"] for row in rows if row["question"] == gone]

    with ExitStack() as stack:
        lines = []
        for _ in range(2 if waits else 0):  # all slots are taken
            ask = httpx.stream("POST", f"{url}ask", json={"question": "Slow?"}, timeout=60)
            lines.append(stack.enter_context(ask).iter_lines())  # kept: see above
            next(lines[-1])
        with pytest.raises(httpx.ReadTimeout):
            body = {"messages": user(gone)}
            httpx.post(f"{url}v1/chat/completions", json=body, timeout=1.0)
        if waits:  # the two others still run
            until(lambda: find_statuses() == [])
        else:
            until(lambda: find_statuses() == ["stopped"])
            before = plain_model.asked
            time.sleep(1.0)
            assert plain_model.asked == before


def test_local_model_answers_one_at_a_time(capsys):
    assert main(["--serve", "--port", "0", "--parallel", "2"]) == 1
    assert "--parallel=2 needs --endpoint" in capsys.readouterr().err


def test_token_is_the_key_of_the_api(model):
    with served(model, token="secret") as (url, _):
        page = url.partition("#")[0]
        with client(page, "wrong") as api, pytest.raises(openai.AuthenticationError):
            api.models.list()
        with client(page, "secret") as api:
            assert [each.id for each in api.models.list()] == ["drlib"]
        assert httpx.get(f"{page}history").status_code == 401
        headers = {"Authorization": "Bearer secret"}
        assert httpx.get(f"{page}history", headers=headers).json() == []
        assert httpx.get(f"{page}history/1").status_code == 401
        assert httpx.get(f"{page}history/1", headers=headers).status_code == 404


def test_answer_without_opened_pages_has_no_sources():
    source = {"title": "Norway", "url": "cldr:Norway", "supports": True, "opened": False}
    assert chat_api.render_answer({"answer": "Krone", "sources": [source]}) == "Krone"
    line = {"run": 2, "head": "reads", "text": "a\n b"}
    assert chat_api.render_trace(line) == "2 reads: a b\n"
