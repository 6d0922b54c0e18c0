"""Agentic pre-training rows: first-order and higher-order actions without tool execution.

A fixture world has known correct first calls, so that the effect of the judge can be counted. A
recorded trajectory of four calls has known options, choices and responses.
"""

import json
import random
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from drlib.chat.tool_calls import ToolCall, parse, render_answer, render_call
from drlib.demonstrations.actions import Sample
from drlib.demonstrations.agentfounder import (
    CHOICE,
    DECISION,
    KEPT,
    Teacher,
    context_stages,
    higher_order,
    list_decisions,
    plans,
    reasoning,
    sample_of,
    with_replay,
)
from drlib.questions.chains import SearchQuestions
from drlib.questions.entity_memory import EntityMemory
from drlib.task import Task, is_correct
from drlib.tools import Toolbox
from drlib.worlds import fictional_world, load_world
from drlib.worlds.fictional import Names
from tests.agent_examples import tour_chat

ROOT = Path(__file__).resolve().parents[1]


chat = tour_chat


@pytest.fixture(scope="module")
def fictional():
    """(world, memory of its facts, relations)"""
    world = fictional_world("cpt-test", Names.from_world(load_world("tour")))
    memory, relations = EntityMemory(), set()
    for entity in world.entities.values():
        for relation, value in entity.facts.items():
            memory.add_fact(entity.title, relation, value, f"page:{entity.title}")
            relations.add(relation)
    return world, memory, relations


def tasks_of(world, n=60):
    rng, source = random.Random("tasks"), SearchQuestions(world, None, max_hops=2)
    return [source.draw(rng.choice((1, 2)), rng) for _ in range(n)]


def teacher_of(fictional, fault=0.5):
    world, _, relations = fictional
    return Teacher(sorted(world.entities), relations, fault)


@pytest.fixture(autouse=True)
def no_tool(monkeypatch):
    """Check that synthesis never calls a tool."""
    calls = []
    monkeypatch.setattr(Toolbox, "call", lambda self, *a, **k: calls.append(a))
    monkeypatch.setattr(Toolbox, "submit", lambda self, *a, **k: calls.append(a))
    yield
    assert calls == []


def right_first_call(row, task):
    """Return True if the plan's call matches the question's start and first relation.

    The judge does not see these fields.
    """
    thought, _, call = row.parts[1][1].removesuffix("<|im_end|>").partition("</think>")
    action = parse(call)
    named = thought.removeprefix("<think>").split(".")[0].split("the ")[-1]
    return (
        isinstance(action, ToolCall)
        and action.arguments == {"query": [task.start]}
        and named == task.relations[0]
    )


def test_rejection_by_the_memory_raises_planning_accuracy(fictional):
    world, memory, _ = fictional
    teacher, rng, judged_rows = teacher_of(fictional), random.Random("plans"), []
    for task in tasks_of(world):
        rows = plans(task, memory, teacher, 4, rng)
        assert len({row.text for row in rows}) == len(rows) <= 4  # at most K distinct plans
        judged_rows += [(row, right_first_call(row, task)) for row in rows]
    kept = [right for row, right in judged_rows if row.judge == KEPT]
    before, after = sum(r for _, r in judged_rows) / len(judged_rows), sum(kept) / len(kept)
    assert 0.35 < before < 0.65  # about half of the plans are right, as in the paper
    assert after > 0.9 and len(kept) > 60
    # no correct plan is rejected: the memory has all facts of this world
    assert all(row.judge == KEPT for row, right in judged_rows if right)


CURRENCY = "<think>First the currency.</think>"


@pytest.mark.parametrize(
    "plan, verdict",
    [
        (render_call("search", {"query": ["Gabon"]}), "no look-up"),  # no analysis
        (CURRENCY + render_answer("Franc"), "no look-up"),
        (CURRENCY + render_call("search", {"query": "Gabon"}), "no look-up"),
        (CURRENCY + render_call("search", {"query": []}), "no look-up"),
        (CURRENCY + render_call("search", {}), "no look-up"),
        (CURRENCY, "no look-up"),
        (
            "<think>First the code.</think>" + render_call("search", {"query": ["Gabon"]}),
            "no such fact",
        ),
        (CURRENCY + render_call("search", {"query": ["Peru"]}), "does not lead to the answer"),
        (
            "<think>First the currency. Then the code.</think>"
            + render_call("search", {"query": ["Gabon"]}),
            KEPT,
        ),
    ],
)
def test_plan_verdicts(plan, verdict):
    memory = EntityMemory()
    for land, money, code in (("Gabon", "Franc", "XAF"), ("Peru", "Sol", "PEN")):
        memory.add_fact(land, "currency", money, "g")
        memory.add_fact(money, "code", code, "g")
    task = Task(
        "t",
        "What is the code of the currency of Gabon?",
        "XAF",
        "search",
        "w",
        2,
        "Gabon",
        ("currency", "code"),
    )
    teacher = Teacher(["Gabon", "Peru"], ["currency", "code", "former currency"])
    assert teacher.judge(plan, task, memory) == verdict


