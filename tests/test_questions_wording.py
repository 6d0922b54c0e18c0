"""Tests of structured wording: no condition is lost."""

import random
from collections import defaultdict

import pytest
from query_examples import any_query, small_graph, tour_graph, unique_queries

from drlib.questions.queries import (
    And,
    Count,
    Diff,
    Extreme,
    Or,
    Proj,
    Range,
    canonicalise,
    list_constants,
    to_text,
    walk,
)
from drlib.questions.wording import (
    TEMPLATES,
    format_vague_range,
    mentions,
    render_question,
    to_simple_plural,
)

SMALL = small_graph()
RIVER = Proj("river of", "Rin")
NORDIC = And((RIVER, Proj("region of", "Nord")))


# ------------------------------------------------------------------------------------ templates


def test_templates_of_one_question():
    assert [render_question(NORDIC, SMALL, i) for i in range(TEMPLATES)] == [
        "Which town is the one that has the river Rin and that has the region Nord?",
        "Find the town with the river Rin and with the region Nord.",
        "What is the name of the town that has the river Rin and that has the region Nord?",
        "There is exactly one town with the river Rin and with the region Nord. Name it.",
        "I am looking for a town that has the river Rin and that has the region Nord."
        " Which one is it?",
    ]
    assert render_question(NORDIC, SMALL, TEMPLATES) == render_question(NORDIC, SMALL, 0)


def test_ambiguous_nested_conditions_are_bracketed():
    inner = And((Proj("region", "Borg"), Proj("region", "Cove")))
    query = And((Proj("region of", inner), RIVER))
    assert render_question(query, SMALL) == (
        "Which town is the one that has a region (that is a region of Borg and that is a region of "
        "Cove) and that has the river Rin?"
    )
    chain = Proj("length", Proj("river", Proj("region of", "Nord")))
    assert render_question(chain, SMALL) == (
        "Which length is the one that is a length of a river that is a river of a town that has "
        "the region Nord?"
    )


@pytest.mark.parametrize(
    "query, text",
    [
        (Count(RIVER), "How many towns with the river Rin are there?"),
        (
            Proj("region", Or(("Alba", "Borg"))),
            "Which region is the one that is a region of Alba or Borg?",
        ),
        (
            Or((RIVER, Proj("river of", "Sava"))),
            "Which town is the one that has the river Rin or that has the river Sava?",
        ),
        (
            Diff(RIVER, Proj("region of", "Nord")),
            "Which town is the one that has the river Rin, except any that has the region Nord?",
        ),
        (
            And((RIVER, Range("founding year", 1410, 1413))),
            "Which town is the one that has the river Rin and with a founding year in the early "
            "1410s?",
        ),
        (Range("length", 900, 999), "Which river is the one with a length between 900 and 999?"),
        (
            Extreme("founding year", RIVER, True),
            "Which town is the one with the latest founding year of any town that has the river "
            "Rin?",
        ),
        (
            Extreme("founding year", NORDIC, False),
            "Which town is the one with the earliest founding year of any town that has the river "
            "Rin and that has the region Nord?",
        ),
        (
            And((Extreme("length", Proj("river", "Alba"), True), Proj("length of", "940"))),
            "Which thing is the one with the largest length of any river (that is a river of "
            "Alba) and that has the length 940?",
        ),
    ],
)
def test_wording_of_each_node_type(query, text):
    assert render_question(query, SMALL) == text


def test_custom_names_replace_titles():
    assert "Sau" in render_question(Proj("river of", "Sava"), SMALL, 0, {"Sava": "Sau"})
    merged = Or(("Rin", "Sava"))
    text = render_question(Proj("river of", merged), SMALL, 0, {merged: "some river"})
    assert "the river some river" in text and "Sava" not in text


def test_wording_mentions_all_constants_and_relations():
    rng = random.Random("said")
    for _ in range(400):
        query = any_query(SMALL, rng)
        text = render_question(query, SMALL, rng.randrange(TEMPLATES))
        for part in walk(query):
            if isinstance(part, Proj | Range | Extreme):
                assert mentions(text, part.relation.removesuffix(" of")), (query, text)
            if isinstance(part, Range):
                assert mentions(text, format_vague_range(part.low, part.high))
        assert all(mentions(text, name) for name in list_constants(query))
        assert text.endswith(("?", ".")) and "{" not in text


@pytest.mark.parametrize("template", [0, 1])
def test_different_queries_have_different_wordings(template):
    """Two trees with the same words differ in their brackets."""
    rng, by_text = random.Random("differ"), defaultdict(set)
    for _ in range(3000):
        query = any_query(SMALL, rng)
        by_text[render_question(query, SMALL, template)].add(to_text(canonicalise(query)))
    assert len(by_text) > 1500
    for text, queries in by_text.items():
        assert len(queries) == 1, (text, queries)


def test_tour_wordings_are_complete_and_deterministic():
    graph = tour_graph()
    for i, (query, _) in enumerate(unique_queries(graph, 60, 0)):
        text = render_question(query, graph, i)
        assert text == render_question(query, graph, i)
        assert all(mentions(text, name) for name in list_constants(query))
        assert len({render_question(query, graph, t) for t in range(TEMPLATES)}) == TEMPLATES


@pytest.mark.parametrize(
    "low, high, text",
    [
        (1990, 1999, "in the 1990s"),
        (2010, 2013, "in the early 2010s"),
        (2014, 2016, "in the mid 2010s"),
        (2017, 2019, "in the late 2010s"),
        (2010, 2014, "between 2010 and 2014"),
        (1995, 2004, "between 1995 and 2004"),
        (50, 59, "between 50 and 59"),
        (0, 0, "of less than 1"),
        (0, 9, "of less than 10"),
        (7, 7, "of 7"),
    ],
)
def test_format_vague_range(low, high, text):
    assert format_vague_range(low, high) == text


def test_plurals_and_whole_words():
    assert [to_simple_plural(n) for n in ("territory", "key", "class", "script")] == [
        "territories",
        "keys",
        "classes",
        "scripts",
    ]
    assert mentions("is it MALI?", "Mali") and not mentions("Somalia", "Mali")
