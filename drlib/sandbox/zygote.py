"""The warm template process: imports once, then forks one single-use child a call.

`template.py` starts this file by its path (never as a module of drlib), with an environment of a
few harmless variables, in an empty folder, and talks to it over one socket. A call is four memory
files (the request and the three streams) that pass through unread, for what is in this process's
memory is in that of every later child. A child is forked before anybody asks: it puts every layer
but the last in place and waits for its one call; then it installs the filter, tells the template
"ready", reads the request, runs the code, exits. What became of the call is read from the kernel
(exit status, signal, resource usage, size of the output files), never from what the child prints.
One that does not get as far as "ready" has `setup_failed`, whatever its exit code: generated code
cannot forge a fault of the environment.

Output goes to memory files bounded by RLIMIT_FSIZE, so no pump thread is needed and no pipe can
fill up. Random generators are seeded from the call's own text: equal calls see equal numbers.
Standard library only, and no import of drlib: the child must not see the repository.
"""

from __future__ import annotations

import _signal  # the C functions alone: what `signal` and `socket` put around them in Python costs
import _socket  # hundreds of touched pages a call
import contextlib
import fcntl
import gc
import importlib.machinery
import importlib.util
import json
import marshal
import math
import os
import select
import signal
import socket
import struct
import sys
import time
import types
from collections.abc import Callable

SETUP_SECONDS = 30.0  # a child that needs longer to reach "ready" is a fault of the machine
CHECK_SECONDS = 0.02  # between two looks at the size of the work folder
OUTPUT_BYTES = 8 << 20  # of stdout, of stderr, and of any single file
WORK_BYTES, WORK_ENTRIES = 64 << 20, 1024  # what a call may leave in its folder while it runs
OPEN_FILES, THREADS = 64, 512
HIGH = 64  # above all numbers that descriptors get in a child


