"""Snapshot sessions: processes that hold the state after a cell, so that branches can share it.

A keeper is forked from the template as process 1 of a PID namespace and runs no generated code. The
*holders* below it do: each is frozen in the state after some cells. To run a cell, a holder forks a
runner; a runner that is to be kept forks the next holder when its cell is done, and then ends like
any single-use child. Runners are forked twice, so that the kernel hands them to the keeper: it
reads their exit status, resource use and output exactly as the template does (zygote.py), whatever
the code did to the holder that it came from. What a holder says is only which process to wait for,
and the keeper believes that of its own children alone; at worst code spoils its own session.

Other children may not fork at all. Here each fork waits for the keeper's consent (a seccomp user
notification), which it gives only to those that it has asked for: code cannot multiply. Everything
dies with the keeper's PID namespace, so there are no sessions below level "strong"; `pool.py` then
replays. The files of a held state are copied aside, out of the reach of code, and back for each
runner. Left out: threads that earlier cells left running.
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
import time
import traceback

HOLDERS = 16  # states that one session can hold
TELL, READERS = 3, 4  # descriptors of a holder: to the keeper; from it, a pipe a slot
HELD_SECONDS = 5.0  # for a state that is to be kept to report, once its cell has ended
TELL_SECONDS = 5.0  # for a holder to fork; a holder that code has broken never does


child = None  # child.py, as `zygote.py` has loaded it


def open_session(template, zygote) -> int:
    """Fork a keeper and send the other end of its socket to the caller of `template`; its process
    id. `zygote` is the template's own module."""
    global child  # noqa: PLW0603 - a module that was loaded by path cannot be imported here
    child = zygote.child
    ours, theirs = socket.socketpair()
    if pid := template.fork():
        with ours, theirs:
            socket.send_fds(template.channel, [b"S"], [theirs.fileno()])
        return pid
    code = 1
    try:
        template.channel.close()
        theirs.close()
        Keeper(template, ours, zygote).serve()
        code = 0
    except Exception:  # noqa: BLE001 - whatever it was, the caller replays
        traceback.print_exc()
    finally:
        os._exit(code)  # never back into the template's own code


class Keeper:
    """Owns the holders of one session; `template` becomes this process's own copy of it."""

    def __init__(self, template, channel: socket.socket, zygote) -> None:
        self.template, self.zygote, self.layers = template, zygote, zygote.layers
        template.channel, template.pid, template.home = channel, os.getpid(), -1
        template.poller = select.poll()
        template.poller.register(channel, select.POLLRDHUP)
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        self.layers.take([
            *self.layers.die_with_parent(signal.SIGTERM),
            *self.layers.work_mount(template.work, zygote.WORK_BYTES, zygote.WORK_ENTRIES),
        ])
        self.files = [os.memfd_create(name) for name in ("stdin", "stdout", "stderr")]
        self.told, tell = os.pipe()
        pipes = [os.pipe() for _ in range(HOLDERS + 1)]  # the last one: the cell to run
        self.readers, self.writers = zip(*pipes)
        for write in self.writers:
            os.set_blocking(write, False)  # a process that code has broken does not read
        self.holders: dict[int, int] = {}  # slot -> process id
        self.copytree = importlib.import_module("shutil").copytree  # not in every template
        self.kept = os.path.join(template.folder, f"session-{os.urandom(8).hex()}")
        os.makedirs(os.path.join(self.kept, "0"), 0o700)
        template.filter = self.layers.SeccompFilter(ask_to_fork=True)
        template.child = os.fork()
        if not template.child:
            first = zygote.child.Child(template, zygote.layers)
            fds = [*self.files, tell, *self.readers]
            fds = [fcntl.fcntl(fd, fcntl.F_DUPFD, zygote.HIGH) for fd in fds]
            first.line = fds[3]
            steps = template.child_steps(False)
            first.lock_in(steps, lambda: _arrange(first, fds), lambda: _first(first))
        self.holders[0], template.child = template.child, 0
        os.close(tell)
        if (word := self._hear(zygote.SETUP_SECONDS)) != "1":
            raise RuntimeError(f"the session's first process could not lock itself in: {word[1:]}")
        self.listener = self.layers.take_descriptor(self.holders[0], int(self._hear(TELL_SECONDS)))
        os.write(self.writers[0], b"!")
        self._hear(TELL_SECONDS)
        self._stop(0)
        self.forks = 0  # to consent to
        template.also[self.listener] = self._consent
        template.poller.register(self.listener, select.POLLIN)

    def serve(self) -> None:
        """Answer calls until the caller closes the session."""
        channel = self.template.channel
        while (frame := self.zygote.receive_frame(channel)) is not None:
            request, fds = frame[0], self.zygote.descriptors(frame[1])
            reply = self.call(request, fds) if fds else self.release(request["release"])
            for fd in fds:
                os.close(fd)
            self.zygote.cleanup.kill_children(keep=set(self.holders.values()))
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGSTOP)  # what a holder may have started in its turn
            self.zygote.cleanup.wipe(self.template.work)
            self.zygote.send_frame(channel, reply)

    def call(self, request: dict, fds: list[int]) -> dict:
        """Run one cell from the state in slot `request["at"]`; `fds` as in `Template.call`."""
        at, here = request["at"], self.template.work
        free = [s for s in range(HOLDERS) if s not in self.holders]
        keep = free[0] if request["keep"] and free else HOLDERS
        for fd in (self.told, *self.readers):  # shared with whatever ran before
            os.set_blocking(fd, True)
            while select.select([fd], [], [], 0)[0]:
                os.read(fd, 1 << 16)
        for fd in self.files:
            os.ftruncate(fd, 0)
            os.lseek(fd, 0, os.SEEK_SET)
        _copy(fds[1], self.files[0])
        if at not in self.holders or not self._copy_tree(self._files_of(at), here):
            return {"status": "lost"}
        pid = self._runner(at, 2 if keep == HOLDERS else 4)
        cell = os.pread(fds[0], os.fstat(fds[0]).st_size, 0)
        cell = bytes([keep]) + len(cell).to_bytes(4, "big") + cell
        if pid is None or not _write(self.writers[HOLDERS], cell, TELL_SECONDS):
            self.release(at)  # its code has broken it
            return {"status": "lost"}
        self.template.child = pid
        reply = self.template.outcome(*self.files[1:])
        born = keep < HOLDERS and self.zygote.cleanup.children(self.holders.values())
        if born and (pid := self._child(HELD_SECONDS)) is not None and reply["exit_code"] >= 0:
            self.holders[keep] = pid
            self._stop(keep)
            if self._copy_tree(here, self._files_of(keep)):
                reply["held"] = keep
            else:
                self.release(keep)
        for ours, theirs in zip(self.files[1:], fds[2:]):
            _copy(ours, theirs)
        return reply

    def _runner(self, at: int, forks: int) -> int | None:
        """The process that the holder in slot `at` forks; the holder runs no longer than that."""
        self.forks = forks
        os.kill(self.holders[at], signal.SIGCONT)
        told = _write(self.writers[at], b"!", TELL_SECONDS)
        pid = self._child(TELL_SECONDS) if told else None
        self._stop(at)
        return pid

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
            self.zygote.cleanup.wipe(self._files_of(slot))
        return {"released": slot}

    def _files_of(self, slot: int) -> str:
        return os.path.join(self.kept, str(slot))

    def _copy_tree(self, source: str, target: str) -> bool:
        """Whether all of `source` could be copied; a tree too deep for that is not kept."""
        try:
            self.copytree(source, target, symlinks=True, dirs_exist_ok=True)
            if self.template.config["drop"] == "setuid":
                owner = (self.layers.NOBODY,) * 2
                for folder, folders, files in os.walk(target):
                    for name in folders + files:
                        os.lchown(os.path.join(folder, name), *owner)
        except (OSError, RecursionError):
            return False
        return True

    def _consent(self) -> None:
        self.forks -= 1
        self.layers.answer_fork(self.listener, self.forks >= 0)

    def _child(self, seconds: float) -> int | None:
        """The process that the session names next, if it is an unknown child of this one."""
        word = self._hear(seconds)
        pid = int(word) if word.isascii() and word.isdigit() and len(word) < 9 else 0
        try:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except (ChildProcessError, OSError):
            return None
        return None if pid in (0, *self.holders.values()) else pid

    def _hear(self, seconds: float) -> str:
        """The next line that a process of the session wrote, or ""."""
        line, until = b"", time.monotonic() + seconds
        while len(line) < 2000:
            if not self.template.sleep(self.told, until - time.monotonic()):
                break
            byte = os.read(self.told, 1)
            if byte in (b"", b"\n"):
                break
            line += byte
        return line.decode("latin-1")


