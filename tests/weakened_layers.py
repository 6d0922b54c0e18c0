"""Weakened copies of the sandbox, on which attacks must succeed: negative controls.

`WEAKENINGS` lists textual changes of one file each. `run_attack` copies the package, applies one
change (the old text must occur exactly once) and attacks the copy in a separate process. An attack
is "KIND: NAME": a "call" of `sandbox_targets.CASES` or a "hoard" of `hoarding_cases.py`.
`python weakened_layers.py PACKAGE_FOLDER KIND:NAME LEVEL ROUNDS` prints {"won": ..., "rounds": ...,
"how": ...}.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = int(os.environ.get("DRLIB_RACE_ROUNDS", "200"))
SECONDS = 900.0  # for all rounds of one attack


@dataclass(frozen=True)
class Weakening:
    """Replace `old` by `new` in `file` of drlib/sandbox, so that `attack` succeeds at `level`."""

    file: str
    old: str
    new: str
    attack: str
    level: str = "strong"
    also: tuple[tuple[str, str, str], ...] = ()  # (file, old, new) of other layers


WEAKENINGS = {
    "Landlock": Weakening(
        "worker_process.py",
        "restrict = layers.landlock_restrict(ruleset)",
        "restrict = []",
        "call: read a file",
        "standard",
    ),
    "no anonymous memory that is shared": Weakening(
        "seccomp.py",
        "(9, 222): [_when(3, 0x0, 0x1, 0x20, mask=0x21)],",
        "(9, 222): [_when(3, 0x0, 0x1, 0x20, 0x21, mask=0x21)],",
        "hoard: shared memory of which a page stays mapped",
    ),
    "no huge pages": Weakening(
        "worker_process.py",
        "layers.take(layers.NO_HUGE_PAGES)",
        "",
        "hoard: huge pages of which a small one stays mapped",
        also=(("seccomp.py", "(28, 233): [_when(2, 0, 1,", "(28, 233): [_when(2, 14, 0, 1,"),),
    ),
    "locks that do nothing": Weakening(
        "seccomp.py",
        "yield _FCNTL, _if_argument(1, _SET_LOCK, _RET_DONE)",
        "yield _FCNTL, _if_argument(1, _SET_LOCK, _RET_ALLOW)",
        "hoard: record locks",
    ),
    "one table of descriptors": Weakening(
        "seccomp.py",
        "(436, 436): [_when(2, 0, 4)],",
        "(436, 436): [_when(2, 0, 2, 4)],",
        "hoard: socket pairs in tables of their own",
    ),
    "no splice": Weakening(
        "syscalls.txt",
        "sendfile:40:71",
        "sendfile:40:71 splice:275:76",
        "hoard: pages of shortened files in sockets",
    ),
    "files without a name are counted": Weakening(
        "file_usage.py",
        "budget = WORK_BYTES - nameless_bytes(pid, folder)",
        "budget = WORK_BYTES",
        "hoard: deleted files, mapped",
        "standard",
    ),
}


def copy_weakened(weakening: Weakening, folder: Path) -> None:
    """Copy the package into `folder` with this weakening applied."""
    source = ROOT / "drlib"
    copy = folder / "drlib"
    shutil.copytree(
        source / "sandbox", copy / "sandbox", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy(source / "__init__.py", copy)
    for name, old, new in ((weakening.file, weakening.old, weakening.new), *weakening.also):
        path = copy / "sandbox" / name
        text = path.read_text()
        count = text.count(old)
        if count != 1:
            raise AssertionError(f"{name} has this {count} times, not once:\n{old}")
        path.write_text(text.replace(old, new))


def run_attack(weakening: Weakening, rounds: int = ROUNDS) -> dict:
    """Attack the weakened copy; return the number of successes, stopping at the first."""
    with tempfile.TemporaryDirectory() as folder:
        copy_weakened(weakening, Path(folder))
        # A process without root's rights must be able to read the copy.
        subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
        command = [sys.executable, __file__, folder, weakening.attack, weakening.level, str(rounds)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, cwd=folder, check=False
        )
        if done.returncode:
            raise AssertionError(f"The attack could not be run:\n{done.stderr[-3000:]}")
        return json.loads(done.stdout.splitlines()[-1])


# --- attack process -----------------------------------------------------------------------------


def call_rounds(name: str, level: str, rounds: int):
    """Yield, for each round of a single call, its breaches."""
    from tests.sandbox_targets import BREACH, CANARY, CASES, Places, sandbox_at, shown

    with ExitStack() as stack:
        places = Places(stack)
        sandbox = stack.enter_context(sandbox_at(level, timeout_s=8.0, memory_mb=256))
        for _ in range(rounds):
            case = CASES[name]
            result = sandbox.run(places.fill(case.code), case.stdin, case.history)
            yield [word for word in (CANARY, BREACH) if word in shown(result)]


def hoard_rounds(name: str, level: str, rounds: int):
    """Yield, for each round, a message if the memory exceeds the limit."""
    from tests import test_sandbox_bounds as bounds

    bounds.SECONDS = 20.0  # a slow machine needs this long for a million locks
    bounds.CAP_MB = 320  # the limit of a call is 224, so this exceeds it
    with bounds.sandbox_for(level) as sandbox:
        sandbox.run("print(1)")
        for _ in range(rounds):
            found = bounds.held(sandbox, name)
            yield [f"held {found}"] if found["held_mb"] > bounds.limit(name) else []


KINDS = {"call": call_rounds, "hoard": hoard_rounds}


def main(folder: str, attack: str, level: str, rounds: str) -> None:
    """Attack the package in `folder` until it is breached."""
    sys.path[:0] = [folder, str(ROOT)]
    import drlib.sandbox

    if not Path(drlib.sandbox.__file__).is_relative_to(folder):
        raise RuntimeError(f"attacked would be {drlib.sandbox.__file__}")
    kind, name = attack.split(": ", 1)
    attempted_rounds = 0
    for found in KINDS[kind](name, level, int(rounds)):
        attempted_rounds += 1
        if found:
            print(json.dumps({"won": 1, "rounds": attempted_rounds, "how": str(found[0])[:300]}))
            return
    print(json.dumps({"won": 0, "rounds": attempted_rounds, "how": ""}))


if __name__ == "__main__":
    main(*sys.argv[1:])
