"""The caller's side of one template process (zygote.py) and of one session in it (sessions.py)."""

from __future__ import annotations

import hashlib
import json
import marshal
import os
import select
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from drlib.sandbox import cleanup
from drlib.sandbox.probing import START_SECONDS, environment, python, scratch

_HERE = Path(__file__).parent


class TemplateDied(Exception):
    """The template process is gone; the text is the end of its error output."""


class Channel:
    """Frames as `zygote.py` writes them, over a socket; EOFError or OSError where it broke."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end

    def call(self, request: dict, files: Sequence[int], seconds: float, late, late_s: float):
        """The reply to `request`, within `seconds`; calls `late` if `late_s` have gone by."""
        self.send(request, files)
        poller = select.poll()
        poller.register(self.socket, select.POLLIN)
        if not poller.poll(late_s * 1000):
            late()
        return self.receive(seconds)

    def send(self, request: dict, files: Sequence[int] = ()) -> None:
        self.socket.settimeout(START_SECONDS)
        body = marshal.dumps(request)
        socket.send_fds(self.socket, [len(body).to_bytes(4, "big"), body], files)

    def receive(self, seconds: float) -> dict:
        self.socket.settimeout(seconds)
        return marshal.loads(self._exactly(int.from_bytes(self._exactly(4), "big")))

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part:
                raise EOFError("the other side has closed")
            data += part
        return data


class CallFiles(AbstractContextManager):
    """The memory files of one call: the request, stdin, stdout and stderr.

    A cell's random numbers depend on its text and on what came before, and on nothing else.
    """

    def __init__(self, request: dict) -> None:
        self.fds: list[int] = []
        code, history, stdin = request["code"], request["history"], request["stdin"]
        state, seeds = b"", []
        for text in (*(["", cell] for cell in history), [stdin, code]):
            state = hashlib.sha256(state + json.dumps(text).encode()).digest()
            seeds.append(int.from_bytes(state[:4], "big"))
        body = (code, history, request["echo"], seeds)
        try:
            for data in (marshal.dumps(body), stdin.encode("utf-8", "surrogatepass"), b"", b""):
                self.fds.append(_memory_file())
                _fill(self.fds[-1], data)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *exception: object) -> None:
        for fd in self.fds:
            os.close(fd)


def _memory_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("drlib")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _fill(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)


class Template:
    """One template process, its folder and its channel."""

    def __init__(self, config: dict) -> None:
        self._folder = tempfile.mkdtemp(prefix="drlib-sandbox-", dir=scratch())
        # The template's own limits come first; this one is for a template that is stopped.
        self._patience = config["timeout_s"] + 60.0
        try:
            self._errors = tempfile.TemporaryFile()
            ours, theirs = socket.socketpair()
            with theirs:
                self._channel = Channel(ours)
                config = {**config, "fd": theirs.fileno(), "parent": os.getpid()}
                self.process = subprocess.Popen(
                    [*python(), str(_HERE / "zygote.py"), json.dumps(config)],
                    env=environment(), cwd=self._folder, pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._errors,
                    start_new_session=True,  # Ctrl-C is for the caller, which then closes us
                )  # fmt: skip
        except BaseException:
            os.rmdir(self._folder)
            raise

    def wait_ready(self) -> None:
        """Until the imports are done; `TemplateDied` if they never are."""
        self._attempt(lambda: self._channel.receive(START_SECONDS))

    def call(self, files: Sequence[int], late: Callable[[], None], late_s: float) -> dict:
        """How the child for one call ended, see `Channel.call`; `TemplateDied` if it cannot say."""
        channel, seconds = self._channel, self._patience
        return self._attempt(lambda: channel.call({}, files, seconds, late, late_s))

    def open_session(self) -> Session:
        """A keeper process forked from this template."""

        def ask() -> socket.socket:
            self._channel.send({"session": True})
            _, fds, _, _ = socket.recv_fds(self._channel.socket, 1, 1)
            if not fds:
                raise EOFError("no session came back")
            return socket.socket(fileno=fds[0])

        return Session(self._attempt(ask), self._patience)

    def _attempt(self, action):
        try:
            return action()
        except (OSError, EOFError) as error:
            self._errors.seek(0)
            words = self._errors.read()[-2000:].decode("utf-8", "replace")
            raise TemplateDied(words) from error

    def terminate(self) -> None:
        """Ask it to kill its child, empty its folder and go; from any thread."""
        self.process.terminate()

    def close(self) -> None:
        """End the process and remove its folder."""
        self.terminate()
        try:
            self.process.wait(3.0)
        except subprocess.TimeoutExpired:
            self.process.kill()  # its child dies with it
            self.process.wait()
        self._channel.socket.close()
        self._errors.close()
        for _ in range(100):
            if not os.path.exists(self._folder):  # as usual: the template has removed it itself
                break
            try:
                cleanup.wipe(self._folder)
                os.rmdir(self._folder)
            except OSError:  # a child of a killed template may still be dying in there
                time.sleep(0.02)


class Session:
    """One keeper; a lock lets several threads ask it in turn."""

    def __init__(self, end: socket.socket, patience: float) -> None:
        self._channel, self._patience, self._lock = Channel(end), patience, threading.Lock()
        self.alive = True

    def call(
        self, request: dict, files: Sequence[int] = (), late: Callable[[], None] = lambda: None,
        late_s: float = 0.0,
    ) -> dict | None:  # fmt: skip
        """The reply, or None where the session is lost."""
        if not self._lock.acquire(timeout=late_s):  # another branch runs
            late()
            self._lock.acquire()
        try:
            if self.alive:
                try:
                    return self._channel.call(request, files, self._patience, late, late_s)
                except (OSError, EOFError):
                    self._end()
            return None
        finally:
            self._lock.release()

    def close(self) -> None:
        """End the keeper, and with it every state that it holds."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self.alive:
            self.alive = False
            with suppress(OSError):  # the keeper sees the end even if a forked copy has the socket
                self._channel.socket.shutdown(socket.SHUT_RDWR)
            self._channel.socket.close()
