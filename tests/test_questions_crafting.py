"""Tests of model-written questions over HTTP, with a scripted model that makes each kind of error.

Run: python -m pytest tests/test_questions_crafting.py
"""

import json
import random
import re
from fractions import Fraction

import pytest

from drlib.endpoint import ChatEndpoint
from drlib.questions.crafting import (
    CHECKS,
    WISHES,
    count_outcomes,
    craft,
    evaluate_expression,
    number_statements,
    sample_statements,
)
from drlib.questions.entity_memory import EntityMemory
from drlib.questions.replies import Replies
from drlib.task import is_correct
from tests.scripted_server import Scripted


def make_memory():
    memory = EntityMemory()
    memory.add_fact("Ottermaid", "captain", "Silvan Pookley", "ferries.md")
    memory.add_fact("Ottermaid", "launch year", "1871", "ferries.md")
    memory.add_fact("Grey Apology", "launch year", "1858", "ferries.md")
    memory.add_fact("Silvan Pookley", "instrument", "tin whistle", "people.md")
    memory.add_fact("Silvan Pookley", "birth year", "1839", "people.md")
    memory.add("Ottermaid", "The Ottermaid cost 1,250 crowns.", "ferries.md")
    return memory


def find_numbers(shown, *parts):
    """Return the numbers of the statements with these texts in a prompt's list."""
    lines = [line for line in shown.splitlines() if re.match(r"\d+\. ", line)]
    return [int(line.split(".")[0]) for part in parts for line in lines if part in line]


CORRECT = {
    "fact": ("Who is the captain of the Ottermaid?", "Silvan Pookley", ["captain"], ""),
    "numeric": (
        "How old was the captain of the Ottermaid when she was launched?",
        "32",
        ["launch year of Ottermaid", "birth year"],
        "1871 - 1839",
    ),
    "multi-hop": (
        "Which instrument does the captain of the Ottermaid play?",
        "tin whistle",
        ["captain", "instrument"],
        "",
    ),
    "report": ("Report on the Ottermaid.", "", ["captain", "launch year of O", "cost"], ""),
}


class Model:
    """Scripted model: writes `RIGHT` with `changes`, and answers from `answers` or correctly."""

    def __init__(self, changes=None, answers=None):
        self.changes, self.answers, self.read = changes or {}, answers or {}, []

    def say(self, messages):
        system, user = (message["content"] for message in messages)
        if system.startswith("You write"):
            style = next(s for s in WISHES if WISHES[s].format(entity="Ottermaid") in system)
            question, answer, parts, expression = CORRECT[style]
            reply = {
                "question": question,
                "answer": answer,
                "statements": find_numbers(user, *parts),
                "expression": expression,
            }
            for name, value in self.changes.get(style, {}).items():
                reply[name] = value(user) if callable(value) else value
            return f"<think>hm {{}}</think>```json\n{json.dumps(reply)}\n```"
        self.read.append(user)
        style = next((s for s in CORRECT if CORRECT[s][0] == user), "fact")
        if style in self.answers:
            return self.answers[style]
        return (
            str(find_numbers(system, *CORRECT[style][2]))
            if style == "report"
            else CORRECT[style][1]
        )


def craft_questions(tmp_path, model, styles=tuple(WISHES), **how):
    with Scripted(model.say) as server:
        replies = Replies(
            ChatEndpoint(server.url, "scripted"), tmp_path / "r.jsonl", calls=99, **how
        )
        found = craft(make_memory(), [("Ottermaid", style) for style in styles], replies)
        return found, server.asked


def test_valid_replies_become_tasks_and_reports(tmp_path):
    found, asked = craft_questions(tmp_path, Model())
    assert [crafted.reason for crafted in found] == [""] * 4 and asked == 8
    for crafted in found[:3]:
        task = crafted.task("tern")
        assert (task.question, task.start) == (CORRECT[crafted.style][0], "Ottermaid")
        assert is_correct(CORRECT[crafted.style][1], task)
    assert found[2].task("tern").hops == 2
    assert len({crafted.task("tern").id for crafted in found[:3]}) == 3
    assert {crafted.text for crafted in found[3].known} > {"The Ottermaid cost 1,250 crowns."}
    assert found[3].known[0].sources == ("ferries.md",)
    with pytest.raises(ValueError, match="it is a report"):
        found[3].task("tern")


def test_cached_replies_are_not_requested_again(tmp_path):
    first, asked = craft_questions(tmp_path, Model())
    again, none = craft_questions(tmp_path, Model())
    assert (again, asked, none) == (first, 8, 0)


