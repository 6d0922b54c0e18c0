"""Tests of search plans and of the questions that they do not answer.

Run: python -m pytest tests/test_questions_search_plan.py
"""

import pytest

from drlib.questions.queries import And, Count, Diff, Or, Proj, to_text
from drlib.questions.search_plan import SearchStep, can_solve, parse_pages, plan_searches
from drlib.task import Task
from drlib.worlds import SmallWorld
from drlib.worlds.small import Entity

# Three boats and two people. The Gull alone is black and of Oban; each fact has another boat too.
ROWS = {
    "Gull": ("boat", {"hull": "black", "harbour": "Oban", "skipper": "Ann"}),
    "Tern": ("boat", {"hull": "black", "harbour": "Lerwick", "skipper": "Bob"}),
    "Auk": ("boat", {"hull": "green", "harbour": "Oban", "skipper": "Bob"}),
    "Ann": ("person", {"home": "Lerwick"}),
    "Bob": ("person", {"home": "Oban"}),
}
BLACK_LIKE_TERN = Proj("hull of", Proj("hull", "Tern"))
WHERE_BOB_LIVES = Proj("harbour of", Proj("home", "Bob"))


@pytest.fixture(scope="module")
def world():
    return SmallWorld([Entity(title, kind, facts) for title, (kind, facts) in ROWS.items()])


def engine_task(query, answer, hops=2):
    return Task("t", "Which?", answer, "search", "w", hops, query=to_text(query), conditions=2)


def test_a_chain_is_read_value_by_value():
    task = Task("t", "?", "Oban", "search", "w", 2, "Auk", ("skipper", "home"))
    first, second = plan_searches(task)
    assert first == SearchStep(("Auk",), ("skipper",)) and second == SearchStep((0,), ("home",))
    assert first.query(first.titles([])) == "Auk"
    assert second.query(second.titles(["Bob"])) == "Bob"


def test_conditions_are_looked_up_first_and_then_who_has_them_all():
    task = engine_task(And((BLACK_LIKE_TERN, WHERE_BOB_LIVES)), "Gull")
    *each, last = plan_searches(task)
    assert each == [SearchStep(("Tern",), ("hull",)), SearchStep(("Bob",), ("home",))]
    assert last == SearchStep((0, 1), ("hull", "harbour"), is_holder=True)
    assert last.query(last.titles(["black", "Oban"])) == "hull black; harbour Oban"


def test_a_condition_on_the_way_is_found_before_it_is_read():
    task = engine_task(Proj("home", Proj("skipper of", Proj("skipper", "Auk"))), "?")
    assert plan_searches(task) == [
        SearchStep(("Auk",), ("skipper",)),
        SearchStep((0,), ("skipper",), is_holder=True),
        SearchStep((1,), ("home",)),
    ]


def test_the_holder_has_all_facts_and_not_some():
    text = "1. [Auk](cldr:Auk)\nhull green; harbour Oban.\n2. [Gull](cldr:Gull)\n"
    text += "harbour Oban; hull black."
    pages = parse_pages(text)
    assert pages == {"Auk": ["hull green", "harbour Oban"], "Gull": ["harbour Oban", "hull black"]}
    both = SearchStep((0, 1), ("hull", "harbour"), is_holder=True)
    assert both.read(pages, ["black", "Oban"]) == "Gull"
    assert both.read(pages, ["green", "Oban"]) == "Auk"
    assert both.read(pages, ["white", "Oban"]) is None
    assert both.read(pages, ["blac", "Oban"]) is None, "a name is whole"


@pytest.mark.parametrize(
    "query",
    [
        Count(BLACK_LIKE_TERN),
        Diff(WHERE_BOB_LIVES, BLACK_LIKE_TERN),
        Proj("hull of", Proj("hull", Or(("Tern", "Auk")))),
        And((BLACK_LIKE_TERN, Proj("skipper", "Auk"))),  # a value is alone already
    ],
)
def test_what_searches_of_facts_do_not_answer_is_refused(query, world):
    with pytest.raises(ValueError, match="cannot answer|already identifies"):
        plan_searches(engine_task(query, "Gull"))
    assert not can_solve(engine_task(query, "Gull"), world, 2, 6)


def test_a_sum_has_no_look_up():
    with pytest.raises(ValueError, match="t has neither relations nor a query"):
        plan_searches(Task("t", "What is 2 times 3?", "6", "python", "python"))


def test_a_question_is_kept_when_short_searches_answer_it(world):
    task = engine_task(And((BLACK_LIKE_TERN, WHERE_BOB_LIVES)), "Gull")
    assert can_solve(task, world, results=1, max_calls=3)
    assert not can_solve(task, world, results=1, max_calls=2), "three searches"
    wrong = engine_task(And((BLACK_LIKE_TERN, WHERE_BOB_LIVES)), "Auk")
    assert not can_solve(wrong, world, results=1, max_calls=3)


def test_a_question_whose_answer_is_shown_too_early_is_not(world):
    task = engine_task(And((BLACK_LIKE_TERN, WHERE_BOB_LIVES)), "Gull")
    shown = {hit.title for name in ("Tern", "Bob") for hit in world.search(name, 2)}
    assert "Gull" not in shown and can_solve(task, world, results=2, max_calls=3)
    # another page that names the Tern is shown beside it
    rival = Entity("Gull", "boat", ROWS["Gull"][1] | {"rival": "Tern"})
    others = [Entity(title, *rest) for title, rest in ROWS.items() if title != "Gull"]
    told = SmallWorld([rival, *others])
    assert "Gull" in [hit.title for hit in told.search("Tern", 2)]
    assert "Gull" in [hit.title for hit in told.search("hull black; harbour Oban", 2)]
    assert not can_solve(task, told, results=2, max_calls=3)


def test_a_description_that_several_fit_is_not_left_to_luck(world):
    # Tern and Auk are Bob's: which of them the search shows first is luck
    query = Proj("hull", Proj("skipper of", Proj("skipper", "Auk")))
    steps = plan_searches(engine_task(query, "green"))
    hit, *_ = world.search(steps[1].query(["Bob"]), 1)
    lucky = {"Auk": "green", "Tern": "black"}[hit.title]
    assert not can_solve(engine_task(query, lucky), world, 2, 6)
