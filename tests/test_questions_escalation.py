"""Tests of escalation: questions are kept, upgraded or rejected."""

import pytest

from drlib.questions import synthesize_questions
from drlib.questions.checks import find_faults, measure_effort
from drlib.questions.escalation import ASKED_BEFORE, NO_UPGRADE, TOO_EASY, escalate
from drlib.questions.joins import normalise_query
from drlib.questions.queries import evaluate_query, from_text
from drlib.questions.read_back import load_grammar, read_question
from drlib.task import Task
from tests.shared_worlds import shared_world


@pytest.fixture(scope="module")
def world():
    return shared_world("cldr")


@pytest.fixture(scope="module")
def seeds(world):
    return synthesize_questions(world, 12, 5, hops={2: 1})


def pages(task, world):
    return measure_effort(from_text(task.query), world.graph)


def solver(right):
    """Return a solver that is correct where `right(task)` is true and records its tasks in
    `.tried`.
    """

    def attempt(tasks, n):
        attempt.tried += [task.id for task in tasks]
        return [[right(task)] * n for task in tasks]

    attempt.tried = []
    return attempt


NEVER, ALWAYS = (lambda task: False), (lambda task: True)


@pytest.mark.parametrize(
    ("by_heart", "by_tools", "end"),
    [
        (NEVER, ALWAYS, "kept"),
        (NEVER, NEVER, "never solved with tools"),
        (ALWAYS, ALWAYS, TOO_EASY),
        (ALWAYS, NEVER, TOO_EASY),
    ],
)
def test_four_pairs_of_solvers(world, seeds, by_heart, by_tools, end):
    tools = solver(by_tools)
    done = escalate(seeds, world, 2, 0, closed_book=solver(by_heart), with_tools=tools, seed=0)
    assert done.rounds == [{end: len(seeds)}]
    assert len(done.kept) == (len(seeds) if end == "kept" else 0)
    assert {why for _, why in done.out} == (set() if end == "kept" else {end})
    assert tools.tried == ([] if end == TOO_EASY else [task.id for task in seeds])


def test_what_is_too_easy_comes_back_harder_with_its_answer(world, seeds):
    easy_below = 12  # pages: what needs fewer is known by heart
    heart = solver(lambda task: pages(task, world) < easy_below)
    done = escalate(seeds, world, 2, 4, closed_book=heart, with_tools=solver(ALWAYS), seed=0)
    begun = {task.id: task for task in seeds}
    upgraded = [task for task in done.kept if task.id not in begun]
    assert len(upgraded) >= 4 and done.rounds[0]["upgraded"] >= len(upgraded)
    grammar = load_grammar(world.graph, world.scheme)
    for task in upgraded:
        query = from_text(task.query)
        assert evaluate_query(query, world.graph) == {task.answer} and not find_faults(
            query, world.graph
        )
        assert read_question(task.question, grammar) == normalise_query(query)
        assert done.stages[task.id] and task.closed_book == 0.0 and task.with_tools == 1.0
        assert pages(task, world) >= easy_below
    assert max(len(done.stages[task.id]) for task in upgraded) >= 2
    assert all(pages(task, world) < easy_below for task, _ in done.out)
    assert {why for _, why in done.out} <= {TOO_EASY, NO_UPGRADE, ASKED_BEFORE}
    ends = sum(count for ends in done.rounds for end, count in ends.items() if end != "upgraded")
    before = sum(why == ASKED_BEFORE for _, why in done.out)
    assert ends + before == len(seeds) == len(done.kept) + len(done.out)


def test_a_rate_that_is_hard_enough_is_kept(world, seeds):
    def one_of_four(tasks, n):
        return [[True] + [False] * (n - 1) for _ in tasks]

    how = dict(closed_book=one_of_four, with_tools=solver(ALWAYS), seed=0)
    assert len(escalate(seeds, world, 4, 0, easy=0.25, **how).kept) == len(seeds)
    assert escalate(seeds, world, 4, 0, easy=0.2, **how).kept == []


def test_one_query_is_asked_once_and_a_second_run_tries_nothing_again(world, seeds, tmp_path):
    heart, tools = solver(lambda task: pages(task, world) < 12), solver(ALWAYS)
    how = dict(closed_book=heart, with_tools=tools, seed=3, folder=tmp_path)
    first = escalate([*seeds, *seeds[:2]], world, 2, 2, **how)
    assert [(task.id, why) for task, why in first.out if why == ASKED_BEFORE][:2] == [
        (task.id, ASKED_BEFORE) for task in seeds[:2]
    ]
    assert len(heart.tried) == len({*heart.tried})
    tried = [*heart.tried], [*tools.tried]
    assert escalate([*seeds, *seeds[:2]], world, 2, 2, **how) == first
    assert (heart.tried, tools.tried) == tried


def test_what_comes_of_a_seed_does_not_depend_on_the_others(world, seeds):
    how = dict(closed_book=solver(lambda t: pages(t, world) < 12), with_tools=solver(ALWAYS))
    all_of_them = escalate(seeds, world, 1, 2, seed=1, **how)
    alone = escalate(seeds[:1], world, 1, 2, seed=1, **how)
    assert [task for task in all_of_them.kept if task.answer == seeds[0].answer][:1] == alone.kept


def test_bad_input(world, seeds):
    how = dict(closed_book=solver(NEVER), with_tools=solver(ALWAYS), seed=0)
    with pytest.raises(ValueError, match="rounds=-1"):
        escalate(seeds, world, 1, -1, **how)
    with pytest.raises(ValueError, match="'t' has no query"):
        escalate([Task("t", "Q?", "A", "search", "w")], world, 1, 0, **how)
