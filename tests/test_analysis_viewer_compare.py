"""Comparing two checkpoints in the viewer, unknown values, and float16 decoding.

Run: python -m pytest tests/test_analysis_viewer_compare.py
"""

import dataclasses
import re

import numpy as np
import pytest

from tests import test_analysis_viewer as shared
from tests.test_analysis_viewer import (
    DIGITS,
    each,
    needs_chromium,
    panel,
    parse_number,
    read_address,
    text_of,
)
from tests.waiting import until

tokenizer = shared.tokenizer
rollouts = shared.rollouts
two_checkpoints = shared.two_checkpoints
tab = shared.tab
show = shared.show


@needs_chromium
def test_checkpoints_side_by_side_and_difference(show, tokenizer, two_checkpoints):
    tab = show(two_checkpoints[0], tokenizer, compare=two_checkpoints[1])
    assert each(tab, "#views button") == ["first", "second", "difference", "side by side"]
    a, b = two_checkpoints[0][0], two_checkpoints[1][0]
    i = int(abs(b.entropies - a.entropies).argmax())
    tab.js(f"jump({i})")
    rows, _ = panel(tab)
    assert rows[""] == ["first", "second"]
    for name, field in (("log-prob", "logprobs"), ("entropy", "entropies")):
        expected = [getattr(t, field)[i] for t in (a, b)]
        assert [parse_number(x) for x in rows[name]] == pytest.approx(expected, **DIGITS)
    colour = f"it.spans[{i}].map((span) => span.style.background)"
    filled = f"Boolean(it.spans[{i}])"  # a block is filled once it is visible
    first = tab.js(colour)
    tab.keys("c")
    until(lambda: tab.js(filled))
    second = tab.js(colour)
    tab.keys("c", "c")
    until(lambda: tab.js(filled))
    assert tab.js(colour) == first + second and first != second
    assert read_address(tab)["view"] == "side by side"
    tab.js("setView(2)")
    sampled = np.flatnonzero(a.generated)
    change = np.float16(b.entropies[sampled]).astype(float) - np.float16(a.entropies[sampled])
    got = tab.js(f"{sampled.tolist()}.map((i) => value(i, 2))")
    assert got == pytest.approx(change.tolist(), abs=1e-6)
    up, down = int(sampled[change.argmax()]), int(sampled[change.argmin()])
    orange, blue = (tab.js(f"shade(strength(value({i}, 2), 2), 2)") for i in (up, down))
    assert re.search("#fdd5a8|#ee8f3c|#b34700", orange)
    assert re.search("#08519c|#5c9bd1|#bdd7ee", blue)


@needs_chromium
def test_unknown_values_are_shown_as_unknown(show, rollouts):
    t = rollouts[0]
    unknown = np.where(t.generated, np.nan, 0).astype(np.float32)
    partly = t.entropies.copy()
    i = int(np.flatnonzero(t.generated)[2])
    partly[i] = np.nan
    tab = show(
        [
            dataclasses.replace(t, id="no entropies", entropies=None),
            dataclasses.replace(t, id="nothing", entropies=None, logprobs=unknown),
            dataclasses.replace(t, id="some", entropies=partly),
        ],
        None,
    )
    assert "surprisal" in text_of(tab, "#legend")
    assert [bool(re.search(r"H \d", li)) for li in each(tab, "#list li")] == [False, False, True]
    assert tab.js(f"value({i}, 0)") == pytest.approx(-t.logprobs[i], rel=6e-4)
    tab.keys("j")
    assert "no colours" in text_of(tab, "#legend")
    assert {*each(tab, "#text i", "e.style.background")} == {""}
    tab.js(f"jump({i})")
    rows, _ = panel(tab)
    assert {name: cell for name, (cell,) in rows.items()} == dict.fromkeys(
        ["log-prob", "probability", "entropy", "share with less "], "–"
    )
    tab.keys("j")
    tab.js(f"jump({i})")
    rows, _ = panel(tab)
    assert rows["entropy"] == rows["share with less entropy"] == ["–"]
    assert parse_number(rows["log-prob"][0]) == pytest.approx(t.logprobs[i], **DIGITS)


@needs_chromium
def test_half_precision_decoding_is_exact(show, rollouts):
    tab = show(rollouts[:1], None)
    got = tab.js("Array.from(HALF, String)")
    expected = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float64)
    values = np.array([float(x.replace("Infinity", "inf")) for x in got])
    assert np.array_equal(values, expected, equal_nan=True)
