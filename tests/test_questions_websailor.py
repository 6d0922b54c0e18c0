"""Tests of obfuscation: wider than the facts, one answer by brute force, hard to search."""

import random
from collections import Counter

import pytest
from query_examples import answers, small_graph, unique_queries

from drlib.questions.checks import find_faults
from drlib.questions.joins import normalise_query
from drlib.questions.queries import (
    And,
    Or,
    Proj,
    Range,
    canonicalise,
    evaluate_query,
    from_text,
    list_constants,
)
from drlib.questions.question_engine import synthesize_questions
from drlib.questions.read_back import Grammar, load_grammar, read_question, word_question
from drlib.questions.websailor import (
    OBFUSCATIONS,
    Predicate,
    band,
    describe,
    draw_hard_question,
    initials,
    is_resolved,
    obfuscate,
    period,
    select_rare_seeds,
    widens,
)
from drlib.questions.wording import mentions, render_question
from drlib.worlds import load_world
from drlib.worlds.graph import Graph, Node
from tests.shared_worlds import shared_world

SMALL = small_graph()


@pytest.fixture(scope="module")
def cldr():
    return shared_world("cldr")


@pytest.fixture(scope="module")
def queries(cldr):
    return [(from_text(task.query), task.answer) for task in synthesize_questions(cldr, 200, 0)]


def draw_predicates(operator, fact, graph=SMALL, n=20):
    return [operator(fact, graph, random.Random(f"draw-{i}")) for i in range(n)]


def test_period_gives_a_decade_or_part_of_it():
    for year, part in ((1412, (1410, 1413)), (1417, (1417, 1419)), (1985, (1984, 1986))):
        found = {p.query for p in draw_predicates(period, Proj("founding year of", str(year)))}
        start = year // 10 * 10
        assert found == {Range("founding year", start, start + 9), Range("founding year", *part)}
    assert draw_predicates(period, Proj("length of", "57"), n=1) == [None]
    assert draw_predicates(period, Proj("founding year", "Alba"), n=1) == [None]


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
def test_band_gives_a_range(number, low, high):
    (found,) = draw_predicates(band, Proj("length of", str(number)), n=1)
    assert found.query == Range("length", low, high) and low <= number <= high
    assert render_question(found.query, SMALL).endswith("of less than 1?") == (number == 0)


def test_initials_are_shared_by_similar_names():
    nodes = [
        Node("Sund Hill", "town"),
        Node("South Harbour", "town"),
        Node("Salt House", "town"),  # no person has it as home
        Node("Sea Hut", "river"),
        Node("Ann", "person"),
        Node("Bo", "person"),
        Node("Franc (1963)", "person"),
        Node("os.path", "module"),
    ]
    facts = [
        ("Ann", "home", "Sund Hill"),
        ("Franc (1963)", "home", "South Harbour"),
        ("Bo", "home", "os.path"),
    ]
    graph = Graph(nodes, facts)
    (found,) = draw_predicates(initials, Proj("home of", "Sund Hill"), graph, 1)
    assert found.query == Proj("home of", Or(("South Harbour", "Sund Hill")))
    assert found.said == 'a town with the initials "S. H."'
    (found,) = draw_predicates(initials, Proj("home", "Franc (1963)"), graph, 1)
    assert found.said == 'a person with the initial "F."'  # no digit reveals the year
    assert draw_predicates(initials, Proj("length of", "57"), n=1) == [None]  # a number has none
    assert draw_predicates(initials, Proj("home of", "os.path"), graph, 1) == [None]


def test_initials_unions_are_canonical():
    nodes = [Node(name, "town") for name in ("A", "A (1)", "Aa")] + [Node("Ann", "person")]
    graph = Graph(nodes, [("Ann", "home", node.title) for node in nodes[:3]])
    (found,) = draw_predicates(initials, Proj("home of", "A"), graph, 1)
    assert found.query == canonicalise(found.query) and len(found.query.of.parts) == 3


