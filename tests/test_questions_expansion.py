"""Tests of explanation and expansion: the answer never changes and every condition is needed.

Run: python -m pytest tests/test_questions_expansion.py
"""

import random
from collections import Counter

import pytest

from drlib.questions.checks import (
    count_coincidences,
    count_constant_edges,
    count_target_edges,
    find_neighbours,
    is_far,
    is_near,
    leaks,
    measure_effort,
)
from drlib.questions.expansion import (
    Bars,
    add_hop,
    draft_query,
    expand,
    explain,
    find_rivals,
    find_single_things,
    is_identifiable,
    list_layers,
)
from drlib.questions.queries import (
    And,
    Count,
    Diff,
    Or,
    Proj,
    evaluate_query,
    find_compared,
    is_number,
    list_constants,
    measure_depth,
    substitute,
    walk,
)
from drlib.questions.sql_engine import SqlEngine
from tests.shared_worlds import shared_world


@pytest.fixture(scope="module")
def world():
    return shared_world("cldr")


def sample_one_hop_queries(graph, n, seed):
    """Return `n` unverified queries of one hop with their answers."""
    rng, found = random.Random(f"starts-{seed}"), []
    titles = [t for t in sorted(graph.nodes) if is_identifiable(t, graph)]
    while len(found) < n:
        answer = rng.choice(titles)
        query = explain(answer, graph, rng, frozenset((answer,)), 2, 3)
        found += [(answer, query)] if query else []
    return found


def test_explanations_are_exact_and_minimal(world):
    graph, rng = world.graph, random.Random(1)
    for answer, query in sample_one_hop_queries(graph, 60, 1):
        assert evaluate_query(query, graph) == {answer}
        assert 2 <= len(query.parts) <= 3
        assert all(len(evaluate_query(part, graph)) > 1 for part in query.parts)
        banned = frozenset(list_constants(query))
        other = explain(answer, graph, rng, banned, 2, 3)
        assert other is None or not banned & set(list_constants(other))


def test_layer_wise_expansion_matches_webshaper(world):
    """Each expansion keeps the answer, adds a hop to the shortest path and is not redundant
    (arXiv 2507.15061, section 3.3).
    """
    graph, grown = world.graph, 0
    for i, (answer, query) in enumerate(sample_one_hop_queries(graph, 100, 2)):
        rng = random.Random(i)
        for n in range(1, 4):
            nearest = min(list_layers(query))[0]
            assert nearest == n
            new = next(filter(None, (expand(query, graph, rng) for _ in range(10))), None)
            if new is None:
                break
            assert (
                evaluate_query(new, graph) == {answer} == SqlEngine(graph).answers(new)
                if i < 3
                else evaluate_query(new, graph) == {answer}
            )
            assert min(list_layers(new))[0] > nearest and measure_depth(new) > measure_depth(query)
            assert count_target_edges(new) == 0 == count_constant_edges(new, graph)
            query, grown = new, grown + 1
    assert grown > 100


def test_baselines_leave_shortcuts_and_redundancy(world):
    graph, edges = world.graph, {}
    for order in ("layer", "sequential", "random"):
        rng, count = random.Random(order), Counter()
        for answer, query in sample_one_hop_queries(graph, 60, 3):
            for _ in range(2):
                query = expand(query, graph, rng, order) or query
            assert evaluate_query(query, graph) == {answer}
            if measure_depth(query) == 3 or order == "random":
                count += Counter(
                    target=count_target_edges(query), constant=count_constant_edges(query, graph)
                )
        edges[order] = count
    assert edges["layer"]["target"] == edges["layer"]["constant"] == 0
    assert edges["sequential"]["target"] > 20
    assert edges["random"]["target"] > 20 and edges["random"]["constant"] > 20


def test_drafts_do_not_name_answer_or_intermediate_entities(world):
    graph, rng, found = world.graph, random.Random(4), 0
    titles = [t for t in sorted(graph.nodes) if is_identifiable(t, graph)]
    for answer in rng.sample(titles, 300):
        query = draft_query(answer, graph, rng, 3)
        if query is None:
            continue
        found += 1
        assert evaluate_query(query, graph) == {answer} and measure_depth(query) == 3
        on_the_way = [
            evaluate_query(part, graph) for part in walk(query) if not isinstance(part, str)
        ]
        assert not [name for name in list_constants(query) if {name} in on_the_way]
        assert answer in find_single_things(query, graph) >= set(list_constants(query))
        assert graph.neighbours[answer].isdisjoint(list_constants(query))
    assert found > 20


def sample_drafts(graph, n, hops, seed, **settings):
    """Return `n` drafts with `hops` hops and their answers."""
    rng, found = random.Random(f"drafts-{seed}"), []
    titles = [t for t in sorted(graph.nodes) if is_identifiable(t, graph)]
    while len(found) < n:
        answer = rng.choice(titles)
        query = draft_query(answer, graph, rng, hops, **settings)
        found += [(answer, query)] if query else []
    return found


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_rivals_match_brute_force(world, hops):
    """Compare with substituting each entity of the graph for the constant."""
    graph, found = world.graph, 0
    for answer, query in sample_drafts(graph, 12, hops, 5):
        for name in list_constants(query)[:2]:
            wrong = find_rivals(query, name, graph)
            for title in [*wrong, *sorted(graph.nodes)[::7]]:
                others = evaluate_query(substitute(query, name, title), graph) - {answer}
                assert (title in wrong) == bool(others), (query, name, title)
            found += len(wrong)
    assert found > 40