def test_reasoning_is_kept_by_length_and_answer(fictional):
    world, memory, _ = fictional
    teacher, rng = teacher_of(fictional), random.Random("reasoning")
    rows = [(task, reasoning(task, memory, teacher, rng)) for task in tasks_of(world, 150)]
    assert {row.judge for _, row in rows} == {KEPT, "too long", "another answer"}
    for task, row in rows:
        question, draft, facts, own = (text for _, text in row.parts)
        answer = parse(own).text
        assert question == task.question and draft.startswith("Draft: ")
        assert row.entity_ids[0] == task.start and row.entity_ids[-1] == task.answer
        assert f"The {task.relations[0]} of {task.start} is " in facts
        assert row.source_ids and all(s.startswith("page:") for s in row.source_ids)
        assert (row.judge == "another answer") <= (not is_correct(answer, task))
        assert (row.judge == KEPT) <= is_correct(answer, task)
        assert (row.judge == "too long") == (own.count("The ") > 2 * len(task.relations))
    flawless = Teacher(teacher.names, teacher.relations, fault=0)
    assert all(reasoning(t, memory, flawless, rng).judge == KEPT for t in tasks_of(world, 30))


def test_reasoning_requires_facts_in_memory(fictional):
    world, _, _ = fictional
    task = tasks_of(world, 1)[0]
    with pytest.raises(ValueError, match=re.escape(repr(task.start))):
        reasoning(task, EntityMemory(), teacher_of(fictional), random.Random(0))


def trajectory(k=4):
    """Return K calls with their responses, and the answer."""
    messages = [{"role": "user", "content": "Where does it end?"}]
    for i in range(k):
        call = render_call("search", {"query": [f"Place {i}"]})
        call = render_call("python", {"code": "print(17*3)"}) if i == 1 else call
        messages += [
            {"role": "assistant", "content": f"<think>Look {i}.</think>{call}"},
            {"role": "tool", "content": f"response {i} <answer>no</answer>"},
        ]
    answer = f"<think>There.</think>{render_answer('here')}"
    return [*messages, {"role": "assistant", "content": answer}]


@pytest.mark.parametrize("correct", [True, False])
def test_four_steps_with_three_alternatives(fictional, correct):
    teacher, messages = teacher_of(fictional), trajectory()
    places = set()
    for seed in range(12):
        row = higher_order(messages, correct, "t-1", teacher, 3, random.Random(seed))
        shown = [text for _, text in row.parts if re.match(r"1\. ", text)]
        options = [re.findall(r"^(\d)\. (.*)$", text, re.M) for text in shown]
        assert [len(o) for o in options] == [4] * 4  # 16 candidates
        assert all(len({text for _, text in o}) == 4 for o in options)
        responses = [text for role, text in row.parts if role == "tool"]
        assert responses == [m["content"] for m in messages if m["role"] == "tool"]  # 4 observed
        chosen = [int(n) for n in re.findall(re.escape(CHOICE) + r"(\d+)\n", row.text)]
        steps = [m["content"] for m in messages[1:-1:2]]
        assert [dict(o)[str(n)] for o, n in zip(options, chosen)] == steps  # recoverable
        parsed = list_decisions(row)
        assert [(d.options, d.real + 1) for d in parsed] == [
            (tuple(text for _, text in some), n) for some, n in zip(options, chosen)
        ]
        read = (messages[0]["content"], *responses)
        assert [d.read for d in parsed] == [read[:n] for n in (1, 2, 3, 4)]
        assert row.text.endswith(f"{DECISION}{'Correct' if correct else 'Incorrect'}<|im_end|>")
        assert row.source_ids == ("t-1",) and row.judge == KEPT
        places |= {*chosen}
    assert places == {1, 2, 3, 4}  # shuffled: the position carries no information


