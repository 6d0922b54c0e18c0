"""A world: what can be looked up. One protocol; whoever asks needs to know nothing more.

A world has pages, a search over them (an exact title first, then BM25), the links of a page, a
`graph` (for making and checking questions, never shown to a policy; None where nothing is known but
the texts) and a `version` (a hash of the data, part of every cache key and trajectory).

`drlib.worlds.library` has worlds of any size, `drlib.worlds.small` those that a small policy can
learn in, and `drlib.worlds.selection` makes the second from the first.
"""

from dataclasses import dataclass
from typing import Protocol

from drlib.worlds.graph import Graph


@dataclass(frozen=True)
class Page:
    """What `visit` shows: readable English with links written `[title](url)`."""

    title: str
    url: str
    text: str  # readable English with links written `[title](url)`
    links: tuple[str, ...]


@dataclass(frozen=True)
class Hit:
    """One search result of a `World`."""

    title: str
    url: str
    snippet: str  # the beginning of the page, or its facts on a line


class World(Protocol):
    """What the tools and the question engine ask. Titles are unique; a URL is `scheme:title`."""

    name: str
    scheme: str
    version: str

    @property
    def graph(self) -> Graph | None:
        """The knowledge behind the pages; None where there are texts alone."""

    def find(self, text: str) -> str | None:
        """The title or URL `text` as a known title, or None."""

    def search(self, query: str, k: int = 10) -> list[Hit]:
        """The `k` best pages: an exact title first, then by BM25. ValueError: k < 1."""

    def page(self, title_or_url: str) -> Page:
        """The page of a title or URL; KeyError names it when there is none."""

    def links(self, title_or_url: str) -> tuple[str, ...]:
        """The titles that a page links to; KeyError when there is no page."""

    def __len__(self) -> int: ...
