"""Notebook 12's pictures and its panel, on ledgers and attempts made by hand.

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
def walked(tour, chat, toolbox):
    """A chain of two look-ups, by an IterResearch whose policy says what the oracle would."""
    tasks = chain_questions(tour, 20, 1, "train")
    task = next(task for task in tasks if task.hops == 2)
    taught = rounds(Oracle().play(task, toolbox, random.Random(0)))
    said = [message["content"] for some in taught for message in some[1:]]
    agent = IterResearch(ScriptedTurns(chat, said), toolbox, chat, Limits(9, 500, 5000))
    (done,) = agent.run([task])
    return done, said, [some[0]["content"] for some in taught]


def test_a_turn_stands_beside_the_context_that_it_could_see_and_no_other(walked, chat):
    done, said, shown = walked
    turns, contexts = decode_turns_and_contexts(done, chat.tokenizer)
    assert turns == said and len(contexts) == 3
    for context, state in zip(contexts, shown):
        assert context.count("Question: ") == 1 and state in context
    assert said[0] not in contexts[1] + contexts[2]


def test_the_panel_steps_through_the_turns_and_shows_pages_as_text(walked, chat):
    done, said, _ = walked
    panel = widgets.ContextPanel(done, chat.tokenizer)
    assert panel.turn.max == 3
    panel.turn.value = 2
    page = panel.page.value
    assert page.count("<td") == 2 and "<b>&lt;think&gt;" in page
    assert "Report: " in page.rpartition("<td")[2]
    assert "<tool_call>" not in page and "<report>" not in page
    panel.turn.value = 1
    assert panel.page.value != page
    nothing = {name: getattr(done, name) * 0 for name in ("logprobs", "entropies")}
    silent = replace(done, generated=np.zeros(len(done), bool), **nothing)
    with pytest.raises(ValueError, match="has no sampled turns"):
        widgets.ContextPanel(silent, chat.tokenizer)


def ledgers(name, right, sampled=10, longest=100):
    """One seed's, and another's that has it the other way round."""
    rows = [list(row) for row in right]
    made = []
    for seed, some in enumerate((rows, rows[::-1])):
        shape = [[1] * len(row) for row in some]
        counts = dict.fromkeys(("contexts", "calls", "processed"), shape)
        counts["sampled"] = [[sampled] * len(row) for row in some]
        counts["longest"] = [[longest] * len(row) for row in some]
        answers = [["yes" if x else "no" for x in row] for row in some]
        ended = [["answered"] * len(row) for row in some]
        trial = Trial(name, "react", samples=len(rows[0]))
        tasks = [f"t{i}" for i in range(len(rows))]
        booleans = [[bool(x) for x in row] for row in some]
        made.append(Ledger(trial, seed, tasks, answers, booleans, ended, counts))
    return made


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


def test_heavy_stands_against_votes_at_the_tokens_that_each_has_cost(trials):
    axes = strategy_plots.cost_figure(trials).axes[0]
    heavy, react, _ = axes.lines
    assert heavy.get_xdata().tolist() == [20, 40, 80, 160, 320]
    assert heavy.get_ydata() == pytest.approx([50] * 5)
    assert react.get_xdata().tolist() == [10, 20, 40, 80, 160]
    # the first eight: all right in one question, every other in the other, whose first is right
    assert react.get_ydata() == pytest.approx([62.5, 100, 100, 100, 100])
    plt.close("all")


def test_majorities_as_they_are_beside_the_binomial(trials):
    axes = strategy_plots.majority_figure(trials).axes[0]
    passed, voted, binomial = axes.lines
    p = 0.625
    assert passed.get_ydata() == pytest.approx([100 * p] + [100] * 15)
    assert voted.get_ydata()[0] == binomial.get_ydata()[0] == 100 * p, "one run is one run"
    assert binomial.get_ydata()[2] == pytest.approx(100 * (p**3 + 3 * p**2 * (1 - p)))
    plt.close("all")


def test_memory_is_drawn_at_the_longest_context(trials):
    trials["a"] = ledgers("a", [[1], [1]], longest=333)
    axes = strategy_plots.memory_figure(trials, {"a": "mine"}).axes[0]
    assert axes.lines[1].get_xdata() == [333] and axes.lines[1].get_ydata() == [100]
    assert axes.lines[1].get_label() == "mine"
    plt.close("all")
