"""Vague words: meanings by hand, wider than the facts, one answer by brute force.

Run: python -m pytest tests/test_questions_vague_words.py
"""

import itertools
import random

import pytest
from query_examples import answers, small_graph, unique_queries

from drlib.questions.families import choose_families
from drlib.questions.queries import And, Or, Proj, Range
from drlib.questions.read_back import Grammar, load_grammar, word_question
from drlib.questions.vague_words import (
    century,
    make_vague,
    prefix,
    prove_unique,
    third,
)
from drlib.questions.wording import render_question
from drlib.worlds.graph import Graph, Node
from tests.shared_worlds import shared_world

SMALL = small_graph()
RNG = random.Random(0)


def towns(numbers, relation="population"):
    """Return a graph of towns with these numbers."""
    nodes = [Node(f"T{i}", "town") for i in range(len(numbers))]
    return Graph(nodes, [(f"T{i}", relation, str(n)) for i, n in enumerate(numbers)])


@pytest.mark.parametrize(
    ("year", "first", "last", "said"),
    [
        (1901, 1901, 1933, "early in the 20th century"),
        (1933, 1901, 1933, "early in the 20th century"),
        (1934, 1934, 1966, "around the middle of the 20th century"),
        (1967, 1967, 2000, "late in the 20th century"),
        (2000, 1967, 2000, "late in the 20th century"),
        (2001, 2001, 2033, "early in the 21st century"),
    ],
)
def test_century_has_three_parts(year, first, last, said):
    found = century(Proj("founding year of", str(year)), SMALL, RNG)
    assert (found.query, found.said) == (Range("founding year", first, last), said)


def test_century_needs_a_year():
    assert century(Proj("length of", "1901"), SMALL, RNG) is None
    assert century(Proj("founding year of", "57"), SMALL, RNG) is None
    assert century(Proj("founding year", "Alba"), SMALL, RNG) is None


def test_thirds_contain_every_number_once():
    numbers = [3, 10, 20, 25, 40, 50, 60, 70, 900]
    graph = towns(numbers)
    found = {n: third(Proj("population of", str(n)), graph, RNG) for n in numbers}
    assert [found[n].said.split()[2] for n in numbers] == (
        ["lowest"] * 3 + ["middle"] * 4 + ["highest"] * 2
    )
    assert found[10].query == Range("population", 3, 24)
    assert found[25].query == Range("population", 25, 60)
    assert found[900].query == Range("population", 61, 900)
    assert third(Proj("founding year of", "1412"), SMALL, RNG) is None


def test_ties_do_not_overlap():
    graph = towns([2] * 5 + [3])
    assert third(Proj("population of", "2"), graph, RNG).query == Range("population", 2, 2)
    assert third(Proj("population of", "3"), graph, RNG).query == Range("population", 3, 3)


def test_prefix_is_the_longest_shared_beginning():
    nodes = [Node(name, "town") for name in ("Norden", "Norwich", "Nantes", "Oslo", "Norberg")]
    nodes += [Node("Ann", "person"), Node("Bo", "person"), Node("Cy", "person")]
    facts = [("Ann", "home", "Norden"), ("Bo", "home", "Norwich"), ("Cy", "home", "Nantes")]
    graph = Graph(nodes, facts)
    found = prefix(Proj("home of", "Norden"), graph, RNG)
    assert found.query == Proj("home of", Or(("Norden", "Norwich"))), "nobody lives in Norberg"
    assert found.said == 'a town whose name begins with "Nor"'
    assert prefix(Proj("home of", "Nantes"), graph, RNG).said.endswith('"N"')
    assert prefix(Proj("home of", "Oslo"), graph, RNG) is None, "alone with its letter"
    assert prefix(Proj("population of", "57"), graph, RNG) is None


def test_vague_questions_are_unique_by_brute_force():
    """On random graphs, every vague question keeps its answer; each word is wider than its fact."""
    made = 0
    for seed in range(30):
        rng = random.Random(seed)
        nodes = [Node(f"{rng.choice('ABC')}{i}", "town") for i in range(9)]
        nodes += [Node(f"{rng.choice('RS')}{i}", "river") for i in range(4)]
        rivers = [node.title for node in nodes[9:]]
        facts = []
        for node in nodes[:9]:
            facts.append((node.title, "river", rng.choice(rivers)))
            facts.append((node.title, "founding year", str(rng.randint(1901, 2000))))
            facts.append((node.title, "population", str(rng.randint(1, 9))))
        graph = Graph(nodes, facts)
        for node in nodes[:9]:
            own = {r: next(iter(graph.values(node.title, r))) for r in graph.relations[node.title]}
            for chosen in itertools.combinations(sorted(own), 2):
                query = And(tuple(Proj(f"{relation} of", own[relation]) for relation in chosen))
                fuzzed = make_vague(query, graph, rng)
                if fuzzed is None:
                    continue
                made += 1
                assert answers(fuzzed.query, graph) == {node.title} == answers(query, graph)
                proof = prove_unique(fuzzed.query, graph)
                assert proof.answer == node.title and proof.remaining[-1] == 1
                assert proof.checked == len(graph)
                for condition, count in proof.conditions:
                    assert count == len(answers(condition, graph))
                for _, word in fuzzed.applied:
                    assert answers(word.fact, graph) < answers(word.query, graph)
    assert made > 30


def test_proof_refuses_several_answers_and_none():
    query = And((Proj("river of", "Rin"), Range("founding year", 1410, 1420)))
    with pytest.raises(ValueError, match="2 answers satisfy all conditions .Alba, Borg"):
        prove_unique(query, SMALL)
    with pytest.raises(ValueError, match="0 answers satisfy all conditions .none"):
        prove_unique(And((Proj("river of", "Sava"), Proj("region of", "Nord"))), SMALL)
    proof = prove_unique(And((Proj("region of", "Sund"), Proj("river of", "Rin"))), SMALL)
    assert (proof.answer, proof.remaining) == ("Borg", (2, 1))


def test_words_replace_the_numbers_of_a_proved_text():
    cldr = shared_world("cldr")
    year = Proj("currency start year of", "1999")
    word = century(year, cldr.graph, RNG)
    query = And((Proj("former currency of", "Soviet Rouble"), word.query))
    grammar = load_grammar(cldr.graph, cldr.scheme)
    text = word_question(query, grammar, "which", {word.query: word.said})
    assert "late in the 20th century" in text and "1967" not in text
    assert "1967" in word_question(query, grammar, "which")
    silent = Grammar(grammar.book)
    silent.verbs.clear()
    silent.clauses.clear()
    assert word_question(query, silent, "which", {word.query: word.said}) is None


def test_vague_words_on_the_tour():
    graph = shared_world("tour").graph
    found = [
        make_vague(q, graph, random.Random(i))
        for i, (q, _) in enumerate(unique_queries(graph, 40, 1))
    ]
    assert any(found)
    for (_, answer), fuzzed in zip(unique_queries(graph, 40, 1), found):
        if fuzzed:
            assert prove_unique(fuzzed.query, graph).answer == answer
            assert render_question(fuzzed.query, graph)
    assert "vague" not in choose_families("cldr")
