"""What can be looked up: pages, their index, and the knowledge graph behind them."""

from pathlib import Path

from drlib.worlds import cldr
from drlib.worlds.fictional import Names, fictional_world
from drlib.worlds.world import Entity, Hit, Page, World

__all__ = ["Entity", "Hit", "Names", "Page", "World", "fictional_world", "load_world"]


def load_world(name: str, index_path: Path | None = None) -> World:
    """A world by name. `"cldr"`: the facts of Unicode CLDR, offline. `index_path` keeps its
    full-text index on disk. ValueError: the name is not known; the message lists what is."""
    if name == "cldr":
        return World(cldr.entities(), "cldr", index_path)
    raise ValueError(f"unknown world {name!r}: known worlds are 'cldr'")
