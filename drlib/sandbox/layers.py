"""Isolation layers of the kernel: limits, credentials, namespaces, file tree, Landlock.

Plain ctypes on system calls: no root, compiler or package is needed, and it works in an
unprivileged container that permits the calls. `trials.py` tests every layer, each child applies
them all, and a failing layer raises `LayerError` before any generated code runs.

Landlock controls which files may be opened. `seccomp.py` denies what Landlock does not cover:
chmod, chown, times, xattr, sockets, exec, fork. With namespaces, a call is also process 1 of a PID
namespace, has no network, writes to its own memory file system, and its root folder contains only
files that it may read (no /proc).

Left out: cgroups (they need delegation) and macOS `sandbox-exec`. Not contained: kernel bugs in
allowed system calls and side channels through machine load. Without namespaces, names and sizes of
existing files (`stat`), link targets and process ids are also visible.
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
# Namespace flags of `unshare`.
NEW_MOUNTS = 0x20000
NEW_UTS = 0x4000000  # the host's name
NEW_IPC = 0x8000000
NEW_USER = 0x10000000
NEW_PID = 0x20000000
NEW_NET = 0x40000000
# Mount flags.
_PRIVATE = 0x4000 | 0x40000  # recursive: our mounts are invisible outside
_BIND = 0x1000 | 0x4000  # recursive, as a user namespace requires
_NO_SPECIAL = 0xE  # no set-uid, no devices, no programs
_NO_ACCESS_TIMES = 0x400 | 0x800  # files, folders
_DETACH = 0x2

# Landlock rights.
_WRITE_FILE = 1 << 1
_READ_FILE = 1 << 2
_READ_DIR = 1 << 3
_TRUNCATE = 1 << 14
_NOT_IN_WORK = 1 << 0 | 1 << 6 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 15  # exec, devices, sockets
MIN_LANDLOCK_ABI = 3  # older versions do not control truncation by path
LayerStep = tuple[str, Callable, tuple]  # description, function, arguments


class LayerError(OSError):
    """A layer could not be applied; the message names the layer and the system error."""


_libc = ctypes.PyDLL(None, use_errno=True)  # keeps the GIL for a forked child


def step(what: str, name: str, *arguments) -> LayerStep:
    """Build a step that calls the C function `name`; `what` describes it in errors."""
    longs = (ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments)
    return what, getattr(_libc, name), tuple(longs)


def do(step: LayerStep) -> int:
    """Execute one step and return its result; a negative one raises `LayerError`."""
    what, function, arguments = step
    result = function(*arguments)
    if type(result) is int and result < 0:
        number = ctypes.get_errno()
        raise LayerError(number, f"{what}: {os.strerror(number)}")
    return result


def take(steps: Iterable[LayerStep]) -> None:
    """Execute prepared steps; `LayerError` names the first that fails.

    Steps are built once in the template, so a child copies fewer memory pages.
    """
    for step in steps:
        do(step)


def fork(before: Iterable[LayerStep]) -> int:
    """Execute the steps `before`, then fork a single-threaded process (0 in the child).

    Skips Python's fork hooks, which touch 150 pages of a child. Raises `LayerError` on failure.
    """
    take(before)
    return do(("fork", _libc.fork, ()))


def limits(values: dict[str, int]) -> list[LayerStep]:
    """Set hard and soft `RLIMIT_<name>`, e.g. {"AS": bytes, "CPU": seconds}; never raise one."""
    steps: list[LayerStep] = []
    for name, value in values.items():
        which = getattr(resource, f"RLIMIT_{name}", None)
        if which is None:  # e.g. MSGQUEUE exists only on Linux
            continue
        hard = resource.getrlimit(which)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        steps.append((f"limit {name}", resource.setrlimit, (which, (value, value))))
    return steps


def _on_linux(what: str, name: str, *arguments) -> list[LayerStep]:
    """Return the step on Linux and nothing elsewhere."""
    return [step(what, name, *arguments)] if sys.platform == "linux" else []


def die_with_parent(number: int) -> list[LayerStep]:
    """Receive signal `number` when the parent dies; a change of credentials clears this."""
    return _on_linux("die with parent", "prctl", 1, number, 0, 0, 0)


# Become the parent of descendants whose own parent exits (child subreaper).
ADOPT_ORPHANS = _on_linux("subreaper", "prctl", 36, 1, 0, 0, 0)
# Make set-uid programs harmless; Landlock and seccomp require it of a process without root.
NO_NEW_PRIVILEGES = _on_linux("no_new_privileges", "prctl", 38, 1, 0, 0, 0)
# No huge pages, now and in all children: a page stays allocated while any part of it is mapped, and
# no limit counts the rest.
NO_HUGE_PAGES = _on_linux("no huge pages", "prctl", 41, 1, 0, 0, 0)
# Drop every capability permanently: empty effective, permitted and inheritable sets.
NO_CAPABILITIES = _on_linux("capset", "capset", struct.pack("=Ii", 0x20080522, 0), bytes(24))


def become_nobody() -> list[LayerStep]:
    """Change permanently from root to uid and gid 65534, which also drops capabilities."""
    three = (NOBODY,) * 3
    return [
        ("setgroups", os.setgroups, ([],)),
        ("setresgid", os.setresgid, three),
        ("setresuid", os.setresuid, three),
    ]


def enter_user_namespace() -> None:
    """Become uid 65534 of a new user namespace.

    Files are still read as their owner, but no capability is valid outside. Needed if uid 65534
    cannot read the Python installation, and for the other namespaces if the caller is not root.
    """
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        os.setgroups([])
    unshare(NEW_USER)
    _write_own("setgroups", "deny")
    _write_own("gid_map", f"{NOBODY} {gid} 1")
    _write_own("uid_map", f"{NOBODY} {uid} 1")


def enter_two_user_namespace() -> None:
    """As root, enter a user namespace with two ids: root, and uid 65534 of the host.

    The kernel limits the number of processes of uid 65534 but not of root. A helper process writes
    the maps, because only a process outside may map a second id.
    """
    os.setgroups([])
    parent = os.getpid()
    inside, entered = os.pipe()
    helper = os.fork()
    if helper == 0:
        try:
            os.close(entered)
            if os.read(inside, 1):
                for name in ("uid_map", "gid_map"):
                    with open(f"/proc/{parent}/{name}", "w") as file:
                        file.write(f"0 0 1\n{NOBODY} {NOBODY} 1\n")
                os._exit(0)
        finally:
            os._exit(1)
    os.close(inside)
    try:
        unshare(NEW_USER)
        os.write(entered, b".")
    finally:
        os.close(entered)
        _, status = os.waitpid(helper, 0)
    if status:
        raise LayerError(errno.EPERM, "the maps of the user namespace could not be written")


def _write_own(name: str, text: str) -> None:
    """Write an entry of /proc/self."""
    with open(f"/proc/self/{name}", "w") as file:
        file.write(text)


def unshare(flags: int) -> None:
    """Move to new namespaces, `flags`; a PID namespace applies to the next child."""
    take([step(f"unshare({flags:#x})", "unshare", flags)])


def enter_namespaces() -> int:
    """Move this process to its own mount, network, IPC and host-name namespaces.

    Returns a descriptor of its PID namespace for `new_pid_namespace`.
    """
    home = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    unshare(NEW_MOUNTS | NEW_UTS | NEW_IPC | NEW_NET)
    take([step("private mounts", "mount", b"none", b"/", b"", _PRIVATE, b"")])
    return home


def new_pid_namespace(home: int) -> list[LayerStep]:
    """Make the next child process 1 of a PID namespace that ends with it."""
    back = step("setns(pid)", "setns", home, NEW_PID)  # unshare twice in a row is an error
    return [back, step("unshare(pid)", "unshare", NEW_PID)]


def work_mount(folder: str, size: int, entries: int) -> list[LayerStep]:
    """Mount an empty memory file system of uid 65534 over `folder`, for this process only."""
    options = f"size={size},nr_inodes={entries},mode=700,uid={NOBODY},gid={NOBODY}"
    mount = _tmpfs(folder, options, _NO_SPECIAL | _NO_ACCESS_TIMES)
    return [step("unshare(mounts)", "unshare", NEW_MOUNTS), mount]


def _tmpfs(folder: str, options: str, flags: int = _NO_SPECIAL) -> LayerStep:
    """Build the step that mounts a memory file system over `folder`."""
    arguments = (b"tmpfs", folder.encode(), b"tmpfs", flags, options.encode())
    return step(f"mount over {folder}", "mount", *arguments)


def build_root(root: str, shown: Iterable[str], hidden: Iterable[str], *boxes: str) -> None:
    """Mount a read-only file tree at the empty folder `root`; needs an own mount namespace.

    Args:
        root: mount point.
        shown: files and folders that appear at their own path.
        hidden: folders inside `shown` that appear empty, except for their own `shown` content.
        boxes: paths of empty folders in the tree.
    """
    take([_tmpfs(root, "size=4m,mode=755")])
    paths = {path for path in shown if os.path.exists(path)}  # missing files need no mount
    places = {os.path.realpath(path) for path in paths}
    covered = set(hidden)
    # Parents first: a later mount over a parent would hide its content.
    for path in sorted(places | covered, key=lambda path: (path.count("/"), path)):
        if path in covered:
            if os.path.isdir(root + path):
                take([_tmpfs(root + path, "size=1m,mode=755")])
        elif not os.path.exists(root + path):  # not inside a folder that is already shown
            _bind(path, root + path)
    for path in paths - places:  # symbolic links keep their own name
        os.makedirs(os.path.dirname(root + path), exist_ok=True)
        if not os.path.lexists(root + path):
            os.symlink(os.path.realpath(path), root + path)
    for box in boxes:
        os.makedirs(root + box, 0o755)
    make_read_only(root)


def mount_memory(place: str, size: int, entries: int) -> None:
    """Mount an empty memory file system, from which programs can be executed, at `place`."""
    options = f"size={size},nr_inodes={entries},mode=755,uid={NOBODY},gid={NOBODY}"
    take([_tmpfs(place, options, _NO_SPECIAL & ~0x8)])


def _bind(source: str, place: str) -> None:
    """Bind-mount `source` read-only at `place`."""
    if os.path.isdir(source):
        os.makedirs(place)
    else:
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o444))
    take([step(f"bind {source}", "mount", source.encode(), place.encode(), b"", _BIND, b"")])
    make_read_only(place)  # at once, so that a later error cannot write into the host's folders


def make_read_only(place: str) -> None:
    """Make the mount at `place` and all mounts below it read-only."""
    what = struct.pack("=4Q", 1, 0, 0, 0)
    recursive = 0x8000
    number = 442
    arguments = (number, -1, place.encode(), recursive, what, len(what))
    take([step("mount_setattr", "syscall", *arguments)])


def change_root(root: str) -> list[LayerStep]:
    """Make `root` the root folder; a chdir must follow."""
    return [step("chroot", "chroot", root.encode())]


def remove_root(root: str) -> None:
    """Unmount the tree of `build_root`, which leaves the empty folder `root`."""
    take([step("umount", "umount2", root.encode(), _DETACH)])


def landlock_abi() -> int:
    """Return the Landlock version of the kernel, or 0 without Landlock."""
    try:
        return do(step("landlock", "syscall", 444, None, 0, 1))
    except LayerError:
        return 0


def landlock_ruleset(read: Iterable[str], list_only: Iterable[str], work: str) -> int:
    """Create a ruleset (a descriptor) that children share and apply with `landlock_restrict`.

    Args:
        read: files and folders whose contents may be read.
        list_only: folders whose entries may be listed, contents not.
        work: the only folder in which files may be created and changed. Nothing is executable.
    """
    abi = landlock_abi()
    if abi < MIN_LANDLOCK_ABI:
        raise LayerError(errno.ENOSYS, f"Landlock ABI {abi} is below {MIN_LANDLOCK_ABI}")
    rights = 0xFFFF if abi >= 5 else 0x7FFF
    attributes = struct.pack("=QQQ", rights, 3, 3)  # files; TCP; abstract sockets and signals
    # The kernel's version defines how many of the three fields it accepts.
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
    """Add a rule for `path`, reduced to file rights if it is a file."""
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # missing files need no rule
    try:
        if not os.path.isdir(path):
            rights &= _READ_FILE | _WRITE_FILE | _TRUNCATE
        rule = struct.pack("=Qi", rights, fd)
        do(step(f"landlock_add_rule {path}", "syscall", 445, ruleset, 1, rule, 0))
    finally:
        os.close(fd)


def landlock_restrict(ruleset: int) -> list[LayerStep]:
    """Apply the ruleset permanently."""
    return [step("landlock", "syscall", 446, ruleset, 0)]


def open_below(folder: int, path: str) -> int:
    """Open `path`, a folder below descriptor `folder`, for reading.

    Follows no link and reaches nothing outside, even if the tree changes meanwhile. Raises the
    OSError subclass of `os.open`.
    """
    # RESOLVE_NO_XDEV, NO_MAGICLINKS, NO_SYMLINKS, BENEATH
    how = struct.pack("=QQQ", os.O_DIRECTORY | os.O_CLOEXEC, 0, 0x1 | 0x2 | 0x4 | 0x8)
    number = 437
    arguments = (number, folder, os.fsencode(path), how, len(how))
    try:
        return do(step("openat2", "syscall", *arguments))
    except LayerError as error:
        raise OSError(error.errno, os.strerror(error.errno), path) from error
