"""Plots of tour runs for notebooks 00 and 05; functions take a `TourRun` and return a Figure.

A second run is drawn in pale grey behind. Blue: RL with the real reward. Orange: continued SFT.
Green: cold start. Dark grey, dashed: random-reward control.
"""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from drlib.analysis.figure_style import CONTROL
from drlib.analysis.plots import plot_seed_band
from drlib.analysis.tour import TourRun, format_seeds
from drlib.training import stages

SMOOTH = 5  # window of the moving average of RL curves, in steps
MARKERS = {"sft": "D", "sft_continued": "s", "rl": "o"}
STAGE_COLORS = {name: stage.colour for name, stage in stages.STAGES.items()}
REFERENCE_COLOR = "0.8"


def smooth(rows: Sequence[dict], key: str, width: int = SMOOTH) -> tuple[np.ndarray, np.ndarray]:
    """Return (steps, mean of the last `width` values of `key`); missing values are skipped."""
    steps = np.array([row["step"] for row in rows])
    values = np.array([row.get(key, np.nan) for row in rows], dtype=float)
    windows = [values[max(0, i - width) : i] for i in range(1, len(values) + 1)]
    return steps, np.array([np.nan if np.isnan(w).all() else np.nanmean(w) for w in windows])


def plot_curve(
    ax: Axes,
    run: TourRun | None,
    stage: str,
    key: str,
    color: str,
    label: str,
    *,
    style: str = "-",
    width: int = SMOOTH,
    scale: float = 1.0,
    thick: float = 2.0,
) -> None:
    """Plot the seeds of a stage as a seed band; draws nothing without data.

    The mean covers the steps that all seeds have. Longer seeds continue as thin lines, and a cross
    marks the end of each seed if lengths differ.

    Args:
        ax: axes to draw into.
        run: the run, or None.
        stage: stage of the curves.
        key: metric.
        color: colour of all lines.
        label: label of the mean.
        style: line style.
        width: window of the moving average, in steps.
        scale: factor of the values.
        thick: line width of the mean.
    """
    curves = run.curves.get(stage, {}) if run else {}
    lines = [smooth(rows, key, width) for _, rows in sorted(curves.items())]
    if not lines:
        return
    lengths = [len(steps) for steps, _ in lines]
    shared = min(lengths)
    if shared:
        values = [scale * v[:shared] for _, v in lines]
        plot_seed_band(ax, values, color, label, lines[0][0][:shared], style=style, thick=thick)
    if shared == max(lengths):
        return
    for steps, values in lines:
        if len(steps):
            alone = slice(max(shared - 1, 0), None)
            ax.plot(steps[alone], scale * values[alone], color=color, lw=0.9, ls=style)
            ax.plot(steps[-1:], scale * values[-1:], "x", color=color, ms=6, mew=1.6, zorder=4)


def plot_learning(run: TourRun, behind: TourRun | None = None) -> Figure:
    """Plot RL accuracy by step for both kinds of question, and held-out accuracy by hops.

    Curves are training rollouts; points and the dashed line are held-out questions.
    """
    fig, axes = plt.subplots(1, 3, figsize=(12, 4.1), layout="constrained")
    for ax, kind in zip(axes, ("python", "search")):
        _plot_rewards(ax, run, behind, kind)
    _plot_accuracy_by_hops(axes[2], run, behind)
    handles = {
        label: handle for ax in axes[::-1] for handle, label in zip(*ax.get_legend_handles_labels())
    }
    order = sorted(handles, key=lambda label: ("SFT" in label, "after" in label, label))
    fig.legend([handles[label] for label in order], order, loc="outside lower center", ncols=3)
    return fig


def _plot_rewards(ax: Axes, run: TourRun, behind: TourRun | None, kind: str) -> None:
    """Plot the training accuracy of RL and its control, and the held-out accuracies."""
    key = f"accuracy_{kind}"
    plot_curve(ax, behind, "rl", key, REFERENCE_COLOR, "RL, reference run", scale=100)
    control = run if "rl_random_reward" in run.curves else behind
    plot_curve(
        ax,
        control,
        "rl_random_reward",
        key,
        STAGE_COLORS["rl_random_reward"],
        "RL, random reward (control)",
        style="--",
        scale=100,
    )
    curves = run.curves["rl"]
    plot_curve(
        ax,
        run,
        "rl",
        key,
        STAGE_COLORS["rl"],
        f"RL in training, {format_seeds(len(curves))}",
        scale=100,
    )
    last = max(rows[-1]["step"] for rows in curves.values())
    _plot_accuracy(ax, 0, run, "after SFT, held-out", "sft", kind, "sample")
    _plot_accuracy(ax, last * 1.04, run, "after RL, held-out", "rl", kind, "sample")
    more = _find_run_with_stage("sft_continued", run, behind)
    if more:
        accuracy = more.results.accuracy("sft_continued", kind, "sample")
        mean, low, high = (100 * value for value in accuracy)
        ax.axhspan(low, high, color=STAGE_COLORS["sft_continued"], alpha=0.15, lw=0)
        ax.axhline(
            mean,
            color=STAGE_COLORS["sft_continued"],
            ls=(0, (5, 2)),
            lw=1.6,
            label="SFT continued with RL's compute, held-out",
        )
    ax.set(
        title=f"{kind.capitalize()} questions, sampled",
        xlabel="RL step",
        ylim=(-2, 102),
        ylabel="right answers, %",
    )


def _find_run_with_stage(stage: str, run: TourRun, behind: TourRun | None) -> TourRun | None:
    """Return the first of the two runs that evaluated `stage`, or None."""
    return next((r for r in (run, behind) if r and stage in r.results.stages), None)


