"""What each line of defence in `sandbox/sessions.py` gives, seen from outside and one at a time.

The attacks of `test_sandbox_walls.py` meet all of them together, so one that is gone may go
unnoticed there. Here each is looked at by itself, and a copy of the package without it
(`weakened_layers.py`) shows that the look would tell.
"""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from drlib.sandbox import Sandbox
from tests.sandbox_targets import skip_without
from tests.weakened_layers import Weakening, copy_weakened

ROOT = Path(__file__).resolve().parents[1]

# A state that sets itself a timer before it waits, and computes for a while when the wait is cut
# short.
WOKEN = """
import errno, os, signal, sys, time
frame = sys._getframe()
while frame and frame.f_code.co_name != "hold": frame = frame.f_back
if frame:
    layers = frame.f_globals["layers"]
    fork = layers.fork
    signal.signal(signal.SIGALRM, lambda *_: None)
    def waking(before):
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        while True:
            try: return fork(before)
            except OSError as error:
                if error.errno != errno.EINTR: raise
                end = time.process_time() + 0.3
                while time.process_time() < end: pass
    layers.fork = waking
"""

# Prints whether the state after a cell is held, the processor time in seconds that the processes of
# the sandbox take while nobody asks them anything, and what another cell prints from that state.
DRIVER = """
import sys, time
import psutil
sys.path.insert(0, sys.argv[1])
from drlib.sandbox import Sandbox
def spent(sandbox):
    total = 0.0
    for pid in sandbox.template_pids():
        for process in psutil.Process(pid).children(recursive=True):
            total += sum(process.cpu_times()[:2])
    return total
with Sandbox(timeout_s=5.0, min_level="strong") as sandbox, sandbox.session() as start:
    state = start.then(sys.argv[2])
    live, before = state.live, spent(sandbox)
    time.sleep(0.6)
    print(live, round(spent(sandbox) - before, 1), state.run(sys.argv[3]).text)
"""


def run(folder: Path, cell: str, look: str) -> str:
    """What `DRIVER` prints, with the package in `folder`."""
    subprocess.run(["chmod", "-R", "a+rX", str(folder)], check=True)
    command = [sys.executable, "-c", DRIVER, str(folder), cell, look]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=True)
    return done.stdout.strip()


@pytest.fixture(autouse=True)
def strong():
    skip_without("strong")


@pytest.mark.parametrize("only_death_interrupts", [True, False])
def test_no_timer_wakes_a_waiting_state(only_death_interrupts, tmp_path):
    """The signal waits as well; without the kernel's flag it cuts the wait short."""
    flags = "_NEW_LISTENER | _ONLY_DEATH_INTERRUPTS if ask"
    kept = flags if only_death_interrupts else "_NEW_LISTENER if ask"
    copy_weakened(Weakening("seccomp.py", flags, kept, ""), tmp_path)
    live, seconds, text = run(tmp_path, WOKEN, "print(1)").split()
    assert (live, text) == ("True", "1")
    assert (float(seconds) < 0.1) == only_death_interrupts


def numbers_of(process: psutil.Process) -> list[str]:
    """Its process ids, from the outermost PID namespace inwards."""
    lines = Path(f"/proc/{process.pid}/status").read_text().split("\n")
    return next(line.split()[1:] for line in lines if line.startswith("NSpid:"))


def is_keeper(process: psutil.Process) -> bool:
    """Whether it is process 1 of a PID namespace that its children live in."""
    numbers, children = numbers_of(process), process.children()
    return numbers[-1] == "1" and len(numbers) in {len(numbers_of(child)) for child in children}


def keeper_of(sandbox: Sandbox) -> psutil.Process:
    """The keeper of the one session that is open."""
    template = psutil.Process(max(sandbox.template_pids()))
    (keeper,) = filter(is_keeper, template.children(recursive=True))
    return keeper


def test_the_keeper_has_two_powers_and_what_it_gives_on():
    with Sandbox(timeout_s=5.0) as sandbox, sandbox.session() as start:
        assert start.then("x = 1").live
        status = Path(f"/proc/{keeper_of(sandbox).pid}/status").read_text()
    powers = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff"))
    kill, setgid, setuid, chroot, ptrace = (1 << number for number in (5, 6, 7, 18, 19))
    assert int(powers, 16) == kill | setgid | setuid | chroot | ptrace


# Put behind the keeper's locking itself in: it tries to read, make and mount, and ends if it can.
TRIES = """        self._lock_in()
        for action in (
            lambda: open(SECRET).read(),
            lambda: os.mkdir(SECRET + "-made"),
            lambda: layers.unshare(layers.NEW_MOUNTS),
        ):
            try:
                action()
            except OSError:
                continue
            raise SessionLost("it could")
"""


@pytest.mark.parametrize("locked", [True, False])
def test_the_keeper_reads_and_makes_no_file(locked, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0o666)
    tmp_path.chmod(0o777)
    tries = TRIES.replace("SECRET", repr(str(secret)))
    also = () if locked else (("sessions.py", "*layers.landlock_restrict(ruleset),", ""),)
    weakening = Weakening("sessions.py", "        self._lock_in()\n", tries, "", also=also)
    copy_weakened(weakening, tmp_path / "copy")
    live, _, text = run(tmp_path / "copy", "x = 1", "print(x)").split()
    assert (live, text) == (str(locked), "1")
