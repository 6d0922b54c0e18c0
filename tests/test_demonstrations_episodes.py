"""Demonstrations: importing rollouts of other policies, and converting between formats.

Rollouts are hand-made, or made by the solver in a hand-made world.

Run: python -m pytest tests/test_demonstrations_episodes.py
"""

import dataclasses

import numpy as np
import pytest

from drlib.chat.tool_calls import parse
from drlib.demonstrations.episodes import (
    from_trajectories,
    length_stages,
    managed,
    observations,
    reconstruct,
)
from drlib.demonstrations.funnel import Funnel
from drlib.demonstrations.solver import Solver
from drlib.questions.queries import And, Proj
from drlib.tools import Toolbox
from drlib.trajectory import Termination, Trajectory
from tests.solver_examples import GIVEN, LOOK, MILLS, ON_5, RIGHT, SEEN, episode, task, tiny


@pytest.fixture(scope="module")
def world():
    return tiny()


@pytest.fixture(scope="module")
def toolbox(world):
    with Toolbox(world, calculator=True) as tools:
        yield tools


def test_reconstruction_replaces_only_the_thoughts(toolbox):
    before = Solver(toolbox).solve(task(And((MILLS, ON_5)), "Town 005"))
    requests = []

    def think(history, action, observation):
        requests.append((history, action, observation))
        return f"Step {len(requests)}."

    after = reconstruct(before, think)
    assert observations(after) == observations(before) and after.correct
    turns = [
        (a["content"], b["content"])
        for a, b in zip(before.messages, after.messages)
        if a["role"] == "assistant"
    ]
    for number, (old, new) in enumerate(turns, 1):
        assert new == f"<think>Step {number}.</think>" + old.partition("</think>")[2]
    for number, (history, action, _) in enumerate(requests):
        assert len(history) == 2 * number + 1 and "think>" not in str(history)
        assert action == parse(turns[number][0])
    assert [o for *_, o in requests] == [*observations(before), ""]
    assert Funnel().fault(reconstruct(before)) is None  # the templated thoughts
    assert all(
        len(m["content"].partition("</think>")[0]) < 120
        for m in reconstruct(before).messages
        if m["role"] == "assistant"
    )
    for bad in ("", "so <answer>x</answer>", "a</think>b", "<|im_end|>"):
        with pytest.raises(ValueError, match="is no thought"):
            reconstruct(before, lambda *_, bad=bad: bad)


def test_managed_round_contains_only_its_state(toolbox):
    query = Proj("zone", Proj("country", And((MILLS, ON_5))))
    solved = Solver(toolbox).solve(task(query, "Zone North", "Which zone is it?"))
    rounds, seen = managed(solved), observations(solved)
    assert len(rounds) == len(seen) + 1 >= 4
    said = [m["content"] for m in solved.messages if m["role"] == "assistant"]
    for number, (state, answer) in enumerate(rounds):
        text = state["content"]
        assert text.startswith("Question: Which zone is it?\nReport: ")
        assert [o in text for o in seen] == [at == number - 1 for at in range(len(seen))]
        thought, action = (s.strip() for s in said[number].split("</think>"))
        assert parse(answer["content"]) == parse(said[number])
        assert answer["content"].endswith(action)
        report = answer["content"].partition("<report>")[2].partition("</report>")[0]
        assert report.endswith(thought.removeprefix("<think>"))
        if number + 1 < len(rounds):
            assert f"Report: {report}\nLast action: {action}\n" in rounds[number + 1][0]["content"]
    assert "Left: Town 005" in rounds[-1][0]["content"]  # carried only by the report


def test_length_stages_sort_by_length_and_keep_a_share():
    react, rounds = [3, 9, 4, 12, 40, 5, 11, 10], ["r1", "r2"]
    first, second = length_stages(react, rounds, lambda n: n, 8, 12, share=0.5)
    assert first == ["r1", "r2", 3, 4, 5]
    assert second[:4] == [9, 12, 11, 10] and len(second) == 6  # 40 exceeds every limit
    assert set(second[4:]) < {3, 4, 5}
    assert length_stages(react, rounds, lambda n: n, 8, 12, share=0.5) == (first, second)


def test_rollouts_of_other_policies_become_the_same_rows():
    own = episode(LOOK, SEEN, RIGHT)
    rows = [
        {"task_id": "q", "messages": own.messages},
        {
            "messages": [
                {"role": "system", "content": "Use tools."},
                {"role": "user", "content": "Which currency?\n"},
                {"role": "assistant", "content": LOOK},
                {"role": "user", "content": f"<tool_response>\n{SEEN}\n</tool_response>"},
                {"role": "assistant", "content": RIGHT},
            ]
        },
        {"task_id": "q", "messages": own.messages[:2]},
    ]
    first, second, third = from_trajectories(rows, [GIVEN])
    assert first.messages == own.messages and first.answer == "Somali Shilling"
    assert [m["role"] for m in second.messages] == ["user", "assistant", "tool", "assistant"]
    assert observations(second) == [SEEN] and second.correct
    assert third.answer is None
    assert [Funnel().fault(e) for e in (first, second)] == [None, None]
    assert first.record is None
    openai = {"role": "assistant", "content": None, "tool_calls": []}
    with pytest.raises(ValueError, match="row 2 .* content is no text"):
        from_trajectories([rows[0], {"messages": [own.messages[0], openai]}], [GIVEN])
    with pytest.raises(ValueError, match="row 2 .*not given: .'x', 'Which currency"):
        other = dataclasses.replace(GIVEN, question="Another?")
        from_trajectories([rows[0], rows[0] | {"task_id": "x"}], [other])
    with pytest.raises(ValueError, match="row 1 has no messages"):
        from_trajectories([{"task_id": "q"}], [GIVEN])


def test_episode_keeps_its_trajectory_record():
    own = episode(LOOK, SEEN, RIGHT)
    n = 3
    record = Trajectory(
        "a",
        "q",
        "g",
        "w",
        0,
        np.zeros(n, np.int32),
        np.zeros(n, bool),
        np.zeros(n, np.float32),
        None,
        np.zeros(n, np.uint8),
        np.zeros(n, np.uint16),
        np.zeros(n, np.int32),
        None,
        [],
        Termination.ANSWERED,
        "Somali Shilling",
        None,
        {},
        own.messages,
        {},
    )
    (again,) = from_trajectories([record], [GIVEN])
    assert again.messages == own.messages and again.correct
    assert again.record is record


def test_only_the_wrapper_newlines_are_removed():
    own = [{"role": "user", "content": "Which currency?"}, {"role": "assistant", "content": LOOK}]
    wrapped = {"role": "user", "content": "<tool_response>\n  5\n\n</tool_response>"}
    (parsed,) = from_trajectories([{"messages": [*own, wrapped]}], [GIVEN])
    assert observations(parsed) == ["  5\n"]
    plain = {"role": "tool", "content": "\n5 "}
    (parsed,) = from_trajectories([{"messages": [*own, plain]}], [GIVEN])
    assert observations(parsed) == ["\n5 "]
