"""Tests of WebWalker's sites with scripted explorers and a critic (arXiv 2501.07572).

Run: python -m pytest tests/test_questions_webwalker.py
"""

import random
import re
from collections import deque

import pytest

from drlib.questions.webwalker import answer_from_memory, make_site
from drlib.questions.wording import mentions

K = 15  # maximum number of actions


@pytest.fixture(scope="module", params=[0, 1, 2])
def site(request):
    return make_site(request.param)


def select_useful_lines(text, row):
    """Return the lines about a page that the question asks for, as the critic's first call."""
    names = [path.split(">")[-1] for path in row["Info"]["Golden_Path"]]
    return [
        line
        for line in text.split("\n")
        if any(re.match(rf"{name} has \d", line) for name in names)
    ]


def explore(site, row, click, limit=K):
    """Return (answer or None, texts seen, memory); `click(page, opened)` returns the next link
    or None.
    """
    here, opened, memory = site.pages[site.root], [], []
    for _ in range(limit):
        url = click(here, opened)
        if url is None:
            break
        assert url in here.links, "an explorer can only click what the page shows"
        here = site.pages[url]
        opened.append(url)
        memory += select_useful_lines(here.text, row)
        if (answer := answer_from_memory(memory, row)) is not None:  # the critic's second call
            return answer, opened, memory
    return None, opened, memory


def depth_first(site):
    """Follow the first new link, else return to the root."""

    def click(page, opened):
        seen = {site.root, *opened}

        def is_unexplored(url, above=()):  # a link that is new, or below which something is
            return url not in seen or any(
                is_unexplored(to, (*above, url))
                for to in site.pages[url].links
                if to != site.root and to not in above
            )

        down = [to for to in page.links if to != site.root and is_unexplored(to)]
        if down:
            return down[0]
        return site.root if page.url != site.root else None

    return click


def golden(site, row):
    """Follow the golden paths via the root."""
    steps = []
    for path in row["Info"]["Golden_Path"]:
        steps += [""] * bool(steps) + path.removeprefix("root->").split(">")

    def click(page, opened):
        title = steps[len(opened)]
        return next(u for u in page.links if site.pages[u].title == title) if title else site.root

    return click, len(steps)


def test_depth_first_search_answers_with_all_facts_only(site):
    for row in site.rows:
        answer, opened, memory = explore(site, row, depth_first(site), 500)
        needed = {*row["Info"]["Source_Website"]}
        assert answer == row["Answer"] and needed <= {*opened}
        assert opened[-1] in needed, "exploration stops at the first sufficient page"
        assert answer_from_memory(memory[:-1], row) is None, "the critic needs every fact"
        assert not any(row["Answer"] in site.pages[url].text for url in opened[:-1])


def test_explorer_stops_after_fifteen_actions(site):
    runs = [explore(site, row, depth_first(site)) for row in site.rows]
    assert all(len(opened) <= K for _, opened, _ in runs)
    for row, (answer, opened, _) in zip(site.rows, runs):
        assert (answer is not None) == ({*row["Info"]["Source_Website"]} <= {*opened})
    assert any(answer is None and len(opened) == K for answer, opened, _ in runs)


def test_golden_path_explorer_needs_the_golden_length(site):
    for row, expected_clicks in zip(site.rows, (4, 4, 9)):  # 4 down, back to the root, 4 down
        click, length = golden(site, row)
        answer, opened, _ = explore(site, row, click)
        assert (answer, len(opened)) == (
            row["Answer"],
            expected_clicks,
        ) and length == expected_clicks


def test_missing_source_prevents_an_answer(site):
    """A page without its number leaves both explorers without an answer."""
    row = site.rows[2]
    for url in row["Info"]["Source_Website"]:
        page = site.pages[url]
        text_without_number = re.sub(r"has \d+ members\.", "has members.", page.text)
        poorer = site._replace(
            pages=site.pages | {url: type(page)(page.title, url, text_without_number, page.links)}
        )
        answer, opened, _ = explore(poorer, row, depth_first(poorer), 500)
        assert answer is None and {*opened} | {site.root} == {*site.pages}


# -------------------------------------------------------------------------------------- sites


def follow_path(site, path):
    """Return the pages of a golden path, opened by clicking each name."""
    here, opened = site.pages[site.root], []
    for name in path.removeprefix("root->").split(">"):
        (url,) = re.findall(rf"- \[{name}\]\((.+)\)", here.text)
        assert url in here.links
        here = site.pages[url]
        opened.append(here)
    return opened


def test_site_size_depth_and_reachability(site):
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
    assert sum(n == 4 for n in away.values()) > 2  # other pages are as deep


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


def test_only_the_full_golden_path_suffices(site):
    for row in site.rows:
        opened = [page for path in row["Info"]["Golden_Path"] for page in follow_path(site, path)]
        assert len(opened) == 4 * len(row["Info"]["Golden_Path"])
        assert {*row["Info"]["Source_Website"]} <= {page.url for page in opened}
        memory = [site.pages[site.root].text, *(page.text for page in opened)]
        assert answer_from_memory(memory, row) == row["Answer"]
        for n in range(len(memory)):
            assert answer_from_memory(memory[:n], row) is None


def test_memory_suffices_only_with_every_fact(site):
    rng = random.Random("memory")
    everything = sorted(site.pages)
    for row in site.rows:
        needed = {*row["Info"]["Source_Website"]}
        for _ in range(50):
            seen = rng.sample(everything, rng.randint(0, 40))
            got = answer_from_memory([site.pages[url].text for url in seen], row)
            assert got == (row["Answer"] if needed <= {*seen} else None)
        for url in needed:  # one fact removed
            rest = [page.text for page in site.pages.values() if page.url != url]
            assert answer_from_memory(rest, row) is None


def test_answers_are_shown_only_on_their_source(site):
    for row in site.rows:
        sources = row["Info"]["Source_Website"]
        shown = [url for url, page in site.pages.items() if mentions(page.text, row["Answer"])]
        assert shown == (sources if len(sources) == 1 else [])


def test_sites_are_reproducible():
    assert make_site(5) == make_site(5) and make_site(5).root != make_site(6).root
    small = make_site("small", size=9, depth=2, links=3)
    assert len(small.pages) == 9 and small.rows[0]["Info"]["Difficulty_Level"] == "easy"


@pytest.mark.parametrize(
    "size, depth, links", [(8, 4, 4), (40, 5, 4), (40, 1, 4), (40, 4, 1), (40, 2, 3)]
)
def test_invalid_site_sizes_are_rejected(size, depth, links):
    with pytest.raises(ValueError, match=f"size={size} does not fit"):
        make_site(0, size, depth, links)
