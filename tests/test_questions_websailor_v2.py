"""Tests of dense subgraphs, cyclic questions and bridge questions."""

import random
from collections import Counter

import networkx as nx
import pytest
from query_examples import answers

from drlib.questions.checks import find_faults
from drlib.questions.queries import (
    And,
    Diff,
    Exists,
    Proj,
    Var,
    bind,
    evaluate_query,
    list_constants,
    walk,
)
from drlib.questions.websailor_v2 import (
    count_cycles,
    draw_dense_subgraph,
    draw_focuses,
    find_bridge_question,
    find_cyclic_question,
    group_orbits,
    list_joining_relations,
    select_distinct_shapes,
)
from drlib.worlds import load_world
from drlib.worlds.graph import Graph, Node
from tests.shared_worlds import shared_world


def remove_facts(graph, gone):
    """Return a new graph without the facts about all of `gone`."""
    pages = [node for title, node in graph.nodes.items() if not graph.is_value(title)]
    return Graph(pages, [fact for fact in graph.facts if not gone <= {fact[0], fact[2]}])


@pytest.fixture(scope="module")
def graph():
    return shared_world("cldr").graph


@pytest.fixture(scope="module")
def subgraphs(graph):
    rng = random.Random("subgraphs")
    return [draw_dense_subgraph(graph, rng) for _ in range(12)]


def make_subgraph(*edges, kind="n"):
    """Return a handmade subgraph of (a, relation, b)."""
    found = nx.Graph()
    for a, relation, b in edges:
        found.add_edge(a, b, relation=relation)
    nx.set_node_attributes(found, kind, "kind")
    return found


# ------------------------------------------------------------------------------------- the walk


def test_subgraphs_are_connected_dense_and_factual(graph, subgraphs):
    for found in subgraphs:
        assert nx.is_connected(found) and len(found) == 12
        assert count_cycles(found) == len(nx.cycle_basis(found)) >= 3
        for a, b, data in found.edges(data=True):
            assert a != b
            assert data["relation"].split("/") in (
                list_joining_relations(a, b, graph),
                list_joining_relations(b, a, graph),
            )
            assert b in graph.neighbours[a]
        assert not any(graph.is_value(title) for title in found)


def test_tour_subgraphs_are_reproducible():
    tour = load_world("tour").graph
    first, second = (draw_dense_subgraph(tour, random.Random(3), 10, 2) for _ in range(2))
    assert list(first.edges(data=True)) == list(second.edges(data=True))
    assert nx.is_connected(first) and count_cycles(first) >= 2


def test_graph_without_cycles_is_rejected():
    tree = Graph([Node(c, "n") for c in "abcd"], [("a", "r", b) for b in "bcd"])
    with pytest.raises(ValueError, match="no subgraph of 3 pages and 1 cycles"):
        draw_dense_subgraph(tree, random.Random(0), 3, 1)
    assert len(draw_dense_subgraph(tree, random.Random(0), 3, 0)) == 3


# --------------------------------------------------------------------------------------- shapes


def test_shapes_are_unique(subgraphs):
    kept = select_distinct_shapes([*subgraphs, *subgraphs])
    hashes = [
        nx.weisfeiler_lehman_graph_hash(s, node_attr="kind", edge_attr="relation", iterations=4)
        for s in kept
    ]
    assert len(set(hashes)) == len(hashes) and 1 < len(kept) <= len(subgraphs)


def test_shapes_depend_on_kinds_and_relations_only():
    first = make_subgraph(("a", "r", "b"), ("b", "r", "c"), ("c", "s", "a"))
    copy = nx.relabel_nodes(first, {"a": "x", "b": "y", "c": "z"})
    other = make_subgraph(("a", "s", "b"), ("b", "r", "c"), ("c", "s", "a"))
    kinds = make_subgraph(("a", "r", "b"), ("b", "r", "c"), ("c", "s", "a"), kind="m")
    assert select_distinct_shapes([first, copy, other, kinds]) == [first, other, kinds]


def test_orbits_group_automorphic_nodes():
    square = make_subgraph(("a", "r", "b"), ("b", "r", "c"), ("c", "r", "d"), ("d", "r", "a"))
    assert group_orbits(square) == [["a", "b", "c", "d"]]
    square.add_edge("a", "tail", relation="r")
    square.nodes["tail"]["kind"] = "n"
    assert group_orbits(square) == [["a"], ["b", "d"], ["c"], ["tail"]]


def test_orbits_are_never_finer_than_exact_ones(subgraphs):
    for found in subgraphs[:6]:
        classes = {node: i for i, members in enumerate(group_orbits(found)) for node in members}
        same = nx.isomorphism.categorical_node_match("kind", None)
        edge = nx.isomorphism.categorical_edge_match("relation", None)
        for mapping in nx.vf2pp_all_isomorphisms(found, found, node_label="kind"):
            if all(
                found.edges[a, b]["relation"] == found.edges[mapping[a], mapping[b]]["relation"]
                for a, b in found.edges
            ):
                assert all(classes[a] == classes[b] for a, b in mapping.items())
        assert nx.is_isomorphic(found, found, same, edge)


