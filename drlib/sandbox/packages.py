"""What generated code may import and read: the standard library and a few packages alone."""

from __future__ import annotations

import importlib.machinery
import os
import sys

PACKAGES = ("numpy", "sympy", "mpmath")  # importable in addition to the standard library
_INSTALLED = ("site-packages", "dist-packages")  # folders inside the standard library


class Packages:
    """Imports the packages that code may use from outside sys.path. Their neighbours, which hold
    the facts and answers that questions are made from, are "not found"."""

    def __init__(self, names: list[str], roots: list[str], leave: int | None) -> None:
        self.names = names
        self.roots = roots
        self.leave = (
            leave  # the exit code of a process that has not loaded them; None in one that has
        )

    def find_spec(self, name: str, path=None, target=None):
        """As the import system asks for it (see `importlib.abc.MetaPathFinder`)."""
        if path is not None or name not in self.names:
            return None
        if self.leave is not None:  # to run again where they are loaded and seeded
            os._exit(self.leave)
        return importlib.machinery.PathFinder.find_spec(name, self.roots)

    def _folders(self) -> list[str]:
        found = []
        for root in self.roots:
            for name in self.names:
                found += [f"{root}/{name}", f"{root}/{name}.libs"]
        return found

    def readable(self) -> tuple[list[str], list[str]]:
        """(contents readable, only listable), for Landlock: the packages, the standard library
        without what is installed in it, and `_others`."""
        stdlib = _standard_library()
        of_stdlib = [f"{stdlib}/{name}" for name in os.listdir(stdlib) if name not in _INSTALLED]
        read = {*self._folders(), *_others(), *of_stdlib}
        return sorted(read), [stdlib]

    def shown(self) -> tuple[list[str], list[str]]:
        """(shown, hidden), for `layers.build_root`: the same files."""
        stdlib = _standard_library()
        hidden = [f"{stdlib}/{name}" for name in _INSTALLED]
        return [stdlib, *self._folders(), *_others(), os.devnull], hidden


def _standard_library() -> str:
    return os.path.dirname(os.path.abspath(os.__file__))


def _others() -> list[str]:
    """C libraries, random numbers and time zones: files and folders."""
    machine = f"{os.uname().machine}-linux-gnu"
    found = [f"/lib/{machine}", f"/usr/lib/{machine}", "/etc/ld.so.cache", "/dev/urandom"]
    found.append("/usr/share/zoneinfo")
    for folder in ("/lib64", "/usr/lib64", os.path.join(sys.base_prefix, "lib")):
        if os.path.isdir(folder):
            entries = os.scandir(folder)
            found += [entry.path for entry in entries if ".so" in entry.name and entry.is_file()]
    return found
