"""The warm template process: imports packages once and forks one single-use child per call.

`template.py` starts it through `launcher.py` in an empty folder and passes each call as four memory
files (the request and the three streams). The template never reads them, because later children
inherit its memory. Each child is forked in advance: it applies every layer except the seccomp
filter, waits for its call, installs the filter, reports "ready" and runs the code. The outcome is
read from the kernel (exit status, signal, resource usage, output sizes), never from printed text. A
child that fails before "ready" is `setup_failed`, so generated code cannot forge that status.

Output goes to memory files limited by RLIMIT_FSIZE, so there are no pipes to fill up. Only the
standard library is imported, and drlib is removed from `sys.modules`.
"""

from __future__ import annotations

import _signal  # the wrappers in `signal` and `socket` would touch extra pages in every child
import _socket
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
from typing import Any

from drlib.sandbox import child, cleanup, file_usage, layers, packages, seccomp

SETUP_SECONDS = 30.0  # a child that takes longer to become ready is a machine fault
CHECK_SECONDS = 0.02  # interval of the file checks at level "standard"
OPEN_FILES = 64  # per call
MAX_THREADS = 512
WAITING_SIGNALS = 1024
WORK = "/box/work"  # work folder at level "strong"


class Confinement:
    """Work folder, layer steps and filter shared by all children of one template.

    Args:
        config: settings sent by the caller: limits (timeout_s, memory_mb), the names of the
            available layers, the method of dropping root (drop), importable packages and their
            folders (roots), and heavy=True if this template has imported these packages.

    Attributes:
        work: path of the work folder as a call sees it; "" before `prepare`.
        root: file tree of all calls at level "strong", otherwise "".
        before_fork: steps of the forking process.
        steps: steps of a child, applied before the filter.
        filter: seccomp filter of a child, or None if the level has none.
    """

    def __init__(self, config: dict) -> None:
        self.config = config
        self.folder = os.getcwd()  # the template's own folder, empty at start
        self.work = ""
        self.root = ""
        self.before_fork: list[layers.LayerStep] = []
        self.steps: list[layers.LayerStep] = []
        self.filter: seccomp.SeccompFilter | None = None
        # One second above the wall clock, so that a single busy thread always ends as "timeout".
        self.cpu_s = math.ceil(config["timeout_s"]) + 1
        leave = None if config["heavy"] else child.EXIT_HEAVY
        self.packages = packages.Packages(config["packages"], config["roots"], leave)

    def has(self, layer: str) -> bool:
        """Return True if children use this layer ("landlock", "namespaces", ...)."""
        return layer in self.config["layers"]

    def prepare(self) -> None:
        """Build everything that children share; raises `LayerError` if a layer fails."""
        if self.has("namespaces"):
            writable, tree_steps = self._make_tree()
        else:
            writable, tree_steps = self._make_folder(), []
        os.environ.update(HOME=self.work, TMPDIR=self.work)
        restrict: list[layers.LayerStep] = []
        if self.has("landlock"):
            ruleset = layers.landlock_ruleset(*self.packages.readable(), writable)
            ruleset = fcntl.fcntl(ruleset, fcntl.F_DUPFD_CLOEXEC, child.HIGH)
            restrict = layers.landlock_restrict(ruleset)
        if self.has("seccomp"):
            self.filter = seccomp.SeccompFilter()
        # These settings do not limit the template itself, so children inherit them.
        layers.take(layers.limits({"CORE": 0, "MEMLOCK": 0, "MSGQUEUE": 0}))
        layers.take(layers.NO_HUGE_PAGES)
        if self.has("no_new_privileges"):
            layers.take(layers.NO_NEW_PRIVILEGES)
        self.steps = tree_steps + self._child_steps() + restrict

    def _make_folder(self) -> str:
        """Create one work folder for all calls, emptied after each; its parent is read-only."""
        box = os.path.join(self.folder, "box")
        self.work = os.path.join(box, "work")
        os.makedirs(self.work, 0o700)
        if self.config["drop"] == "setuid":
            os.chmod(".", 0o711)
            os.chown(self.work, layers.NOBODY, layers.NOBODY)
        os.chmod(box, 0o555)
        return self.work

    def _make_tree(self) -> tuple[str, list[layers.LayerStep]]:
        """Build the file tree of all calls; return the writable folder and the child's steps."""
        home = layers.enter_namespaces()
        self.before_fork = layers.new_pid_namespace(home)
        self.root = os.path.join(self.folder, "root")
        os.mkdir(self.root)
        shown, hidden = self.packages.shown()
        layers.build_root(self.root, shown, hidden, WORK)
        place = self.root + WORK
        # Each call mounts its own file system over the empty work folder.
        mount = layers.work_mount(place, file_usage.WORK_BYTES, file_usage.WORK_ENTRIES)
        self.work = WORK
        # The mount hides the folder itself, so the Landlock rule must name its parent.
        return os.path.dirname(place), mount + layers.change_root(self.root)

    def _child_steps(self) -> list[layers.LayerStep]:
        """Return a child's steps after the file tree: session, limits, credentials, folder.

        RLIMIT_NPROC counts all threads of the user, so it is MAX_THREADS above the number at
        template start (with "setuid", user 65534 is shared by all sandboxes of the machine).
        """
        setuid = self.config["drop"] == "setuid"
        user = layers.NOBODY if setuid else os.geteuid()
        sizes = {
            "AS": _address_space() + (self.config["memory_mb"] << 20),
            "CPU": self.cpu_s,
            "FSIZE": file_usage.FILE_BYTES,
            "NOFILE": OPEN_FILES,
            "NPROC": file_usage.count_tasks(user) + MAX_THREADS,
            "SIGPENDING": WAITING_SIGNALS,
        }
        return [
            ("setsid", os.setsid, ()),
            ("signals", _signal.signal, (_signal.SIGTERM, _signal.SIG_DFL)),
            *layers.limits(sizes),
            *(layers.become_nobody() if setuid else layers.NO_CAPABILITIES),
            ("work folder", os.chdir, (self.work,)),
            *layers.die_with_parent(signal.SIGKILL),
        ]

    def tidy(self) -> None:
        """Empty the shared work folder after a call; a mounted one vanishes with its call."""
        if not self.has("namespaces"):
            cleanup.wipe(self.work)

    def clear(self) -> None:
        """Remove everything that `prepare` created, even if it failed half-way."""
        if not self.has("namespaces"):
            if self.work:
                os.chmod(os.path.dirname(self.work), 0o700)
            cleanup.wipe(self.folder)
        elif self.root:
            # Unmount, never delete: the tree shows the host's own files.
            with contextlib.suppress(layers.LayerError):  # already unmounted
                layers.remove_root(self.root)
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(self.root)
        os.rmdir(self.folder)

    def account(
        self, cause: str, status: int, usage: Any, duration: float, outputs: tuple[int, ...]
    ) -> dict:
        """Describe a terminated child from kernel data.

        Args:
            cause: reason if the template killed the child, otherwise "".
            status, usage: wait status and resource usage from `os.wait4`.
            duration: wall clock, seconds.
            outputs: descriptors of stdout and stderr.
        """
        code = os.waitstatus_to_exitcode(status)
        if not cause and max(os.fstat(fd).st_size for fd in outputs) >= file_usage.FILE_BYTES:
            cause = "output_limit"
        return {
            "status": cause or self._classify(code, usage),
            "exit_code": code,
            "reason": "",
            "duration_s": duration,
        }

    def _classify(self, code: int, usage: Any) -> str:
        """Derive the status from the exit code and resource usage of a child."""
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


