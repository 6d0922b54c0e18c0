"""Fenced blocks of the documentation pages, run as they are printed.

A job of the first hour is a module of this folder with `main(folder)`: it takes blocks from a page,
runs them in an empty folder and asserts what a reader would check. `python -m
tests.first_hour.JOB` runs one job. The commands are forked (tests/forked_commands.py); the jobs
`paths` and `own_tool` also run the installed one.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.forked_commands import command_folder

DOCS = Path(__file__).resolve().parents[2] / "docs"
FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.M | re.S)
FILE_NAME = re.compile(r"# ([\w./-]+\.\w+)\b")  # first line of a block that is a file


class Block(NamedTuple):
    """A fenced block: the language after the fence ("" without one) and the text."""

    language: str
    text: str

    @property
    def file_name(self) -> str:
        """Name in the comment of the first line, such as my_rewards.py; "" without one."""
        found = FILE_NAME.match(self.text)
        return found[1] if found else ""


class Ended(NamedTuple):
    """Result of a command."""

    status: int
    stdout: str
    stderr: str


def read_blocks(page: str) -> list[Block]:
    """Return the fenced blocks of a page in docs/, such as "own_reward.md", in order."""
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = [Block(found[1].strip(), found[2]) for found in FENCE.finditer(text)]
    assert blocks, f"docs/{page} has no fenced blocks"
    return blocks


def find_block(page: str, part: str) -> Block:
    """Return the only block of a page that contains `part`."""
    found = [block for block in read_blocks(page) if part in block.text]
    assert len(found) == 1, f"docs/{page} has {len(found)} blocks with {part!r} instead of one"
    return found[0]


def save_block(block: Block, folder: Path) -> Path:
    """Save a block under the file name in its first line; return the path."""
    assert block.file_name, f"no file name in the first line of the block:\n{block.text}"
    path = folder / block.file_name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.text, encoding="utf-8")
    return path


def try_command(text: str, folder: Path, *, real: bool = False, **environment: str) -> Ended:
    """Run shell lines in a folder, with forked commands; with the installed ones if `real`."""
    installed = [str(Path(sys.executable).parent), os.environ["PATH"]]
    path = os.pathsep.join(installed if real else [str(command_folder()), *installed])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=folder,
        env=os.environ | {"PATH": path, "DRLIB_HEADLESS": "1"} | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def run_command(text: str, folder: Path, *, real: bool = False, **environment: str) -> Ended:
    """Run shell lines in a folder; AssertionError with their output unless all succeed."""
    ended = try_command(text, folder, real=real, **environment)
    assert ended.status == 0, f"{text}\n{ended.stdout}\n{ended.stderr}"
    return ended


def run_python(text: str, folder: Path, **environment: str) -> Ended:
    """Run a Python block as a program in a folder; AssertionError if it fails."""
    (folder / "printed_block.py").write_text(text, encoding="utf-8")
    return run_command("python printed_block.py", folder, **environment)


def run_job(main: Callable[[Path], None]) -> None:
    """Run a job in a temporary folder: the end of every module with a job."""
    with tempfile.TemporaryDirectory(prefix="drlib-first-hour-") as folder:
        main(Path(folder))
    print("passed")
