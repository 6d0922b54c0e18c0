"""Figures of worlds, search, faults and guesses: the drawn points are the given numbers.

Run: python -m pytest tests/test_analysis_data_plots.py
"""

import matplotlib.pyplot as plt
import pytest

from drlib.analysis import data_plots
from drlib.intervals import wilson_interval
from drlib.worlds import Graph, Node

MONEY = {"Norway": "Krone", "Svalbard": "Krone", "Sweden": "Krona"}
GRAPH = Graph(
    [Node(place, "place") for place in MONEY], [(p, "money", m) for p, m in MONEY.items()]
)


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


def test_word_scores_saturate_and_are_lower_on_long_pages(ax):
    data_plots.plot_word_scores(ax, (0.5, 1, 2), most=3)
    short, mean, long = (line.get_ydata() for line in ax.lines[:3])
    assert mean == pytest.approx([0, 1, 2.2 * 2 / 3.2, 2.2 * 3 / 4.2])
    assert all(a > b > c for a, b, c in zip(short[1:], mean[1:], long[1:]))


def test_recall_counts_ranks_up_to_k(ax):
    data_plots.plot_recall(ax, {"name": [1, 2, float("inf"), 4], "line": [1, 1, 1, 1]}, 3)
    assert points(ax, "o") == [(1, 25), (2, 50), (3, 50), (1, 100), (2, 100), (3, 100)]


def test_worlds_show_relations_degrees_and_the_largest_hub():
    fig = data_plots.plot_worlds({"tour": GRAPH, "cldr": GRAPH}, page=60)
    *relations, degrees = fig.axes
    assert [ax.get_title() for ax in relations] == ["tour: 3 facts", "cldr: 3 facts"]
    assert [bar.get_width() for bar in relations[0].patches] == [3]
    values, shares = degrees.lines[0].get_data()
    assert list(values) == [1, 2] and list(shares) == pytest.approx([1, 1 / 5])
    assert [text.get_text() for text in degrees.texts] == ["Krone: 2", "Krone: 2"]
    plt.close(fig)


def test_walk_shows_the_sets_and_one_arrow_per_fact():
    fig = data_plots.plot_walk(GRAPH, "Norway", "money", "money of", "money of")
    texts = [text.get_text() for text in fig.axes[0].texts]
    assert [text for text in texts if "\n" in text] == [
        "start\n1 node",
        "money\n1 node",
        "money of\n2 nodes",
        "money of\n0 nodes",
    ]
    assert texts.count("") == 3 and {"Norway", "Krone", "Svalbard"} < set(texts)
    plt.close(fig)


def test_walk_shows_a_part_of_a_large_set():
    places = [f"place {i:02}" for i in range(20)]
    graph = Graph([Node(p, "place") for p in places], [(p, "money", "Euro") for p in places])
    fig = data_plots.plot_walk(graph, "Euro", "money of")
    texts = [text.get_text() for text in fig.axes[0].texts]
    assert "money of\n20 nodes, 8 shown" in texts and "place 08" not in texts
    plt.close(fig)
