"""Figures of environments: accuracy by step, results, and shares of the gradient in a mixture."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from drlib.intervals import wilson_interval

PREFIX = "accuracy_"


def gradient_shares(
    rates: Mapping[str, float], weights: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Return each environment's share of the advantages' variance in a mixture.

    The share of environment e is w_e p_e (1 - p_e) over the sum: within a group, rewards of 0 and 1
    with solve rate p have the variance p (1 - p).

    Args:
        rates: environment -> solve rate.
        weights: environment -> share of the questions; None: equal.
    """
    raw = {e: (1.0 if weights is None else weights[e]) * p * (1 - p) for e, p in rates.items()}
    total = sum(raw.values())
    return {name: value / total if total else 0.0 for name, value in raw.items()}


def plot_shares(solved: float, weight: float) -> Figure:
    """Draw the gradient shares of two environments.

    Args:
        solved: solve rate of the first; the second is solved half of the time.
        weight: share of the questions from the first.
    """
    shares = gradient_shares(
        {"first": solved, "second": 0.5}, {"first": weight, "second": 1 - weight}
    )
    fig, ax = plt.subplots(figsize=(5.5, 1.8), layout="constrained")
    for row, parts in enumerate(((weight, 1 - weight), [*shares.values()])):
        ax.barh(row, parts[0], color="C0")
        ax.barh(row, parts[1], left=parts[0], color="C1")
    ax.set_yticks([0, 1], ["questions", "gradient"])
    ax.invert_yaxis()
    ax.set(xlim=(0, 1), title=f"first: solved {solved:.0%}; second: 50%")
    return fig


def plot_curves(ax: Axes, rows: Sequence[Mapping[str, float]]) -> None:
    """Plot the accuracy of each environment by RL step (rows of `metrics.jsonl`)."""
    names = [key for key in rows[0] if key.startswith(PREFIX) and ":" in key]
    for number, key in enumerate(names):
        steps = [row["step"] for row in rows if key in row]
        values = [row[key] for row in rows if key in row]
        ax.plot(steps, values, color=f"C{number}", marker=".", label=_short(key))
    ax.set(title="Training: one policy, four environments", xlabel="RL step", ylabel="solved")
    ax.set_ylim(0, 1)
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=4)


def plot_results(ax: Axes, results: Mapping[str, Mapping[str, tuple[int, int]]]) -> None:
    """Plot held-out results with Wilson intervals over tasks.

    Args:
        results: stage -> environment -> (solved, tasks).
    """
    stages = list(results)
    names = list(next(iter(results.values())))
    width = 0.8 / len(stages)
    for number, stage in enumerate(stages):
        counts = [results[stage][name] for name in names]
        means = np.array([solved / n for solved, n in counts])
        low, high = np.array([wilson_interval(solved, n) for solved, n in counts]).T
        at = np.arange(len(names)) + (number - (len(stages) - 1) / 2) * width
        errors = np.maximum((means - low, high - means), 0)
        ax.bar(at, means, width, yerr=errors, color=f"C{number}", label=stage, error_kw={"lw": 1})
    ax.set_xticks(range(len(names)), [_short(name) for name in names])
    ax.set(title="Held-out tasks", ylabel="solved", ylim=(0, 1))
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=len(stages))


def _short(name: str) -> str:
    """Return the name of an environment without its settings."""
    parts = name.removeprefix(PREFIX).split(":")
    return parts[1] if parts[0] == "gym" else parts[0]
