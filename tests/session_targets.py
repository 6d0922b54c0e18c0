"""What attacks on sessions aim at, and one round of such an attack: what it breached, if anything.

A folder of the user with many files, beside the targets of `sandbox_targets.py`; a sibling branch
that has a secret and an answer of its own.
"""

import hashlib
import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.sandbox_targets import BREACH, CANARY, Places, shown
from tests.session_attacks import REACH, Attack

FILES = 40
SIBLING = "sibling-4c1e77"  # only a sibling's code and input have it
PREFIX = "x = 41"
HONEST = f"import time\ntime.sleep(0.004)\nprint('own', x + 1, len(input()))  # {SIBLING}"
ANSWER = f"own 42 {len(SIBLING)}\n"


class Outside:
    """A tree that no code may see or change, and all else that `Places` plants."""

    def __init__(self, stack: ExitStack) -> None:
        self.places = Places(stack)
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self.fill_in()
        self.before = self.state()

    def fill_in(self) -> None:
        """The tree as it should be; file modes let everybody in."""
        (self.folder / "sub").mkdir(exist_ok=True)
        for number in range(FILES):
            path = self.folder / ("sub" if number % 4 == 3 else "") / f"f{number}"
            path.write_text(f"{CANARY} {number}")
            path.chmod(0o666)
            os.utime(path, (1e9, 1e9))
        for path in (self.folder / "sub", self.folder):
            path.chmod(0o777)
            os.utime(path, (1e9, 1e9))

    def state(self) -> str:
        """A number for all names, contents, modes and times in the tree."""
        found = hashlib.sha256()
        for path in (self.folder, *sorted(self.folder.rglob("*"))):
            status = path.lstat()
            text = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
            row = (path.name, status.st_mode, status.st_mtime_ns, status.st_nlink, text)
            found.update(repr(row).encode())
        return found.hexdigest()

    def breached(self) -> bool:
        """Whether something changed since the last look; the tree is then made anew."""
        changed = self.state() != self.before
        if changed:
            self.fill_in()
            self.before = self.state()
        return changed

    def fill(self, code: str) -> str:
        """The program with the names of the targets in the places kept for them."""
        half = len(BREACH) // 2  # an expression, so that no traceback shows the word
        for name, value in (
            ("OUTSIDE", self.folder),
            ("SIBLING", SIBLING),
            ("WORD", f"(b'{BREACH[:half]}' + b'{BREACH[half:]}')"),
        ):
            code = code.replace(f"<{name}>", str(value))
        return self.places.fill(code)


def attempt(sandbox, prefix, outside: Outside, attack: Attack) -> list[str]:
    """One round: the attack's cell, an honest sibling, the attack's looks; what was breached."""
    found = []
    evil = prefix.then(outside.fill(attack.cell))
    results = [evil.result]
    for place, look in enumerate(map(outside.fill, attack.looks)):
        time.sleep(attack.wait_s)
        sibling = prefix.run(HONEST, stdin=SIBLING)
        if (sibling.status, sibling.stdout, sibling.stderr) != ("ok", ANSWER, ""):
            found.append(f"a sibling was forged: {sibling}")
        results.append(evil.run(look))
        if attack.same and attack.looks[place] is not REACH:
            replayed = sandbox.run(look, history=evil.history)
            if (replayed.status, replayed.text) != (results[-1].status, results[-1].text):
                found.append(f"the answer should be {replayed}, and is {results[-1]}")
    evil.close()
    for result in results:
        found += [
            f"{word} was seen: {result}"
            for word in (CANARY, BREACH, SIBLING)
            if word in shown(result)
        ]
        if result.env_fault:
            found.append(f"the environment was blamed: {result}")
    if outside.breached():
        found.append("the tree outside was changed")
    return found


@contextmanager
def busy(count: int = 2) -> Iterator[None]:
    """Every core computes meanwhile, so that races are run with other turns."""
    code = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(9999))"
    running = [subprocess.Popen([sys.executable, "-S", "-c", code]) for _ in range(count)]
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()
