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
- *One process runs*, but for the moment in which a copy is made (two then, for a second at most):
  each fork needs the keeper's consent (EPERM otherwise), and what is not a state that waits is
  killed before the reply. If it fails: the namespace ends with the session.
- *No file is part of a state.* The work folder is a memory file system of the session, in a file
  tree that shows nothing else. Once a cell has made a file in it, even one that is gone again, the
  session ends and its states are replayed: nobody empties a folder. The keeper makes and changes no
  file at all; it is under Landlock itself and could reach none but in that folder. If it fails:
  files of one branch are seen by the next.

Everything dies with the keeper's PID namespace, so there are no sessions below level "strong";
`pool.py` then replays. Left out: threads, open files and shared memory that outlive their cell (a
replay has them). Not contained: numbers of processes and threads count on from branch to branch,
and what can be told from the load on the machine.
"""

from __future__ import annotations

import marshal
import os
import select
import signal
import socket
import struct
import time
import traceback
from dataclasses import dataclass
from typing import NamedTuple

from drlib.sandbox import bounds, child, cleanup, holding, layers, notices, seccomp
from drlib.sandbox.notices import Question

STATES = 16  # that one session can hold
LOCK_IN_SECONDS = 30.0  # for the first process to lock itself in
TURN_SECONDS = 2.0  # for a state to fork and both to wait; one that code has broken never does
COPY_SECONDS = 1.0  # for the copy of a runner to come to wait
# Powers of the keeper: to end processes and to look at them,
_NEEDED = (layers.CAP_KILL, layers.CAP_SYS_PTRACE)
# and for a process that it starts, until that one has locked itself in.
_GIVEN_ON = (layers.CAP_SETGID, layers.CAP_SETUID, layers.CAP_SYS_CHROOT)


class SessionLost(Exception):
    """The session cannot go on; its calls are replayed."""


@dataclass
class State:
    """A process that waits in its fork: a pidfd, its numbers in the session and in /proc, its
    question, and bytes of its own memory."""

    process: int
    pid: int
    outer: int
    question: Question
    memory: int


class Copy(NamedTuple):
    """A process that somebody has forked and that waits in turn, but is no state yet: its question
    and its number in /proc."""

    question: Question
    outer: int


def open_session(confinement, channel: socket.socket) -> int:
    """In the template process: fork a keeper, send the caller the other end of its socket over
    `channel`, and return the keeper's process id."""
    ours, theirs = socket.socketpair()
    pid = layers.fork(confinement.before_fork)
    if pid:
        with ours, theirs:
            socket.send_fds(channel, [b"S"], [theirs.fileno()])
        return pid
    try:
        theirs.close()
        keeper = Keeper(confinement, ours)
        keeper.start()
        keeper.serve()
    except Exception:  # noqa: BLE001 - whatever it was, the caller replays
        traceback.print_exc()
    finally:
        os._exit(0)  # never back into the template's own code


