"""What a process holds: files at the level "standard", where no file system of its own bounds them,
and what would make a process unfit to be held as the state of a session.

Everything is read, nothing is changed, and no name that generated code has made is followed.
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
WORK_BYTES = 64 << 20  # what a call may leave in its folder while it runs...
WORK_ENTRIES = 1024  # ...in so many files and folders
MOST_MAPPINGS = 8192  # some 350 are usual, and 512 threads add two each
LOOK_SECONDS = 0.05  # of processor time
MOST_LOOKS = 4  # at a tree that changes while it is looked at
KEPT_APART = 12  # names of a path; the longest that can be opened has 4096 characters, a name 255
_GONE = " (deleted)"


def holds_too_much(pid: int, folder: str) -> bool:
    """Whether the files in `folder` and those without a name that process `pid` has open or mapped
    are more than WORK_BYTES or WORK_ENTRIES: nothing else bounds their sum. PermissionError where
    /proc does not tell, which is so while a process ends."""
    try:
        room = WORK_BYTES - nameless_bytes(pid, folder)
    except (FileNotFoundError, ProcessLookupError):  # the process has ended
        return False
    return room < 0 or _tree_is_larger(folder, room)


def _tree_is_larger(folder: str, room: int) -> bool:
    """Whether the tree has more than `room` bytes or WORK_ENTRIES entries, or folders that are
    swapped as fast as they are looked at, or a look takes LOOK_SECONDS."""
    end = time.process_time() + LOOK_SECONDS
    for _ in range(MOST_LOOKS):
        walk = _Walk(folder)
        try:
            return walk.is_larger(room, end)
        except OSError:  # a folder is another one now, or a link: look again
            continue
        finally:
            walk.close()
    return True


class _Walk:
    """One look at a tree, depth first. Folders on the way to the present one are kept open, some
    names apart: from the last of them a path is short, however deep the tree."""

    def __init__(self, folder: str) -> None:
        self.kept: list[tuple[list[str], int]] = [([], os.open(folder, cleanup.AS_FOLDER))]

    def close(self) -> None:
        for _, fd in self.kept:
            os.close(fd)

    def is_larger(self, room: int, end: float) -> bool:
        """Whether the tree has more than `room` bytes or WORK_ENTRIES entries, or the look lasts
        until `end` (processor time); OSError where it changes in a way that is not growth."""
        count = size = 0
        waiting: list[list[str]] = [[]]  # paths of folders that are still to be looked at
        while waiting:
            if time.process_time() > end:
                return True
            names = waiting.pop()
            try:
                here = self._open(names)
            except FileNotFoundError:  # gone meanwhile
                continue
            try:
                for name, info in _entries(here):
                    count += 1
                    size += info.st_blocks * 512
                    if size > room or count > WORK_ENTRIES:
                        return True
                    if stat.S_ISDIR(info.st_mode):
                        waiting.append([*names, name])
            finally:
                os.close(here)
        return False

    def _open(self, names: list[str]) -> int:
        """The folder with this path, opened to us where its own mode hides what is in it."""
        with suppress(PermissionError):
            return self._open_as_it_is(names)
        above = self._open_as_it_is(names[:-1])
        try:
            return cleanup.open_folder(names[-1], above)
        finally:
            os.close(above)

    def _open_as_it_is(self, names: list[str]) -> int:
        start, above = self.kept[-1]
        while start != names[: len(start)]:  # it is on the way to another folder
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
        with suppress(FileNotFoundError):  # gone meanwhile
            found.append((name, os.stat(name, dir_fd=folder, follow_symlinks=False)))
    return found


def nameless_bytes(pid: int, folder: str) -> int:
    """Bytes of deleted files of `folder` that process `pid` has open, and FILE_BYTES, the most that
    one can have, for each that it has only mapped, or whose path is too long to be told. More than
    may be held where there are more than MOST_MAPPINGS: to look through them would take too long.
    """
    if not os.path.isdir("/proc/self/fd"):
        return 0  # no Linux, so no level above "weak"
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
    """The fields of each mapping, of MOST_MAPPINGS and one at most. As bytes, and lines end with a
    newline alone: paths may hold anything else, and come last."""
    with open(f"/proc/{pid}/maps", "rb") as file:
        lines = itertools.islice(file, MOST_MAPPINGS + 1)
        return [line.rstrip(b"\n").split(maxsplit=5) for line in lines]


def _is_nameless(path: str, folder: str) -> bool:
    return path.startswith(folder + "/") and path.endswith(_GONE)


class FolderWatch:
    """Whether a folder that is a file system of its own is as it was when this was made: no file is
    there, with or without a name, and none has been."""

    def __init__(self, folder: str) -> None:
        self._fd = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        self._as_new = self._look()

    def untouched(self) -> bool:
        return self._look() == self._as_new

    def _look(self) -> tuple[int, ...]:
        room = os.fstatvfs(self._fd)
        times = os.fstat(self._fd)
        return room.f_ffree, room.f_bfree, times.st_mtime_ns, times.st_ctime_ns


def count_tasks(uid: int) -> int:
    """Threads that user `uid` has now: RLIMIT_NPROC counts them all, not only a child's."""
    if not os.path.isdir("/proc"):
        return 0
    total = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{name}").st_uid == uid:
                total += len(os.listdir(f"/proc/{name}/task"))
        except OSError:  # gone meanwhile, or hidden from us
            total += 1
    return total


