"""Alternatives to a step cannot be told apart by their form or by mentioned names.

Run: python -m pytest tests/test_demonstrations_alternatives.py
"""

import random
import re
from types import SimpleNamespace

import pytest

from drlib.chat.template import ChatIds
from drlib.chat.tool_calls import ToolCall, parse, render_call
from drlib.demonstrations.agentfounder import CloseTeacher, Teacher, higher_order, list_decisions
from drlib.demonstrations.oracle import Demonstrator, DemonstratorFaults
from drlib.questions.chains import SearchQuestions, make_python_task
from drlib.trajectory import ToolResult
from drlib.worlds import Names, fictional_world, load_world
from drlib.worlds.small import snippet
from tests.agent_examples import tour_chat
from tests.test_training_sft import first_documents

chat = tour_chat
WORLD = fictional_world("alternatives", Names.from_world(load_world("tour")), 24)
TITLES = sorted(WORLD.entities)
RELATIONS = {relation for entity in WORLD.entities.values() for relation in entity.facts}


def tool(name, arguments, *, world):
    """Return the requested page without a server; every sum is 12."""
    query = arguments.get("query")
    if name == "python":
        return ToolResult(name, arguments, "12", True, None)
    if not isinstance(query, list) or query[0] not in WORLD.entities:
        return ToolResult(name, arguments, "no such page", False, "arguments")
    text = f"1. [{query[0]}](x)\n{snippet(WORLD.entities[query[0]])}"
    return ToolResult(name, arguments, text, True, None)


def decisions(faults, teacher, questions=120, n=3, sums=False):
    """Yield (text read last, options, index of the real step) of each decision."""
    rng, demonstrator = random.Random(3), Demonstrator(faults, TITLES)
    source = SearchQuestions(WORLD, None, max_hops=2)
    for number in range(questions):
        task = make_python_task(rng) if sums and number % 2 else source.draw(2, rng)
        episode = demonstrator.play(task, SimpleNamespace(call=tool), rng, WORLD)
        row = higher_order(episode.messages, True, "past", teacher, n, rng)
        for read, options, real in list_decisions(row):
            yield f"{read[0]}\n{read[-1]}", options, real


def name_of(option):
    query = getattr(parse(option), "arguments", {}).get("query")
    return query[0] if isinstance(query, list) and query else None


def accuracy_of_rule(rule, seen):
    rng = random.Random(0)
    right = 0
    for read, options, real in seen:
        fit = [i for i, option in enumerate(options) if rule(read, option)]
        right += rng.choice(fit or range(len(options))) == real
    return right / len(seen)


def is_mentioned(read, option):
    return bool(name_of(option)) and name_of(option) in read


def test_form_and_mention_do_not_reveal_the_real_step():
    """Guessing at random finds a quarter."""
    flawless = DemonstratorFaults(0, 0, 0, 0, 0)
    far, close = (
        [*decisions(flawless, teacher_class(TITLES, RELATIONS))]
        for teacher_class in (Teacher, CloseTeacher)
    )
    assert len(close) == 240
    assert accuracy_of_rule(is_mentioned, far) > 0.95  # the weakness of far alternatives
    assert accuracy_of_rule(is_mentioned, close) < 0.5
    assert accuracy_of_rule(lambda _, option: bool(name_of(option)), close) < 0.33
    for read, options, _ in close:
        shapes = {
            re.sub(r'\["[^"]*"\]', "[]", option.partition("</think>")[2]) for option in options
        }
        assert shapes == {render_call("search", {"query": []})}
        requests = {
            (name_of(o), *re.findall("|".join(RELATIONS), o.split("</think>")[0])) for o in options
        }
        assert len(requests) == 4, "an option that asks for the same in other words is right too"
        assert sum(is_mentioned(read, option) for option in options) >= 2


def test_alternatives_share_the_form_of_a_faulty_step():
    """Malformed calls and programs too: every option has the form of the real step."""
    faulty = DemonstratorFaults(0, 0, 1, 1, 0)
    action_forms = set()
    for _, options, real in decisions(faulty, CloseTeacher(TITLES, RELATIONS), sums=True):
        action = parse(options[real])
        assert isinstance(action, ToolCall)
        forms = {type(parse(o).arguments.get("query")) for o in options}
        assert len(forms) == 1 and {parse(o).name for o in options} == {action.name}
        assert len({*options}) == 4
        action_forms.add((action.name, *forms))
    assert action_forms == {("search", list), ("search", str), ("python", type(None))}


def test_alternative_programs_use_the_same_numbers():
    teacher = CloseTeacher(TITLES, RELATIONS)
    code = "print(128*3 + 45)"
    step = f"<think>Compute it.</think>{render_call('python', {'code': code})}"
    messages = [{"role": "user", "content": "What is 128*3 + 45?"}]
    others = teacher.alternatives(messages, step, 4, random.Random(0))
    for other in others:
        numbers = sorted(re.findall(r"\d+", parse(other).arguments["code"]))
        assert numbers == ["128", "3", "45"] and other != step
    with pytest.raises(ValueError, match="found .* alternatives of 50"):
        teacher.alternatives(messages, step, 50, random.Random(0))


def test_alternatives_setting_changes_only_higher_order_rows(chat):
    assert isinstance(chat, ChatIds)
    names = Names.from_world(load_world("tour"))
    far = first_documents(chat, names, pretrain__higher_order_share=1.0)
    close = first_documents(
        chat, names, pretrain__higher_order_share=1.0, pretrain__higher_order_alternatives="read"
    )
    assert far != close
    default_rows = first_documents(chat, names, pretrain__first_order_share=1.0)
    assert (
        first_documents(
            chat, names, pretrain__first_order_share=1.0, pretrain__higher_order_alternatives="read"
        )
        == default_rows
    )
