"""Question families of WebDancer and WebWalker, and the loop that makes a question harder.

E2HQA (WebDancer, arXiv 2505.22648, section 2.1) replaces an entity of an easy question by a
description of it, again and again: the answer stays, each round costs one look-up more. CRAWLQA
asks about pages that were crawled: how many, which after two clicks, which from both. WebWalker
(2501.07572) asks what stands deep in a site: `Site` is one made for it. `rounds` is the loop of
Tongyi DeepResearch's data engine, where what a round asks seeds the next one.

A model writes these in the papers; here operators do, and everything is executed. Left out: the
explorer and the critic that walk through a site.
"""

import random
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from drlib.synthesis.checks import answer_of, faults
from drlib.synthesis.engine import OPERATORS, known_by
from drlib.synthesis.queries import And, Count, Proj, Query, constants, evaluate, substitute, walk
from drlib.synthesis.wording import TEMPLATES, render, says
from drlib.worlds.fictional import SYLLABLES
from drlib.worlds.graph import VALUE, Graph, Node
from drlib.worlds.library import next_part
from drlib.worlds.world import Page

LINK = "linked page"
STAGES = {  # of a round, and the operators that do it; each grounds its result in the facts
    "knowledge expansion": ("widen", "deepen"),
    "conceptual abstraction": ("abstract", "fuzz"),
    "computational formulation": ("compute", "difference"),
}
DIFFICULTY = {2: "easy", 3: "medium", 4: "hard"}  # by clicks to a source


def look_ups(query: Query, graph: Graph) -> int:
    """How many titles the query's projections start from: each is looked up once."""
    steps = [part for part in walk(query) if isinstance(part, Proj)]
    return len({title for step in steps for title in evaluate(step.of, graph)})


def distances(title: str, graph: Graph) -> dict[str, int]:
    """How many facts each node is away from `title`, by breadth-first search."""
    found, layer, steps = {title: 0}, [title], 0
    while layer:
        steps += 1
        layer = sorted({t for near in layer for t in graph.neighbours.get(near, ())} - found.keys())
        found |= dict.fromkeys(layer, steps)
    return found


def e2hqa(query: Query, graph: Graph, rng: random.Random, n: int) -> list[Query]:
    """`query` and up to `n` harder ones, each made from the one before, all of one answer.

    A round puts in an entity's place a projection that means it alone, from a page one fact further
    from the answer: one look-up more, and no shorter way leads there. No name or alias of what was
    replaced is left in the question. ValueError: `query` has not exactly one answer.
    """
    if (answer := answer_of(query, graph)) is None:
        raise ValueError(f"E2HQA starts from a question of one answer, not from {query!r:.80}")
    away, made = distances(answer, graph), [query]
    hidden = [graph.nodes.get(answer, Node(answer, VALUE))]
    for _ in range(n):
        steps = [
            (graph.nodes[entity], substitute(made[-1], entity, told))
            for entity in sorted({*constants(made[-1])} & away.keys())
            for told, fits in known_by(entity, graph)
            if len(fits) == 1 and not graph.is_value(told.of) and away[told.of] == away[entity] + 1
        ]
        steps = [
            (node, new)
            for node, new in steps
            if look_ups(new, graph) == look_ups(made[-1], graph) + 1
            and not any(
                says(render(new, graph), name)
                for gone in (*hidden, node)
                for name in (gone.title, *gone.aliases)
            )
        ]
        if not steps:
            break
        node, new = rng.choice(steps)
        made.append(new)
        hidden.append(node)
    return made


def crawl(world, root: str, limit: int = 1000) -> Graph:
    """The link graph of the first `limit` pages that breadth-first clicks from `root` open."""
    links, queue = {}, [root]
    for title in queue:  # grows while it is read
        if title in links or len(links) == limit:
            continue
        links[title], part = [], title
        while part:  # of a long page
            page = world.page(part)
            links[title] += [to for to in page.links if to != title]
            part = next_part(page.text)
        queue += links[title]
    nodes = [Node(title, "page") for title in dict.fromkeys(queue)]
    return Graph(nodes, [(title, LINK, to) for title, some in links.items() for to in some])


