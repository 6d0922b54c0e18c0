"""After generated code: folders emptied and processes ended, whatever the code did to them.

Every file is named by a descriptor of its folder and the last part of its path, and no link is
followed: what a name stands for may change at any moment, but never to anything outside. So it is
safe even while a dying process still moves things about.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Container
from contextlib import suppress

# How a folder is opened: never a link.
AS_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def wipe(folder: str) -> None:
    """Empty `folder`, however deep the tree in it and whatever its modes, following no link:
    sub-folders are moved up to `folder` and emptied there, so that no path grows too long."""
    top = os.open(folder, AS_FOLDER)
    try:
        while names := os.listdir(top):
            for name in names:
                if not _unlink(name, top):
                    _empty(name, top)
                    os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)


def _empty(name: str, top: int) -> None:
    """Unlink what lies in the folder `name` of `top`, and move its folders up to `top`."""
    below = open_folder(name, top)
    try:
        for child in os.listdir(below):
            if not _unlink(child, below):
                _move(child, below, top)
    finally:
        os.close(below)


def _move(name: str, source: int, target: int) -> None:
    new = os.urandom(8).hex()
    try:
        os.rename(name, new, src_dir_fd=source, dst_dir_fd=target)
    except PermissionError:  # moving a folder rewrites its "..": it must be open to us
        os.close(open_folder(name, source, 0o700))
        os.rename(name, new, src_dir_fd=source, dst_dir_fd=target)


def _unlink(name: str, folder: int) -> bool:
    """Whether `name` was no folder; it is gone then."""
    try:
        os.unlink(name, dir_fd=folder)
    except (IsADirectoryError, PermissionError):  # the second on other systems than Linux
        return False
    return True


def open_folder(name: str, folder: int, mode: int | None = None) -> int:
    """A descriptor of the folder `name` in the folder with descriptor `folder`, made open to us
    where it is closed (or where `mode` says how it is to be); OSError where it is a link."""
    if mode is None:
        with suppress(PermissionError):
            return os.open(name, AS_FOLDER, dir_fd=folder)
    place = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    try:
        os.chmod(f"/proc/self/fd/{place}", mode or 0o700)  # of that very folder
    finally:
        os.close(place)
    return os.open(name, AS_FOLDER, dir_fd=folder)


def kill_children(keep: Container[int] = ()) -> None:
    """Kill and reap every child and adopted descendant but those that /proc knows by the numbers
    `keep`."""
    while True:
        strangers = [number for number in child_numbers() if number not in keep]
        if not strangers:
            return
        for number in strangers:
            kill(number)
        os.waitpid(-1, 0)


def kill(number: int) -> None:
    """Kill the process that /proc knows by this number, if it is still there."""
    with suppress(FileNotFoundError, ProcessLookupError):
        process = os.open(f"/proc/{number}", os.O_RDONLY | os.O_DIRECTORY)
        try:
            signal.pidfd_send_signal(process, signal.SIGKILL)
        finally:
            os.close(process)


def child_numbers(of: str = "thread-self") -> list[int]:
    """The children of a thread ("NUMBER/task/NUMBER"; by default this one), adopted ones included,
    dead ones that nobody has waited for as well. The numbers are those of /proc, which may be that
    of an outer PID namespace. They alone are read: everything else that /proc tells of a process,
    such as its name, may be of that process's own making."""
    path = f"/proc/{of}/children"
    if not os.path.exists(path):
        return []
    with open(path, "rb") as file:
        return [int(word) for word in file.read().split()]
