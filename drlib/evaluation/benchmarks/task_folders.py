"""Folders of tasks that are verified by running tests: one folder per task, with a settings file.

The tasks are loaded and checked; `drlib.evaluation.environment_items` runs those of Harbor. A
folder without the settings file, and a link that leaves its task's folder, are errors; files beside
the task folders and hidden folders are ignored.
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from drlib.evaluation.benchmarks.benchmark import BenchmarkError, BenchmarkItem, Row


def iter_tasks(folder: Path, settings: str, parse: Callable[[str], Any]) -> Iterator[Row]:
    """Yield the settings of each task folder, by name.

    Args:
        settings: name of the settings file.
        parse: its parser.

    Raises:
        BenchmarkError: the folder has no task folders, or a task lacks a readable settings file.
    """
    if not folder.is_dir():
        raise BenchmarkError(f"{folder} is no folder: name the folder that contains the tasks")
    tasks = [
        path
        for path in folder.iterdir()
        if (path.is_dir() or path.is_symlink()) and not path.name.startswith(".")
    ]
    for task in sorted(tasks):
        _check_links(task)
        text = read_file(task, settings)
        try:
            data = parse(text)
        except Exception as error:  # parsers of YAML raise many kinds
            problem = " ".join(str(error).split())
            raise BenchmarkError(f"{task.name}/{settings} cannot be read: {problem}") from error
        if not isinstance(data, dict):
            raise BenchmarkError(f"{task.name}/{settings} has no settings by name")
        yield Row(task / settings, 0, {str(name).lower(): value for name, value in data.items()})
    if not tasks:
        raise BenchmarkError(f"{folder} contains no folders of tasks")


def _check_links(task: Path) -> None:
    """Raise BenchmarkError if a link below a task's folder, or the folder itself, leaves it."""
    if task.is_symlink():
        raise BenchmarkError(f"{task.name} is a symbolic link: copy the folder of the task")
    inside = task.resolve()
    for root, folders, files in os.walk(task):
        for path in (Path(root, name) for name in (*folders, *files)):
            if not path.is_symlink():
                continue
            try:
                leaves = not path.resolve().is_relative_to(inside)
            except (OSError, RuntimeError):  # a loop of links
                leaves = True
            if leaves:
                name = path.relative_to(task).as_posix()
                raise BenchmarkError(f"{task.name}/{name} is a link that leaves the task's folder")


def read_file(task: Path, *names: str) -> str:
    """Return the text of the first of the files that a task has.

    Raises:
        BenchmarkError: it has none, or its text is empty or not UTF-8.
    """
    found = [task / name for name in names if (task / name).is_file()]
    if not found:
        raise BenchmarkError(f"{task.name}: {' or '.join(names)} is missing")
    where = f"{task.name}/{found[0].relative_to(task).as_posix()}"
    try:
        text = found[0].read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BenchmarkError(f"{where} cannot be read: {error}") from None
    if not text.strip():
        raise BenchmarkError(f"{where} is empty")
    return text


def build_item(
    row: Row, instruction: str, kinds: Mapping[str, str], texts: list[str]
) -> BenchmarkItem:
    """Return the item of a task: its settings, and "folder", are in `meta`.

    A task with a canary in one of its files is protected.

    Args:
        kinds: settings ("verifier.timeout_sec": in the table verifier) -> kind of value, a key of
            `_KINDS`. Settings that the file lacks are left out.
        texts: contents of the task's files.

    Raises:
        BenchmarkError: a setting has another kind of value.
    """
    task = row.path.parent
    meta: dict[str, Any] = {"folder": str(task)}
    for name, kind in kinds.items():
        value: Any = row.fields
        for part in name.split("."):
            if not isinstance(value, dict):
                raise row.fail(name, "cannot be found: it belongs to a table")
            value = value.get(part)
            if value is None:
                break
        if value is None:
            continue
        if not _KINDS[kind](value):
            raise row.fail(name, f"is no {kind}")
        meta[name] = value
    texts = [read_file(task, row.path.name), *texts]
    is_protected = any("canary" in text.lower() for text in texts)
    return BenchmarkItem(task.name, instruction, (), meta, protected=is_protected)


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value >= 0


_KINDS: dict[str, Callable[[Any], bool]] = {
    "positive number": lambda value: _is_number(value) and value > 0,
    "number from 0": _is_number,
    "text": lambda value: isinstance(value, str) and bool(value.strip()),
    "truth value": lambda value: isinstance(value, bool),
    "list of texts": lambda value: (
        isinstance(value, list) and all(isinstance(one, str) for one in value)
    ),
    "table of texts": lambda value: (
        isinstance(value, dict) and all(isinstance(one, str) for one in value.values())
    ),
}
