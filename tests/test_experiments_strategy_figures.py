"""Plots and the panel of notebook 27, on hand-made ledgers and rollouts.

Run: python -m pytest tests/test_experiments_strategy_figures.py
"""

import random
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pytest

from drlib.agents import IterResearch, Limits
from drlib.analysis import widgets
from drlib.analysis.rendering import decode_turns_and_contexts
from drlib.demonstrations.oracle import Oracle
from drlib.demonstrations.skills import rounds
from drlib.experiments import strategy_figures as strategy_plots
from drlib.experiments.agent_comparison import Ledger, Trial
from drlib.questions.chains import chain_questions
from tests.agent_examples import ScriptedTurns, tour_chat, tour_toolbox, tour_world

tour = tour_world
chat = tour_chat
toolbox = tour_toolbox


@pytest.fixture(scope="module")
def rollout_and_samples(tour, chat, toolbox):
    """Return an IterResearch rollout of two hops, its turns and its states."""
    tasks = chain_questions(tour, 20, 1, "train")
    task = next(task for task in tasks if task.hops == 2)
    taught = rounds(Oracle().play(task, toolbox, random.Random(0)))
    sampled_turns = [message["content"] for conversation in taught for message in conversation[1:]]
    agent = IterResearch(ScriptedTurns(chat, sampled_turns), toolbox, chat, Limits(9, 500, 5000))
    (done,) = agent.run([task])
    return done, sampled_turns, [conversation[0]["content"] for conversation in taught]


def test_turns_are_paired_with_their_contexts(rollout_and_samples, chat):
    done, sampled_turns, shown = rollout_and_samples
    turns, contexts = decode_turns_and_contexts(done, chat.tokenizer)
    assert turns == sampled_turns and len(contexts) == 3
    for context, state in zip(contexts, shown):
        assert context.count("Question: ") == 1 and state in context
    assert sampled_turns[0] not in contexts[1] + contexts[2]


def test_context_panel_steps_through_the_turns(rollout_and_samples, chat):
    done, said, _ = rollout_and_samples
    panel = widgets.ContextPanel(done, chat.tokenizer)
    assert panel.turn.max == 3
    panel.turn.value = 2
    page = panel.page.value
    assert page.count("<td") == 2 and "<b>&lt;think&gt;" in page
    assert "Report: " in page.rpartition("<td")[2]
    assert "<tool_call>" not in page and "<report>" not in page
    panel.turn.value = 1
    assert panel.page.value != page
    zeros = {name: getattr(done, name) * 0 for name in ("logprobs", "entropies")}
    without_turns = replace(done, generated=np.zeros(len(done), bool), **zeros)
    with pytest.raises(ValueError, match="has no sampled turns"):
        widgets.ContextPanel(without_turns, chat.tokenizer)


def ledgers(name, right, sampled=10, longest=100):
    """Return ledgers of two seeds; the second has the rows in reverse order."""
    rows = [list(row) for row in right]
    ledgers_of_seeds = []
    for seed, rows_of_seed in enumerate((rows, rows[::-1])):
        shape = [[1] * len(row) for row in rows_of_seed]
        counts = dict.fromkeys(("contexts", "calls", "processed"), shape)
        counts["sampled"] = [[sampled] * len(row) for row in rows_of_seed]
        counts["longest"] = [[longest] * len(row) for row in rows_of_seed]
        answers = [["yes" if x else "no" for x in row] for row in rows_of_seed]
        ended = [["answered"] * len(row) for row in rows_of_seed]
        trial = Trial(name, "react", samples=len(rows[0]))
        tasks = [f"t{i}" for i in range(len(rows))]
        booleans = [[bool(x) for x in row] for row in rows_of_seed]
        ledgers_of_seeds.append(Ledger(trial, seed, tasks, answers, booleans, ended, counts))
    return ledgers_of_seeds


@pytest.fixture
def trials():
    votes = np.zeros((2, 16), int)
    votes[0, :12] = votes[1, ::2] = 1
    found = {
        name: ledgers(name, votes, cost) for name, cost in (("react", 10), ("iterresearch", 20))
    }
    return found | {
        f"heavy {n}": ledgers(f"heavy {n}", [[1], [0]], 20 * n) for n in (1, 2, 4, 8, 16)
    }


@pytest.fixture
def ax():
    fig, ax = plt.subplots()
    yield ax
    fig.canvas.draw()
    plt.close(fig)


def test_contexts_are_drawn_by_turn(rollout_and_samples, ax):
    done, sampled_turns, _ = rollout_and_samples
    lengths = strategy_plots.context_lengths(done)
    assert lengths == np.bincount(done.contexts).tolist(), "one turn per context"
    whole = replace(done, contexts=None)
    assert strategy_plots.context_lengths(whole) == np.cumsum(lengths).tolist()
    strategy_plots.plot_contexts(ax, {"one": done, "two": whole}, 5000)
    assert [line.get_ydata()[-1] for line in ax.lines] == [lengths[-1], sum(lengths), 5000]
    assert ax.lines[0].get_xdata().tolist() == [1, 2, 3] and len(sampled_turns) == 3


def test_cost_plot_compares_heavy_with_votes(trials, ax):
    strategy_plots.plot_cost(ax, trials)
    heavy, react, _ = ax.lines
    assert heavy.get_xdata().tolist() == [20, 40, 80, 160, 320]
    assert heavy.get_ydata() == pytest.approx([50] * 5)
    assert react.get_xdata().tolist() == [10, 20, 40, 80, 160]
    # first eight samples: all correct in question one; every second one in the other
    assert react.get_ydata() == pytest.approx([62.5, 100, 100, 100, 100])


def test_majority_plot_shows_votes_and_binomial(trials, ax):
    strategy_plots.plot_majority(ax, trials)
    passed, voted, binomial = ax.lines
    p = 0.625
    assert passed.get_ydata() == pytest.approx([100 * p] + [100] * 15)
    assert voted.get_ydata()[0] == binomial.get_ydata()[0] == 100 * p, "one run is one run"
    assert binomial.get_ydata()[2] == pytest.approx(100 * (p**3 + 3 * p**2 * (1 - p)))


def test_memory_plot_uses_the_longest_context(trials, ax):
    trials["a"] = ledgers("a", [[1], [1]], longest=333)
    strategy_plots.plot_memory(ax, trials, {"a": "mine"})
    assert ax.lines[1].get_xdata() == [333] and ax.lines[1].get_ydata() == [100]
    assert ax.lines[1].get_label() == "mine"
