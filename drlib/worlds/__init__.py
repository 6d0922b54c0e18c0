"""Worlds: searchable document collections with an optional knowledge graph.

    world = load_world("tour")
    world.search("Norway")[0].title  # "Norway"
    world.page("Norway").text  # English text with links

`WORLDS` contains the loaders by name.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from drlib.registry import Registry, suggest_name
from drlib.worlds import tour_world
from drlib.worlds.embeddings import load_embeddings
from drlib.worlds.fictional import Names, fictional_world
from drlib.worlds.graph import Graph, Node
from drlib.worlds.library import ENGINES, Library, read_facts
from drlib.worlds.selection import Selection, select
from drlib.worlds.small import Entity, SmallWorld, merge_worlds
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
    "fingerprint_world",
    "load_world",
    "merge_worlds",
    "read_facts",
    "select",
]

# "NAME", or "NAME:ARGUMENT" for a world with an argument ->
# loader(argument, index_path, **options)
WORLDS = Registry("world")


@WORLDS.register("tour")
def _load_tour(_rest: str, index_path: Path | None = None, **options) -> SmallWorld:
    return SmallWorld(tour_world.entities(), "cldr", index_path, **options)


def _lazy_loader(place: str) -> Callable[..., World]:
    """Return a loader that imports "module:function" at its first call."""
    module, _, function = place.partition(":")

    def load(rest: str, index_path: Path | None = None, **options) -> World:
        return getattr(import_module(module), function)(rest, index_path, **options)

    return load


WORLDS.register("cldr", _lazy_loader("drlib.worlds.cldr:load"))
WORLDS.register("pydocs", _lazy_loader("drlib.worlds.pydocs:load"))
WORLDS.register("wiki", _lazy_loader("drlib.worlds.wiki:load"))
WORLDS.register("folder:PATH", _lazy_loader("drlib.worlds.folder:load"))
WORLDS.register("zim:PATH", _lazy_loader("drlib.worlds.zim:load"))
WORLDS.register("hub:NAME", _lazy_loader("drlib.worlds.hub:load"))
WORLDS.register("live:URL", _lazy_loader("drlib.tools.live_site:load"))


def load_world(
    name: str, index_path: Path | None = None, *, engine: str = "fts5", **options
) -> World:
    """Load a world by name.

    Args:
        name: "tour" (a small world, one value per relation), "cldr" (all of Unicode CLDR), "pydocs"
            (Python's standard library), "wiki" (summaries of Wikipedia, after `drlib convert
            wiki`), "folder:PATH" (your documents), "zim:PATH" (a Kiwix file),
            "hub:NAME" (a data set of the Hugging Face hub), "live:URL" (a web site that is
            crawled), or a name registered in `WORLDS`.
        index_path: file of the full-text index; later calls update it. None: kept in memory.
        engine: ranking engine of a `Library`, "fts5", "bm25s" or "hybrid".
        options: arguments of the world's loader.

    Raises:
        ValueError: the name or engine is unknown, or this world does not support the engine.
        ImportError: the engine needs wordllama.

    Example:
        >>> load_world("tour").page("Norway").links
        ('Norwegian Krone', 'Swedish Krona', 'Norwegian Bokmål')
    """
    if engine not in ENGINES:
        raise ValueError(f"unknown engine {engine!r}: use {' or '.join(ENGINES)}")
    kind, _, rest = name.partition(":")
    pattern = next((known for known in WORLDS if known.partition(":")[0] == kind), None)
    if pattern is None or bool(rest) != (":" in pattern):
        raise ValueError(f"unknown world {name!r}: {suggest_name(name, WORLDS)}")
    world = WORLDS[pattern](rest, index_path, **options)
    if isinstance(world, Library):
        world.engine = engine
        if engine == "hybrid":
            load_embeddings()  # a missing package is reported before the first search
    elif engine != "fts5":
        raise ValueError(f"world {name!r} does not support engine {engine!r}: use fts5")
    return world


def fingerprint_world(name: str) -> dict[str, str]:
    """Fingerprint of a world's files, used in the name of a run.

    Returns:
        {"files": hash} for a folder; {} for a world without user files.

    Raises:
        ValueError: the folder does not exist.
    """
    kind, _, rest = name.partition(":")
    if kind != "folder":
        return {}
    from drlib.worlds.folder import (
        fingerprint,  # imported here because other worlds need no file readers
    )

    return {"files": fingerprint(rest)}