def load(name: str) -> types.ModuleType:
    """The file `name`.py next to this one, by path: nothing of drlib is put on sys.path."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name + ".py")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


child, cleanup, layers = load("child"), load("cleanup"), load("layers")
sessions = load("sessions")
sessions.zygote = sys.modules[__name__]


def receive(channel: socket.socket) -> tuple[dict, bytes] | None:
    """Read one message and the descriptors that came with it, packed as C integers; None: the other
    side has closed. Messages are short, and the next comes after our reply."""
    data, rights, _, _ = channel.recvmsg(4096, 128)
    return (marshal.loads(data), rights[0][2] if rights else b"") if data else None


class Packages:
    """Imports the packages that code may use from outside sys.path. Their neighbours, which hold
    the facts and answers that questions are made from, are "not found"."""

    def __init__(self, names: list[str], roots: list[str], leave: int | None) -> None:
        self.names, self.roots, self.leave = names, roots, leave

    def find_spec(self, name: str, path=None, target=None):
        """As the import system asks for it (see `importlib.abc.MetaPathFinder`)."""
        if path is None and name in self.names:
            if self.leave is not None:  # to run again where they are loaded and seeded
                os._exit(self.leave)
            return importlib.machinery.PathFinder.find_spec(name, self.roots)
        return None

    def readable(self) -> tuple[list[str], list[str]]:
        """(contents readable, only listable): standard library, packages, C libraries, zones."""
        stdlib = os.path.dirname(os.path.abspath(os.__file__))
        read = [os.path.join(stdlib, name) for name in os.listdir(stdlib)
                if name not in ("site-packages", "dist-packages")]
        read += [os.path.join(root, name + end) for root in self.roots for name in self.names
                 for end in ("", ".libs")]
        machine = f"{os.uname().machine}-linux-gnu"
        read += [f"/lib/{machine}", f"/usr/lib/{machine}", "/etc/ld.so.cache", "/dev/urandom",
                 "/usr/share/zoneinfo"]
        for folder in ("/lib64", "/usr/lib64", os.path.join(sys.base_prefix, "lib")):
            if os.path.isdir(folder):
                read += [e.path for e in os.scandir(folder) if ".so" in e.name and e.is_file()]
        return sorted(set(read)), [stdlib]


class Template:
    """Owns the work folder, the ruleset and the filter; serves one call at a time."""

    def __init__(self, config: dict) -> None:
        self.config, self.pid, self.child = config, os.getpid(), 0
        self.spare: tuple[int, socket.socket] | None = None  # the next child and the line to it
        self.channel = _socket.socket(fileno=config["fd"])
        self.poller = select.poll()
        self.poller.register(self.channel, getattr(select, "POLLRDHUP", 0))
        self.folder = os.getcwd()
        # At level "strong" a file system of the call's own hides `work`, and Landlock's rule must
        # then stand on the folder around it, in which nobody may write.
        self.box = os.path.join(self.folder, "box")
        self.work = os.path.join(self.box, "work")
        self.filter, self.home = None, -1
        self.keepers: list[int] = []  # of sessions
        self.before_fork, self.mount, self.restrict = [], [], []  # steps of children
        self.also: dict[int, Callable[[], None]] = {}  # descriptors to answer while a child runs
        signal.signal(signal.SIGTERM, self._leave)
        os.environ.update(HOME=self.work, TMPDIR=self.work)
        layers.take(layers.ADOPT_ORPHANS)

    def prepare(self) -> None:
        """Import what calls will need, then build everything that children share."""
        config = self.config
        os.makedirs(self.work, 0o700)
        if config["drop"] == "setuid":
            os.chmod(".", 0o711)
            os.chown(self.work, layers.NOBODY, layers.NOBODY)
        os.chmod(self.box, 0o555)
        # After the change of credentials. SIGTERM, so that the work folder is cleared first.
        die_with_parent(signal.SIGTERM, config["parent"])
        leave = None if config["heavy"] else child.EXIT_HEAVY
        packages = Packages(config["packages"], config["roots"], leave)
        sys.meta_path.append(packages)
        exec(config["warm_up"], {})
        if "namespaces" in config["layers"]:
            self.home = layers.enter_namespaces()
            self.before_fork = layers.new_pid_namespace(self.home)
            self.mount = layers.work_mount(self.work, WORK_BYTES, WORK_ENTRIES)
        if "landlock" in config["layers"]:
            place = self.work if self.home < 0 else self.box
            ruleset = layers.landlock_ruleset(*packages.readable(), place)
            ruleset = fcntl.fcntl(ruleset, fcntl.F_DUPFD_CLOEXEC, HIGH)
            self.restrict = layers.landlock_restrict(ruleset)
        if "seccomp" in config["layers"]:
            self.filter = layers.SeccompFilter()
        # What does no harm to the template itself is inherited.
        layers.take(layers.limits({"CORE": 0, "MEMLOCK": 0, "MSGQUEUE": 0}))
        if "no_new_privileges" in config["layers"]:
            layers.take(layers.NO_NEW_PRIVILEGES)
        self.steps = self._child_steps()
        child.prepare()
        gc.collect()
        gc.freeze()
        gc.disable()

    def _child_steps(self) -> list:
        """What a child does, its work folder being mounted, before it gets its descriptors. Fixed
        when the template starts, for later children and sessions alike: RLIMIT_NPROC leaves room
        for THREADS beside the threads that the user had then (with "setuid" that user is 65534, of
        every sandbox on the machine)."""
        setuid, own = self.config["drop"] == "setuid", 0
        uid = layers.NOBODY if setuid else os.stat(self.work).st_uid
        # One second more than the wall clock: one busy thread always ends as "timeout".
        self.cpu_s = math.ceil(self.config["timeout_s"]) + 1
        if os.path.exists("/proc/self/statm"):
            with open("/proc/self/statm") as file:
                own = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        return [
            ("setsid", os.setsid, ()),
            ("signals", _signal.signal, (_signal.SIGTERM, _signal.SIG_DFL)),
            *layers.limits({
                "AS": own + (self.config["memory_mb"] << 20), "CPU": self.cpu_s,
                "FSIZE": OUTPUT_BYTES, "NOFILE": OPEN_FILES, "NPROC": count_tasks(uid) + THREADS,
            }),
            ("work folder", os.chdir, (self.work,)),
            *(layers.nobody() if setuid else layers.NO_CAPABILITIES),
            *layers.die_with_parent(signal.SIGKILL), *self.restrict,
        ]

    def serve(self) -> None:
        """Answer calls until the other side closes or SIGTERM comes."""
        try:
            self.prepare()
            self.channel.sendall(marshal.dumps({"ready": True}))
            while (asked := receive(self.channel)) is not None:
                if asked[0]:
                    self.keepers.append(sessions.open_session(self))
                    continue
                self.keepers = [k for k in self.keepers if not os.waitpid(k, os.WNOHANG)[0]]
                reply = self.call(asked[1])
                if self.home < 0:
                    cleanup.wipe(self.work)
                self.channel.sendall(marshal.dumps(reply))
        finally:
            if os.getpid() == self.pid:
                try:  # a caller that dies is noticed twice, by its closed socket and by SIGTERM
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)
                finally:
                    for self.child in (self.child, self.spare and self.spare[0]):
                        if self.child:
                            self._kill()
                    os.chmod(self.box, 0o700)
                    cleanup.wipe(self.folder)
                    os.rmdir(self.folder)  # a caller that was killed cannot do it

    def _leave(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(0)

    def call(self, rights: bytes) -> dict:
        """Hand one request to the child that waits and describe how it ended; closes what `rights`
        names: the request's memory file, and the child's stdin, stdout and stderr."""
        fds = struct.unpack("4i", rights)
        if not self.spare:
            self.prepare_child()
        (self.child, line), self.spare = self.spare, None
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has told why
                line.sendmsg((b".",), ((socket.SOL_SOCKET, socket.SCM_RIGHTS, rights),))
            word = os.read(line.fileno(), 4096) if self.sleep(line.fileno(), SETUP_SECONDS) else b""
            if word == b"1":
                return self.outcome(*fds[2:], self.prepare_child)
            # Either it has told why and is leaving, or it hangs.
            status = os.wait4(self.child, 0)[1] if word else self._kill()[0]
            self.child = 0
            return {"status": "setup_failed", "exit_code": os.waitstatus_to_exitcode(status),
                    "duration_s": 0.0, "reason": word[1:].decode("utf-8", "replace")}
        finally:
            line.close()
            for fd in fds:
                os.close(fd)

    def prepare_child(self) -> None:
        """Fork the child of the next call, which puts its layers in place and waits: ready before
        anybody asks, and still used once."""
        ours, theirs = _socket.socketpair()
        pid = layers.fork(self.before_fork)
        if not pid:
            child.main(self, layers, theirs)
        theirs.close()
        self.spare = pid, ours

    def outcome(self, out: int, err: int, meanwhile: Callable[[], None] = lambda: None) -> dict:
        """Watch the child to its end, or to the end of its time, and say how it ended;
        `meanwhile` runs on another core."""
        began = time.monotonic()
        with contextlib.suppress(OSError):  # no process to be had just now; try again when needed
            meanwhile()
        cause, status, usage = self._watch(began + self.config["timeout_s"])
        duration = time.monotonic() - began
        self.child = 0
        if "seccomp" not in self.config["layers"]:
            cleanup.kill_children({self.spare[0]} if self.spare else ())
        code = os.waitstatus_to_exitcode(status)
        if not cause and max(os.lseek(fd, 0, os.SEEK_END) for fd in (out, err)) >= OUTPUT_BYTES:
            cause = "output_limit"
        return {"status": cause or self._classify(code, usage), "exit_code": code, "reason": "",
                "duration_s": duration}

    def _classify(self, code: int, usage: object) -> str:
        """The status that the kernel's own account of a finished child amounts to."""
        if code == 0:
            return "ok"
        if code > 0:
            named = {child.EXIT_MEMORY: "memory_limit"}
            if not self.config["heavy"]:
                named[child.EXIT_HEAVY] = "heavy"
            return named.get(code, "error")
        spent = usage.ru_utime + usage.ru_stime
        if -code == signal.SIGXCPU or (-code == signal.SIGKILL and spent > self.cpu_s - 0.5):
            return "cpu_limit"
        return "killed"

    def _watch(self, deadline: float) -> tuple[str, int, object]:
        """Until the child ends or must: (why we killed it or "", wait status, resource usage)."""
        pidfd = os.pidfd_open(self.child) if hasattr(os, "pidfd_open") else -1
        try:
            while True:
                left = deadline - time.monotonic()
                self.sleep(pidfd, min(left, CHECK_SECONDS if self.home < 0 else left))
                pid, status, usage = os.wait4(self.child, os.WNOHANG)
                if pid:
                    return "", status, usage
                if time.monotonic() >= deadline:
                    return "timeout", *self._kill()
                if self.home < 0 and folder_is_full(self.work):
                    return "output_limit", *self._kill()
        finally:
            if pidfd >= 0:
                os.close(pidfd)

    def sleep(self, fd: int, seconds: float) -> bool:
        """Whether `fd` becomes readable in time (-1, where a child cannot be polled: a short nap);
        leaves where the caller has gone."""
        until = time.monotonic() + (seconds if fd >= 0 else 0.002)
        if fd >= 0:
            self.poller.register(fd, select.POLLIN)
        try:
            while (left := until - time.monotonic()) > 0:
                for ready, _ in self.poller.poll(left * 1000 + 1):
                    if ready == fd:
                        return True
                    if ready == self.channel.fileno():
                        sys.exit(0)
                    self.also[ready]()
            return False
        finally:
            if fd >= 0:
                self.poller.unregister(fd)

    def _kill(self) -> tuple[int, object]:
        """Kill the child with its process group and reap it."""
        os.kill(self.child, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):  # it had not come to setsid
            os.killpg(self.child, signal.SIGKILL)
        _, status, usage = os.wait4(self.child, 0)
        self.child = 0
        return status, usage


