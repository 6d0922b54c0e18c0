"""Tests of joined conditions (cycles, descriptions, loose parts) against brute force.

Run: python -m pytest tests/test_questions_joins.py
"""

import math
import random
import re
from collections import Counter
from dataclasses import replace
from itertools import product

import matplotlib.pyplot as plt
import pytest

from drlib.analysis.data_plots import plot_question_graph
from drlib.demonstrations.solver import Solver
from drlib.questions.checks import find_faults, list_conditions, measure_effort
from drlib.questions.joins import Condition, join_conditions, normalise_query
from drlib.questions.plainness import measure_strangeness
from drlib.questions.queries import (
    And,
    Anything,
    Count,
    Diff,
    Exists,
    Or,
    Proj,
    Range,
    Var,
    bind,
    evaluate_query,
    find_free_variables,
    find_required,
    from_text,
    measure_depth,
    to_text,
    unfold,
    walk,
)
from drlib.questions.question_engine import make_question_task
from drlib.questions.question_set import find_used_facts
from drlib.questions.read_back import load_grammar, read_question
from drlib.questions.sentences import STYLES, write_sentences
from drlib.questions.sql_engine import SqlEngine
from drlib.questions.websailor_v2 import draw_dense_subgraph, draw_focuses, find_cyclic_question
from drlib.questions.webshaper import from_triples, to_triples
from drlib.questions.wording import render_question
from drlib.tools import Toolbox
from drlib.worlds.graph import Graph, Node
from tests.shared_worlds import shared_world

ASKED = Var("?")
X, Y = Var("X"), Var("Y")
MAP = Graph(
    [Node(title, "land") for title in ("Alba", "Borg", "Cove", "Dun")]
    + [Node("crown", "money"), Node("mark", "money")],
    [
        ("Alba", "border", "Borg"),
        ("Borg", "border", "Cove"),
        ("Cove", "border", "Dun"),
        ("Alba", "money", "crown"),
        ("Borg", "money", "mark"),
        ("Cove", "money", "mark"),
        ("Dun", "money", "crown"),
        ("Dun", "border", "Dun"),
    ],
)


def test_shared_variable_has_one_value():
    """In a tree, the two currencies of "a neighbour with the same currency" may differ."""
    same = And((Proj("money of", X), Proj("border of", Proj("money of", X))))
    query = Exists("X", Anything(), same)
    assert evaluate_query(query, MAP) == {"Borg", "Dun"} == SqlEngine(MAP).answers(query)
    assert evaluate_query(unfold(query), MAP) == {"Alba", "Borg", "Cove", "Dun"}
    of_crowns = Exists("X", Proj("money", "Alba"), same)
    assert evaluate_query(of_crowns, MAP) == {"Dun"} == SqlEngine(MAP).answers(of_crowns)
    assert (
        measure_depth(query) == 2 and measure_depth(of_crowns) == 3
    )  # finding the money of Alba is one more hop


def test_variables_in_counts_and_differences():
    """Count and Diff may contain a bound variable."""
    others = Count(Proj("money of", X))
    query = Exists("X", Proj("money", "Alba"), others)
    assert evaluate_query(query, MAP) == {"2"} == SqlEngine(MAP).answers(query)
    alone = Exists("X", "Alba", Diff(Proj("money of", Proj("money", X)), X))
    assert evaluate_query(alone, MAP) == {"Dun"} == SqlEngine(MAP).answers(alone)


def test_inner_variable_shadows_the_outer_one():
    inner = Exists("X", Proj("border", X), Proj("money", X))
    query = Exists("X", "Alba", inner)
    assert evaluate_query(query, MAP) == {"mark"} == SqlEngine(MAP).answers(query)
    assert find_free_variables(inner) == {"X"} and find_free_variables(query) == set()
    assert bind(inner, "X", "Cove") == Exists("X", Proj("border", "Cove"), Proj("money", X))


