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

import _socket  # hundreds of touched pages a call
import contextlib
import fcntl
import gc
import json
import marshal
import os
import select
import signal
import socket
import struct
import sys
import time

from drlib.sandbox import bounds, child, cleanup, layers, notices, sessions
from drlib.sandbox.confinement import Confinement

SETUP_SECONDS = 30.0  # a child that needs longer to reach "ready" is a fault of the machine
CHECK_SECONDS = 0.02  # between two looks at what a call holds


class Zygote:
    """The template process: it has imported everything, forks the children and serves one call at a
    time."""

    def __init__(self, config: dict) -> None:
        self.config = config
        self.confinement = Confinement(config)
        self.pid = os.getpid()
        self.child = 0  # the process that makes a call now; 0 between calls
        self.spare: tuple[int, socket.socket] | None = None  # the next child and the line to it
        self.keepers: list[int] = []  # of sessions
        self.channel = _socket.socket(fileno=config["fd"])
        self.poller = select.poll()
        self.poller.register(self.channel, getattr(select, "POLLRDHUP", 0))
        signal.signal(signal.SIGTERM, self._leave)
        layers.take(layers.ADOPT_ORPHANS)

    def prepare(self) -> None:
        """Import what calls will need, then build everything that children share."""
        # After the change of credentials. SIGTERM, so that the work folder is cleared first.
        die_with_caller(signal.SIGTERM, self.config["parent"])
        sys.meta_path.append(self.confinement.packages)
        exec(self.config["warm_up"], {})
        self.confinement.prepare()
        child.prepare()
        gc.collect()
        gc.freeze()
        gc.disable()

    def serve(self) -> None:
        """Answer calls until the other side closes or SIGTERM comes."""
        try:
            self.prepare()
            self.channel.sendall(marshal.dumps({"ready": True}))
            while (asked := notices.receive_request(self.channel)) is not None:
                request, descriptors = asked
                if request:
                    self.keepers.append(sessions.open_session(self.confinement, self.channel))
                    continue
                self.keepers = [pid for pid in self.keepers if not os.waitpid(pid, os.WNOHANG)[0]]
                self.answer(descriptors)
        finally:
            if os.getpid() == self.pid:
                try:  # a caller that dies is noticed twice, by its closed socket and by SIGTERM
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)
                finally:
                    self._clear()

    def _clear(self) -> None:
        """End the children and remove the folder: a caller that was killed cannot do it."""
        spare = self.spare[0] if self.spare else 0
        for pid in (self.child, spare):
            if pid:
                self.child = pid
                self._kill()
        self.confinement.clear()

    def _leave(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(0)

    def answer(self, rights: bytes) -> None:
        """Make a call and say how it ended. No name here outlives that, or what became of one call
        would be seen in the frames below the next; traces of it are left in freed memory."""
        reply = marshal.dumps(self.call(rights))
        self.confinement.tidy()
        self.channel.sendall(reply)

    def call(self, rights: bytes) -> dict:
        """Hand one request to the child that waits and describe how it ended; closes what `rights`
        names: the request's memory file, and the child's stdin, stdout and stderr."""
        fds = struct.unpack("4i", rights)
        if not self.spare:
            self.prepare_child()
        self.child, line = self.spare
        self.spare = None
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has told why
                line.sendmsg((b".",), ((socket.SOL_SOCKET, socket.SCM_RIGHTS, rights),))
            answered = self.sleep(line.fileno(), SETUP_SECONDS)
            word = os.read(line.fileno(), 4096) if answered else b""
            if word == b"1":
                return self.outcome(*fds[2:])
            if word:  # it has told why and is leaving
                _, status, _ = os.wait4(self.child, 0)
            else:  # it hangs
                status, _ = self._kill()
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
        pid = layers.fork(self.confinement.before_fork)
        if not pid:
            child.be_call(self.confinement, self.pid, theirs)
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
        if not self.confinement.has("seccomp"):
            cleanup.kill_children({self.spare[0]} if self.spare else ())
        return self.confinement.account(cause, status, usage, duration, (out, err))

    def _watch(self, deadline: float) -> tuple[str, int, object]:
        """Until the child ends or must: (why we killed it or "", wait status, resource usage)."""
        # A file system of its own bounds what it holds; otherwise we have to look.
        looking = not self.confinement.has("namespaces")
        pause = CHECK_SECONDS
        pidfd = os.pidfd_open(self.child) if hasattr(os, "pidfd_open") else -1
        try:
            while True:
                left = deadline - time.monotonic()
                self.sleep(pidfd, min(left, pause) if looking else left)
                pid, status, usage = os.wait4(self.child, os.WNOHANG)
                if pid:
                    return "", status, usage
                if time.monotonic() >= deadline:
                    return "timeout", *self._kill()
                began = time.monotonic()
                if looking and self._holds_too_much(pidfd):
                    return "output_limit", *self._kill()
                pause = max(CHECK_SECONDS, time.monotonic() - began)  # half the time at most
        finally:
            if pidfd >= 0:
                os.close(pidfd)

    def _holds_too_much(self, pidfd: int) -> bool:
        """Whether the child's files are too many, or cannot be seen though it does not end."""
        patience = 0.1
        try:
            if bounds.holds_too_much(self.child, self.confinement.work):
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


def die_with_caller(number: int, caller: int) -> None:
    """Get `number` when the caller dies; exit at once if it has died already (0: unknown)."""
    layers.take(layers.die_with_parent(number))
    if caller not in (0, os.getppid()):
        os._exit(1)


def main(argument: str) -> None:
    """Serve in this process, or, where namespaces need it, as process 1 of a PID namespace;
    `argument` is what `template.Template` has sent, as JSON."""
    config = json.loads(argument)
    # As low as can be: children close what lies below the limit.
    given = config["fd"]
    config["fd"] = fcntl.fcntl(given, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(given)
    layers.take(layers.limits({"NOFILE": child.MOST_DESCRIPTORS}))  # children close all below it
    if config["drop"] == "userns":
        layers.enter_user_namespace()
        if "namespaces" in config["layers"]:  # only a namespace of our own can be returned to
            _go_on_as_process_1(config)
    Zygote(config).serve()


def _go_on_as_process_1(config: dict) -> None:
    """Fork into a PID namespace; only the child comes back, the parent ends as it ends."""
    caller = config["parent"]
    config["parent"] = 0  # cannot be seen from in there
    layers.unshare(layers.NEW_PID)
    pid = os.fork()
    if pid == 0:
        return
    os.close(config["fd"])
    signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGTERM))
    die_with_caller(signal.SIGTERM, caller)
    _, status = os.waitpid(pid, 0)
    sys.exit(os.waitstatus_to_exitcode(status) & 0xFF)
