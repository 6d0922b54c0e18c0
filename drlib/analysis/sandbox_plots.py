"""Plots of notebook 08, each drawn into given axes.

The data come from the notebook or from `figures/reference/sandbox`. Blue is the sandbox, orange
marks failures and costs (a runaway, one process per call), grey marks methods without isolation and
formulas.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from drlib.analysis.plots import CONTROL, DOWN, UP, plot_seed_band

ARMS = {  # of tests/benchmarks/bench_sandbox.py: colour, line style, label
    "sandbox": (UP, "-", "sandbox"),
    "standard": (UP, "--", "no namespaces"),
    "subprocess": (DOWN, "-", "new process"),
    "pool": (CONTROL, "-", "bare pool"),
    "smolagents": (CONTROL, ":", "interpreter"),
}
SeedRows = Sequence[Sequence[float]]
WAITING_COLOR = "0.82"  # colours of waiting and running calls
RUNNING_COLOR = UP
FLOOR_S = 0.01  # shorter waits are below the axis


def plot_latencies(ax: Axes, bench: Mapping, code: str, concurrency: int = 1) -> None:
    """Plot the cumulative distribution of latencies of each arm; a dot marks the median.

    Args:
        bench: output of the benchmark: `rows`, each with `arm`, `code` ("print" or "sympy"),
            `concurrency` (simultaneous calls) and `latencies_ms`.

    Raises:
        ValueError: there are no such rows.

    """
    chosen = [r for r in bench["rows"] if (r["code"], r["concurrency"]) == (code, concurrency)]
    if not chosen:
        raise ValueError(f"the benchmark has no rows for {code!r} with {concurrency} at once")
    for arm, (color, style, label) in ARMS.items():
        values = sorted(v for row in chosen if row["arm"] == arm for v in row["latencies_ms"])
        if values:
            share = 100 * np.arange(1, len(values) + 1) / len(values)
            ax.step(values, share, style, color=color, label=label, where="post")
            ax.plot(np.quantile(values, 0.5, method="inverted_cdf"), 50, "o", color=color)
    every = [value for row in bench["rows"] for value in row["latencies_ms"]]
    ax.set(xscale="log", xlabel="milliseconds", ylabel="% of calls completed")
    ax.set_xlim(min(every) / 2, 2 * max(every))  # the same for every panel of a file


def plot_gantt(ax: Axes, bars: Sequence[tuple[int, float, float, float]], long_s: float) -> None:
    """Plot one row per rollout: pale while a call waits, blue while it runs, orange if long.

    Args:
        bars: (rollout, queued, start, end) of each call, seconds.
        long_s: calls that run longer are orange.

    """
    for rollout, queued, start, end in bars:
        color = DOWN if end - start > long_s else RUNNING_COLOR
        ax.barh(rollout, start - queued, 0.7, queued, color=WAITING_COLOR)
        ax.barh(rollout, end - start, 0.7, start, color=color)
    ax.set(xlabel="seconds", ylabel="rollout", ylim=(max(bar[0] for bar in bars) + 0.7, -0.7))
    ax.grid(visible=False, axis="y")


def plot_waiting_times(
    ax: Axes, found: Mapping[str, Mapping[int, Sequence[float]]], bound_s: float
) -> None:
    """Plot the 99th percentile of the waiting time by cores, one line per arrival pattern.

    Args:
        found: label -> cores -> the 99th percentile of each seed, seconds.
        bound_s: acceptable wait, drawn as a line.

    """
    for at, (label, by_cores) in enumerate(found.items()):
        runs = np.maximum(list(by_cores.values()), FLOOR_S / 10).T  # on a logarithmic axis
        plot_seed_band(ax, runs, f"C{(0, 2, 4)[at % 3]}", label, list(by_cores))
    ax.axhline(bound_s, color="0.4", lw=1, ls="--")
    ax.set(xscale="log", yscale="log", xlabel="cores", ylabel="99th percentile of the wait, s")
    ax.set_xticks([16, 64, 256, 1024], ["16", "64", "256", "1,024"])
    ax.set_ylim(FLOOR_S, None)
    ax.legend(loc="upper right")


def plot_answered_calls(
    ax: Axes, rates: Sequence[float], shares: Mapping[str, SeedRows], formulas: SeedRows = ()
):
    """Plot the share of calls that end as an observation, by fault probability.

    Args:
        rates: R fault probabilities.
        shares: label -> a row of R shares for each seed.
        formulas: rows of R expected shares, drawn dashed.

    """
    for color, (label, rows) in zip((DOWN, UP, "C2"), shares.items(), strict=False):
        plot_seed_band(ax, 100 * np.asarray(rows), color, label, rates)
    for row in formulas:
        ax.plot(rates, 100 * np.asarray(row), ls="--", lw=1, color="0.2")
    ax.set(
        xlabel="fault probability of an attempt", ylabel="% of the calls answered", ylim=(0, 103)
    )
    ax.legend(loc="lower left")