@pytest.mark.parametrize("n", [1, 5, 30])
def test_focuses_are_spread_over_the_orbits(subgraphs, n):
    for i, found in enumerate(subgraphs):
        classes = group_orbits(found)
        chosen = draw_focuses(found, n, random.Random(i))
        counts = [sum(node in members for node in chosen) for members in classes]
        assert len(chosen) == n == sum(counts) and max(counts) - min(counts) <= 1


# ------------------------------------------------------------------------------------ questions


def iter_questions(make, subgraphs, graph):
    for i, found in enumerate(subgraphs):
        for focus in draw_focuses(found, 6, random.Random(f"focus-{i}")):
            if (made := make(found, focus, graph)) is not None:
                yield focus, made


def test_cyclic_questions_share_one_unnamed_variable(graph, subgraphs):
    rows = [
        (s, *row) for s in subgraphs for row in iter_questions(find_cyclic_question, [s], graph)
    ]
    assert len(rows) >= 6
    for subgraph, focus, query in rows:
        assert isinstance(query, Exists) and isinstance(query.among, Proj)
        chosen = {t: bind(query.of, query.name, t) for t in answers(query.among, graph)}
        found = {title: answers(way, graph) for title, way in chosen.items()}
        assert frozenset().union(*found.values()) == {focus}  # brute force over all nodes
        assert find_faults(query, graph) == []
        both = query.of.left if isinstance(query.of, Diff) else query.of
        assert isinstance(both, And)
        met = Counter(part.name for part in walk(both) if isinstance(part, Var))
        assert met == {query.name: 2}  # two paths meet in the variable
        inside = subgraph.nodes - {*list_constants(query)}
        meeting = {title for title in found if found[title]} & inside
        cycles = [{*nodes} for nodes in nx.simple_cycles(subgraph, length_bound=6)]
        assert any({focus, title} <= nodes for nodes in cycles for title in meeting)


def make_island():
    """Two squares of towns, guilds and lords, joined by one road."""
    nodes = [Node(t, "town") for t in ("A", "B", "C", "D", "E", "F")]
    nodes += [Node(t, "body") for t in ("g", "h", "i", "j")]
    facts = [
        ("A", "guild", "g"),
        ("A", "lord", "h"),
        ("B", "guild", "g"),
        ("B", "lord", "h"),
        ("B", "road", "C"),
        ("C", "guild", "i"),
        ("C", "lord", "j"),
        ("D", "guild", "i"),
        ("D", "lord", "j"),
    ]
    graph = Graph(nodes, [*facts, ("E", "guild", "g"), ("F", "lord", "h")])
    found = make_subgraph(*facts)
    nx.set_node_attributes(found, {t: graph.nodes[t].kind for t in found}, "kind")
    return graph, found


def test_cycle_and_bridge_of_a_handmade_graph():
    graph, found = make_island()
    assert count_cycles(found) == 2 and list(nx.bridges(found)) == [("B", "C")]
    assert set(nx.articulation_points(found)) == {"B", "C"}
    query = find_cyclic_question(found, "A", graph)
    assert isinstance(query, Exists) and query.among == Proj("road of", "C")  # B, among others
    meeting = Var(query.name)
    assert isinstance(query.of, Diff) and query.of.right == meeting
    assert set(query.of.left.parts) == {
        Proj("guild of", Proj("guild", meeting)),
        Proj("lord of", Proj("lord", meeting)),
    }
    two_roads = Graph([*graph.nodes.values()], [*graph.facts, ("E", "road", "C")])
    assert (
        find_cyclic_question(found, "A", two_roads) is None
    )  # E or B, two of them: a tree says as much
    new = [Node(title, kind) for title, kind in (("H", "town"), ("P", "town"), ("k", "body"))]
    facts = [("H", "road", "C"), ("H", "lord", "k"), ("H", "guild", "m")]
    facts += [("P", "guild", "g"), ("P", "lord", "k")]
    other = Graph([*graph.nodes.values(), *new, Node("m", "body")], [*graph.facts, *facts])
    assert find_cyclic_question(found, "A", other) == query
    as_a_tree = bind(query.of, query.name, query.among)
    assert evaluate_query(as_a_tree, other) == {"A", "P"}  # P has the guild of B, the lord of H
    query, bridge = find_bridge_question(found, "B", graph)
    assert bridge == ("B", "C") and evaluate_query(query, graph) == {"B"}
    assert evaluate_query(query, remove_facts(graph, {"B", "C"})) == set()
    assert find_cyclic_question(nx.path_graph(["A", "g", "B"]), "A", graph) is None


def test_bridge_questions_need_their_bridge(graph, subgraphs):
    rows = list(iter_questions(find_bridge_question, subgraphs[:6], graph))
    assert len(rows) >= 5
    for focus, (query, bridge) in rows:
        assert answers(query, graph) == {focus} and find_faults(query, graph) == []
        assert focus not in evaluate_query(
            query, remove_facts(graph, {*bridge})
        )  # without the fact
        for page in {*bridge} - {focus}:  # without the page
            assert focus not in evaluate_query(query, remove_facts(graph, {page}))


def test_remove_facts():
    graph, _ = make_island()
    assert set(graph.facts) - set(remove_facts(graph, {"B", "C"}).facts) == {("B", "road", "C")}
    gone = set(graph.facts) - set(remove_facts(graph, {"C"}).facts)
    assert gone == {("B", "road", "C"), ("C", "guild", "i"), ("C", "lord", "j")}
