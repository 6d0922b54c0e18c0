"""Tests of search plans and of the questions that they do not answer.

Run: python -m pytest tests/test_questions_search_plan.py
"""

import pytest

from drlib.questions.queries import And, Count, Diff, Or, Proj, to_text
from drlib.questions.search_plan import SearchStep, can_solve, parse_pages, plan_searches
from drlib.task import Task
from drlib.worlds import SmallWorld
from drlib.worlds.small import Entity

# Only the Gull is black and from Oban; each single fact also holds for another boat.
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


def test_chain_plan_has_one_step_per_value():
    task = Task("t", "?", "Oban", "search", "w", 2, "Auk", ("skipper", "home"))
    first, second = plan_searches(task)
    assert first == SearchStep(("Auk",), ("skipper",)) and second == SearchStep((0,), ("home",))
    assert first.query(first.titles([])) == "Auk"
    assert second.query(second.titles(["Bob"])) == "Bob"


def test_condition_plan_ends_with_a_holder_search():
    task = engine_task(And((BLACK_LIKE_TERN, WHERE_BOB_LIVES)), "Gull")
    *each, last = plan_searches(task)
    assert each == [SearchStep(("Tern",), ("hull",)), SearchStep(("Bob",), ("home",))]
    assert last == SearchStep((0, 1), ("hull", "harbour"), is_holder=True)
    assert last.query(last.titles(["black", "Oban"])) == "hull black; harbour Oban"


def test_nested_condition_is_searched_first():
    task = engine_task(Proj("home", Proj("skipper of", Proj("skipper", "Auk"))), "?")
    assert plan_searches(task) == [
        SearchStep(("Auk",), ("skipper",)),
        SearchStep((0,), ("skipper",), is_holder=True),
        SearchStep((1,), ("home",)),
    ]


def test_holder_must_have_all_facts():
    text = "1. [Auk](cldr:Auk)\nhull green; harbour Oban.\n2. [Gull](cldr:Gull)\n"
    text += "harbour Oban; hull black."
    pages = parse_pages(text)
    assert pages == {"Auk": ["hull green", "harbour Oban"], "Gull": ["harbour Oban", "hull black"]}
    both = SearchStep((0, 1), ("hull", "harbour"), is_holder=True)
    assert both.read(pages, ["black", "Oban"]) == "Gull"
    assert both.read(pages, ["green", "Oban"]) == "Auk"
    assert both.read(pages, ["white", "Oban"]) is None
    assert both.read(pages, ["blac", "Oban"]) is None, "names match as whole words"


@pytest.mark.parametrize(
    "query",
    [
        Count(BLACK_LIKE_TERN),
        Diff(WHERE_BOB_LIVES, BLACK_LIKE_TERN),
        Proj("hull of", Proj("hull", Or(("Tern", "Auk")))),
        And((BLACK_LIKE_TERN, Proj("skipper", "Auk"))),  # a value already identifies it
    ],
)
def test_unsupported_queries_have_no_plan(query, world):
    with pytest.raises(ValueError, match="cannot answer|already identifies"):
        plan_searches(engine_task(query, "Gull"))
    assert not can_solve(engine_task(query, "Gull"), world, 2, 6)


def test_python_task_has_no_plan():
    with pytest.raises(ValueError, match="t has neither relations nor a query"):
        plan_searches(Task("t", "What is 2 times 3?", "6", "python", "python"))


def test_can_solve_respects_the_call_limit(world):
    task = engine_task(And((BLACK_LIKE_TERN, WHERE_BOB_LIVES)), "Gull")
    assert can_solve(task, world, results=1, max_calls=3)
    assert not can_solve(task, world, results=1, max_calls=2), "three searches"
    wrong = engine_task(And((BLACK_LIKE_TERN, WHERE_BOB_LIVES)), "Auk")
    assert not can_solve(wrong, world, results=1, max_calls=3)


def test_can_solve_rejects_early_answers(world):
    task = engine_task(And((BLACK_LIKE_TERN, WHERE_BOB_LIVES)), "Gull")
    shown = {hit.title for name in ("Tern", "Bob") for hit in world.search(name, 2)}
    assert "Gull" not in shown and can_solve(task, world, results=2, max_calls=3)
    # another page that names the Tern is in the same results
    rival = Entity("Gull", "boat", ROWS["Gull"][1] | {"rival": "Tern"})
    others = [Entity(title, *rest) for title, rest in ROWS.items() if title != "Gull"]
    revealing_world = SmallWorld([rival, *others])
    assert "Gull" in [hit.title for hit in revealing_world.search("Tern", 2)]
    assert "Gull" in [hit.title for hit in revealing_world.search("hull black; harbour Oban", 2)]
    assert not can_solve(task, revealing_world, results=2, max_calls=3)


def test_can_solve_rejects_ambiguous_descriptions(world):
    # Tern and Auk both belong to Bob, so the first result is arbitrary
    query = Proj("hull", Proj("skipper of", Proj("skipper", "Auk")))
    steps = plan_searches(engine_task(query, "green"))
    hit, *_ = world.search(steps[1].query(["Bob"]), 1)
    lucky = {"Auk": "green", "Tern": "black"}[hit.title]
    assert not can_solve(engine_task(query, lucky), world, 2, 6)
