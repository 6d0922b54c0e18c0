"""What this machine can isolate, and how the sandbox's own Python processes are started.

`probe()` believes no version number: `trials.py` uses each layer in a process of its own. The level
"strong" needs every layer, "standard" all but namespaces; "weak" is resource limits and a process
of its own.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from drlib.sandbox.packages import PACKAGES

LEVELS = ("none", "weak", "standard", "strong")
LEFT_OPEN = {  # SECURITY.md says more
    "none": "everything",
    "weak": "this user's files, processes and network",
    "standard": "names, sizes and links of files (stat, readlink), process numbers; timing",
    "strong": "what can be told from the load on the machine",
}
HEAVY = (*PACKAGES, "decimal", "fractions", "statistics")
# Run once in each template: what is not imported here would be imported again in every call. The
# light one forks four times as fast; the heavy one serves code that names one of HEAVY.
WARM_UP_LIGHT = """
import bisect, collections, datetime, functools, heapq, itertools, json, math, operator, random, re
import string, textwrap, time
"""
WARM_UP_HEAVY = (
    WARM_UP_LIGHT
    + """
import decimal, fractions, statistics, numpy.linalg, numpy.random, sympy
x = sympy.Symbol("x")
sympy.solve(x**2 - 2, x), sympy.factor(x**2 - 1), sympy.integrate(x**2, x)
sympy.simplify(sympy.sin(x) ** 2 + sympy.cos(x) ** 2), sympy.limit(sympy.sin(x) / x, x, 0)
sympy.sympify("x + 1"), sympy.Matrix([[1, 2], [3, 4]]).det(), numpy.linalg.det(numpy.eye(2))
"""
)
# Our Python without anything of the caller's set-up. Not -I, which would ignore PYTHONHASHSEED and
# so let the order of printed sets differ between runs; with an environment of our own -P -s -S
# isolate as well, and -S keeps .pth files (an editable install of this library) out.
PYTHON = (sys.executable, "-P", "-s", "-S", "-B")
START_SECONDS = 180.0  # importing sympy on a busy machine
REMEDY = (
    "Run on Linux 6.2 or newer with Landlock enabled and a container profile that passes the "
    "landlock_*, seccomp and (as root) unshare calls; on macOS or Windows use Docker or Lima. "
    '`drlib sandbox probe` shows what is missing. Sandbox(min_level="weak") runs code '
    "behind resource limits alone: it can then read your files and use your network."
)


class SandboxUnavailable(RuntimeError):
    """This machine cannot isolate code as asked for; the text says which layer and the remedy."""


@dataclass(frozen=True)
class Layer:
    """What the trial of one layer found."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True)
class Probe:
    """The layers of this machine; `drop` is how root's powers are lost (see trials.py)."""

    layers: tuple[Layer, ...]
    drop: str

    @property
    def level(self) -> str:
        """ "strong" (every layer), "standard" (all but namespaces), "weak" (limits) or "none"."""
        missing = {layer.name for layer in self.layers if not layer.ok}
        if "limits" in missing:
            return "none"
        if missing - {"namespaces"}:
            return "weak"
        return "standard" if missing else "strong"

    def need(self, level: str) -> None:
        """`SandboxUnavailable` where this is less than `level`."""
        if LEVELS.index(self.level) < LEVELS.index(level):
            words = f"Isolation here is {self.level!r}, asked for is {level!r}."
            raise SandboxUnavailable(f"{words}\n{self.table()}\n{REMEDY}")

    def without(self, *names: str) -> Probe:
        """The same machine as if these layers did not hold; for tests and comparisons."""
        left_out = {name: Layer(name, False, "left out") for name in names}
        rows = [left_out.get(layer.name, layer) for layer in self.layers]
        return Probe(tuple(rows), self.drop)

    def table(self) -> str:
        """The result as text: a line a layer, and what the level leaves open."""
        rows = [
            f"  {layer.name:<18} {'yes' if layer.ok else 'NO':<4} {layer.detail}"
            for layer in self.layers
        ]
        left_open = f"  left open: {LEFT_OPEN[self.level]}"
        return "\n".join([f"isolation: {self.level}", *rows, left_open])


@functools.lru_cache(maxsize=1)
def probe() -> Probe:
    """Try every layer in a process of its own (about 0.1 s, once a process); `SandboxUnavailable`
    where the trials themselves fail."""
    if os.name != "posix":
        return Probe((Layer("limits", False, f"no fork and no limits on {sys.platform}"),), "none")
    done = subprocess.run(
        command_alone("trials", [package_roots(), scratch()]),
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
    )
    if done.returncode:
        raise SandboxUnavailable(f"The probe itself failed:\n{done.stderr[-2000:]}\n{REMEDY}")
    found = json.loads(done.stdout)
    layers = [Layer(name, ok, detail) for name, (ok, detail) in found["layers"].items()]
    return Probe(tuple(layers), found["drop"])


def command_alone(module: str, argument: object) -> list[str]:
    """The command that runs one module of this folder with `argument`, JSON, by `alone.py`."""
    alone = str(Path(__file__).with_name("alone.py"))
    return [*PYTHON, alone, module, json.dumps(argument)]


def clean_environment() -> dict[str, str]:
    """All that the template inherits: no secret, no proxy, one thread for the numeric libraries."""
    names = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
    return {
        "PATH": os.defpath,
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONHASHSEED": "0",
        **threads,
        **kept,
    }


def scratch() -> str:
    """Where work folders are made: in memory where that is possible (hostile trees are then quick
    to remove), else the folder for temporary files."""
    shared = "/dev/shm"
    return shared if os.access(shared, os.W_OK | os.X_OK) else tempfile.gettempdir()


def package_roots() -> list[str]:
    """The folders that hold the packages; `SandboxUnavailable` where one is not installed."""
    roots: dict[str, str] = {}  # each once, in their order
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.origin:
            raise SandboxUnavailable(f"The sandbox offers {name}: pip install {name}.")
        roots[str(Path(spec.origin).resolve().parent.parent)] = name
    return list(roots)
