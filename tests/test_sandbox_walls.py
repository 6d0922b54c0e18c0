"""Held sessions under attack: no branch sees or changes what is not its own, whatever a state does.

The attacks are data (`session_attacks.py`, `session_spoilers.py`, `session_breakers.py`), the
targets and one round of an attack are in `session_targets.py`. Races are tried
`DRLIB_RACE_ROUNDS` times (200) with every core busy, so `make test-alone` runs them; below "strong"
states are replayed, so nothing can race there, only the answers count, and nobody takes the cores
away.

The races are against a keeper that copies and empties folders by path and stops processes by
signals, and were won against it (6 to 39 times in 40) before there was another.
`test_sandbox_cleanup.py` has such copying and emptying as a control, which is led out;
`test_sandbox_weakened_layers.py` takes out walls that there are.
"""

import os
import time
from contextlib import ExitStack

import pytest

from tests.sandbox_targets import BREACH, CANARY, nothing_left, sandbox_at, shown, skip_without
from tests.session_attacks import RACES
from tests.session_breakers import BREAKERS, LEFT
from tests.session_spoilers import AWAKE, KEPT
from tests.session_targets import ANSWER, HONEST, PREFIX, SIBLING, Outside, attempt, busy

ROUNDS = int(os.environ.get("DRLIB_RACE_ROUNDS", "200"))
ATTACKS = {attack.name: attack for attack in AWAKE + KEPT + BREAKERS + LEFT}
RACES_BY_NAME = {race.name: race for race in RACES}


@pytest.fixture(scope="module", params=["standard", "strong"])
def level(request):
    skip_without(request.param)
    return request.param


@pytest.fixture(scope="module")
def outside(level):
    with nothing_left(), ExitStack() as stack:
        yield Outside(stack)


@pytest.fixture(scope="module")
def sandbox(level, outside):
    with sandbox_at(level, timeout_s=2.0, memory_mb=128) as made:
        yield made


def test_there_are_no_two_attacks_of_one_name():
    assert len(ATTACKS) == len(AWAKE + KEPT + BREAKERS + LEFT)
    assert len(RACES_BY_NAME) == len(RACES)


@pytest.mark.parametrize("name", ATTACKS)
def test_attack(name, sandbox, outside):
    with sandbox.session() as start:
        prefix = start.then(PREFIX)
        assert attempt(sandbox, prefix, outside, ATTACKS[name]) == []
        honest = sandbox.run(HONEST, stdin=SIBLING, history=[PREFIX])
        assert honest.stdout == ANSWER == prefix.run(HONEST, stdin=SIBLING).stdout
        assert prefix.then("y = x").run("print(x, y)").text == "41 41"
    outside.places.check()


@pytest.mark.alone
@pytest.mark.parametrize("name", RACES_BY_NAME)
def test_race(name, sandbox, outside, level):
    with ExitStack() as stack:
        if level == "strong":
            stack.enter_context(busy())
        session = stack.enter_context(ExitStack())
        prefix = None
        for number in range(ROUNDS):
            if prefix is None or not prefix.live:  # a cell has ended the session before
                session.close()
                prefix = session.enter_context(sandbox.session()).then(PREFIX)
            found = attempt(sandbox, prefix, outside, RACES_BY_NAME[name])
            assert found == [], f"round {number}"
    outside.places.check()


# --- what calls could tell each other -----------------------------------------------------------

OPEN = """
import fcntl, os, struct, time
fd = os.open(os.__file__, os.O_RDONLY)
def lock(kind): return struct.pack("hhqqi4x", kind, 0, 0, 9, 0)
def ask(command):
    try: found = fcntl.fcntl(fd, command, lock(fcntl.F_WRLCK))
    except PermissionError: return
    if struct.unpack("h", found[:2])[0] != fcntl.F_UNLCK: raise BlockingIOError
"""
# How a file that may only be read is locked, and how another would notice.
LOCKS = {
    "flock": ("fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)",) * 2,
    "record lock": ("fcntl.fcntl(fd, fcntl.F_SETLK, lock(fcntl.F_RDLCK))", "ask(fcntl.F_GETLK)"),
    "lock of the open file": ("fcntl.fcntl(fd, 37, lock(fcntl.F_RDLCK))", "ask(36)"),
}


@pytest.mark.parametrize("kind", LOCKS)
def test_locks_tell_another_call_nothing(kind, level, outside):
    """A lock on a file of the standard library, which all calls can open, is nobody else's news."""
    take, notice = LOCKS[kind]
    with sandbox_at(level, workers=2, timeout_s=5.0, memory_mb=128) as pair:
        holder = pair.submit(f"{OPEN}{take}\nprint('held')\ntime.sleep(1.5)")
        time.sleep(0.3)
        asked = [pair.run(f"{OPEN}{notice}\nprint('free')").text for _ in range(3)]
        assert not holder.done() and asked == ["free"] * 3
        assert holder.result().text == "held"


NAMES = """
import os
def tell(action, *arguments):
    try: return action(*arguments)
    except OSError as error: return type(error).__name__
print([pid for pid in (<PARENT>, <VICTIM>) if not isinstance(tell(os.stat, f"/proc/{pid}"), str)])
print(tell(os.readlink, "<OUTSIDE>/link"), tell(os.path.lexists, "<OUTSIDE>/link"))
print([name for name in ("<SECRET>", "<HOME>", "<OUTSIDE>/f0", "/etc/passwd", "/etc/hostname")
       if os.path.lexists(name)])
"""


def test_names_outside_are_not_told(sandbox, outside, level):
    """Not even whether a file exists, where a link leads, or which processes there are."""
    if level != "strong":
        pytest.skip("without namespaces, names are not hidden")
    link = outside.folder / "link"
    link.symlink_to(f"/{BREACH}")
    try:
        found = sandbox.run(outside.fill(NAMES))
    finally:
        link.unlink()
        outside.fill_in()
        outside.before = outside.state()
    assert found.text.splitlines() == ["[]", "FileNotFoundError False", "[]"]


def test_the_targets_would_show_a_breach(sandbox, outside):
    """The checks themselves: a change outside and a canary in the output are both seen."""
    path = outside.folder / "f0"
    path.write_text("changed")
    assert outside.breached() and not outside.breached()
    assert CANARY in path.read_text()
    assert BREACH in shown(sandbox.run(outside.fill("print(<WORD>)")))
