"""Tests of query checks: each fault on a handmade query with both engines, and solver effort.

Run: python -m pytest tests/test_questions_checks.py
"""

import math
import random

import pytest

from drlib.questions.checks import (
    count_coincidences,
    count_constant_edges,
    count_page_parts,
    count_target_edges,
    find_answer,
    find_faults,
    find_first_fault,
    is_near,
    iter_weakened,
    leaks,
    list_conditions,
    measure_effort,
)
from drlib.questions.queries import (
    And,
    Count,
    Diff,
    Extreme,
    Or,
    Proj,
    Range,
    evaluate_query,
)
from drlib.questions.sql_engine import SqlEngine
from drlib.worlds.graph import Graph, Node

COUNTRIES = {  # currency, languages, since; made up
    "Aland": ("Krona", ("Swedish",), "1921"),
    "Bland": ("Krona", ("Danish", "Swedish"), "1905"),
    "Cland": ("Krona", ("Danish",), "1950"),
    "Dland": ("Peso", ("Danish", "Swedish"), "1931"),
    "Eland": ("Peso", ("Swedish",), "1980"),
}
GRAPH = Graph(
    [
        *(Node(t, "country", {"Bland": ("Kingdom of Bland", "BL")}.get(t, ())) for t in COUNTRIES),
        Node("Krona", "currency"),
        Node("Peso", "currency"),
        Node("Danish", "language"),
        Node("Swedish", "language"),
        Node("Latin", "script"),
        *(Node(f"{t} City", "city") for t in COUNTRIES),
        Node("Port", "city"),
        Node("Fort", "city"),
        Node("country", "kind"),
    ],
    [
        row
        for t, (money, spoken, since) in COUNTRIES.items()
        for row in (
            (t, "currency", money),
            (t, "since", since),
            (f"{t} City", "place", t),
            (t, "kind", "country"),
            *((t, "language", tongue) for tongue in spoken),
        )
    ]
    + [
        ("Port", "trade", "Krona"),
        ("Fort", "trade", "Peso"),
        ("Port", "speech", "Danish"),
        ("Port", "speech", "Swedish"),
        ("Fort", "speech", "Swedish"),
        ("Fort", "twin", "Port"),
    ],
)
MONEY = Proj("currency of", Proj("currency", "Aland"))  # Aland, Bland, Cland
TONGUE = Proj("language of", Proj("language", "Cland"))  # Bland, Cland, Dland
SPOKEN = Proj("language of", Proj("language", "Eland"))  # Aland, Bland, Dland, Eland
OLD = Range("since", 1900, 1909)
GOOD = And((MONEY, TONGUE, SPOKEN))  # Bland


def find_faults_with_both_engines(query, graph=GRAPH):
    by_sets, by_sql = find_faults(query, graph), find_faults(query, graph, SqlEngine(graph))
    assert by_sets == by_sql
    assert find_first_fault(query, graph) == (by_sets[0] if by_sets else "")
    return set(by_sets)


def test_valid_query_has_no_faults():
    """Bland is the only country with the krona, Danish and Swedish."""
    assert evaluate_query(And((MONEY, TONGUE)), GRAPH) == {"Bland", "Cland"}
    assert find_answer(GOOD, GRAPH) == "Bland"
    assert find_faults_with_both_engines(GOOD) == set()


CLAND = And((TONGUE, Range("since", 1940, 1959)))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        # a single hop is shallow; the founding year alone identifies the answer
        (And((Proj("currency of", "Krona"), OLD)), {"shallow", "shortcut", "near", "not minimal"}),
        # two answers, one of them named; no answer
        (And((MONEY, TONGUE)), {"not unique", "leak"}),
        (And((MONEY, Proj("place", Proj("place of", "Dland")))), {"not unique", "leak"}),
        # an unneeded condition, exclusion or superlative
        (And((MONEY, TONGUE, SPOKEN, Range("since", 1900, 1999))), {"not minimal"}),
        (Diff(GOOD, Proj("currency of", Proj("trade", "Fort"))), {"not minimal"}),
        (Extreme("since", GOOD, True), {"not minimal"}),
        # nested: the city alone identifies the intermediate place
        (
            And(
                (
                    MONEY,
                    TONGUE,
                    Proj(
                        "language of",
                        Proj(
                            "language",
                            And((Proj("place", "Eland City"), Range("since", 1970, 1999))),
                        ),
                    ),
                )
            ),
            {"not minimal", "leak"},
        ),
        # a constant, or a union of constants, adjacent to the target
        (And((Proj("language of", "Danish"), MONEY, SPOKEN)), {"shortcut", "near"}),
        (
            And((Proj("language of", Or(("Danish", "Norse"))), MONEY, SPOKEN)),
            {"shortcut", "near", "not minimal"},
        ),  # nobody speaks Norse
        (And(("Bland", MONEY)), {"shortcut", "leak", "not minimal"}),
        (Diff(And((TONGUE, SPOKEN)), Proj("currency of", "Peso")), {"shortcut", "redundant"}),
        # one of two conditions is enough
        (And((OLD, SPOKEN)), {"shortcut", "not minimal"}),
        # two constants linked by a fact; one constant named twice
        (
            And(
                (
                    Proj("currency of", Proj("trade", "Port")),
                    TONGUE,
                    Proj("language of", Proj("speech", "Fort")),
                )
            ),
            {"redundant"},
        ),
        (
            And((MONEY, TONGUE, Proj("language of", Proj("language", Diff("Eland", "Aland"))))),
            {"redundant", "not minimal", "leak"},
        ),
        # the answer's name
        (
            And(
                (MONEY, TONGUE, SPOKEN, Proj("kind of", Proj("kind", Proj("place", "Bland City"))))
            ),
            {"leak", "near", "not minimal"},
        ),
    ],
)
def test_faults_are_detected(query, expected):
    assert find_faults_with_both_engines(query) == expected


