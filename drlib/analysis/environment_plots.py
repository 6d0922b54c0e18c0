"""Figures of environments: accuracy, shares of the gradient, filtered rollouts, tool graphs."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from drlib.demonstrations.agentscaler import (
    FILTERS,
    find_domains,
    pass_hat_k,
    tool_graph,
    toy_apis,
)
from drlib.evaluation.measures import bootstrap_interval
from drlib.intervals import wilson_interval

PREFIX = "accuracy_"
OUTCOMES = ("kept", *FILTERS)


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


def plot_rejections(ax: Axes, reports: Mapping[str, Mapping[str, int]], title: str) -> None:
    """Plot the share of rollouts that each filter of AgentScaler rejects first, by kind of rollout.

    Args:
        ax: axes to draw into.
        reports: kind of rollout -> report of `agentscaler.filter_trajectories`.
        title: title of the axes.
    """
    left = np.zeros(len(reports))
    for outcome, color in zip(OUTCOMES, ("C0", "C1", "C3", "C4", "C2", "0.55")):
        shares = np.array([100 * one[outcome] / one["given"] for one in reports.values()])
        if outcome == "kept" or shares.any():
            ax.barh(list(reports), shares, left=left, color=color, label=outcome)
        left += shares
    ax.invert_yaxis()
    ax.set(xlim=(0, 100), xlabel="rollouts, %")
    ax.set_title(title, pad=34)
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, fontsize=8, frameon=False)


def plot_pass_hat(ax: Axes, correct: Mapping[str, Sequence[int]], trials: int) -> None:
    """Plot pass^k of agents by k, with 95% bootstrap intervals over tasks.

    Args:
        ax: axes to draw into.
        correct: agent -> correct trials of each task.
        trials: trials per task.
    """
    ks = range(1, trials + 1)
    for (name, counts), marker in zip(correct.items(), "os"):
        values = [np.array([pass_hat_k(trials, c, k) for c in counts]) for k in ks]
        mean, low, high = np.array([bootstrap_interval(some) for some in values]).T
        ax.plot(ks, mean, marker=marker, ms=4, label=name)
        ax.fill_between(ks, low, high, alpha=0.2, lw=0)
    ax.set(xlabel="k (trials)", ylabel="pass^k", ylim=(-0.02, 1.05))
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False)


def plot_tool_graph(threshold: float) -> Figure:
    """Draw the graph of AgentScaler's toy tools on a circle, coloured by community.

    Args:
        threshold: cosine above which two tools are joined.
    """
    apis = toy_apis()
    parts = find_domains(apis, threshold)
    number = {api.name: i for i, part in enumerate(parts) for api in part}
    angles = 2 * np.pi * np.arange(len(apis)) / len(apis)
    x, y = np.cos(angles), np.sin(angles)
    fig, ax = plt.subplots(figsize=(4.4, 4.4), layout="constrained")
    for a, b in tool_graph(apis, threshold).edges:
        ax.plot(x[[a, b]], y[[a, b]], color="0.75", lw=0.5, zorder=1)
    colors = [f"C{number[api.name] % 10}" for api in apis]
    ax.scatter(x, y, c=colors, s=30, zorder=2)
    for i in range(0, len(apis), len(apis) // 6):
        middle = angles[i] + np.pi / 6
        ax.text(
            1.22 * np.cos(middle), 1.15 * np.sin(middle), apis[i].domain, ha="center", va="center"
        )
    ax.set(xlim=(-1.5, 1.5), ylim=(-1.35, 1.35), aspect="equal")
    ax.set_title(f"threshold {threshold}: {len(parts)} communities")
    ax.axis("off")
    return fig
