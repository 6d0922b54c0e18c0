"""Plots of notebook 12 show the given numbers and reject a file without rows."""

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


def test_waiting_has_a_line_per_arrival_pattern(ax):
    found = {"at once": {2: [4.0, 6.0], 8: [1.0, 1.0]}, "in 60 s": {2: [0.5, 0.5], 8: [0.0, 0.0]}}
    sandbox_plots.plot_waiting_times(ax, found, 1.0)
    means = [line for line in ax.lines if line.get_label() in found]
    assert [line.get_ydata().tolist() for line in means] == [[5.0, 1.0], [0.5, 1e-3]]
    assert means[0].get_xdata().tolist() == [2, 8] and labels(ax) == list(found)


def test_calls_wait_for_the_first_free_core():
    assert sandbox_plots.queue_waits([0, 0, 0], [4, 1, 2], 2).tolist() == [0, 0, 1]
    assert sandbox_plots.queue_waits([0, 0, 3], [4, 1, 2], 2).tolist() == [0, 0, 0]
    assert sandbox_plots.queue_waits([0, 1, 2], [4, 4, 4], 1).tolist() == [0, 3, 6]


def test_call_seconds_have_the_stated_shares():
    seconds = sandbox_plots.draw_call_seconds(100_000, limit_s=4.0)
    assert abs((seconds == 0.004).mean() - 0.8) < 0.005
    assert abs((seconds == 4.0).mean() - 0.01) < 0.002
    computing = seconds[(seconds != 0.004) & (seconds != 4.0)]
    assert abs(np.median(computing) - 0.03) < 0.001
    later = sandbox_plots.draw_call_seconds(100_000, limit_s=4.0, start_s=0.5)
    assert np.array_equal(later, np.minimum(seconds + 0.5, 4.0))


def test_least_cores_is_the_first_number_below_the_bound():
    seconds = np.full(100, 1.0)  # ten calls per second
    cores = sandbox_plots.least_cores(seconds, over_s=10.0)
    assert sandbox_plots.wait_quantile(seconds, 10.0, cores) < 1.0
    assert sandbox_plots.wait_quantile(seconds, 10.0, cores - 1) >= 1.0
    assert sandbox_plots.wait_quantile(seconds, 10.0, 1) > 80


def test_queue_panel_states_the_load():
    left, right = sandbox_plots.draw_queue(48, 4.0, 60, calls=2000).axes
    load = sandbox_plots.draw_call_seconds(2000, 4.0).sum() / 48 / 60
    assert right.get_title() == f"48 cores, load {load:.2f}"
    assert left.get_ylim() == (0, 1.5)
