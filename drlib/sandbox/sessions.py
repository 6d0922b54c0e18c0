"""Snapshot sessions: processes that hold the state after a cell, so that branches can share it.

A held state is a process that waits in its own fork. A branch is run by letting that fork happen:
the parent becomes the runner of the cell, the copy goes back to wait and is the state from then on.
A cell that is to be kept forks once more at its end, and that copy waits in turn. All of them are
children of a *keeper*, process 1 of a PID namespace, which runs no generated code. What a process
does between a fork and its next wait is up to the code that ran in it, so nothing relies on that.
The shape relies on these, each said with what is left if it fails:

- *A state stands still* in a seccomp user notification (`notices.py`): the kernel lets nothing but
  death end the wait. No timer or signal thaws it, and the keeper reads what it is while it waits.
  If it fails: a confined process runs on, and reaches nothing (the next three).
- *A state holds nothing but its own memory* (`bounds.why_unfit`): one thread, three descriptors on
  the null device, no shared memory, no mapped file of its own. One that has more is killed and its
  cells are replayed. If it fails: a prefix has a channel between its own branches.
- *A runner's files are its own*: the keeper puts the caller's four memory files into the runner,
  and only when every other process stands still; whoever got them (the copy that is kept) has none
  of them left, or is dead, before the caller looks. If it fails: a branch reads or forges the
  output of the branch that it is a copy of.
- *One process runs*: each fork needs the keeper's consent (EPERM otherwise), and what is not a
  state that waits is killed before the reply. If it fails: the namespace ends with the session.
- *No file is part of a state.* The work folder is a memory file system of the session, in a file
  tree that shows nothing else; a cell that leaves a file in it is replayed, and it is emptied by a
  process with no more rights than the code. The keeper makes, opens and changes no file at all: it
  is under Landlock itself and has no capability that would let it.
  If it fails: files of one branch are seen by the next.

Everything dies with the keeper's PID namespace, so there are no sessions below level "strong";
`pool.py` then replays. Left out: threads, open files and shared memory that outlive their cell (a
replay has them).
"""

from __future__ import annotations

import fcntl
import marshal
import os
import select
import signal
import socket
import struct
import time
import traceback
from dataclasses import dataclass

from drlib.sandbox import bounds, child, cleanup, layers, notices, seccomp
from drlib.sandbox.notices import Question

STATES = 16  # that one session can hold
START_SECONDS = 30.0  # for the first process to lock itself in
TURN_SECONDS = 5.0  # for a process to fork and wait; one that code has broken never does
CLEAN_SECONDS = 5.0  # for the work folder to be emptied
HIGH = 64  # above all numbers that descriptors get here
LINE, REQUEST = 3, 3  # descriptors: of the first state, to the keeper; of a runner, its cell
_NEEDED = layers.CAP_KILL, layers.CAP_SYS_PTRACE  # by the keeper: to end them, to look at them
# and for a process that it starts, until that one has locked itself in:
_GIVEN_ON = layers.CAP_SETGID, layers.CAP_SETUID, layers.CAP_SYS_CHROOT


class SessionLost(Exception):
    """The session cannot go on; its calls are replayed."""


@dataclass
class State:
    """A process that waits in its fork: its number, its question, bytes of its own memory."""

    pid: int
    question: Question
    memory: int


def open_session(template) -> int:
    """Fork a keeper, send the caller the other end of its socket, and return its process id."""
    ours, theirs = socket.socketpair()
    if pid := layers.fork(template.before_fork):
        with ours, theirs:
            socket.send_fds(template.channel, [b"S"], [theirs.fileno()])
        return pid
    try:
        theirs.close()
        keeper = Keeper(template, ours)
        keeper.start()
        keeper.serve()
    except Exception:  # noqa: BLE001 - whatever it was, the caller replays
        traceback.print_exc()
    finally:
        os._exit(0)  # never back into the template's own code


