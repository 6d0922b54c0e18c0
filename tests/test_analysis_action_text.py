"""Text about actions: rows from invented worlds, right plans, shortcuts, a short training run.

Run: python -m pytest tests/test_analysis_action_text.py
"""

import math
import random

import pytest

from drlib.analysis import action_text
from drlib.chat.tool_calls import END, render_answer, render_call
from drlib.config import Config
from drlib.demonstrations.agentfounder import KEPT, CptRow, higher_order, sample_of
from drlib.sandbox import Sandbox
from drlib.task import Task
from drlib.tools import Toolbox
from drlib.worlds import Names, load_world
from tests.agent_examples import tour_chat

chat = tour_chat
TASK = Task("t", "q", "XAF", "search", "w", 2, start="Gabon", relations=("currency", "code"))


class CountingToolbox(Toolbox):
    calls = 0

    def call(self, *args, **kwargs):
        self.calls += 1
        return super().call(*args, **kwargs)


@pytest.fixture(scope="module")
def invented():
    """(names, worlds, calls of their trajectories, toolbox)"""
    world = load_world("tour")
    names, toolbox = Names.from_world(world), CountingToolbox(world, Sandbox(), results=2)
    worlds = action_text.invent_worlds(2, 6, names, toolbox, 0)
    return names, worlds, toolbox.calls, toolbox


def plan(start, relation):
    call = render_call("search", {"query": [start]})
    return CptRow(
        "fas_plan",
        (("user", "q"), ("own", f"<think>First the {relation}.</think>{call}{END}")),
        (),
        (),
        KEPT,
    )


def test_rows_call_no_tool_and_equal_seeds_give_equal_rows(invented):
    _, worlds, calls, toolbox = invented
    rows, again = (
        [row for one in worlds for row in action_text.write_rows(one, 3, 2, random.Random(1))]
        for _ in range(2)
    )
    assert rows == again and toolbox.calls == calls > 0
    episodes = [e for one in worlds for e in one.episodes]
    searches = [e for e in episodes if e.task.kind == "search"]
    counts = {kind: sum(row.kind == kind for row in rows) for kind in ("fas_reason", "has")}
    assert counts == {
        "fas_reason": len(searches),
        "has": sum(bool(e.tool_results) for e in episodes),
    }
    assert 0 < sum(row.kind == "fas_plan" for row in rows) <= 3 * len(searches)


def test_right_plan_needs_the_start_and_the_first_relation():
    assert action_text.is_right_plan(plan("Gabon", "currency"), TASK)
    assert not action_text.is_right_plan(plan("Peru", "currency"), TASK)
    assert not action_text.is_right_plan(plan("Gabon", "code"), TASK)


def test_shortcut_by_hand():
    """Two of three options search for a name that was read: the rule is right half of the time."""

    class Fixed:
        names = ("Gabon", "Franc", "Oslo")

        def alternatives(self, messages, step, n, rng):
            calls = [render_call("search", {"query": [name]}) for name in ("Oslo", "Gabon")]
            return [f"<think>x</think>{call}" for call in calls if call not in step][:n]

    def row_of(name, n):
        step = f"<think>x</think>{render_call('search', {'query': [name]})}"
        messages = [
            {"role": "user", "content": "The code of the Franc of Gabon?"},
            {"role": "assistant", "content": step},
            {"role": "tool", "content": "XAF"},
            {"role": "assistant", "content": render_answer("XAF")},
        ]
        return higher_order(messages, True, "t", Fixed(), n, random.Random(0))

    assert action_text.measure_shortcut(row_of("Franc", 2)) == [1 / 2]
    assert action_text.measure_shortcut(row_of("Gabon", 1)) == [1.0]
    assert action_text.measure_shortcut(row_of("Oslo", 1)) == [0.0]  # only the other was read


def test_training_lowers_the_loss(invented, chat):
    names, worlds, *_ = invented
    rows = action_text.write_rows(worlds[0], 3, 2, random.Random(1))
    samples = [sample_of(row, chat) for row in rows]
    config = Config.load("ci", seed=0, pretrain__steps=6)
    losses = action_text.train_on_stages([samples, samples], config, names, chat)
    assert len(losses) == 6 and losses[-1] < losses[0] < 1.5 * math.log(2048)


def test_cold_starts_of_the_record():
    rows = [{"arms": {"none": {"cold_starts": [{"loss": x}, {"loss": 2 * x}]}}} for x in (1, 3)]
    assert action_text.get_cold_starts(rows, "none", 1, "loss") == [2, 6]
