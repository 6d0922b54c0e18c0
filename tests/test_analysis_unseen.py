"""Invisible and bidirectional characters in the viewer, the report and the notebook.

Trojan Source (arXiv 2111.00169) describes text that displays differently from its content. The
tests measure what a real browser draws, and are skipped without Chromium.
"""

import dataclasses
import html
import itertools
import json
import re
import sys
import unicodedata

import numpy as np

from drlib.analysis import rendering, viewer
from drlib.analysis.report import write_report
from drlib.chat.template import train_tokenizer
from drlib.trajectory import ToolResult, save_trajectories
from tests.test_analysis_report import POLICY, run_report, visible_text
from tests.test_analysis_viewer import (
    each,
    needs_chromium,
    rollouts,
    show,
    tab,
    tokenizer,
)

__all__ = ["rollouts", "show", "tab", "tokenizer"]
RANGES = (
    (0x00, 0x08),
    (0x0B, 0x1F),
    (0x7F, 0x9F),
    (0xAD, 0xAD),
    (0x61C, 0x61C),
    (0x200B, 0x200F),
    (0x2028, 0x202E),
    (0x2060, 0x206F),
    (0xFEFF, 0xFEFF),
    (0xE0000, 0xE007F),
)
UNSEEN = [chr(code) for first, last in RANGES for code in range(first, last + 1)]
HEBREW = "שלום"
TURNED = "user\u202egnp.exe\u2066 \u2069ok"


def code_point(character):
    return f"U+{ord(character):04X}"


def places(tab, element):
    """Return (character, left, top) of every character of an element that is drawn as text."""
    return tab.js(
        "(() => { const found = [], walk = document.createTreeWalker("
        f"{element}, NodeFilter.SHOW_TEXT);"
        " while (walk.nextNode()) for (let i = 0; i < walk.currentNode.length; i++) {"
        " const range = document.createRange(); range.setStart(walk.currentNode, i);"
        " range.setEnd(walk.currentNode, i + 1); const box = range.getBoundingClientRect();"
        " if (!walk.currentNode.parentElement.matches('mark'))"
        " found.push([walk.currentNode.data[i], box.x, box.y]); } return found; })()"
    )


def is_left_to_right(found):
    """Return True if characters run from left to right, line by line."""
    pairs = itertools.pairwise(found)
    return all(a[1] <= b[1] + 0.01 or a[2] < b[2] for a, b in pairs)


def with_tokens(t, tokenizer, words, **fields):
    """Return the trajectory with these words as its tokens and other fields."""
    ids = np.array([tokenizer.convert_tokens_to_ids(word) for word in words], np.int32)
    columns = ("segments", "turns", "versions", "generated", "logprobs", "entropies")
    cut = {name: getattr(t, name)[: len(ids)] for name in columns}
    return dataclasses.replace(t, **cut, token_ids=ids, **fields)


# ---------------------------------------------------------------------------------------------
# the viewer


@needs_chromium
def test_invisible_characters_are_drawn_in_place(show, rollouts):
    text = "a" + "b".join(UNSEEN) + "c"
    t = dataclasses.replace(
        rollouts[0], id="x\u202e", metadata={"question": text, "right_answer": "b"}, answer=text
    )
    tab = show([t], None, title="t\u202e\U000e0041")
    codes = [code_point(character) for character in UNSEEN]
    for place in ("h2", "#list p:first-child", "#facts"):
        assert each(tab, f"{place} mark", "e.dataset.code") == codes, place
    sizes = each(tab, "h2 mark", "[e.offsetWidth, e.offsetHeight]")
    assert min(width for width, _ in sizes) > 20 and min(height for _, height in sizes) > 8
    drawn = each(tab, "h2 mark", "getComputedStyle(e, '::before').content")
    assert drawn == [f'"{code}"' for code in codes]
    code_points = tab.js(
        "Array.from(document.querySelector('h2').textContent, (c) => c.codePointAt(0))"
    )
    assert code_points == [ord(character) for character in text], (
        "the text of the page is the record's"
    )
    assert tab.js("document.title") == "t<U+202E><U+E0041>"
    assert each(tab, "#list li", "e.title") == ["x<U+202E>"]