class Keeper:
    """Owns the states of one session; `template` becomes this process's own copy of it."""

    def __init__(self, template, channel: socket.socket) -> None:
        self.template, self.channel = template, channel
        template.pid = os.getpid()
        self.states: dict[int, State] = {}  # by slot
        self.poller = select.poll()
        self.poller.register(channel, select.POLLRDHUP)

    def start(self) -> None:
        """Lock in and make the first state; `SessionLost` where that is not possible here."""
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        asking = seccomp.SeccompFilter(ask=True)  # read from a file that is out of reach later
        self._lock_in()
        line, theirs = _line()
        first = layers.fork(())
        if not first:
            self.template.filter = asking
            _be_first(self.template, theirs.fileno(), self.null)
        theirs.close()
        self.listener = self._listener_of(first, line)
        self.poller.register(self.listener, select.POLLIN)
        question = self._next_question(time.monotonic() + TURN_SECONDS)
        if question is None:
            raise SessionLost("the first state does not wait")
        pid = self._outer(first)
        self.mapped, self.own = bounds.mapped_files(pid), bounds.own_memory(pid)
        state = self._fit(question, 0, self.silent)
        if state is None:
            why = bounds.why_unfit(pid, self.folder, self.mapped, self.silent)
            raise SessionLost(f"the first state is not fit to be one: {why}")
        self.states[0] = state

    def _lock_in(self) -> None:
        """Mount the work folder, then keep only what a keeper needs: to read /proc, to end its
        processes, and to let those that it starts lock themselves in."""
        template, channel = self.template, self.channel.fileno()
        os.closerange(3, channel)  # the template's
        os.closerange(channel + 1, HIGH)
        layers.take(template.mount)
        self.folder = template.root + template.work
        self.space = os.open(self.folder, os.O_PATH | os.O_DIRECTORY)
        self.as_new = os.fstatvfs(self.space)
        self.null = os.open(os.devnull, os.O_RDWR)
        self.silent = [os.fstat(self.null).st_ino] * 3  # the streams of a process without files
        # What the code may touch, since what it starts can have no more than it has itself.
        read, list_only = template.packages.readable()
        box = os.path.dirname(self.folder)
        ruleset = layers.landlock_ruleset([*read, "/proc"], list_only, box)
        layers.take(
            [
                *layers.keep_capabilities(*_NEEDED, *_GIVEN_ON),
                *layers.die_with_parent(signal.SIGTERM),
                *layers.landlock_restrict(ruleset),
            ]
        )
        os.close(ruleset)

    def _listener_of(self, first: int, line: socket.socket) -> int:
        """The descriptor on which the questions of `first`, and of all that it forks, are asked."""
        with line:  # its end tells the process to go on
            line.settimeout(START_SECONDS)
            word = line.recv(4096)
            if word != b"1":
                raise SessionLost(f"the first state could not lock itself in: {word[1:]}")
            return notices.take_descriptor(first, int(line.recv(4096)))

    def serve(self) -> None:
        """Answer calls until the caller closes the session."""
        while (asked := notices.receive_request(self.channel)) is not None:
            request, fds = asked[0], struct.unpack(f"{len(asked[1]) // 4}i", asked[1])
            if fds:
                reply = self.call(request, fds)
            else:
                reply = self.release(request["release"])
            for fd in fds:
                os.close(fd)
            self.channel.sendall(marshal.dumps(reply))

    def release(self, slot: int) -> dict:
        """Forget the state in `slot`."""
        state = self.states.pop(slot, None)
        if state is not None:
            self._kill(state.pid)
        return {"released": slot}

    def call(self, request: dict, fds: tuple[int, ...]) -> dict:
        """Run one cell from the state in slot `request["at"]`; `fds` as in `Template.call`."""
        at = request["at"]
        slot = next((slot for slot in range(STATES) if slot not in self.states), STATES)
        keep = bool(request["keep"]) and slot < STATES
        turn = self._branch(at) if at in self.states else None
        if turn is None:
            self.release(at)  # its code has broken it
            self._end_others()
            return {"status": "lost"}
        if not notices.give(self.listener, turn, list(fds[1:]) + [fds[0]]):
            raise SessionLost("the runner died before it began")
        notices.reply(self.listener, turn, int(keep))
        reply, copy = self._watch(turn.pid, keep, fds[2:])
        streams = [os.fstat(fd).st_ino for fd in fds[1:]]
        state = self._fit(copy, slot, streams) if copy is not None else None
        if state is not None and reply["exit_code"] >= 0 and self._is_empty():
            self.states[slot] = state
            reply["held"] = slot
        self._end_others()
        if not self._is_empty():
            self._clean()
        return reply

    def _branch(self, at: int) -> Question | None:
        """Let the state in slot `at` fork. Its copy is the state now; the question of the other,
        which waits for the files of its cell. None where they do not both wait in time."""
        state = self.states[at]
        if not notices.go_on(self.listener, state.question):
            return None
        runner = copy = None
        deadline = time.monotonic() + TURN_SECONDS
        while runner is None or copy is None:
            question = self._next_question(deadline)
            if question is None:
                return None
            if question.pid == state.pid and not question.forks:
                runner = question
            elif question.pid != state.pid and question.forks and copy is None:
                copy = question
            else:
                notices.refuse(self.listener, question)
        next_state = self._fit(copy, at, self.silent)
        if next_state is None:
            return None
        self.states[at] = next_state
        return runner

    def _watch(
        self, runner: int, keep: bool, outputs: tuple[int, ...]
    ) -> tuple[dict, Question | None]:
        """Watch the runner to its end or to the end of its time: how it ended, and the question of
        its copy, if it was to be kept and does wait."""
        began = time.monotonic()
        deadline = began + self.template.config["timeout_s"]
        forked, copy = False, None
        process = os.pidfd_open(runner)
        self.poller.register(process, select.POLLIN)
        try:
            while (question := self._next_question(deadline, process)) is not None:
                if question.pid == runner and keep and not forked and self._is_alone(runner):
                    forked = notices.go_on(self.listener, question)
                elif question.pid != runner and forked and copy is None:
                    copy = question
                else:
                    notices.refuse(self.listener, question)
        finally:
            self.poller.unregister(process)
            in_time = _readable(process, 0.0)
            os.close(process)
        if not in_time:
            os.kill(runner, signal.SIGKILL)
        duration = time.monotonic() - began
        _, status, usage = os.wait4(runner, 0)
        if forked and copy is None:
            copy = self._next_question(time.monotonic() + TURN_SECONDS)
        cause = "" if in_time else "timeout"
        return self.template.account(cause, status, usage, duration, outputs), copy

    def _next_question(self, deadline: float, process: int = -1) -> Question | None:
        """What is asked next; None where the time is over, or `process` (a pidfd) has ended."""
        while (left := deadline - time.monotonic()) > 0:
            ready = {fd for fd, _ in self.poller.poll(left * 1000 + 1)}
            if self.channel.fileno() in ready:  # the caller has gone, for it never asks meanwhile
                os._exit(0)
            if self.listener in ready:
                question = notices.receive(self.listener)
                if question is not None:
                    return question
            elif process in ready:
                return None
        return None

    def _fit(self, question: Question, slot: int, streams: list[int]) -> State | None:
        """The state that the process of `question` is in `slot`, its files taken away; None where
        it is not fit to be one (`bounds.why_unfit`), or the session's states together would have
        more memory of their own than a call may have."""
        others = sum(state.memory for at, state in self.states.items() if at != slot)
        try:
            pid = self._outer(question.pid)
            unfit = bounds.why_unfit(pid, self.folder, self.mapped, streams)
            if unfit or not question.forks:
                return None
            memory = max(0, bounds.own_memory(pid) - self.own)
        except OSError:  # it has died, or it is a thread and no process
            return None
        if others + memory > self.template.config["memory_mb"] << 20:
            return None
        if not notices.give(self.listener, question, [self.null] * 3):
            return None
        return State(question.pid, question, memory)

    def _is_alone(self, pid: int) -> bool:
        """Whether the process that waits to fork has one thread."""
        try:
            return bounds.threads_of(self._outer(pid)) == 1
        except OSError:  # it has died
            return False

    def _outer(self, pid: int) -> int:
        """The number under which /proc knows process `pid` of this namespace."""
        process = os.pidfd_open(pid)
        try:
            return bounds.outer_number(process)
        finally:
            os.close(process)

    def _end_others(self) -> None:
        """Kill every process that is not a state."""
        cleanup.kill_children(keep={state.pid for state in self.states.values()})

    def _kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def _is_empty(self) -> bool:
        """Whether no file, with or without a name, is in the work folder's file system."""
        now = os.fstatvfs(self.space)
        return (now.f_ffree, now.f_bfree) == (self.as_new.f_ffree, self.as_new.f_bfree)

    def _clean(self) -> None:
        """Empty the work folder by a process that is held in like the code itself."""
        ours, theirs = _line()
        pid = layers.fork(())
        if not pid:
            _be_cleaner(self.template, theirs.fileno(), self.null)
        theirs.close()
        process = os.pidfd_open(pid)
        ended = _readable(process, CLEAN_SECONDS)
        os.close(process)
        ours.close()
        if not ended:
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        if not self._is_empty():
            raise SessionLost("the work folder could not be emptied")


