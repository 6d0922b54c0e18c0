"""Figures of benchmark results: judges before and after correction, interval widths, pass@k."""

from collections.abc import Mapping, Sequence
from math import sqrt

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from drlib.evaluation.calibration import Calibration, correct_accuracy
from drlib.evaluation.measures import Z_TEST, pass_at_k, pass_hat_k
from drlib.intervals import Interval

SHOWN = 200  # labelled answers of each kind behind the rates of `plot_correction`


def plot_judges(
    ax: Axes, raw: Mapping[str, Interval], corrected: Mapping[str, Interval], truth: float
) -> None:
    """Plot each judge's accuracy with its interval, before and after the correction."""
    sets = ((-0.12, "C1", "raw", raw), (0.12, "C0", "corrected", corrected))
    for shift, color, label, found in sets:
        mean, low, high = np.array(list(found.values())).T
        at = np.arange(len(found)) + shift
        ax.errorbar(mean, at, xerr=(mean - low, high - mean), fmt="o", color=color, label=label)
    ax.axvline(truth, color="0.4", ls="--", lw=1)
    ax.set_yticks(range(len(raw)), list(raw))
    ax.set(title="Four judges, the same answers", xlabel="accuracy", xlim=(0, 1))
    ax.legend(loc="upper left")


def plot_widths(ax: Axes, sizes: Sequence[int], widths: Sequence[float], p: float) -> None:
    """Plot half-widths of 95% intervals by number of questions, beside the normal approximation.

    Args:
        sizes: numbers of questions.
        widths: half-widths in accuracy, one per size.
        p: accuracy.
    """
    normal = [Z_TEST * sqrt(p * (1 - p) / n) for n in sizes]
    ax.loglog(sizes, widths, "o", label="bootstrap")
    ax.loglog(sizes, normal, color="0.4", lw=1, label="equation (1)")
    ticks = [0.03, 0.05, 0.1, 0.2]
    ax.set_yticks(ticks, [f"{tick:.0%}" for tick in ticks], minor=False)
    ax.set_xticks(sizes, [str(n) for n in sizes], minor=False)
    ax.minorticks_off()
    ax.set(title="Half-width of the interval", xlabel="questions", ylabel="accuracy, points")
    ax.legend()


def plot_passes(ax: Axes, counts: Mapping[str, Sequence[Sequence[int]]], samples: int) -> None:
    """Plot pass@k (lines) and pass^k (dotted) of policies, one line per seed.

    Args:
        counts: policy -> for each seed, the correct samples of each question.
        samples: samples per question.
    """
    ks = range(1, samples + 1)
    for number, (name, seeds) in enumerate(counts.items()):
        for seed, some in enumerate(seeds):
            for estimate, style in ((pass_at_k, "-"), (pass_hat_k, ":")):
                values = [np.mean([estimate(c, samples, k) for c in some]) for k in ks]
                label = name if seed == 0 and style == "-" else None
                ax.plot(ks, values, style, color=f"C{1 - number}", lw=1, label=label)
    ax.set(title="pass@k (lines), pass^k (dotted)", xlabel="k", ylim=(0, 1))
    ax.legend(loc="lower left")


def plot_correction(sensitivity: float, specificity: float, n: int) -> Figure:
    """Plot the accuracy that a judge reports against the true one, with the corrected interval.

    Args:
        n: judged answers.
    """
    p = np.linspace(0, 1, 21)
    judged = p * sensitivity + (1 - p) * (1 - specificity)
    accepted, rejected = round(SHOWN * sensitivity), round(SHOWN * specificity)
    rates = Calibration("shown", accepted, SHOWN, rejected, SHOWN, 0, {})
    bounds = np.array([correct_accuracy(q * n, n, rates)[1:] for q in judged]).T
    fig, ax = plt.subplots(figsize=(4.6, 3.4), layout="constrained")
    ax.plot(p, judged, color="C1", label="reported by the judge")
    ax.fill_between(p, *bounds, color="C0", alpha=0.25, lw=0, label="95% after correction")
    ax.plot(p, p, color="0.4", lw=1, ls="--")
    ax.set(xlabel="true accuracy", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))
    ax.legend()
    return fig
