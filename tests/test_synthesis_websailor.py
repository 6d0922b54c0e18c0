"""Vague predicates: implied by their facts, one answer by brute force, hard to find by a search."""

import random

import pytest
from query_examples import answers, small_graph, unique_queries

from drlib.synthesis.checks import faults
from drlib.synthesis.engine import synthesize_questions
from drlib.synthesis.families.websailor import (
    OBFUSCATIONS,
    alias,
    band,
    describe,
    hard_question,
    initials,
    obfuscate,
    period,
)
from drlib.synthesis.queries import And, Or, Proj, Range, constants, evaluate_query, from_text
from drlib.synthesis.wording import render_question, says
from drlib.worlds import load_world
from drlib.worlds.graph import Graph, Node

SMALL = small_graph()


@pytest.fixture(scope="module")
def cldr():
    return load_world("cldr")


@pytest.fixture(scope="module")
def queries(cldr):
    return [(from_text(task.query), task.answer) for task in synthesize_questions(cldr, 60, 0)]


def drawn(operator, fact, graph=SMALL, n=20):
    return [operator(fact, graph, random.Random(f"draw-{i}")) for i in range(n)]


def test_a_year_becomes_its_decade_or_a_part_of_it():
    for year, part in ((1412, (1410, 1413)), (1417, (1417, 1419)), (1985, (1984, 1986))):
        found = {p.query for p in drawn(period, Proj("founding year of", str(year)))}
        start = year // 10 * 10
        assert found == {Range("founding year", start, start + 9), Range("founding year", *part)}
    assert drawn(period, Proj("length of", "57"), n=1) == [None]
    assert drawn(period, Proj("founding year", "Alba"), n=1) == [None]


@pytest.mark.parametrize(
    "number, low, high",
    [
        (0, 0, 0),
        (7, 0, 9),
        (10, 10, 19),
        (57, 50, 59),
        (940, 900, 999),
        (1999, 1000, 1999),
    ],
)
def test_a_number_becomes_a_range(number, low, high):
    (found,) = drawn(band, Proj("length of", str(number)), n=1)
    assert found.query == Range("length", low, high) and low <= number <= high
    assert render_question(found.query, SMALL).endswith("of less than 1?") == (number == 0)


def test_a_name_becomes_initials_that_similar_names_share():
    nodes = [
        Node("Sund Hill", "town"),
        Node("South Harbour", "town"),
        Node("Sea Hut", "river"),
        Node("Ann", "person"),
        Node("Franc (1963)", "person"),
    ]
    graph = Graph(nodes, [("Ann", "home", "Sund Hill"), ("Franc (1963)", "home", "South Harbour")])
    (found,) = drawn(initials, Proj("home of", "Sund Hill"), graph, 1)
    assert found.query == Proj("home of", Or(("South Harbour", "Sund Hill")))
    assert found.said == '"S. H." (initials)'
    (found,) = drawn(initials, Proj("home", "Franc (1963)"), graph, 1)
    assert found.said == '"F." (initials)'  # no digit gives the year away
    assert drawn(initials, Proj("length of", "57"), n=1) == [None]  # a number has none


def test_a_name_becomes_another_that_nothing_else_has():
    assert {p.said for p in drawn(alias, Proj("river of", "Sava"))} == {"Sau"}
    assert drawn(alias, Proj("river of", "Rin"), n=1) == [None]
    shared = Graph([Node("A", "x", ("Twin",)), Node("B", "x", ("Twin",))], [("A", "next", "B")])
    assert drawn(alias, Proj("next of", "B"), shared, 1) == [None]


def test_a_description_merges_similar_things():
    found = {p.query for p in drawn(describe, Proj("region", "Alba"))}
    assert found == {Proj("region", Proj("river of", "Rin"))}  # Borg lies there too
    assert drawn(describe, Proj("river", "Cove"), n=1)[0].query == Proj(
        "river", Proj("region of", "Sund")
    )


def test_every_predicate_is_implied_by_its_fact(queries, cldr):
    """2.3 (b): what satisfied the fact satisfies the predicate, for every entity."""
    seen = set()
    for i, (query, _) in enumerate(queries):
        fuzzed = obfuscate(query, cldr.graph, random.Random(f"implied-{i}"))
        for name, predicate in fuzzed.applied if fuzzed else ():
            seen.add(name)
            left, right = (evaluate_query(q, cldr.graph) for q in (predicate.fact, predicate.query))
            assert left and left <= right, (name, predicate)
    assert seen >= {"initials", "alias", "describe"}


@pytest.mark.parametrize(
    "operator, fact",
    [
        (period, Proj("founding year of", "1412")),
        (band, Proj("length of", "940")),
        (initials, Proj("river of", "Rin")),
        (describe, Proj("region", "Alba")),
    ],
)
def test_the_predicate_is_implied_on_the_small_graph(operator, fact):
    for found in drawn(operator, fact):
        assert answers(fact, SMALL) <= answers(found.query, SMALL)


def test_one_entity_satisfies_all_predicates_and_no_search_finds_it(queries, cldr):
    """2.3 (a): by brute force over the corpus; the whole question as a search lacks the page."""
    found, hidden, vague, drawn_queries = 0, 0, 0, queries[:40]
    assert len(drawn_queries) == 40  # one that got no hard question counts as found by the search
    for i, (query, answer) in enumerate(drawn_queries):
        question = hard_question(query, cldr, random.Random(f"hard-{i}"))
        if question is None:
            continue
        text, fuzzed = question
        found += 1
        assert answers(fuzzed.query, cldr.graph) == {answer}
        assert faults(fuzzed.query, cldr.graph) == []
        assert not says(text, answer)
        hidden += all(hit.title != answer for hit in cldr.search(text, 10))
        said = [c for c in constants(query) if says(text, c)]
        vague += len(said) < len(set(constants(query)))
    assert hidden >= 0.8 * 40 and vague == found, (found, hidden, vague)


def test_a_merge_that_would_admit_a_second_answer_is_not_made():
    query = And((Proj("river of", "Rin"), Proj("region of", "Nord")))  # Alba
    assert evaluate_query(query, SMALL) == {"Alba"}
    for i in range(40):
        fuzzed = obfuscate(query, SMALL, random.Random(f"merge-{i}"))
        if fuzzed:
            assert answers(fuzzed.query, SMALL) == {"Alba"}
    # "founded in the 1410s" would admit Borg: only the early part of the decade is left
    query = And((Proj("river of", "Rin"), Proj("founding year of", "1412")))
    found = [obfuscate(query, SMALL, random.Random(f"part-{i}"), (period,)) for i in range(20)]
    kept = {fuzzed.query.parts[1] for fuzzed in found if fuzzed}
    assert kept == {Range("founding year", 1410, 1413)}


def test_what_has_no_fact_to_blur_or_no_single_answer_is_left_alone():
    assert obfuscate(Range("length", 0, 100), SMALL, random.Random(0)) is None
    assert obfuscate(Proj("river of", "Rin"), SMALL, random.Random(0)) is None  # two answers


def test_the_same_seed_gives_the_same_obfuscation():
    graph = load_world("tour").graph
    for query, _ in unique_queries(graph, 20, 1):
        first, second = (obfuscate(query, graph, random.Random(7)) for _ in range(2))
        assert first == second
    assert [o.__name__ for o in OBFUSCATIONS] == ["period", "band", "initials", "alias", "describe"]
