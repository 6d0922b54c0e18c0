"""Large worlds, loaded once per test process; `pydocs` is read once for all processes.

Reading the standard library takes five seconds, so all processes of a run share its index
(tests/conftest.py). Tests must not modify these worlds.
"""

import os
from functools import cache
from pathlib import Path

from drlib.worlds import World, load_world


@cache
def shared_world(name: str) -> World:
    kept = Path(os.environ["DRLIB_TEST_WORLDS"], "pydocs.sqlite") if name == "pydocs" else None
    return load_world(name, kept)
