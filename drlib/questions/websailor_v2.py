"""WebSailor-V2 (arXiv 2509.13305, section 3): questions from dense subgraphs with cycles.

Random walks that return to visited nodes give dense subgraphs. One subgraph per shape
(Weisfeiler-Leman hash) is kept, and questions are spread evenly over the orbits of its nodes. A
cycle is worded as two paths that meet in an unnamed node, so a solver must find where it closes.
Simplified: orbits are colour classes. Not reproduced: statistics per entity and the real-web
environment.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from itertools import product

import networkx as nx

from drlib.questions.checks import find_faults, find_first_fault, is_near, leaks
from drlib.questions.expansion import are_all_needed
from drlib.questions.queries import (
    And,
    Diff,
    Exists,
    Proj,
    Query,
    Var,
    evaluate_query,
    list_constants,
    substitute,
)
from drlib.worlds.graph import Graph, inverse

EXTRA_PATHS = 200  # extra facts tried to exclude other answers
EXTRA_FACTS = 12  # facts tried for the node where a cycle closes
RETURN_SHARE = 0.6  # probability of closing a cycle if possible
WALKS = 200  # walks until the search for a subgraph stops
STEPS_A_PAGE = 20  # steps of a walk per requested page
COLOURS = {"node_attr": "kind", "edge_attr": "relation"}


# ------------------------------------------------------------------------------------ subgraphs


def draw_dense_subgraph(
    graph: Graph, rng: random.Random, size: int = 12, cycles: int = 3
) -> nx.Graph:
    """Return a connected subgraph of `size` pages with at least `cycles` independent cycles.

    Nodes have the attribute "kind", edges "relation" (all relations that join the two).

    Raises:
        ValueError: `WALKS` walks found none.
    """
    starts = [title for title in graph.neighbours if not graph.is_value(title)]
    for _ in range(WALKS if starts else 0):
        found = _walk_randomly(graph, rng.choice(starts), rng, size)
        if len(found) == size and count_cycles(found) >= cycles:
            nx.set_node_attributes(found, {t: graph.nodes[t].kind for t in found}, "kind")
            return found
    raise ValueError(f"no subgraph of {size} pages and {cycles} cycles: ask for fewer")


def _walk_randomly(graph: Graph, here: str, rng: random.Random, size: int) -> nx.Graph:
    """Return the subgraph of a random walk that prefers to close cycles."""
    found = nx.Graph()
    for _ in range(STEPS_A_PAGE * size):
        near = [t for t in sorted(graph.neighbours[here] - {here}) if not graph.is_value(t)]
        known = [t for t in near if t in found]
        back = [t for t in known if not found.has_edge(here, t)]
        new = [t for t in near if t not in found] if len(found) < size else []
        closing = [t for t in new if len(graph.neighbours[t] & found.nodes) > 1]
        closes_a_cycle = rng.random() < RETURN_SHARE
        choice = (closes_a_cycle and (back or closing)) or new or back or known
        if not choice:
            break
        there = rng.choice(choice)
        first, second = sorted((here, there))
        relation = "/".join(list_joining_relations(first, second, graph))
        found.add_edge(here, there, relation=relation)
        here = there
    return found


def count_cycles(subgraph: nx.Graph) -> int:
    """Return the number of independent cycles of a connected graph: edges - nodes + 1."""
    return subgraph.number_of_edges() - len(subgraph) + 1


def list_joining_relations(a: str, b: str, graph: Graph) -> list[str]:
    """Return the relations from `a` to `b`, inverses included."""
    return [relation for relation in graph.relations[a] if b in graph.values(a, relation)]


def select_distinct_shapes(subgraphs: Iterable[nx.Graph]) -> list[nx.Graph]:
    """Return the first subgraph of each Weisfeiler-Leman hash."""
    shapes: dict[str, nx.Graph] = {}
    for found in subgraphs:
        shape = nx.weisfeiler_lehman_graph_hash(found, **COLOURS, iterations=4)
        shapes.setdefault(shape, found)
    return list(shapes.values())


def group_orbits(subgraph: nx.Graph) -> list[list[str]]:
    """Return the nodes by structural role, their stable Weisfeiler-Leman colour."""
    rounds = nx.weisfeiler_lehman_subgraph_hashes(subgraph, **COLOURS, iterations=len(subgraph))
    classes: dict[str, list[str]] = {}
    for node in sorted(subgraph):
        colour = rounds[node][-1]
        classes.setdefault(colour, []).append(node)
    return sorted(classes.values())


def draw_focuses(subgraph: nx.Graph, n: int, rng: random.Random) -> list[str]:
    """Draw `n` nodes to ask about; the counts of two orbits differ by at most one."""
    classes = group_orbits(subgraph)
    rng.shuffle(classes)
    return [rng.choice(classes[i % len(classes)]) for i in range(n)]


# ------------------------------------------------------------------------------------ questions


def find_cyclic_question(subgraph: nx.Graph, focus: str, graph: Graph) -> Query | None:
    """Return a verified query for `focus` along a cycle of 4 to 6 nodes, or None.

    No node of the cycle is named. The node opposite to the focus is bound by `Exists` among the
    things that share a fact outside the cycle with it.
    """
    rings = _list_rings(subgraph, focus)
    extra = _draw_extra_paths(focus, graph) if rings else []
    for ring in rings:
        meeting = ring[len(ring) // 2]
        facts = _list_outside_facts(meeting, ring, graph)
        for named, among in product(
            _list_named_queries(ring, extra, graph) if facts else (), facts
        ):
            query = Exists("X", among, substitute(named, meeting, Var("X")))
            # a choice has thousands of members: check the cheap faults first
            if is_near(query, focus, graph) or _leaks_answer(query, focus, graph):
                continue
            if evaluate_query(query, graph) == {focus} and not find_first_fault(query, graph):
                return query
    return None


def _leaks_answer(query: Query, focus: str, graph: Graph) -> bool:
    """Return True if a constant of `query` reveals the focus."""
    return any(leaks(focus, name, graph) for name in list_constants(query))


def _list_named_queries(
    ring: Sequence[str], extra: Sequence[tuple[Query, frozenset[str]]], graph: Graph
) -> list[Query]:
    """Return the queries along a cycle that only its first node answers.

    They name the opposite node, and exclude it if it would be an answer too.
    """
    focus, middle = ring[0], len(ring) // 2
    one_way = _build_path_query(ring[: middle + 1], graph)
    other_way = _build_path_query(ring[middle:][::-1], graph)
    drafts = (
        draft
        for query in _iter_enriched((one_way, other_way), extra, graph)
        for draft in (query, Diff(query, ring[middle]))
    )
    return [draft for draft in drafts if evaluate_query(draft, graph) == {focus}]


def _list_outside_facts(title: str, ring: Sequence[str], graph: Graph) -> list[Query]:
    """Return up to `EXTRA_FACTS` conditions on `title` that name a page outside the ring,
    widest first.
    """
    facts = [
        Proj(inverse(relation), value)
        for relation in graph.relations[title]
        for value in sorted(graph.values(title, relation) - {*ring})
        if not graph.is_value(value)  # no page lists what has a value
    ]
    some = random.Random(title).sample(facts, min(len(facts), EXTRA_FACTS))
    return sorted(some, key=lambda fact: -len(evaluate_query(fact, graph)))


def _list_rings(subgraph: nx.Graph, focus: str) -> list[list[str]]:
    """Return the cycles of 4 to 6 nodes through `focus` in one direction, shortest first."""
    found = []
    for cycle in nx.simple_cycles(subgraph, length_bound=6):
        if focus in cycle and len(cycle) > 3:
            start = cycle.index(focus)
            ring = [*cycle[start:], *cycle[:start], focus]
            found.append(min(ring, ring[::-1]))
    return sorted(found, key=lambda ring: (len(ring), ring))


def find_bridge_question(
    subgraph: nx.Graph, focus: str, graph: Graph
) -> tuple[Query, tuple[str, str]] | None:
    """Return a verified query for `focus` and a bridge of `subgraph` that it needs, or None.

    Without the facts between the bridge's ends `focus` is no answer in the whole graph.
    """
    extra = _draw_extra_paths(focus, graph)
    for bridge in sorted(nx.bridges(subgraph)):
        without = nx.restricted_view(subgraph, (), [bridge])
        near = nx.node_connected_component(without, focus)
        for anchor in sorted(set(subgraph) - near):
            path = _build_path_query(nx.shortest_path(subgraph, focus, anchor), graph)
            for query in _iter_enriched((path,), extra, graph):
                if (
                    evaluate_query(query, graph) == {focus}
                    and not find_faults(query, graph)
                    and focus not in evaluate_query(query, _remove_edge(graph, *bridge))
                ):
                    return query, bridge
    return None


def _remove_edge(graph: Graph, a: str, b: str) -> Graph:
    """Return a shallow copy of `graph` without the facts between `a` and `b`, for
    `evaluate_query` only.
    """
    found = copy(graph)
    found.adjacent = dict(graph.adjacent)
    for relation, rows in graph.adjacent.items():
        less = {
            one: rows[one] - {other}
            for one, other in ((a, b), (b, a))
            if other in rows.get(one, ())
        }
        if less:
            found.adjacent[relation] = rows | less
    return found


def _build_path_query(nodes: Sequence[str], graph: Graph) -> Query:
    """Return the query for the start of a path whose end is named."""
    query: Query = nodes[-1]
    for a, b in reversed(list(zip(nodes, nodes[1:]))):
        query = Proj(inverse(list_joining_relations(a, b, graph)[0]), query)
    return query


def _draw_extra_paths(focus: str, graph: Graph) -> list[tuple[Query, frozenset[str]]]:
    """Return sampled paths of two facts from `focus`, with their answers."""
    near = graph.neighbours[focus]
    paths = [
        [focus, by, end]
        for by in sorted(near)
        for end in sorted(graph.neighbours[by] - near - {focus})
    ]
    some = random.Random(focus).sample(paths, min(len(paths), EXTRA_PATHS))
    queries = [_build_path_query(path, graph) for path in some]
    return [(query, evaluate_query(query, graph)) for query in queries]


def _iter_enriched(
    arms: Sequence[Query], extra: Sequence[tuple[Query, frozenset[str]]], graph: Graph
) -> Iterator[Query]:
    """Yield the intersections of `arms` and at most one extra path that are minimal and have
    at most two answers.
    """
    sets = [evaluate_query(arm, graph) for arm in arms]
    both = frozenset.intersection(*sets)
    if len(both) < 3 and are_all_needed(sets, len(both)):
        yield And(tuple(arms)) if len(arms) > 1 else arms[0]
    for query, found in extra:
        left = both & found
        if len(left) < 3 and are_all_needed([*sets, found], len(left)):
            yield And((*arms, query))
