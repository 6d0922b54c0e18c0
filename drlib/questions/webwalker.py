"""WebWalker (arXiv 2501.07572, ACL 2025): questions about what stands deep in a site.

The paper: an explorer clicks from page to page of one site and never answers; a critic reads after
every click, keeps what is useful in a memory and stops when that suffices, within 15 actions. Its
benchmark WebWalkerQA has 680 questions over 1,373 pages, of one source or of several, easy to hard
by the clicks that lead to a source.

Taken from it: sites with golden paths (`make_site`), rows with its released fields, and the
critic's judgement whether a memory suffices (`answer_from_memory`); `SiteWorld` is a site as a world, for
the tools. Reduced: sites are made, not crawled;
a page tells one number; a question has one source or two; 2 to 4 clicks. The explorer and the
critic are an agent (`drlib.agents.webwalker`). Missing: the silver questions that the paper makes
for training.
"""

import hashlib
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from drlib.worlds.fictional import SYLLABLES
from drlib.worlds.graph import Graph
from drlib.worlds.world import Hit, Page

DIFFICULTY = {2: "easy", 3: "medium", 4: "hard"}  # by clicks to a source
# Two of four digits make five: no page shows the sum of two others.
MEMBERS = range(5000, 10000)


class Site(NamedTuple):
    """Pages by URL (their links are URLs) and the rows of WebWalkerQA about two of its leaves."""

    root: str
    pages: dict[str, Page]
    rows: list[dict]


class SiteWorld:
    """A site as the tool `visit` sees one: pages under their own URLs, no index and no graph."""

    name, scheme = "site", "https"
    graph: Graph | None = None

    def __init__(self, site: Site):
        self.site = site
        text = "\n".join(page.text for page in site.pages.values())
        self.version = f"site-{hashlib.sha256(text.encode()).hexdigest()[:10]}"

    def find(self, text: str) -> str | None:
        """The URL, where it is one of the site's."""
        return text if text in self.site.pages else None

    def search(self, query: str, k: int = 10) -> list[Hit]:
        """Nothing: one gets about by links alone."""
        return []

    def page(self, title_or_url: str) -> Page:
        """The page of a URL; KeyError when there is none."""
        return self.site.pages[title_or_url]

    def links(self, title_or_url: str) -> tuple[str, ...]:
        """The URLs that a page links to; KeyError when there is no page."""
        return self.page(title_or_url).links

    def __len__(self) -> int:
        return len(self.site.pages)


def make_site(seed: int | str, size: int = 40, depth: int = 4, links: int = 4) -> Site:
    """A site of `size` pages: two golden leaves `depth` clicks deep, the rest leads astray.

    Every page but the root tells the members of what it is about; a page links to at most `links`
    deeper ones and to the root. ValueError: the numbers do not fit together.
    """
    most = sum(links**level for level in range(depth + 1))
    if not (2 <= depth <= 4 and 2 * depth < size <= most):
        raise ValueError(f"{size} pages do not fit: depth {depth} (2 to 4), {links} links a page")
    rng = random.Random(f"site-{seed}")
    names = {"".join(rng.choices(SYLLABLES, k=4)).capitalize(): 0 for _ in range(4 * size)}
    titles = [*names][:size]
    members = rng.sample(MEMBERS, size)
    paths, below = _build_tree(size, depth, links, rng)
    root = f"https://{titles[0].lower()}.example/"
    urls = [root + "/".join(titles[i].lower() for i in paths[page][1:]) for page in range(size)]
    pages = {}
    for page in range(size):
        deeper = rng.sample(below[page], len(below[page]))
        lines = [f"# {titles[page]}"]
        if page > 0:
            lines.append(f"{titles[page]} has {members[page]} members.")
        lines += [f"- [{titles[to]}]({urls[to]})" for to in deeper]
        targets = (*(urls[to] for to in deeper), root)
        pages[urls[page]] = Page(titles[page], urls[page], "\n".join(lines), targets)
    leaves = [
        _Leaf(
            titles[leaf],
            urls[leaf],
            members[leaf],
            "root->" + ">".join(titles[page] for page in paths[leaf][1:]),
        )
        for leaf in (depth, 2 * depth)
    ]
    rows = [_make_row(asked, root, depth) for asked in (leaves[:1], leaves[1:], leaves)]
    return Site(root, pages, rows)


def _build_tree(
    size: int, depth: int, links: int, rng: random.Random
) -> tuple[dict[int, tuple[int, ...]], dict[int, list[int]]]:
    """(page -> the pages from the root down to it, page -> the deeper pages that it links to). Two
    branches reach `depth` by themselves, and end in the pages `depth` and 2 * `depth`; the other
    pages are hung anywhere."""
    paths: dict[int, tuple[int, ...]] = {0: (0,)}
    below: dict[int, list[int]] = {page: [] for page in range(size)}
    for page in range(1, size):
        free = [p for p in paths if len(paths[p]) <= depth and len(below[p]) < links]
        if page > 2 * depth:
            parent = rng.choice(free)
        else:
            starts_a_branch = page % depth == 1
            parent = 0 if starts_a_branch else page - 1
        below[parent].append(page)
        paths[page] = (*paths[parent], page)
    return paths, below


class _Leaf(NamedTuple):
    title: str
    url: str
    members: int
    golden_path: str


def _make_row(leaves: Sequence[_Leaf], root: str, depth: int) -> dict:
    """The question about one leaf or two, under WebWalkerQA's field names."""
    titles = " and ".join(leaf.title for leaf in leaves)
    if len(leaves) == 2:
        hop, asked = "multi-source", f"do {titles} have together?"
    else:
        hop, asked = "single-source", f"does {titles} have?"
    return {
        "Question": f"How many members {asked}",
        "Answer": str(sum(leaf.members for leaf in leaves)),
        "Root_Url": root,
        "Info": {
            "Hop": hop,
            "Domain": "organization",
            "Language": "en",
            "Difficulty_Level": DIFFICULTY[depth],
            "Source_Website": [leaf.url for leaf in leaves],
            "Golden_Path": [leaf.golden_path for leaf in leaves],
        },
    }


def answer_from_memory(memory: Iterable[str], row: Mapping) -> str | None:
    """The answer to a row of a `Site`, if the texts in `memory` suffice for it; else None."""
    text = "\n".join(memory)
    total = 0
    for path in row["Info"]["Golden_Path"]:
        leaf = path.split(">")[-1]
        match = re.search(rf"^{leaf} has (\d+) members\.$", text, re.MULTILINE)
        if match is None:
            return None
        total += int(match[1])
    return str(total)
