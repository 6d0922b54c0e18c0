"""Tests of WebDancer: E2HQA adds one hop per round and keeps the answer; CRAWLQA."""

import random
from collections import deque

import pytest
from query_examples import answers, small_graph, unique_queries

from drlib.questions.checks import find_faults
from drlib.questions.queries import And, Count, Proj, evaluate_query, list_constants, measure_depth
from drlib.questions.webdancer import (
    compute_distances,
    count_pages_read,
    crawl,
    draw_crawl_questions,
    e2hqa,
)
from drlib.questions.wording import TEMPLATES, mentions, render_question
from drlib.worlds import load_world
from drlib.worlds.graph import Graph, Node
from drlib.worlds.world import Page
from tests.shared_worlds import shared_world

SMALL = small_graph()


@pytest.fixture(scope="module")
def cldr():
    return shared_world("cldr")


# ---------------------------------------------------------------------------------------- E2HQA


def make_chain(n=6):
    """Return a0 <- a1 <- ...: `next` leads one closer to a0; every second thing has an alias."""
    nodes = [Node(f"a{i}", "thing", (f"alias{i}",) * (i % 2)) for i in range(n)]
    return Graph(nodes, [(f"a{i + 1}", "next", f"a{i}") for i in range(n - 1)])


def count_steps(graph, start, goal):
    """Return the fewest facts from `start` to `goal`, by an independent search."""
    queue, seen = deque([(start, 0)]), {start}
    while queue:
        here, steps = queue.popleft()
        if here == goal:
            return steps
        for relation in graph.relations[here]:
            for there in graph.values(here, relation):
                if there not in seen:
                    seen.add(there)
                    queue.append((there, steps + 1))
    raise AssertionError(f"no way from {start} to {goal}")


def test_rounds_replace_names_by_descriptions():
    graph = make_chain()
    versions = e2hqa(Proj("next", "a1"), graph, random.Random(0), 3)
    assert versions == [
        Proj("next", "a1"),
        Proj("next", Proj("next", "a2")),
        Proj("next", Proj("next", Proj("next", "a3"))),
        Proj("next", Proj("next", Proj("next", Proj("next", "a4")))),
    ]
    assert len(e2hqa(Proj("next", "a1"), graph, random.Random(0), 99)) == 5  # the chain ends


def iter_rewritings(graph, n, seed):
    for i, (query, answer) in enumerate(unique_queries(graph, n, seed, 1, 1)):
        yield answer, e2hqa(query, graph, random.Random(f"e2hqa-{i}"), 4)


def test_rounds_add_one_hop_and_keep_the_answer(cldr):
    graph, longest = cldr.graph, 0
    for answer, versions in iter_rewritings(graph, 120, 0):
        longest = max(longest, len(versions) - 1)
        for n, query in enumerate(versions):
            assert evaluate_query(query, graph) == {answer} and measure_depth(query) == n + 1
            assert count_pages_read(query, graph) == n + 1
            (start,) = list_constants(query)
            if not graph.is_value(start) or n:
                assert count_steps(graph, start, answer) == n + 1
    assert longest >= 3


def test_replaced_names_are_absent_from_the_question(cldr):
    graph = cldr.graph
    for answer, versions in iter_rewritings(graph, 60, 1):
        gone = [answer]
        for before, after in zip(versions, versions[1:]):
            (replaced,) = set(list_constants(before)) - set(list_constants(after))
            gone.append(replaced)
            for template in range(TEMPLATES):
                text = render_question(after, graph, template)
                for name in gone:
                    names = (name, *graph.nodes[name].aliases)
                    assert not any(mentions(text, some) for some in names), (text, name)


def test_revealing_pages_are_not_used():
    nodes = [Node("Rin", "river"), Node("Rin Delta", "delta"), Node("Town", "town")]
    graph = Graph(nodes, [("Rin", "town", "Town"), ("Rin Delta", "river", "Rin")])
    assert e2hqa(Proj("town", "Rin"), graph, random.Random(0), 1) == [Proj("town", "Rin")]