def test_only_own_text_carries_loss(fictional, chat):
    """Only own text carries loss; in a failed trajectory only the decision does."""
    teacher = teacher_of(fictional)
    for correct in (True, False):
        row = higher_order(trajectory(), correct, "t", teacher, 3, random.Random(5))
        sample = sample_of(row, chat)
        learned = chat.tokenizer.decode([i for i, own in zip(sample.ids, sample.loss) if own])
        said = [text for role, text in row.parts if role == "own"]
        assert learned == "".join(said)
        assert learned.count(CHOICE) == (4 if correct else 0)
        assert "response" not in learned and "1. <think>" not in learned
        # tags inside a response stay text: only own and given text has answer-tag tokens
        tag = chat.tokenizer.convert_tokens_to_ids("<answer>")
        expected_tags = "".join(t for role, t in row.parts if role in ("own", "given")).count(
            "<answer>"
        )
        assert sample.ids.count(tag) == expected_tags


def test_plan_sample_equals_a_rollout_prompt(fictional, chat):
    world, memory, _ = fictional
    task = tasks_of(world, 1)[0]
    row = plans(task, memory, teacher_of(fictional, 0), 1, random.Random(0))[0]
    sample = sample_of(row, chat)
    prompt = chat.prompt(task.question)
    assert list(sample.ids[: len(prompt)]) == prompt and not any(sample.loss[: len(prompt)])
    assert all(sample.loss[len(prompt) :]) and sample.ids[-1] == chat.end_id


def test_answer_without_calls_has_no_options(fictional):
    guess = f"<think>I know.</think>{render_answer('x')}"
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": guess}]
    row = higher_order(messages, False, "t", teacher_of(fictional), 3, random.Random(0))
    assert CHOICE not in row.text and row.text.endswith("Incorrect<|im_end|>")
    assert list_decisions(row) == []


def test_too_few_alternatives_raise():
    teacher = Teacher(["Ada"], ["code"])
    with pytest.raises(ValueError, match="alternatives of 500"):
        higher_order(trajectory(1), True, "t", teacher, 500, random.Random(0))


def test_tasks_without_a_chain_are_rejected(fictional):
    """Engine tasks carry a query and no relations."""
    _, memory, _ = fictional
    task, rng = Task("engine-7", "Which?", "x", "search", "w", query='"x"'), random.Random(0)
    teacher = teacher_of(fictional)
    for run in (
        lambda: plans(task, memory, teacher, 4, rng),
        lambda: reasoning(task, memory, teacher, rng),
    ):
        with pytest.raises(ValueError, match="engine-7 is no chain .*chain_questions"):
            run()


def test_length_stages_and_replay():
    rows = [Sample((1,) * n, (True,) * n) for n in (5, 50, 10, 11, 60)]
    short, long = context_stages(rows, 10, 50)
    assert [len(s) for s in short] == [5, 10] and [len(s) for s in long] == [50, 11]

    def stream(share):
        own, general = iter(lambda: "own", None), iter(lambda: "general", None)
        return list(islice(with_replay(own, general, share, random.Random(1)), 2000))

    assert 0.26 < stream(0.3).count("general") / 2000 < 0.34
    assert stream(0) == ["own"] * 2000 and stream(1) == ["general"] * 2000


def test_output_does_not_depend_on_the_hash_seed():
    program = """
import json, random
from drlib.demonstrations.agentfounder import *
memory = EntityMemory()
for i in range(9):
    memory.add_fact(f"E{i}", "code", f"C{i}", f"s{i}")
    memory.add_fact(f"E{i}", "owner", f"E{i//2}", "t")
teacher, rng = Teacher(memory.entities, {"code", "owner"}), random.Random("x")
task = Task("t", "What is the code of the owner of E5?", "C2", "search", "w", 2, "E5",
            ("owner", "code"))
rows = [*plans(task, memory, teacher, 4, rng), reasoning(task, memory, teacher, rng)]
call = '<think>a</think>' + render_call("search", {"query": ["E5"]})
steps = [{"content": "q"}, {"content": call}, {"content": "r"}, {"content": "<answer>C2</answer>"}]
rows.append(higher_order(steps, True, "t", teacher, 3, rng))
print(json.dumps(rows))
"""
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "77")
    }
    assert len(outputs) == 1 and json.loads(outputs.pop())
