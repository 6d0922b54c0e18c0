"""The kernel's layers around generated code: limits, credentials, namespaces, file tree, Landlock.

Plain ctypes on system calls: no root, no compiler, no package; in an unprivileged container it
works wherever the container lets the calls through. Nothing here decides whether it is good enough:
`trials.py` tries every layer, each child takes them all, and one that fails raises `LayerError`
before any generated code runs.

Landlock says which files may be opened, but not whether their mode may be changed, and nothing
about processes and sockets; `seccomp.py`, which sees numbers and not paths, denies the rest (chmod,
chown, times, xattr, sockets, exec, fork). Where namespaces come on top, a call is process 1 of a
PID namespace (whatever it starts dies with it), sees no network, writes to a memory file system of
its own, and its root folder holds only what it may read: no /proc, no name of any other file.

Left out: cgroups (they need delegation), macOS's `sandbox-exec`. Not contained: bugs in allowed
system calls, what can be told from the load on caches, memory and processors; without namespaces
also names and sizes of existing files (`stat` works), the texts of links, process numbers.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import struct
import sys
from collections.abc import Callable, Iterable

NOBODY = 65534  # the kernel's overflow id: owns nothing anywhere
# Namespaces, as `unshare` names them.
NEW_MOUNTS = 0x20000
NEW_UTS = 0x4000000  # the host's name
NEW_IPC = 0x8000000
NEW_USER = 0x10000000
NEW_PID = 0x20000000
NEW_NET = 0x40000000
# Of mounts.
_PRIVATE = 0x4000 | 0x40000  # with everything below: no mount of ours shows outside
_BIND = 0x1000 | 0x4000  # with everything below, as a user namespace must
_NO_SPECIAL = 0xE  # no set-uid, no devices, no programs
_NO_ACCESS_TIMES = 0x400 | 0x800  # of files, of folders
_DETACH = 0x2

# Landlock's rights.
_WRITE_FILE = 1 << 1
_READ_FILE = 1 << 2
_READ_DIR = 1 << 3
_TRUNCATE = 1 << 14
_NOT_IN_WORK = 1 << 0 | 1 << 6 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 15  # exec, devices, sockets
MIN_LANDLOCK_ABI = 3  # below it a file may be truncated by path
LayerStep = tuple[str, Callable, tuple]  # what it is, a function, its arguments


class LayerError(OSError):
    """A layer could not be put in place; the text names the layer and the system's reason."""


_libc = ctypes.PyDLL(None, use_errno=True)  # it keeps Python's lock: a forked child goes on at once


def step(what: str, name: str, *arguments) -> LayerStep:
    """The C call `name` with these arguments (integers as longs), named `what` where it fails."""
    longs = (ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments)
    return what, getattr(_libc, name), tuple(longs)


def do(step: LayerStep) -> int:
    """Make one call; its result, or `LayerError` where that is negative."""
    what, function, arguments = step
    result = function(*arguments)
    if type(result) is int and result < 0:
        number = ctypes.get_errno()
        raise LayerError(number, f"{what}: {os.strerror(number)}")
    return result


def take(steps: Iterable[LayerStep]) -> None:
    """Make calls that the layers below have prepared, once in the template and not page by page of
    copied memory in every child; `LayerError` names the first that fails."""
    for step in steps:
        do(step)


def fork(before: Iterable[LayerStep]) -> int:
    """Take the steps `before`, then fork as `os.fork` does (0 in the child), for a process of one
    thread: without the hooks of Python's modules, which touch 150 pages of a child. `LayerError`
    where a step or the fork fails."""
    take(before)
    return do(("fork", _libc.fork, ()))


def limits(values: dict[str, int]) -> list[LayerStep]:
    """Set `RLIMIT_<name>` hard and soft, e.g. {"AS": bytes, "CPU": seconds}; never raises one."""
    steps: list[LayerStep] = []
    for name, value in values.items():
        which = getattr(resource, f"RLIMIT_{name}", None)
        if which is None:  # MSGQUEUE and others do not exist outside Linux
            continue
        hard = resource.getrlimit(which)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        steps.append((f"limit {name}", resource.setrlimit, (which, (value, value))))
    return steps


def _on_linux(what: str, name: str, *arguments) -> list[LayerStep]:
    return [step(what, name, *arguments)] if sys.platform == "linux" else []


def die_with_parent(number: int) -> list[LayerStep]:
    """Get signal `number` when the parent dies; any change of credentials clears this."""
    return _on_linux("die with parent", "prctl", 1, number, 0, 0, 0)


