"""Probe the isolation of this machine, and start the Python processes of the sandbox.

`probe()` ignores version numbers: `trials.py` applies each layer in a separate process. The level
"strong" needs every layer, "standard" all but namespaces; "weak" is a separate process with
resource limits.
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
LEFT_OPEN = {  # details are in SECURITY.md
    "none": "everything",
    "weak": "this user's files, processes and network",
    "standard": "names, sizes and links of files (stat, readlink), process numbers; timing",
    "strong": "side channels through the load on the machine",
}
HEAVY = (*PACKAGES, "decimal", "fractions", "statistics")
# Executed once in each template; any other module is imported again in every call. The light
# template forks four times as fast; the heavy one serves code that names one of HEAVY.
WARM_UP_LIGHT = """
import bisect, collections, datetime, functools, heapq, itertools, json, math, operator, random, re
import dataclasses, string, textwrap, time
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
# Python without the caller's configuration. -I would ignore PYTHONHASHSEED, so the order of printed
# sets would differ between runs. With a clean environment, -P -s -S isolate as well, and -S ignores
# .pth files (an editable install of this library).
PYTHON = (sys.executable, "-P", "-s", "-S", "-B")
START_SECONDS = 180.0  # importing sympy on a busy machine
FOLDER_PREFIX = "drlib-sandbox-"  # of the names of work folders
REMEDY = (
    "Run on Linux 6.2 or newer with Landlock enabled and a container profile that passes the "
    "landlock_*, seccomp and (as root) unshare calls; on macOS or Windows use Docker or Lima. "
    '`drlib sandbox probe` shows what is missing. Sandbox(min_level="weak") runs code '
    "behind resource limits alone: it can then read your files and use your network."
)


class SandboxUnavailable(RuntimeError):
    """This machine lacks a required layer; the message names the layer and the remedy."""


@dataclass(frozen=True)
class Layer:
    """Result of one layer's trial."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True)
class Probe:
    """Layers of this machine; `drop` is the method of dropping root (see trials.py)."""

    layers: tuple[Layer, ...]
    drop: str

    @property
    def level(self) -> str:
        """Level: "strong" (all layers), "standard" (no namespaces), "weak" (limits) or "none"."""
        missing = {layer.name for layer in self.layers if not layer.ok}
        if "limits" in missing:
            return "none"
        if missing - {"namespaces"}:
            return "weak"
        return "standard" if missing else "strong"

    def need(self, level: str) -> None:
        """Raise `SandboxUnavailable` if the isolation is below `level`."""
        if LEVELS.index(self.level) < LEVELS.index(level):
            summary = f"Isolation is {self.level!r}, below the required {level!r}."
            raise SandboxUnavailable(f"{summary}\n{self.table()}\n{REMEDY}")

    def without(self, *names: str) -> Probe:
        """Return a copy without these layers, for tests and comparisons."""
        disabled = {name: Layer(name, False, "left out") for name in names}
        rows = [disabled.get(layer.name, layer) for layer in self.layers]
        return Probe(tuple(rows), self.drop)

    def table(self) -> str:
        """Format the result: one row per layer, then what the level leaves open."""
        rows = [
            f"  {layer.name:<18} {'yes' if layer.ok else 'NO':<4} {layer.detail}"
            for layer in self.layers
        ]
        left_open = f"  left open: {LEFT_OPEN[self.level]}"
        return "\n".join([f"isolation: {self.level}", *rows, left_open])


@functools.lru_cache(maxsize=1)
def probe() -> Probe:
    """Test every layer in a separate process (about 0.1 s, cached).

    Raises:
        SandboxUnavailable: the trials themselves failed.
    """
    if os.name != "posix":
        return Probe((Layer("limits", False, f"no fork and no limits on {sys.platform}"),), "none")
    done = subprocess.run(
        launch_command("trials", [package_roots(), scratch()]),
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
    )
    if done.returncode:
        raise SandboxUnavailable(f"The probe failed:\n{done.stderr[-2000:]}\n{REMEDY}")
    found = json.loads(done.stdout)
    layers = [Layer(name, ok, detail) for name, (ok, detail) in found["layers"].items()]
    return Probe(tuple(layers), found["drop"])


def launch_command(module: str, argument: object) -> list[str]:
    """Return the command that runs one module of this package through `launcher.py`."""
    launcher = str(Path(__file__).with_name("launcher.py"))
    return [*PYTHON, launcher, module, json.dumps(argument)]


def clean_environment() -> dict[str, str]:
    """Return the template's environment: no secrets, no proxy, one numeric thread."""
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
    """Return the parent of work folders: in memory if possible, else the temporary folder.

    In memory, hostile trees are quick to remove.
    """
    shared = "/dev/shm"
    return shared if os.access(shared, os.W_OK | os.X_OK) else tempfile.gettempdir()


def package_roots() -> list[str]:
    """Return the folders of the packages; `SandboxUnavailable` if one is not installed."""
    roots: dict[str, str] = {}  # unique, in order
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.origin:
            raise SandboxUnavailable(f"{name} is missing in this environment: pip install {name}.")
        roots[str(Path(spec.origin).resolve().parent.parent)] = name
    return list(roots)