def test_unbound_variable_is_an_error():
    loose = And((Proj("money of", X), Proj("border", "Alba")))
    for ask in (lambda: evaluate_query(loose, MAP), lambda: SqlEngine(MAP).answers(loose)):
        with pytest.raises(ValueError, match="'X' has no enclosing Exists"):
            ask()
    with pytest.raises(ValueError, match=r"\['X'\] have no enclosing Exists"):
        from_text(to_text(loose))


# ---- join_conditions


def test_join_conditions_uses_few_variables():
    triangle = [Condition(ASKED, "r", X), Condition(X, "r", Y), Condition(Y, "r", ASKED)]
    query = join_conditions(triangle, ASKED)
    assert len([part for part in walk(query) if isinstance(part, Exists)]) == 1
    tree = join_conditions(
        [Condition(ASKED, "r", X), Condition(X, "s", "A"), Condition(X, "s", "B")], ASKED
    )
    assert tree == Proj("r of", And((Proj("s of", "A"), Proj("s of", "B"))))


def test_conditions_on_a_constant_describe_it():
    conditions = [Condition(ASKED, "r", "A"), Condition("A", "s", X), Condition(X, "t", "B")]
    described = And(("A", Proj("s of", Proj("t of", "B"))))
    assert join_conditions(conditions, ASKED) == Proj("r of", described)


def test_unconnected_conditions_must_hold():
    conditions = [Condition(ASKED, "r", "A"), Condition(X, "t", "B")]
    assert join_conditions(conditions, ASKED) == Exists("", Proj("t of", "B"), Proj("r of", "A"))


def test_missing_target_is_an_error():
    with pytest.raises(ValueError, match=r"no condition names \?"):
        join_conditions([Condition(X, "r", "A")], ASKED)


def random_conditions(rng):
    ends = [ASKED, X, Y, Var("Z"), Var("W"), "0", "1", "2", Or(("0", "3")), Or(("1", X))]
    others = [
        Condition(rng.choice(ends), rng.choice("rs"), rng.choice(ends))
        for _ in range(rng.randint(1, 6))
    ]
    return [Condition(ASKED, rng.choice("rs"), rng.choice(ends)), *others]


def evaluate_by_brute_force(conditions, graph):
    """Return the values of the target over all choices of all variables."""
    members = {
        member
        for condition in conditions
        for end in (condition.head, condition.tail)
        for member in (end.parts if isinstance(end, Or) else (end,))
    }
    variables = sorted({m for m in members if isinstance(m, Var)} - {ASKED}, key=str)
    facts, found = {*graph.facts}, set()
    for target, *values in product(graph.nodes, repeat=1 + len(variables)):
        chosen = dict(zip(variables, values)) | {ASKED: target}

        def candidates(end, chosen=chosen):
            members_of_end = end.parts if isinstance(end, Or) else (end,)
            return [chosen.get(member, member) for member in members_of_end]

        if all(
            any((a, c.relation, b) in facts for a in candidates(c.head) for b in candidates(c.tail))
            for c in conditions
        ):
            found.add(target)
    return found


@pytest.mark.parametrize("seed", range(6))
def test_join_conditions_matches_brute_force(seed):
    rng = random.Random(f"joins-{seed}")
    cyclic = empty = 0
    for _ in range(40):
        titles = [str(i) for i in range(5)]
        facts = {(rng.choice(titles), rng.choice("rs"), rng.choice(titles)) for _ in range(14)}
        graph = Graph([Node(title, "n") for title in titles], sorted(facts))
        conditions = random_conditions(rng)
        query = join_conditions(conditions, ASKED)
        expected = evaluate_by_brute_force(conditions, graph)
        assert evaluate_query(query, graph) == expected, conditions
        assert SqlEngine(graph).answers(query) == expected
        assert expected <= evaluate_query(unfold(query), graph)
        assert from_text(to_text(query)) == query
        rows = to_triples(query)
        assert evaluate_query(from_triples(rows), graph) == expected, rows
        cyclic += any(isinstance(part, Exists) and part.name for part in walk(query))
        empty += not expected
    assert cyclic > 10 and 3 < empty < 37  # cyclic and empty cases both occur