def test_several_constants_can_be_replaced():
    query = And((Proj("river of", "Rin"), Proj("region of", "Nord")))
    assert evaluate_query(query, SMALL) == {"Alba"} and count_pages_read(query, SMALL) == 2
    for versions in (e2hqa(query, SMALL, random.Random(i), 2) for i in range(5)):
        assert [count_pages_read(q, SMALL) for q in versions] == [
            2 + i for i in range(len(versions))
        ]
        assert all(answers(q, SMALL) == {"Alba"} for q in versions)


def test_counts_are_not_rewritten():
    count = Count(Proj("river of", "Rin"))
    assert e2hqa(count, SMALL, random.Random(0), 2) == [count]


def test_ambiguous_questions_are_rejected():
    with pytest.raises(ValueError, match="one answer"):
        e2hqa(Proj("river of", "Rin"), SMALL, random.Random(0), 1)


def test_distances_match_breadth_first_search():
    graph = load_world("tour").graph
    away = compute_distances("Norway", graph)
    rng = random.Random("away")
    for title in rng.sample(sorted(away), 30):
        assert count_steps(graph, title, "Norway") == away[title]


# --------------------------------------------------------------------------------------- CRAWLQA


class Web:
    """A world of links only, with a cycle and a page that links to itself."""

    def __init__(self, links):
        self._links, self.opened = links, []

    def page(self, title):
        self.opened.append(title)
        return Page(title, f"x:{title}", f"# {title}", tuple(self._links.get(title, ())))


LINKS = {"root": "ab", "a": "cd", "b": "de", "c": ["root"], "d": "df", "e": "f", "f": "", "z": "a"}


def test_crawl_is_breadth_first_and_limited():
    web = Web(LINKS)
    graph = crawl(web, "root")
    assert web.opened == ["root", "a", "b", "c", "d", "e", "f"]  # each once, z is not linked
    assert graph.values("a", "linked page") == {"c", "d"}
    assert graph.values("d", "linked page") == {"f"}  # self-links are ignored
    short = Web(LINKS)
    assert len(crawl(short, "root", 2)) == 5 and short.opened == ["root", "a"]


def test_all_parts_of_a_long_page_are_read(cldr):
    graph = crawl(cldr, "English", 1)
    near = {t for t in cldr.graph.neighbours["English"] if not cldr.graph.is_value(t)}
    assert len(near) > 60 and graph.values("English", "linked page") == near


def test_crawl_questions_match_the_links(cldr):
    graph = crawl(cldr, "Norway")
    rows = draw_crawl_questions(graph, 12, random.Random(0))
    assert [row["type"] for row in rows] == ["count", "multi-hop", "intersection"] * 4
    links = {}
    for page, _, to in graph.facts:
        links.setdefault(page, set()).add(to)
    for row in rows:
        question, answer, tag, kind, query = row.values()
        assert tag == "crawlqa"
        inner = query.of if isinstance(query, Count) else query
        first, second = (part.of for part in inner.parts)
        if kind == "multi-hop":
            found = set().union(*(links[page] for page in links[first.of])) & links[second]
            assert links[first.of] <= links.keys()  # all intermediate pages were opened
        else:
            found = links[first] & links[second]
        assert answer == str(len(found)) if kind == "count" else {answer} == found
        assert {*find_faults(query, graph)} <= {"shallow", "shortcut", "near"}
        assert all(mentions(question, name) for name in list_constants(query))
    assert rows == draw_crawl_questions(graph, 12, random.Random(0))


def test_too_few_links_is_an_error():
    graph = crawl(Web(LINKS), "root")
    with pytest.raises(ValueError, match="of 50 questions about these links"):
        draw_crawl_questions(graph, 50, random.Random(0))
    with pytest.raises(ValueError, match="only 0 of 1"):
        draw_crawl_questions(crawl(Web({}), "alone"), 1, random.Random(0))
