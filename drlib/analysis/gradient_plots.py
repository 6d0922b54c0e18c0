"""Plots of the policy gradient, for notebooks 10, 20 and 21: baselines, clips, bias and noise."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from drlib.analysis.plots import CONTROL, DOWN, UP, compute_surrogate
from drlib.rl.losses import LossConfig

STYLES = ("-", "--", ":")


def best_baselines(chances: ArrayLike, rewards: ArrayLike) -> tuple[float, float]:
    """Return the expected reward and the baseline of least variance of a softmax bandit.

    The second is the mean of the rewards weighted by the squared score (Greensmith et al., JMLR
    2004, theorem 8, for one state).

    Args:
        chances: probabilities of V answers.
        rewards: their rewards.
    """
    p, r = np.asarray(chances, float), np.asarray(rewards, float)
    weight = p * _squared_scores(p)
    return float(p @ r), float(weight @ r / weight.sum())


def plot_baselines(ax: Axes, chances: ArrayLike, rewards: ArrayLike) -> None:
    """Plot the variance of the gradient of one sample against the baseline, of a softmax bandit.

    Marks no baseline, the expected reward, and the best baseline.

    Args:
        ax: axes to draw into.
        chances: probabilities of V answers.
        rewards: their rewards, not negative.
    """
    p, r = np.asarray(chances, float), np.asarray(rewards, float)
    mean, best = best_baselines(p, r)

    def variance(b):
        exact = p * (r - mean)
        return ((r - b) ** 2) @ (p * _squared_scores(p)) - exact @ exact

    grid = np.linspace(0, max(r.max(), 1e-9), 101)
    ax.plot(grid, [variance(b) for b in grid], color=CONTROL)
    for name, b in (("no baseline", 0.0), ("expected reward", mean), ("best", best)):
        ax.plot(b, variance(b), "o", label=f"{name}: {b:.3f}")
    ax.set(title="Variance of one sample", xlabel="baseline b", ylim=(0, None))
    ax.legend(fontsize=8)


def draw_bandit(paris: float, oslo: float, added: float) -> Figure:
    """Draw `plot_baselines` for the three answers of notebook 20.

    Args:
        paris: probability of Paris; two thirds of the rest are Rome, one third Oslo.
        oslo: reward of Oslo; Paris has 1, Rome 0.
        added: added to all rewards.
    """
    fig, ax = plt.subplots(figsize=(6, 3), layout="constrained")
    chances = [paris, 2 * (1 - paris) / 3, (1 - paris) / 3]
    plot_baselines(ax, chances, [1 + added, added, oslo + added])
    return fig


def _squared_scores(chances: np.ndarray) -> np.ndarray:
    """Return |grad log pi(k)|^2 for the logits of a softmax, for each answer k."""
    return ((np.eye(len(chances)) - chances) ** 2).sum(1)


def plot_means(ax: Axes, curves: dict[str, ArrayLike], colors: Sequence[str]) -> None:
    """Plot means over runs with two standard errors.

    Args:
        ax: axes to draw into.
        curves: values [steps, runs] by name.
        colors: one per curve.
    """
    for (name, values), color in zip(curves.items(), colors, strict=True):
        runs = np.asarray(values, float)
        mean, error = runs.mean(1), 2 * runs.std(1, ddof=1) / runs.shape[1] ** 0.5
        ax.fill_between(range(len(runs)), mean - error, mean + error, color=color, alpha=0.25, lw=0)
        ax.plot(mean, color=color, label=name)
    ax.legend(fontsize=8)


def plot_clip_factors(ax: Axes, rules: dict[str, LossConfig]) -> None:
    """Plot the factor of grad log pi against the ratio, for positive and negative advantages.

    Args:
        ax: axes to draw into.
        rules: up to three losses by name.
    """
    grid = np.linspace(0.4, 1.8, 71)
    for (name, config), style in zip(rules.items(), STYLES, strict=False):
        for sign, color in ((1, UP), (-1, DOWN)):
            factor = compute_surrogate(grid, sign, config)[1]
            factor[1:][np.abs(np.diff(factor)) > 0.3] = np.nan  # no line over a jump
            ax.plot(grid, factor, style, color=color, label=name if sign > 0 else None)
    ax.set(title="Factor of ∇ log π", xlabel="ratio r; blue: A = 1, orange: A = -1")
    ax.legend(fontsize=8, loc="lower left")


def plot_bias_and_noise(ax: Axes, errors: dict[str, tuple[float, float]]) -> None:
    """Plot two bars per rule, its bias and its noise.

    Args:
        ax: axes to draw into.
        errors: (bias, noise) by rule, relative to the exact gradient.
    """
    places = np.arange(len(errors))
    bias, noise = np.transpose(list(errors.values()))
    ax.bar(places - 0.2, bias, 0.4, color=UP, label="bias")
    ax.bar(places + 0.2, noise, 0.4, color=DOWN, label="noise")
    ax.set_xticks(places, list(errors))
    ax.set_ylabel("relative error")
    ax.legend()


def truncation_error(
    behaviour: ArrayLike, policy: ArrayLike, values: ArrayLike, caps: ArrayLike
) -> tuple[np.ndarray, np.ndarray]:
    """Return bias and standard deviation of a truncated importance-sampling estimate, exactly.

    One sample y of the behaviour policy estimates the mean of `values` under the policy by
    min(policy(y) / behaviour(y), cap) * values(y).

    Args:
        behaviour: probabilities of V answers under the policy that sampled, above 0.
        policy: their probabilities under the other policy.
        values: the values to average.
        caps: C caps of the ratio.

    Returns:
        Bias and standard deviation per cap, [C] each, in units of the values.
    """
    mu, p, f = (np.asarray(x, float) for x in (behaviour, policy, values))
    estimates_CV = np.minimum(p / mu, np.asarray(caps, float)[:, None]) * f
    mean_C = estimates_CV @ mu
    return mean_C - p @ f, np.sqrt((estimates_CV - mean_C[:, None]) ** 2 @ mu)


def draw_truncation(
    behaviour: ArrayLike,
    policy: ArrayLike,
    values: ArrayLike,
    samples: int,
    distance: float = 1.0,
) -> Figure:
    """Draw the error of a truncated estimate against the cap, and mark its minimum.

    Args:
        behaviour, policy, values: as for `truncation_error`.
        samples: number of samples that are averaged.
        distance: share of the way from the policy (0) to the behaviour policy (1), in logits.
    """
    caps = np.linspace(1, 5, 81)
    mu = np.asarray(policy) ** (1 - distance) * np.asarray(behaviour) ** distance
    bias, deviation = truncation_error(mu / mu.sum(), policy, values, caps)
    noise = deviation / samples**0.5
    total = np.hypot(bias, noise)
    fig, ax = plt.subplots(figsize=(6.5, 3), layout="constrained")
    ax.plot(caps, np.abs(bias), color=UP, label="bias")
    ax.plot(caps, noise, color=DOWN, label="noise")
    ax.plot(caps, total, color=CONTROL, label="error")
    best = total.argmin()
    ax.plot(caps[best], total[best], "o", color=CONTROL, label=f"best cap {caps[best]:.2f}")
    ax.set(title=f"Truncated estimate, {samples} samples", xlabel="cap c", ylim=(0, None))
    fig.legend(*ax.get_legend_handles_labels(), loc="outside right center", fontsize=8)
    return fig
