"""The large worlds, loaded once in a process of tests: `pydocs` takes eight seconds.

Nobody changes them: a test that would loads one of its own.
"""

from functools import cache

from drlib.worlds import World, load_world


@cache
def shared_world(name: str) -> World:
    return load_world(name)