def folder_is_full(folder: str) -> bool:
    """Whether the tree has more than WORK_BYTES or WORK_ENTRIES: nothing else bounds its sum."""
    size, count, folders = 0, 0, [folder]
    while folders:
        try:
            for entry in os.scandir(folders.pop()):
                count += 1
                size += entry.stat(follow_symlinks=False).st_blocks * 512
                if size > WORK_BYTES or count > WORK_ENTRIES:
                    return True
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
        except (FileNotFoundError, PermissionError):  # gone meanwhile; or closed to its owner too
            continue
        except OSError:  # deeper than a path can be long
            return True
    return False


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


def die_with_parent(number: int, parent: int) -> None:
    """Get `number` when the parent dies; exit at once if `parent` (0: unknown) has died already."""
    layers.take(layers.die_with_parent(number))
    if parent not in (0, os.getppid()):
        os._exit(1)


def start(config: dict) -> None:
    """Serve in this process, or, where namespaces need it, as process 1 of a PID namespace."""
    # As low as can be: children close what lies below the limit.
    given, config["fd"] = config["fd"], fcntl.fcntl(config["fd"], fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(given)
    layers.take(layers.limits({"NOFILE": child.MOST_DESCRIPTORS}))  # children close all below it
    if config["drop"] == "userns":
        layers.enter_user_namespace()
        if "namespaces" in config["layers"]:  # only a namespace of our own can be returned to
            parent, config["parent"] = config["parent"], 0
            layers.unshare(layers.NEW_PID)
            if pid := os.fork():
                os.close(config["fd"])
                signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGTERM))
                die_with_parent(signal.SIGTERM, parent)
                sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 0xFF)
    Template(config).serve()


if __name__ == "__main__":
    start(json.loads(sys.argv[1]))
