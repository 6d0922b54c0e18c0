"""Safety of the viewer page: hostile texts, the notebook frame, light and dark, and bad input.

As in test_analysis_viewer.py the browser is real, and the browser tests are skipped without it.
"""

import dataclasses
import html
import json
import re
import socket

import matplotlib.image
import numpy as np
import pytest

from drlib.analysis import viewer, widgets
from drlib.chat.template import train_tokenizer
from drlib.files import WriteError
from drlib.trajectory import ToolResult
from tests.test_analysis_viewer import (  # the fixtures too
    TOUR,
    each,
    needs_chromium,
    rollouts,
    show,
    tab,
    text_of,
    tokenizer,
)
from tests.waiting import until

__all__ = ["rollouts", "show", "tab", "tokenizer"]

HOSTILE = [
    "</script><script>window.broken = 1</script>",
    "<!-- <script>",
    "\"';window.broken=1;//",
    "</script ",
    "<!--<script ",
    "<img src=x onerror=window.broken=1>",
    "\u2028window.broken = 1\u2028",
    "${window.broken = 1}",
    "&lt;b&gt; @@SET@@ \\u003c",
    "]]>--></style></title>",
    "\ud800 \x00 \ufffe",
]


@needs_chromium
def test_hostile_texts_are_shown_as_text(show, rollouts):
    words = [text for text in HOSTILE if text.isprintable()]
    tokenizer = train_tokenizer(["some plain words here"] * 9, 340, phrases=words)
    ids = np.array([tokenizer.convert_tokens_to_ids(text) for text in words] * 2, np.int32)
    n = len(ids)
    cut = {
        name: getattr(rollouts[0], name)[:n]
        for name in ("segments", "turns", "versions", "generated", "logprobs", "entropies")
    }
    hostile = [
        dataclasses.replace(
            rollouts[0],
            **cut,
            id=text,
            token_ids=ids,
            answer=text,
            metadata={"question": text, "right_answer": text + "!"},
            tool_results=[ToolResult(text, {}, text, False, text)],
        )
        for text in HOSTILE
    ]
    tab = show(hostile, tokenizer, title=HOSTILE[0])
    assert text_of(tab, "h1") == HOSTILE[0]
    assert text_of(tab, "h2") == HOSTILE[0]
    shown = each(tab, "#list li p:first-child")
    assert [x.encode(errors="replace") for x in shown[:-1]] == [x.encode() for x in HOSTILE[:-1]]
    for at in range(len(HOSTILE)):
        tab.js(f"open({at}); jump(3)")
        assert each(tab, "#text i") == words * 2
    assert tab.js("window.broken === undefined && document.querySelector('img') === null")
    assert tab.js("document.scripts.length") == 2 + len(HOSTILE)


