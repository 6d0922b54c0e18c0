"""Task folders of Harbor and Terminal-Bench 2, run without Docker; and tasks saved in that format.

`harbor:FOLDER` loads every task folder in FOLDER: task.toml, instruction.md,
environment/Dockerfile, tests/test.sh and, for demonstrations, solution/solve.sh. The Dockerfile may
use the steps `DOCKER_STEPS`. The system's own programs take the place of the image. A feature that
is not available (other steps, network, GPU, several containers) raises an error that names it. The
tool is `shell`. Verification runs the tests on the final files in a new file tree and reads
/logs/verifier/reward.txt or reward.json.
"""

import importlib.util
import json
import math
import posixpath
import random
import re
import shlex
import threading
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from drlib.chat.tool_calls import ToolCall
from drlib.environments.environment import Environment, Episode, Observation, Solution
from drlib.environments.workspace import SHELL, Workspace
from drlib.sandbox.programs import Files, is_writable, require_programs, run_program
from drlib.task import Task
from drlib.tools.definitions import Tool
from drlib.validation import require

DOCKER_STEPS = ("FROM", "WORKDIR", "COPY", "RUN", "ENV", "CMD", "LABEL")
IMAGES = re.compile(
    r"(docker\.io/)?(library/)?(python|ubuntu|debian|alpine|bash|busybox)([:@]\S*)?"
)
# Commands of RUN steps, which are executed without a network.
RUN_COMMANDS = frozenset("chmod cp echo ln mkdir mv printf rm sed touch true".split())
USES_PYTEST = r"\bpytest\b"
MISSING = {  # pattern in a test script -> feature
    r"\b(apt|apt-get|apk|curl|wget|git clone|npm|conda|mamba|uvx?|pip3?)\s": "network ({})",
    USES_PYTEST: "the package pytest",
    r"\b(docker|sudo|systemctl)\b": "{}",
}
_TABLES = {
    "environment": (
        "build_timeout_sec docker_image cpus memory_mb storage_mb memory storage gpus "
        "allow_internet env"
    ).split(),
    "agent": ["timeout_sec"],
    "verifier": ["timeout_sec", "env"],
    "solution": ["env"],
}
_DESCRIPTIVE = {"version", "schema_version", "metadata", "source", "task"}
MOST_VERIFIER_S = 60.0
_GRADED = ("tests", "logs", "solution")  # top-level folders that the policy cannot prepare
_REWARD = "/logs/verifier/reward"
PYTEST = "/tests/.pytest"  # folder of pytest during the tests, where this environment has it
PYTEST_PACKAGES = ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments")
LEXERS = ("__init__", "_mapping", "diff", "python")  # of pygments, which has 4 MB of them


class HarborTask(NamedTuple):
    """A task folder.

    Attributes:
        name: of the folder.
        instruction: text for the policy.
        files: state at the start.
        folder: working folder.
        tests: path below tests/ -> content; "test.sh" is run.
        solution: text of solution/solve.sh; "" without one.
        timeout_s: of the tests.
        variables: environment variables of commands and tests (ENV).
    """

    name: str
    instruction: str
    files: Files
    folder: str
    tests: dict[str, bytes]
    solution: str = ""
    timeout_s: float = MOST_VERIFIER_S
    variables: Mapping[str, str] = MappingProxyType({})


