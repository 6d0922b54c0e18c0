"""Plots of device memory and training timelines, for notebooks 26 and 24.

Inputs are plans (`drlib.training.planner`) or simulated spans. Blue: learner. Orange: above a
limit. Grey: generation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from drlib.analysis.figure_style import CONTROL, DOWN, UP
from drlib.training.planner import GIB, Fit, Plan, StepTime, Workload, step_time

MEMORY_COLORS = {  # colours of memory parts, in stacking order
    "weights": "C0",
    "reference": "C9",
    "gradients": "C1",
    "optimiser": "C2",
    "exchange": "C4",
    "activations": "C3",
    "working": "C5",
    "logits": "C6",
    "engine": "C7",
    "reserved": "0.75",
}
ACTIVITY_COLORS = {"generate": "0.78", "train": UP, "sync": DOWN}  # colours of spans
BATCHES = 8  # batches per timeline


@dataclass(frozen=True)
class Span:
    """Activity of the learner or an engine.

    Attributes:
        lane: 0 for the learner, 1, 2, ... for the engines.
        what: "generate", "train" or "sync".
        start: seconds.
        end: seconds.
        batch: index of the batch.
        age: updates between the start of generation and the training of the batch.

    """

    lane: int
    what: str
    start: float
    end: float
    batch: int
    age: int = 0


def simulate_synchronous(time: StepTime, batches: int) -> list[Span]:
    """Simulate synchronous steps: all engines generate a batch, then wait for its update."""
    spans, now = [], 0.0
    for batch in range(batches):
        made = now + time.generate
        spans += [Span(1 + e, "generate", now, made, batch) for e in range(time.engines)]
        spans.append(Span(0, "train", made, made + time.train, batch))
        now = made + time.train + time.sync
        spans.append(Span(0, "sync", now - time.sync, now, batch))
    return spans


def simulate_asynchronous(time: StepTime, batches: int) -> list[Span]:
    """Simulate asynchronous steps, to check the formulas of `step_time`.

    Each engine generates its own batches, with staggered starts. It keeps a finished batch until
    the learner takes the oldest, and then starts another with the current weights. All engines
    pause during a weight transfer.
    """
    alone = time.generate * time.engines  # seconds per batch of one engine
    started = [alone * (e - time.engines) / time.engines for e in range(1, time.engines + 1)]
    ready = [at + alone for at in started]
    version = [0] * time.engines
    spans, now = [], 0.0
    for batch in range(batches):
        engine = min(range(time.engines), key=ready.__getitem__)
        taken = max(now, ready[engine])
        spans.append(Span(1 + engine, "generate", started[engine], ready[engine], batch))
        started[engine], ready[engine] = taken, taken + alone
        age = batch - version[engine]
        version[engine] = batch
        trained = taken + time.train
        now = trained + time.sync
        spans.append(Span(0, "train", taken, trained, batch, age))
        spans.append(Span(0, "sync", trained, now, batch))
        # a batch in progress waits for the transfer; a finished one waits anyway
        ready = [at + time.sync if at > trained else at for at in ready]
    return spans


def plot_memory(ax: Axes, fits: Mapping[str, Fit]) -> None:
    """Plot the memory of each setting as stacked bars in GiB; the line is the device memory.

    Memory that parts share at different times of a step is subtracted from the logits.
    """
    drawn = {}
    for at, fit in enumerate(fits.values()):
        bottom, over = 0.0, fit.memory.shared / GIB
        for part, colour in MEMORY_COLORS.items():
            size = fit.memory.parts.get(part, 0) / GIB
            if part == "logits":  # logits reuse the working memory of the last layer
                size = max(0.0, size - over)
            drawn[part] = ax.barh(at, size, left=bottom, color=colour, height=0.62)
            bottom += size
        text = f" {fit.memory.total / GIB:,.0f}" if fit.memory.total > GIB else ""
        ax.text(bottom, at, text, va="center", color=DOWN if fit.fault else "0.3")
    device = next(iter(fits.values())).device / GIB
    ax.axvline(device, color="0.2", ls="--", lw=1)
    ax.text(device, len(fits) - 0.55, f" {device:.0f}", color="0.2", fontsize=8)
    ax.set_yticks(range(len(fits)), list(fits))
    ax.set(xlabel="GiB of one device", ylim=(len(fits) - 0.5, -0.5))
    ax.grid(visible=False, axis="y")
    shown = [part for part in MEMORY_COLORS if any(f.memory.parts.get(part) for f in fits.values())]
    where = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 5, "fontsize": 8}
    ax.legend([drawn[part] for part in shown], shown, **where)


def plot_timeline(ax: Axes, spans: Sequence[Span], until: float) -> None:
    """Plot spans by lane, the learner on top; numbers are batch ages in updates."""
    for span in spans:
        start, end = max(span.start, 0.0), min(span.end, until)
        if start >= end:
            continue
        edge = "w" if span.what == "generate" else "none"
        ax.barh(
            span.lane, end - start, 0.7, start, color=ACTIVITY_COLORS[span.what], edgecolor=edge
        )
        if span.what == "train" and span.age and span.end <= until:
            middle = (start + end) / 2
            ax.text(
                middle, span.lane, str(span.age), ha="center", va="center", color="w", fontsize=8
            )
    lanes = max(span.lane for span in spans)
    names = ["learner", *(f"engine {n}" for n in range(1, lanes + 1))]
    ax.set_yticks(range(lanes + 1), names)
    ax.set(xlim=(0, until), ylim=(lanes + 0.6, -0.6), xlabel="seconds")
    ax.grid(visible=False, axis="y")


def plot_timelines(time: StepTime) -> Figure:
    """Plot the synchronous and asynchronous timelines of one setting."""
    height = 1.6 + 0.5 * time.engines
    fig, axes = plt.subplots(2, 1, figsize=(9, height), sharex=True)
    until = BATCHES * time.asynchronous
    schedules = (
        simulate_synchronous(time, BATCHES),
        simulate_asynchronous(time, BATCHES + time.engines),
    )
    for ax, spans in zip(axes, schedules):
        plot_timeline(ax, spans, until)
    axes[0].set(xlabel="", title=f"synchronous: {time.synchronous:.3g} s a step")
    axes[1].set_title(f"asynchronous: {time.asynchronous:.3g} s a step")
    return fig


def plot_throughput(ax: Axes, work: Workload, rates, learners: int, most: int) -> None:
    """Plot steps per hour by number of engines, synchronous and asynchronous.

    The dashed line is the knee; dots are simulated.

    Args:
        ax: axes to draw into.
        work: workload of a step.
        rates: device rates, see `planner.step_time`.
        learners: number of learner devices.
        most: maximum number of engines.
    """
    engines = np.arange(1, most + 1)
    times = [step_time(work, rates, engines=int(n), learners=learners) for n in engines]
    ax.plot(engines, [3600 / t.asynchronous for t in times], color=UP, label="asynchronous")
    ax.plot(engines, [3600 / t.synchronous for t in times], color=CONTROL, label="synchronous")
    ax.plot(
        engines,
        [3600 / measure_step_time(t) for t in times],
        "o",
        color=UP,
        ms=3.5,
        label="simulated",
    )
    ax.axvline(times[0].knee, color="0.2", ls="--", lw=1, label=f"knee: {times[0].knee}")
    ax.set(xlabel="engines", ylabel="steps an hour", xlim=(0, most + 0.5), ylim=(0, None))
    ax.legend(loc="lower right")


def measure_step_time(time: StepTime, batches: int = 60) -> float:
    """Measure the seconds per step of the asynchronous simulation in its second half."""
    ends = [span.end for span in simulate_asynchronous(time, batches) if span.what == "train"]
    half = batches // 2
    return (ends[-1] - ends[half]) / (batches - 1 - half)


def plot_plan(done: Plan, most: int = 0) -> Figure:
    """Plot a plan: memory by part, and throughput by number of engines."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(11, 2.9), width_ratios=(3, 2))
    plot_memory(left, {"": done.fit})
    most = most or max(2 * done.time.knee, done.time.engines, 4)
    plot_throughput(right, done.work, done.rates, done.config.processes, min(most, 64))
    right.axvline(done.time.engines, color=UP, lw=6, alpha=0.2)
    return fig
