"""In the processes of a session: wait as a state, and run the cells of branches.

From `hold` on, code that nobody has read may have replaced any name here: `sessions.py`, which runs
in the keeper, relies on nothing of this file after the first wait.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import socket

from drlib.sandbox import child, layers, notices, seccomp

LINE = 3  # the descriptor of the first state to the keeper
REQUEST = 3  # the descriptor of a runner's cell


def new_line() -> tuple[socket.socket, socket.socket]:
    """Between the keeper and the first state: a read is what one write wrote."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _take_places(line: int, null: int) -> None:
    """Descriptors 0 to 2 on the null device, `line` as LINE; those above are closed later."""
    # Out of the way, for either may stand in a place that the other is to have.
    line = fcntl.fcntl(line, fcntl.F_DUPFD, child.HIGH)
    null = fcntl.fcntl(null, fcntl.F_DUPFD, child.HIGH)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.dup2(line, LINE)


def be_first(confinement, asking: seccomp.SeccompFilter, keeper: int, line: int, null: int) -> None:
    """In the process that `keeper` has forked, the first state: lock in behind the filter `asking`,
    hand the keeper the descriptor of its consent, then wait."""
    _take_places(line, null)

    def then(_: None, listener: int) -> None:
        os.write(LINE, b"%d" % listener)
        os.read(LINE, 1)  # until the keeper has it
        os.close(listener)  # or code could consent to itself
        os.close(LINE)
        hold()

    child.lock_in(
        confinement.enter + confinement.steps,
        asking,
        keeper,
        LINE,
        arrange=lambda: os.closerange(LINE + 1, child.MOST_DESCRIPTORS),
        then=then,
    )


def hold() -> None:
    """In a sandboxed process: wait in a fork; then the copy waits again, and this process asks for
    the files of a cell and runs it. Never returns."""
    while True:
        if not layers.fork(()):
            continue  # the copy is the state
        keep = notices.ask_keeper()
        request = marshal.loads(os.pread(REQUEST, os.fstat(REQUEST).st_size, 0))
        os.close(REQUEST)
        status = child.run_cell(request, bool(keep))
        if status is not None:
            os._exit(status)
        # Otherwise this is a copy that is to be kept.
