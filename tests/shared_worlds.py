"""The large worlds, loaded once in a process of tests; `pydocs` is read once for all of them.

Reading the standard library takes five seconds, so its index lies where every process of one run
finds it (tests/conftest.py). Nobody changes them: a test that would loads one of its own.
"""

import os
from functools import cache
from pathlib import Path

from drlib.worlds import World, load_world


@cache
def shared_world(name: str) -> World:
    kept = Path(os.environ["DRLIB_TEST_WORLDS"], "pydocs.sqlite") if name == "pydocs" else None
    return load_world(name, kept)
