"""Tests of trail questions of any length.

Run: python -m pytest tests/test_questions_trails.py
"""

import random

import pytest

from drlib.demonstrations.actions import InventedTools
from drlib.demonstrations.oracle import Demonstrator, DemonstratorFaults, Oracle
from drlib.questions.chains import END, NEXT_PAGE, TREASURE, make_trail
from drlib.tools import Toolbox
from drlib.worlds import Names, load_world


@pytest.fixture(scope="module")
def names():
    return Names.from_world(load_world("tour"))


def follow_trail(task, world):
    """Return (pages, treasures) of the trail in order, from the facts alone."""
    title, pages, treasures = task.start, [], []
    while title != END:
        pages.append(title)
        facts = world.entities[title].facts
        treasures += [facts[TREASURE]] if TREASURE in facts else []
        title = facts[NEXT_PAGE]
    return pages, treasures


@pytest.mark.parametrize("pages", [1, 2, 7, 40, 200])
def test_trail_length_and_answer(names, pages):
    for seed in range(20):
        task, world = make_trail(seed, names, pages)
        walk, treasures = follow_trail(task, world)
        assert len(walk) == len(set(walk)) == pages == task.hops
        assert task.answer == treasures[-1] and task.world == world.version
        assert task.kind == task.skill == task.category == "trail"
        # a separate trail has other treasures and is never visited
        beside = {*world.entities} - {*walk}
        assert beside and not {*treasures} & {world.entities[t].facts.get(TREASURE) for t in beside}


def test_trails_can_have_several_treasures(names):
    """Stopping at the first treasure is wrong on some trails."""
    several = [follow_trail(*make_trail(seed, names, 12))[1] for seed in range(40)]
    assert 10 < sum(len(found) > 1 for found in several) < 40


def test_trails_are_reproducible(names):
    (first, world), (same, again) = make_trail(5, names, 9), make_trail(5, names, 9)
    assert first == same and world.version == again.version
    assert make_trail(6, names, 9)[0] != first


def test_invalid_trail_lengths_are_rejected(names):
    for pages in (0, len(names.words)):
        with pytest.raises(ValueError, match=f"pages={pages} is outside"):
            make_trail(0, names, pages)


def test_oracle_follows_the_trail_with_tools(names):
    for seed in range(10):
        task, world = make_trail(seed, names, 6)
        with Toolbox(world, results=2) as toolbox:
            episode = Oracle().play(task, toolbox, random.Random(seed), world)
        assert episode.correct and len(episode.tool_results) == 6
        walk, treasures = follow_trail(task, world)
        assert [known[NEXT_PAGE] for known in episode.known_before[1:]] == [*walk[1:], END]
        assert episode.known_before[-1][TREASURE] == treasures[-1]
        queries = [result.arguments["query"] for result in episode.tool_results]
        assert queries == [[title] for title in walk]


def test_early_stopping_teacher_misses_later_treasures(names):
    hand = Demonstrator(DemonstratorFaults(0, 3.0, 0, 0, 0), ["Nobody"])
    right, early = [], []
    for seed in range(60):
        task, world = make_trail(seed, names, 8)
        tools = InventedTools(task, world, 2, random.Random(seed))
        episode = hand.play(task, tools, random.Random(seed))
        early.append(len(episode.tool_results) < 8)
        right.append(episode.correct)
        seen = {known.get(TREASURE) for known in episode.known_before}
        assert episode.answer in {*seen, "Nobody"} - {"none yet"}
    assert sum(early) > 30 and 5 < sum(right) < 55
