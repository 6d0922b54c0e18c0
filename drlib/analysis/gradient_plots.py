"""Plots of the policy gradient: baselines, clips, bias and noise, the first step of Adam."""

from collections.abc import Mapping, Sequence

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


def plot_gradients(
    ax: Axes, gradients: Mapping[str, ArrayLike], answers: Sequence[str], title: str = ""
) -> None:
    """Plot one bar per answer and rule: the expected gradient of the answer's logit.

    Args:
        ax: axes to draw into.
        gradients: rule -> one gradient per answer.
        answers: labels of the answers.
        title: title of the legend.
    """
    width = 0.8 / len(gradients)
    for number, (rule, gradient) in enumerate(gradients.items()):
        at = np.arange(len(answers)) + width * (number - (len(gradients) - 1) / 2)
        ax.bar(at, np.asarray(gradient), 0.92 * width, label=rule)
    ax.axhline(0, color="0.3", lw=1)
    ax.set_xticks(range(len(answers)), answers)
    ax.set(title="Expected gradient", ylabel="of the answer's logit")
    ax.legend(title=title, fontsize=8, title_fontsize=8)


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


def plot_first_step(
    gradients_W: ArrayLike,
    steps_W: ArrayLike,
    rate: float,
    gains: dict[float, tuple[float, float]],
    changes: dict[str, ArrayLike],
) -> Figure:
    """Plot the first step of Adam: step sizes, predicted and real gain, change per rollout.

    Args:
        gradients_W: gradient of each weight.
        steps_W: change of each weight.
        rate: learning rate of these steps.
        gains: learning rate -> (predicted, real) gain of the objective, both positive.
        changes: kind of rollout -> changes of the log-probability per token, in nats.
    """
    fig, (left, middle, right) = plt.subplots(1, 3, figsize=(11.5, 3.4), layout="constrained")
    sizes = np.abs(np.asarray(gradients_W, float))
    moved = sizes > 0
    left.plot(sizes[moved], np.abs(np.asarray(steps_W, float))[moved] / rate, ".", ms=3, alpha=0.4)
    left.set(title="Adam's first step", xlabel="|gradient| of a weight", xscale="log")
    left.set(ylabel="|step| / learning rate", ylim=(0, 1.2))

    rates = sorted(gains)
    predicted, real = zip(*(gains[r] for r in rates))
    middle.loglog(rates, predicted, "--", color=CONTROL, label="predicted")
    middle.loglog(rates, real, "o-", color="C0", label="real")
    middle.set(title="Gain of the objective", xlabel="learning rate", ylabel="nats per token")
    middle.legend(loc="upper left")

    colors = dict(zip(changes, (UP, DOWN, CONTROL)))
    for x, (kind, values) in enumerate(changes.items()):
        right.plot(np.full(len(values), x), values, "o", color=colors[kind], alpha=0.7)
    right.axhline(0, color="0.6", lw=1)
    right.set_xticks(range(len(changes)), list(changes))
    right.set(title="Change per rollout", xlim=(-0.5, len(changes) - 0.5))
    right.set_ylabel("nats per token")
    return fig
