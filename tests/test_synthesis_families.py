"""E2HQA, CRAWLQA, WebWalker sites and the loop of rounds: sections 2.1, 2.2 and 1.10."""

import os
import random
import re
import subprocess
import sys
from collections import deque
from pathlib import Path

import pytest
from query_examples import answers, small_graph, unique_queries

from drlib.synthesis.checks import effort, faults
from drlib.synthesis.engine import synthesize_questions
from drlib.synthesis.families import (
    answer_from,
    crawl,
    crawl_questions,
    distances,
    e2hqa,
    look_ups,
    make_site,
    rounds,
)
from drlib.synthesis.queries import And, Count, Proj, constants, depth, evaluate, from_text
from drlib.synthesis.wording import TEMPLATES, render, says
from drlib.worlds import load_world
from drlib.worlds.graph import Graph, Node
from drlib.worlds.world import Page

SMALL = small_graph()


@pytest.fixture(scope="module")
def cldr():
    return load_world("cldr")


# ---------------------------------------------------------------------------------------- E2HQA


def chain(n=6):
    """a0 <- a1 <- ... : each thing's `next` is one nearer to a0; every second has an alias."""
    nodes = [Node(f"a{i}", "thing", (f"alias{i}",) * (i % 2)) for i in range(n)]
    return Graph(nodes, [(f"a{i + 1}", "next", f"a{i}") for i in range(n - 1)])


def steps_by_search(graph, start, goal):
    """The fewest facts from `start` to `goal`, found by a search of its own."""
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


def test_each_round_replaces_a_name_by_a_description_of_it():
    graph = chain()
    made = e2hqa(Proj("next", "a1"), graph, random.Random(0), 3)
    assert made == [
        Proj("next", "a1"),
        Proj("next", Proj("next", "a2")),
        Proj("next", Proj("next", Proj("next", "a3"))),
        Proj("next", Proj("next", Proj("next", Proj("next", "a4")))),
    ]
    assert len(e2hqa(Proj("next", "a1"), graph, random.Random(0), 99)) == 5  # the chain ends


def rewritings(graph, n, seed):
    for i, (query, answer) in enumerate(unique_queries(graph, n, seed, 1, 1)):
        yield answer, e2hqa(query, graph, random.Random(f"e2hqa-{i}"), 4)


def test_the_answer_stays_and_each_round_costs_one_look_up_more(cldr):
    graph, longest = cldr.graph, 0
    for answer, made in rewritings(graph, 120, 0):
        longest = max(longest, len(made) - 1)
        for n, query in enumerate(made):
            assert evaluate(query, graph) == {answer} and depth(query) == n + 1
            assert look_ups(query, graph) == n + 1
            (start,) = constants(query)
            if not graph.is_value(start) or n:
                assert steps_by_search(graph, start, answer) == n + 1
    assert longest >= 3


def test_no_name_of_what_was_replaced_is_left_in_the_question(cldr):
    graph = cldr.graph
    for answer, made in rewritings(graph, 60, 1):
        gone = [answer]
        for before, after in zip(made, made[1:]):
            (replaced,) = set(constants(before)) - set(constants(after))
            gone.append(replaced)
            for template in range(TEMPLATES):
                text = render(after, graph, template)
                for name in gone:
                    names = (name, *graph.nodes[name].aliases)
                    assert not any(says(text, some) for some in names), (text, name)


def test_a_page_that_tells_the_name_by_itself_is_not_used():
    nodes = [Node("Rin", "river"), Node("Rin Delta", "delta"), Node("Town", "town")]
    graph = Graph(nodes, [("Rin", "town", "Town"), ("Rin Delta", "river", "Rin")])
    assert e2hqa(Proj("town", "Rin"), graph, random.Random(0), 1) == [Proj("town", "Rin")]


def test_several_constants_can_be_replaced():
    query = And((Proj("river of", "Rin"), Proj("region of", "Nord")))
    assert evaluate(query, SMALL) == {"Alba"} and look_ups(query, SMALL) == 2
    for made in (e2hqa(query, SMALL, random.Random(i), 2) for i in range(5)):
        assert [look_ups(q, SMALL) for q in made] == [2 + i for i in range(len(made))]
        assert all(answers(q, SMALL) == {"Alba"} for q in made)


def test_a_number_that_is_counted_has_no_page_to_start_from():
    count = Count(Proj("river of", "Rin"))
    assert e2hqa(count, SMALL, random.Random(0), 2) == [count]


def test_a_question_of_two_answers_is_refused():
    with pytest.raises(ValueError, match="one answer"):
        e2hqa(Proj("river of", "Rin"), SMALL, random.Random(0), 1)