class HarborEnvironment(Environment):
    """Tasks of a folder.

    Args:
        arguments: path of the folder that contains the task folders.

    Raises:
        ValueError: it contains no tasks, or one that needs a missing feature.
        SandboxUnavailable: this machine cannot isolate programs.
    """

    def __init__(self, arguments: str):
        require_programs()
        folder = Path(arguments)
        require(bool(arguments) and folder.is_dir(), f"harbor:{arguments}: there is no such folder")
        paths = sorted(path for path in folder.iterdir() if path.is_dir() and path.name[0] != ".")
        require(bool(paths), f"harbor:{arguments}: the folder contains no folders of tasks")
        self.name = f"harbor:{arguments}"
        self.loaded = {path.name: load_harbor(path) for path in paths}
        self._checked: set[str] = set()
        self._lock = threading.Lock()

    def draw(self, rng: random.Random) -> Task:
        """Draw one of the tasks."""
        return self._task(self.loaded[rng.choice(list(self.loaded))])

    def tools(self, task: Task) -> Sequence[Tool]:
        """Return shell."""
        return (SHELL,)

    def reset(self, task: Task) -> Episode:
        """Create the files; the first time, also run the tests on them.

        Raises:
            ValueError: the tests write no reward.
        """
        loaded = self._loaded(task)
        with self._lock:
            if loaded.name not in self._checked:
                reward = _run_tests(loaded, loaded.files)
                require(reward is not None, f"{loaded.name}: tests/test.sh writes no reward")
                self._checked.add(loaded.name)
        return _Folder(loaded)

    def solve(self, task: Task) -> Solution:
        """Run solution/solve.sh as one command."""
        loaded = self._loaded(task)
        require(bool(loaded.solution), f"{loaded.name} has no solution/solve.sh")
        yield "Run the solution.", ToolCall("shell", {"command": loaded.solution})
        return "All is done.", "done"

    def all_tasks(self) -> list[Task]:
        """Return every task of the folder once, by name."""
        return [self._task(loaded) for loaded in self.loaded.values()]

    def _task(self, loaded: HarborTask) -> Task:
        name = f"harbor-{loaded.name}"
        data = json.dumps({"task": loaded.name})
        return Task(name, loaded.instruction, "done", self.name, self.name, environment=data)

    def _loaded(self, task: Task) -> HarborTask:
        name = json.loads(task.environment)["task"]
        require(name in self.loaded, f"{self.name} has no task {name}")
        return self.loaded[name]


class _Folder(Episode):
    """A copy of a task's files."""

    def __init__(self, loaded: HarborTask):
        self.loaded = loaded
        self.workspace = Workspace(dict(loaded.files), loaded.folder, loaded.variables)

    def call(self, name: str, arguments: Mapping[str, Any]) -> Observation:
        if name == SHELL.name:
            return self.workspace.run(arguments["command"])
        return super().call(name, arguments)

    def verify(self, answer: str | None) -> float:
        """Return the reward of the tests; 0 if they fail to write one or end with an error.

        `reset` has checked that they write one for the initial files.
        """
        if answer is None:
            return 0.0
        return _run_tests(self.loaded, self.workspace.files) or 0.0


def _run_tests(loaded: HarborTask, files: Files) -> float | None:
    """Return the reward in [0, 1] that the tests write, or None."""
    state = {path: entry for path, entry in files.items() if path.split("/")[1] not in _GRADED}
    for path in ("/tests", "/logs", "/logs/verifier"):
        state[path] = (0o755, None)
    for name, content in loaded.tests.items():
        _add_file(state, f"/tests/{name}", content)
    shell = (
        "bash"
        if loaded.tests["test.sh"].startswith((b"#!/bin/bash", b"#!/usr/bin/env bash"))
        else "sh"
    )
    seconds = loaded.timeout_s
    command = f"{shell} /tests/test.sh"
    if b"pytest" in loaded.tests["test.sh"]:
        for path, (mode, content) in (_pytest_files() or {}).items():
            _add_file(state, path, content, mode)
        command = f"PATH={PYTEST}/bin:$PATH PYTHONPATH={PYTEST} {command}"
    done = run_program(
        command,
        state,
        loaded.folder,
        timeout_s=seconds,
        cpu_s=math.ceil(seconds),
        variables=loaded.variables,
    )
    text = done.files.get(f"{_REWARD}.txt", (0, None))[1]
    table = done.files.get(f"{_REWARD}.json", (0, None))[1]
    try:
        if isinstance(text, bytes):
            reward = float(text)
        elif isinstance(table, bytes):
            reward = float(json.loads(table)["reward"])
        else:
            return None
    except (ValueError, KeyError, TypeError):
        return None
    if not 0 <= reward <= 1:
        return None
    return reward if done.status == "ok" else 0.0  # an interrupted test run proves nothing


@cache
def _pytest_files() -> dict[str, tuple[int, bytes]] | None:
    """Return the files of this environment's pytest below `PYTEST`; None if it is not installed."""
    # -P: a file of the policy in the working folder does not replace pytest
    script = b'#!/bin/sh\nexec python3 -P -m pytest "$@"\n'
    found = {f"{PYTEST}/bin/pytest": (0o755, script)}
    for package in PYTEST_PACKAGES:
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.origin:
            return None
        origin = Path(spec.origin)
        is_package = origin.name == "__init__.py"
        for path in origin.parent.rglob("*.py") if is_package else [origin]:
            if path.parent.name == "lexers" and path.stem not in LEXERS:
                continue
            below = path.relative_to(origin.parents[is_package]).as_posix()
            found[f"{PYTEST}/{below}"] = (0o644, path.read_bytes())
    return found


# ---------------------------------------------------------------- loading


