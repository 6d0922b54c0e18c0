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


def count_pages(task, world):
    return measure_effort(from_text(task.query), world.graph)


def make_solver(right):
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
def test_outcomes_of_four_solver_pairs(world, seeds, by_heart, by_tools, end):
    tools = make_solver(by_tools)
    outcome = escalate(
        seeds, world, 2, 0, closed_book=make_solver(by_heart), with_tools=tools, seed=0
    )
    assert outcome.rounds == [{end: len(seeds)}]
    assert len(outcome.kept) == (len(seeds) if end == "kept" else 0)
    assert {why for _, why in outcome.out} == (set() if end == "kept" else {end})
    assert tools.tried == ([] if end == TOO_EASY else [task.id for task in seeds])


def test_easy_questions_are_upgraded_with_the_same_answer(world, seeds):
    easy_below = 12  # pages; questions with fewer are answered closed-book
    heart = make_solver(lambda task: count_pages(task, world) < easy_below)
    outcome = escalate(
        seeds, world, 2, 4, closed_book=heart, with_tools=make_solver(ALWAYS), seed=0
    )
    seeds_by_id = {task.id: task for task in seeds}
    upgraded = [task for task in outcome.kept if task.id not in seeds_by_id]
    assert len(upgraded) >= 4 and outcome.rounds[0]["upgraded"] >= len(upgraded)
    grammar = load_grammar(world.graph, world.scheme)
    for task in upgraded:
        query = from_text(task.query)
        assert evaluate_query(query, world.graph) == {task.answer} and not find_faults(
            query, world.graph
        )
        assert read_question(task.question, grammar) == normalise_query(query)
        assert outcome.stages[task.id] and task.closed_book == 0.0 and task.with_tools == 1.0
        assert count_pages(task, world) >= easy_below
    assert max(len(outcome.stages[task.id]) for task in upgraded) >= 2
    assert all(count_pages(task, world) < easy_below for task, _ in outcome.out)
    assert {why for _, why in outcome.out} <= {TOO_EASY, NO_UPGRADE, ASKED_BEFORE}
    ends = sum(count for ends in outcome.rounds for end, count in ends.items() if end != "upgraded")
    before = sum(why == ASKED_BEFORE for _, why in outcome.out)
    assert ends + before == len(seeds) == len(outcome.kept) + len(outcome.out)


def test_questions_below_the_easy_rate_are_kept(world, seeds):
    def one_of_four(tasks, n):
        return [[True] + [False] * (n - 1) for _ in tasks]

    options = dict(closed_book=one_of_four, with_tools=make_solver(ALWAYS), seed=0)
    assert len(escalate(seeds, world, 4, 0, easy=0.25, **options).kept) == len(seeds)
    assert escalate(seeds, world, 4, 0, easy=0.2, **options).kept == []


def test_queries_are_unique_and_results_are_cached(world, seeds, tmp_path):
    heart, tools = make_solver(lambda task: count_pages(task, world) < 12), make_solver(ALWAYS)
    options = dict(closed_book=heart, with_tools=tools, seed=3, folder=tmp_path)
    first = escalate([*seeds, *seeds[:2]], world, 2, 2, **options)
    assert [(task.id, why) for task, why in first.out if why == ASKED_BEFORE][:2] == [
        (task.id, ASKED_BEFORE) for task in seeds[:2]
    ]
    assert len(heart.tried) == len({*heart.tried})
    tried = [*heart.tried], [*tools.tried]
    assert escalate([*seeds, *seeds[:2]], world, 2, 2, **options) == first
    assert (heart.tried, tools.tried) == tried


def test_seed_questions_are_processed_independently(world, seeds):
    options = dict(
        closed_book=make_solver(lambda t: count_pages(t, world) < 12),
        with_tools=make_solver(ALWAYS),
    )
    all_of_them = escalate(seeds, world, 1, 2, seed=1, **options)
    alone = escalate(seeds[:1], world, 1, 2, seed=1, **options)
    assert [task for task in all_of_them.kept if task.answer == seeds[0].answer][:1] == alone.kept


def test_invalid_input_is_rejected(world, seeds):
    options = dict(closed_book=make_solver(NEVER), with_tools=make_solver(ALWAYS), seed=0)
    with pytest.raises(ValueError, match="rounds=-1"):
        escalate(seeds, world, 1, -1, **options)
    with pytest.raises(ValueError, match="'t' has no query"):
        escalate([Task("t", "Q?", "A", "search", "w")], world, 1, 0, **options)