def crawl_questions(graph: Graph, n: int, rng: random.Random) -> list[dict]:
    """`n` rows {question, answer, tag, type, query} about a `crawl`; the types "count", "multi-hop"
    and "intersection" take turns. Each is verified on the links: one answer, no condition that
    could go, no constant that links to another. ValueError: too few."""
    back, found = graph.adjacent.get(f"{LINK} of", {}), {}
    shared = sorted(page for page, some in back.items() if len(some) > 1)
    for page in (rng.choice(shared) for _ in range(1000 * n * bool(shared))):
        kind = ("count", "multi-hop", "intersection")[len(found) % 3]
        a, b = rng.sample(sorted(back[page]), 2)
        if kind == "multi-hop":
            a = rng.choice(sorted(back.get(a, [a])))
            if not graph.values(a, LINK) <= graph.adjacent[LINK].keys():
                continue  # some second clicks are not known
        clicks = Proj(LINK, Proj(LINK, a) if kind == "multi-hop" else a)
        query = And((clicks, Proj(LINK, b)))
        query = Count(query) if kind == "count" else query
        if not {*faults(query, graph)} - {"shallow", "shortcut"}:  # links are what is asked
            found[query] = {
                "question": render(query, graph, rng.randrange(TEMPLATES)),
                "answer": answer_of(query, graph),
                "tag": "crawlqa",
                "type": kind,
                "query": query,
            }
        if len(found) == n:
            return [*found.values()]
    raise ValueError(f"only {len(found)} of {n} questions about these links: crawl more pages")


def rounds(query: Query, graph: Graph, rng: random.Random, n: int) -> Iterator[tuple[str, Query]]:
    """(stage, query) of `n` rounds of expansion, abstraction and formulation; every query has the
    answer of the first, no fault, and costs a solver more pages than the one before. A stage whose
    operators find nothing in 20 draws is left out."""
    for _ in range(n):
        for stage, names in STAGES.items():
            draws = (OPERATORS[rng.choice(names)](query, graph, rng) for _ in range(20))
            if (new := next((q for q in draws if q is not None), None)) is not None:
                query = new
                yield stage, query


# ------------------------------------------------------------------------------------ WebWalker


class Site(NamedTuple):
    """Pages by URL (their links are URLs) and the rows of WebWalkerQA about two of its leaves."""

    root: str
    pages: dict[str, Page]
    rows: list[dict]


def make_site(seed: int | str, size: int = 40, depth: int = 4, links: int = 4) -> Site:
    """A site of `size` pages: two golden leaves `depth` clicks deep, the rest leads astray.

    Every page but the root tells the members of what it is about; a page links to at most `links`
    deeper ones and to the root. ValueError: the numbers do not fit together.
    """
    if not (2 <= depth <= 4 and 2 * depth < size <= sum(links**i for i in range(depth + 1))):
        raise ValueError(f"{size} pages do not fit: depth {depth} (2 to 4), {links} links a page")
    rng = random.Random(f"site-{seed}")
    names = {"".join(rng.choices(SYLLABLES, k=4)).capitalize(): 0 for _ in range(4 * size)}
    # two of four digits make five: no page shows the sum of two others
    titles, members = [*names][:size], rng.sample(range(5000, 10000), size)
    path, below = {0: (0,)}, {i: [] for i in range(size)}  # page -> the pages down to it, its links
    for i in range(1, size):
        free = [p for p in path if len(path[p]) <= depth and len(below[p]) < links]
        parent = rng.choice(free) if i > 2 * depth else 0 if i % depth == 1 else i - 1
        below[parent].append(i)
        path[i] = (*path[parent], i)
    root = f"https://{titles[0].lower()}.example/"
    url = [root + "/".join(titles[p].lower() for p in path[i][1:]) for i in range(size)]
    pages = {}
    for i in range(size):
        some = rng.sample(below[i], len(below[i]))
        lines = [
            f"# {titles[i]}",
            *[f"{titles[i]} has {members[i]} members."] * (i > 0),
            *(f"- [{titles[b]}]({url[b]})" for b in some),
        ]
        pages[url[i]] = Page(titles[i], url[i], "\n".join(lines), (*(url[b] for b in some), root))

    def row(*leaves: int) -> dict:
        both = len(leaves) == 2
        info = {
            "Hop": ("single-source", "multi-source")[both],
            "Domain": "organization",
            "Language": "en",
            "Difficulty_Level": DIFFICULTY[depth],
            "Source_Website": [url[leaf] for leaf in leaves],
            "Golden_Path": [
                "root->" + ">".join(titles[p] for p in path[leaf][1:]) for leaf in leaves
            ],
        }
        told = " and ".join(titles[leaf] for leaf in leaves)
        asked = ("does {} have?", "do {} have together?")[both].format(told)
        return {
            "Question": f"How many members {asked}",
            "Answer": str(sum(members[leaf] for leaf in leaves)),
            "Root_Url": root,
            "Info": info,
        }

    return Site(root, pages, [row(depth), row(2 * depth), row(depth, 2 * depth)])


def answer_from(memory: Iterable[str], row: dict) -> str | None:
    """The answer to a row of a `Site`, if the texts in `memory` suffice for it; else None."""
    text, leaves = "\n".join(memory), [path.split(">")[-1] for path in row["Info"]["Golden_Path"]]
    told = [re.search(rf"^{leaf} has (\d+) members\.$", text, re.MULTILINE) for leaf in leaves]
    return str(sum(int(found[1]) for found in told)) if all(told) else None
