"""Packages and files that generated code may import and read."""

from __future__ import annotations

import importlib.machinery
import os
import sys

PACKAGES = ("numpy", "sympy", "mpmath")  # importable besides the standard library
_INSTALLED = ("site-packages", "dist-packages")  # folders inside the standard library


class Packages:
    """Import hook for the allowed packages; other packages in the same folders are not found.

    Args:
        names: importable packages.
        roots: folders that contain them.
        leave: exit code of a process that has not loaded them, or None if it has.
    """

    def __init__(self, names: list[str], roots: list[str], leave: int | None) -> None:
        self.names = names
        self.roots = roots
        self.leave = leave

    def find_spec(self, name: str, path=None, target=None):
        """Find an allowed package (`importlib.abc.MetaPathFinder`)."""
        if path is not None or name not in self.names:
            return None
        if self.leave is not None:  # the call runs again in the heavy template
            os._exit(self.leave)
        return importlib.machinery.PathFinder.find_spec(name, self.roots)

    def _folders(self) -> list[str]:
        """Return the folders of the packages and their shared libraries."""
        found = []
        for root in self.roots:
            for name in self.names:
                found += [f"{root}/{name}", f"{root}/{name}.libs"]
        return found

    def readable(self) -> tuple[list[str], list[str]]:
        """Return (readable, only listable) paths for Landlock.

        Readable are the packages, the standard library without installed packages, and `_others`.
        """
        stdlib = _standard_library()
        of_stdlib = [f"{stdlib}/{name}" for name in os.listdir(stdlib) if name not in _INSTALLED]
        read = {*self._folders(), *_others(), *of_stdlib}
        return sorted(read), [stdlib]

    def shown(self) -> tuple[list[str], list[str]]:
        """Return (shown, hidden) paths for `layers.build_root`: the same files as `readable`."""
        stdlib = _standard_library()
        hidden = [f"{stdlib}/{name}" for name in _INSTALLED]
        return [stdlib, *self._folders(), *_others(), os.devnull], hidden


def _standard_library() -> str:
    """Return the folder of the standard library."""
    return os.path.dirname(os.path.abspath(os.__file__))


def _others() -> list[str]:
    """Return files and folders of C libraries, random numbers and time zones."""
    machine = f"{os.uname().machine}-linux-gnu"
    found = [f"/lib/{machine}", f"/usr/lib/{machine}", "/etc/ld.so.cache", "/dev/urandom"]
    found.append("/usr/share/zoneinfo")
    found.append("/usr/lib/locale/C.utf8")  # the locale of `selftest.clean_environment`
    for folder in ("/lib64", "/usr/lib64", os.path.join(sys.base_prefix, "lib")):
        if os.path.isdir(folder):
            entries = os.scandir(folder)
            found += [entry.path for entry in entries if ".so" in entry.name and entry.is_file()]
    return found
