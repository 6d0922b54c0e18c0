"""The trajectory viewer in headless Chromium: list, filters, colours and panel.

The browser tests are skipped without Chromium. The contents of the page are compared with the
records by code that shares nothing with the page.
"""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoModelForCausalLM

from drlib.analysis import viewer
from drlib.analysis.rendering import describe_outcome
from drlib.analysis.rescoring import rescore
from drlib.analysis.token_table import find_responses
from drlib.chat.segments import token_texts
from drlib.chat.template import load_tokenizer
from drlib.trajectory import Termination, load_trajectories
from tests import browser as driver
from tests.benchmarks.bench_viewer import long_trajectory
from tests.waiting import until

TOUR = Path(__file__).resolve().parents[1] / "figures" / "reference" / "tour"
LISTED = "[...document.querySelectorAll('#list li:not([hidden])')].map((li) => li.title)"
DIGITS = dict(rel=6e-3, abs=4e-8)  # three digits of a float16
needs_chromium = pytest.mark.skipif(
    driver.CHROMIUM is None, reason="no Chromium here; apt-get install chromium"
)


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(TOUR / "policy_sft")


@pytest.fixture(scope="module")
def rollouts():
    return load_trajectories(TOUR / "sft_sampled.parquet")


@pytest.fixture(scope="module")
def two_checkpoints(rollouts):
    """Return the same rollouts under two checkpoints, with alternatives and experts."""
    folders = (TOUR / "policy_sft", TOUR / "policy_rl")
    models = [AutoModelForCausalLM.from_pretrained(folder) for folder in folders]
    return [list(rescore(model, rollouts[:12], top_k=3, experts=True)) for model in models]


@pytest.fixture(scope="module")
def tab():
    with driver.Browser() as tab:
        yield tab


@pytest.fixture
def show(tab, tmp_path):
    """Return show(source, ...), which writes the page, opens it and checks for errors."""
    tab.look(1280, 800)

    def show(source, *arguments, address="", **options):
        path = viewer.save_page(
            tmp_path / "page.html", viewer.viewer_page(source, *arguments, **options)
        )
        tab.errors.clear()
        tab.requests.clear()
        tab.open(path.as_uri() + address)
        return tab

    yield show
    assert tab.errors == []


def chip(group, name):
    return f"[...document.querySelectorAll('#{group} button')].find((b) => b.value === '{name}')"


def text_of(tab, selector):
    return tab.js(f"document.querySelector({json.dumps(selector)}).textContent")


def each(tab, selector, what="e.textContent"):
    """Return a value of every element e that matches the selector."""
    return tab.js(f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => {what})")


def panel(tab):
    """Return the rows of the panel's tables by name, and its bars."""
    cells = "[...e.children].map((cell) => cell.textContent)"
    rows, bars = each(tab, "#panel tr", cells), each(tab, "#panel .bar", cells)
    return {name: cells for name, *cells in rows}, bars


def parse_number(text):
    return float(text.replace("−", "-").removesuffix("%"))


def shown_trajectory(tab, rollouts):
    """Return the trajectory that is shown."""
    return next(t for t in rollouts if t.id == tab.js("it.row.id"))


def read_address(tab):
    """Return the part of the address after #, once it has been written."""
    until(lambda: tab.js("saving === 0 || location.hash.length > 1"))
    tab.js("new Promise((done) => setTimeout(done, 300))")
    return tab.js("Object.fromEntries(new URLSearchParams(location.hash.slice(1)))")


# ---------------------------------------------------------------------------------------------
# the list


@needs_chromium
def test_page_lists_every_trajectory_without_requests(show, rollouts):
    tab = show(TOUR / "sft_sampled.parquet", TOUR / "policy_sft")
    assert tab.js(LISTED) == [t.id for t in rollouts]
    requested = [url for url in tab.requests if url != "about:blank"]
    assert requested == [tab.js("location.href.split('#')[0]")]
    assert text_of(tab, "h1") == "sft_sampled.parquet"
    assert text_of(tab, "#count") == "48 trajectories"
    for li, t in zip(tab.js("items.map((li) => li.textContent)"), rollouts):
        mean = t.entropies[t.generated].astype(np.float64).mean()
        assert li.startswith(t.metadata["question"][:20])
        assert f"{len(t)} tokens" in li and f"H {mean:.2f}" in li and describe_outcome(t) in li


def outcomes(t):
    return {describe_outcome(t)}


def statuses(t):
    kinds = {"empty" if r.error == "empty" else "ok" if r.ok else "error" for r in t.tool_results}
    return (
        {"no calls"}
        if not kinds
        else {"all ok"}
        if kinds == {"ok"}
        else {f"some {kind}" for kind in kinds - {"ok"}}
    )


