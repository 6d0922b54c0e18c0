"""WebDancer (arXiv 2505.22648, section 2.1): E2HQA and CRAWLQA questions.

E2HQA repeatedly replaces an entity by a description; the answer stays and each round adds one hop.
CRAWLQA asks about crawled pages with count, multi-hop and intersection questions. In the paper a
model writes the questions; here operators do and everything is executed. Not reproduced: the model
that walks through a site, and its quality judge.
"""

import random
from collections.abc import Iterator
from typing import cast

from drlib.questions.checks import find_answer, find_faults
from drlib.questions.expansion import find_known_facts
from drlib.questions.queries import (
    And,
    Count,
    Proj,
    Query,
    evaluate_query,
    list_constants,
    substitute,
    walk,
)
from drlib.questions.wording import TEMPLATES, mentions, render_question
from drlib.worlds.graph import NOTHING, VALUE, Graph, Node
from drlib.worlds.library import next_part

CLICK = "linked page"  # the relation of a crawl's graph
CRAWL_TYPES = ("count", "multi-hop", "intersection")
DRAWS_A_QUESTION = 1000  # draws of pages per requested question


# ---------------------------------------------------------------------------------------- E2HQA


def count_pages_read(query: Query, graph: Graph) -> int:
    """Return the number of distinct titles at which the query's projections start."""
    steps = [part for part in walk(query) if isinstance(part, Proj)]
    return len({title for step in steps for title in evaluate_query(step.of, graph)})


def compute_distances(title: str, graph: Graph) -> dict[str, int]:
    """Return the number of facts between `title` and each node (breadth-first search)."""
    found = {title: 0}
    layer = {title}
    steps = 0
    while layer:
        steps += 1
        near = NOTHING.union(*[graph.neighbours.get(here, NOTHING) for here in layer])
        layer = near.difference(found)  # `near - found.keys()` goes through all that was found
        found |= dict.fromkeys(layer, steps)
    return found


def e2hqa(query: Query, graph: Graph, rng: random.Random, n: int) -> list[Query]:
    """Return `query` and up to `n` successively harder queries with the same answer.

    A round replaces an entity by a projection that identifies it, from a page one fact farther
    from the answer: one more page is read and no shorter path exists. No name of a replaced entity
    remains.

    Raises:
        ValueError: `query` does not have exactly one answer.
    """
    answer = find_answer(query, graph)
    if answer is None:
        raise ValueError(f"E2HQA needs a query with exactly one answer, not {query!r:.80}")
    away = compute_distances(answer, graph)
    made = [query]
    hidden = [
        graph.nodes.get(answer, Node(answer, VALUE))
    ]  # their names must not appear in the question
    for _ in range(n):
        before = count_pages_read(made[-1], graph)
        steps = [
            (node, new)
            for node, new in _iter_replacements(made[-1], graph, away)
            if count_pages_read(new, graph) == before + 1
            and not _names_any(render_question(new, graph), [*hidden, node])
        ]
        if not steps:
            break
        node, new = rng.choice(steps)
        made.append(new)
        hidden.append(node)
    return made


def _iter_replacements(
    query: Query, graph: Graph, away: dict[str, int]
) -> Iterator[tuple[Node, Query]]:
    """Yield (entity, new query) for each description that identifies it from one fact farther
    away.
    """
    for entity in sorted({*list_constants(query)} & away.keys()):
        for description, fits in find_known_facts(entity, graph):
            start = cast(str, description.of)
            means_it_alone = len(fits) == 1 and not graph.is_value(start)
            if means_it_alone and away[start] == away[entity] + 1:
                yield graph.nodes[entity], substitute(query, entity, description)


def _names_any(text: str, nodes: list[Node]) -> bool:
    """Return True if `text` mentions a name of a node."""
    return any(mentions(text, name) for node in nodes for name in (node.title, *node.aliases))


# -------------------------------------------------------------------------------------- CRAWLQA


def crawl(world, root: str, limit: int = 1000) -> Graph:
    """Return the link graph of the first `limit` pages reached breadth-first from `root`."""
    links: dict[str, list[str]] = {}
    queue = [root]
    for title in queue:  # grows while it is read
        if title in links or len(links) == limit:
            continue
        links[title] = []
        part: str | None = title
        while part:  # of a long page
            page = world.page(part)
            links[title] += [to for to in page.links if to != title]
            part = next_part(page.text)
        queue += links[title]
    nodes = [Node(title, "page") for title in dict.fromkeys(queue)]
    return Graph(nodes, [(title, CLICK, to) for title, some in links.items() for to in some])


def draw_crawl_questions(graph: Graph, n: int, rng: random.Random) -> list[dict]:
    """Draw `n` rows {question, answer, tag, type, query} about a crawled graph.

    The types alternate. Each query has one answer, minimal conditions and no linked constants.

    Raises:
        ValueError: there are fewer questions.
    """
    back = graph.adjacent.get(f"{CLICK} of", {})
    shared = sorted(page for page, some in back.items() if len(some) > 1)
    found: dict[Query, dict] = {}
    for _ in range(DRAWS_A_QUESTION * n if shared else 0):
        kind = CRAWL_TYPES[len(found) % len(CRAWL_TYPES)]
        query = _draw_crawl_query(kind, rng.choice(shared), graph, rng)
        # links are the subject here, so short chains and adjacent constants are allowed
        if query is not None and {*find_faults(query, graph)} <= {"shallow", "shortcut", "near"}:
            found[query] = {
                "question": render_question(query, graph, rng.randrange(TEMPLATES)),
                "answer": find_answer(query, graph),
                "tag": "crawlqa",
                "type": kind,
                "query": query,
            }
        if len(found) == n:
            return [*found.values()]
    raise ValueError(f"only {len(found)} of {n} questions about these links: crawl more pages")


def _draw_crawl_query(kind: str, page: str, graph: Graph, rng: random.Random) -> Query | None:
    """Return a query on the pages linked from two pages, or None if a second click is unknown."""
    back = graph.adjacent[f"{CLICK} of"]
    first, second = rng.sample(sorted(back[page]), 2)
    if kind == "multi-hop":
        first = rng.choice(sorted(back.get(first, [first])))
        if not graph.values(first, CLICK) <= graph.adjacent[CLICK].keys():
            return None
        clicks = Proj(CLICK, Proj(CLICK, first))
    else:
        clicks = Proj(CLICK, first)
    both = And((clicks, Proj(CLICK, second)))
    return Count(both) if kind == "count" else both
