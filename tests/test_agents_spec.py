"""Tests of agent specifications such as `heavy:n=3,merge=vote`.

Run: python -m pytest tests/test_agents_spec.py
"""

import pytest

from drlib.agents import Heavy, IterResearch, ManagedReAct, ReAct, ReSum, create_agent
from drlib.agents.resum import join_thoughts
from drlib.agents.s3 import S3, answer_from_facts
from drlib.chat.tool_calls import render_answer
from drlib.task import Task
from tests.agent_examples import TextEngine, tour_chat, tour_toolbox

TASKS = [Task(f"t{i}", f"Question {i}?", "yes", "search", "") for i in range(5)]


chat = tour_chat
toolbox = tour_toolbox


@pytest.fixture
def create(chat, toolbox):
    def make(line, say=lambda text: render_answer("yes")):
        return create_agent(line, TextEngine(chat, say), toolbox, chat)

    return make


def test_spec_names_an_agent_and_its_options(create):
    assert type(create("react")) is ReAct and type(create("iterresearch")) is IterResearch
    kept = create("managed:keep_recent=2,discard_above=300")
    assert type(kept) is ManagedReAct and (kept.keep_recent, kept.discard_above) == (2, 300)
    assert create("managed:keep_recent=none").keep_recent is None
    assert create("resum:summarise=policy,every=4").summarise is None
    assert create("resum:summarise=policy,every=4").every == 4
    assert (
        type(create("resum")) is ReSum
        and create("resum:summarise=thoughts").summarise is join_thoughts
    )
    assert type(create("s3:generate=reader")) is S3
    assert create("s3:generate=reader").generate is answer_from_facts
    heavy = create("heavy:n=3,merge=vote,researcher=react")
    assert type(heavy) is Heavy and (heavy.n, heavy.merge) == (3, "vote")
    assert type(heavy.researcher) is ReAct and type(create("heavy").researcher) is IterResearch


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("raect", "unknown agent 'raect': did you mean 'react'"),
        ("resum:evry=2", "agent 'resum' has no option 'evry': did you mean 'every'"),
        ("resum:every", "'every' is not key=value"),
        ("resum:summarise=nobody", "summarise must be one of .'policy', 'thoughts'"),
        ("heavy:researcher=nobody", "unknown agent 'nobody'"),
        ("react:limits=2", "agent 'react' has no option 'limits'"),
        ("react+", "unknown agent ''"),
    ],
)
def test_invalid_specs_are_rejected_with_the_reason(create, line, reason):
    with pytest.raises(ValueError, match=reason):
        create(line)


def test_several_agents_alternate_over_the_tasks(create):
    shown = []

    def say(text):
        shown.append("Report:" in text)
        return render_answer(text.partition("Question ")[2][0])

    several = create("react+iterresearch", say)
    done = several.run(TASKS, samples=2, keys=[7, 8, 9, 10, 11], seed=3)
    assert [one.task_id for one in done] == [task.id for task in TASKS for _ in range(2)]
    assert [one.answer for one in done] == [str(i) for i in range(5) for _ in range(2)]
    assert [one.id for one in done[:4]] == ["3-7-0", "3-7-1", "3-8-0", "3-8-1"]
    assert shown == [False] * 6 + [True] * 4  # three tasks of ReAct, two of IterResearch
    assert several.engine is several.agents[0].engine is several.agents[1].engine