def test_widens_requires_more_matches():
    """Another name of the same thing is no obfuscation."""
    fact = Proj("river of", "Rin")
    same, wider = fact, Or((fact, Proj("river of", "Sava")))
    other, narrower = Proj("river of", "Sava"), And((fact, Proj("region of", "Nord")))
    for query, is_wider in ((same, 0), (wider, 1), (other, 0), (narrower, 0)):
        assert widens(Predicate(fact, query, "words"), SMALL) == is_wider


def test_initials_never_identify_one_entity(queries, cldr):
    alone = Counter()
    for i, (query, _) in enumerate(queries):
        fuzzed = obfuscate(query, cldr.graph, random.Random(f"alone-{i}"), (initials,))
        for _, clue in fuzzed.applied if fuzzed else ():
            alone[isinstance(clue.query.of, str)] += 1
    assert not alone[True] and alone[False] > 10


def test_clues_resolved_by_search_are_detected(cldr):
    hides_norway = Proj("currency of", "Norway")
    another_name = cldr.graph.nodes["Norway"].aliases[0]
    clue = Predicate(hides_norway, Proj("currency of", Or(("Norway", "Sweden"))), another_name)
    assert is_resolved(clue, cldr)
    assert not is_resolved(clue._replace(said=cldr.graph.nodes["Sweden"].aliases[0]), cldr)
    described = Proj("currency of", Proj("currency of", "Norwegian Krone"))
    first = cldr.search("Which territory is the one that has the currency Norwegian Krone?", 1)
    hides_the_first = Proj("currency of", first[0].title)
    assert is_resolved(Predicate(hides_the_first, described), cldr)
    year = Predicate(Proj("introduction year of", "1875"), Range("introduction year", 1870, 1879))
    assert not is_resolved(year, cldr)


def test_is_fog_receives_only_widening_clues():
    query = And((Proj("region of", "Sund"), Proj("founding year of", "1417")))  # Borg
    clues = []

    def refuse(clue):
        clues.append(clue)
        return False

    assert obfuscate(query, SMALL, random.Random(0), is_fog=refuse) is None
    assert clues and all(widens(clue, SMALL) for clue in clues)


def test_rare_seeds_have_the_fewest_neighbours():
    nodes = [Node(name, "town") for name in "ABCDE"]
    facts = [("A", "road", other) for other in "BCD"] + [("B", "road", "C"), ("D", "road", "E")]
    graph = Graph(nodes, facts)  # neighbours: A 3, B 2, C 2, D 2, E 1
    assert select_rare_seeds("ABCDE", graph) == ("B", "C", "D", "E")
    assert select_rare_seeds("AE", graph) == ("E",)


def test_describe_merges_similar_entities():
    found = {p.query for p in draw_predicates(describe, Proj("region", "Alba"))}
    assert found == {Proj("region", Proj("river of", "Rin"))}  # Borg lies there too
    assert draw_predicates(describe, Proj("river", "Cove"), n=1)[0].query == Proj(
        "river", Proj("region of", "Sund")
    )


def test_facts_imply_their_predicates(queries, cldr):
    """Everything that satisfies the fact satisfies the predicate."""
    seen = set()
    for i, (query, _) in enumerate(queries):
        fuzzed = obfuscate(query, cldr.graph, random.Random(f"implied-{i}"))
        for name, predicate in fuzzed.applied if fuzzed else ():
            seen.add(name)
            left, right = (evaluate_query(q, cldr.graph) for q in (predicate.fact, predicate.query))
            assert left and left < right, (name, predicate)
    assert seen == {operator.__name__ for operator in OBFUSCATIONS}


@pytest.mark.parametrize(
    "operator, fact",
    [
        (period, Proj("founding year of", "1412")),
        (band, Proj("length of", "940")),
        (initials, Proj("river of", "Rin")),
        (describe, Proj("region", "Alba")),
    ],
)
def test_facts_imply_predicates_on_the_small_graph(operator, fact):
    for found in draw_predicates(operator, fact):
        assert answers(fact, SMALL) <= answers(found.query, SMALL)


