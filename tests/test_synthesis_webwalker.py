"""WebWalker's protocol on its sites (2501.07572): a scripted explorer that only clicks, a critic
that reads after every click, keeps what is useful and judges whether it suffices; at most K = 15
actions. The agent driven by a policy comes with the other agents; here site, memory and scorer are
held to the protocol.

Run: python -m pytest tests/test_synthesis_webwalker.py
"""

import re

import pytest

from drlib.synthesis.families import answer_from, make_site

K = 15


@pytest.fixture(scope="module", params=[0, 1, 2])
def site(request):
    return make_site(request.param)


def useful(text, row):
    """The critic's first call: the lines about a page that the question asks for."""
    names = [path.split(">")[-1] for path in row["Info"]["Golden_Path"]]
    return [
        line
        for line in text.split("\n")
        if any(re.match(rf"{name} has \d", line) for name in names)
    ]


def explore(site, row, click, limit=K):
    """(answer or None, texts seen, memory): `click(page, opened)` names the next link or stops."""
    here, opened, memory = site.pages[site.root], [], []
    for _ in range(limit):
        url = click(here, opened)
        if url is None:
            break
        assert url in here.links, "an explorer can only click what the page shows"
        here = site.pages[url]
        opened.append(url)
        memory += useful(here.text, row)
        if (answer := answer_from(memory, row)) is not None:  # the critic's second call
            return answer, opened, memory
    return None, opened, memory


def depth_first(site):
    """Down the first link that is new, else back to the root and down again."""

    def click(page, opened):
        seen = {site.root, *opened}

        def fresh(url, above=()):  # a link that is new, or below which something is
            return url not in seen or any(
                fresh(to, (*above, url))
                for to in site.pages[url].links
                if to != site.root and to not in above
            )

        down = [to for to in page.links if to != site.root and fresh(to)]
        if down:
            return down[0]
        return site.root if page.url != site.root else None

    return click


def golden(site, row):
    """Follows the golden paths, over the root from one to the next."""
    steps = []
    for path in row["Info"]["Golden_Path"]:
        steps += [""] * bool(steps) + path.removeprefix("root->").split(">")

    def click(page, opened):
        title = steps[len(opened)]
        return next(u for u in page.links if site.pages[u].title == title) if title else site.root

    return click, len(steps)


def test_depth_first_search_answers_when_memory_holds_all_facts_and_not_before(site):
    for row in site.rows:
        answer, opened, memory = explore(site, row, depth_first(site), 500)
        needed = {*row["Info"]["Source_Website"]}
        assert answer == row["Answer"] and needed <= {*opened}
        assert opened[-1] in needed, "it stops at the first page that suffices"
        assert answer_from(memory[:-1], row) is None, "one fact less: the critic says no"
        assert not any(row["Answer"] in site.pages[url].text for url in opened[:-1])


def test_fifteen_actions_are_the_limit(site):
    runs = [explore(site, row, depth_first(site)) for row in site.rows]
    assert all(len(opened) <= K for _, opened, _ in runs)
    for row, (answer, opened, _) in zip(site.rows, runs):
        assert (answer is not None) == ({*row["Info"]["Source_Website"]} <= {*opened})
    assert any(answer is None and len(opened) == K for answer, opened, _ in runs)


def test_the_oracle_needs_the_golden_length(site):
    for row, clicks in zip(site.rows, (4, 4, 9)):  # 4 down, back to the root, 4 down
        click, length = golden(site, row)
        answer, opened, _ = explore(site, row, click)
        assert (answer, len(opened)) == (row["Answer"], clicks) and length == clicks


def test_without_one_source_nobody_answers(site):
    """The page is there and says nothing: neither explorer may claim to know."""
    row = site.rows[2]
    for url in row["Info"]["Source_Website"]:
        page = site.pages[url]
        mute = re.sub(r"has \d+ members\.", "has members.", page.text)
        poorer = site._replace(
            pages=site.pages | {url: type(page)(page.title, url, mute, page.links)}
        )
        answer, opened, _ = explore(poorer, row, depth_first(poorer), 500)
        assert answer is None and {*opened} | {site.root} == {*site.pages}
