"""The page about judged answers: contents by an HTML parser, and behaviour in headless Chromium.

Run: python -m pytest tests/test_analysis_answer_page.py
"""

import base64
import hashlib
import html
import json
import re
from html.parser import HTMLParser

import pytest

from drlib.analysis import answer_page, viewer
from drlib.cli import main
from drlib.evaluation.answer_files import hash_question, judge_files
from drlib.evaluation.benchmarks import BenchmarkItem
from drlib.rewards.judges import JUDGES
from tests import browser as driver
from tests.test_analysis_viewer_safety import HOSTILE
from tests.test_evaluation_answer_files import row, write
from tests.waiting import until

needs_chromium = pytest.mark.skipif(
    driver.CHROMIUM is None, reason="no Chromium here; apt-get install chromium"
)
VOID = {"meta", "input", "br", "img", "link"}


class Page(HTMLParser):
    """Elements (tag, attributes, text) of a page, read as a browser does."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.open = [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        element = {"tag": tag, "text": "", **dict(attributes)}
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag):
        assert self.open and self.open[-1]["tag"] == tag, f"</{tag}> closes nothing"
        self.open.pop()

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def all(self, tag):
        return [element for element in self.elements if element["tag"] == tag]

    def questions(self):
        return [element for element in self.all("tr") if "data-verdicts" in element]


def chat(question, *turns):
    roles = ("assistant", "user")
    said = [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]
    return [{"role": "user", "content": question}, *said]


def call(name):
    return f'<think>t</think><tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>'


@pytest.fixture
def rounds(tmp_path):
    """Return two rounds of three questions; one row has no messages, one run failed."""
    search = [call("search"), "<tool_response>Oslo is a city</tool_response>"]
    norway = {"category": "cities", "termination": "answered", "confidence": 90}
    norway["messages"] = chat("Capital of Norway?", *search, "<answer>Oslo</answer>")
    river = {"category": "rivers", "messages": chat("River?", "<answer>Elbe</answer>")}
    first = [
        row("Capital of Norway?", "Oslo", "Oslo", **norway),
        row("River?", "Rhine", "Elbe", **river),
        row("Third?", "3", None),
    ]
    second = [
        row("Third?", "3", "[Failed]", messages=chat("Third?", call("visit"))),
        row("River?", "Rhine", "Rhine", messages=chat("River?", "<answer>Rhine</answer>")),
        row("Capital of Norway?", "Oslo", "Bergen"),
    ]
    return [write(tmp_path / "iter1.jsonl", first), write(tmp_path / "iter2.jsonl", second)]


def build(files, items=()):
    return answer_page.answer_page(judge_files(files, JUDGES["rules"](), items=items), files)


def embedded(page):
    """Return the rows of the viewer in the frame of a page."""
    (frame,) = page.all("iframe")
    inner = Page(frame["srcdoc"])
    (data,) = [one for one in inner.all("script") if one.get("id") == "set"]
    return json.loads(data["text"])


def test_questions_verdicts_and_trajectories(rounds):
    page = Page(build(rounds))
    found = {one["data-verdicts"]: one for one in page.questions()}
    assert {one["data-category"] for one in found.values()} == {"cities", "rivers", ""}
    assert [*found] == ["correct incorrect", "incorrect correct", "not_attempted judge_error"]
    norway, river, third = found.values()
    assert "Capital of Norway?" in norway["text"] and "correct answerOslo" in norway["text"]
    assert "round 1Oslo" in norway["text"] and "round 2Bergen" in norway["text"]
    assert "1 calls; confidence 90%" in norway["text"] and "answered" in norway["text"]
    assert "no answer" in third["text"] and "the run failed" in third["text"]
    buttons = [one["data-trajectory"] for one in page.all("button")]
    # ROUND-LINE; of rows with messages, also of the failed run
    assert buttons == ["1-1", "1-2", "2-2", "2-1"]
    rows = {one["id"]: one for one in embedded(page)["rows"]}
    assert {*rows} == {*buttons}
    outcomes = {ident: one["outcome"] for ident, one in rows.items()}
    assert outcomes["1-1"] == outcomes["2-2"] == "right" and outcomes["1-2"] == "wrong"
    assert outcomes["2-1"] not in ("right", "wrong")
    assert rows["1-2"]["question"] == "River?" and rows["1-2"]["expected"] == "Rhine"
    assert rows["1-1"]["calls"] == 1
    texts = "".join(embedded(page)["texts"])
    assert "Bergen" not in texts and "Elbe" in texts  # the row without messages has none
    measures = page.elements[[e.get("id") for e in page.elements].index("measures")]["text"]
    assert "questions x rounds3 x 2" in measures and "calls by tool" in measures


def test_filters_are_those_of_the_answers(rounds):
    page = Page(build(rounds))
    verdicts, categories = page.all("select")
    values = [one["value"] for one in page.all("option")]
    assert values[:6] == ["", "correct", "incorrect", "not_attempted", "judge_error", "differ"]
    assert values[6:] == ["", "cities", "rivers"]
    assert (verdicts["id"], categories["id"]) == ("verdict", "category")
    single = Page(build(rounds[:1]))
    assert "differ" not in [one["value"] for one in single.all("option")]


def test_page_is_offline_and_its_scripts_are_allowed_by_hash(rounds):
    text = build(rounds)
    page = Page(text)
    assert not re.search(r"""(src|href)\s*=|url\(|@import""", text.split("<iframe")[0])
    (policy,) = [m["content"] for m in page.all("meta") if "http-equiv" in m]
    allowed = re.findall(r"'sha256-([^']+)'", policy)
    own = [one["text"] for one in page.all("script")]
    inner = Page(page.all("iframe")[0]["srcdoc"])
    own += [one["text"] for one in inner.all("script") if "type" not in one]
    hashes = [base64.b64encode(hashlib.sha256(t.encode()).digest()).decode() for t in own]
    assert hashes == allowed and len(own) == 2
    assert "default-src 'none'" in policy and page.all("iframe")[0]["sandbox"] == "allow-scripts"
    assert "@@" not in re.sub("srcdoc=.*", "", text)


def test_hostile_texts_are_text(tmp_path):
    texts = [*HOSTILE[:-1], "</script><img src=x onerror=alert(1)>", '" onclick="broken=1" x="']
    rows = []
    for n, text in enumerate(texts):
        more = {"category": text, "termination": text, "messages": chat(text, f"{text}!")}
        rows.append(row(f"{text} {n}", text, text + "!", **more))
    files = [write(tmp_path / "a.jsonl", rows)]
    page = Page(build(files))
    assert not page.open, "every element is closed"
    assert {one["tag"] for one in page.elements} <= {
        *("html head meta title style body h1 table tbody thead tr th td p input select".split()),
        *("option span details summary dl dt dd iframe script button".split()),
    }
    assert len(page.all("script")) == 1 and not page.all("img")
    events = [k for one in page.elements for k in one if k.startswith("on")]
    assert events == []
    assert [one["data-category"] for one in page.questions()] == texts
    shown = [one["text"] for one in page.all("summary")]
    seen = [re.sub("\u2028", "U+2028", text) for text in texts]
    assert shown == [f"{text} {n}" for n, text in enumerate(seen)]
    inner = Page(page.all("iframe")[0]["srcdoc"])
    assert not inner.all("img")
    assert [one["question"] for one in embedded(page)["rows"]] == [
        f"{text} {n}" for n, text in enumerate(texts)
    ]


def test_protected_benchmarks_have_ids_and_hashes_only(tmp_path):
    item = BenchmarkItem(
        "i7", "Secret riddle?", ("Zanzibar",), {"category": "Hiddencat"}, protected=True
    )
    more = {"citations": ["Pemba"], "error": None, "termination": "answered"}
    rows = [
        row("Secret riddle?", "x", "Zanzibar", messages=chat("Secret riddle?", "Mafia"), **more)
    ]
    page = build([write(tmp_path / "a.jsonl", rows)], [item])
    assert not any(w in page for w in ("Secret", "riddle", "Zanzibar", "Hiddencat", "Pemba"))
    assert "Mafia" not in page and Page(page).all("iframe") == []
    (only,) = Page(page).questions()
    assert only["text"].startswith(f"i7 · {hash_question('Secret riddle?')}")
    assert only["data-category"] == "" and only["data-verdicts"] == "correct"


def test_files_without_messages_have_no_frame(tmp_path):
    page = Page(build([write(tmp_path / "a.jsonl", [row("A?", "1", "1")])]))
    assert page.all("iframe") == [] and page.all("button") == [] and len(page.questions()) == 1


def test_long_sets_embed_the_first_trajectories(rounds, monkeypatch):
    whole = embedded(Page(build(rounds)))["rows"]
    monkeypatch.setattr(answer_page, "MOST_WORDS", whole[0]["tokens"] + whole[1]["tokens"])
    page = Page(build(rounds))
    assert [one["id"] for one in embedded(page)["rows"]] == ["1-1", "1-2"]
    assert len(page.all("button")) == 2 and len(page.questions()) == 3


def test_unreadable_messages_are_named(tmp_path):
    image = [{"role": "assistant", "content": [{"type": "image_url"}]}]
    rows = [row("A?", "1", "1"), row("B?", "1", "1", messages=image)]
    with pytest.raises(ValueError, match=r"a\.jsonl, row 2 .*image_url"):
        build([write(tmp_path / "a.jsonl", rows)])


def test_command_writes_the_page(tmp_path, rounds, capsys):
    out = tmp_path / "deep" / "report.html"
    arguments = ["evaluate", "answers", *map(str, rounds), "--html", str(out)]
    assert main(arguments) == 0
    first = out.read_bytes()
    assert len(Page(first.decode()).questions()) == 3
    assert main(arguments) == 0 and out.read_bytes() == first, "equal files, equal bytes"


# ---------------------------------------------------------------- in a browser


@pytest.fixture
def tab():
    with driver.Browser() as tab:
        yield tab


@needs_chromium
def test_page_in_a_browser(tab, tmp_path, rounds):
    path = viewer.save_page(tmp_path / "page.html", build(rounds))
    tab.open(path.as_uri(), ready="document.readyState === 'complete'")
    visible = "document.querySelectorAll('#questions tbody tr:not([hidden])').length"
    assert tab.js(visible) == 3 and tab.js("$('count').textContent") == "3 of 3 questions"
    steps = [("search", "rhine", 1), ("search", "", 3), ("verdict", "differ", 3)]
    steps += [("verdict", "judge_error", 1), ("category", "rivers", 0), ("verdict", "correct", 1)]
    for name, value, count in steps:
        tab.js(f"$('{name}').value = '{value}'; $('{name}').oninput()")
        assert tab.js(visible) == count, name
    tab.js("$('verdict').value = $('category').value = ''; filter()")
    frames = tab.call("Page.getFrameTree")["frameTree"]["childFrames"]
    frame = tab.call("Page.createIsolatedWorld", frameId=frames[0]["frame"]["id"])

    def opened():
        title = "document.querySelector('h2').textContent"
        return tab.js(title, contextId=frame["executionContextId"])

    until(lambda: opened() == "Capital of Norway?")
    tab.js(
        "document.querySelector('[data-trajectory=\"2-2\"]').scrollIntoView({ block: 'center' })"
    )
    tab.point("document.querySelector('[data-trajectory=\"2-2\"]')", click=True)
    until(lambda: opened() == "River?")
    # only the page around the viewer opens trajectories
    tab.js("postMessage('1-1', '*')", contextId=frame["executionContextId"])
    tab.js("new Promise((done) => setTimeout(done, 100))", contextId=frame["executionContextId"])
    assert opened() == "River?"
    assert tab.errors == [] and not [url for url in tab.requests if url.startswith("http")]


@needs_chromium
def test_hostile_texts_do_not_run(tab, tmp_path):
    texts = [*HOSTILE[:-1], "</script><img src=x onerror=window.broken=1>"]
    rows = [row(f"{t} {n}", t, t, category=t, messages=chat(t, t)) for n, t in enumerate(texts)]
    files = [write(tmp_path / "a.jsonl", rows)]
    path = viewer.save_page(tmp_path / "page.html", build(files))
    tab.open(path.as_uri(), ready="document.readyState === 'complete'")
    assert tab.js("window.broken === undefined && document.images.length === 0")
    shown = tab.js("[...document.querySelectorAll('summary')].map((one) => one.textContent)")
    assert len(shown) == len(texts) and f"{texts[0]} 0" in shown
    for text in texts:  # also as the value of a filter
        tab.js(f"$('category').value = {json.dumps(text)}; filter()")
        assert tab.js("document.querySelectorAll('#questions tbody tr:not([hidden])').length") == 1
    assert tab.errors == []


def test_frame_contains_the_viewer_page(rounds):
    text = build(rounds)
    inner = html.unescape(re.search('srcdoc="([^"]*)"', text)[1])
    assert inner.startswith("<!DOCTYPE html>") and 'addEventListener("message"' in inner