@needs_chromium
def test_bidi_controls_do_not_affect_neighbours(show, rollouts):
    result = ToolResult(f"tool{TURNED}", {}, "text", False, f"kind{TURNED}")
    count = len(rollouts[0].tool_results)
    t = dataclasses.replace(
        rollouts[0],
        id="one",
        metadata={"question": TURNED, "right_answer": TURNED + "!"},
        answer=TURNED,
        tool_results=[result] * count,
    )
    tab = show([t], None)
    labels = tab.js("[...document.querySelectorAll('.block > p > span')].length")
    assert labels > 0
    for element in ("h2", "#list p:first-child", "#facts", ".block > p > span"):
        found = places(tab, f"document.querySelector('{element}')")
        assert "".join(c for c, *_ in found).count("gnp.exe") >= 1
        lines = [[c for c in found if c[2] == y] for y in dict.fromkeys(c[2] for c in found)]
        assert all(map(is_left_to_right, lines)), element


@needs_chromium
def test_right_to_left_text_is_isolated(show, rollouts):
    """Strong right-to-left letters can reorder adjacent digits without any control character."""
    t = dataclasses.replace(
        rollouts[0],
        id="one",
        metadata={"question": HEBREW, "right_answer": f"{HEBREW} 2"},
        answer=f"{HEBREW} 1",
        tool_results=[
            dataclasses.replace(r, tool=HEBREW, ok=False, error=HEBREW)
            for r in rollouts[0].tool_results
        ],
    )
    tab = show([t], None)
    label = places(tab, "document.querySelector('.block > p > span')")
    first = {c: x for c, x, _ in reversed(label)}
    assert max(x for c, x, _ in label[: len(HEBREW)]) < first["·"] < first["e"]
    facts = places(tab, "document.querySelector('#facts bdi')")
    text = "".join(c for c, *_ in facts)
    assert text == f"answer: {HEBREW} 1"
    displayed = "".join(c for c, *_ in sorted(facts, key=lambda c: c[1]))
    assert displayed.startswith("answer: ") and displayed[8] == "1", (
        "Hebrew, and only Hebrew, turns"
    )
    isolated = each(tab, "bdi, #facts span, h3 span", "getComputedStyle(e).unicodeBidi")
    assert set(isolated) == {"isolate"}


@needs_chromium
def test_tokens_keep_text_order_and_clicks(show, rollouts):
    words = [
        "begin",
        "\u202e",
        "turned",
        "\u2066\u200b",
        "and\u00ad\U000e0041back",
        "end",
        "\u2069",
    ]
    tokenizer = train_tokenizer(["some plain words here"] * 9, 340, phrases=words)
    t = with_tokens(rollouts[0], tokenizer, words, id="one", tool_results=[])
    tab = show([t], tokenizer)
    tab.js("it.blocks.forEach(fill)")
    assert each(tab, "#text i", "[e.dataset.i, e.textContent]") == [
        [str(place), word] for place, word in enumerate(words)
    ]
    codes = [code_point(c) for word in words for c in word if c in UNSEEN]
    assert each(tab, "#text i mark", "e.dataset.code") == codes
    boxes = each(tab, "#text i", "[e.getBoundingClientRect().x, e.getBoundingClientRect().y]")
    assert is_left_to_right([("", *box) for box in boxes])
    assert is_left_to_right(places(tab, "document.querySelector('#text .tokens')"))
    tab.point("document.querySelector('#text i mark')", click=True)
    assert tab.js("state.token") == 1, "the token under the box is chosen"
    assert each(tab, "#panel .mono mark", "e.dataset.code") == ["U+202E"]
    tab.js("document.querySelector('#search').value = 'turned\\u2066'")
    tab.js("state.query = 'turned\\u2066'; filter()")
    assert tab.js("[...it.hits]") == [2, 3], "the search still sees the characters themselves"


@needs_chromium
def test_right_to_left_tokens_are_isolated(show, rollouts):
    words = ["begin", HEBREW, " ", "עולם", " 12", " (34)", "\n", "then", HEBREW + "!", " 5"]
    tokenizer = train_tokenizer(["some plain words here"] * 9, 330, phrases=words)
    t = with_tokens(rollouts[0], tokenizer, words, id="one", tool_results=[])
    tab = show([dataclasses.replace(t, segments=np.zeros_like(t.segments))], tokenizer)
    assert each(tab, "#text i", "e.textContent") == words
    begin, first, gap, second, twelve, bracket, _, then, third, five = each(
        tab, "#text i", "e.getBoundingClientRect().x"
    )
    assert begin < second < gap < first < twelve < bracket and then < third < five
    assert each(tab, "#text bdi", "e.textContent") == ["".join(words[1:4]), words[8]]


