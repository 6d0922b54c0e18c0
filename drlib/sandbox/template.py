"""The caller's side of one template process (zygote.py) and of one session in it (sessions.py)."""

from __future__ import annotations

import hashlib
import json
import marshal
import os
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any

from drlib.sandbox import cleanup
from drlib.sandbox.selftest import START_SECONDS, clean_environment, command_alone, scratch

Late = Callable[[], None]  # called where a reply takes long


class TemplateDied(Exception):
    """The template process is gone; the text is the end of its error output."""


class Channel:
    """Messages to and from `zygote.py`, short and one at a time; EOFError or OSError where it
    broke. The template's own limits come before `patience`, which is for one that is stopped."""

    def __init__(self, end: socket.socket, patience: float) -> None:
        self.socket = end
        self.patience = patience  # seconds

    def call(self, request: dict, files: Sequence[int], late: Late, late_s: float) -> dict:
        """The reply to `request`; calls `late` if `late_s` have gone by."""
        self.send(request, files)
        try:
            return self.receive(late_s)
        except TimeoutError:
            late()
        return self.receive(self.patience)

    def send(self, request: dict, files: Sequence[int] = ()) -> None:
        self.socket.settimeout(START_SECONDS)
        socket.send_fds(self.socket, [marshal.dumps(request)], files)

    def receive(self, seconds: float) -> dict:
        self.socket.settimeout(seconds)
        return marshal.loads(self.socket.recv(1 << 16))


@contextmanager
def call_files(request: dict) -> Iterator[list[int]]:
    """The memory files of one call: the request, stdin, stdout and stderr. A cell's random numbers
    depend on its text and on what came before, and on nothing else."""
    code, history, stdin = request["code"], request["history"], request["stdin"]
    texts = [["", cell] for cell in history]  # each with its input
    texts.append([stdin, code])
    state = b""
    seeds = []
    for text in texts:
        state = hashlib.sha256(state + json.dumps(text).encode()).digest()
        seeds.append(int.from_bytes(state[:4], "big"))
    body = marshal.dumps((code, history, request["echo"], seeds))
    given = stdin.encode("utf-8", "surrogatepass")
    with (
        _memory_file() as request_file,
        _memory_file() as stdin_file,
        _memory_file() as stdout_file,
        _memory_file() as stderr_file,
    ):
        request_file.write(body)
        stdin_file.write(given)
        files = (request_file, stdin_file, stdout_file, stderr_file)
        for file in files:
            file.seek(0)
        yield [file.fileno() for file in files]


def _memory_file() -> IO[bytes]:
    """An empty file without a name, in memory where that is possible."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("drlib"), "wb")
    return tempfile.TemporaryFile()


class Template:
    """One template process, its folder and its channel."""

    def __init__(self, config: dict) -> None:
        self._folder = tempfile.mkdtemp(prefix="drlib-sandbox-", dir=scratch())
        try:
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - `close` ends it
            ours, theirs = socket.socketpair()
            with theirs:
                self._channel = Channel(ours, config["timeout_s"] + 60.0)
                config = {**config, "fd": theirs.fileno(), "parent": os.getpid()}
                self.process = subprocess.Popen(
                    command_alone("zygote", config),
                    env=clean_environment(),
                    cwd=self._folder,
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=self._errors,
                    start_new_session=True,  # Ctrl-C is for the caller, which then closes us
                )
        except BaseException:
            os.rmdir(self._folder)
            raise

    def wait_ready(self) -> None:
        """Until the imports are done; `TemplateDied` if they never are."""
        self._attempt(self._channel.receive, START_SECONDS)

    def call(self, files: Sequence[int], late: Late, late_s: float) -> dict:
        """How the child for the call in these memory files ended; calls `late` if `late_s` have
        gone by. `TemplateDied` if the template cannot say."""
        return self._attempt(self._channel.call, {}, files, late, late_s)

    def open_session(self) -> Session:
        """A keeper process forked from this template."""
        self._attempt(self._channel.send, {"session": True})
        _, fds, _, _ = self._attempt(socket.recv_fds, self._channel.socket, 1, 1)
        if not fds:
            raise TemplateDied("no session came back")
        (line,) = fds
        return Session(socket.socket(fileno=line), self._channel.patience)

    def _attempt(self, action: Callable, *arguments: Any) -> Any:
        try:
            return action(*arguments)
        except (OSError, EOFError) as error:
            self._errors.seek(0)
            words = self._errors.read()[-2000:].decode("utf-8", "replace")
            raise TemplateDied(words) from error

    def close(self) -> None:
        """End the process and remove its folder."""
        self.process.terminate()  # it kills its child, empties its folder and goes
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


class Session(Channel):
    """The line to one keeper; a lock lets several threads ask it in turn."""

    def __init__(self, end: socket.socket, patience: float) -> None:
        super().__init__(end, patience)
        self.alive = True
        self._lock = threading.Lock()

    def call(self, request: dict, files: Sequence[int], late: Late, late_s: float) -> dict | None:
        """The reply, or None where the session is lost."""
        if not self._lock.acquire(timeout=late_s):  # another branch runs
            late()
            self._lock.acquire()
        try:
            if self.alive:
                return super().call(request, files, late, late_s)
            return None
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
        self.alive = False
        with suppress(OSError):  # closed; or open: the keeper sees it even if a copy has the socket
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
