"""The guard of paraphrases: what it refuses and why, and what it lets pass.

Run: python -m pytest tests/test_synthesis_guard.py
"""

from functools import cache

import pytest

from drlib.files import read_json_lines
from drlib.synthesis.guard import Guard, in_digits
from drlib.synthesis.queries import And, Count, Diff, Extreme, Or, Proj, Range, from_text
from drlib.synthesis.read_back import grammar_of
from drlib.synthesis.rewriting import hidden_names
from drlib.synthesis.sentences import say
from tests.benchmarks.make_paraphrases import FIRST_MEASURED, HELD_OUT, by_hand, refusal
from tests.paraphrase_changes import paraphrases, tasks_of
from tests.shared_worlds import shared_world

EURO, FRENCH = Proj("currency of", "Euro"), Proj("official language of", "French")
TOGO = Proj("currency of", Proj("currency", "Togo"))
FIRST = Extreme("currency start year", And((EURO, FRENCH)), False)
NINETIES = And((Range("currency start year", 1990, 1999), FRENCH))
EITHER = And((Or((EURO, Proj("currency of", "US Dollar"))), FRENCH))
HOME = And((TOGO, Proj("official language of", Proj("official language", "Angola"))))
BASE = Proj("subclass", Proj("subclass of", "socketserver.TCPServer"))


@cache
def world(name="cldr"):
    return shared_world(name)


@cache
def guard(name="cldr"):
    return Guard(world(name).graph, world(name).scheme)


def refused(text, query, hidden=(), name="cldr"):
    """Of the guard, where the question is our own wording of `query`."""
    book = grammar_of(world(name).graph, world(name).scheme).book
    return guard(name).refusal(text, say(query, book), query, hidden)


# --------------------------------------------------------------------- the five cases of issue 20


def test_a_hidden_step_is_named():
    fine = "Which territory shares Togo's currency and has Angola's official language as its own?"
    text = fine.replace("Angola's official language", "Portuguese, Angola's official language,")
    assert refused(fine, HOME, ["Portuguese"]) == ""
    assert refused(text, HOME, ["Portuguese"]) == "it tells the answer 'Portuguese'"
    assert refused(text, HOME) == "it names 'Portuguese'"  # a name of the world is enough


def test_a_span_is_widened():
    text = "Which territory with French as an official language adopted its currency {}?"
    for same in ("in the 1990s", "during the 1990s", "between 1990 and 1999", "from 1990 to 1999"):
        assert refused(text.format(same), NINETIES) == "", same
    for other in ("in the 1980s", "between 1985 and 1999", "before 1990", "in 1990"):
        assert "numbers" in refused(text.format(other), NINETIES), other
    only_from = "no earlier than 1990, that is, not in 1999 or later"
    assert refused(text.format(only_from), NINETIES) != ""


def test_a_not_is_added():
    fine = "Which territory uses the Euro and has French as its official language?"
    query = And((EURO, FRENCH))
    assert refused(fine, query) == ""
    for text in (
        fine.replace("has French", "doesn't have French"),
        fine.replace("has French", "has anything except French"),
        "Which territory without the Euro has French as its official language?",
        "Which territory uses the Euro and lacks French as its official language?",
    ):
        assert refused(text, query) == "it excepts or denies something", text


def test_an_or_is_turned_into_an_and():
    fine = "Which territory has French as its official language and uses the Euro or the US Dollar?"
    assert refused(fine, EITHER) == ""
    assert refused(fine.replace("Euro or", "Euro and"), EITHER) == "it loses an alternative"
    query = And((EURO, FRENCH))
    text = "Which territory uses the Euro or has French as an official language?"
    assert refused(text, query) == "it adds an alternative"


def test_earliest_is_dropped():
    fine = (
        "Look at the territories whose currency is the Euro and that have French as an official"
        " language. Which of them was the first to adopt its present currency?"
    )
    assert refused(fine, FIRST) == ""
    assert refused(fine.replace("the first", "one"), FIRST) == "it loses a superlative"
    assert "superlative" in refused(fine.replace("first", "last"), FIRST)


# ------------------------------------------------------------------------------- the other reasons


