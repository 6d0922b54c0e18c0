"""After generated code: folders emptied and processes ended, whatever the code did to them.

Standard library only, because the template process loads it by path.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Container


def wipe(folder: str) -> None:
    """Empty `folder`, however deep the tree in it and whatever its modes, following no link:
    sub-folders are moved up to `folder` and emptied there, so that no path grows too long."""
    while entries := list(os.scandir(folder)):
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
                continue
            os.chmod(entry.path, 0o700)
            for child in list(os.scandir(entry.path)):
                if child.is_dir(follow_symlinks=False):
                    os.chmod(child.path, 0o700)  # moving a folder rewrites its ".."
                    os.rename(child.path, os.path.join(folder, os.urandom(8).hex()))
                else:
                    os.unlink(child.path)
            os.rmdir(entry.path)


def kill_children(keep: Container[int] = ()) -> None:
    """Kill and reap every child and adopted descendant but those in `keep`."""
    while pids := children(keep):
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def children(keep: Container[int] = ()) -> list[int]:
    """Children of this process, adopted ones included, but those in `keep`."""
    if not os.path.exists("/proc/thread-self/children"):
        return []
    with open("/proc/thread-self/children") as file:
        words = file.read().split()
    depth = len(_numbers("self")) - 1  # /proc may be that of an outer PID namespace
    pids = [numbers[depth] for word in words if (numbers := _numbers(word))]
    return [pid for pid in pids if pid not in keep]


def _numbers(pid: str) -> list[int]:
    """The process ids of one process, from the outermost PID namespace inwards; [] if gone."""
    try:
        with open(f"/proc/{pid}/status") as file:
            return next([int(w) for w in line.split()[1:]] for line in file if "NSpid" in line)
    except (FileNotFoundError, ProcessLookupError):
        return []
