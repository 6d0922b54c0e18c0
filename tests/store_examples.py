"""Example sources and libraries for the tests of the store."""

from drlib.worlds import Node
from drlib.worlds.library import Library
from drlib.worlds.store import Document, Part, Store


def place(name, *facts, links=(), aliases=()):
    """Return a source of one page."""
    text = f"{name} is a place.\nIt has a page."
    return Part(
        [Document(name, text, links)],
        [Node(name, "place", aliases)],
        [(name, *fact) for fact in facts],
    )


def library(parts, path=None):
    store = Store(path)
    store.update(dict.fromkeys(parts, "1"), parts.__getitem__)
    return Library("test", store, "t")
