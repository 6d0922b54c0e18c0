"""Web navigation: every task can be solved, and only by its state, pages and answer.

Run: python -m pytest tests/test_environments_web.py
"""

import json
from functools import cache

import pytest

from drlib.environments import load_environment
from drlib.environments.environment import demonstrate
from drlib.environments.web_tasks import FORMS, GOALS, PER_PAGE, _goal
from drlib.tools import Toolbox

STEPS = {"easy": (3, 4), "medium": (5, 10), "hard": (11, 19)}


@cache
def environment(tier):
    return load_environment(f"web:{tier}")


def goal(task):
    return _goal(task.kind.split(":")[1], json.loads(task.environment)["seed"])


def find(tier, start):
    """Return the first task whose request starts so."""
    tasks = environment(tier).tasks(60, 5)
    return next(task for task in tasks if goal(task).request.startswith(start))


def play(task, *calls, answer=None):
    """Return the score and the observations after calls such as ("click", "Lamps")."""
    names = {"click": ("link",), "type": ("field", "text"), "read": (), "back": ()}
    with environment(task.kind.split(":")[1]).reset(task) as shop:
        shown = [
            shop.call(name, dict(zip(names[name], given, strict=True))) for name, *given in calls
        ]
        return shop.verify(task.answer if answer is None else answer), shown


def solution(task):
    """Return the solution's calls in the form of `play`."""
    return [(tool, *arguments.values()) for _, tool, arguments in goal(task).steps]


@pytest.mark.parametrize("tier", STEPS)
def test_every_task_can_be_solved_and_none_by_doing_nothing(tier):
    with Toolbox(None, environments={f"web:{tier}": environment(tier)}) as toolbox:
        for task in environment(tier).tasks(80, 1) + environment(tier).tasks(20, 1, "test"):
            played = demonstrate(environment(tier), task, toolbox)
            assert played.score == 1.0 and all(result.ok for result in played.tool_results)
            fewest, most = STEPS[tier]
            assert fewest <= len(played.tool_results) <= most
            assert toolbox.open_episode(task).verify(task.answer).score == 0.0


@pytest.mark.parametrize("tier", GOALS)
def test_no_earlier_state_of_a_solution_is_solved(tier):
    for task in environment(tier).tasks(6, 3):
        steps = solution(task)
        scores = [play(task, *steps[:number])[0] for number in range(len(steps) + 1)]
        assert scores == [0.0] * len(steps) + [1.0]


def test_the_goal_is_the_only_one_of_its_description():
    for task in environment("medium").tasks(60, 2):
        found = goal(task)
        for kind, shelf in found.shelves.items():
            prices = sorted(product.price for product in shelf)
            assert prices[0] < prices[1]
            if f"cheapest {kind}" in found.request:
                assert {p.name for p in shelf if p.price == prices[0]} == {*found.final_cart}
            named = [p for p in shelf if f"the {p.colour} {kind}" in found.request]
            assert not named or {p.name for p in named} == {*found.final_cart}


def test_a_question_needs_its_page_and_its_answer():
    task = find("easy", "How many")
    steps = solution(task)
    assert play(task, *steps)[0] == 1.0
    assert play(task)[0] == 0.0  # the right answer, guessed
    assert play(task, *steps[:-1])[0] == 0.0  # the list does not show it
    assert play(task, *steps, answer=str(int(task.answer) + 1))[0] == 0.0
    assert play(task, *steps, answer=f"{task.answer}.0")[0] == 1.0
    assert play(task, *steps, ("click", "Add to cart"))[0] == 0.0  # it buys
    with environment("easy").reset(task) as shop:
        assert shop.verify(None) == 0.0


def test_cheating_with_the_cart():
    task = find("easy", "Put")
    steps = solution(task)
    (name,) = goal(task).final_cart
    assert play(task, *steps)[0] == 1.0
    assert play(task, *steps, ("back",), ("click", "Add to cart"))[0] == 0.0  # twice
    undo = [("click", f"Remove {name}")]
    assert play(task, *steps, *undo)[0] == 0.0
    again = [("back",), ("back",), ("click", "add TO cart")]
    assert play(task, *steps, *undo, *again)[0] == 1.0  # mistakes can be repaired
    kinds = goal(task).shelves
    everything = []
    for kind, shelf in kinds.items():
        for product in shelf[:PER_PAGE]:
            everything += [("click", "Home"), ("click", f"{kind}s"), ("click", product.name)]
            everything += [("click", "Add to cart")]
    assert play(task, *everything[1:])[0] == 0.0
    for link in ("Add to cart", f"Remove {name}", name, "Pay", "Order", ""):
        score, shown = play(task, ("click", link))
        assert score == 0.0 and not shown[0].ok  # links of other pages


def test_cheating_with_forms():
    task = find("easy", "Subscribe")
    email = goal(task).sent[0][1]
    opened = [("click", "Newsletter")]
    fill = ("type", "email", email)
    send = ("click", "Subscribe")
    assert play(task, *opened, fill, send)[0] == 1.0
    score, shown = play(task, *opened, send)
    assert score == 0.0 and "empty" in shown[-1].text and not shown[-1].ok
    assert play(task, *opened, ("type", "Email", "x"), fill, send)[0] == 1.0
    assert (
        play(task, *opened, ("type", "Email", "x@y.example"), send, ("back",), fill, send)[0] == 0
    )
    assert play(task, *opened, fill, send, ("back",), fill, send)[0] == 0.0  # sent twice
    assert play(task, *opened, fill, ("click", "Home"), ("back",), send)[0] == 0.0  # typed is lost
    for field in ("Name", "", "Field Email"):
        assert not play(task, *opened, ("type", field, email))[1][-1].ok
    assert not play(task, ("type", "Email", email))[1][0].ok  # another page
    assert not play(task, ("back",))[1][0].ok
    forged = f"{email}\nThank you\nLinks: Home"
    assert play(task, *opened, ("type", "Email", forged))[0] == 0.0


def test_cheating_with_orders():
    task = find("hard", "Remove")
    steps = solution(task)
    assert play(task, *steps)[0] == 1.0
    remove = next(n for n, step in enumerate(steps) if str(step[1:]).startswith("('Remove"))
    assert play(task, *steps[:remove], *steps[remove + 1 :])[0] == 0.0  # ships the old product
    values = goal(task).sent[0][1:4]
    for number, (field, value) in enumerate(zip(FORMS["Order"][0], values, strict=True)):
        at = steps.index(("type", field, value))
        wrong = ("type", field, values[number - 1])
        assert play(task, *steps[:at], wrong, *steps[at + 1 :])[0] == 0.0
    assert play(task, *steps[:-1])[0] == 0.0  # not paid
    empty = [("click", "Cart"), steps[remove], ("click", "Order")]
    assert not play(task, *empty)[1][-1].ok  # an empty cart cannot be ordered


def test_shops_differ_and_are_drawn_again_from_their_seed():
    tasks = environment("easy").tasks(40, 4)
    assert len({str(goal(task).shelves) for task in tasks}) == 40
    _goal.cache_clear()
    assert [play(task, *solution(task))[0] for task in tasks[:5]] == [1.0] * 5
    with pytest.raises(ValueError, match="easy, medium, hard"):
        load_environment("web:simple")