def _line() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # a read is what a write wrote


def _readable(fd: int, seconds: float) -> bool:
    return bool(select.select([fd], [], [], seconds)[0])


def _take_places(line: int, null: int) -> None:
    """Descriptors 0 to 2 on the null device, `line` as LINE; those above are closed later."""
    line, null = (fcntl.fcntl(fd, fcntl.F_DUPFD, HIGH) for fd in (line, null))
    for target, fd in enumerate((null, null, null, line)):
        os.dup2(fd, target)


def _lock_in(template, then) -> None:
    """In a process of the keeper: lock in, and exit with what `then` returns."""
    steps = template.enter + template.steps
    others = LINE + 1, child.MOST_DESCRIPTORS
    child.lock_in(template, steps, LINE, lambda: os.closerange(*others), then)


def _be_first(template, line: int, null: int) -> None:
    """The first state: lock in, hand the keeper the descriptor of its consent, then wait."""
    _take_places(line, null)

    def then(_: None, listener: int) -> None:
        os.write(LINE, b"%d" % listener)
        os.read(LINE, 1)  # until the keeper has it
        os.close(listener)  # or code could consent to itself
        os.close(LINE)
        hold()

    _lock_in(template, then)


def _be_cleaner(template, line: int, null: int) -> None:
    _take_places(line, null)
    _lock_in(template, lambda *_: cleanup.wipe("."))


def hold() -> None:
    """In a sandboxed process: wait in a fork; then the copy waits again, and this process asks for
    the files of a cell and runs it. Never returns."""
    while True:
        if not layers.fork(()):
            continue  # the copy is the state
        keep = notices.ask()
        request = marshal.loads(os.pread(REQUEST, os.fstat(REQUEST).st_size, 0))
        os.close(REQUEST)
        status = child.run_cell(request, bool(keep))
        if status is not None:
            os._exit(status)
        # Otherwise this is a copy that is to be kept.
