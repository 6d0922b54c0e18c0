"""Start a template process (worker_process.py) and exchange calls and replies with it."""

from __future__ import annotations

import hashlib
import json
import marshal
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO

from drlib.sandbox import cleanup
from drlib.sandbox.selftest import (
    FOLDER_PREFIX,
    START_SECONDS,
    clean_environment,
    launch_command,
    scratch,
)


class TemplateDied(Exception):
    """The template process has ended; the message is the end of its error output."""


@contextmanager
def call_files(request: dict) -> Iterator[list[int]]:
    """Create the memory files of one call: request, stdin, stdout and stderr.

    The random seed of a cell depends only on its own text and input and on all cells before it.
    """
    code, history, stdin = request["code"], request["history"], request["stdin"]
    texts = [["", cell] for cell in history]  # (input, code) of each cell
    texts.append([stdin, code])
    state = b""
    seeds = []
    for text in texts:
        state = hashlib.sha256(state + json.dumps(text).encode()).digest()
        seeds.append(int.from_bytes(state[:4], "big"))
    with (
        _memory_file() as request_file,
        _memory_file() as stdin_file,
        _memory_file() as stdout_file,
        _memory_file() as stderr_file,
    ):
        request_file.write(marshal.dumps((code, history, request["echo"], seeds)))
        stdin_file.write(stdin.encode("utf-8", "surrogatepass"))
        files = (request_file, stdin_file, stdout_file, stderr_file)
        for file in files:
            file.seek(0)
        yield [file.fileno() for file in files]


def _memory_file() -> IO[bytes]:
    """Open an empty unnamed file, in memory if the system supports it."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("drlib"), "wb")
    return tempfile.TemporaryFile()


class Template:
    """One template process with its folder and its socket; serves one call at a time."""

    def __init__(self, config: dict) -> None:
        self._folder = tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=scratch())
        # The template's own limits apply first; this one detects a stopped template.
        self._reply_seconds = config["timeout_s"] + 60.0
        try:
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
            self._socket, theirs = socket.socketpair()
            with theirs:
                config = {**config, "fd": theirs.fileno(), "parent": os.getpid()}
                self.process = subprocess.Popen(
                    launch_command("worker_process", config),
                    env=clean_environment(),
                    cwd=self._folder,
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=self._errors,
                    start_new_session=True,  # Ctrl-C reaches only the caller, which closes us
                )
        except BaseException:
            os.rmdir(self._folder)
            raise

    def wait_ready(self) -> None:
        """Wait until the imports are done; raises `TemplateDied` if the process ends first."""
        with self._raise_if_dead():
            self._receive(START_SECONDS)

    def call(self, files: Sequence[int], on_slow: Callable[[], None], slow_s: float) -> dict:
        """Run the call in these memory files and return its outcome.

        Args:
            files: descriptors from `call_files`.
            on_slow: called if no reply has arrived after `slow_s` seconds.

        Raises:
            TemplateDied: the template ended or does not reply.
        """
        with self._raise_if_dead():
            self._socket.settimeout(START_SECONDS)
            socket.send_fds(self._socket, [b"."], files)
            try:
                return self._receive(slow_s)
            except TimeoutError:
                on_slow()
            return self._receive(self._reply_seconds)

    def _receive(self, seconds: float) -> dict:
        self._socket.settimeout(seconds)
        return marshal.loads(self._socket.recv(1 << 16))

    @contextmanager
    def _raise_if_dead(self) -> Iterator[None]:
        """Translate errors of the socket to `TemplateDied`."""
        try:
            yield
        except (OSError, EOFError) as error:
            self._errors.seek(0)
            tail = self._errors.read()[-2000:].decode("utf-8", "replace")
            raise TemplateDied(tail) from error

    def close(self) -> None:
        """Stop the process and remove its folder."""
        self.process.terminate()  # it kills its child, empties its folder and exits
        try:
            self.process.wait(3.0)
        except subprocess.TimeoutExpired:
            self.process.kill()  # its child dies with it
            self.process.wait()
        self._socket.close()
        self._errors.close()
        for _ in range(100):
            if not os.path.exists(self._folder):  # usually removed by the template itself
                break
            try:
                cleanup.wipe(self._folder)
                os.rmdir(self._folder)
            except OSError:  # a child of a killed template may still be exiting in it
                time.sleep(0.02)
