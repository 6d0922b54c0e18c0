"""Plots of asynchronous training: the values that are drawn, by hand.

Run: python -m pytest tests/test_analysis_asynchronous_plots.py
"""

import matplotlib.pyplot as plt
import pytest

from drlib.analysis.asynchronous_plots import SMOOTH, plot_accuracy, plot_dropped, ratio_of_means

DROP = {
    "dropped": 2,
    "dropped_groups": [{"length": 30, "hops": 2}, {"length": 50, "hops": 3}],
    "finished_groups": [{"length": n, "hops": h} for n, h in ((10, 0), (20, 1), (30, 2), (20, 1))],
}


@pytest.fixture
def ax():
    fig, ax = plt.subplots()
    yield ax
    plt.close(fig)


def test_accuracy_is_smoothed_over_steps_and_seeds_at_the_mean_time(ax):
    one = [{"seconds": 2.0, "accuracy": 0.1 * n} for n in range(SMOOTH + 1)]
    two = [{"seconds": 4.0, "accuracy": 0.3} for _ in range(SMOOTH + 3)]  # cut to the shorter run
    plot_accuracy(ax, {"in_turns": {0: one, 1: two}})
    times, accuracy = ax.lines[0].get_data()
    assert list(times) == pytest.approx([3.0 * SMOOTH, 3.0 * (SMOOTH + 1)])
    first, second = sum(0.1 * n for n in range(5)) / 5, sum(0.1 * n for n in range(1, 6)) / 5
    assert list(accuracy) == pytest.approx([50 * (first + 0.3), 50 * (second + 0.3)])


def test_dropped_groups_are_compared_with_all(ax):
    assert ratio_of_means(DROP, "length") == pytest.approx(40 / 20)
    assert ratio_of_means(DROP, "hops") == pytest.approx(2.5 / 1)
    nothing = {**DROP, "dropped": 0, "dropped_groups": []}
    plot_dropped(ax, {"pace": nothing, "drop": DROP})
    assert [bar.get_height() for bar in ax.patches] == pytest.approx([2.0, 2.5])