def load_harbor(path: Path) -> HarborTask:
    """Read one task folder.

    Raises:
        ValueError: a file is missing, or the task needs a feature that is named.
    """

    def need(feature: str) -> ValueError:
        return ValueError(f"{path.name} needs {feature}, which drlib cannot provide without Docker")

    if (path / "task.yaml").is_file():
        raise need("the format of Terminal-Bench 1 (run-tests.sh with pytest)")
    for name in ("task.toml", "instruction.md", "tests/test.sh"):
        require((path / name).is_file(), f"{path.name}: {name} is missing")
    settings = tomllib.loads((path / "task.toml").read_text(encoding="utf-8"))
    _check_settings(settings, need)
    if (path / "environment" / "docker-compose.yaml").exists():
        raise need("several containers (docker-compose.yaml)")
    dockerfile = path / "environment" / "Dockerfile"
    if not dockerfile.is_file():
        raise need("an image without a Dockerfile")
    tests = _read_tree(path / "tests", need)
    script = tests["test.sh"].decode("utf-8", "replace")
    code = "\n".join(line for line in script.splitlines() if not line.lstrip().startswith("#"))
    for pattern, feature in MISSING.items():
        has_it = pattern == USES_PYTEST and _pytest_files() is not None
        if (found := re.search(pattern, code)) and not has_it:
            raise need(feature.format(found[1] if found.groups() else ""))
    files, folder, variables = _build(dockerfile, need)
    solve = path / "solution" / "solve.sh"
    seconds = settings.get("verifier", {}).get("timeout_sec", MOST_VERIFIER_S)
    return HarborTask(
        path.name,
        (path / "instruction.md").read_text(encoding="utf-8").strip(),
        files,
        folder,
        tests,
        solve.read_text(encoding="utf-8") if solve.is_file() else "",
        min(float(seconds), MOST_VERIFIER_S),
        variables,
    )


def _check_settings(settings: dict, need) -> None:
    """Raise the error of `need` for settings that this environment cannot provide."""
    for table, values in settings.items():
        if table in _DESCRIPTIVE:
            continue
        if table not in _TABLES or not isinstance(values, dict):
            raise need(f"the setting {table}")
        for name, value in values.items():
            if name not in _TABLES[table] or (name == "env" and value):
                raise need(f"the setting {table}.{name}")
    environment = settings.get("environment", {})
    if environment.get("gpus"):
        raise need("a GPU")
    if environment.get("allow_internet"):
        raise need("network (environment.allow_internet)")


def _read_tree(folder: Path, need) -> dict[str, bytes]:
    """Return path below `folder` -> content of all files."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            raise need("symbolic links in the task's folder")
        if path.is_file():
            found[path.relative_to(folder).as_posix()] = path.read_bytes()
    return found


def _add_file(files: Files, path: str, content: bytes, mode: int = 0o644) -> None:
    """Add a file with its parent folders."""
    _add_folder(files, posixpath.dirname(path))
    files[path] = (mode, content)


def _add_folder(files: Files, path: str) -> None:
    while path != "/" and path not in files:
        files[path] = (0o755, None)
        path = posixpath.dirname(path)


def _build(dockerfile: Path, need) -> tuple[Files, str, dict[str, str]]:
    """Follow the steps of a Dockerfile; return files, working folder and variables."""
    files: Files = {}
    variables: dict[str, str] = {}
    folder = ""
    for line in _steps(dockerfile.read_text(encoding="utf-8")):
        step, _, rest = line.partition(" ")
        step, rest = step.upper(), rest.strip()
        if step not in DOCKER_STEPS or "<<" in rest:
            raise need(f"the Dockerfile step {line!r}")
        if step == "FROM" and not IMAGES.fullmatch(rest):
            raise need(f"the image {rest!r}")
        if step == "WORKDIR":
            folder = posixpath.normpath(posixpath.join(folder or "/", rest))
            if not folder.startswith("/") or not is_writable(folder):
                raise need(f"the working folder {folder}")
            _add_folder(files, folder)
        if step == "ENV":
            variables |= _variables(rest, need)
        if step == "COPY":
            _copy(files, folder or "/", dockerfile.parent, rest, need)
        if step == "RUN":
            if not _command_names(rest) <= RUN_COMMANDS:
                raise need(f"the Dockerfile step {line!r}")
            done = run_program(rest, files, folder or "/", variables=variables)
            require(
                done.status == "ok",
                f"{dockerfile.parent.parent.name}: {line!r} failed: {done.output}",
            )
            files = done.files
    if not folder:
        raise need("a Dockerfile with the step WORKDIR")
    return files, folder, variables


def _variables(rest: str, need) -> dict[str, str]:
    """Parse an ENV step: NAME=VALUE NAME="VALUE", or NAME VALUE."""
    name, _, value = rest.partition(" ")
    words = shlex.split(rest) if "=" in name else [f"{name}={value.strip()}"]
    if "$" in rest or not all(re.match(r"[A-Za-z_]\w*=", word) for word in words):
        raise need(f"the Dockerfile step 'ENV {rest}'")
    return dict(word.split("=", 1) for word in words)


def _steps(text: str) -> list[str]:
    """Return the steps of a Dockerfile, with continued lines joined and comments removed."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\[ \t]*\n", " ", "\n".join(lines))
    return [line.strip() for line in joined.splitlines() if line.strip()]


