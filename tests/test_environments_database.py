"""Users of several turns and confirmations in the database environment.

Run: python -m pytest tests/test_environments_database.py
"""

import json

import pytest

from drlib.chat.tool_calls import ToolCall
from drlib.demonstrations.agentscaler import PATIENCE, READS, THANKS, UNHELPFUL
from drlib.environments import load_environment
from drlib.environments.database import DatabaseEnvironment
from drlib.environments.environment import demonstrate
from drlib.tools import Toolbox

NAMES = ("database:easy:user", "database:medium:user,confirm", "database:hard:confirm")


def play(environment, task, calls, answer="Done."):
    """Return the score and the observations of calls."""
    with environment.reset(task) as episode:
        shown = [episode.call(call.name, call.arguments).text for call in calls]
        return episode.verify(answer), shown


def solution(environment, task):
    """Return the calls of the scripted solution."""
    with Toolbox(None, environments={environment.name: environment}) as toolbox:
        results = demonstrate(environment, task, toolbox).tool_results
    return [ToolCall(result.tool, result.arguments) for result in results]


def is_change(call):
    return call.name.split("_")[0] not in (*READS, "ask", "confirm")


@pytest.mark.parametrize("name", NAMES)
def test_every_task_can_be_solved_and_none_by_its_end_alone(name):
    environment = load_environment(name)
    for task in environment.tasks(40, 1) + environment.tasks(10, 1, "test"):
        calls = solution(environment, task)
        score, shown = play(environment, task, calls)
        assert score == 1.0 and UNHELPFUL not in shown
        assert play(environment, task, [])[0] == 0.0
        assert play(environment, task, calls, None)[0] == 0.0
        if ":user" in name:
            assert shown[-1] == THANKS and shown.count(THANKS) == 1
        if "confirm" in name:
            assert any(map(is_change, calls))


def test_wishes_come_one_after_the_other_and_in_parts():
    environment = load_environment("database:medium:user")
    asked = 0
    for task in environment.tasks(40, 2):
        reference = environment._reference(task)
        calls = solution(environment, task)
        spoken = [call.arguments["message"] for call in calls if call.name == "ask"]
        assert spoken.count("Done.") == len(reference.calls)
        asked += sum(message.startswith("Which") for message in spoken)
        wishes = [f"{step.said} {step.table}" for step in reference.steps]
        assert wishes[0] in task.question
        assert not [wish for wish in wishes[1:] if wish in task.question]
    assert asked > 10


def test_a_value_is_told_only_when_it_is_asked_for():
    environment = load_environment("database:easy:user")
    task = next(t for t in environment.tasks(60, 3) if environment._user(t).missing)
    name = environment._user(task).missing
    value = environment._reference(task).calls[0].arguments[name]
    assert f" {value}" not in task.question

    def ask(*messages):
        calls = [ToolCall("ask", {"message": message}) for message in messages]
        return play(environment, task, calls)[1]

    words = name.replace("_", " ")
    assert ask(f"Tell me the {words}.") == [f"The {words} is {value}."]
    assert ask("Done.", f"The {words.upper()}?") == [UNHELPFUL, f"The {words} is {value}."]
    # a user without patience leaves, and does not come back
    gone = ask(*["Done."] * (PATIENCE + 1), f"Which {words}?")
    assert gone == [UNHELPFUL] * PATIENCE + [THANKS] * 2
    wrong = dict(environment._reference(task).calls[0].arguments) | {name: "9"}
    guess = ToolCall(environment._reference(task).calls[0].name, wrong)
    others = [call for call in solution(environment, task) if call.name == "ask"]
    assert play(environment, task, [guess, *others])[0] == 0.0


def confirming():
    """Yield (environment, task, confirm, change) of tasks with one change."""
    environment = load_environment("database:easy:confirm")
    for task in environment.tasks(40, 4):
        calls = solution(environment, task)
        if len(calls) == 2:
            yield environment, task, *calls


