"""Several policies in one space of weights: lines between them, and plots of merged policies."""

import copy
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn

KINDS = (("o", "search"), ("s", "python"))  # marker and kind of question


@torch.no_grad()
def interpolate(a: nn.Module, b: nn.Module, share: float) -> nn.Module:
    """Return a policy with the weights (1 - share) a + share b; `share` may be outside 0..1."""
    policy = copy.deepcopy(a)
    for weight, other in zip(policy.parameters(), b.parameters(), strict=True):
        weight.lerp_(other, float(share))
    return policy


@torch.no_grad()
def reorder_units(policy: nn.Module, seed: int) -> nn.Module:
    """Return a copy with the hidden units of all experts in another order: the same function."""
    policy, generator = copy.deepcopy(policy), torch.Generator().manual_seed(seed)
    for layer in policy.model.layers:
        experts = layer.mlp.experts
        units = experts.down_proj.shape[-1]
        order = torch.randperm(units, generator=generator)
        both = torch.cat([order, units + order])  # gate and up
        experts.down_proj.copy_(experts.down_proj[..., order])
        experts.gate_up_proj.copy_(experts.gate_up_proj[:, both])
    return policy


def measure_barrier(losses: Sequence[float]) -> float:
    """Return the largest excess of the losses at equal steps of a line over the straight line.

    >>> measure_barrier([1.0, 3.0, 2.0])
    1.5
    """
    straight = np.linspace(losses[0], losses[-1], len(losses))
    return float(max(np.asarray(losses) - straight))


def plot_lines(ax: Axes, losses: Mapping[str, Sequence[float]]) -> None:
    """Plot losses at equal steps of lines between two policies."""
    for name, values in losses.items():
        ax.plot(np.linspace(0, 1, len(values)), values, "o-", label=name)
    ax.set(title="loss along the line", xlabel="share of the second policy", ylabel="nats")
    ax.legend()


def plot_arms(ax: Axes, arms: Mapping[str, Sequence[tuple]], title: str) -> None:
    """Plot the accuracies of arms with their intervals.

    Args:
        arms: (accuracy, low, high) for search and for python questions, by arm.
    """
    for column, (marker, kind) in enumerate(KINDS):
        values = 100 * np.array([arms[arm][column] for arm in arms])
        y = np.arange(len(arms))[::-1] + 0.12 * (1 - 2 * column)
        bars = np.abs(values[:, 1:].T - values[:, 0])
        ax.errorbar(values[:, 0], y, xerr=bars, fmt=marker, color=f"C{column}", label=kind)
    ax.set_yticks(np.arange(len(arms))[::-1], list(arms))
    ax.set(title=title, xlabel="held-out answers right, %", xlim=(-3, 103))
    ax.legend(loc="lower left")


def plot_vectors(vectors: Mapping[str, torch.Tensor]) -> Figure:
    """Plot the entries of a few short vectors beside each other."""
    fig, ax = plt.subplots(figsize=(5, 2.8), layout="constrained")
    for number, (name, vector) in enumerate(vectors.items()):
        ax.bar(np.arange(len(vector)) + 0.25 * (number - 1), vector, 0.25, label=name)
    ax.set(xticks=range(len(vector)), xlabel="weight", ylabel="change", ylim=(-8, 8))
    ax.legend(ncols=3)
    return fig