def test_kind_constraints_may_touch_the_target():
    typed = And((Proj("kind of", "country"), MONEY, TONGUE, SPOKEN))
    assert count_target_edges(typed) == 0 and "shortcut" not in find_faults_with_both_engines(typed)
    assert "not minimal" in find_faults_with_both_engines(
        typed
    )  # here everything with a currency is a country


def test_leaks_match_whole_words_case_insensitively():
    nodes = [
        Node("Niger", "x", ("NE",)),
        Node("Nigeria", "x"),
        Node("niger river", "x"),
        Node("The Republic", "x", ("République du Niger",)),
        Node("Ne_Win", "x"),
        Node("New", "x"),
        Node("€", "x"),
        Node("!", "x"),
    ]
    graph = Graph(nodes, [])
    leaking = {title for title in graph.nodes if leaks("Niger", title, graph, stems=False)}
    assert leaking == {"Niger", "niger river", "The Republic", "Ne_Win"}
    assert {t for t in graph.nodes if leaks(t, "Niger", graph, stems=False)} == leaking
    assert {t for t in graph.nodes if leaks(t, "Niger", graph)} == leaking | {"Nigeria"}
    assert leaks("5", "Section 5", graph) and not leaks("5", "15", graph)
    assert not leaks("€", "!", graph)  # symbols are not words


@pytest.mark.parametrize(
    ("one", "other", "hint"),
    [
        ("Israel", "Israeli New Shekel", True),
        ("Norway", "Norwegian Krone", True),
        ("Python", "pythonic", True),
        ("Bosnia & Herzegovina", "Bosnia-Herzegovina Convertible Mark (1992–1998)", True),
        ("Côte d’Or", "Cote d'Or wine", True),
        ("South Africa", "South Sudan", False),  # a common word and words without a common stem
        ("Republic", "Dominican Republic", False),  # only a common word
        ("Mali", "Maldives", False),  # three letters
        ("Montserrat", "Montenegro", False),  # four letters of ten
        ("France", "Swiss Franc", False),
        ("Number 1234", "Number 1235", False),  # digits have no stem
        ("Costa Rica", "Costa Verde", False),  # one word of two
    ],
)
def test_stem_leaks_require_all_informative_words(one, other, hint):
    graph = Graph([Node(one, "x"), Node(other, "y")], [])
    assert leaks(one, other, graph) == leaks(other, one, graph)
    if not leaks(one, other, graph, stems=False):
        assert leaks(one, other, graph) == hint


def test_unused_facts_can_be_shortcuts():
    """Fort uses pesos like Dland; the unused fact that its twin is in Bland is a shortcut."""
    query = And((MONEY, TONGUE, Proj("language of", Proj("speech", "Fort"))))
    assert "near" not in find_faults_with_both_engines(query) and evaluate_query(query, GRAPH) == {
        "Bland"
    }
    nearer = Graph(GRAPH.nodes.values(), [*GRAPH.facts, ("Bland", "twin", "Fort")])
    assert evaluate_query(query, nearer) == {"Bland"} and "near" in find_faults_with_both_engines(
        query, nearer
    )
    assert "near" not in find_faults(query, nearer, strict=False)
    # a kind edge between them is allowed
    kind = Graph(GRAPH.nodes.values(), [*GRAPH.facts, ("Bland", "kind", "Fort")])
    assert "near" not in find_faults_with_both_engines(query, kind)