@needs_chromium
@pytest.mark.parametrize(("group", "of"), [("outcome", outcomes), ("status", statuses)])
def test_each_filter_keeps_exactly_its_matches(show, rollouts, group, of):
    tab = show(rollouts, None)
    names = each(tab, f"#{group} button", "e.value")
    assert set(names) == set().union(*map(of, rollouts))
    for name in names:
        tab.point(chip(group, name), click=True)
        right = [t.id for t in rollouts if name in of(t)]
        assert tab.js(LISTED) == right
        assert text_of(tab, "#count") == f"{len(right)} of 48 trajectories"
        assert tab.js("it.row.id") in right
        tab.point(chip(group, name), click=True)
    for name in names[:2]:  # two of one group: either
        tab.point(chip(group, name), click=True)
    assert tab.js(LISTED) == [t.id for t in rollouts if of(t) & {*names[:2]}]


@needs_chromium
def test_filters_and_search_combine(show, tokenizer, rollouts):
    tab = show(rollouts, tokenizer)
    tab.point(chip("outcome", "wrong"), click=True)
    tab.point(chip("status", "some error"), click=True)
    both = [t for t in rollouts if describe_outcome(t) == "wrong" and "some error" in statuses(t)]
    assert tab.js(LISTED) == [t.id for t in both] and both
    word = re.findall(r"[A-Za-z]+", both[0].metadata["question"])[-1]
    tab.keys("/", *word.swapcase())  # in any case
    word = word.lower()
    found = [t.id for t in both if word in "".join(token_texts(tokenizer, t.token_ids)).lower()]
    assert found[0] == both[0].id
    until(lambda: tab.js(LISTED) == found)
    texts = token_texts(tokenizer, shown_trajectory(tab, rollouts).token_ids)
    ends = np.cumsum([len(text) for text in texts])
    places = [
        at for match in re.finditer(word, "".join(texts).lower()) for at in range(*match.span())
    ]
    right = {int(np.searchsorted(ends, at, "right")) for at in places}
    assert set(tab.js("[...it.hits]")) == right and right
    tab.js("it.blocks.forEach(fill)")
    assert set(each(tab, "i.hit", "Number(e.dataset.i)")) == right
    tab.keys("Escape")
    tab.js("document.querySelector('#search').value = 'nobody wrote this'")
    tab.js("document.querySelector('#search').oninput()")
    until(lambda: tab.js(LISTED) == [])
    assert "No trajectory matches" in text_of(tab, "#text") and tab.js("it === null")
    tab.keys("j", "k", "ArrowRight", "n", ".", "c", "Escape")  # with nothing to act on


def test_outcome_comes_from_reward_or_right_answer(rollouts):
    t = next(t for t in rollouts if describe_outcome(t) == "wrong")
    change = dataclasses.replace
    assert viewer.name_outcome(change(t, reward=0.5)) == "right"
    assert viewer.name_outcome(change(t, reward=0.4, answer=t.metadata["right_answer"])) == "wrong"
    assert viewer.name_outcome(change(t, metadata={})) == "unjudged"
    late = change(t, answer=None, termination=Termination.WALL_CLOCK)
    for one in (late, change(late, reward=0.0)):
        assert viewer.name_outcome(one) == "no answer (wall_clock)"
    assert viewer.name_outcome(change(late, reward=1.0)) == "right"


# ---------------------------------------------------------------------------------------------
# one trajectory


@needs_chromium
def test_text_shows_every_token_once_in_segments(show, tokenizer, rollouts):
    tab = show(rollouts, tokenizer)
    for at in (0, 7, 20):
        t = rollouts[at]
        tab.js(f"open({at}); it.blocks.forEach(fill)")
        texts = [[str(i), text] for i, text in enumerate(token_texts(tokenizer, t.token_ids))]
        assert each(tab, "#text i", "[e.dataset.i, e.textContent]") == texts
        assert each(tab, "#text i", "e.classList.contains('given')") == (~t.generated).tolist()
        assert len(each(tab, "#text section")) == t.turns[-1] + 1
        labels = [label.split("\n") for label in each(tab, ".block > p", "e.innerText")]
        shown = [label[1].split(" (")[0] for label in labels if label[0] == "tool response"]
        status = [status for *_, status in find_responses(t)]
        assert shown == [f"{r.tool} · {name}" for r, name in zip(t.tool_results, status)]


