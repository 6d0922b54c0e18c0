"""Measure the files of a running call at level "standard", where no own file system limits them.

The measurement changes nothing except the mode of closed folders, and follows no link.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
import time
from contextlib import suppress

from drlib.sandbox import cleanup, layers

FILE_BYTES = 8 << 20  # of stdout, of stderr, and of any single file
WORK_BYTES = 64 << 20  # total size of a call's files
WORK_ENTRIES = 1024  # total number of files and folders
MOST_MAPPINGS = 8192  # about 350 are usual; each of 512 threads adds two
WALK_SECONDS = 0.05  # processor time of one measurement
MOST_WALKS = 4  # of a tree that changes during the walk
KEPT_APART = 12  # path components between open folders: 12 x 255 characters < PATH_MAX (4096)
_GONE = " (deleted)"


def holds_too_much(pid: int, folder: str) -> bool:
    """Return True if the files of process `pid` exceed WORK_BYTES or WORK_ENTRIES.

    Counts the files in `folder` and deleted files that are still open or mapped. PermissionError
    if /proc hides the process, which is the case while it exits.
    """
    try:
        budget = WORK_BYTES - nameless_bytes(pid, folder)
    except (FileNotFoundError, ProcessLookupError):  # the process has ended
        return False
    return budget < 0 or _tree_is_larger(folder, budget)


def _tree_is_larger(folder: str, budget: int) -> bool:
    """Return True if the tree exceeds `budget` bytes or WORK_ENTRIES entries.

    Also True if its folders are replaced during every walk, or a walk takes WALK_SECONDS.
    """
    end = time.process_time() + WALK_SECONDS
    for _ in range(MOST_WALKS):
        walk = _Walk(folder)
        try:
            return walk.is_larger(budget, end)
        except OSError:  # a folder was replaced, or is a link: walk again
            continue
        finally:
            walk.close()
    return True


class _Walk:
    """Depth-first walk of a tree of any depth.

    Every KEPT_APART levels a folder on the current path is kept open, so paths stay short.
    """

    def __init__(self, folder: str) -> None:
        self.kept: list[tuple[list[str], int]] = [([], os.open(folder, cleanup.AS_FOLDER))]

    def close(self) -> None:
        """Close the folders that are kept open."""
        for _, fd in self.kept:
            os.close(fd)

    def is_larger(self, budget: int, end: float) -> bool:
        """Return True if the tree exceeds `budget` bytes or WORK_ENTRIES entries.

        Also True if the walk lasts until `end` (processor time). OSError if a folder is replaced.
        """
        count = size = 0
        waiting: list[list[str]] = [[]]  # folders still to be visited
        while waiting:
            if time.process_time() > end:
                return True
            names = waiting.pop()
            try:
                here = self._open(names)
            except FileNotFoundError:  # deleted meanwhile
                continue
            try:
                for name, info in _entries(here):
                    count += 1
                    size += info.st_blocks * 512
                    if size > budget or count > WORK_ENTRIES:
                        return True
                    if stat.S_ISDIR(info.st_mode):
                        waiting.append([*names, name])
            finally:
                os.close(here)
        return False

    def _open(self, names: list[str]) -> int:
        """Open the folder with this path; change its mode if that hides its content."""
        with suppress(PermissionError):
            return self._open_as_it_is(names)
        above = self._open_as_it_is(names[:-1])
        try:
            return cleanup.open_folder(names[-1], above)
        finally:
            os.close(above)

    def _open_as_it_is(self, names: list[str]) -> int:
        start, above = self.kept[-1]
        while start != names[: len(start)]:  # not on the path of this folder
            os.close(above)
            self.kept.pop()
            start, above = self.kept[-1]
        here = layers.open_below(above, "/".join(names[len(start) :]) or ".")
        if len(names) - len(start) >= KEPT_APART:
            self.kept.append((names, os.dup(here)))
        return here


def _entries(folder: int) -> list[tuple[str, os.stat_result]]:
    found = []
    for name in os.listdir(folder):
        with suppress(FileNotFoundError):  # deleted meanwhile
            found.append((name, os.stat(name, dir_fd=folder, follow_symlinks=False)))
    return found


def nameless_bytes(pid: int, folder: str) -> int:
    """Return the size of deleted files of `folder` that process `pid` has open or mapped.

    Files that are only mapped count as FILE_BYTES, the largest possible size, because /proc shows
    no size. Returns WORK_BYTES + 1 above MOST_MAPPINGS mappings, which take too long to read.
    """
    if not os.path.isdir("/proc/self/fd"):
        return 0  # not Linux, so the level is "weak"
    sizes: dict[int, int] = {}
    for number in os.listdir(f"/proc/{pid}/fd"):
        place = f"/proc/{pid}/fd/{number}"
        with suppress(FileNotFoundError):  # closed meanwhile
            if _may_be_nameless(place, folder):
                info = os.stat(place)
                sizes[info.st_ino] = info.st_blocks * 512
    mappings = _mappings(pid)
    if len(mappings) > MOST_MAPPINGS:
        return WORK_BYTES + 1
    for line in mappings:
        if len(line) == 6 and _is_nameless(os.fsdecode(line[5]), folder):
            sizes.setdefault(int(line[4]), FILE_BYTES)
    return sum(sizes.values())


def _may_be_nameless(place: str, folder: str) -> bool:
    try:
        return _is_nameless(os.readlink(place), folder)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return True


def _mappings(pid: int) -> list[list[bytes]]:
    """Return the fields of at most MOST_MAPPINGS + 1 mappings.

    Bytes split at newlines only: a path is the last field and may hold any other character.
    """
    with open(f"/proc/{pid}/maps", "rb") as file:
        lines = itertools.islice(file, MOST_MAPPINGS + 1)
        return [line.rstrip(b"\n").split(maxsplit=5) for line in lines]


def _is_nameless(path: str, folder: str) -> bool:
    return path.startswith(folder + "/") and path.endswith(_GONE)


def count_tasks(uid: int) -> int:
    """Count all threads of user `uid`, which is what RLIMIT_NPROC counts."""
    if not os.path.isdir("/proc"):
        return 0
    total = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{name}").st_uid == uid:
                total += len(os.listdir(f"/proc/{name}/task"))
        except OSError:  # ended meanwhile, or hidden from us
            total += 1
    return total


def threads_of(pid: int) -> int:
    """Count the threads of process `pid`, including ended ones that were not reaped."""
    return len(os.listdir(f"/proc/{pid}/task"))


def main_thread_has_ended(pid: int) -> bool:
    """Return True if process `pid` continues without its main thread, which hides its files."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        state = file.read().rpartition(b")")[2].split()[0]  # the name may hold any character
    return state in (b"Z", b"X")
