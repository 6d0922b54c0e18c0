"""Plots of asynchronous training, for notebook 19: who works when, ages, and speed.

Inputs are rows of tests/benchmarks/bench_asynchronous.py. Blue: learner. Grey: actors.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from drlib.analysis.plots import CONTROL, UP


def plot_gantt(ax: Axes, run: Mapping, until_s: float) -> None:
    """Draw the jobs of each actor and the batches of the learner over time.

    Args:
        run: a row with "jobs" and "updates", in seconds since the first job.
        until_s: end of the time axis.
    """
    processes = list(dict.fromkeys(job["process"] for job in run["jobs"]))
    for job in run["jobs"]:
        lane = 1 + processes.index(job["process"])
        width = job["ended"] - job["started"]
        ax.barh(lane, width, left=job["started"], height=0.7, color="0.75", edgecolor="white")
    for update in run["updates"]:
        width = update["ended"] - update["started"]
        ax.barh(0, width, left=update["started"], height=0.7, color=UP, edgecolor="white")
    names = ["learner", *(f"actor {n + 1}" for n in range(len(processes)))]
    ax.set(yticks=range(len(names)), yticklabels=names, xlim=(0, until_s), xlabel="seconds")
    ax.invert_yaxis()


def plot_speed(ax: Axes, runs: Sequence[Mapping]) -> None:
    """Draw steps per hour over the latency of the tools, a line per arm; points are runs."""
    arms = list(dict.fromkeys(run["arm"] for run in runs))
    colours = [CONTROL, *(f"C{n}" for n in range(len(arms) - 1))]
    for arm, colour in zip(arms, colours):
        own = [run for run in runs if run["arm"] == arm]
        latencies = sorted({run["latency_ms"] for run in own})
        values = [
            [run["steps_per_hour"] for run in own if run["latency_ms"] == latency]
            for latency in latencies
        ]
        ax.plot(latencies, [np.mean(some) for some in values], color=colour, label=arm)
        for latency, some in zip(latencies, values):
            ax.plot([latency] * len(some), some, "o", color=colour, markersize=4)
    ax.set(xlabel="latency of a tool, ms", ylabel="steps per hour", ylim=(0, None))
    ax.legend(frameon=False, fontsize="small")


def plot_ages(ax: Axes, runs: Sequence[Mapping]) -> None:
    """Draw the mean age of trained rollouts and the effective sample size of each run."""
    for run in runs:
        ax.plot(run["lag_mean"], run["ess"], "o", color=CONTROL if not run["lag_max"] else UP)
        ax.annotate(run["arm"], (run["lag_mean"], run["ess"]), fontsize="x-small")
    ax.margins(x=0.25)
    ax.set(xlabel="mean age, updates", ylabel="effective sample size")
