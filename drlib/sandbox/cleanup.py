"""Clean up after generated code: empty hostile folders and kill left-over processes.

Every file is addressed by a descriptor of its folder and its last path component, and no link is
followed. A name can therefore never lead outside, even if a dying process still renames files.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Container
from contextlib import suppress

# Open a folder, never a link.
AS_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def wipe(folder: str) -> None:
    """Empty `folder`, with any depth and modes, following no link.

    Sub-folders are moved up to `folder` and emptied there, so that no path grows too long.
    """
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
    """Unlink the files of folder `name` in `top`, and move its folders up to `top`."""
    below = open_folder(name, top)
    try:
        for child in os.listdir(below):
            if not _unlink(child, below):
                _move(child, below, top)
    finally:
        os.close(below)


def _move(name: str, source: int, target: int) -> None:
    """Move folder `name` from `source` to `target` under a random name."""
    new = os.urandom(8).hex()
    try:
        os.rename(name, new, src_dir_fd=source, dst_dir_fd=target)
    except PermissionError:  # moving a folder rewrites its "..", which needs write access
        os.close(open_folder(name, source, 0o700))
        os.rename(name, new, src_dir_fd=source, dst_dir_fd=target)


def _unlink(name: str, folder: int) -> bool:
    """Unlink `name`; return False if it is a folder."""
    try:
        os.unlink(name, dir_fd=folder)
    except (IsADirectoryError, PermissionError):  # PermissionError on other systems than Linux
        return False
    return True


def open_folder(name: str, folder: int, mode: int | None = None) -> int:
    """Open the folder `name` below descriptor `folder`; OSError if it is a link.

    Its mode is set to `mode`, or to 0o700 if it cannot be opened otherwise.
    """
    if mode is None:
        with suppress(PermissionError):
            return os.open(name, AS_FOLDER, dir_fd=folder)
    place = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    try:
        os.chmod(f"/proc/self/fd/{place}", mode or 0o700)  # of exactly this folder
    finally:
        os.close(place)
    return os.open(name, AS_FOLDER, dir_fd=folder)


def kill_children(keep: Container[int] = ()) -> None:
    """Kill and reap every child and adopted descendant except the process ids in `keep`."""
    while True:
        left = [number for number in child_numbers() if number not in keep]
        if not left:
            return
        for number in left:
            kill(number)
        os.waitpid(-1, 0)


def kill(number: int) -> None:
    """Kill the process with this id, if it still exists."""
    with suppress(FileNotFoundError, ProcessLookupError):
        process = os.open(f"/proc/{number}", os.O_RDONLY | os.O_DIRECTORY)
        try:
            signal.pidfd_send_signal(process, signal.SIGKILL)
        finally:
            os.close(process)


def child_numbers() -> list[int]:
    """Return the ids of this thread's children, including adopted and unreaped ones.

    Only ids are read: other entries of /proc, such as the name, are controlled by the process.
    """
    path = "/proc/thread-self/children"
    if not os.path.exists(path):
        return []
    with open(path, "rb") as file:
        return [int(word) for word in file.read().split()]