def _command_names(text: str) -> set[str]:
    """Return the names of the commands in a shell line; {""} if they cannot be known."""
    if re.search(r"[`$]", text):
        return {""}
    words = shlex.shlex(text, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    names = set()
    is_start = True
    try:
        for word in words:
            is_operator = not word.strip("();<>|&")
            if is_start and not is_operator:
                names.add(word)
            is_start = is_operator and "<" not in word and ">" not in word
    except ValueError:  # an open quotation mark
        return {""}
    return names


def _copy(files: Files, folder: str, context: Path, rest: str, need) -> None:
    """Apply a COPY step: files, and the contents of folders."""
    words = json.loads(rest) if rest.startswith("[") else shlex.split(rest)
    *sources, target = words
    if not sources or any(word.startswith("--") or re.search(r"[*?$]", word) for word in words):
        raise need(f"the Dockerfile step 'COPY {rest}'")
    place = posixpath.normpath(posixpath.join(folder, target))
    if not is_writable(place):
        raise need(f"files in the folder {place}")
    for source in sources:
        path = context / source
        if not path.resolve().is_relative_to(context.resolve()) or not path.exists():
            raise need(f"the file {source} outside of its environment folder")
        if path.is_dir():
            _add_folder(files, place)
            for name, content in _read_tree(path, need).items():
                mode = 0o755 if (path / name).stat().st_mode & 0o100 else 0o644
                _add_file(files, f"{place}/{name}", content, mode)
            continue
        into = (
            target.endswith(("/", ".")) or len(sources) > 1 or files.get(place, (0, b""))[1] is None
        )
        mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
        _add_file(files, f"{place}/{path.name}" if into else place, path.read_bytes(), mode)


# ---------------------------------------------------------------- saving

_SETTINGS = """version = "1.0"

[metadata]
category = "drlib"

[agent]
timeout_sec = 600.0

[verifier]
timeout_sec = {timeout_s}

[environment]
cpus = 1
memory_mb = 1024
allow_internet = false
"""


def save_harbor(folder: str | Path, tasks: Iterable[HarborTask]) -> None:
    """Write task folders that `harbor:FOLDER` and Harbor can run.

    Args:
        tasks: as returned by `export` of an environment or by `load_harbor`.
    """
    for task in tasks:
        path = Path(folder) / task.name
        (path / "environment" / "files").mkdir(parents=True)
        steps = ["FROM python:3.11-slim", f"WORKDIR {task.folder}"]
        steps += [f"ENV {shlex.quote(f'{k}={v}')}" for k, v in task.variables.items()]
        for place, (mode, content) in sorted(task.files.items()):
            below = place.lstrip("/")
            file = path / "environment" / "files" / below
            if isinstance(content, str):
                steps.append(f"RUN ln -s {shlex.quote(content)} {shlex.quote(place)}")
            elif content is None:
                steps.append(f"RUN mkdir -p {shlex.quote(place)}")
            else:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
                words = json.dumps([f"files/{below}", place])
                steps.append(f"COPY {words}")
            if mode != (0o755 if content is None else 0o644) and not isinstance(content, str):
                steps.append(f"RUN chmod {mode:o} {shlex.quote(place)}")
        texts = {
            "task.toml": _SETTINGS.format(timeout_s=task.timeout_s),
            "instruction.md": task.instruction + "\n",
            "environment/Dockerfile": "\n".join(steps) + "\n",
        }
        if task.solution:
            texts["solution/solve.sh"] = task.solution
        contents = {name: text.encode() for name, text in texts.items()}
        contents |= {f"tests/{name}": content for name, content in task.tests.items()}
        for name, content in contents.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(content)
