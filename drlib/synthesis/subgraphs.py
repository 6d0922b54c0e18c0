"""Questions from dense subgraphs with cycles, spread over structural roles (WebSailor-V2).

A tree of facts can be climbed from its leaves. SailorFog-QA-V2 (arXiv 2509.13305, section 3) walks
at random on a graph, comes back to nodes it knows so that cycles close, keeps one subgraph of each
shape (Weisfeiler-Leman), and asks evenly about the *orbits* of its nodes. On top come distractors
and facts that no detour avoids (bridges). Here every step is deterministic and every question is a
query that `drlib.synthesis.checks` has executed.

A cycle through the focus is asked as two paths that meet in one named node ("shares its currency
and its language with Austria, and is not Austria"): the algebra has trees only, and a constant can
stand in two places of one. Orbits are colour classes: coarser than true orbits at worst. Left out:
closing a cycle through a node that is not named, and statistics per entity.
"""

import random
from collections.abc import Iterable, Iterator, Sequence

import networkx as nx

from drlib.synthesis.checks import answer_of, conditions, constant_edges, faults
from drlib.synthesis.queries import And, Diff, Proj, Query, evaluate
from drlib.worlds.graph import VALUE, Graph, Node, inverse

MORE = 60  # further facts that are tried to tell the answer from what else fits
RETURN = 0.6  # how often the walk closes a cycle when it can
COLOURS = {"node_attr": "kind", "edge_attr": "relation"}


def dense_subgraph(graph: Graph, rng: random.Random, size: int = 12, cycles: int = 3) -> nx.Graph:
    """A connected subgraph of `size` pages with at least `cycles` independent cycles.

    Nodes carry "kind", edges "relation" (all that join the two). ValueError: 200 walks found none.
    """
    starts = [title for title in graph.neighbours if not graph.is_value(title)]
    for _ in range(200 * bool(starts)):
        found, here = nx.Graph(), rng.choice(starts)
        for _ in range(20 * size):
            near = [t for t in sorted(graph.neighbours[here] - {here}) if not graph.is_value(t)]
            back = [t for t in near if t in found and not found.has_edge(here, t)]
            new = [t for t in near if t not in found] if len(found) < size else []
            closing = [t for t in new if len(graph.neighbours[t] & found.nodes) > 1]
            again = rng.random() < RETURN
            choice = again and (back or closing) or new or back or [t for t in near if t in found]
            if not choice:
                break
            there = rng.choice(choice)
            found.add_edge(here, there, relation="/".join(joins(*sorted((here, there)), graph)))
            here = there
        if len(found) == size and cycle_rank(found) >= cycles:
            nx.set_node_attributes(found, {t: graph.nodes[t].kind for t in found}, "kind")
            return found
    raise ValueError(f"no subgraph of {size} pages and {cycles} cycles: ask for fewer")


def cycle_rank(subgraph: nx.Graph) -> int:
    """Independent cycles of a connected graph: edges - nodes + 1."""
    return subgraph.number_of_edges() - len(subgraph) + 1


def joins(a: str, b: str, graph: Graph) -> list[str]:
    """The relations that lead from `a` to `b`, inverses included."""
    return [relation for relation in graph.relations[a] if b in graph.values(a, relation)]


def one_of_each_shape(subgraphs: Iterable[nx.Graph]) -> list[nx.Graph]:
    """The first subgraph of each Weisfeiler-Leman hash."""
    shapes = {}
    for found in subgraphs:
        shapes.setdefault(nx.weisfeiler_lehman_graph_hash(found, **COLOURS, iterations=4), found)
    return list(shapes.values())


def orbits(subgraph: nx.Graph) -> list[list[str]]:
    """The nodes by structural role: Weisfeiler-Leman colour, refined until it is stable."""
    rounds = nx.weisfeiler_lehman_subgraph_hashes(subgraph, **COLOURS, iterations=len(subgraph))
    classes = {}
    for node in sorted(subgraph):
        classes.setdefault(rounds[node][-1], []).append(node)
    return sorted(classes.values())


def focuses(subgraph: nx.Graph, n: int, rng: random.Random) -> list[str]:
    """`n` nodes to ask about; the counts of any two orbits differ by at most one."""
    classes = orbits(subgraph)
    rng.shuffle(classes)
    return [rng.choice(classes[i % len(classes)]) for i in range(n)]


