"""`drlib ask --serve`: the real process on loopback, over HTTP and in a real browser.

The model is a function behind a scripted server, so it can be slow or return anything.


Run: python -m pytest tests/test_app_server.py
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from itertools import count

import httpx
import pytest

from drlib.app import server
from drlib.app.server import MAX_QUESTION_CHARS, TOKEN
from drlib.chat.tool_calls import render_answer, render_call
from drlib.cli.ask import main
from tests import browser as driver
from tests.scripted_server import Scripted
from tests.waiting import until

NORWAY = "What is the currency of Norway?"
LOOK = "<think>Look it up.</think>" + render_call("search", {"query": ["Norway"]})
EVIL = '<img src=x onerror="window.hit=1"><script>window.hit=1</script> [a](javascript:hit=1)'


def researcher(messages):
    if "<tool_response>" in messages[-1]["content"]:
        return f"<think>There.</think>{render_answer('Norwegian Krone')}"
    return LOOK


def restore_sigint():
    """Restore SIGINT, which background jobs and their children ignore."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def served(model, *options, token=""):
    """Return the page's address and process, with the model behind it."""
    command = [sys.executable, "-m", "drlib.cli", "ask", "--serve", "--port", "0", *options]
    command += ["--endpoint", model.url, "--model", model.model]
    variables = {**os.environ, TOKEN: token}
    process = subprocess.Popen(
        command,
        env=variables,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=restore_sigint,
    )
    try:
        line = process.stdout.readline()
        assert line.startswith("drlib ask: http://127.0.0.1:"), line
        yield line.split()[2], process
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def model():
    with Scripted(researcher) as model:
        yield model


@pytest.fixture(scope="module")
def url(model):
    with served(model) as (url, _):
        yield url


@pytest.fixture
def plain_model(model):
    """Return the shared model in its initial state; a test may make it slow."""
    yield model
    model.say, model.delay_s = researcher, 0.0


@pytest.fixture(scope="module")
def tab():
    if driver.CHROMIUM is None:
        pytest.skip("no Chromium here; apt-get install chromium")
    with driver.Browser() as tab:
        yield tab


def ask(url, question=NORWAY, **headers):
    reply = httpx.post(f"{url}ask", json={"question": question}, headers=headers, timeout=60)
    return reply.status_code, [json.loads(line) for line in reply.text.splitlines()]


def test_question_streams_line_by_line(url):
    status, lines = ask(url)
    assert status == 200
    assert [line.get("head") for line in lines[:-1]] == ["thinks", "search", "reads", "thinks"]
    assert "currency Norwegian Krone" in lines[2]["text"]
    assert lines[-1]["answer"] == "Norwegian Krone" and lines[-1]["usage"]["calls"] == 1
    norway = {"title": "Norway", "url": "cldr:Norway", "supports": True, "opened": False}
    assert norway in lines[-1]["sources"]
    assert ask(url)[1][-1]["answer"] == "Norwegian Krone", "and the next one"


@pytest.mark.parametrize(
    ("body", "headers", "status", "words"),
    [
        ('{"question": "x"}', {"Origin": "http://evil.example"}, 403, "is not this machine"),
        ('{"question": "x"}', {"Host": "evil.example"}, 403, "is not a loopback address"),
        ('{"question": "x"}', {"Content-Type": "text/plain"}, 415, "application/json"),
        ('{"question": " "}', {}, 422, "empty"),
        ('{"question": 5}', {}, 422, "empty"),
        ("[]", {}, 422, "give"),
        ("no JSON", {}, 422, "give"),
        (json.dumps({"question": "x" * (MAX_QUESTION_CHARS + 1)}), {}, 422, "exceeds"),
    ],
)
def test_foreign_requests_are_rejected(url, model, body, headers, status, words):
    before = model.asked
    headers = {"Content-Type": "application/json"} | headers
    reply = httpx.post(f"{url}ask", content=body, headers=headers)
    assert (reply.status_code, model.asked) == (status, before)
    assert words in reply.json()["detail"]


