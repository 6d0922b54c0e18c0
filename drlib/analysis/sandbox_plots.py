"""Plots of notebook 12 and its simulated queue of calls.

Latencies come from `figures/reference/sandbox`. Blue is the sandbox, orange is one process per
call, grey marks methods without isolation.
"""

import heapq
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from drlib.analysis.figure_style import CONTROL, DOWN, UP
from drlib.analysis.plots import plot_seed_band

ARMS = {  # of tests/benchmarks/bench_sandbox.py: colour, line style, label
    "sandbox": (UP, "-", "sandbox"),
    "standard": (UP, "--", "no namespaces"),
    "subprocess": (DOWN, "-", "new process"),
    "pool": (CONTROL, "-", "bare pool"),
    "smolagents": (CONTROL, ":", "interpreter"),
}
FLOOR_S = 0.01  # shorter waits are below the axis
MOST_CORES = 1 << 14  # of the search in least_cores


def queue_waits(arrivals: Sequence[float], seconds: Sequence[float], cores: int) -> np.ndarray:
    """Return each call's wait in seconds if calls start in order of arrival.

    Args:
        arrivals: arrival time of each call, seconds, ascending.
        seconds: time on a core of each call.
        cores: number of calls that run at the same time.
    """
    free, waits = [0.0] * cores, []  # the times at which each core is free again
    for arrival, busy in zip(arrivals, seconds, strict=True):
        start = max(arrival, free[0])
        heapq.heapreplace(free, start + busy)
        waits.append(start - arrival)
    return np.array(waits)


def draw_call_seconds(
    calls: int, limit_s: float = 4.0, start_s: float = 0.0, seed: int = 0
) -> np.ndarray:
    """Draw the core time of each call: 80% take 4 ms, 19% compute, 1% run until the limit.

    Args:
        calls: number of calls; the computing ones are lognormal with median 30 ms.
        limit_s: time limit, seconds.
        start_s: time to start a process and import packages, added to each call.
        seed: of the random numbers.
    """
    rng = np.random.default_rng(seed)
    kind, spread = rng.random(calls), rng.standard_normal(calls)
    seconds = np.where(kind < 0.8, 0.004, 0.03 * np.exp(spread))
    seconds = np.where(kind > 0.99, limit_s, seconds)
    return np.minimum(seconds + start_s, limit_s)


def wait_quantile(seconds: np.ndarray, over_s: float, cores: int) -> float:
    """Return the 99th percentile of the wait if calls arrive evenly over `over_s` seconds."""
    arrivals = np.linspace(0, over_s, len(seconds)).tolist()
    return float(np.quantile(queue_waits(arrivals, seconds.tolist(), cores), 0.99))


def least_cores(seconds: np.ndarray, over_s: float, bound_s: float = 1.0) -> int:
    """Return the least number of cores with `wait_quantile` below `bound_s` seconds."""
    low, high = 1, MOST_CORES
    while low < high:
        cores = (low + high) // 2
        enough = wait_quantile(seconds, over_s, cores) < bound_s
        low, high = (low, cores) if enough else (cores + 1, high)
    return low


def draw_queue(cores: int, limit_s: float, over_s: float, calls: int = 45_000) -> Figure:
    """Draw the wait of each call by arrival, and the share of calls by wait."""
    seconds = draw_call_seconds(calls, limit_s)
    waits = queue_waits(np.linspace(0, over_s, calls).tolist(), seconds.tolist(), cores)
    fig = Figure(figsize=(10.5, 3.2), layout="constrained")
    left, right = fig.subplots(1, 2)
    percent = 100 * np.arange(calls) / calls
    left.plot(percent[::50], waits[::50])
    left.set(title="Wait by arrival", xlabel="% of the calls have arrived", ylabel="seconds")
    left.set_ylim(0, max(1.5, 1.05 * waits.max()))
    right.plot(np.sort(waits)[::50], percent[::50])
    right.axvline(1, color="0.4", lw=1, ls="--")
    load = seconds.sum() / cores / over_s
    right.set(title=f"{cores} cores, load {load:.2f}", xlabel="seconds")
    right.set(ylabel="% of calls that wait at most this long", ylim=(0, 103))
    return fig


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
