"""Small faults that the tests must see, each by name."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """`new` in place of `old`, which stands once in the file, is a fault that `tests` must see."""

    name: str
    path: str  # relative to the repository
    old: str
    new: str
    tests: tuple[str, ...]  # files or node ids, the quickest that see it
    why: str  # what would go wrong with it, in a line
