"""Figures of AgentScaler's filters, reliability and tool graph.

Run: python -m pytest tests/test_analysis_environment_plots.py
"""

import matplotlib.pyplot as plt
import pytest

from drlib.analysis import environment_plots
from drlib.demonstrations.agentscaler import FILTERS, tool_graph, toy_apis


@pytest.fixture
def ax():
    figure, axes = plt.subplots()
    yield axes
    plt.close(figure)


def test_rejections_are_stacked_to_all_rollouts(ax):
    none = dict.fromkeys(FILTERS, 0)
    reports = {
        "correct": none | {"given": 4, "kept": 4},
        "damaged": none | {"given": 8, "kept": 2, "state": 6},
    }
    environment_plots.plot_rejections(ax, reports, "tasks")
    widths = {bars.get_label(): [bar.get_width() for bar in bars] for bars in ax.containers}
    assert widths == {"kept": [100, 25], "state": [0, 75]}  # the others reject nothing
    assert [bar.get_x() for bar in ax.containers[1]] == [100, 25]


def test_pass_hat_is_averaged_over_tasks(ax):
    environment_plots.plot_pass_hat(ax, {"asks": [4, 4], "guesses": [4, 2]}, 4)
    asks, guesses = (line.get_ydata() for line in ax.lines)
    assert asks.tolist() == [1, 1, 1, 1]
    # of 4 trials 2 are correct: 1/2, then 1 of 6 pairs, then none
    assert guesses.tolist() == pytest.approx([3 / 4, (1 + 1 / 6) / 2, 1 / 2, 1 / 2])


@pytest.mark.parametrize(("threshold", "communities"), [(0.6, 6), (1.0, 60)])
def test_tool_graph_shows_edges_and_communities(threshold, communities):
    figure = environment_plots.plot_tool_graph(threshold)
    ax = figure.axes[0]
    assert ax.get_title() == f"threshold {threshold}: {communities} communities"
    assert len(ax.lines) == tool_graph(toy_apis(), threshold).number_of_edges()
    assert {text.get_text() for text in ax.texts} == {api.domain for api in toy_apis()}
    plt.close(figure)
