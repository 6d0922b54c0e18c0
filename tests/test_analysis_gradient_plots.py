"""Plots of the policy gradient: best baselines by brute force, curves and bars.

Run: python -m pytest tests/test_analysis_gradient_plots.py
"""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from drlib.analysis import gradient_plots
from drlib.rl.losses import LossConfig


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


def test_truncation_error_by_hand():
    """Notebook 10: a cap of 2 loses a quarter; from 4 on the cap is idle."""
    policy, behaviour, values = [1 / 2, 3 / 8, 1 / 8], [1 / 8, 3 / 8, 1 / 2], [1.0, 0.0, 0.5]
    bias, deviation = gradient_plots.truncation_error(behaviour, policy, values, [2, 4, 9])
    assert bias == pytest.approx([-1 / 4, 0, 0])
    assert deviation[0] ** 2 == pytest.approx(2**2 / 8 + (1 / 8) ** 2 / 2 - (5 / 16) ** 2)
    assert deviation[1] == pytest.approx(deviation[2])


def test_more_samples_allow_a_larger_cap():
    def best_cap(samples):
        fig = gradient_plots.draw_truncation([1 / 8, 7 / 8], [1 / 2, 1 / 2], [1.0, 0.5], samples)
        (x,) = fig.axes[0].lines[-1].get_xdata()
        plt.close(fig)
        return x

    caps = [best_cap(n) for n in (2, 32, 512)]
    assert caps == sorted(caps) and caps[0] < caps[-1]
