"""How a program begins: what it imports is not searched for garbage.

torch and transformers make a million objects that stay to the end. While they come Python's
collector goes through all that have come so far, over and over, and finds nothing: the modules of
a stage are imported in 3.2 s of CPU time where that takes 4.1 s. And whenever it looks for garbage
later it goes through them again.

Left out: the thresholds of whoever imports drlib. They are the program's own.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# For kernels and test processes, which import as they go: Python's are 700, 10 and 10. The first
# counts objects, the others collections of the younger objects.
SELDOM = (50_000, 20, 50)


@contextmanager
def lasting_imports() -> Iterator[None]:
    """Imports inside the block, and what was there before, are never searched for garbage."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()