def _has_started_code(channel: int) -> bool:
    """Return True if a terminated child has sent that the earlier cells ended."""
    is_readable = select.select([channel], [], [], 0)[0]
    return bool(is_readable) and os.read(channel, 1) == child.STARTS_CODE


def _address_space() -> int:
    """Return the mapped bytes of this process, or 0 without /proc."""
    if not os.path.exists("/proc/self/statm"):
        return 0
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")


class ForkServer:
    """The template process: holds the imported packages, forks children, serves single calls."""

    def __init__(self, config: dict) -> None:
        self.config = config
        self.confinement = Confinement(config)
        self.pid = os.getpid()
        self.child = 0  # process of the current call, 0 between calls
        self.spare: tuple[int, _socket.socket] | None = None  # next child and its socket
        self.channel = _socket.socket(fileno=config["fd"])
        self.poller = select.poll()
        self.poller.register(self.channel, getattr(select, "POLLRDHUP", 0))
        signal.signal(signal.SIGTERM, self._exit_on_signal)
        layers.take(layers.ADOPT_ORPHANS)

    def prepare(self) -> None:
        """Import the packages of calls and build what children share."""
        # After the change of credentials. SIGTERM, so that the work folder is cleared first.
        die_with_caller(signal.SIGTERM, self.config["parent"])
        sys.meta_path.append(self.confinement.packages)
        exec(self.config["warm_up"], {})
        self.confinement.prepare()
        child.prepare(single_process=self.confinement.has("seccomp"))
        gc.collect()
        gc.freeze()
        gc.disable()

    def serve(self) -> None:
        """Answer calls until the caller closes the socket or sends SIGTERM."""
        try:
            self.prepare()
            self.channel.sendall(marshal.dumps({"ready": True}))
            while True:
                data, rights, _, _ = self.channel.recvmsg(1, 128)
                if not data:
                    return
                self.answer(rights[0][2])
        finally:
            if os.getpid() == self.pid:
                try:  # a dying caller both closes the socket and triggers SIGTERM
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)
                finally:
                    self._clear()

    def _clear(self) -> None:
        """Kill the children and remove the folder, which a killed caller cannot do."""
        spare = self.spare[0] if self.spare else 0
        for pid in (self.child, spare):
            if pid:
                self.child = pid
                self._kill()
        self.confinement.clear()

    def _exit_on_signal(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(0)

    def answer(self, rights: bytes) -> None:
        """Run one call and send its outcome.

        No local name may outlive this function: the next child inherits the frames below it and
        would see the outcome of this call. Traces in freed memory remain.
        """
        reply = marshal.dumps(self.call(rights))
        self.confinement.tidy()
        self.channel.sendall(reply)

    def call(self, rights: bytes) -> dict:
        """Pass a call's four descriptors to the waiting child and describe its outcome.

        `rights` holds the descriptors of request, stdin, stdout and stderr as C integers; they
        are closed on return.
        """
        fds = struct.unpack("4i", rights)
        if not self.spare:
            self.prepare_child()
        self.child, channel = self.spare
        self.spare = None
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it failed set-up
                channel.sendmsg((b".",), ((socket.SOL_SOCKET, socket.SCM_RIGHTS, rights),))
            answered = self.sleep(channel.fileno(), SETUP_SECONDS)
            # one byte: STARTS_CODE may already follow
            message = os.read(channel.fileno(), 1) if answered else b""
            if message == b"1":
                outcome = self.watch_child(*fds[2:])
                exited = outcome["status"] in ("ok", "error")
                if exited and not _has_started_code(channel.fileno()):
                    outcome["status"] = "history_ended"
                return outcome
            reason = b""
            if message:  # it reports its error and exits
                reason = os.read(channel.fileno(), 4096)
                _, status, _ = os.wait4(self.child, 0)
            else:  # it hangs
                status, _ = self._kill()
            self.child = 0
            return {
                "status": "setup_failed",
                "exit_code": os.waitstatus_to_exitcode(status),
                "duration_s": 0.0,
                "reason": reason.decode("utf-8", "replace"),
            }
        finally:
            channel.close()
            for fd in fds:
                os.close(fd)

    def prepare_child(self) -> None:
        """Fork the child of the next call, which applies its layers and waits."""
        ours, theirs = _socket.socketpair()
        pid = layers.fork(self.confinement.before_fork)
        if not pid:
            child.be_call(self.confinement, self.pid, theirs)
        theirs.close()
        self.spare = pid, ours

    def watch_child(self, out: int, err: int) -> dict:
        """Watch the child until it ends or its time is over, and describe its outcome."""
        began = time.monotonic()
        with contextlib.suppress(OSError):  # no free process now; retried by the next call
            self.prepare_child()  # the next child starts on another core meanwhile
        cause, status, usage = self._watch(began + self.config["timeout_s"])
        duration = time.monotonic() - began
        self.child = 0
        if not self.confinement.has("seccomp"):
            cleanup.kill_children({self.spare[0]} if self.spare else ())
        return self.confinement.account(cause, status, usage, duration, (out, err))

    def _watch(self, deadline: float) -> tuple[str, int, object]:
        """Wait for the child; return (reason for a kill or "", wait status, resource usage)."""
        # With namespaces, the call's own file system limits its size. Otherwise it is polled.
        polls_files = not self.confinement.has("namespaces")
        pause = CHECK_SECONDS
        pidfd = os.pidfd_open(self.child) if hasattr(os, "pidfd_open") else -1
        try:
            while True:
                left = deadline - time.monotonic()
                self.sleep(pidfd, min(left, pause) if polls_files else left)
                pid, status, usage = os.wait4(self.child, os.WNOHANG)
                if pid:
                    return "", status, usage
                if time.monotonic() >= deadline:
                    return "timeout", *self._kill()
                began = time.monotonic()
                if polls_files and self._holds_too_much(pidfd):
                    return "output_limit", *self._kill()
                pause = max(CHECK_SECONDS, time.monotonic() - began)  # at most half of the time
        finally:
            if pidfd >= 0:
                os.close(pidfd)

    def _holds_too_much(self, pidfd: int) -> bool:
        """Return True if the child's files exceed the limits or cannot be inspected."""
        patience = 0.1
        try:
            if file_usage.holds_too_much(self.child, self.confinement.work):
                return True
            if not file_usage.main_thread_has_ended(self.child):
                return False
            # The other threads end with it, or continue without being visible in /proc.
        except PermissionError:
            # Its memory is already released. Exiting takes a while after a large allocation.
            patience = 2.0 if file_usage.threads_of(self.child) == 1 else 0.1
        except FileNotFoundError:
            return False  # it has ended
        return not select.select([pidfd], [], [], patience)[0]

    def sleep(self, fd: int, seconds: float) -> bool:
        """Return True if `fd` becomes readable in time; exit if the caller is gone.

        fd=-1 (no pidfd on this system) sleeps for 2 ms.
        """
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
        with contextlib.suppress(ProcessLookupError):  # it has not called setsid yet
            os.killpg(self.child, signal.SIGKILL)
        _, status, usage = os.wait4(self.child, 0)
        self.child = 0
        return status, usage


def die_with_caller(number: int, caller: int) -> None:
    """Receive signal `number` when the caller dies; exit now if it is dead (0: unknown)."""
    layers.take(layers.die_with_parent(number))
    if caller not in (0, os.getppid()):
        os._exit(1)


def main(argument: str) -> None:
    """Serve calls; `argument` is the JSON configuration of `template.Template`."""
    config = json.loads(argument)
    # The lowest free descriptor, because children close all descriptors below the limit.
    given = config["fd"]
    config["fd"] = fcntl.fcntl(given, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(given)
    layers.take(layers.limits({"NOFILE": child.MOST_DESCRIPTORS}))
    if config["drop"] == "userns":
        layers.enter_user_namespace()
        if "namespaces" in config["layers"]:  # setns needs a PID namespace that we own
            _continue_as_process_1(config)
    ForkServer(config).serve()


def _continue_as_process_1(config: dict) -> None:
    """Fork into a new PID namespace; only the child returns, the parent mirrors its exit."""
    caller = config["parent"]
    config["parent"] = 0  # not visible inside the namespace
    layers.unshare(layers.NEW_PID)
    pid = os.fork()
    if pid == 0:
        return
    os.close(config["fd"])
    signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGTERM))
    die_with_caller(signal.SIGTERM, caller)
    _, status = os.waitpid(pid, 0)
    sys.exit(os.waitstatus_to_exitcode(status) & 0xFF)
