"""The warm template process: imports once, then forks one single-use child a call.

`template.py` starts this module through `alone.py`, with an environment of a few harmless
variables, in an empty folder, and talks to it over one socket. A call is four memory
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

from drlib.sandbox import bounds, child, cleanup, layers, notices, packages, seccomp, sessions

SETUP_SECONDS = 30.0  # a child that needs longer to reach "ready" is a fault of the machine
CHECK_SECONDS = 0.02  # between two looks at what a call holds
OPEN_FILES, THREADS, WAITING_SIGNALS = 64, 512, 1024
HIGH = 64  # above all numbers that descriptors get in a child
WORK = "/box/work"  # of a call that has a file tree of its own


class Template:
    """Owns the work folder, the ruleset and the filter; serves one call at a time."""

    def __init__(self, config: dict) -> None:
        self.config, self.pid, self.child = config, os.getpid(), 0
        self.spare: tuple[int, socket.socket] | None = None  # the next child and the line to it
        self.channel = _socket.socket(fileno=config["fd"])
        self.poller = select.poll()
        self.poller.register(self.channel, getattr(select, "POLLRDHUP", 0))
        self.folder = os.getcwd()
        self.work = ""  # the folder of a call, as the call sees it
        self.root = ""  # at level "strong": the file tree of all calls
        self.filter, self.home = None, -1
        self.keepers: list[int] = []  # of sessions
        # Steps of children: before the fork; a file system of its own; the file tree; Landlock.
        self.before_fork, self.mount, self.enter, self.restrict = [], [], [], []
        signal.signal(signal.SIGTERM, self._leave)
        layers.take(layers.ADOPT_ORPHANS)

    def prepare(self) -> None:
        """Import what calls will need, then build everything that children share."""
        config = self.config
        # After the change of credentials. SIGTERM, so that the work folder is cleared first.
        die_with_parent(signal.SIGTERM, config["parent"])
        leave = None if config["heavy"] else child.EXIT_HEAVY
        self.packages = packages.Packages(config["packages"], config["roots"], leave)
        sys.meta_path.append(self.packages)
        exec(config["warm_up"], {})
        place = self._make_tree() if "namespaces" in config["layers"] else self._make_folder()
        os.environ.update(HOME=self.work, TMPDIR=self.work)
        if "landlock" in config["layers"]:
            ruleset = layers.landlock_ruleset(*self.packages.readable(), place)
            ruleset = fcntl.fcntl(ruleset, fcntl.F_DUPFD_CLOEXEC, HIGH)
            self.restrict = layers.landlock_restrict(ruleset)
        if "seccomp" in config["layers"]:
            self.filter = seccomp.SeccompFilter()
        # What does no harm to the template itself is inherited.
        layers.take(layers.limits({"CORE": 0, "MEMLOCK": 0, "MSGQUEUE": 0}))
        layers.take(layers.NO_HUGE_PAGES)
        if "no_new_privileges" in config["layers"]:
            layers.take(layers.NO_NEW_PRIVILEGES)
        self.steps = self._child_steps()
        child.prepare()
        gc.collect()
        gc.freeze()
        gc.disable()

    def _make_folder(self) -> str:
        """The folder of all calls, emptied after each; nobody may write in the one around it."""
        box = os.path.join(self.folder, "box")
        self.work = os.path.join(box, "work")
        os.makedirs(self.work, 0o700)
        if self.config["drop"] == "setuid":
            os.chmod(".", 0o711)
            os.chown(self.work, layers.NOBODY, layers.NOBODY)
        os.chmod(box, 0o555)
        return self.work

    def _make_tree(self) -> str:
        """A file tree that holds what calls may read; over its one empty folder each call mounts a
        file system of its own. Landlock's rule must then stand on the folder around it."""
        self.home = layers.enter_namespaces()
        self.before_fork = layers.new_pid_namespace(self.home)
        self.root = os.path.join(self.folder, "root")
        os.mkdir(self.root)
        layers.build_root(self.root, *self.packages.shown(), WORK)
        room = bounds.WORK_BYTES, bounds.WORK_ENTRIES
        self.mount = layers.work_mount(self.root + WORK, *room)
        self.enter = layers.change_root(self.root)
        self.work = WORK
        return os.path.dirname(self.root + WORK)

    def _child_steps(self) -> list:
        """What a child does, its file tree being in place, before it gets its descriptors. Fixed
        when the template starts, for later children and sessions alike: RLIMIT_NPROC leaves room
        for THREADS beside the threads that the user had then (with "setuid" that user is 65534, of
        every sandbox on the machine)."""
        setuid, own = self.config["drop"] == "setuid", 0
        uid = layers.NOBODY if setuid else os.geteuid()
        # One second more than the wall clock: one busy thread always ends as "timeout".
        self.cpu_s = math.ceil(self.config["timeout_s"]) + 1
        if os.path.exists("/proc/self/statm"):
            with open("/proc/self/statm") as file:
                own = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        sizes = {
            "AS": own + (self.config["memory_mb"] << 20),
            "CPU": self.cpu_s,
            "FSIZE": bounds.FILE_BYTES,
            "NOFILE": OPEN_FILES,
            "NPROC": bounds.count_tasks(uid) + THREADS,
            "SIGPENDING": WAITING_SIGNALS,
        }
        return [
            ("setsid", os.setsid, ()),
            ("signals", _signal.signal, (_signal.SIGTERM, _signal.SIG_DFL)),
            *layers.limits(sizes),
            *(layers.nobody() if setuid else layers.NO_CAPABILITIES),
            ("work folder", os.chdir, (self.work,)),
            *layers.die_with_parent(signal.SIGKILL),
            *self.restrict,
        ]

    def serve(self) -> None:
        """Answer calls until the other side closes or SIGTERM comes."""
        try:
            self.prepare()
            self.channel.sendall(marshal.dumps({"ready": True}))
            while (asked := notices.receive_request(self.channel)) is not None:
                if asked[0]:
                    self.keepers.append(sessions.open_session(self))
                    continue
                self.keepers = [k for k in self.keepers if not os.waitpid(k, os.WNOHANG)[0]]
                self.answer(asked[1])
        finally:
            if os.getpid() == self.pid:
                try:  # a caller that dies is noticed twice, by its closed socket and by SIGTERM
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)
                finally:
                    self._clear()

    def _clear(self) -> None:
        """End the children and remove the folder: a caller that was killed cannot do it."""
        for pid in (self.child, self.spare[0] if self.spare else 0):
            if pid:
                self.child = pid
                self._kill()
        if self.home < 0:
            if self.work:
                os.chmod(os.path.dirname(self.work), 0o700)
            cleanup.wipe(self.folder)
        elif self.root:
            # Nothing in the tree is deleted, it is let go of: what it shows are the host's files.
            with contextlib.suppress(layers.LayerError):  # it was taken from us
                layers.remove_root(self.root)
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(self.root)
        os.rmdir(self.folder)

    def _leave(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(0)

    def answer(self, rights: bytes) -> None:
        """Make a call and say how it ended. No name here outlives that, or what became of one call
        would be seen in the frames below the next; traces of it are left in freed memory."""
        reply = marshal.dumps(self.call(rights))
        if self.home < 0:
            cleanup.wipe(self.work)
        self.channel.sendall(reply)

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
                return self.outcome(*fds[2:])
            # Either it has told why and is leaving, or it hangs.
            status = os.wait4(self.child, 0)[1] if word else self._kill()[0]
            self.child = 0
            return {
                "status": "setup_failed",
                "exit_code": os.waitstatus_to_exitcode(status),
                "duration_s": 0.0,
                "reason": word[1:].decode("utf-8", "replace"),
            }
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
            child.main(self, theirs)
        theirs.close()
        self.spare = pid, ours

    def outcome(self, out: int, err: int) -> dict:
        """Watch the child to its end, or to the end of its time, and say how it ended; meanwhile
        the next one gets ready on another core."""
        began = time.monotonic()
        with contextlib.suppress(OSError):  # no process to be had just now; try again when needed
            self.prepare_child()
        cause, status, usage = self._watch(began + self.config["timeout_s"])
        duration = time.monotonic() - began
        self.child = 0
        if "seccomp" not in self.config["layers"]:
            cleanup.kill_children({self.spare[0]} if self.spare else ())
        return self.account(cause, status, usage, duration, (out, err))

    def account(
        self, cause: str, status: int, usage: object, duration: float, outputs: tuple[int, ...]
    ) -> dict:
        """How a call ended, by what the kernel says of its process, which is dead: why we killed it
        or "", its wait status and resource usage, seconds, and its output files."""
        code = os.waitstatus_to_exitcode(status)
        if not cause and max(os.fstat(fd).st_size for fd in outputs) >= bounds.FILE_BYTES:
            cause = "output_limit"
        return {
            "status": cause or self._classify(code, usage),
            "exit_code": code,
            "reason": "",
            "duration_s": duration,
        }

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
        pause = CHECK_SECONDS
        pidfd = os.pidfd_open(self.child) if hasattr(os, "pidfd_open") else -1
        try:
            while True:
                left = deadline - time.monotonic()
                self.sleep(pidfd, min(left, pause if self.home < 0 else left))
                pid, status, usage = os.wait4(self.child, os.WNOHANG)
                if pid:
                    return "", status, usage
                if time.monotonic() >= deadline:
                    return "timeout", *self._kill()
                looked = time.monotonic()
                if self.home < 0 and self._holds_too_much(pidfd):
                    return "output_limit", *self._kill()
                pause = max(CHECK_SECONDS, time.monotonic() - looked)
        finally:
            if pidfd >= 0:
                os.close(pidfd)

    def _holds_too_much(self, pidfd: int) -> bool:
        """Whether the child's files are too many, or cannot be seen though it does not end."""
        patience = 0.1
        try:
            if bounds.holds_too_much(self.child, self.work):
                return True
            if not bounds.main_thread_has_ended(self.child):
                return False
            # The others end with it, or run on unseen.
        except PermissionError:
            # Its memory is gone: it ends, which takes a while where that was large.
            patience = 2.0 if bounds.threads_of(self.child) == 1 else 0.1
        except FileNotFoundError:
            return False  # it has ended
        return not select.select([pidfd], [], [], patience)[0]

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


def die_with_parent(number: int, parent: int) -> None:
    """Get `number` when the parent dies; exit at once if `parent` (0: unknown) has died already."""
    layers.take(layers.die_with_parent(number))
    if parent not in (0, os.getppid()):
        os._exit(1)


def main(argument: str) -> None:
    """Serve in this process, or, where namespaces need it, as process 1 of a PID namespace;
    `argument` is the configuration as JSON (see `template.Template`)."""
    config = json.loads(argument)
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
