"""What can be looked up: pages, their index, and the knowledge graph behind them."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from drlib.registry import Registry, nearest
from drlib.worlds import tour
from drlib.worlds.fictional import Names, fictional_world
from drlib.worlds.graph import Graph, Node
from drlib.worlds.library import ENGINES, Library, read_facts
from drlib.worlds.selection import Selection, select
from drlib.worlds.small import Entity, SmallWorld
from drlib.worlds.world import Hit, Page, World

__all__ = [
    "WORLDS",
    "Entity",
    "Graph",
    "Hit",
    "Library",
    "Names",
    "Node",
    "Page",
    "Selection",
    "SmallWorld",
    "World",
    "fictional_world",
    "load_world",
    "read_facts",
    "select",
    "world_stamp",
]

# "NAME" or, where something stands after a colon in the world's name, "NAME:WHAT" ->
# loader(what, index_path, **options)
WORLDS = Registry("world")


@WORLDS.register("tour")
def _tour(_rest: str, index_path: Path | None = None, **options) -> SmallWorld:
    return SmallWorld(tour.entities(), "cldr", index_path, **options)


def _later(place: str) -> Callable[..., Library]:
    """The loader "module:function", imported at its first use."""
    module, _, function = place.partition(":")

    def load(rest: str, index_path: Path | None = None, **options) -> Library:
        return getattr(import_module(module), function)(rest, index_path, **options)

    return load


WORLDS.register("cldr", _later("drlib.worlds.cldr:load"))
WORLDS.register("pydocs", _later("drlib.worlds.pydocs:load"))
WORLDS.register("folder:PATH", _later("drlib.worlds.folder:load"))
WORLDS.register("zim:PATH", _later("drlib.worlds.zim:load"))
WORLDS.register("hub:NAME", _later("drlib.worlds.hub:load"))
WORLDS.register("live:URL", _later("drlib.tools.live_site:load"))


def load_world(
    name: str, index_path: Path | None = None, *, engine: str = "fts5", **options
) -> World:
    """A world by name; its index is kept at `index_path` and only updated by a later call.

    "tour": the tour's small world of one value a relation; "cldr": all that Unicode CLDR says;
    "pydocs": Python's standard library; "folder:PATH": your documents; "zim:PATH": a Kiwix file;
    "hub:NAME": a data set of the Hugging Face hub; "live:URL": a web site, fetched as a guest; and
    what is registered in `WORLDS`. `options` are its loader's. ValueError: the name or the `engine`
    (see `Library`) is not known, or the world has no such engine; the message lists what there is.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine {engine!r}: known are {', '.join(ENGINES)}")
    kind, _, rest = name.partition(":")
    pattern = next((known for known in WORLDS if known.partition(":")[0] == kind), None)
    if pattern is None or bool(rest) != (":" in pattern):
        raise ValueError(f"unknown world {name!r}: {nearest(name, WORLDS)}")
    world = WORLDS[pattern](rest, index_path, **options)
    if isinstance(world, Library):
        world.engine = engine
    elif engine != "fts5":
        raise ValueError(f"engine {engine!r}: {name} has fts5 only")
    return world


def world_stamp(name: str) -> dict[str, str]:
    """What a world's files are like, for the name of a run: {"files": a hash} of a folder, {} of
    what has no files of the user's. ValueError: there is no such folder."""
    kind, _, rest = name.partition(":")
    if kind != "folder":
        return {}
    from drlib.worlds.folder import stamp  # only here: the other worlds need no reader of files

    return {"files": stamp(rest)}