def cyclic_question(subgraph: nx.Graph, focus: str, graph: Graph) -> Query | None:
    """A verified query for `focus` along one of its cycles of 4 to 6 nodes, or None.

    It has no fault but the one named node where the cycle closes: said twice ("redundant"), and, if
    it would be an answer itself, excluded by its name ("shortcut").
    """
    rings = []
    for cycle in nx.simple_cycles(subgraph, length_bound=6):
        if focus in cycle and len(cycle) > 3:  # from the focus, in the direction that sorts first
            start = cycle.index(focus)
            ring = [*cycle[start:], *cycle[:start], focus]
            rings.append(min(ring, ring[::-1]))
    for ring in sorted(rings, key=lambda ring: (len(ring), ring)):
        middle = len(ring) // 2
        arms = _path(ring[: middle + 1], graph), _path(ring[middle:][::-1], graph)
        for query in _enriched(arms, focus, graph):
            for candidate in (query, Diff(query, ring[middle])):
                if (
                    evaluate(candidate, graph) == {focus}
                    and not constant_edges(candidate, graph)
                    and {*faults(candidate, graph)} <= {"redundant", "shortcut"}
                ):
                    return candidate
    return None


def bridge_question(subgraph: nx.Graph, focus: str, graph: Graph) -> tuple | None:
    """(a verified query for `focus`, a bridge of `subgraph` that no solver can do without): when
    the facts that join the bridge's two ends are gone, `focus` is no answer in the whole graph.
    None: there is none."""
    for bridge in sorted(nx.bridges(subgraph)):
        near = nx.node_connected_component(nx.restricted_view(subgraph, (), [bridge]), focus)
        for anchor in sorted(set(subgraph) - near):
            path = _path(nx.shortest_path(subgraph, focus, anchor), graph)
            for query in _enriched((path,), focus, graph):
                if (
                    evaluate(query, graph) == {focus}
                    and not faults(query, graph)
                    and focus not in evaluate(query, cut(graph, {*bridge}))
                ):
                    return query, bridge
    return None


def cut(graph: Graph, gone: set[str]) -> Graph:
    """`graph` without the facts that are about all of `gone`: two ends of an edge, or one page."""
    return Graph(
        [node for node in graph.nodes.values() if node.kind != VALUE],
        [fact for fact in graph.facts if not gone <= {*fact[::2]}],
    )


def with_distractors(query: Query, graph: Graph, n: int, rng: random.Random) -> Graph:
    """`graph` and `n` invented nodes that share facts with the one answer of `query` and fulfil
    some of its conditions, never all: the answers stay as they are. ValueError: it cannot be done.
    """
    if (answer := answer_of(query, graph)) not in graph.nodes:
        raise ValueError(f"distractors need a question with one node as its answer, not {answer!r}")
    kind, made = graph.nodes[answer].kind, 0
    for _ in range(100 * n):
        first, last = (rng.choice(graph.kinds[kind]).split() for _ in range(2))
        title, dropped = f"{first[0]} {last[-1]}", rng.choice(graph.relations[answer])
        facts = [
            tuple(title if end == answer else end for end in fact)
            for fact in graph.facts
            if answer in fact[::2] and dropped not in (fact[1], inverse(fact[1]))
        ]
        pages = [node for node in graph.nodes.values() if node.kind != VALUE]
        if title not in graph.nodes:
            new = Graph([*pages, Node(title, kind)], [*graph.facts, *facts])
            near = any(title in evaluate(part, new) for part in conditions(query))
            if near and evaluate(query, new) == {answer}:
                graph, made = new, made + 1
        if made == n:
            return graph
    raise ValueError(f"only {made} of {n} distractors for {answer!r} leave it the only answer")


def _path(nodes: list[str], graph: Graph) -> Query:
    """What stands at the start of a path, whose end is named."""
    query = nodes[-1]
    for a, b in reversed(list(zip(nodes, nodes[1:]))):
        query = Proj(inverse(joins(a, b, graph)[0]), query)
    return query


def _enriched(arms: Sequence[Query], focus: str, graph: Graph) -> Iterator[Query]:
    """And of `arms`, and of `arms` and one more path of two facts from `focus`, anywhere: those of
    which all parts are needed and that at most one other thing fits."""
    near = graph.neighbours[focus]
    paths = [
        [focus, by, end]
        for by in sorted(near)
        for end in sorted(graph.neighbours[by] - near - {focus})
    ]
    paths = random.Random(focus).sample(paths, min(len(paths), MORE))
    for parts in ((*arms,), *((*arms, _path(path, graph)) for path in paths)):
        sets = [evaluate(part, graph) for part in parts]
        left = frozenset.intersection(*sets)
        rests = [sets[:i] + sets[i + 1 :] for i in range(len(sets)) if len(sets) > 1]
        if len(left) < 3 and all(len(frozenset.intersection(*rest)) > len(left) for rest in rests):
            yield And(parts) if len(parts) > 1 else parts[0]