def test_second_question_waits_and_stop_ends_the_first(url, plain_model):
    plain_model.delay_s, plain_model.most = 0.3, 0
    pages = count()
    plain_model.say = lambda messages: render_call("search", {"query": [f"page {next(pages)}"]})
    found, lines = [], []
    first = threading.Thread(target=lambda: found.append(ask(url)))
    first.start()
    before = plain_model.asked
    until(lambda: plain_model.asked > before)

    def read_lines():
        with httpx.stream("POST", f"{url}ask", json={"question": NORWAY}, timeout=60) as reply:
            lines.extend(map(json.loads, reply.iter_lines()))  # one by one

    second = threading.Thread(target=read_lines)
    second.start()
    until(lambda: lines)
    assert httpx.post(f"{url}stop").json() == {"stopping": True}
    plain_model.say = researcher
    first.join()
    assert found[0][1][-1] == {"error": "stopped"}
    second.join()
    assert lines[0] == {
        "head": "waits",
        "run": 0,
        "text": "number 1 in the queue",
        "position": 1,
    }
    assert lines[-1]["answer"] == "Norwegian Krone" and plain_model.most == 1
    plain_model.delay_s = 0.0
    until(lambda: ask(url)[0] == 200)
    until(lambda: httpx.post(f"{url}stop").json() == {"stopping": False})


def test_disconnect_cancels_the_question(url, plain_model):
    plain_model.say = lambda messages: LOOK
    plain_model.delay_s, plain_model.most = 0.5, 0
    with httpx.stream("POST", f"{url}ask", json={"question": NORWAY}) as reply:
        assert next(reply.iter_lines())
    # the next question starts when the worker has ended, not when the client disconnects
    before = plain_model.asked
    plain_model.say = researcher
    ends = []
    until(lambda: ends.append(ask(url)) or ends[-1][0] == 200)
    assert ends[-1][1][-1]["answer"] == "Norwegian Krone"
    assert plain_model.most == 1 and plain_model.asked <= before + 3


def test_failure_is_one_line(url, plain_model):
    plain_model.say = lambda messages: None  # exceeds the context
    assert "no answer: the limit of context" in ask(url)[1][-1]["error"]


def test_next_question_is_accepted_after_the_stream(monkeypatch):
    """Also if the worker thread ends late."""

    def ends_late(question):
        question._send({"answer": "yes"})
        question._send(None)
        time.sleep(0.3)

    monkeypatch.setattr(server.AskedQuestion, "_work", ends_late)
    app = server.AskServer(session=None, token="").app

    async def ask_twice():
        transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as page:
            return [await page.post("/ask", json={"question": NORWAY}) for _ in range(2)]

    assert [reply.status_code for reply in asyncio.run(ask_twice())] == [200, 200]


def test_token_is_required(model, capsys):
    with served(model, token="secret") as (url, process):
        page, _, token = url.partition("#")
        assert token == "secret" and httpx.get(page).status_code == 200
        assert ask(page)[0] == 401 and ask(page, Authorization="Bearer Secret")[0] == 401
        assert httpx.post(f"{page}stop").status_code == 401
        status, lines = ask(page, Authorization="Bearer secret", Origin="http://other.example")
        assert status == 200 and lines[-1]["answer"] == "Norwegian Krone"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) in (0, 130)
    assert main(["--serve", "--host", "0.0.0.0", "--port", "0"]) == 1
    err = capsys.readouterr().err
    assert f"set {TOKEN}" in err and err.count("\n") == 1


def test_page_shows_the_steps_and_the_answer(url, tab, tmp_path):
    tab.open(url, "!!document.querySelector('#ask')")
    tab.js("document.querySelector('#question').focus()")
    tab.keys(*NORWAY)
    tab.point("document.querySelector('#ask')", click=True)
    until(lambda: tab.js("document.querySelector('#answer').textContent") == "Norwegian Krone")
    heads = tab.js("[...document.querySelectorAll('#trace b')].map((b) => b.textContent)")
    assert heads == ["thinks", "search", "reads", "thinks"]
    assert "Norway" in tab.js("document.querySelector('#sources').textContent")
    assert tab.js("document.querySelector('#usage').textContent").startswith("2 turns, 1 calls")
    until(lambda: tab.js("document.querySelector('#stop').disabled"))
    tab.screenshot(tmp_path / "page.png")
    assert not tab.errors and all(address.startswith((url, "about:")) for address in tab.requests)