def _arrange(first, fds: list[int]) -> None:
    """In the first holder: `fds` become descriptors 0, 1, ..., and all others are closed."""
    for target, fd in enumerate(fds):
        os.dup2(fd, target)
    os.closerange(len(fds), child.MOST_DESCRIPTORS)
    first.line = TELL


def _first(first) -> None:
    """In the first holder: hand the keeper the descriptor of its consent, then hold."""
    os.write(TELL, b"%d\n" % first.listener)
    _read(READERS, 1)
    os.close(first.listener)  # or code could consent to itself
    os.write(TELL, b"holding\n")
    hold(0)


def hold(slot: int) -> None:
    """In a sandboxed process: wait for cells, each run by a copy of this process; never returns.

    Only the copy reads the cell: what one branch runs is not in the memory that the next one gets.
    """
    while True:
        _read(READERS + slot, 1)
        if not _fork_twice():
            continue
        os.write(TELL, b"%d\n" % os.getpid())
        keep = _read(READERS + HOLDERS, 1)[0]
        size = int.from_bytes(_read(READERS + HOLDERS, 4), "big")
        request = marshal.loads(_read(READERS + HOLDERS, size))

        def after(slot=keep) -> None:
            if slot < HOLDERS and _fork_twice():
                os.write(TELL, b"%d\n" % os.getpid())
                hold(slot)

        os._exit(child.run_cell(request, after))


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


def _read(fd: int, count: int) -> bytes:
    parts = []
    while count:
        part = os.read(fd, min(count, 1 << 16))
        if not part:
            os._exit(0)
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _copy(source: int, target: int) -> None:
    """The bytes of one memory file into another, which is then at its start."""
    size, done = os.fstat(source).st_size, 0
    while done < size:
        done += os.sendfile(target, source, done, size - done)
    os.lseek(target, 0, os.SEEK_SET)


def _write(fd: int, data: bytes, seconds: float) -> bool:
    """Whether all of `data` went into the pipe in time."""
    view, until = memoryview(data), time.monotonic() + seconds
    while view:
        if not select.select([], [fd], [], max(until - time.monotonic(), 0.0))[1]:
            return False
        view = view[os.write(fd, view) :]
    return True
