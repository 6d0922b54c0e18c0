"""A program in a file tree of its own: build the tree, run a shell command, return the files.

`programs.py` starts this process through `launcher.py` for every command. It enters user, mount,
PID, network, IPC and host-name namespaces, builds a read-only root folder with the system's
programs, and mounts a memory file system for each of its folders that has files of the caller. The
command runs as process 2 of the PID namespace behind resource limits and a seccomp filter, without
capabilities. When the first process of the namespace ends, the kernel kills all others, so nothing
changes the files while this process reads them.
"""

from __future__ import annotations

import _signal as signal  # without the wrappers, which import much more
import errno
import marshal
import os
import select
import stat
import sys
import time

from drlib.sandbox import layers, packages, seccomp

FILE_BYTES = 4 << 20  # largest file, and largest output of one stream
STATE_BYTES = 8 << 20  # of all files together
ENTRIES = 4000  # files and folders
# Of each memory file system: all entries in one folder, each rounded up to a page, always fit.
MOUNT_BYTES = STATE_BYTES + 4096 * ENTRIES
MAX_PROCESSES = 24
MEMORY_BYTES = 256 << 20  # address space of each process
OPEN_FILES = 64
PROGRAMS = "/opt/bin"  # links to the Python interpreter, first in PATH
MODIFIED = 1_700_000_000  # modification time of the files at the start of each command
EXIT_SETUP = 97  # the command was not started
SYSTEM = ("/bin", "/usr/bin", "/etc/alternatives", "/dev/null", "/dev/zero", "/dev/urandom")


def main(_argument: str) -> None:
    """Run one command.

    Reads (configuration of `programs.run_program`, files) from stdin and writes (status, exit code,
    files) to stdout, both marshalled. Imports little: the start is most of the time of a call.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # removes the folder
    layers.take(layers.die_with_parent(signal.SIGTERM))
    config, files = marshal.loads(sys.stdin.buffer.read())
    if os.getppid() != config["parent"]:
        os._exit(EXIT_SETUP)
    root = f"{config['scratch']}/{config['prefix']}{os.urandom(8).hex()}"
    os.mkdir(root, 0o700)
    try:
        reply = _run(config, files, root)
    finally:
        os.rmdir(root)  # the mounts are visible in this process's namespaces only
    sys.stdout.buffer.write(marshal.dumps(reply))
    sys.stdout.buffer.flush()


def _run(config: dict, files: dict, root: str) -> tuple:
    is_root = os.geteuid() == 0
    if is_root:
        layers.enter_two_user_namespace()
    else:
        layers.enter_user_namespace()
    layers.enter_namespaces()
    kept = {path.split("/")[1] for path in files}
    _build_tree(root, config["python"], kept)
    try:
        if is_root:  # create the files as the user of the command
            os.setegid(layers.NOBODY)
            os.seteuid(layers.NOBODY)
        _write_files(root, files)
        if is_root:
            os.seteuid(0)
            os.setegid(0)
        program_filter = seccomp.SeccompFilter(programs=True)
        layers.unshare(layers.NEW_PID)
        # again, because new credentials have cleared it
        layers.take(layers.die_with_parent(signal.SIGTERM))
        if os.getppid() != config["parent"]:
            sys.exit(1)
        ready, started = os.pipe()
        pid = os.fork()
        if pid == 0:
            _be_first_process(config, root, program_filter, started, is_root)
        os.close(started)
        error = os.read(ready, 4096)  # empty once the layers are applied
        cause, code = _wait(pid, config["timeout_s"])
        if error:
            raise layers.LayerError(errno.EPERM, error.decode("utf-8", "replace"))
        outputs = [os.fstat(fd).st_size for fd in config["streams"]]
        if not cause and max(outputs) >= FILE_BYTES:
            cause = "output_limit"
        left = _read_files(root, kept)
        if left is None:
            return "files_limit", code, files
        return cause or ("ok" if code == 0 else "error"), code, left
    finally:
        layers.remove_root(root)


def _build_tree(root: str, python: str, kept: set[str]) -> None:
    """Mount the file tree: read-only except for /tmp and the folders of the caller's files."""
    shown, hidden = packages.Packages([], [], None).shown()
    boxes = [f"/{name}" for name in sorted(kept | {"tmp"})]
    layers.build_root(root, [*SYSTEM, *shown, python], hidden, PROGRAMS, *boxes)
    for box in boxes:
        layers.mount_memory(root + box, MOUNT_BYTES, ENTRIES + 10)
    layers.mount_memory(root + PROGRAMS, 1 << 16, 10)
    for name in ("python", "python3"):
        os.symlink(python, f"{root}{PROGRAMS}/{name}")
    layers.make_read_only(root + PROGRAMS)