def test_distances_agree_with_another_search():
    graph = load_world("tour").graph
    away = distances("Norway", graph)
    rng = random.Random("away")
    for title in rng.sample(sorted(away), 30):
        assert steps_by_search(graph, title, "Norway") == away[title]


# --------------------------------------------------------------------------------------- CRAWLQA


class Web:
    """A world of nothing but links, with a cycle and a page that links to itself."""

    def __init__(self, links):
        self._links, self.opened = links, []

    def page(self, title):
        self.opened.append(title)
        return Page(title, f"x:{title}", f"# {title}", tuple(self._links.get(title, ())))


LINKS = {"root": "ab", "a": "cd", "b": "de", "c": ["root"], "d": "df", "e": "f", "f": "", "z": "a"}


def test_a_crawl_follows_links_breadth_first_and_stops():
    web = Web(LINKS)
    graph = crawl(web, "root")
    assert web.opened == ["root", "a", "b", "c", "d", "e", "f"]  # each once, z is not linked
    assert graph.values("a", "linked page") == {"c", "d"}
    assert graph.values("d", "linked page") == {"f"}  # a link to itself is none
    short = Web(LINKS)
    assert len(crawl(short, "root", 2)) == 5 and short.opened == ["root", "a"]


def test_all_parts_of_a_long_page_are_read(cldr):
    graph = crawl(cldr, "English", 1)
    near = {t for t in cldr.graph.neighbours["English"] if not cldr.graph.is_value(t)}
    assert len(near) > 60 and graph.values("English", "linked page") == near


def test_typed_questions_are_verified_on_the_links(cldr):
    graph = crawl(cldr, "Norway")
    made = crawl_questions(graph, 12, random.Random(0))
    assert [row["type"] for row in made] == ["count", "multi-hop", "intersection"] * 4
    links = {}
    for page, _, to in graph.facts:
        links.setdefault(page, set()).add(to)
    for row in made:
        question, answer, tag, kind, query = row.values()
        assert tag == "crawlqa"
        inner = query.of if isinstance(query, Count) else query
        first, second = (part.of for part in inner.parts)
        if kind == "multi-hop":
            found = set().union(*(links[page] for page in links[first.of])) & links[second]
            assert links[first.of] <= links.keys()  # every page on the way was opened
        else:
            found = links[first] & links[second]
        assert answer == str(len(found)) if kind == "count" else {answer} == found
        assert {*faults(query, graph)} <= {"shallow", "shortcut"}
        assert all(says(question, name) for name in constants(query))
    assert made == crawl_questions(graph, 12, random.Random(0))


def test_too_few_links_for_so_many_questions():
    graph = crawl(Web(LINKS), "root")
    with pytest.raises(ValueError, match="of 50 questions about these links"):
        crawl_questions(graph, 50, random.Random(0))
    with pytest.raises(ValueError, match="only 0 of 1"):
        crawl_questions(crawl(Web({}), "alone"), 1, random.Random(0))


# -------------------------------------------------------------------------------- the loop


def test_every_round_starts_from_the_one_before_and_costs_more(cldr):
    graph, stages = cldr.graph, set()
    for i, task in enumerate(synthesize_questions(cldr, 8, 3, depth=2)):
        query = from_text(task.query)
        made = list(rounds(query, graph, random.Random(i), 2))
        assert made == list(rounds(query, graph, random.Random(i), 2))
        for stage, harder in made:
            stages.add(stage)
            assert evaluate(harder, graph) == {task.answer} and faults(harder, graph) == []
            assert effort(harder, graph) > effort(query, graph)
            query = harder
    assert stages >= {"knowledge expansion", "conceptual abstraction", "computational formulation"}


# ------------------------------------------------------------------------- any hash seed

SCRIPT = """
import hashlib, random
from query_examples import unique_queries
from drlib.synthesis.families import crawl, crawl_questions, e2hqa, make_site
from drlib.synthesis.obfuscation import obfuscate
from drlib.synthesis.subgraphs import (
    bridge_question, cyclic_question, dense_subgraph, focuses, with_distractors)
from drlib.synthesis.wording import render
from drlib.worlds import load_world
world = load_world("tour")
graph, made = world.graph, []
for i, (query, _) in enumerate(unique_queries(graph, 30, 2)):
    made += [render(query, graph, i), obfuscate(query, graph, random.Random(i)),
             e2hqa(query, graph, random.Random(i), 3)]
for i in range(6):
    found = dense_subgraph(graph, random.Random(i), 10, 2)
    for focus in focuses(found, 4, random.Random(i)):
        made += [cyclic_question(found, focus, graph), bridge_question(found, focus, graph)]
made += [make_site(0), with_distractors(query, graph, 1, random.Random(0)).facts]
made += [sum(map(bool, made)), crawl(world, "Norway").facts]
print(hashlib.sha256(repr(made).encode()).hexdigest())
"""