@needs_chromium
def test_content_policy_blocks_scripts_and_requests(show, tab, rollouts):
    show(rollouts[:1], None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        host = f"http://127.0.0.1:{server.getsockname()[1]}"
        tab.js(
            "(() => { const s = document.createElement('script'); s.textContent = 'broken = 1';"
            f" document.body.append(s); new Image().src = '{host}/x'; }})()"
        )
        refused = tab.js(f"fetch('{host}/y').then(() => 'reached', () => 'refused')")
        server.settimeout(0.2)
        with pytest.raises(TimeoutError):
            server.accept()
    assert refused == "refused" and tab.js("window.broken === undefined")
    assert tab.errors and all("Content Security Policy" in str(e) for e in tab.errors)
    tab.errors.clear()


def test_equal_trajectories_give_equal_bytes(tmp_path, rollouts, tokenizer):
    path = TOUR / "sft_sampled.parquet"
    first = viewer.save_page(tmp_path / "a.html", viewer.viewer_page(path, tokenizer)).read_bytes()
    again = viewer.save_page(
        tmp_path / "b.html", viewer.viewer_page(path, TOUR / "policy_sft")
    ).read_bytes()
    assert first == again and first.decode().count("@@") == 0
    assert viewer.viewer_page(rollouts, tokenizer, title=path.name).encode() == first
    (tmp_path / "taken").mkdir()
    with pytest.raises(WriteError, match="taken"):
        viewer.save_page(tmp_path / "taken", viewer.viewer_page(path, tokenizer))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.html", "b.html", "taken"]


def test_invalid_input_is_rejected_with_a_remedy(tmp_path, rollouts, tokenizer):
    with pytest.raises(ValueError, match="no trajectories to view"):
        viewer.viewer_page([], tokenizer)
    with pytest.raises(FileNotFoundError, match="nothing.parquet"):
        viewer.viewer_page(tmp_path / "nothing.parquet", tokenizer)
    with pytest.raises(ValueError, match="not among the tokenizer's 290"):
        viewer.viewer_page(rollouts, train_tokenizer(["a b c"] * 3, 290))
    one, *others = rollouts
    places = f"first set has '{one.id}' where the second has '{others[0].id}': rescore one file"
    with pytest.raises(ValueError, match=places):
        viewer.viewer_page(rollouts, tokenizer, compare=others)
    with pytest.raises(ValueError, match=f"'{others[-1].id}' where the second has nothing"):
        viewer.viewer_page(rollouts, tokenizer, compare=rollouts[:-1])
    other = dataclasses.replace(one, token_ids=one.token_ids[::-1].copy())
    with pytest.raises(ValueError, match=f"{one.id}' has different tokens"):
        viewer.viewer_page([one], tokenizer, compare=[other])


# ---------------------------------------------------------------------------------------------
# widget and layout


def test_widget_contains_only_the_page(tmp_path, rollouts):
    widget = widgets.TrajectoryViewer(TOUR / "sft_sampled.parquet", TOUR / "policy_sft", height=500)
    assert repr(widget) == "TrajectoryViewer(48 trajectories)"
    (frame,) = widget.children
    parts = re.fullmatch(r'<iframe .* srcdoc="([^"]*)"></iframe>', frame.value, re.S)
    inside = html.unescape(parts[1])
    saved = widget.save(tmp_path / "page.html").read_text(encoding="utf-8")
    assert inside == saved == viewer.viewer_page(TOUR / "sft_sampled.parquet", TOUR / "policy_sft")
    assert 'sandbox="allow-scripts"' in frame.value and "500px" in frame.value
    assert len(widgets.TrajectoryViewer(rollouts[:3]).children) == 1


@needs_chromium
def test_widget_works_in_its_frame(tab, tmp_path, rollouts):
    value = widgets.TrajectoryViewer(rollouts[:5]).children[0].value
    (tmp_path / "notebook.html").write_text("<title>notebook</title>")
    tab.errors.clear()
    tab.open((tmp_path / "notebook.html").as_uri(), "document.title === 'notebook'")
    tab.js(f"document.body.innerHTML = {json.dumps(value)}")  # as JupyterLab does
    frames = lambda: tab.call("Page.getFrameTree")["frameTree"].get("childFrames")  # noqa: E731 - named once, read twice
    until(frames)
    world = tab.call("Page.createIsolatedWorld", frameId=frames()[0]["frame"]["id"])
    inside = lambda code: tab.js(code, contextId=world["executionContextId"])  # noqa: E731 - named once, read twice
    until(lambda: inside("document.querySelectorAll('#list li').length") == 5)
    tab.point("document.querySelector('iframe')", click=True)
    tab.keys("j")
    until(lambda: inside("document.querySelector('[aria-current]').title") == rollouts[1].id)
    inside("new Promise((done) => setTimeout(done, 300))")
    assert tab.errors == []


@needs_chromium
@pytest.mark.parametrize("width", [1280, 800])
def test_light_and_dark_layouts_fill_the_window(show, tmp_path, tokenizer, rollouts, width):
    tab = show(rollouts, tokenizer)
    background = {}
    for dark in (False, True):
        tab.look(width, 800, dark)
        tab.js("jump(20); new Promise((done) => setTimeout(done, 300))")
        tab.screenshot(tmp_path / "page.png")
        picture = matplotlib.image.imread(tmp_path / "page.png")[..., :3]
        assert picture.shape == (800, width, 3)
        assert len(np.unique((picture * 31).astype(int) @ [1, 32, 1024])) > 60  # colours
        background[dark] = float(np.median(picture))
        boxes = tab.js(
            "['side', 'head', 'text', 'panel'].map((id) => { const b = "
            "document.getElementById(id).getBoundingClientRect(); "
            "return [b.x, b.y, b.right, b.bottom]; })"
        )
        area = sum((c - a) * (d - b) for a, b, c, d in boxes)
        assert area == pytest.approx(width * 800, rel=1e-6)
        assert max(c for *_, c, _ in boxes) == width and max(d for *_, d in boxes) == 800
    assert background[False] > 0.9 and background[True] < 0.2