@needs_chromium
def test_panel_shows_the_recorded_values(show, tokenizer, two_checkpoints):
    t = two_checkpoints[0][3]
    tab = show(two_checkpoints[0], tokenizer, address=f"#id={t.id}")
    sampled = np.flatnonzero(t.generated)
    halves = np.float16(t.entropies[t.generated])
    for i in map(int, sampled[[0, 3, 9, -1]]):
        tab.js(f"jump({i})")
        tab.point(f"it.spans[{i}][0]")
        rows, bars = panel(tab)
        less = 100 * (halves < np.float16(t.entropies[i])).mean()
        right = {
            "log-prob": t.logprobs[i],
            "probability": 100 * np.exp(t.logprobs[i]),
            "entropy": t.entropies[i],
            "share with less entropy": less,
        }
        for name, value in right.items():
            assert parse_number(rows[name][0]) == pytest.approx(value, **DIGITS), name
        top = dict(zip(t.top_ids[i].tolist(), np.exp(t.top_logprobs[i]).tolist()))
        top.setdefault(int(t.token_ids[i]), float(np.exp(t.logprobs[i])))
        shares = [100 * p for p in top.values()]
        assert [parse_number(p) for _, p in bars] == pytest.approx(shares, **DIGITS)
        drawn = each(tab, ".bar", "e.matches('.drawn')")
        assert drawn == [one == t.token_ids[i] for one in top]
        assert [rows[f"layer {layer}"][0] for layer in range(t.routed_experts.shape[1])] == [
            " ".join(map(str, chosen)) for chosen in t.routed_experts[i]
        ]
        about = text_of(tab, "#panel > div")
        assert f"id {t.token_ids[i]}, position {i}" in about and f"turn {t.turns[i] + 1}" in about
    given = int(np.flatnonzero(~t.generated)[5])
    tab.point(f"(jump({given}), it.spans[{given}][0])")
    assert "given" in text_of(tab, "#panel") and "log-prob" not in panel(tab)[0]


@needs_chromium
def test_strip_shows_the_maximum_per_pixel(show):
    t = long_trajectory(5000, 1700, seed=3)
    tab = show([t], None)
    width = tab.js("document.querySelector('#strip').clientWidth")
    best = tab.js("it.best[0]")
    assert len(best) == width < len(t)
    edges = [c * len(t) // width for c in range(width + 1)]
    for c, (a, b) in enumerate(zip(edges, edges[1:])):
        assert a <= best[c] < b
        assert np.float16(t.entropies[best[c]]) == np.float16(t.entropies[a:b]).max()
    tab.point("document.querySelector('#strip')", click=True, across=(300.5) / width)
    until(lambda: tab.js("state.token") == best[300])
    assert tab.js(f"it.spans[{best[300]}][0].classList.contains('focus')")
    place = tab.js("it.spans[state.token][0].getBoundingClientRect().y")
    assert 0 < place < 800


@needs_chromium
def test_keys_move_through_trajectories_turns_and_tokens(show, rollouts):
    tab = show(rollouts, None)
    tab.keys("j", "j", "k")
    assert tab.js("it.row.id") == rollouts[1].id
    t = next(t for t in rollouts if t.turns[-1] >= 3)
    at = rollouts.index(t)
    tab.js(f"open({at})")
    tab.keys("ArrowRight", "ArrowRight")
    assert read_address(tab) == {"id": t.id, "turn": "3"}
    assert text_of(tab, "#at") == f"turn 3 of {t.turns[-1] + 1}"
    tab.keys("ArrowLeft", "n")
    values = np.where(t.generated, t.entropies, -1)
    high = np.flatnonzero(values >= np.sort(values[t.generated])[int(0.8 * t.generated.sum())])
    assert tab.js("state.token") == high[0]
    tab.keys("n", "n", "p")
    assert tab.js("state.token") == high[1]
    tab.keys(".", ".", ",")
    assert tab.js("state.token") == high[1] + 1
    tab.keys("Escape")
    assert tab.js("state.token") == -1


@needs_chromium
def test_address_restores_the_view(show, rollouts):
    tab = show(rollouts, None)
    tab.point(chip("outcome", "wrong"), click=True)
    t = [t for t in rollouts if describe_outcome(t) == "wrong"][4]
    tab.js(f"open({rollouts.index(t)}); jump(60)")
    where = read_address(tab)
    assert where["id"] == t.id and where["token"] == "60" and where["outcome"] == "wrong"
    link = tab.js("location.href")
    tab.open(link)
    assert tab.js("it.row.id") == t.id and tab.js("state.token") == 60
    assert tab.js(LISTED) == [t.id for t in rollouts if describe_outcome(t) == "wrong"]
    # the delayed address of the old view is written before the event of the new one arrives
    late = f"history.replaceState(null, '', '#id={t.id}')"
    tab.js(f"location.hash = '#id={rollouts[7].id}'; {late}")
    until(lambda: tab.js("it.row.id") == rollouts[7].id)
    assert len(tab.js(LISTED)) == 48


@needs_chromium
def test_long_trajectory_is_drawn_lazily(show, tokenizer):
    t = long_trajectory(30_000, len(tokenizer), seed=1)
    tab = show([t], tokenizer)
    count = "document.querySelectorAll('#text i').length"
    assert 0 < tab.js(count) < 4000
    tab.keys(*["ArrowRight"] * 7)
    until(lambda: tab.js("it.spans[it.starts[7]] !== undefined"))
    tab.js("jump(29000)")
    assert tab.js("it.spans[29000][0].getBoundingClientRect().y") == pytest.approx(450, abs=350)
    assert tab.js(count) < 10_000 and text_of(tab, "#at").startswith(f"turn {t.turns[29000] + 1} ")
