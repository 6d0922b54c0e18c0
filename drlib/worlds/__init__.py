"""What can be looked up: pages, their index, and the knowledge graph behind them."""

from importlib import import_module
from pathlib import Path

from drlib.worlds import tour
from drlib.worlds.fictional import Names, fictional_world
from drlib.worlds.graph import Graph, Node
from drlib.worlds.library import ENGINES, Library, read_facts
from drlib.worlds.world import Entity, Hit, Page, World

__all__ = [
    "Entity",
    "Graph",
    "Hit",
    "Library",
    "Names",
    "Node",
    "Page",
    "World",
    "fictional_world",
    "load_world",
    "read_facts",
]

# Name -> what follows it and a colon. The module of that name has a function `load`.
LIBRARIES = {"cldr": "", "pydocs": "", "folder": "PATH", "zim": "PATH", "hub": "NAME"}


def load_world(
    name: str, index_path: Path | None = None, *, engine: str = "fts5", **options
) -> World | Library:
    """A world by name; its index is kept at `index_path` and only updated by a later call.

    "tour": the tour's small world of one value a relation; "cldr": all that Unicode CLDR says;
    "pydocs": Python's standard library; "folder:PATH": your documents; "zim:PATH": a Kiwix file;
    "hub:NAME": a data set of the Hugging Face hub. `options` are those of `load` in its module.
    ValueError: the name or the `engine` (see `Library`) is not known; the message lists what is.
    """
    if engine not in ENGINES or (name == "tour" and engine != "fts5"):
        raise ValueError(f"engine {engine!r}: known are {', '.join(ENGINES)}; tour has fts5 only")
    if name == "tour":
        return World(tour.entities(), "cldr", index_path, **options)
    kind, _, rest = name.partition(":")
    if kind not in LIBRARIES or bool(rest) != bool(LIBRARIES[kind]):
        known = ", ".join(f"{k}:{what}" if what else k for k, what in LIBRARIES.items())
        raise ValueError(f"unknown world {name!r}: known worlds are tour, {known}")
    world = import_module(f"drlib.worlds.{kind}").load(rest, index_path, **options)
    world.engine = engine
    return world
