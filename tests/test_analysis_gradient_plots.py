"""Plots of the policy gradient: best baselines by brute force, curves and bars.

Run: python -m pytest tests/test_analysis_gradient_plots.py
"""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from drlib.analysis import gradient_plots
from drlib.analysis.plots import DOWN, UP
from drlib.rl.losses import LossConfig
from tests.rl_examples import a_trajectory


@pytest.fixture
def ax():
    fig, ax = plt.subplots()
    yield ax
    plt.close(fig)


def variance_of_a_sample(chances, rewards, baseline):
    """Sum over the logits, by simulation of every outcome."""
    scores = np.eye(len(chances)) - chances
    estimates = (np.array(rewards) - baseline)[:, None] * scores
    mean = chances @ estimates
    return (chances @ (estimates - mean) ** 2).sum()


@pytest.mark.parametrize("rewards", [[1.0, 0.0, 0.5], [3.0, 2.0, 2.5], [0.0, 0.0, 1.0]])
def test_baselines_by_brute_force(ax, rewards):
    chances = np.array([0.25, 0.5, 0.25])
    mean, best = gradient_plots.best_baselines(chances, rewards)
    assert mean == pytest.approx(np.dot(chances, rewards))
    tried = np.linspace(0, 3, 3001)
    found = [variance_of_a_sample(chances, rewards, b) for b in tried]
    assert best == pytest.approx(tried[np.argmin(found)], abs=1e-3)
    gradient_plots.plot_baselines(ax, chances, rewards)
    curve, *marks = ax.lines
    for b, value in zip(curve.get_xdata()[::20], curve.get_ydata()[::20]):
        assert value == pytest.approx(variance_of_a_sample(chances, rewards, b))
    assert [mark.get_xdata()[0] for mark in marks] == pytest.approx([0, mean, best])


def test_bandit_of_the_panel_is_that_of_the_notebook():
    fig = gradient_plots.draw_bandit(0.25, 0.5, 0.0)
    labels = [text.get_text() for text in fig.axes[0].get_legend().get_texts()]
    plt.close(fig)
    assert labels == ["no baseline: 0.000", "expected reward: 0.375", "best: 0.525"]


def test_means_have_two_standard_errors(ax):
    curves = {"one": [[1.0, 3.0], [2.0, 2.0]]}
    gradient_plots.plot_means(ax, curves, ["C0"])
    assert ax.lines[0].get_ydata().tolist() == [2.0, 2.0]
    edges = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert (edges.min(), edges.max()) == pytest.approx((0.0, 4.0))  # error 2 * sqrt(2) / sqrt(2)


def test_clip_factors_follow_the_four_cases(ax):
    gradient_plots.plot_clip_factors(ax, {"ppo": LossConfig()})
    up, down = (dict(zip(line.get_xdata().round(3), line.get_ydata())) for line in ax.lines)
    assert (up[0.5], up[1.5]) == pytest.approx((0.5, 0.0))
    assert (down[0.5], down[1.5]) == pytest.approx((0.0, -1.5))


def test_bars_are_bias_and_noise(ax):
    gradient_plots.plot_bias_and_noise(ax, {"full": (0.0, 0.3), "ppo": (1.0, 0.1)})
    heights = [[bar.get_height() for bar in group] for group in ax.containers]
    assert heights == [[0.0, 1.0], [0.3, 0.1]]


def test_update_colours_the_tokens_with_loss():
    group = [a_trajectory(tokens=3, name="r-0"), a_trajectory(tokens=1, name="r-1")]
    fig = gradient_plots.plot_update(group, [0.5, -0.5], [0.2, -1.0])
    plt.close(fig)
    left, right = fig.axes
    grey, white = to_rgb("0.85"), (1.0, 1.0, 1.0)
    shown = [[tuple(cell) for cell in row] for row in left.images[0].get_array().tolist()]
    assert shown == [[grey, *[to_rgb(UP)] * 3], [grey, to_rgb(DOWN), white, white]]
    assert [bar.get_width() for bar in right.patches] == [0.2, -1.0]
    labels = {text.get_text() for text in fig.legends[0].get_texts()}
    assert labels == {"positive advantage", "negative advantage", "no loss"}
