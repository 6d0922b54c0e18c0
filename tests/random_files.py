"""Damaged files for tests of readers: random changes of bytes, in a folder in memory."""

import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEMORY = "/dev/shm"  # writing thousands of small files to a disk takes minutes on some machines


@contextmanager
def memory_folder() -> Iterator[Path]:
    """Yield a temporary folder, in memory where the system has such a place."""
    with tempfile.TemporaryDirectory(dir=MEMORY if os.path.isdir(MEMORY) else None) as folder:
        yield Path(folder)


def change_bytes(content: bytes, draws: random.Random) -> bytes:
    """Return `content` with one to four changed bytes, and in one of five cases truncated."""
    changed = bytearray(content)
    for _ in range(draws.randint(1, 4)):
        changed[draws.randrange(len(changed))] = draws.randrange(256)
    if draws.random() < 0.2:
        changed = changed[: draws.randrange(len(changed))]
    return bytes(changed)