# Become the parent of every descendant whose own parent exits (child subreaper).
ADOPT_ORPHANS = _on_linux("subreaper", "prctl", 36, 1, 0, 0, 0)
# Make set-uid programs harmless; Landlock and seccomp require it of a process without root.
NO_NEW_PRIVILEGES = _on_linux("no_new_privileges", "prctl", 38, 1, 0, 0, 0)
# No huge pages, now and in all children: one stays whole as long as a part of it is mapped, which
# no limit counts.
NO_HUGE_PAGES = _on_linux("no huge pages", "prctl", 41, 1, 0, 0, 0)
# Capabilities.
CAP_KILL = 5
CAP_SETGID = 6
CAP_SETUID = 7
CAP_SYS_CHROOT = 18
CAP_SYS_PTRACE = 19


def keep_capabilities(*numbers: int) -> list[LayerStep]:
    """Give up every capability but these, for good."""
    kept = sum(1 << number for number in numbers)
    data = struct.pack("=6I", kept, kept, 0, 0, 0, 0)  # effective, permitted, inheritable; twice
    header = struct.pack("=Ii", 0x20080522, 0)
    return _on_linux("capset", "capset", header, data)


NO_CAPABILITIES = keep_capabilities()


def nobody() -> list[LayerStep]:
    """From root to uid and gid 65534 for good; capabilities go with it."""
    three = (NOBODY,) * 3
    return [
        ("setgroups", os.setgroups, ([],)),
        ("setresgid", os.setresgid, three),
        ("setresuid", os.setresuid, three),
    ]


def enter_user_namespace() -> None:
    """Become uid 65534 of a new user namespace: files are still read as their owner, but no
    capability counts outside. For a root whose Python lies where uid 65534 cannot read, and for the
    other namespaces where the caller is not root."""
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        os.setgroups([])
    unshare(NEW_USER)
    _write_own("setgroups", "deny")
    _write_own("gid_map", f"{NOBODY} {gid} 1")
    _write_own("uid_map", f"{NOBODY} {uid} 1")


def _write_own(name: str, text: str) -> None:
    """An entry of /proc/self."""
    with open(f"/proc/self/{name}", "w") as file:
        file.write(text)


def unshare(flags: int) -> None:
    """Leave the namespaces named by `flags` for new ones (a PID namespace: the next child)."""
    take([step(f"unshare({flags:#x})", "unshare", flags)])


def enter_namespaces() -> int:
    """Own mounts, network (no interface is up), IPC and host name for this process; a descriptor of
    the PID namespace that it is in, for `new_pid_namespace`."""
    home = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    unshare(NEW_MOUNTS | NEW_UTS | NEW_IPC | NEW_NET)
    take([step("private mounts", "mount", b"none", b"/", b"", _PRIVATE, b"")])
    return home


def new_pid_namespace(home: int) -> list[LayerStep]:
    """The next child becomes process 1 of a PID namespace that dies with it."""
    back = step("setns(pid)", "setns", home, NEW_PID)  # unshare twice in a row is an error
    return [back, step("unshare(pid)", "unshare", NEW_PID)]


def work_mount(folder: str, size: int, entries: int) -> list[LayerStep]:
    """An empty memory file system of uid 65534 over `folder`, for this process alone. It keeps no
    times of access: they would tell one branch of a session of another."""
    options = f"size={size},nr_inodes={entries},mode=700,uid={NOBODY},gid={NOBODY}"
    mount = _tmpfs(folder, options, _NO_SPECIAL | _NO_ACCESS_TIMES)
    return [step("unshare(mounts)", "unshare", NEW_MOUNTS), mount]


def _tmpfs(folder: str, options: str, flags: int = _NO_SPECIAL) -> LayerStep:
    arguments = (b"tmpfs", folder.encode(), b"tmpfs", flags, options.encode())
    return step(f"mount over {folder}", "mount", *arguments)


def build_root(root: str, shown: Iterable[str], hidden: Iterable[str], box: str) -> None:
    """Mount at `root`, an empty folder, a file tree that holds `shown` and nothing else, each at
    its own path, read-only; and the empty folder `box`. `hidden` names folders inside `shown` that
    appear empty but for what of `shown` lies in them. Needs a mount namespace of our own."""
    take([_tmpfs(root, "size=4m,mode=755")])
    paths = {path for path in shown if os.path.exists(path)}  # what is not there cannot be shown
    places = {os.path.realpath(path) for path in paths}
    covered = set(hidden)
    # A folder before what lies in it, or the second mount would end up under the first.
    for path in sorted(places | covered, key=lambda path: (path.count("/"), path)):
        if path in covered:
            if os.path.isdir(root + path):
                take([_tmpfs(root + path, "size=1m,mode=755")])
        elif not os.path.exists(root + path):  # in no folder that is shown already
            _bind(path, root + path)
    for path in paths - places:  # by another name as well
        os.makedirs(os.path.dirname(root + path), exist_ok=True)
        if not os.path.lexists(root + path):
            os.symlink(os.path.realpath(path), root + path)
    os.makedirs(root + box, 0o755)
    _make_read_only(root)