def outer_number(process: int) -> int:
    """The number under which /proc knows the process of a pidfd; -1 if it has ended."""
    with open(f"/proc/self/fdinfo/{process}", "rb") as file:
        lines = file.read().split(b"\n")
    return next(int(line.split()[1]) for line in lines if line.startswith(b"Pid:"))


def threads_of(pid: int) -> int:
    """How many threads process `pid` has; an ended one that nobody has waited for counts."""
    return len(os.listdir(f"/proc/{pid}/task"))


def main_thread_has_ended(pid: int) -> bool:
    """Whether process `pid` goes on without its first thread: /proc then tells nothing of it."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        state = file.read().rpartition(b")")[2].split()[0]  # the name before it may hold anything
    return state in (b"Z", b"X")


def why_unfit(pid: int, folder: str, mapped: set[bytes], streams: list[int]) -> str:
    """Why process `pid`, which stands still, is not fit to be held, or "": it must have one thread,
    no descriptors but 0, 1 and 2, on the files with the inodes `streams`, no file or shared memory
    mapped that is not in `mapped` (`mapped_files` of a process that no code has run in), and stand
    in `folder`.

    Then, once the three are taken away, nothing that it does later can reach what others read or
    write: it has its own memory, and nothing else.
    """
    if threads_of(pid) != 1:
        return "threads are left"
    numbers = sorted(os.listdir(f"/proc/{pid}/fd"))
    if numbers != ["0", "1", "2"]:
        return "files are left open"
    opened = [os.stat(f"/proc/{pid}/fd/{number}").st_ino for number in numbers]
    if opened != streams:
        return "its streams are replaced"
    if not mapped_files(pid) <= mapped:
        return "memory is shared, or a file of its own is mapped"
    if os.readlink(f"/proc/{pid}/cwd") != folder:
        return "it is in another folder"
    return ""


def mapped_files(pid: int) -> set[bytes]:
    """What process `pid` has mapped beside memory of its own: the devices of files (a memory file
    is on one of its own, so is each work folder), each mapping that is shared, and "too many" where
    there are too many to look through."""
    mappings = _mappings(pid)
    found = {b"too many"} if len(mappings) > MOST_MAPPINGS else set()
    for fields in mappings:
        _, permissions, _, device, inode = fields[:5]
        if permissions.endswith(b"s"):
            found.add(device + b" shared " + inode)
        elif inode != b"0":
            found.add(device)
    return found


def own_memory(pid: int) -> int:
    """Bytes of memory that are of no file, those shared with its parent since a fork included."""
    with open(f"/proc/{pid}/statm", "rb") as file:
        _, resident, of_files, *_ = file.read().split()
    return (int(resident) - int(of_files)) * os.sysconf("SC_PAGE_SIZE")