@pytest.mark.parametrize(
    "text, query, reason",
    [
        ("Which territory officially uses French?", And((EURO, FRENCH)), "it loses 'Euro'"),
        (
            "Which territory uses the Euro and has French and Dutch as official languages?",
            And((EURO, FRENCH)),
            "it names 'Dutch'",
        ),
        (
            "Which territory uses the Euro and officially uses French and begins its week early?",
            And((EURO, FRENCH)),
            "it says 'first weekday'",
        ),
        (
            "Which territory once used the Euro and has French as an official language?",
            And((EURO, FRENCH)),
            "it says 'former currency'",
        ),
        (
            "Which territory uses the Euro and has French in it?",
            And((EURO, FRENCH)),
            "it does not say 'official language'",
        ),
        (
            "Which territories use the Euro and have French as an official language?",
            Count(And((EURO, FRENCH))),
            "it does not ask how many",
        ),
        (
            "How many territories use the Euro and have French as an official language?",
            And((EURO, FRENCH)),
            "it asks how many",
        ),
        (
            "Which territory uses the Euro and has French as an official language?",
            Diff(EURO, FRENCH),
            "it loses an exception",
        ),
        (
            "Which territory uses the Euro and had French as official language earlier?",
            And((EURO, FRENCH)),
            "it compares: 'earlier'",
        ),
        (
            "Which territory shares a currency with Togo and shares French as official language?",
            And((TOGO, FRENCH)),
            "it shares something",
        ),
        (
            "Which territory uses both the Euro and the US Dollar, or officially French?",
            EITHER,
            "it turns alternatives into conditions",
        ),
    ],
)
def test_each_reason(text, query, reason):
    assert refused(text, query) == reason


def test_a_direction_is_turned():
    fine = "Which class is a subclass of the one that socketserver.TCPServer directly extends?"
    assert refused(fine, BASE, name="pydocs") == ""
    text = "Which class is a base of the one that socketserver.TCPServer directly extends?"
    assert refused(text, BASE, name="pydocs") == "it turns 'subclass' round"


def test_a_lower_case_name_is_seen_where_a_name_must_stand():
    query = And((Proj("imported module of", "json"), Proj("imported module of", "socket")))
    fine = "Which module imports json as well as socket?"
    assert refused(fine, query, name="pydocs") == ""
    text = "Which module imports json and imports queue as well as socket?"
    assert refused(text, query, name="pydocs") == "it names 'queue'"


def test_what_our_grammar_reads_is_judged_exactly():
    book = grammar_of(world().graph, world().scheme).book
    query = And((TOGO, FRENCH))
    for style in ("which", "what", "name", "steps"):
        assert refused(say(query, book, style), query) == ""
    # the same words in other places: only a reader sees it
    turned = And((Proj("currency of", Proj("currency", Proj("official language of", "French"))),))
    other = say(turned.parts[0], book)
    assert refused(other, query) != ""
    swapped = And((TOGO, Proj("official language of", Proj("official language", "Angola"))))
    back = And(
        (
            Proj("currency of", Proj("currency", "Angola")),
            Proj("official language of", Proj("official language", "Togo")),
        )
    )
    assert refused(say(back, book), swapped) == "it asks something else"


@pytest.mark.parametrize(
    "text, told",
    [
        ("at least five percent", "at least 5 percent"),
        ("twenty-five percent of", "25 percent of"),
        ("one of five towns", "one of five towns"),
        ("in the 1990s", "between 1990 and 1999"),
        ("in the early 1410s", "between 1410 and 1413"),
        ("during the mid-1410s", "between 1414 and 1416"),
        ("the late 1990's", "between 1997 and 1999"),
    ],
)
def test_numbers_in_words(text, told):
    assert in_digits(text) == told


def test_a_share_may_be_said_in_several_ways_but_not_changed():
    query = And((EURO, Proj("widely spoken language of", "French")))
    text = "Which territory uses the Euro and has {} of its people speaking French?"
    for same in ("at least 5%", "5% or more", "no less than five percent", "at least 5 per cent"):
        assert refused(text.format(same), query) == "", same
    for other in ("5%", "at most 5%", "more than 5%", "at least 50%", "5% or less"):
        assert "numbers" in refused(text.format(other), query), other


# ------------------------------------------------------------------------------------ many of them


def test_paraphrases_by_rules():
    """Of 200 each at least 95% of the faithful are kept and 98% of the perturbed refused."""
    kept = caught = 0
    for name in ("cldr", "pydocs"):
        tasks = tasks_of(world(name), 60, 6)
        for made in paraphrases(world(name), name, tasks, 100, 6):
            why = refusal(guard(name), made.task, made.text)
            kept += made.kind == "faithful" and not why
            caught += made.kind != "faithful" and bool(why)
    assert kept >= 0.95 * 200 and caught >= 0.98 * 200


def test_paraphrases_by_hand_that_the_guard_was_not_made_with():
    assert len(read_json_lines(HELD_OUT)) == 132
    found = by_hand({name: guard(name) for name in ("cldr", "pydocs")})
    assert found["first_measured"] == FIRST_MEASURED
    assert found["faithful"] == 61 and found["faithful_kept"] >= 0.9
    assert found["perturbed"] == 71 and found["perturbed_refused"] >= 0.97


def test_the_held_out_texts_are_about_questions_with_these_answers():
    for row in read_json_lines(HELD_OUT):
        query = from_text(row["query"])
        assert guard(row["world"]).refusal(row["question"], row["question"], query) == ""


def test_hidden_names_are_not_those_that_the_question_tells():
    (task, *_) = tasks_of(world("pydocs"), 5, 1)
    assert task.answer in hidden_names(task, from_text(task.query), world("pydocs").graph)
