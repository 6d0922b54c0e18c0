"""What a process holds: files at the level "standard", where no file system of its own bounds them,
and what would make a process unfit to be held as the state of a session.

Everything is read, nothing is changed, and no name that generated code has made is followed.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from drlib.sandbox import cleanup, layers

FILE_BYTES = 8 << 20  # of stdout, of stderr, and of any single file
WORK_BYTES, WORK_ENTRIES = 64 << 20, 1024  # what a call may leave in its folder while it runs
_GONE = " (deleted)"


def holds_too_much(pid: int, folder: str) -> bool:
    """Whether the files in `folder` and those without a name that process `pid` has open or mapped
    are more than WORK_BYTES or WORK_ENTRIES: nothing else bounds their sum."""
    try:
        room = WORK_BYTES - nameless_bytes(pid, folder)
        return room < 0 or _tree_is_larger(folder, room)
    except (FileNotFoundError, ProcessLookupError):  # the process has ended
        return False


def _tree_is_larger(folder: str, room: int) -> bool:
    """Whether the tree has more than `room` bytes or WORK_ENTRIES entries."""
    count, waiting = 0, ["."]
    top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        while waiting:
            path = waiting.pop()
            try:
                here = _open_measured(top, path)
            except FileNotFoundError:  # gone meanwhile
                continue
            except OSError:  # swapped for a link, or deeper than a path can be long
                return True
            try:
                for name, info in _entries(here):
                    count += 1
                    room -= info.st_blocks * 512
                    if room < 0 or count > WORK_ENTRIES:
                        return True
                    if stat.S_ISDIR(info.st_mode):
                        waiting.append(f"{path}/{name}")
            finally:
                os.close(here)
    finally:
        os.close(top)
    return False


def _open_measured(top: int, path: str) -> int:
    """The folder `path` below `top`, opened to us where its own mode hides what is in it."""
    with suppress(PermissionError):
        return layers.open_below(top, path)
    parent, name = os.path.split(path)
    above = layers.open_below(top, parent)
    try:
        return cleanup.open_folder(name, above)
    finally:
        os.close(above)


def _entries(folder: int) -> list[tuple[str, os.stat_result]]:
    found = []
    for name in os.listdir(folder):
        with suppress(FileNotFoundError):  # gone meanwhile
            found.append((name, os.stat(name, dir_fd=folder, follow_symlinks=False)))
    return found


def nameless_bytes(pid: int, folder: str) -> int:
    """Bytes of deleted files of `folder` that process `pid` has open, and FILE_BYTES, the most that
    one can have, for each that it has only mapped. PermissionError where /proc does not tell."""
    if not os.path.isdir("/proc/self/fd"):
        return 0  # no Linux, so no level above "weak"
    sizes: dict[int, int] = {}
    for number in os.listdir(f"/proc/{pid}/fd"):
        place = f"/proc/{pid}/fd/{number}"
        with suppress(FileNotFoundError):  # closed meanwhile
            if _is_nameless(os.readlink(place), folder):
                info = os.stat(place)
                sizes[info.st_ino] = info.st_blocks * 512
    with open(f"/proc/{pid}/maps", errors="surrogateescape") as file:
        for line in file:
            fields = line.rstrip("\n").split(maxsplit=5)
            if len(fields) == 6 and _is_nameless(fields[5], folder):
                sizes.setdefault(int(fields[4]), FILE_BYTES)
    return sum(sizes.values())


def _is_nameless(path: str, folder: str) -> bool:
    return path.startswith(folder + "/") and path.endswith(_GONE)


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


def outer_number(process: int) -> int:
    """The number under which /proc knows the process of a pidfd; -1 if it has ended."""
    with open(f"/proc/self/fdinfo/{process}") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pid:"))


def threads_of(pid: int) -> int:
    """How many threads process `pid` has; an ended one that nobody has waited for counts."""
    return len(os.listdir(f"/proc/{pid}/task"))


def why_unfit(pid: int, folder: str, mapped: set[str], streams: list[int]) -> str:
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
    if [os.stat(f"/proc/{pid}/fd/{number}").st_ino for number in numbers] != streams:
        return "its streams are replaced"
    if not mapped_files(pid) <= mapped:
        return "memory is shared, or a file of its own is mapped"
    if os.readlink(f"/proc/{pid}/cwd") != folder:
        return "it is in another folder"
    return ""


def mapped_files(pid: int) -> set[str]:
    """What process `pid` has mapped beside memory of its own: the devices of files (a memory file
    is on one of its own, so is each work folder), and each mapping that is shared."""
    found = set()
    with open(f"/proc/{pid}/maps", errors="surrogateescape") as file:
        for line in file:
            _, permissions, _, device, inode, *_ = line.split(maxsplit=5)
            if permissions[3] == "s":
                found.add(f"{device} {inode} shared")
            elif inode != "0":
                found.add(device)
    return found


def own_memory(pid: int) -> int:
    """Bytes of memory that are of no file, those shared with its parent since a fork included."""
    with open(f"/proc/{pid}/status") as file:
        kilobytes = next(line.split()[1] for line in file if line.startswith("RssAnon:"))
    return int(kilobytes) << 10
