"""Plots of the simulators in `drlib.analysis.scheduling`. Orange: lost work; grey: a control."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from drlib.analysis.figure_style import CONTROL, DOWN, UP
from drlib.analysis.scheduling import PartialSteps, Routing, Schedule, Span

MODE_COLORS = {"wait": CONTROL, "drop": DOWN, "resume": UP}


def plot_schedules(schedules: Mapping[str, Schedule], engine: int = 0) -> Figure:
    """Plot the rollouts of one engine over time, one panel per policy; orange ones were evicted."""
    fig, axes = plt.subplots(len(schedules), 1, figsize=(9, 1.5 * len(schedules)), sharex=True)
    for ax, (name, schedule) in zip(axes, schedules.items()):
        spans = sorted((s for s in schedule.spans if s.engine == engine), key=lambda s: s.start)
        for lane, span in zip(_assign_lanes(spans), spans):
            color = DOWN if span.evicted else UP
            ax.barh(lane, span.end - span.start, 0.9, span.start, color=color, edgecolor="none")
        ax.axvline(schedule.makespan, color="0.2", ls="--", lw=1)
        title = f"{name}: makespan {schedule.makespan:,.0f}"
        ax.set_title(f"{title}, {schedule.wasted:,} tokens lost", fontsize=9)
        ax.set(ylabel="running")
        ax.grid(visible=False, axis="y")
    axes[-1].set(xlabel="time, decode steps", xlim=(0, None))
    return fig


def _assign_lanes(spans: list[Span]) -> list[int]:
    """Return the lowest free lane of each span; spans are sorted by start."""
    ends: list[float] = []
    lanes = []
    for span in spans:
        free = [lane for lane, end in enumerate(ends) if end <= span.start]
        lane = free[0] if free else len(ends)
        ends[lane:] = [span.end, *ends[lane + 1 :]]
        lanes.append(lane)
    return lanes


def plot_routing(loads: Mapping[str, Mapping[str, Routing]]) -> Figure:
    """Plot prefill tokens and imbalance of each router, one group of bars per kind of load.

    Args:
        loads: kind of load -> router -> result.
    """
    fig, axes = plt.subplots(1, 2, figsize=(9, 3))
    routers = list(next(iter(loads.values())))
    width = 0.8 / len(routers)
    for number, router in enumerate(routers):
        at = np.arange(len(loads)) + (number - (len(routers) - 1) / 2) * width
        found = [results[router] for results in loads.values()]
        color = CONTROL if router == "random" else f"C{number - 1}"
        axes[0].bar(at, [r.prefill / 1e6 for r in found], width, color=color, label=router)
        axes[1].bar(at, [r.imbalance for r in found], width, color=color)
    axes[0].set(ylabel="prefill tokens, millions")
    axes[1].set(ylabel="busiest replica / mean", ylim=(0.9, None))
    for ax in axes:
        ax.set_xticks(range(len(loads)), list(loads))
    fig.legend(loc="outside upper center", ncols=len(routers), fontsize=8)
    return fig


def plot_partial(steps: Mapping[str, PartialSteps]) -> Figure:
    """Plot the bias in length of the trained rollouts by step, and the time of the steps."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3))
    for mode, found in steps.items():
        color = MODE_COLORS[mode]
        bias_S = 100 * (found.length_S / found.drawn - 1)
        left.plot(range(1, 1 + len(bias_S)), bias_S, color=color, label=mode)
        right.plot(np.cumsum(found.time_S), range(1, 1 + len(bias_S)), color=color, label=mode)
    left.axhline(0, color="0.2", ls="--", lw=1)
    left.set(xlabel="step", ylabel="mean length against all, %")
    right.set(xlabel="time, decode steps", ylabel="steps completed")
    right.legend()
    return fig
