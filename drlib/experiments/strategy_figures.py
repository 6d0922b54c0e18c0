"""Plots of notebook 27: contexts, accuracy and cost of several agents of one policy.

Most take ledgers (`drlib.experiments.agent_comparison`) and draw into given axes. Accuracies are
means over seeds and questions; bands are 95% intervals.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from operator import methodcaller

import numpy as np
from matplotlib.axes import Axes

from drlib.analysis.figure_style import CONTROL
from drlib.experiments.agent_comparison import Ledger
from drlib.intervals import share_interval
from drlib.trajectory import Trajectory

Trials = Mapping[str, Sequence[Ledger]]  # a trial's name -> its ledgers, one a seed
SAMPLES = (1, 2, 4, 8, 16)
COLORS = ("C0", "C1", "C2", "C3", "C4", "C5", "C6")
TOKEN_TICKS = (50, 100, 200, 500, 1000)


def majority_right(p: float, n: int) -> float:
    """Return how often the majority of `n` independent answers is right, if each is right with
    probability `p` and all wrong answers are equal; ties count half.

    It is the binomial tail: real runs fail together, and their wrong answers differ.
    """
    chances = [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]
    won = sum(chance for k, chance in enumerate(chances) if 2 * k > n)
    return won + (chances[n // 2] / 2 if n % 2 == 0 else 0.0)


def scored(ledgers: Sequence[Ledger], of: Callable[[Ledger], np.ndarray]) -> tuple:
    """Return (share, low, high) of the scores that `of` gives for each seed's questions."""
    return share_interval(np.array([of(ledger) for ledger in ledgers]))


def tokens_of(ledgers: Sequence[Ledger], count: str = "sampled") -> float:
    """Return the mean over seeds of a count per rollout."""
    return float(np.mean([ledger.mean(count) for ledger in ledgers]))


def context_lengths(trajectory: Trajectory) -> list[int]:
    """Return the tokens of the context at the end of each turn, the turn included."""
    contexts = trajectory.contexts
    if contexts is None:
        contexts = np.zeros(len(trajectory), int)
    lengths = []
    for turn in np.unique(trajectory.turns[trajectory.generated]):
        last = np.flatnonzero(trajectory.generated & (trajectory.turns == turn))[-1]
        lengths.append(int((contexts[: last + 1] == contexts[last]).sum()))
    return lengths


def plot_contexts(ax: Axes, rollouts: Mapping[str, Trajectory], window: int) -> None:
    """Plot the length of the context at each turn.

    Args:
        ax: axes to draw into.
        rollouts: agent -> one rollout.
        window: largest context in tokens (dashed).
    """
    for color, (label, rollout) in zip(COLORS, rollouts.items()):
        lengths = context_lengths(rollout)
        ax.plot(range(1, len(lengths) + 1), lengths, "o-", color=color, ms=4, label=label)
    ax.axhline(window, color=CONTROL, ls="--", lw=1)
    ax.set(title="One trail", xlabel="turn", ylabel="tokens in the context")
    ax.set_ylim(0, 1.3 * window)
    ax.legend(loc="upper left", ncols=len(rollouts), fontsize=8, columnspacing=1)


def plot_cost(ax: Axes, trials: Trials) -> None:
    """Plot accuracy against sampled tokens: Heavy with n researchers, and the majority of n runs of
    ReAct and of IterResearch.
    """
    heavy = [trials[f"heavy {n}"] for n in SAMPLES]
    lines = {
        "Heavy, n researchers": (
            [tokens_of(some) for some in heavy],
            [scored(some, Ledger.accuracy_Q) for some in heavy],
        )
    }
    for name, agent in (("react", "ReAct"), ("iterresearch", "IterResearch")):
        cost = tokens_of(trials[name])
        votes = [scored(trials[name], methodcaller("voted_Q", n)) for n in SAMPLES]
        # the vote of one run is one sample: use all samples for its accuracy
        votes[0] = scored(trials[name], Ledger.accuracy_Q)
        lines[f"majority of n runs, {agent}"] = [n * cost for n in SAMPLES], votes
    for color, (label, (tokens, shares)) in zip(COLORS, lines.items()):
        mid, low, high = (100 * np.array(column) for column in zip(*shares))
        ax.fill_between(tokens, low, high, color=color, alpha=0.12, lw=0)
        ax.plot(tokens, mid, "o-", color=color, label=label)
        above = label.endswith("IterResearch")  # numbers of the other lines are below them
        for n, x, y in zip(SAMPLES, tokens, mid):
            ax.annotate(
                str(n),
                (x, y),
                (0, 6 if above else -13),
                textcoords="offset points",
                ha="center",
                fontsize=8,
                color=color,
            )
    ax.set_xscale("log")
    ax.set_xticks(TOKEN_TICKS, map(str, TOKEN_TICKS))
    ax.minorticks_off()
    ax.set(title="Votes and Heavy", ylabel="accuracy, %", ylim=(0, 100))
    ax.set_xlabel("tokens sampled per question")
    ax.legend(loc="lower right", fontsize=8)


def plot_majority(ax: Axes, trials: Trials) -> None:
    """Plot the majority of n runs of ReAct as measured, and as predicted for independent runs."""
    ledgers = trials["react"]
    every = range(1, len(ledgers[0].right[0]) + 1)
    p = scored(ledgers, Ledger.accuracy_Q)[0]
    votes = [100 * scored(ledgers, methodcaller("voted_Q", n))[0] for n in every]
    passed = [100 * scored(ledgers, methodcaller("passed_Q", n))[0] for n in every]
    votes[0] = passed[0] = 100 * p  # one run: use all samples for its accuracy
    ax.plot(every, passed, color="C2", label="one of n is right (pass@n)")
    ax.plot(every, votes, color="C0", label="the majority of n is right")
    independent = [100 * majority_right(p, n) for n in every]
    ax.plot(every, independent, "--", color=CONTROL, label=f"equation (1), p = {p:.2f}")
    ax.set(title="Votes of ReAct", ylabel="accuracy, %", ylim=(0, 100))
    ax.set_xlabel("runs per question")
    ax.legend(loc="lower right", fontsize=8)


def plot_memory(ax: Axes, trials: Trials, labels: Mapping[str, str]) -> None:
    """Plot accuracy against the longest context of a rollout, one point per agent.

    Args:
        ax: axes to draw into.
        trials: name of a trial -> its ledgers.
        labels: name of a trial -> its label in the figure.
    """
    for color, (name, label) in zip(COLORS, labels.items()):
        share, low, high = (100 * x for x in scored(trials[name], Ledger.accuracy_Q))
        longest = tokens_of(trials[name], "longest")
        ax.plot([longest, longest], [low, high], color=color, lw=2)
        ax.plot(longest, share, "o", color=color, ms=9, mec="white", label=label)
    ax.set(title="Trails of 12 pages, three seeds", ylabel="accuracy, %", ylim=(-3, 128))
    ax.set(xlabel="longest context of a rollout, tokens", yticks=range(0, 101, 25))
    ax.legend(loc="upper left", ncols=len(labels), fontsize=8, columnspacing=1, handletextpad=0.3)
