"""Random queries on a graph, and an evaluator that checks one entity at a time.

`satisfies` shares only the meaning of the algebra with the library's engines: it checks whether an
entity matches, while they compute sets. `answers` checks every node by brute force.
"""

import random
from functools import lru_cache

from drlib.questions.queries import (
    And,
    Anything,
    Count,
    Diff,
    Exists,
    Extreme,
    Or,
    Proj,
    Range,
    bind,
    evaluate_query,
)
from drlib.worlds import load_world
from drlib.worlds.graph import Graph, Node, inverse


def tour_graph():
    return load_world("tour").graph


def small_graph():
    """Return a graph of two rivers and three towns that can be checked by hand."""
    nodes = [
        Node("Alba", "town"),
        Node("Borg", "town", ("Burg",)),
        Node("Cove", "town"),
        Node("Rin", "river"),
        Node("Sava", "river", ("Sau",)),
        Node("Nord", "region"),
        Node("Sund", "region"),
    ]
    facts = [
        ("Alba", "river", "Rin"),
        ("Borg", "river", "Rin"),
        ("Cove", "river", "Sava"),
        ("Alba", "region", "Nord"),
        ("Borg", "region", "Sund"),
        ("Cove", "region", "Sund"),
        ("Alba", "founding year", "1412"),
        ("Borg", "founding year", "1417"),
        ("Cove", "founding year", "1423"),
        ("Rin", "length", "57"),
        ("Sava", "length", "940"),
    ]
    return Graph(nodes, facts)


def satisfies(title, query, graph):
    """Return True if `title` matches `query`, judged from its neighbouring facts."""
    match query:
        case str():
            return title == query
        case Proj(relation, of):
            return any(satisfies(v, of, graph) for v in graph.values(title, inverse(relation)))
        case And(parts):
            return all(satisfies(title, part, graph) for part in parts)
        case Or(parts):
            return any(satisfies(title, part, graph) for part in parts)
        case Diff(left, right):
            return satisfies(title, left, graph) and not satisfies(title, right, graph)
        case Range(relation, low, high):
            return any(low <= n <= high for n in _numbers(title, relation, graph))
        case Extreme(relation, of, most):
            ranked = {
                n: title for title in answers(of, graph) for n in _numbers(title, relation, graph)
            }
            own = satisfies(title, of, graph) and _numbers(title, relation, graph)
            return bool(own) and (max if most else min)(ranked) in own
        case Count(of):
            return title == str(len(answers(of, graph)))
        case Anything():
            return title in graph.nodes
        case Exists(name, among, of):
            return any(
                satisfies(title, bind(of, name, chosen), graph) for chosen in answers(among, graph)
            )
    raise TypeError(query)


def _numbers(title, relation, graph):
    return [int(v) for v in graph.values(title, relation) if v.isdigit()]


@lru_cache(maxsize=1 << 10)
def answers(query, graph):
    return frozenset(title for title in graph.nodes if satisfies(title, query, graph))


def explain(title, graph, rng, depth, width=2):
    """Return a query that `title` matches: a constant at depth 0, else up to `width` facts."""
    around = [
        (r, v) for r in graph.relations.get(title, ()) for v in sorted(graph.values(title, r))
    ]
    if depth == 0 or not around:
        return title
    facts = rng.sample(around, min(width, len(around)))
    parts = tuple(
        Proj(
            inverse(r),
            v if graph.is_value(v) else explain(v, graph, rng, rng.randrange(depth), width),
        )
        for r, v in facts
    )
    return And(parts) if len(parts) > 1 else parts[0]


def unique_queries(graph, n, seed, depth=2, width=2):
    """Return `n` different queries with a page as their only answer."""
    rng, found = random.Random(f"unique-{seed}"), {}
    pages = [title for title in graph.nodes if not graph.is_value(title)]
    for _ in range(200 * n):
        title = rng.choice(pages)
        query = explain(title, graph, rng, depth, width)
        if not isinstance(query, str) and evaluate_query(query, graph) == {title}:
            found[repr(query)] = (query, title)
        if len(found) == n:
            return list(found.values())
    raise AssertionError(f"only {len(found)} of {n}")


def any_query(graph, rng, depth=3):
    """Return a random query, possibly without an answer."""
    titles = sorted(graph.nodes)
    relations = sorted(graph.adjacent)
    if depth == 0:
        return rng.choice(titles)

    def inside():
        return any_query(graph, rng, depth - 1)

    forward = [r for r in relations if not r.endswith(" of")]
    low = rng.randint(0, 60)
    return rng.choice(
        (
            lambda: Proj(rng.choice(relations), inside()),
            lambda: Proj(rng.choice(relations), inside()),
            lambda: And((inside(), inside())),
            lambda: Or((inside(), inside())),
            lambda: Diff(inside(), inside()),
            lambda: Range(rng.choice(forward), low, low + 1500),
            lambda: Extreme(rng.choice(forward), inside(), rng.random() < 0.5),
            lambda: Count(inside()),
        )
    )()
