"""The `World` protocol: pages, full-text search, links and a knowledge graph.

`graph` is used to create and check questions and is never shown to a policy; it is None for a world
without facts. `version` is a hash of the data and part of every cache key and trajectory.

`drlib.worlds.library` implements worlds of any size, `drlib.worlds.small` worlds that a tiny policy
can learn in, and `drlib.worlds.selection` derives the second from the first.
"""

from dataclasses import dataclass
from typing import Protocol

from drlib.worlds.graph import Graph


@dataclass(frozen=True)
class Page:
    """A page as `visit` returns it.

    Args:
        title: unique in its world.
        url: `scheme:title`.
        text: English text with links written `[title](url)`.
        links: titles of the linked pages.
    """

    title: str
    url: str
    text: str  # English with links written `[title](url)`
    links: tuple[str, ...]


@dataclass(frozen=True)
class Hit:
    """A search result of a `World`.

    Args:
        title: title of the page.
        url: `scheme:title`.
        snippet: the beginning of the page, or its facts on one line.
    """

    title: str
    url: str
    snippet: str  # beginning of the page, or its facts on one line


class World(Protocol):
    """Interface used by the tools and by question synthesis. Titles are unique.

    A URL is `scheme:title`. Register an implementation with `WORLDS.register(name, loader)`.
    """

    name: str
    scheme: str
    version: str

    @property
    def graph(self) -> Graph | None:
        """Knowledge graph behind the pages; None for a world without facts."""

    def find(self, text: str) -> str | None:
        """Return the known title that `text`, a title or URL, refers to, or None."""

    def search(self, query: str, k: int = 10) -> list[Hit]:
        """Return the `k` best pages: an exact title first, then by BM25.

        Raises:
            ValueError: k < 1.
        """

    def page(self, title_or_url: str) -> Page:
        """Return the page of a title or URL.

        Raises:
            KeyError: no such page; the message names it.
        """

    def links(self, title_or_url: str) -> tuple[str, ...]:
        """Return the titles that a page links to.

        Raises:
            KeyError: no such page.
        """

    def __len__(self) -> int: ...