def test_hard_questions_are_unique_and_not_searchable(queries, cldr):
    """Brute force over the corpus; a search for the question does not show the page."""
    grammar = load_grammar(cldr.graph, cldr.scheme)
    found, with_initials, spoken = 0, 0, Counter()
    resolved = {}  # shared between draws, as in a data set
    for i, (query, answer) in enumerate(queries):
        rng = random.Random(f"hard-{i}")
        question = draw_hard_question(query, cldr, grammar, rng, resolved=resolved)
        rng = random.Random(f"hard-{i}")
        assert question == draw_hard_question(query, cldr, grammar, rng)
        if question is None:
            continue
        text, fuzzed = question
        found += 1
        assert answers(fuzzed.query, cldr.graph) == {answer}
        assert find_faults(fuzzed.query, cldr.graph) == []
        assert not mentions(text, answer)
        assert all(hit.title != answer for hit in cldr.search(text, 10))
        hidden = {clue.fact.of for _, clue in fuzzed.applied}
        spoken.update(
            mentions(text, grammar.book.mention(name)) for name in hidden - {*list_constants(query)}
        )
        assert not any(is_resolved(clue, cldr) for _, clue in fuzzed.applied)
        with_initials += bool(fuzzed.names)
        if fuzzed.names:
            assert all(text.count(said) for said in fuzzed.names.values()), text
        else:
            assert read_question(text, grammar) == normalise_query(fuzzed.query)
    assert found >= 20 and 5 <= with_initials < found and not spoken[True], (found, with_initials)
    assert {*resolved.values()} == {True, False}


def test_vague_wording_is_verified_with_full_names(cldr):
    """The text with initials cannot be parsed, so the text with names is proved."""
    union = Or(("French", "Fula"))
    query = And((Proj("official language of", union), Proj("currency of", "Euro")))
    names = {union: 'a language with the initial "F."'}
    grammar = Grammar(load_grammar(cldr.graph, cldr.scheme).book)
    text = word_question(query, grammar, "which", names)
    assert names[union] in text and "French" not in text
    grammar.verbs.clear()  # a parser without verbs cannot verify the text
    grammar.clauses.clear()
    assert word_question(query, grammar, "which", names) is None


def test_obfuscation_keeps_the_answer_unique():
    query = And((Proj("river of", "Rin"), Proj("region of", "Nord")))  # Alba
    assert evaluate_query(query, SMALL) == {"Alba"}
    for i in range(40):
        fuzzed = obfuscate(query, SMALL, random.Random(f"merge-{i}"))
        if fuzzed:
            assert answers(fuzzed.query, SMALL) == {"Alba"}
    # "founded in the 1410s" would admit Borg, and in the early 1410s nothing else was founded
    query = And((Proj("river of", "Rin"), Proj("founding year of", "1412")))
    draws = [random.Random(f"part-{i}") for i in range(20)]
    assert not any(obfuscate(query, SMALL, rng, (period,)) for rng in draws)
    # of the towns in Sund, Borg alone was founded in the 1410s, and Alba elsewhere was too
    query = And((Proj("region of", "Sund"), Proj("founding year of", "1417")))
    found = [obfuscate(query, SMALL, rng, (period,)) for rng in draws]
    kept = {fuzzed.query.parts[1] for fuzzed in found if fuzzed}
    assert kept == {Range("founding year", 1410, 1419)}


def test_unsuitable_queries_are_not_obfuscated():
    assert obfuscate(Range("length", 0, 100), SMALL, random.Random(0)) is None
    assert obfuscate(Proj("river of", "Rin"), SMALL, random.Random(0)) is None  # two answers


def test_obfuscation_is_reproducible():
    graph = load_world("tour").graph
    for query, _ in unique_queries(graph, 20, 1):
        first, second = (obfuscate(query, graph, random.Random(7)) for _ in range(2))
        assert first == second
    assert [o.__name__ for o in OBFUSCATIONS] == ["period", "band", "initials", "describe"]
