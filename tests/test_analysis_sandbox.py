"""Plots of notebook 08 show the given numbers and reject a file without rows."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from drlib.analysis import sandbox_plots


@pytest.fixture
def ax():
    fig, ax = plt.subplots()
    yield ax
    plt.close(fig)


def labels(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_latencies_are_the_chosen_rows_sorted(ax):
    row = {"arm": "sandbox", "code": "print", "concurrency": 1, "latencies_ms": [3.0, 1.0]}
    other = row | {"arm": "subprocess", "latencies_ms": [30.0]}
    rows = [
        row,
        row | {"latencies_ms": [2.0, 4.0]},
        row | {"concurrency": 8},
        other,
        row | {"code": "sympy"},
    ]
    sandbox_plots.plot_latencies(ax, {"rows": rows}, "print")
    line, median, other, _ = ax.lines
    assert line.get_xydata().tolist() == [[1, 25], [2, 50], [3, 75], [4, 100]]
    assert median.get_xydata().tolist() == [[2, 50]]
    assert other.get_xydata().tolist() == [[30, 100]]
    assert ax.get_legend_handles_labels()[1] == ["sandbox", "new process"]
    with pytest.raises(ValueError, match="no rows for 'print' with 2 at once"):
        sandbox_plots.plot_latencies(ax, {"rows": rows}, "print", 2)


def test_gantt_shows_waits_and_marks_long_calls(ax):
    sandbox_plots.plot_gantt(ax, [(0, 0.0, 1.0, 1.5), (3, 0.5, 0.5, 4.0)], long_s=1.0)
    found = [(b.get_x(), b.get_width(), b.get_y() + b.get_height() / 2) for b in ax.patches]
    assert np.allclose(found, [(0, 1, 0), (1, 0.5, 0), (0.5, 0, 3), (0.5, 3.5, 3)])
    short = ax.patches[1].get_facecolor()
    long = ax.patches[3].get_facecolor()
    assert short != long
    assert ax.get_ylim() == (3.7, -0.7)


def test_waiting_has_a_line_per_arrival_pattern(ax):
    found = {"at once": {2: [4.0, 6.0], 8: [1.0, 1.0]}, "in 60 s": {2: [0.5, 0.5], 8: [0.0, 0.0]}}
    sandbox_plots.plot_waiting_times(ax, found, 1.0)
    means = [line for line in ax.lines if line.get_label() in found]
    assert [line.get_ydata().tolist() for line in means] == [[5.0, 1.0], [0.5, 1e-3]]
    assert means[0].get_xdata().tolist() == [2, 8] and labels(ax) == list(found)


def test_answered_draws_seeds_and_formulas_in_percent(ax):
    shares = {"one try": [[1.0, 0.5], [1.0, 0.7]], "three": [[1.0, 0.9], [1.0, 0.8]]}
    sandbox_plots.plot_answered_calls(ax, [0.0, 0.4], shares, [[1.0, 0.6]])
    assert labels(ax) == list(shares)
    means = {line.get_label(): line.get_ydata() for line in ax.lines}
    assert np.allclose(means["one try"], [100, 60]) and np.allclose(means["three"], [100, 85])
    assert np.allclose(ax.lines[-1].get_ydata(), [100, 60])
