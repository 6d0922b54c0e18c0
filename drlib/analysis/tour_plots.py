"""Plots of tour runs for notebooks 00 and 06; functions take a `TourRun` and return a Figure.

A second run is drawn in pale grey behind. Blue: RL with the real reward. Orange: continued SFT.
Green: cold start. Dark grey, dashed: random-reward control.
"""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from drlib.analysis.plots import CONTROL, plot_seed_band
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


# panels of notebook 06: title, y label, {metric: (colour, label)}
PANELS = (
    (
        "Right answers",
        "%",
        {"accuracy_python": ("C0", "python"), "accuracy_search": ("C1", "search")},
    ),
    (
        "Right answers by hops",
        "%",
        {
            "accuracy_h1": ("C0", "one"),
            "accuracy_h2": ("C1", "two"),
            "accuracy_h3": ("C2", "three"),
        },
    ),
    (
        "Failures",
        "%",
        {
            "tool_errors": ("C1", "failed calls"),
            "no_call": ("C0", "no call at all"),
            "overlong": ("C2", "over-long"),
        },
    ),
    ("Tokens a rollout generates", "tokens", {"generated": ("C0", "real reward")}),
    ("Entropy of the policy", "nats a token", {"entropy": ("C0", "real reward")}),
    ("Groups with reward variance", "%", {"live_groups": ("C0", "real reward")}),
)


def plot_rl_details(run: TourRun, behind: TourRun | None = None) -> Figure:
    """Plot six metrics of the RL stage by step; dashed is the random-reward control."""
    fig, axes = plt.subplots(2, 3, figsize=(9.6, 5.5), layout="constrained")
    control = run if "rl_random_reward" in run.curves else behind
    for ax, (title, unit, lines) in zip(axes.flat, PANELS):
        scale, limits = (100, (-2, 102)) if unit == "%" else (1, (0, None))
        for key, (color, label) in lines.items():
            plot_curve(ax, behind, "rl", key, REFERENCE_COLOR, "", scale=scale)
            # with several lines the control is thin and has the colour of its line
            how = (
                (STAGE_COLORS["rl_random_reward"], "random reward")
                if len(lines) == 1
                else (color, "")
            )
            plot_curve(
                ax,
                control,
                "rl_random_reward",
                key,
                *how,
                style="--",
                scale=scale,
                thick=2.0 if how[1] else 1.2,
            )
            plot_curve(ax, run, "rl", key, color, label, scale=scale)
        ax.set(title=title, xlabel="RL step", ylabel=unit, ylim=limits)
        where = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.17), "ncols": 3}
        ax.legend(**where, handlelength=1.3, columnspacing=1.1)
    return fig


def plot_overlong(runs: dict[str, TourRun]) -> Figure:
    """Plot the over-length rules side by side; runs: rule -> run trained with it."""
    fig, axes = plt.subplots(1, 3, figsize=(10.4, 3.1), layout="constrained")
    panels = (
        ("accuracy_search", "Right search answers"),
        ("overlong", "Over-long rollouts"),
        ("tool_errors", "Failed calls"),
    )
    for ax, (key, title) in zip(axes, panels):
        for color, style, (rule, run) in zip(("C0", "C1"), ("-", "--"), sorted(runs.items())):
            plot_curve(ax, run, "rl", key, color, f"{rule} them", style=style, scale=100)
        ax.set(title=title, xlabel="RL step", ylabel="%", ylim=(0, None))
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
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