@needs_chromium
def test_file_names_are_escaped(show, rollouts, tmp_path):
    for name in ("a\u202eb", "c\u202ed"):
        save_trajectories(tmp_path / f"{name}.parquet", rollouts[:2])
    one, two = sorted(tmp_path.glob("*.parquet"))
    tab = show(one, None, compare=two)
    assert tab.js("document.title") == "a<U+202E>b.parquet"
    assert each(tab, "#views mark", "e.dataset.code") == ["U+202E", "U+202E"]


# ---------------------------------------------------------------------------------------------
# report, notebooks, terminals


def test_pattern_matches_unicode_categories():
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        kind = unicodedata.category(character)
        hit = bool(rendering.UNSEEN.fullmatch(character))
        if character in UNSEEN or kind == "Cs":
            assert hit, hex(code)
        if hit:
            assert kind not in ("Lu", "Ll", "Nd", "Po", "Sm", "Zs", "Co"), hex(code)
            assert character not in "\n\t", hex(code)


def test_escaping_and_html():
    assert rendering.escape_unseen("a\u202eb\n\t\x1b[31m") == "a<U+202E>b\n\t<U+001B>[31m"
    shown = rendering.to_html("<b>\u202e&")
    assert re.sub("<span[^>]*>(.*?)</span>", r"[\1]", shown) == "&lt;b&gt;[U+202E]&amp;"
    assert (
        rendering.to_isolated_html(HEBREW + "\u200f")
        == f"<bdi>{rendering.to_html(HEBREW + chr(0x200F))}</bdi>"
    )
    assert rendering.to_isolated_html("plain é 語") == "plain é 語"


def test_rendered_conversation_is_escaped():
    parts = [rendering.Block(1, "response", f"{TURNED}\x1b]0;x\x07\r\nnext\u2028line")]
    shown = rendering.render_conversation(f"head{TURNED}", f"{HEBREW}\u202e", HEBREW, parts)
    for text in (shown.markup, shown.text):
        assert not any(character in text for character in UNSEEN)
    assert shown.text.count("<U+202E>") == 3 and "<U+001B>]0;x<U+0007><U+000D>\n" in shown.text
    assert shown.markup.count(">U+202E<") == 3
    assert f"<bdi>{HEBREW}" in shown.markup and f"(right: <bdi>{HEBREW}</bdi>)" in shown.markup


def test_rendered_loss_tokens_are_escaped(rollouts):
    words = ["begin", "\u202eturned", HEBREW]
    tokenizer = train_tokenizer(["some plain words here"] * 9, 340, phrases=words)
    shown = rendering.render_tokens(with_tokens(rollouts[0], tokenizer, words), tokenizer, 1.0)
    assert "\u202e" not in shown.markup + shown.text and f"<bdi>{HEBREW}</bdi>" in shown.markup
    assert "<U+202E>turned" in shown.text


def test_report_escapes_invisible_characters(tmp_path, rollouts):
    odd = [
        dataclasses.replace(t, id=f"{t.id}\u202e", metadata={**t.metadata, "question": TURNED})
        for t in rollouts[:4]
    ]
    source = tmp_path / "file\u202e.parquet"
    save_trajectories(source, odd)
    page = write_report(tmp_path / "r.html", [source], POLICY, viewed=2)
    assert "file U+202E .parquet" in visible_text(page)
    text = page.read_text()
    assert not [c for c in UNSEEN if c in text]
    inside = html.unescape(re.search('srcdoc="([^"]*)"', text)[1])
    assert "<title>file&lt;U+202E&gt;.parquet</title>" in inside
    rows = json.loads(re.search('id="set">(.*?)</script>', inside)[1])["rows"]
    assert [row["question"] for row in rows] == [TURNED, TURNED], "the data is as it was"


def test_error_messages_are_escaped(tmp_path):
    done = run_report(tmp_path / "r.html", tmp_path / "no\u202e\x1b[2Jfile.parquet")
    assert done.returncode == 1 and "no<U+202E><U+001B>[2Jfile" in done.stderr.replace("\\\\", "\\")


def test_escaped_pages_are_deterministic(rollouts, tokenizer):
    odd = [dataclasses.replace(rollouts[0], id=TURNED)]
    assert viewer.viewer_page(odd, tokenizer) == viewer.viewer_page(odd, tokenizer)
    assert viewer.viewer_page(odd, tokenizer).isprintable() or "\u202e" not in viewer.viewer_page(
        odd, tokenizer
    )