def random_part(rng, depth):
    """Return a random query in which the variables X and Y may occur."""
    if depth == 0:
        return rng.choice([X, X, X, Y, "0", "1"])
    parts = [random_part(rng, depth - 1) for _ in range(2)]
    return rng.choice(
        [
            Proj(rng.choice("rs"), parts[0]),
            Proj(rng.choice("rs"), parts[0]),
            And(tuple(parts)),
            Or(tuple(parts)),
            Diff(*parts),
            Count(parts[0]),
            Exists(rng.choice("XY"), *parts),
        ]
    )


@pytest.mark.parametrize("seed", range(4))
def test_exists_is_the_union_over_its_bindings(seed):
    """Include unions, differences, counts and nested variables."""
    rng = random.Random(f"each-{seed}")
    met = Counter()
    for _ in range(400):
        titles = [str(i) for i in range(5)]
        facts = {(rng.choice(titles), rng.choice("rs"), rng.choice(titles)) for _ in range(12)}
        graph = Graph([Node(title, "n") for title in titles], sorted(facts))
        under = random_part(rng, rng.randint(2, 4))
        if "Y" in find_free_variables(under):
            under = Exists("Y", Anything(), under)
        among = rng.choice([Anything(), Proj("r", "2"), Or(("0", "3"))])
        chosen = evaluate_query(among, graph)
        each = [evaluate_query(bind(under, "X", title), graph) for title in chosen]
        expected = frozenset().union(*each)
        query = Exists("X", among, under)
        assert evaluate_query(query, graph) == expected == SqlEngine(graph).answers(query), query
        if "X" in find_free_variables(under) and 0 < len(expected) < 5:
            met.update(map(type, walk(under)))
    assert all(met[kind] > 20 for kind in (And, Or, Diff, Count, Exists)), met


def test_order_of_conditions_does_not_matter():
    rng = random.Random("order")
    for _ in range(60):
        conditions = random_conditions(rng)
        titles = [str(i) for i in range(5)]
        facts = {(rng.choice(titles), rng.choice("rs"), rng.choice(titles)) for _ in range(14)}
        graph = Graph([Node(title, "n") for title in titles], sorted(facts))
        first = evaluate_query(join_conditions(conditions, ASKED), graph)
        rng.shuffle(conditions)
        assert evaluate_query(join_conditions(conditions, ASKED), graph) == first


def test_ranges_have_no_triples():
    with pytest.raises(ValueError, match="cannot express"):
        to_triples(Exists("X", Range("r", 0, 1), Proj("s", X)))


# ------------------------------------------------- Exists in the rest of the engine


def test_variable_is_bound_consistently():
    lands = Graph(
        [Node(t, "land") for t in "ABCDEFG"] + [Node(t, "tongue") for t in "uvw"],
        [
            ("A", "near", "F"),
            ("B", "near", "F"),
            ("A", "speaks", "u"),
            ("B", "speaks", "v"),
            ("C", "speaks", "u"),
            ("C", "ally", "A"),
            ("D", "speaks", "u"),
            ("D", "ally", "B"),
            ("E", "ally", "A"),
            ("G", "speaks", "u"),
            ("G", "ally", "C"),
        ],
    )
    both = And((Proj("speaks of", Proj("speaks", X)), Proj("ally of", X)))
    query = Exists("X", Proj("near of", "F"), both)  # as a tree D fits too
    assert evaluate_query(query, lands) == {"C"}
    assert evaluate_query(unfold(query), lands) == {"C", "D"}
    assert "not minimal" not in find_faults(query, lands)
    assert "not minimal" in find_faults(replace(query, of=Proj("ally of", X)), lands)
    anything = replace(query, among=Anything())
    assert evaluate_query(anything, lands) == {"C", "G"}  # G is an ally of C
    used = {("A", "near", "F"), ("C", "speaks", "u"), ("A", "speaks", "u"), ("C", "ally", "A")}
    assert find_used_facts(query, lands) == used
    assert find_required(query, lands) == {"A", "C", "F", "u"}
    assert 0 < measure_effort(query, lands) < math.inf
    assert measure_effort(replace(query, among=Anything()), lands) == math.inf
    assert list_conditions(query) == (
        Exists("X", Proj("near of", "F"), both.parts[0]),
        Exists("X", Proj("near of", "F"), both.parts[1]),
    )


