"""Atomic file writes, and reading and writing of JSON lines.

A file is written beside its final name and renamed when complete. A reader never sees a partial
file, and a full disk leaves the previous contents.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class WriteError(OSError):
    """A file could not be written; the message names it."""


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, renamed to `path` at the end of the block.

    After an error neither a new nor a temporary file remains.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a new temporary folder beside `path`, renamed to `path` at the end of the block.

    After an error neither a new nor a temporary folder remains. `path` must not exist, or be empty.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
        yield partial
        partial.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_atomic(path: str | Path, content: str | bytes | Callable[[Path], object]) -> Path:
    """Write `content` to `path` atomically and return the path; create its folder.

    Args:
        path: final name.
        content: text (UTF-8), bytes, or a function that writes to the temporary path it receives.

    Raises:
        WriteError: the file could not be written; the previous contents are kept.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as partial:
            if callable(content):
                content(partial)
            else:
                partial.write_bytes(content.encode() if isinstance(content, str) else content)
    except (OSError, RuntimeError) as fault:  # torch.save reports a full disk as RuntimeError
        raise WriteError(f"could not write {path}: {fault}; is the disk full?") from fault
    return path


def write_json_lines(path: str | Path, rows: Iterable[Any]) -> Path:
    """Write each row as one line of JSON (UTF-8), atomically; return the path.

    Raises:
        WriteError: the file could not be written; the previous contents are kept.
    """
    return write_atomic(path, "".join(map(_line, rows)))


def append_json_line(path: str | Path, row: Any) -> None:
    """Append one line to a file that is read while it grows, such as a log of steps."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(_line(row))


def _line(row: Any) -> str:
    """Encode a row as a line of JSON.

    A lone surrogate, which occurs in model outputs and file names, is escaped because UTF-8 cannot
    encode it; it is restored when the line is read.
    """
    text = json.dumps(row, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(row)
    return text + "\n"


def iter_json_lines(path: str | Path) -> Iterator[tuple[int, Any]]:
    """Yield (line number from 1, value) of each non-blank line.

    Only a newline ends a line, because texts may contain other Unicode line ends. A byte order mark
    at the start is skipped.

    Raises:
        ValueError: a line is not UTF-8 or not JSON; the message names file and line.
    """
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                if not text.strip():
                    continue
                value = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise ValueError(
                    f"{path}, line {number} is not valid JSON ({error}): is the file truncated?"
                ) from error
            yield number, value


def resume_json_lines(path: str | Path) -> Iterator[tuple[int, Any]]:
    """Iterate over a file to which a run appends, after removing an incomplete last line.

    A missing file gives no lines, and its folder is created. Yields and raises like
    `iter_json_lines`.
    """
    path = Path(path)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        return iter(())
    found = path.read_bytes()
    whole = found[: found.rfind(b"\n") + 1]
    if whole != found:
        write_atomic(path, whole)
    return iter_json_lines(path)


def read_json_lines(path: str | Path) -> list[Any]:
    """Return the values of all non-blank lines.

    Raises:
        ValueError: a line is not JSON; the message names file and line.
    """
    return [value for _, value in iter_json_lines(path)]
