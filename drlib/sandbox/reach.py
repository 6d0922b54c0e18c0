"""What a child may reach: packages to import, paths to read, threads to add.

Standard library only, because the template process loads it by path.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys


class Packages:
    """Imports the packages that code may use, and no neighbour of theirs, from outside sys.path.

    Other packages hold the facts and answers that questions are made from; they are "not found".
    """

    def __init__(self, names: list[str], roots: list[str], leave: int | None) -> None:
        self.names, self.roots, self.leave = names, roots, leave

    def find_spec(self, name: str, path=None, target=None):
        """As the import system asks for it (see `importlib.abc.MetaPathFinder`)."""
        if path is None and name in self.names:
            if self.leave is not None:  # to run again where they are loaded and seeded
                os._exit(self.leave)
            return importlib.machinery.PathFinder.find_spec(name, self.roots)
        return None

    def paths(self) -> list[str]:
        """The folders that hold them and their C libraries."""
        return [os.path.join(root, name + end) for root in self.roots for name in self.names
                for end in ("", ".libs")]


def readable_paths(packages: Packages) -> tuple[list[str], list[str]]:
    """(contents readable, only listable): standard library, `packages`, C libraries, time zones."""
    stdlib = os.path.dirname(os.path.abspath(os.__file__))
    read = [os.path.join(stdlib, name) for name in os.listdir(stdlib)
            if name not in ("site-packages", "dist-packages")]
    machine = f"{os.uname().machine}-linux-gnu"
    read += [*packages.paths(), f"/lib/{machine}", f"/usr/lib/{machine}", "/etc/ld.so.cache",
             "/dev/urandom", "/usr/share/zoneinfo"]
    for folder in ("/lib64", "/usr/lib64", os.path.join(sys.base_prefix, "lib")):
        if os.path.isdir(folder):
            read += [e.path for e in os.scandir(folder) if ".so" in e.name and e.is_file()]
    return sorted(set(read)), [stdlib]


def count_tasks(uid: int) -> int:
    """Threads that user `uid` has now: RLIMIT_NPROC counts them all, not only a child's."""
    total = 0
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == uid:
                    total += len(os.listdir(f"/proc/{name}/task"))
            except OSError:  # gone meanwhile, or hidden from us
                total += 1
    return total
