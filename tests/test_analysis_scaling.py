"""Plots of notebook 26 agree with the plan and the simulated clock.

Run: python -m pytest tests/test_analysis_scaling.py
"""

import base64

import matplotlib.pyplot as plt
import pytest

from drlib.analysis import scaling_plots, widgets
from drlib.analysis.scaling_plots import Span, simulate_asynchronous
from drlib.config import Config
from drlib.training.planner import GIB, Rates, StepTime, Workload, plan, step_time


@pytest.fixture(scope="module")
def large():
    return Config.load("gpu8")


@pytest.fixture
def ax():
    fig, axes = plt.subplots()
    yield axes
    plt.close(fig)


def test_memory_bar_length_and_overflow_colour(ax, large):
    fits = {
        "fits": plan(large).fit,
        "too much": plan(large.derive(trainer__lora_rank=0)).fit,
    }
    scaling_plots.plot_memory(ax, fits)
    for at, fit in enumerate(fits.values()):
        row = [bar for bar in ax.patches if bar.get_y() + bar.get_height() / 2 == pytest.approx(at)]
        right_edge = max(bar.get_x() + bar.get_width() for bar in row)
        assert right_edge * GIB == pytest.approx(fit.memory.total)
    colours = {text.get_text().strip(): text.get_color() for text in ax.texts}
    fine, much = (f"{fit.memory.total / GIB:.0f}" for fit in fits.values())
    assert float(fine) < 80 < float(much)
    assert colours[fine] == "0.3" and colours[much] == scaling_plots.DOWN
    assert {line.get_xdata()[0] for line in ax.lines} == {80.0}


def test_every_memory_part_has_a_colour(large):
    parts = set()
    for changes in ({}, {"rl.loss.kl_coef": 0.1}, {"engine.name": "vllm"}):
        parts |= set(plan(large.derive(**changes)).fit.memory.parts)
    assert parts <= set(scaling_plots.MEMORY_COLORS)


def test_timeline_shows_bars_and_ages(ax):
    spans = [
        Span(1, "generate", -2.0, 2.0, 0),
        Span(0, "train", 2.0, 5.0, 0, age=3),
        Span(0, "sync", 5.0, 9.0, 0),
        Span(1, "generate", 20.0, 21.0, 1),
    ]
    scaling_plots.plot_timeline(ax, spans, until=8.0)
    bars = [(bar.get_x(), bar.get_width()) for bar in ax.patches]
    assert bars == [(0.0, 2.0), (2.0, 3.0), (5.0, 3.0)]  # cut at both ends, or left out
    assert [(t.get_text(), t.get_position()) for t in ax.texts] == [("3", (3.5, 0))]
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["learner", "engine 1"]


def test_timeline_titles_show_seconds():
    time = StepTime(10.0, 8.0, 1.0, engines=2, knee=3, staleness=2)
    fig = scaling_plots.plot_timelines(time)
    titles = [ax.get_title(loc="left") + ax.get_title() for ax in fig.axes]
    assert "19 s" in titles[0] and "11 s" in titles[1]
    plt.close(fig)


def test_throughput_matches_formula_and_simulation(ax):
    work, rates = Workload(40.0, 10.0, 2.0), Rates(1.0, 1.0, push_bytes_s=2.0)
    scaling_plots.plot_throughput(ax, work, rates, learners=1, most=6)
    lines = {line.get_label(): line for line in ax.lines}
    beside, turns, clock = (
        lines[k].get_ydata() for k in ("asynchronous", "synchronous", "simulated")
    )
    step_of_three_engines = step_time(work, rates, engines=3)
    assert (
        beside[2] == 3600 / step_of_three_engines.asynchronous
        and turns[2] == 3600 / step_of_three_engines.synchronous
    )
    assert clock == pytest.approx(beside)
    assert list(lines["knee: 4"].get_xdata()) == [4, 4]


def test_step_time_ignores_the_warm_up():
    time = StepTime(10.0, 1.0, 0.0, engines=1, knee=10, staleness=1)
    first, *_ = simulate_asynchronous(time, 3)
    assert first.end == 10.0 and scaling_plots.measure_step_time(time) == 10.0


def test_panel_draws_the_selected_plan(large):
    calls = []

    def draw(cards, rank):
        calls.append((cards, rank))
        changes = {"processes": cards, "trainer.fsdp": cards > 1, "trainer.lora_rank": rank}
        return scaling_plots.plot_plan(plan(large.derive(**changes)))

    choices = {"cards": (1, 2, 4, 8), "rank": (0, 32)}
    panel = widgets.FigurePanel(draw, choices, {"cards": 4})
    assert calls == [(4, 0)]
    first = panel.picture.value
    panel.controls["rank"].value = 32
    assert calls[-1] == (4, 32) and panel.picture.value != first
    assert panel.controls["cards"].options == (1, 2, 4, 8)
    assert not panel.controls["cards"].continuous_update
    panel.reset.click()
    assert calls[-1] == (4, 0) and panel.picture.value == first
    bundle = panel._repr_mimebundle_()
    assert base64.b64decode(bundle["image/png"]) == first and "children" not in bundle["text/plain"]
    assert "application/vnd.jupyter.widget-view+json" in bundle


def test_panel_shows_that_it_is_busy_and_recovers_from_an_error():
    seen = []

    def draw(number):
        seen.append(panel.status.value if number else "")
        if number == 2:
            raise ValueError("no plan for 2")
        return plt.figure()

    panel = widgets.FigurePanel(draw, {"number": (0, 1, 2)})
    panel.controls["number"].value = 1
    assert seen[-1] and panel.status.value == ""
    with pytest.raises(ValueError, match="no plan for 2"):
        panel.controls["number"].value = 2
    assert panel.status.value == ""