def test_text_never_becomes_markup(url, plain_model, tab):
    def rude(messages):
        if "<tool_response>" in messages[-1]["content"]:
            return f"<think>{EVIL}</think>{render_answer(EVIL)}"
        return f"<think>{EVIL}</think>" + render_call("search", {"query": [EVIL]})

    plain_model.say = rude
    tab.open(url, "!!document.querySelector('#ask')")
    tab.js("document.querySelector('#question').value = '<b>?</b>'")
    tab.point("document.querySelector('#ask')", click=True)
    until(lambda: tab.js("document.querySelector('#answer').textContent") == EVIL)
    assert tab.js("document.querySelectorAll('img, #trace script, #answer *').length") == 0
    assert tab.js("window.hit") is None
    links = tab.js("[...document.querySelectorAll('a')].map((a) => a.protocol)")
    assert set(links) <= {"http:", "https:"}
    assert not tab.errors


def test_stop_button_stops_the_question(url, plain_model, tab):
    plain_model.say = lambda messages: LOOK
    plain_model.delay_s = 0.2
    tab.open(url, "!!document.querySelector('#ask')")
    tab.js("document.querySelector('#question').value = 'And?'")
    tab.point("document.querySelector('#ask')", click=True)
    until(lambda: tab.js("document.querySelectorAll('#trace li').length") > 1)
    tab.point("document.querySelector('#stop')", click=True)
    until(lambda: tab.js("document.querySelector('#error').textContent") == "stopped")
    until(lambda: not tab.js("document.querySelector('#ask').disabled"))
    row = "document.querySelector('#history tr').textContent"
    until(lambda: tab.js(row).endswith("stoppedAnd?"))  # only this question


def test_page_lists_questions_and_reopens_an_answer(model, plain_model, tab, tmp_path):
    gate = threading.Event()

    def gated(messages):
        if messages[1]["content"] != NORWAY:
            assert gate.wait(100)
        return researcher(messages)

    rows = "[...document.querySelectorAll('#history tr')]"
    statuses = f"{rows}.map((row) => row.cells[1].textContent)"
    text = "document.querySelector('{}').textContent"

    def submit(question):
        tab.js(f"document.querySelector('#question').value = {json.dumps(question)}")
        tab.point("document.querySelector('#ask')", click=True)

    def keep_screenshots(name):
        for dark in (False, True):
            tab.look(1280, 800, dark)
            tab.screenshot(tmp_path / f"{name}_{'dark' if dark else 'light'}.png")
        tab.look(1280, 800)

    with served(model) as (url, _):
        tab.open(url, "!!document.querySelector('#ask')")
        assert tab.js("document.querySelector('#asked').hidden")
        submit(NORWAY)
        until(lambda: tab.js(statuses) == ["answered"])
        plain_model.say = gated
        other = threading.Thread(target=ask, args=(url, "First in the queue?"))
        other.start()
        until(lambda: plain_model.running == 1)
        submit("And <b>second</b>?")
        until(lambda: tab.js(statuses) == ["waiting (1)", "running", "answered"])
        assert tab.js(text.format("#queue")) == "Waiting: number 1 in the queue"
        keep_screenshots("waiting")

        # the stored answer, while the current question waits
        tab.point(f"{rows}[2].querySelector('button')", click=True)
        until(lambda: tab.js(text.format("#answer")) == "Norwegian Krone")
        heads = "[...document.querySelectorAll('#trace b')].map((b) => b.textContent)"
        assert tab.js(heads) == ["thinks", "search", "reads", "thinks"]
        assert tab.js(text.format("#shown")).startswith(f"{NORWAY} (")
        assert "Norway" in tab.js(text.format("#sources"))
        assert tab.js(text.format("#queue")) == ""
        keep_screenshots("stored")

        gate.set()
        other.join()
        until(lambda: tab.js(statuses) == ["answered"] * 3)
        tab.point("document.querySelector('#back')", click=True)
        assert tab.js(heads) == ["thinks", "search", "reads", "thinks"]
        assert tab.js(text.format("#shown")) == "" and tab.js(
            "document.querySelector('#back').hidden"
        )
        questions = tab.js(f"{rows}.map((row) => row.cells[2].textContent)")
        assert questions == ["And <b>second</b>?", "First in the queue?", NORWAY]
        assert tab.js("document.querySelectorAll('#history b').length") == 0
        plain_model.say = lambda messages: None  # exceeds the context
        submit("Third?")
        until(lambda: tab.js(statuses)[0] == "failed")
        tab.point(f"{rows}[0].querySelector('button')", click=True)
        until(lambda: tab.js(text.format("#shown")).startswith("Third?"))
        assert "the limit of context" in tab.js(text.format("#error"))
        assert tab.js(text.format("#answer")) == ""
        keep_screenshots("failed")
    assert not tab.errors