def test_exists_range_must_be_needed():
    """Only B is east of a country with its flag, so the range of X is not needed."""
    graph = Graph(
        [Node(t, "land") for t in "ABCDE"],
        [("A", "east", "B"), ("A", "east", "C"), ("A", "flag", "star"), ("B", "flag", "star")],
    )
    both = And((Proj("flag of", Proj("flag", X)), Proj("east", X)))
    query = Exists("X", "A", both)
    assert (
        evaluate_query(query, graph)
        == {"B"}
        == evaluate_query(replace(query, among=Anything()), graph)
    )
    assert "not minimal" in find_faults(query, graph)
    more = Graph([*graph.nodes.values()], [*graph.facts, ("C", "east", "D"), ("D", "flag", "sun")])
    needed = Graph([*more.nodes.values()], [*more.facts, ("C", "flag", "sun")])
    assert evaluate_query(replace(query, among=Anything()), needed) == {"B", "D"}
    assert "not minimal" not in find_faults(query, needed)


@pytest.fixture(scope="module")
def cyclic():
    """Return cyclic questions of a public world with their answers."""
    world, rng, found = shared_world("cldr"), random.Random("joins"), []
    while len(found) < 6:
        subgraph = draw_dense_subgraph(world.graph, rng)
        for focus in draw_focuses(subgraph, 12, rng):
            query = find_cyclic_question(subgraph, focus, world.graph)
            if query is not None and measure_effort(query, world.graph) <= 60:
                found.append((focus, query))
    return world, found


def test_cyclic_questions_round_trip_as_sentences(cyclic):
    world, found = cyclic
    grammar = load_grammar(world.graph, world.scheme)
    for _, query in found:
        for style in STYLES:
            text = write_sentences(query, grammar.book, style)
            assert text.startswith(("According to Unicode CLDR, there is a", "Find ")), text
            assert read_question(text, grammar) == normalise_query(query), text


def test_variable_names_do_not_change_the_question(cyclic):
    _, found = cyclic
    for _, query in found:
        other = Exists("other", query.among, bind(query.of, query.name, Var("other")))
        assert other != query and normalise_query(other) == normalise_query(query)


def test_unsupported_exists_has_no_sentence(cyclic):
    world, found = cyclic
    grammar = load_grammar(world.graph, world.scheme)
    _, query = found[0]
    assert write_sentences(replace(query, among=Anything()), grammar.book) == ""
    assert write_sentences(Count(query), grammar.book) == ""
    assert write_sentences(Exists("", query.among, Proj("currency of", "Euro")), grammar.book) == ""


def test_solver_answers_cyclic_questions(cyclic):
    world, found = cyclic
    solver = Solver(Toolbox(world))
    for answer, query in found:
        text = write_sentences(query, load_grammar(world.graph, world.scheme).book)
        episode = solver.solve(make_question_task(world, answer, query, text))
        assert episode.correct, text


def test_cyclic_questions_are_not_plain(cyclic):
    """Their variable needs a separate sentence."""
    world, found = cyclic
    grammar = load_grammar(world.graph, world.scheme)
    for _, query in found:
        assert measure_strangeness(query, write_sentences(query, grammar.book), grammar.book) > 0


def test_structured_wording_of_a_guard():
    guarded = Exists("", Proj("money", "Alba"), Proj("border", "Borg"))
    text = render_question(guarded, MAP)
    assert "as there is a money" in text and "call it" not in text


def test_structured_wording_and_graph_name_the_variable(cyclic):
    world, found = cyclic
    for _, query in found:
        text = render_question(query, world.graph)
        assert "(call it X)" in text and len(re.findall(r"\bX\b", text)) >= 3, text
        plot_question_graph(query)
        plt.close("all")