def _plot_accuracy(
    ax: Axes, x: float, run: TourRun, label: str | None, stage: str, *asked, color: str = ""
) -> None:
    """Plot one accuracy with its interval.

    Args:
        ax: axes to draw into.
        x: position.
        run: run with results.
        label: label of the point.
        stage: evaluated stage.
        asked: kind, decoding and optional hops of `Results.accuracy`.
        color: colour; default: that of the stage.
    """
    mean, low, high = (100 * v for v in run.results.accuracy(stage, *asked))
    ax.errorbar(
        [x],
        [mean],
        [[max(mean - low, 0)], [max(high - mean, 0)]],
        color=color or STAGE_COLORS[stage],
        marker=MARKERS[stage],
        capsize=3,
        ls="",
        label=label,
        zorder=5,
        markeredgecolor="white",
        markersize=7,
    )


def _plot_accuracy_by_hops(ax: Axes, run: TourRun, behind: TourRun | None) -> None:
    """Plot the held-out search accuracy of each stage by number of hops."""
    for shift, stage in zip((-0.16, 0.0, 0.16), MARKERS):
        source = _find_run_with_stage(stage, run, behind)
        for hops in (1, 2, 3) if source else ():
            if source.results.count(stage, "search", "greedy", hops)[1]:
                label = "SFT continued, greedy" if stage == "sft_continued" else None
                _plot_accuracy(ax, hops + shift, source, label, stage, "search", "greedy", hops)
    ax.set_xticks([1, 2, 3], ["one", "two", "three\n(never demonstrated)"])
    ax.set(
        title="Search questions, greedy, held-out",
        ylim=(-2, 102),
        xlim=(0.5, 3.5),
        xlabel="hops",
        ylabel="right answers, %",
    )


# panels of notebook 05: title, y label, metrics (several: by hops, without the control)
PANELS = (
    ("Right answers, python", "%", ("accuracy_python",)),
    ("Right answers, search", "%", ("accuracy_search",)),
    ("Right answers by hops", "%", ("accuracy_h1", "accuracy_h2", "accuracy_h3")),
    ("Over-long rollouts", "%", ("overlong",)),
    ("Entropy of the policy", "nats per token", ("entropy",)),
    ("Groups with reward variance", "%", ("live_groups",)),
)
HOPS = (("C0", "1 hop"), ("C1", "2 hops"), ("C2", "3 hops"))  # colours and labels


def plot_rl_details(run: TourRun, behind: TourRun | None = None) -> Figure:
    """Plot six metrics of the RL stage by step, with the random-reward control.

    The panel by hops shows the real reward only. Crosses mark the last step of stopped seeds.
    """
    fig, axes = plt.subplots(2, 3, figsize=(9.6, 5.6), layout="constrained")
    control = run if "rl_random_reward" in run.curves else behind
    grey = STAGE_COLORS["rl_random_reward"]
    for ax, (title, unit, keys) in zip(axes.flat, PANELS):
        scale, limits = (100, (-2, 102)) if unit == "%" else (1, (0, None))
        for key, (color, hops) in zip(keys, HOPS):
            label = "reference run" if key == keys[0] else "_"  # once per legend
            plot_curve(ax, behind, "rl", key, REFERENCE_COLOR, label, scale=scale)
            if len(keys) == 1:
                label = "random reward (control)"
                stage = "rl_random_reward"
                plot_curve(ax, control, stage, key, grey, label, style="--", scale=scale)
            label = "real reward" if len(keys) == 1 else hops
            plot_curve(ax, run, "rl", key, color, label, scale=scale)
        ax.set(title=title, xlabel="RL step", ylabel=unit, ylim=limits)
    axes[0, 2].legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3, handlelength=1.3)
    handles, names = axes[0, 0].get_legend_handles_labels()
    found = dict(zip(names, handles))
    (cross,) = axes[0, 0].plot([], [], "x", color=grey, ms=6, mew=1.6)
    found["last step of a stopped seed"] = cross
    fig.legend(found.values(), found, loc="outside lower center", ncols=len(found))
    return fig


CONDITION_LINES = {"accuracy_search": "one", "accuracy_c2": "two", "accuracy_c3": "three"}
HELD_OUT_KINDS = ("search", "2 conditions", "3 conditions")


def plot_conditions(engine: TourRun, chains: TourRun) -> Figure:
    """Plot RL on questions with one to three conditions beside RL on chains.

    Left: training accuracy by number of conditions (dashed: chains). Right: held-out accuracy,
    sampled.

    Args:
        engine: run trained on one to three conditions.
        chains: run trained on chains.
    """
    fig, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.1), layout="constrained")
    for number, (key, label) in enumerate(CONDITION_LINES.items()):
        plot_curve(left, engine, "rl", key, f"C{number}", label, scale=100)
    plot_curve(
        left, chains, "rl", "accuracy_search", CONTROL, "RL on chains", style="--", scale=100
    )
    left.set(title="In training, by conditions", xlabel="RL step", ylabel="%", ylim=(-2, 102))
    arms = (("RL on one to three", engine, "C0"), ("RL on chains", chains, CONTROL))
    for shift, (label, run, color) in zip((-0.1, 0.1), arms):
        for x, kind in enumerate(HELD_OUT_KINDS, 1):
            if run.results.count("rl", kind, "sample")[1]:
                shown = label if x == 1 else None
                _plot_accuracy(right, x + shift, run, shown, "rl", kind, "sample", color=color)
    right.set_xticks([1, 2, 3], ["one\n(chains)", "two", "three"])
    right.set(title="Held-out, sampled", ylim=(-2, 102), xlim=(0.5, 3.5), xlabel="conditions")
    for ax in (left, right):
        ax.legend(loc="upper left", fontsize=8)
    return fig
