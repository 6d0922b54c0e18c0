"""Figures of notebook 12: accuracy and cost of several agents of one policy.

Each takes ledgers (`drlib.experiments.agent_comparison`) and returns a Figure. Accuracies are means
over seeds and questions; bands are 95% intervals.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from operator import methodcaller

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from drlib.analysis.plots import CONTROL
from drlib.experiments.agent_comparison import Ledger
from drlib.intervals import share_interval

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


def cost_figure(trials: Trials) -> Figure:
    """Plot accuracy against sampled tokens: Heavy with n researchers, and the majority of n runs of
    ReAct and of IterResearch.
    """
    fig, ax = plt.subplots(figsize=(7.6, 4.4), layout="constrained")
    heavy = [trials[f"heavy {n}"] for n in SAMPLES]
    lines = {
        "Heavy, n researchers and a merger": (
            [tokens_of(some) for some in heavy],
            [scored(some, Ledger.accuracy_Q) for some in heavy],
        )
    }
    for name, told in (("react", "ReAct"), ("iterresearch", "IterResearch")):
        cost = tokens_of(trials[name])
        votes = [scored(trials[name], methodcaller("voted_Q", n)) for n in SAMPLES]
        # a vote of one is a sample: all of them say how often it is right
        votes[0] = scored(trials[name], Ledger.accuracy_Q)
        lines[f"majority of n runs of {told}"] = [n * cost for n in SAMPLES], votes
    for color, (label, (tokens, shares)) in zip(COLORS, lines.items()):
        mid, low, high = (100 * np.array(column) for column in zip(*shares))
        ax.fill_between(tokens, low, high, color=color, alpha=0.12, lw=0)
        ax.plot(tokens, mid, "o-", color=color, label=label)
        above = label.endswith("IterResearch")  # the others' numbers stand below their lines
        style = dict(textcoords="offset points", ha="center", fontsize=8, color=color)
        for n, x, y in zip(SAMPLES, tokens, mid):
            ax.annotate(str(n), (x, y), (0, 6 if above else -13), **style)
    ax.set_xscale("log")
    ax.set_xticks(TOKEN_TICKS, map(str, TOKEN_TICKS))
    ax.minorticks_off()
    ax.set(xlabel="tokens sampled for an answer", ylabel="right, %")
    ax.legend(loc="lower right")
    return fig


def majority_figure(trials: Trials, name: str = "react") -> Figure:
    """Plot the majority of n runs as measured, and as predicted for independent failures."""
    fig, ax = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    ledgers = trials[name]
    every = range(1, len(ledgers[0].right[0]) + 1)
    p = scored(ledgers, Ledger.accuracy_Q)[0]
    votes = [100 * scored(ledgers, methodcaller("voted_Q", n))[0] for n in every]
    passed = [100 * scored(ledgers, methodcaller("passed_Q", n))[0] for n in every]
    votes[0] = passed[0] = 100 * p  # of one run: all of them say how often it is right
    ax.plot(every, passed, color="C2", label="one of n is right (pass@n)")
    ax.plot(every, votes, color="C0", label="the majority of n is right")
    independent = [100 * majority_right(p, n) for n in every]
    ax.plot(every, independent, "--", color=CONTROL, label=f"binomial, p = {p:.2f}")
    ax.set(xlabel="runs of the same question", ylabel="right, %")
    ax.legend()
    return fig


def memory_figure(trials: Trials, labels: Mapping[str, str]) -> Figure:
    """Plot accuracy against the longest context of a rollout, one point per strategy.

    labels: name of a trial -> its label in the figure.
    """
    fig, ax = plt.subplots(figsize=(7.6, 4.4), layout="constrained")
    for color, (name, label) in zip(COLORS, labels.items()):
        share, low, high = (100 * x for x in scored(trials[name], Ledger.accuracy_Q))
        longest = tokens_of(trials[name], "longest")
        ax.plot([longest, longest], [low, high], color=color, lw=2)
        ax.plot(longest, share, "o", color=color, ms=9, mec="white", label=label)
    ax.set(xlabel="longest context of an attempt, tokens", ylabel="right, %")
    ax.set_ylim(-3, 103)
    ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return fig
