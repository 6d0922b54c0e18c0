"""Figures of benchmark results show the numbers that they were given.

Run: python -m pytest tests/test_analysis_evaluation_plots.py
"""

from itertools import combinations

import matplotlib.pyplot as plt
import numpy as np
import pytest

from drlib.analysis import evaluation_plots


@pytest.fixture
def ax():
    fig, axes = plt.subplots()
    yield axes
    plt.close(fig)


def test_passes_by_enumeration(ax):
    """One line per policy and seed for pass@k, one for pass^k."""
    counts = {"A": [[0, 1, 3], [3, 3, 3]], "B": [[2, 0, 0], [1, 1, 1]]}
    evaluation_plots.plot_passes(ax, counts, samples=3)
    lines = iter(ax.get_lines())
    for seeds in counts.values():
        for some in seeds:
            rows = [[1] * c + [0] * (3 - c) for c in some]
            for wanted in (any, all):
                drawn = next(lines).get_ydata()
                for k in (1, 2, 3):
                    values = [np.mean([wanted(s) for s in combinations(row, k)]) for row in rows]
                    assert drawn[k - 1] == pytest.approx(np.mean(values))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["A", "B"]


def test_widths_beside_the_normal_approximation(ax):
    evaluation_plots.plot_widths(ax, [25, 100], [0.2, 0.1], 0.5)
    given, normal = (line.get_ydata() for line in ax.get_lines())
    assert list(given) == [0.2, 0.1]
    assert normal == pytest.approx([1.96 * 0.1, 1.96 * 0.05])


def test_judges_have_their_intervals(ax):
    raw = {"a": (0.5, 0.4, 0.7), "b": (0.2, 0.1, 0.3)}
    corrected = {"a": (0.6, 0.5, 0.8), "b": (0.6, 0.2, 0.9)}
    evaluation_plots.plot_judges(ax, raw, corrected, truth=0.6)
    assert [text.get_text() for text in ax.get_yticklabels()] == ["a", "b"]
    for bars, found in zip(ax.containers, (raw, corrected)):
        points, _, (segments,) = bars
        assert list(points.get_xdata()) == [mean for mean, _, _ in found.values()]
        ends = [tuple(segment[:, 0]) for segment in segments.get_segments()]
        assert np.allclose(ends, [(low, high) for _, low, high in found.values()])


def test_correction_leads_back_to_the_truth():
    """The band contains the diagonal, and is wider for a less informative judge."""
    widths = []
    for sensitivity in (0.95, 0.6):
        fig = evaluation_plots.plot_correction(sensitivity, 0.9, 200)
        axes = fig.axes[0]
        judged, diagonal = axes.get_lines()
        p = diagonal.get_xdata()
        assert judged.get_ydata() == pytest.approx(p * sensitivity + (1 - p) * 0.1)
        corners = axes.collections[0].get_paths()[0].vertices
        for x in p[1:-1]:
            at = corners[np.isclose(corners[:, 0], x), 1]
            assert at.min() < x < at.max()
        middle = corners[np.isclose(corners[:, 0], 0.5), 1]
        widths.append(np.ptp(middle))
        plt.close(fig)
    assert widths[1] > 1.5 * widths[0]
