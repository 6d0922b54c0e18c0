"""WebWalker (arXiv 2501.07572): sites with golden paths and questions about content deep in a site.

Rows have the fields of the released benchmark WebWalkerQA. `SiteWorld` presents a site to the
tools, and `answer_from_memory` decides whether the critic's memory suffices. Simplified: sites are
generated, a page states one number, and questions have one or two sources 2 to 4 clicks deep. The
agents are in `drlib.agents.webwalker`. Not reproduced: the silver training questions.
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
# The sum of two has five digits, so no page shows it.
MEMBERS = range(5000, 10000)


class Site(NamedTuple):
    """Pages by URL (links are URLs) and the WebWalkerQA rows about two leaves."""

    root: str
    pages: dict[str, Page]
    rows: list[dict]


class SiteWorld:
    """A site for the tool `visit`: pages by URL, without search index and graph."""

    name, scheme = "site", "https"
    graph: Graph | None = None

    def __init__(self, site: Site):
        self.site = site
        text = "\n".join(page.text for page in site.pages.values())
        self.version = f"site-{hashlib.sha256(text.encode()).hexdigest()[:10]}"

    def find(self, text: str) -> str | None:
        """Return the URL if the site has it."""
        return text if text in self.site.pages else None

    def search(self, query: str, k: int = 10) -> list[Hit]:
        """Return no hits; a site is navigated by links only."""
        return []

    def page(self, title_or_url: str) -> Page:
        """Return the page of a URL.

        Raises:
            KeyError: there is no such page.
        """
        return self.site.pages[title_or_url]

    def links(self, title_or_url: str) -> tuple[str, ...]:
        """Return the URLs that a page links to.

        Raises:
            KeyError: there is no such page.
        """
        return self.page(title_or_url).links

    def __len__(self) -> int:
        return len(self.site.pages)


def make_site(seed: int | str, size: int = 40, depth: int = 4, links: int = 4) -> Site:
    """Return a site of `size` pages with two golden leaves `depth` clicks deep.

    Each page except the root states the members of its organisation and links to at most `links`
    deeper pages and to the root.

    Raises:
        ValueError: size, depth and links are inconsistent.
    """
    most = sum(links**level for level in range(depth + 1))
    if not (2 <= depth <= 4 and 2 * depth < size <= most):
        raise ValueError(
            f"{size=} does not fit {depth=} (2 to 4) and {links=} per page: change one"
        )
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
    """Return page -> path from the root, and page -> deeper pages that it links to.

    The golden leaves are the pages `depth` and 2 * `depth`.
    """
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
    """A page that a question asks about."""

    title: str
    url: str
    members: int
    golden_path: str


def _make_row(leaves: Sequence[_Leaf], root: str, depth: int) -> dict:
    """Return the question about one or two leaves as a WebWalkerQA row."""
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
    """Return the answer of a row if the texts in `memory` suffice, else None."""
    text = "\n".join(memory)
    total = 0
    for path in row["Info"]["Golden_Path"]:
        leaf = path.split(">")[-1]
        match = re.search(rf"^{leaf} has (\d+) members\.$", text, re.MULTILINE)
        if match is None:
            return None
        total += int(match[1])
    return str(total)