def test_everything_is_the_same_under_any_hash_seed():
    tests, found = Path(__file__).parent, set()
    for seed in ("0", "1", "77"):
        paths = os.pathsep.join([str(tests.parent), str(tests)])
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environment, text=True, capture_output=True
        )
        assert done.returncode == 0, done.stderr
        found.add(done.stdout)
    assert len(found) == 1


# --------------------------------------------------------------------------------- WebWalker


@pytest.fixture(params=[0, 1, 2])
def site(request):
    return make_site(request.param)


def clicks(site, path):
    """The pages of a golden path, opened by clicking the button of each name."""
    here, opened = site.pages[site.root], []
    for name in path.removeprefix("root->").split(">"):
        (url,) = re.findall(rf"- \[{name}\]\((.+)\)", here.text)
        assert url in here.links
        here = site.pages[url]
        opened.append(here)
    return opened


def test_a_site_has_forty_pages_four_deep_and_every_page_can_be_reached(site):
    assert len(site.pages) == 40
    away, queue = {site.root: 0}, deque([site.root])
    while queue:
        here = queue.popleft()
        for url in site.pages[here].links:
            if url not in away:
                away[url] = away[here] + 1
                queue.append(url)
    assert away.keys() == site.pages.keys() and max(away.values()) == 4
    for page in site.pages.values():
        assert site.root in page.links and len(page.links) <= 5
    leaves = [url for row in site.rows[:2] for url in row["Info"]["Source_Website"]]
    assert len(set(leaves)) == 2 and all(away[url] == 4 for url in leaves)
    assert sum(n == 4 for n in away.values()) > 2  # others are as deep


def test_rows_have_the_released_fields(site):
    single, _, multi = site.rows
    for row in site.rows:
        assert list(row) == ["Question", "Answer", "Root_Url", "Info"]
        assert list(row["Info"]) == [
            "Hop",
            "Domain",
            "Language",
            "Difficulty_Level",
            "Source_Website",
            "Golden_Path",
        ]
        assert row["Root_Url"] == site.root and row["Info"]["Difficulty_Level"] == "hard"
    assert single["Info"]["Hop"] == "single-source" and multi["Info"]["Hop"] == "multi-source"
    assert multi["Info"]["Golden_Path"] == [r["Info"]["Golden_Path"][0] for r in site.rows[:2]]
    assert int(multi["Answer"]) == sum(int(row["Answer"]) for row in site.rows[:2])


def test_the_golden_path_leads_to_the_facts_and_no_step_before_the_last_suffices(site):
    for row in site.rows:
        opened = [page for path in row["Info"]["Golden_Path"] for page in clicks(site, path)]
        assert len(opened) == 4 * len(row["Info"]["Golden_Path"])
        assert {*row["Info"]["Source_Website"]} <= {page.url for page in opened}
        memory = [site.pages[site.root].text, *(page.text for page in opened)]
        assert answer_from(memory, row) == row["Answer"]
        for n in range(len(memory)):
            assert answer_from(memory[:n], row) is None


def test_memory_suffices_exactly_when_it_holds_every_fact(site):
    rng = random.Random("memory")
    everything = sorted(site.pages)
    for row in site.rows:
        needed = {*row["Info"]["Source_Website"]}
        for _ in range(50):
            seen = rng.sample(everything, rng.randint(0, 40))
            got = answer_from([site.pages[url].text for url in seen], row)
            assert got == (row["Answer"] if needed <= {*seen} else None)
        for url in needed:  # one fact removed
            rest = [page.text for page in site.pages.values() if page.url != url]
            assert answer_from(rest, row) is None


def test_no_page_but_its_source_shows_an_answer(site):
    for row in site.rows:
        sources = row["Info"]["Source_Website"]
        shown = [url for url, page in site.pages.items() if says(page.text, row["Answer"])]
        assert shown == (sources if len(sources) == 1 else [])


def test_sites_differ_by_seed_and_are_the_same_for_one():
    assert make_site(5) == make_site(5) and make_site(5).root != make_site(6).root
    small = make_site("small", size=9, depth=2, links=3)
    assert len(small.pages) == 9 and small.rows[0]["Info"]["Difficulty_Level"] == "easy"


@pytest.mark.parametrize(
    "size, depth, links", [(8, 4, 4), (40, 5, 4), (40, 1, 4), (40, 4, 1), (40, 2, 3)]
)
def test_impossible_sites_are_refused(size, depth, links):
    with pytest.raises(ValueError, match=f"{size} pages do not fit"):
        make_site(0, size, depth, links)
