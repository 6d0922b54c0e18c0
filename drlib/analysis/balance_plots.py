"""Figures of expert balance: convergence of router biases, load per expert, loss."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from drlib.models.router_bias import max_violation, select_biased_experts

COLORS = ("0.45", "C4", "#9ecae1", "C0", "#08306b")  # nothing, loss, biases of rising rate


def simulate_biases(
    logits_NE: Tensor, k: int, rate: float, steps: int
) -> tuple[list[float], Tensor]:
    """Update the biases of one layer whose router does not change (arXiv 2408.15664, algorithm 1).

    Args:
        logits_NE: router logits of N tokens.
        k: experts per token.
        rate: change of a bias per step.
        steps: number of updates.

    Returns:
        MaxVio before each update and after the last, and the final biases [E].
    """
    bias_E = torch.zeros(logits_NE.shape[1])
    uneven = []
    for step in range(steps + 1):
        experts_NK = select_biased_experts(logits_NE, bias_E, k)
        load_E = torch.bincount(experts_NK.flatten(), minlength=len(bias_E)).float()
        uneven.append(max_violation(load_E[None]))
        if step < steps:
            bias_E = bias_E - rate * (load_E - load_E.mean()).sign()
    return uneven, bias_E


def plot_convergence(ax: Axes, curves: Mapping[str, Sequence[float]]) -> None:
    """Plot MaxVio against the number of bias updates, one line per name."""
    for (name, values), color in zip(curves.items(), COLORS[2:]):
        ax.plot(values, color=color, label=name)
    ax.set(xlabel="update", ylabel="MaxVio", ylim=(0, None), title="Biases on a fixed router")


def plot_load(ax: Axes, loads: Mapping[str, np.ndarray]) -> None:
    """Plot the share of each expert, largest first, as a mean over seeds and layers.

    Args:
        ax: axes to draw into.
        loads: arm -> shares [seeds, layers, experts].
    """
    for (name, load_SLE), color in zip(loads.items(), COLORS):
        mean_E = -np.sort(-load_SLE, axis=-1).mean((0, 1))
        ax.plot(range(1, len(mean_E) + 1), 100 * mean_E, "o-", color=color, label=name)
    ax.axhline(100 / len(mean_E), color="0.3", ls=":", lw=1, label="even")
    ax.set(xlabel="expert, by load", ylabel="share of the choices, %", ylim=(0, None))
    ax.set_title("After 150 training steps")


def plot_loss_against_balance(
    ax: Axes, found: Mapping[str, tuple[Sequence[float], Sequence[float]]]
) -> None:
    """Plot (MaxVio, held-out loss) of each seed, one colour per arm."""
    for (name, (uneven, losses)), color in zip(found.items(), COLORS):
        ax.plot(uneven, losses, "o", color=color, label=name)
    ax.set(xlabel="MaxVio", ylabel="held-out loss, nats per token", xlim=(0, None))
    ax.set_title("Loss and balance, 3 seeds")


def plot_record(
    curves: Mapping[str, Sequence[float]],
    loads: Mapping[str, np.ndarray],
    found: Mapping[str, tuple[Sequence[float], Sequence[float]]],
) -> Figure:
    """Plot convergence, load and loss side by side.

    Args:
        curves: as in `plot_convergence`.
        loads: as in `plot_load`.
        found: as in `plot_loss_against_balance`.
    """
    fig, axes = plt.subplots(1, 3, figsize=(12, 3.9), layout="constrained")
    plot_convergence(axes[0], curves)
    plot_load(axes[1], loads)
    plot_loss_against_balance(axes[2], found)
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=3)
    fig.legend(*axes[1].get_legend_handles_labels(), loc="outside lower center", ncols=6)
    return fig