def _write_files(root: str, files: dict) -> None:
    """Create the caller's entries: path -> (mode, bytes, None for a folder, or a link's target)."""
    for path in sorted(files, key=lambda path: path.split("/")):  # folders first
        _, content = files[path]
        place = root + path
        if content is None:
            os.makedirs(place, exist_ok=True)
        elif isinstance(content, str):
            os.symlink(content, place)
        else:
            # never through a link: a path below a link is no entry of a state
            fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with open(fd, "wb") as file:
                file.write(content)
    for path in sorted(files, reverse=True):  # children first: a folder's mode may be 0
        mode, content = files[path]
        if not isinstance(content, str):
            os.chmod(root + path, mode)
            os.utime(root + path, (MODIFIED, MODIFIED))


def _be_first_process(
    config: dict, root: str, program_filter: seccomp.SeccompFilter, started: int, is_root: bool
) -> None:
    """Apply the layers, run the command in a child, wait for it and exit with its code."""
    try:
        limits = {
            "AS": MEMORY_BYTES,
            "CPU": config["cpu_s"],
            "CORE": 0,
            "FSIZE": FILE_BYTES,
            "NOFILE": OPEN_FILES,
            "NPROC": MAX_PROCESSES,
            "MSGQUEUE": 0,
            "MEMLOCK": 0,
            "SIGPENDING": 256,
        }
        os.setsid()
        for target, source in enumerate([os.open(os.devnull, os.O_RDONLY), *config["streams"]]):
            os.dup2(source, target)
        layers.take(layers.change_root(root))
        if is_root:
            layers.take(layers.become_nobody())
        layers.take(layers.die_with_parent(signal.SIGKILL))
        os.chdir(config["folder"])
        layers.take(layers.limits(limits))
        layers.take(layers.NO_HUGE_PAGES)
        layers.take(layers.NO_CAPABILITIES)
        layers.take(layers.NO_NEW_PRIVILEGES)
        # without a handler, no signal of the command reaches the first process
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        program_filter.install()
        os.set_inheritable(started, False)
        os.closerange(3, started)
        os.closerange(started + 1, 4096)
    except BaseException as error:  # noqa: BLE001 - after any error, no command may run
        os.write(started, f"{type(error).__name__}: {error}".encode()[:2000])
        os._exit(EXIT_SETUP)
    os.close(started)
    command = os.fork()
    if command == 0:
        try:
            os.execve("/bin/sh", ["sh", "-c", config["command"]], config["environment"])
        finally:
            os._exit(EXIT_SETUP)
    while True:
        pid, status = os.wait()  # also reaps adopted processes
        if pid == command:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def _wait(pid: int, timeout_s: float) -> tuple[str, int]:
    """Return ("" or "timeout", exit code); afterwards no process of the command exists."""
    pidfd = os.pidfd_open(pid)
    until = time.monotonic() + timeout_s
    cause = ""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    if not poller.poll(max(0.0, until - time.monotonic()) * 1000):
        cause = "timeout"
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)  # returns after the last process of its namespace
    os.close(pidfd)
    return cause, os.waitstatus_to_exitcode(status)


def _read_files(root: str, kept: set[str]) -> dict | None:
    """Return all entries of the folders `kept`; None above the limits.

    No process of the command exists any more, so the tree does not change.
    """
    files: dict[str, tuple] = {}
    total = 0
    left = [f"/{name}" for name in kept]
    try:
        while left:
            path = left.pop()
            path.encode()  # a name that is not UTF-8 cannot be shown to the policy
            found = os.lstat(root + path)
            mode = stat.S_IMODE(found.st_mode)
            if stat.S_ISDIR(found.st_mode):
                files[path] = (mode, None)
                left += [f"{path}/{name}" for name in os.listdir(root + path)]
            elif stat.S_ISLNK(found.st_mode):
                target = os.readlink(root + path)
                target.encode()
                files[path] = (mode, target)
            elif stat.S_ISREG(found.st_mode):
                total += found.st_size  # of sparse files, more than the file system holds
                if total > STATE_BYTES:
                    return None
                with open(root + path, "rb") as file:
                    files[path] = (mode, file.read())
    except (OSError, UnicodeError):  # a path that is too long, or no text
        return None
    return files if len(files) <= ENTRIES else None