def test_rivals_in_unions_and_unsupported_queries(world):
    graph = world.graph
    krone = Proj("currency of", "Norwegian Krone")
    speaking = Proj("widely spoken language of", "Swahili")
    everywhere, territories = (
        find_rivals(speaking, "Swahili", graph),
        evaluate_query(speaking, graph),
    )
    for title in sorted(graph.nodes):
        values = graph.values(title, "widely spoken language of")
        assert (title in everywhere) == (not values <= territories)
    union = And((Proj("currency of", Or(("Norwegian Krone", "Euro"))), Proj("language of", "x")))
    assert find_rivals(union, "Euro", graph) == find_rivals(
        And((Proj("currency of", "Euro"), union.parts[1])), "Euro", graph
    )
    assert find_rivals(Count(krone), "Norwegian Krone", graph) is None
    assert (
        find_rivals(Diff(Proj("script of", "Latin script"), krone), "Norwegian Krone", graph)
        is None
    )
    twice = And((krone, Proj("former currency of", "Norwegian Krone")))
    assert find_rivals(twice, "Norwegian Krone", graph) is None


def test_stand_ins_keep_the_answer_and_are_minimal(world):
    graph, rng, of_several = world.graph, random.Random(6), 0
    for answer, query in sample_drafts(graph, 80, 1, 6):
        new = expand(query, graph, rng)
        if new is None:
            continue
        assert evaluate_query(new, graph) == {answer}
        stand_ins = [part.of for part in new.parts]
        of_several += sum(len(evaluate_query(part, graph)) > 1 for part in stand_ins)
        for part in new.parts:
            for less in part.of.parts if isinstance(part.of, And) else ():
                weaker = And(tuple(other for other in part.of.parts if other is not less))
                assert evaluate_query(substitute(new, part.of, weaker), graph) != {answer}
    assert of_several > 20


def test_add_hop_replaces_a_farthest_constant(world):
    graph, rng, found = world.graph, random.Random(7), 0
    for answer, query in sample_drafts(graph, 120, 2, 7):
        bars = Bars(find_neighbours(answer, graph), numbers=True)
        new = add_hop(query, graph, rng, bars)
        if new is None:
            continue
        (gone,) = set(list_constants(query)) - set(list_constants(new))
        assert (2, gone) in list_layers(query) and not is_number(gone)
        assert evaluate_query(new, graph) == {answer} and measure_depth(new) == 3
        assert measure_effort(new, graph) >= measure_effort(query, graph)
        assert any(is_far(name, answer, graph) for name in list_constants(new))
        assert not is_near(new, answer, graph)
        hidden = find_single_things(query, graph) - set(list_constants(query))
        new_names = set(list_constants(new)) - set(list_constants(query))
        assert not [name for name in new_names for thing in hidden if leaks(thing, name, graph)]
        found += 1
    assert found > 40


def test_hints_are_allowed_only_with_hints_disabled(world):
    graph, hinted = world.graph, Counter()
    for hints in (True, False):
        rng = random.Random(8)
        for answer, query in sample_drafts(graph, 150, 1, 8):
            new = expand(query, graph, rng, bars=Bars(hints=hints))
            if new:
                hinted[hints] += any(leaks(answer, name, graph) for name in list_constants(new))
    assert hinted[True] == 0 < hinted[False]


def test_drafts_without_numbers_have_no_coincidences(world):
    graph, by_chance = world.graph, Counter()
    for numbers in (True, False):
        for _, query in sample_drafts(graph, 150, 3, 9, numbers=numbers):
            by_chance[numbers] += (
                count_coincidences(query, lambda part: evaluate_query(part, graph)) > 0
            )
    assert by_chance[False] == 0 < by_chance[True]


def test_exact_drafts_use_fewer_ambiguous_conditions(world):
    graph, of_several = world.graph, Counter()
    for vague in (True, False):
        for _, query in sample_drafts(graph, 200, 2, 10, vague=vague):
            inner = (part.of for part in walk(query) if isinstance(part, Proj))
            of_several[vague] += sum(len(evaluate_query(part, graph)) > 1 for part in inner)
    assert 0 < of_several[False] < 0.8 * of_several[True]


def test_exact_drafts_compare_with_unique_entities(world):
    graph, compared, of_several = world.graph, Counter(), Counter()
    for vague in (True, False):
        for _, query in sample_drafts(graph, 200, 3, 11, vague=vague):
            others = (find_compared(part) for part in walk(query) if isinstance(part, Proj))
            counts = [len(evaluate_query(other, graph)) for other in others if other]
            compared[vague] += sum(map(bool, counts))
            of_several[vague] += sum(count > 1 for count in counts)
    assert of_several[True] > 10 and compared[False] > 10 and of_several[False] == 0