CAPTAIN = "The captain of Ottermaid is Silvan Pookley."
ERRORS = [
    ("fact", {"question": ""}, "it cannot be read"),
    ("fact", {"statements": []}, "it cannot be read"),
    ("fact", {"statements": [99]}, "it cannot be read"),
    ("fact", {"statements": [True]}, "it cannot be read"),
    ("fact", {"answer": ["Silvan Pookley"]}, "it cannot be read"),
    ("fact", {"question": "Who is the captain of the ferry?"}, "it does not say what it is about"),
    ("fact", {"question": "Is Silvan Pookley captain of Ottermaid?"}, "it gives its answer away"),
    ("fact", {"question": "Who is in the statement on Ottermaid?"}, "it speaks of statements"),
    ("fact", {"answer": "Rufus Kelbrake"}, "no statement says its answer"),
    ("fact", {"answer": ""}, "no statement says its answer"),
    (
        "numeric",
        {"expression": "1871 - 1840", "answer": "31"},
        "its numbers are not in its statements",
    ),
    ("numeric", {"expression": "1871", "answer": "1871"}, "its numbers are not in its statements"),
    ("numeric", {"answer": "33"}, "its answer is not what it computes"),
    ("numeric", {"expression": "__import__('os').getpid()"}, "its expression cannot be computed"),
    ("numeric", {"expression": "1871 ** 1839"}, "its expression cannot be computed"),
    ("numeric", {"expression": "1871 / (1839 - 1839)"}, "its expression cannot be computed"),
    ("multi-hop", {"answer": "Silvan Pookley"}, "one statement is enough"),
    (
        "multi-hop",
        {"question": "Which instrument does Silvan Pookley of the Ottermaid play?"},
        "one statement is enough",
    ),
    ("report", {"statements": [1, 2]}, "it needs too few statements"),
]


@pytest.mark.parametrize(("style", "change", "reason"), ERRORS)
def test_invalid_replies_are_rejected(tmp_path, style, change, reason):
    model = Model({style: change})
    (crafted,), asked = craft_questions(tmp_path, model, [style])
    assert crafted.reason == reason and crafted.detail
    assert asked == 1 and not model.read  # no second call for rejected questions
    assert count_outcomes([crafted]) == {style: {reason: 1}}


def test_unlinked_statements_are_rejected(tmp_path):
    """The ferry's cost and a person's instrument share no entity."""
    change = {"statements": lambda user: find_numbers(user, "cost", "instrument")}
    (crafted,), _ = craft_questions(tmp_path, Model({"multi-hop": change}), ["multi-hop"])
    assert crafted.reason == "nothing links its statements"


@pytest.mark.parametrize(
    ("style", "answer", "reason"),
    [
        ("fact", "Rufus Kelbrake", "a reader comes to another answer"),
        ("multi-hop", "UNKNOWN", "a reader comes to another answer"),
        ("report", "[1]", "a reader does not need its statements"),
        ("report", "all of them", "the reader's list cannot be read"),
    ],
)
def test_reader_must_reach_the_same_answer(tmp_path, style, answer, reason):
    (crafted,), asked = craft_questions(tmp_path, Model(answers={style: answer}), [style])
    assert (crafted.reason, asked) == (reason, 2)


def test_repeated_questions_and_exhausted_budget(tmp_path):
    styles = ("fact", "fact", "multi-hop")
    found, _ = craft_questions(tmp_path, Model(), styles, workers=1)
    assert [crafted.reason for crafted in found] == ["", "asked before", ""]
    with Scripted(Model().say) as server:
        endpoint = ChatEndpoint(server.url, "scripted")
        replies = Replies(endpoint, tmp_path / "few.jsonl", calls=1, workers=1)
        found = craft(make_memory(), [("Ottermaid", "fact"), ("Ottermaid", "report")], replies)
    assert [crafted.reason for crafted in found] == ["budget: 1 calls are spent"] * 2


def test_unknown_style_and_entity_are_errors(tmp_path):
    replies = Replies(ChatEndpoint("http://127.0.0.1:1/v1", "x"), tmp_path / "r.jsonl", calls=1)
    with pytest.raises(ValueError, match="unknown style 'poem': choose one of fact, numeric"):
        craft(make_memory(), [("Ottermaid", "poem")], replies)
    with pytest.raises(ValueError, match="no statement about 'Nobody'"):
        craft(make_memory(), [("Nobody", "fact")], replies)
    assert {*CHECKS} == {*WISHES}


def test_sample_statements_covers_the_entity_and_neighbours():
    memory = make_memory()
    for number in range(30):
        memory.add_fact(f"boat {number}", "kind", "ferry", "boats.md")
    memory.add_fact("Ottermaid", "kind", "ferry", "boats.md")
    shown = sample_statements(memory, "Ottermaid", random.Random(3))
    texts = [crafted.text for crafted in shown]
    assert CAPTAIN in texts and "The instrument of Silvan Pookley is tin whistle." in texts
    assert not any("boat " in text for text in texts)  # a shared kind does not link entities
    assert len(set(texts)) == len(texts)
    assert number_statements(shown[:2]) == f"1. {texts[0]}\n2. {texts[1]}"
    assert shown == sample_statements(memory, "Ottermaid", random.Random(3))
    assert shown[texts.index(CAPTAIN)].entities == ("Ottermaid", "Silvan Pookley")


def test_evaluate_expression_is_exact_arithmetic_only():
    assert evaluate_expression("(1,250 - 50) / 7") == (Fraction(1200, 7), [1250, 50, 7])
    assert evaluate_expression("-0.1 + 0.3")[0] == Fraction(1, 5)
    for wrong in ("", "1 if 2 else 3", "x", "'a' * 3", "[1]", "1e999", "True + 1", "(" * 150):
        with pytest.raises(ValueError):
            evaluate_expression(wrong)