def _bind(source: str, place: str) -> None:
    if os.path.isdir(source):
        os.makedirs(place)
    else:
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o444))
    take([step(f"bind {source}", "mount", source.encode(), place.encode(), b"", _BIND, b"")])
    _make_read_only(place)  # at once: a mistake further on must not write into the host's folders


def _make_read_only(place: str) -> None:
    """The mount at `place` and all below it, whatever else they forbid."""
    what = struct.pack("=4Q", 1, 0, 0, 0)
    recursive = 0x8000
    number = 442
    arguments = (number, -1, place.encode(), recursive, what, len(what))
    take([step("mount_setattr", "syscall", *arguments)])


def change_root(root: str) -> list[LayerStep]:
    """`root` becomes the root folder; a change of folder must follow."""
    return [step("chroot", "chroot", root.encode())]


def remove_root(root: str) -> None:
    """Take away what `build_root` has mounted; `root` is the empty folder again."""
    take([step("umount", "umount2", root.encode(), _DETACH)])


def landlock_abi() -> int:
    """The kernel's Landlock version, or 0 where it has none."""
    try:
        return do(step("landlock", "syscall", 444, None, 0, 1))
    except LayerError:
        return 0


def landlock_ruleset(read: Iterable[str], list_only: Iterable[str], work: str) -> int:
    """A ruleset (a descriptor) that children share and apply with `landlock_restrict`.

    Args:
        read: files and folders whose contents may be read.
        list_only: folders whose entries may be listed, contents not.
        work: the one folder in which files may be made and changed. Nothing may be executed.
    """
    abi = landlock_abi()
    if abi < MIN_LANDLOCK_ABI:
        raise LayerError(errno.ENOSYS, f"Landlock ABI {abi}, needed is {MIN_LANDLOCK_ABI}")
    rights = 0xFFFF if abi >= 5 else 0x7FFF
    attributes = struct.pack("=QQQ", rights, 3, 3)  # TCP; abstract sockets and signals to others
    # As many of the three as the kernel knows.
    if abi >= 6:
        size = 24
    else:
        size = 16 if abi >= 4 else 8
    ruleset = do(step("landlock_create_ruleset", "syscall", 444, attributes, size, 0))
    for path in read:
        _landlock_allow(ruleset, path, _READ_FILE | _READ_DIR)
    for path in list_only:
        _landlock_allow(ruleset, path, _READ_DIR)
    _landlock_allow(ruleset, os.devnull, _READ_FILE | _WRITE_FILE | _TRUNCATE)
    _landlock_allow(ruleset, work, rights & ~_NOT_IN_WORK)
    return ruleset


def _landlock_allow(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # what is not there needs no permission
    try:
        if not os.path.isdir(path):
            rights &= _READ_FILE | _WRITE_FILE | _TRUNCATE
        rule = struct.pack("=Qi", rights, fd)
        do(step(f"landlock_add_rule {path}", "syscall", 445, ruleset, 1, rule, 0))
    finally:
        os.close(fd)


def landlock_restrict(ruleset: int) -> list[LayerStep]:
    """Apply the ruleset for good."""
    return [step("landlock", "syscall", 446, ruleset, 0)]


def open_below(folder: int, path: str) -> int:
    """Open the folder `path` inside the folder with descriptor `folder` for reading: no link is
    followed on the way and nothing outside is reached, whoever swaps what meanwhile. OSError, of
    the kind that `os.open` raises."""
    # RESOLVE_NO_XDEV, NO_MAGICLINKS, NO_SYMLINKS, BENEATH
    how = struct.pack("=QQQ", os.O_DIRECTORY | os.O_CLOEXEC, 0, 0x1 | 0x2 | 0x4 | 0x8)
    number = 437
    arguments = (number, folder, os.fsencode(path), how, len(how))
    try:
        return do(step("openat2", "syscall", *arguments))
    except LayerError as error:
        raise OSError(error.errno, os.strerror(error.errno), path) from error
