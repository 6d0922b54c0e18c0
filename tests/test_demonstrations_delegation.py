"""Demonstrations of planner and workers, compared with the contexts of the real agent.

Run: python -m pytest tests/test_demonstrations_delegation.py
"""

import random

import pytest

from drlib.agents import Limits, PlannerWorker
from drlib.chat.tool_calls import parse
from drlib.demonstrations.actions import episode_sample
from drlib.demonstrations.delegation import delegated
from drlib.demonstrations.oracle import Demonstrator, DemonstratorFaults, Oracle
from drlib.questions.chains import SearchQuestions, make_python_task, make_trail
from drlib.sandbox import Sandbox
from drlib.task import is_correct
from drlib.tools import Toolbox
from drlib.training.rollouts import split_contexts
from drlib.worlds import Names
from tests.agent_examples import ScriptedTurns, tour_chat, tour_world

WIDE = Limits(calls=20, turn_tokens=500, context_tokens=5000)
tour = tour_world
chat = tour_chat


@pytest.fixture(scope="module")
def toolbox(tour):
    with Sandbox() as sandbox, Toolbox(tour, sandbox, results=2) as toolbox:
        yield toolbox


def draw(tour, skill, seed=3):
    rng = random.Random(seed)
    if skill == "python":
        return make_python_task(rng)
    return SearchQuestions(tour, "train").draw(int(skill[1:]), rng)


@pytest.mark.parametrize("skill", ["h1", "h2", "h3", "python"])
def test_samples_match_the_contexts_of_the_agent(tour, toolbox, chat, skill):
    task = draw(tour, skill)
    taught = delegated(Oracle().play(task, toolbox, random.Random(0)))
    hops = max(task.hops, 1)
    assert len(taught) == 1 + hops
    # the turns in the order of a rollout: one of the planner before each worker
    said = [[m["content"] for m in one if m["role"] == "assistant"] for one in taught]
    order = [turn for i, worker in enumerate(said[1:]) for turn in (said[0][i], *worker)]
    agent = PlannerWorker(ScriptedTurns(chat, [*order, said[0][-1]]), toolbox, chat, WIDE)
    (done,) = agent.run([task])
    assert is_correct(done.answer, task)
    seen = [part.token_ids.tolist() for part in split_contexts(done)]
    samples = [[*episode_sample(one, chat).ids] for one in taught]
    assert samples == [ids if ids[-1] == chat.end_id else [*ids, chat.end_id] for ids in seen]


def test_one_hop_worker_is_the_react_episode(tour, toolbox):
    task = draw(tour, "h1")
    episode = Oracle().play(task, toolbox, random.Random(0))
    _, worker = delegated(episode)
    assert worker[1:3] == episode.messages[1:3]
    assert parse(worker[-1]["content"]) == parse(episode.messages[-1]["content"])


def test_mistakes_stay_with_the_worker(tour, toolbox):
    task = draw(tour, "h2")
    teacher = Demonstrator(DemonstratorFaults(0, 0, 0, bad_query=1, loop=0), ())
    planner, *workers = delegated(teacher.play(task, toolbox, random.Random(0)))
    assert len(planner) == 1 + 2 * 2 + 1 and [len(worker) for worker in workers] == [6, 6]


def test_episodes_without_parts_are_left_out(tour, toolbox):
    names = sorted(tour.entities)
    task = draw(tour, "h2")

    def play(**rates):
        faults = dict(guess=0, stop_early=0, bad_code=0, bad_query=0, loop=0) | rates
        teacher = Demonstrator(DemonstratorFaults(**faults), names)
        return teacher.play(task, toolbox, random.Random(0))

    assert delegated(play(guess=1)) == [] and delegated(play(loop=1)) == []
    trail, world = make_trail(3, Names.from_world(tour), 4)
    assert delegated(Oracle().play(trail, toolbox, random.Random(1), world)) == []
    # one who stopped early has answered another question
    stopped = play(stop_early=1)
    assert not stopped.correct and len(delegated(stopped)) == 2
