"""Plots of asynchronous training, for notebook 24: who works when, ages, and speed.

Inputs are rows of tests/benchmarks/bench_asynchronous.py and make_stale.py, and records of the
experiment `asynchronous`. Blue: learner. Grey: actors.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from drlib.analysis.figure_style import CONTROL, UP

SMOOTH = 5  # steps in a point of `plot_accuracy`


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


def plot_accuracy(ax: Axes, curves: Mapping[str, Mapping[int, Sequence[Mapping]]]) -> None:
    """Draw the accuracy of the training rollouts over the wall time, a line per arm.

    Args:
        curves: rows of metrics.jsonl by arm and seed. A point is the mean over the seeds of SMOOTH
            steps, at the seeds' mean time.
    """
    for arm, colour in zip(curves, (CONTROL, *(f"C{n}" for n in range(len(curves))))):
        runs = list(curves[arm].values())
        steps = min(map(len, runs))
        seconds_RS = np.cumsum([[row["seconds"] for row in rows[:steps]] for rows in runs], 1)
        accuracy_RS = np.array([[row["accuracy"] for row in rows[:steps]] for rows in runs])
        ends = range(SMOOTH, steps + 1)
        smooth = [100 * accuracy_RS[:, end - SMOOTH : end].mean() for end in ends]
        times = seconds_RS.mean(0)[SMOOTH - 1 :]
        ax.plot(times, smooth, color=colour, label=arm.replace("_", " "))
    ax.set(xlabel="seconds", ylabel="accuracy in training, %")
    ax.legend(frameon=False, fontsize="small")


def plot_dropped(ax: Axes, found: Mapping[str, Mapping]) -> None:
    """Draw how dropped groups differ from all finished ones: tokens per rollout, and hops.

    Args:
        found: rows of make_stale.py by rl.asynchronous.stale.
    """
    names = [name for name, row in found.items() if row["dropped"]]
    places = np.arange(len(names))
    for shift, key, colour in ((-0.2, "length", UP), (0.2, "hops", CONTROL)):
        ratios = [ratio_of_means(found[name], key) for name in names]
        ax.bar(places + shift, ratios, width=0.36, color=colour, label=key)
    ax.axhline(1, color="0.4", linewidth=0.8)
    ax.set(xticks=places, xticklabels=names, ylabel="dropped / finished", ylim=(0, 1.6))
    ax.legend(frameon=False, fontsize="small", ncols=2, loc="upper left")


def ratio_of_means(row: Mapping, key: str) -> float:
    """Return the mean of `key` over the dropped groups, divided by that over the finished ones."""
    dropped, finished = row["dropped_groups"], row["finished_groups"]
    return float(np.mean([g[key] for g in dropped]) / np.mean([g[key] for g in finished]))