class Keeper:
    """Owns the states of one session. What holds them in is the template's, whose copy this process
    is; only their filter is another, for they ask before they fork."""

    def __init__(self, confinement, channel: socket.socket) -> None:
        self.confinement = confinement
        self.channel = channel
        # By a number that is never given twice: a caller that still names a state which is lost
        # must not come upon another's.
        self.states: dict[int, State] = {}
        self.last = 0
        self.poller = select.poll()
        self.poller.register(channel, select.POLLRDHUP)

    def start(self) -> None:
        """Lock in and make the first state; `SessionLost` where that is not possible here."""
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        asking = seccomp.SeccompFilter(ask=True)  # read from a file that is out of reach later
        keeper = os.getpid()
        self._lock_in()
        line, theirs = holding.new_line()
        first = layers.fork(())
        if not first:
            holding.be_first(self.confinement, asking, keeper, theirs.fileno(), self.null)
        theirs.close()
        self.listener = self._listener_of(first, line)
        self.poller.register(self.listener, select.POLLIN)
        question = self._next_question(time.monotonic() + TURN_SECONDS)
        if question is None:
            raise SessionLost("the first state does not wait")
        (outer,) = cleanup.child_numbers()
        first_state = Copy(question, outer)
        # No code has run in it: what others have beside this, they have taken themselves.
        self.mapped = bounds.mapped_files(outer)
        self.own = bounds.own_memory(outer)
        state = self._fit(first_state, None, self.silent)
        if state is None:
            why = bounds.why_unfit(outer, self.folder, self.mapped, self.silent)
            raise SessionLost(f"the first state is not fit to be one: {why}")
        self.states[0] = state

    def _lock_in(self) -> None:
        """Mount the work folder, then keep only what a keeper needs: to read /proc, to end its
        processes, and to let those that it starts lock themselves in."""
        channel = self.channel.fileno()
        os.closerange(3, channel)  # the template's
        os.closerange(channel + 1, child.HIGH)
        layers.take(self.confinement.mount)
        self.folder = self.confinement.root + self.confinement.work
        self.files = bounds.FolderWatch(self.folder)
        self.null = os.open(os.devnull, os.O_RDWR)
        self.silent = [os.fstat(self.null).st_ino] * 3  # the streams of a process without files
        # What the code may touch, since what it starts can have no more than it has itself.
        read, list_only = self.confinement.packages.readable()
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
            line.settimeout(LOCK_IN_SECONDS)
            word = line.recv(4096)
            if word != b"1":
                raise SessionLost(f"the first state could not lock itself in: {word[1:]}")
            return notices.take_descriptor(first, int(line.recv(4096)))

    def serve(self) -> None:
        """Answer calls until the caller closes the session, or a cell has written a file."""
        while (asked := notices.receive_request(self.channel)) is not None:
            request, rights = asked
            fds = struct.unpack(f"{len(rights) // 4}i", rights)
            if fds:
                reply = self.call(request, fds)
            else:
                reply = self.release(request["release"])
            for fd in fds:
                os.close(fd)
            self.channel.sendall(marshal.dumps(reply))
            if not self.files.untouched():
                return  # the next branch would see that there was a file, if not the file

    def release(self, number: int) -> dict:
        """Forget the state with this number."""
        if number in self.states:
            os.close(self.states.pop(number).process)
            self._end_others()
        return {"released": number}

    def call(self, request: dict, fds: tuple[int, ...]) -> dict:
        """Run a cell from the state `request["at"]`; `fds`: its request, stdin, stdout, stderr."""
        at = request["at"]
        keep = bool(request["keep"]) and len(self.states) < STATES
        turn = self._branch(at) if at in self.states else None
        if turn is None:  # it was not held, or its code has broken it
            self.release(at)
            return {"status": "lost"}
        runner, question = turn
        if not notices.give(self.listener, question, list(fds[1:]) + [fds[0]]):
            self._end_others()  # the runner alone is broken
            os.close(runner.process)
            return {"status": "lost"}
        notices.reply(self.listener, question, int(keep))
        reply, copy = self._watch(runner, keep, fds[2:])
        if copy is not None and reply["exit_code"] >= 0:
            streams = [os.fstat(fd).st_ino for fd in fds[1:]]
            state = self._fit(copy, None, streams) if self.files.untouched() else None
            if state is not None:
                self.last += 1
                self.states[self.last] = state
                reply["held"] = self.last
        self._end_others()
        return reply

    def _branch(self, at: int) -> tuple[State, Question] | None:
        """Let the state with the number `at` fork. Its copy is the state now; the process itself is
        the runner, and its question waits for the files of its cell. None where they do not both
        wait in time, or the copy is not fit to be a state."""
        runner = self.states[at]
        if not notices.go_on(self.listener, runner.question):
            return None
        asks: Question | None = None
        copy: Copy | None = None
        deadline = time.monotonic() + TURN_SECONDS
        while asks is None or copy is None:
            question = self._next_question(deadline)
            if question is None:
                return None
            if asks is None and question.pid == runner.pid and not question.forks:
                asks = question
                continue
            if copy is None:
                copy = self._copy_of(runner, question)
                if copy is not None:
                    continue
            notices.refuse(self.listener, question)
        state = self._fit(copy, at, self.silent)
        if state is None:
            return None
        self.states[at] = state
        return runner, asks

    def _watch(
        self, runner: State, keep: bool, outputs: tuple[int, ...]
    ) -> tuple[dict, Copy | None]:
        """Watch the runner to its end or to the end of its time: how it ended, and its copy, if it
        was to be kept and does wait."""
        began = time.monotonic()
        end = began + self.confinement.config["timeout_s"]
        # Whether it has said that its cell is done and it will fork; whether it has forked.
        done = forked = False
        copy: Copy | None = None
        deadline = end
        self.poller.register(runner.process, select.POLLIN)
        while True:
            question = self._next_question(deadline, runner.process)
            if question is None:
                if deadline == end or _readable(runner.process, 0.0):
                    break
                self._end_copies(runner)  # it does not come to wait
                deadline = end
                continue
            mine = question.pid == runner.pid
            if mine and not question.forks:
                notices.reply(self.listener, question, 0)
                done = not done
            elif mine and done and keep and not forked and self._is_alone(runner):
                forked = notices.go_on(self.listener, question)
                deadline = min(end, time.monotonic() + COPY_SECONDS)
            else:
                arrived = self._copy_of(runner, question) if forked and copy is None else None
                if arrived is None:
                    notices.refuse(self.listener, question)
                else:
                    copy = arrived
                    deadline = end
        self.poller.unregister(runner.process)
        in_time = _readable(runner.process, 0.0)
        duration = time.monotonic() - began
        if not in_time:
            signal.pidfd_send_signal(runner.process, signal.SIGKILL)
        elif forked and copy is None:
            copy = self._late_copy(runner)
        os.close(runner.process)
        _, status, usage = os.wait4(runner.pid, 0)
        cause = "" if in_time else "timeout"
        return self.confinement.account(cause, status, usage, duration, outputs), copy

    def _is_alone(self, runner: State) -> bool:
        try:
            return bounds.threads_of(runner.outer) == 1
        except OSError:  # it has died
            return False

    def _late_copy(self, runner: State) -> Copy | None:
        """The copy of a runner that ended before it came to wait; None where it does not come."""
        deadline = time.monotonic() + COPY_SECONDS
        while True:
            question = self._next_question(deadline)
            if question is None:
                return None
            copy = self._copy_of(runner, question)
            if copy is not None:
                return copy
            notices.refuse(self.listener, question)

    def _end_copies(self, runner: State) -> None:
        """Kill what the runner has forked but is no state."""
        for outer in set(self._children_of(runner)) - {state.outer for state in self._all()}:
            cleanup.kill(outer)

    def _copy_of(self, runner: State, question: Question) -> Copy | None:
        """The process that asks, if it wants to fork and is a child of the runner, or one that came
        to us when the runner ended; otherwise None."""
        try:
            process = os.pidfd_open(question.pid)
        except OSError:  # it has died, or it is a thread of some process and no process
            return None
        try:
            outer = bounds.outer_number(process)
        finally:
            os.close(process)
        known = {runner.outer, *(state.outer for state in self._all())}
        family = self._children_of(runner) + cleanup.child_numbers()
        is_copy = question.forks and outer in family and outer not in known
        return Copy(question, outer) if is_copy else None

    def _children_of(self, runner: State) -> list[int]:
        return cleanup.child_numbers(f"{runner.outer}/task/{runner.outer}")

    def _all(self) -> list[State]:
        return list(self.states.values())

    def _next_question(self, deadline: float, process: int = -1) -> Question | None:
        """What is asked next; None where the time is over, or `process` (a pidfd) has ended."""
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            ready = {fd for fd, _ in self.poller.poll(left * 1000 + 1)}
            if self.channel.fileno() in ready:  # the caller has gone, for it never asks meanwhile
                os._exit(0)
            if self.listener in ready:
                question = notices.receive(self.listener)
                if question is not None:
                    return question
            elif process in ready:
                return None

    def _fit(self, copy: Copy, at: int | None, streams: list[int]) -> State | None:
        """The state that `copy` is from now on, its files, which have the inodes `streams`, taken
        away. None where it is not fit to be one (`bounds.why_unfit`), or the session's states
        together would have more memory of their own than a call may have. `at` is the number of a
        state whose place it takes."""
        question, outer = copy
        others = sum(state.memory for number, state in self.states.items() if number != at)
        try:
            if bounds.why_unfit(outer, self.folder, self.mapped, streams):
                return None
            memory = max(0, bounds.own_memory(outer) - self.own)
            process = os.pidfd_open(question.pid)
        except (OSError, ValueError):  # it has died, or just does
            return None
        room = (self.confinement.config["memory_mb"] << 20) - others
        if memory > room or not self._silence(question):
            os.close(process)
            return None
        return State(process, question.pid, outer, question, memory)

    def _silence(self, question: Question) -> bool:
        """Put the null device in the place of the three streams, opened anew each time: processes
        that share one opening of it can tell each other something by its flags."""
        null = os.open(os.devnull, os.O_RDWR)
        try:
            return notices.give(self.listener, question, [null] * 3)
        finally:
            os.close(null)

    def _end_others(self) -> None:
        """Kill every process that is not a state."""
        # A dead one may be waited for below, and its number be another's then.
        states = {state.outer for state in self._all() if not _readable(state.process, 0.0)}
        cleanup.kill_children(keep=states)
        if not set(cleanup.child_numbers()) <= states:
            raise SessionLost("a process could not be ended")


def _readable(fd: int, seconds: float) -> bool:
    return bool(select.select([fd], [], [], seconds)[0])
