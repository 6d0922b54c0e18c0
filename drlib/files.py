"""The one writer of whole files or none, and the one writer and reader of JSON lines.

A file is written beside its name and renamed when it is complete, so that nobody ever reads half of
one, and a full disk leaves what was there before.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class WriteError(OSError):
    """A file could not be written; the message names it."""


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to: it becomes `path` when the block ends, and an error leaves
    neither."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_whole(path: str | Path, content: str | bytes | Callable[[Path], object]) -> Path:
    """Write `content` to `path`, all of it or nothing, and return the path; its folder is made.

    content: text (UTF-8), bytes, or a function that writes to the temporary path it is given.

    Raises:
        WriteError: it could not be written; nothing was kept of this attempt.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as partial:
            if callable(content):
                content(partial)
            else:
                partial.write_bytes(content.encode() if isinstance(content, str) else content)
    except (OSError, RuntimeError) as fault:  # torch.save reports a full disk as RuntimeError
        raise WriteError(f"could not write {path}: {fault}; is the disk full?") from fault
    return path


def write_json_lines(path: str | Path, rows: Iterable[Any]) -> Path:
    """Write each row as one line of JSON (UTF-8), the file whole or not at all; returns its path.

    Raises:
        WriteError: it could not be written; nothing was kept of this attempt.
    """
    return write_whole(path, "".join(map(_line, rows)))


def append_json_line(path: str | Path, row: Any) -> None:
    """Add one line to a file that grows while it is read, such as a log of steps."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(_line(row))


def _line(row: Any) -> str:
    """A line of JSON. Half a surrogate pair, which models and file names may hold and UTF-8 cannot,
    is escaped, and read back as it was."""
    text = json.dumps(row, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(row)
    return text + "\n"


def iter_json_lines(path: str | Path) -> Iterator[tuple[int, Any]]:
    """(number of the line, from 1; its value) of each line that is not blank, one at a time.

    A line ends at a newline only: texts may hold Unicode's other ends of lines. A byte order mark
    at the start is skipped.

    Raises:
        ValueError: a line is not UTF-8 or no JSON; the message names file and line.
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
                    f"{path}, line {number} is no JSON object ({error}); was the file cut off?"
                ) from error
            yield number, value


def resume_json_lines(path: str | Path) -> Iterator[tuple[int, Any]]:
    """`iter_json_lines` of a file that a run adds lines to and may be killed at: half a line at its
    end is cut off first; no lines, and the folder is made, where there is no file yet."""
    path = Path(path)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        return iter(())
    found = path.read_bytes()
    whole = found[: found.rfind(b"\n") + 1]
    if whole != found:
        write_whole(path, whole)
    return iter_json_lines(path)


def read_json_lines(path: str | Path) -> list[Any]:
    """The values of all lines that are not blank; ValueError names a line that is no JSON."""
    return [value for _, value in iter_json_lines(path)]
