"""CPU seconds of each test file and notebook, measured: slow ones start first.

A slow file that starts last would leave one core idle. `make test-fast` leaves out files of
`SLOW_S` seconds and more. Child processes count once they have ended.

Measure again: python -m tests.file_seconds (it runs `make test`)
"""

import json
import os
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from drlib.files import write_atomic

ROOT = Path(__file__).resolve().parents[1]
FILE = Path(__file__).with_suffix(".json")
FOLDER = "DRLIB_FILE_SECONDS"  # environment variable: where each process writes its times
SLOW_S = 5.0
LEAST_S = 1.0  # files below are not listed


def read() -> dict[str, float]:
    """Return seconds by path, as in "tests/test_cli.py"."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def name_of(item: pytest.Item) -> str:
    """Return the path of an item's file from the repository's folder."""
    return os.path.relpath(item.path, ROOT)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    """Log the seconds of a test; tests/conftest.py registers this if `FOLDER` is set."""
    before = sum(os.times()[:4])
    yield
    line = json.dumps([name_of(item), sum(os.times()[:4]) - before])
    with open(Path(os.environ[FOLDER], str(os.getpid())), "a", encoding="utf-8") as file:
        file.write(line + "\n")


def total(folder: Path) -> dict[str, float]:
    """Return the seconds of the listed files, slowest first."""
    seconds: Counter[str] = Counter()
    for file in folder.iterdir():
        for line in file.read_text(encoding="utf-8").splitlines():
            name, used = json.loads(line)
            seconds[name] += used
    return {name: round(used, 1) for name, used in seconds.most_common() if used >= LEAST_S}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["make", "test"], cwd=ROOT, env=os.environ | {FOLDER: folder}, check=True)
        write_atomic(FILE, json.dumps(total(Path(folder)), indent=1) + "\n")


if __name__ == "__main__":
    main()