def test_three_hop_queries_need_a_distant_constant():
    nodes = [Node(t, "x") for t in "abcdef"]
    chain = [("a", "r", "b"), ("b", "r", "c"), ("c", "r", "d")]
    query = Proj("r of", Proj("r of", Proj("r of", "d")))
    assert not is_near(query, "a", Graph(nodes, chain))
    short = Graph(nodes, [*chain, ("d", "s", "b")])  # a - b - d
    assert is_near(query, "a", short)
    two = And((query, Proj("r of", Proj("s", "e"))))
    assert not is_near(two, "a", Graph(nodes, [*short.facts, ("e", "s", "f")]))  # e is far away
    assert not is_near(Proj("r of", Proj("r of", "c")), "a", short)  # allowed with two hops
    assert not is_near(Count(query), "1", short)


def test_shared_number_is_a_coincidence():
    def count(query):
        return count_coincidences(query, lambda part: evaluate_query(part, GRAPH))

    same_year = Proj("since of", Proj("since", "Aland"))
    assert count(same_year) == 1 and count(And((same_year, same_year))) == 2
    assert count(Proj("since of", "1921")) == 0 == count(MONEY)  # a stated year; an entity
    twice = And((same_year, Proj("since of", Proj("since", Proj("place", "Aland City")))))
    assert "coincidence" in find_faults_with_both_engines(twice)
    assert "coincidence" not in find_faults_with_both_engines(And((same_year, MONEY)))
    assert "coincidence" not in find_faults(twice, GRAPH, strict=False)


def test_iter_weakened_removes_one_condition():
    a, b, c = MONEY, TONGUE, OLD
    assert list(iter_weakened(And((a, b, c)))) == [And((b, c)), And((a, c)), And((a, b))]
    assert list(iter_weakened(And((a, b)))) == [b, a]
    assert list(iter_weakened(Diff(a, b))) == [a] == list(iter_weakened(Extreme("since", a, True)))
    assert (
        list(iter_weakened(Or((a, b))))
        == list(iter_weakened(Count(a)))
        == list(iter_weakened("x"))
        == []
    )


def test_list_conditions_and_count_edges():
    query = Extreme("since", Diff(And((MONEY, OLD)), Proj("r", "Peso")), True)
    assert list_conditions(query) == (MONEY, OLD, Proj("r", "Peso"))
    assert count_target_edges(query) == 1
    assert count_target_edges(And(("Krona", MONEY))) == 1
    assert count_target_edges(Count(Proj("currency of", "Krona"))) == 0  # the target is a number
    assert (
        count_constant_edges(
            And((Proj("a", "Aland"), Proj("b", "Krona"), Proj("c", "Danish"))), GRAPH
        )
        == 1
    )


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("Krona", 0),
        (Proj("currency of", "Krona"), 1),  # the page of Krona
        (MONEY, 2),  # Aland, then the krona
        (And((MONEY, TONGUE)), 4),  # Aland, Krona; then Cland and Danish, or two more candidates
        (And((MONEY, OLD)), 4),  # Aland, Krona; of the three candidates, Aland was already read
        (And((MONEY, Proj("since of", "1905"))), 4),
        (And((MONEY, Proj("place", "Dland City"))), 3),  # the city; then Aland and its krona
        (Count(MONEY), 2),
        (Extreme("since", MONEY, True), 4),  # Aland, Krona, and the other two
        (Or((MONEY, TONGUE)), 4),
        (Diff(Proj("currency of", "Krona"), Proj("currency of", "Peso")), 2),
        (OLD, math.inf),  # no page lists what was founded in a decade
        (Proj("since of", "1921"), math.inf),  # a number has no page
        (Extreme("since", OLD, True), math.inf),
        (Proj("currency", OLD), math.inf),
    ],
)
def test_measure_effort_matches_hand_counts(query, expected):
    assert measure_effort(query, GRAPH) == expected


def test_long_pages_are_split_into_parts():
    nodes = [Node("hub", "x"), *(Node(f"n{i}", "x") for i in range(121))]
    graph = Graph(nodes, [(f"n{i}", "in", "hub") for i in range(121)] + [("n0", "age", "5")])
    assert count_page_parts("hub", graph) == 3  # 60 + 60 + 1
    assert count_page_parts("n0", graph) == 1
    assert count_page_parts("5", graph) == 0 == count_page_parts("nobody", graph)
    assert measure_effort(Proj("in of", "hub"), graph) == 3


def test_both_engines_agree_on_random_queries():
    from tests.test_questions_queries import random_graph, random_query

    rng, seen = random.Random("faults"), set()
    for _ in range(30):
        graph = random_graph(rng)
        for _ in range(8):
            seen |= find_faults_with_both_engines(random_query(rng, graph, 4), graph)
    assert seen >= {"not unique", "not minimal", "shortcut", "redundant", "shallow", "leak"}
