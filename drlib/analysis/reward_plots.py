"""Figures of rewards: effects of spurious rewards, scores of a model, proxy against accuracy."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from drlib.intervals import Interval


def plot_ladder(ax: Axes, effects: Mapping[str, Interval]) -> None:
    """Plot the effect of each reward on accuracy with its interval, the largest loss last.

    Args:
        effects: name of a reward -> (effect, low, high) against the correct reward.
    """
    names = sorted(effects, key=lambda name: -effects[name][0])
    mean, low, high = 100 * np.array([effects[name] for name in names]).T
    at = np.arange(len(names))[::-1]
    ax.errorbar(mean, at, xerr=(mean - low, high - mean), fmt="o", color="C3")
    ax.axvline(0, color="0.4", ls="--", lw=1)
    ax.set_yticks(at, names)
    ax.set(title="Rewards without the answer", xlabel="accuracy against the correct reward, points")


def plot_scores(ax: Axes, right: Sequence[float], wrong: Sequence[float]) -> None:
    """Plot the distribution of a model's reward for right and wrong rollouts."""
    bins = np.linspace(0, 1, 11).tolist()
    ax.hist(wrong, bins, color="C3", alpha=0.6, label=f"wrong ({len(wrong)})")
    ax.hist(right, bins, color="C0", alpha=0.6, label=f"right ({len(right)})")
    ax.set(title="An outcome model", xlabel="its reward", ylabel="rollouts")
    ax.legend()


def plot_proxy(ax: Axes, arms: Mapping[str, Mapping[int, Sequence[Mapping]]]) -> None:
    """Plot the reward that an arm optimises (dotted) and its accuracy (solid), means over seeds.

    Args:
        arms: name -> seed -> metrics of the steps, of which "reward" and "accuracy" are drawn.
    """
    for number, (name, seeds) in enumerate(arms.items()):
        color = f"C{number}"
        steps = min(len(rows) for rows in seeds.values())
        for key, style, label in (("accuracy", "-", name), ("reward", ":", None)):
            values_ST = [[row[key] for row in rows[:steps]] for rows in seeds.values()]
            ax.plot(
                range(1, steps + 1), np.mean(values_ST, axis=0), style, color=color, label=label
            )
    ax.set(title="Reward (dotted) and accuracy", xlabel="step", ylim=(0, 1.02))
    ax.legend()


def plot_outvoted(share: float, weight: float) -> Figure:
    """Plot the reward of right and wrong rollouts against the mean m of the other terms.

    Args:
        share: of the gated reward.
        weight: of the other terms in the weighted mean; the answer has weight 1.
    """
    fig, axes = plt.subplots(1, 2, figsize=(7, 2.8), sharey=True, layout="constrained")
    m = np.linspace(0, 1, 50)
    weighted = [(right + weight * m) / (1 + weight) for right in (1, 0)]
    gated = [right * (1 - share + share * m) for right in (1, 0)]
    for ax, title, (right, wrong) in zip(axes, ("weighted", "gated"), (weighted, gated)):
        ax.plot(m, right, color="C0", label="right answer")
        ax.plot(m, wrong, color="C3", label="wrong answer")
        ax.fill_between(m, right.min(), np.maximum(wrong, right.min()), color="C3", alpha=0.2)
        ax.set(title=title, xlabel="mean of the other terms", ylim=(-0.05, 1.05))
    axes[0].set_ylabel("reward")
    axes[0].legend()
    return fig
