"""Plots of the policy gradient: best baselines by brute force, curves and bars.

Run: python -m pytest tests/test_analysis_gradient_plots.py
"""

from itertools import combinations

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from drlib.analysis import gradient_plots, plots
from drlib.analysis.figure_style import DOWN, UP
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


def test_one_bar_per_rule_and_answer(ax):
    gradient_plots.plot_gradients(ax, {"a": [0.5, -0.5], "b": [1.0, -1.0]}, ["right", "wrong"])
    bars = [(bar.get_x() + bar.get_width() / 2, bar.get_height()) for bar in ax.patches]
    assert [height for _, height in bars] == [0.5, -0.5, 1.0, -1.0]
    assert [round(at) for at, _ in bars] == [0, 1, 0, 1]


def test_kept_variance_by_brute_force(ax):
    plots.plot_kept_variance(ax, 6, 3)
    roc, uniform = ax.lines
    assert set(roc.get_ydata()) == {100}
    for right, chance in zip(*uniform.get_data()):
        halves = [sum(i < right for i in half) for half in combinations(range(6), 3)]
        assert chance == pytest.approx(100 * np.mean([0 < n < 3 for n in halves]))


def test_first_step_shows_moved_weights_and_gains():
    changes = {"right": [0.1, 0.2], "wrong": [-0.3], "weight 0": [0.0]}
    gains = {1e-4: (0.2, 0.3), 1e-5: (0.02, 0.02)}
    left, middle, right = gradient_plots.plot_first_step(
        [0.5, -1e-3, 0.0], [-0.01, 0.01, 0.0], 0.01, gains, changes
    ).axes
    assert left.lines[0].get_xdata().tolist() == [0.5, 1e-3]  # a logarithm has no zero
    assert left.lines[0].get_ydata().tolist() == [1, 1]
    assert middle.lines[0].get_xdata().tolist() == [1e-5, 1e-4]
    assert list(middle.lines[1].get_ydata()) == [0.02, 0.3]
    assert [label.get_text() for label in right.get_xticklabels()] == [*changes]
    assert right.lines[0].get_ydata().tolist() == [0.1, 0.2]


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


@pytest.mark.parametrize("teacher", [[31 / 64, 2 / 64, 31 / 64], [0.6, 0.1, 0.3]])
def test_two_kls_of_a_student_of_two_tokens(ax, teacher):
    """The forward KL matches the mean; the reverse KL is checked name by name."""
    forward, reverse = gradient_plots.plot_two_kls(ax, teacher)
    assert forward == pytest.approx(teacher[0] + teacher[1] / 2, abs=0.005)
    p = 0.3
    student = gradient_plots.two_token_student(p)
    assert student == pytest.approx([0.09, 0.42, 0.49])
    kls = gradient_plots.two_kls(teacher, p)
    assert kls[0] == pytest.approx(sum(q * np.log(q / s) for q, s in zip(teacher, student)))
    assert kls[1] == pytest.approx(sum(s * np.log(s / q) for q, s in zip(teacher, student)))
    values = gradient_plots.two_kls(teacher, np.array([reverse - 0.02, reverse, reverse + 0.02]))[1]
    assert values.argmin() == 1


def test_two_kls_drawn_with_bars():
    fig = gradient_plots.draw_two_kls(0.5, 1 / 32)
    curves, bars = fig.axes
    assert len(bars.patches) == 9
    assert [bar.get_height() for bar in bars.patches[:3]] == pytest.approx(
        [31 / 64, 1 / 32, 31 / 64]
    )
    plt.close(fig)


def test_truncation_error_by_hand():
    """Notebook 22: a cap of 2 loses a quarter; from 4 on the cap is idle."""
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