def test_a_change_without_confirmation_fails_whatever_the_state():
    for environment, task, confirm, change in confirming():
        assert play(environment, task, [confirm, change])[0] == 1.0
        assert play(environment, task, [change])[0] == 0.0
        assert play(environment, task, [change, confirm])[0] == 0.0  # too late
        assert play(environment, task, [confirm, confirm, change])[0] == 1.0
        plain = load_environment("database:easy")
        same = json.loads(task.environment)
        assert plain._reference(task).calls == (change,) and same["seed"] >= 0
        with plain.reset(task) as episode:  # the same end is solved without the option
            episode.call(change.name, change.arguments)
            assert episode.verify("Done.") == 1.0
        # a call that fails changes nothing
        failed = ToolCall(change.name, {**change.arguments, "nothing": "1"})
        assert play(environment, task, [failed, confirm, change])[0] == 1.0
        reads = ToolCall("get_book", {"book_id": "1"})
        assert play(environment, task, [reads, confirm, change])[0] == 1.0


def test_one_confirmation_is_for_one_call():
    for environment, task, confirm, change in confirming():
        with environment.reset(task) as episode:
            for call in (confirm, change):
                episode.call(call.name, call.arguments)
            assert not episode.has_unconfirmed
            again = episode.call(change.name, change.arguments)
            assert episode.has_unconfirmed == again.ok  # a removed row cannot be removed again


def test_a_repaired_change_still_fails():
    for environment, task, confirm, change in confirming():
        if change.name.startswith("set_"):
            key = next(name for name in change.arguments if name.endswith("_id"))
            other = next(name for name in change.arguments if name != key)
            wrong = ToolCall(change.name, {**change.arguments, other: "nothing-1"})
            assert play(environment, task, [wrong, confirm, change])[0] == 0.0
            return
    raise AssertionError("no task changes a row")


def test_the_user_agrees_to_exactly_one_wished_change():
    for environment, task, confirm, change in confirming():
        text = confirm.arguments["change"]

        def agreed(text, environment=environment, task=task):
            return play(environment, task, [ToolCall("confirm", {"change": text})])[1] == ["Yes."]

        assert agreed(text) and agreed(f"May I {text}, please?") and agreed(text.upper())
        values = [*change.arguments.values()]
        verb, table = change.name.split("_")
        others = {"add", "change", "remove"} - {text.split()[0]}
        for wrong in (
            "",
            "yes",
            verb,
            text.replace(values[0], "77"),
            text.replace(table, "thing"),
            f"{text} and day-77",  # values that are not part of it
            f"{text}, {values[0]}",
            f"{others.pop()} {text}",  # two verbs
            " ".join(f"{t} {table} {' '.join(values)}" for t in ("add", "change", "remove")),
        ):
            assert not agreed(wrong), wrong
            wishes = [ToolCall("confirm", {"change": wrong}), change]
            assert play(environment, task, wishes)[0] == 0.0


def test_later_wishes_cannot_be_confirmed_in_advance():
    environment = load_environment("database:medium:user,confirm")
    tested = 0
    for task in environment.tasks(40, 5):
        calls = solution(environment, task)
        later = [c for c in calls if c.name == "confirm"][-1]
        reference = environment._reference(task)
        last = reference.calls[-1]
        if is_change(last) and len(reference.calls) > 1:
            tested += play(environment, task, [later])[1] == ["No, I did not ask for that."]
    assert tested > 10


def test_options_are_checked_and_leave_the_other_tasks_alone():
    with pytest.raises(ValueError, match="options are user, confirm"):
        load_environment("database:easy:users")
    with pytest.raises(ValueError, match="easy, medium, hard"):
        load_environment("database:simple:user")
    assert load_environment("database::user").tier == "easy"
    assert DatabaseEnvironment("hard:confirm,user").options == ("confirm", "user")
    plain = load_environment("database:easy")
    assert not {"ask", "confirm"} & {t.name for t in plain.tools(plain.tasks(1, 0)[0])}
