"""Snapshot sessions: processes that hold the state after a cell, so that branches can share it.

A keeper is forked from the template as process 1 of a PID namespace and runs no generated code. The
*holders* below it do; each is frozen in the state after some cells. To run a cell, a holder forks a
runner; one that is to be kept forks the next holder when its cell is done, and then ends like any
single-use child. Runners are forked twice, so that the kernel hands them to the keeper: it reads
their exit status, resource use and output exactly as the template does (zygote.py), whatever the
code did to the holder. A holder says only which process to wait for, and the keeper believes that
of its own children alone; at worst code spoils its own session.

Each fork waits for the keeper's consent (a seccomp user notification), which it gives only to those
that it has asked for: code cannot multiply. Everything dies with the keeper's PID namespace, so
there are no sessions below level "strong"; `pool.py` then replays. The files of a held state are
copied aside, out of the reach of code, and back for each runner. A cell, its stdin and its output
are in the files that all share only while every holder stands still, so a holder cannot pass on to
one branch what another has run. Not contained: a prefix that makes shared memory, a pipe or an open
file gives its own branches a channel to each other; other sessions and calls never see it.
Left out: threads that earlier cells left running.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import marshal
import os
import select
import signal
import socket
import struct
import time
import traceback

HOLDERS = 16  # states that one session can hold
TELL, CELL, READERS = 3, 4, 5  # descriptors of a holder: to the keeper; from it, a pipe a slot
GO = READERS + HOLDERS  # and one more, for the runner: its cell is there
HELD_SECONDS = 5.0  # for a state that is to be kept to report, once its cell has ended
TELL_SECONDS = 5.0  # for a holder to fork; a holder that code has broken never does
zygote = None  # the template's own module, which loads this one and puts itself here


def open_session(template) -> int:
    """Fork a keeper, send the caller the other end of its socket, and return its process id."""
    ours, theirs = socket.socketpair()
    if pid := zygote.layers.fork(template.before_fork):
        with ours, theirs:
            socket.send_fds(template.channel, [b"S"], [theirs.fileno()])
        return pid
    try:
        template.channel.close()
        theirs.close()
        Keeper(template, ours).serve()
    except Exception:  # noqa: BLE001 - whatever it was, the caller replays
        traceback.print_exc()
    finally:
        os._exit(0)  # never back into the template's own code


class Keeper:
    """Owns the holders of one session; `template` becomes this process's own copy of it."""

    def __init__(self, template, channel: socket.socket) -> None:
        self.template, layers = template, zygote.layers
        template.channel, template.pid, template.home = channel, os.getpid(), -1
        template.poller = select.poll()
        template.poller.register(channel, select.POLLRDHUP)
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        layers.take([*layers.die_with_parent(signal.SIGTERM), *template.mount])
        self.files = [os.memfd_create(name) for name in ("stdin", "stdout", "stderr", "cell")]
        self.told, tell = os.pipe2(os.O_DIRECT)  # a read is what one write wrote
        self.readers, self.writers = zip(*(os.pipe() for _ in range(HOLDERS + 1)))
        self.holders: dict[int, int] = {}  # slot -> process id
        self.copytree = importlib.import_module("shutil").copytree  # not in every template
        self.kept = os.path.join(template.folder, f"session-{os.urandom(8).hex()}")
        os.makedirs(f"{self.kept}/0", 0o700)  # of the state in each slot
        template.filter = layers.SeccompFilter(ask_to_fork=True)
        template.child = os.fork()
        if not template.child:
            _be_first(template, [*self.files[:3], tell, self.files[3], *self.readers])
        self.holders[0], template.child = template.child, 0
        os.close(tell)
        if (word := self._hear(zygote.SETUP_SECONDS)) != b"1":
            raise RuntimeError(f"the session's first process could not lock itself in: {word[1:]}")
        self.listener = layers.take_descriptor(self.holders[0], int(self._hear(TELL_SECONDS)))
        os.write(self.writers[0], b"!")
        self._hear(TELL_SECONDS)
        self._stop(0)
        self.forks = 0  # to consent to
        template.also[self.listener] = self._consent
        template.poller.register(self.listener, select.POLLIN)

    def serve(self) -> None:
        """Answer calls until the caller closes the session."""
        channel = self.template.channel
        while (asked := zygote.receive(channel)) is not None:
            request, fds = asked[0], struct.unpack(f"{len(asked[1]) // 4}i", asked[1])
            reply = self.call(request, fds) if fds else self.release(request["release"])
            for fd in fds:
                os.close(fd)
            zygote.cleanup.kill_children(keep=set(self.holders.values()))
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGSTOP)  # what a holder may have started in its turn
            zygote.cleanup.wipe(self.template.work)
            channel.sendall(marshal.dumps(reply))

    def call(self, request: dict, fds: tuple[int, ...]) -> dict:
        """Run one cell from the state in slot `request["at"]`; `fds` as in `Template.call`."""
        at, here = request["at"], self.template.work
        free = [s for s in range(HOLDERS) if s not in self.holders]
        keep = free[0] if request["keep"] and free else HOLDERS
        for fd in (self.told, *self.readers):  # shared with whatever ran before
            os.set_blocking(fd, True)
            while select.select([fd], [], [], 0)[0]:
                os.read(fd, 1 << 16)
        self._empty_files()  # the holder must not read what the branch before it ran
        if at not in self.holders or not self._copy_tree(f"{self.kept}/{at}", here):
            return {"status": "lost"}
        pid = self._runner(at, keep)
        if pid is None:
            self.release(at)  # its code has broken it
            return {"status": "lost"}
        self._empty_files()  # of what the holder wrote; it stands still now, and cannot read these
        _copy(fds[0], self.files[3])
        _copy(fds[1], self.files[0])
        os.write(self.writers[HOLDERS], b"!")
        self.template.child = pid
        reply = self.template.outcome(*self.files[1:3])
        born = keep < HOLDERS and zygote.cleanup.children(self.holders.values())
        if born and (pid := self._child(HELD_SECONDS)) is not None and reply["exit_code"] >= 0:
            self.holders[keep] = pid
            self._stop(keep)
            if self._copy_tree(here, f"{self.kept}/{keep}"):
                reply["held"] = keep
            else:
                self.release(keep)
        for ours, theirs in zip(self.files[1:3], fds[2:]):
            _copy(ours, theirs)
        return reply

    def _runner(self, at: int, keep: int) -> int | None:
        """The process that the holder in slot `at` forks, in its turn to be kept in slot `keep`;
        the holder runs no longer than that."""
        self.forks = 2 if keep == HOLDERS else 4
        os.write(self.writers[at], bytes([keep]))
        os.kill(self.holders[at], signal.SIGCONT)
        pid = self._child(TELL_SECONDS)
        self._stop(at)
        return pid

    def _empty_files(self) -> None:
        for fd in self.files:
            os.ftruncate(fd, 0)
            os.lseek(fd, 0, os.SEEK_SET)

    def _stop(self, slot: int) -> None:
        """Halt a holder until it is asked: what its code has left running in it could write into
        the output of others."""
        os.kill(self.holders[slot], signal.SIGSTOP)
        _, status = os.waitpid(self.holders[slot], os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            del self.holders[slot]  # it had ended

    def release(self, slot: int) -> dict:
        """Forget the state in `slot`."""
        pid = self.holders.pop(slot, None)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            zygote.cleanup.wipe(f"{self.kept}/{slot}")
        return {"released": slot}

    def _copy_tree(self, source: str, target: str) -> bool:
        """Whether all of `source` could be copied; a tree too deep for that is not kept."""
        try:
            self.copytree(source, target, symlinks=True, dirs_exist_ok=True)
            if self.template.config["drop"] == "setuid":
                owner = (zygote.layers.NOBODY,) * 2
                for folder, folders, files in os.walk(target):
                    for name in folders + files:
                        os.lchown(os.path.join(folder, name), *owner)
        except (OSError, RecursionError):
            return False
        return True

    def _consent(self) -> None:
        self.forks -= 1
        zygote.layers.answer_fork(self.listener, self.forks >= 0)

    def _child(self, seconds: float) -> int | None:
        """The process that the session names next, if it is an unknown child of this one."""
        word = self._hear(seconds)
        pids = zygote.cleanup.children(self.holders.values())
        return next((pid for pid in pids if b"%d" % pid == word), None)

    def _hear(self, seconds: float) -> bytes:
        """What a process of the session writes next, or b""."""
        return os.read(self.told, 4096) if self.template.sleep(self.told, seconds) else b""


def _be_first(template, fds: list[int]) -> None:
    """In the first holder: lock in with `fds` as descriptors 0, 1, ... and no others, hand the
    keeper the descriptor of its consent, then hold."""
    fds = [fcntl.fcntl(fd, fcntl.F_DUPFD, zygote.HIGH) for fd in fds]
    for target, fd in enumerate(fds):
        os.dup2(fd, target)

    def then(_: None, listener: int) -> None:
        os.write(TELL, b"%d" % listener)
        _asked(0)
        os.close(listener)  # or code could consent to itself
        os.write(TELL, b"holding")
        hold(0)

    others = len(fds), zygote.child.MOST_DESCRIPTORS
    zygote.child.lock_in(template, zygote.layers, template.steps, TELL,
                         lambda: os.closerange(*others), then)


def hold(slot: int) -> None:
    """In a sandboxed process: wait for cells, each read and run by a copy of this process alone:
    what one branch runs is not in the memory that the next one gets. `GO` says that the cell is
    there, when the process that waited for it stands still. Never returns."""
    while True:
        keep = _asked(slot)
        if not _fork_twice():
            continue
        os.write(TELL, b"%d" % os.getpid())
        os.read(GO, 1)
        request = marshal.loads(os.pread(CELL, os.fstat(CELL).st_size, 0))

        def after(slot=keep) -> None:
            if slot < HOLDERS and _fork_twice():
                os.write(TELL, b"%d" % os.getpid())
                hold(slot)

        os._exit(zygote.child.run_cell(request, after))


def _asked(slot: int) -> int:
    """What the keeper asks of `slot`; ends with the keeper."""
    word = os.read(READERS + slot, 1)
    if not word:
        os._exit(0)
    return word[0]


def _fork_twice() -> bool:
    """True in a new process whose parent is the keeper; False here, once it is on its way."""
    middle = os.fork()
    if middle:
        os.waitpid(middle, 0)
        return False
    if os.fork():
        os._exit(0)
    while os.getppid() != 1:
        time.sleep(0)
    return True


def _copy(source: int, target: int) -> None:
    """The bytes of one memory file into another, which is then at its start."""
    size, done = os.fstat(source).st_size, 0
    while done < size:
        done += os.sendfile(target, source, done, size - done)
    os.lseek(target, 0, os.SEEK_SET)
