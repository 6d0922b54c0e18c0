"""Figures of faults, guesses and harder questions: the drawn points are the given numbers.

Run: python -m pytest tests/test_analysis_data_plots.py
"""

import matplotlib.pyplot as plt
import pytest

from drlib.analysis import data_plots
from drlib.intervals import wilson_interval


@pytest.fixture
def ax():
    figure, axes = plt.subplots()
    yield axes
    plt.close(figure)


def points(ax, marker):
    """Return [(x, y)] of the lines that are drawn with this marker."""
    lines = [line for line in ax.lines if line.get_marker() == marker]
    return [point for line in lines for point in zip(*line.get_data())]


def bars(ax):
    """Return (low, high) of each interval."""
    lines = [line for line in ax.lines if line.get_marker() in ("None", None, "")]
    return [tuple(line.get_xdata()) for line in lines]


def test_fault_rates_are_shares_of_their_own_source(ax):
    counts = {"drafts": {"leak": 5, "near": 1}, "engine": {}}
    data_plots.plot_fault_rates(ax, counts, {"drafts": 10, "engine": 4}, ["near", "leak"])
    assert [x for x, _ in points(ax, "s")] == [10, 50]
    assert [x for x, _ in points(ax, "D")] == [0, 0]
    expected = [wilson_interval(k, n) for k, n in ((1, 10), (5, 10), (0, 4), (0, 4))]
    assert bars(ax) == [pytest.approx((100 * low, 100 * high)) for low, high in expected]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        "drafts (n = 10)",
        "engine (n = 4)",
    ]
    assert ax.yaxis_inverted()


def test_best_guesses_are_percentages(ax):
    data_plots.plot_best_guesses(ax, {"script": (30, 40), "engine": (1, 50)})
    assert points(ax, "o") == [(75, 0), (2, 1)]
    assert bars(ax)[1] == pytest.approx([100 * x for x in wilson_interval(1, 50)])


def test_before_and_after_are_means_with_intervals(ax):
    data_plots.plot_before_after(ax, {"widen": ([2, 4], [10, 30]), "fuzz": ([1], [5])}, "pages")
    assert [x for x, _ in points(ax, "s")] == [3, 1]
    assert [x for x, _ in points(ax, "o")] == [20, 5]
    assert all(low <= x <= high for (low, high), x in zip(bars(ax), (3, 1, 20, 5)))
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels == ["widen (n = 2)", "fuzz (n = 1)"] and ax.get_xscale() == "log"
