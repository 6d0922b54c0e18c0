"""What generated code may import and read: the standard library and a few packages alone."""

from __future__ import annotations

import importlib.machinery
import os
import sys

_INSTALLED = ("site-packages", "dist-packages")  # folders inside the standard library


class Packages:
    """Imports the packages that code may use from outside sys.path. Their neighbours, which hold
    the facts and answers that questions are made from, are "not found"."""

    def __init__(self, names: list[str], roots: list[str], leave: int | None) -> None:
        self.names, self.roots, self.leave = names, roots, leave

    def find_spec(self, name: str, path=None, target=None):
        """As the import system asks for it (see `importlib.abc.MetaPathFinder`)."""
        if path is None and name in self.names:
            if self.leave is not None:  # to run again where they are loaded and seeded
                os._exit(self.leave)
            return importlib.machinery.PathFinder.find_spec(name, self.roots)
        return None

    def _folders(self) -> list[str]:
        ends = "", ".libs"
        return [f"{root}/{name}{end}" for root in self.roots for name in self.names for end in ends]

    def readable(self) -> tuple[list[str], list[str]]:
        """(contents readable, only listable), for Landlock: the packages, the standard library
        without what is installed in it, and `_others`."""
        stdlib = _standard_library()
        names = [name for name in os.listdir(stdlib) if name not in _INSTALLED]
        read = [*self._folders(), *_others(), *(f"{stdlib}/{name}" for name in names)]
        return sorted(set(read)), [stdlib]

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
            found += [e.path for e in os.scandir(folder) if ".so" in e.name and e.is_file()]
    return found
