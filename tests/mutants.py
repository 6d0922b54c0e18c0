"""Mutants: small faults in the library, each of which a named test must detect.

Each mutant replaces a text in one library file. It is applied in a copy of the checkout, the tests
named with it run there, and at least one must fail.

Run: python -m tests.mutants               all of them (also: make mutants; a quarter of an hour)
     python -m tests.mutants NAME [NAME]   some of them
     python -m tests.mutants --list
"""

import argparse
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ALONE

ROOT = Path(__file__).resolve().parents[1]
COPIES = 2  # of the checkout, each with one mutant at a time
FAILED = 1  # pytest's exit status when tests ran and some failed; 2 and up: they did not run


@dataclass(frozen=True)
class Mutant:
    """Replace `old`, which occurs once in `path`, by `new`; one of `tests` must then fail."""

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]
    why: str  # the consequence of the fault


Row = tuple[Mutant, str, float]  # the test that caught it ("" if none), and seconds


def all_mutants() -> list[Mutant]:
    """Return all mutants."""
    from tests import (
        mutants_asynchronous,
        mutants_balance,
        mutants_contexts,
        mutants_crafting,
        mutants_crawl,
        mutants_dataset,
        mutants_decoding,
        mutants_dense,
        mutants_designs,
        mutants_distill,
        mutants_environments,
        mutants_escalation,
        mutants_family,
        mutants_gateway,
        mutants_joins,
        mutants_judges,
        mutants_language,
        mutants_loop,
        mutants_notebooks,
        mutants_offline,
        mutants_open,
        mutants_packed,
        mutants_pictures,
        mutants_questions,
        mutants_real,
        mutants_replay,
        mutants_rewards,
        mutants_scheduling,
        mutants_steering,
        mutants_sweep,
        mutants_switches,
        mutants_tools,
    )

    modules = (
        mutants_loop,
        mutants_balance,
        mutants_packed,
        mutants_decoding,
        mutants_dense,
        mutants_judges,
        mutants_switches,
        mutants_steering,
        mutants_questions,
        mutants_language,
        mutants_joins,
        mutants_crafting,
        mutants_replay,
        mutants_real,
        mutants_offline,
        mutants_open,
        mutants_pictures,
        mutants_contexts,
        mutants_crawl,
        mutants_dataset,
        mutants_escalation,
        mutants_family,
        mutants_tools,
        mutants_notebooks,
        mutants_sweep,
        mutants_designs,
        mutants_distill,
        mutants_environments,
        mutants_rewards,
        mutants_gateway,
        mutants_asynchronous,
        mutants_scheduling,
    )
    return [mutant for module in modules for mutant in module.MUTANTS]


def copy_checkout(target: Path) -> None:
    """Copy the files that git tracks or would add."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def run_tests(folder: Path, tests: tuple[str, ...]) -> tuple[int, str]:
    """Return (exit status, output) of tests that run in, and import, the copy."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def caught_by(output: str) -> str:
    """Return the name of the first failed test, "" if none."""
    found = re.search(r"^(?:FAILED|ERROR) tests/\S+?::(\w+)", output, re.M)
    return found[1] if found else ""


def judge(mutant: Mutant, folder: Path) -> tuple[str, float]:
    """Return (test that caught the mutant or "", seconds); restore the copy."""
    path = folder / mutant.path
    text = path.read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        found = text.count(mutant.old)
        raise ValueError(f"{mutant.name}: its text occurs {found} times in {mutant.path}, not once")
    started = time.perf_counter()
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        status, output = run_tests(folder, mutant.tests)
    finally:
        path.write_text(text, encoding="utf-8")
    if status not in (0, FAILED):
        raise RuntimeError(f"{mutant.name}: the tests did not run:\n{output[-2000:]}")
    return caught_by(output) if status == FAILED else "", time.perf_counter() - started


def judge_all(chosen: list[Mutant], scratch: Path) -> list[Row]:
    """Judge mutants in two copies side by side; print and return the rows.

    Raises:
        SystemExit: tests fail without any mutant, so they would seem to detect everything.
    """
    copies: queue.Queue[Path] = queue.Queue()
    for number in range(COPIES):
        copy_checkout(scratch / str(number))
        copies.put(scratch / str(number))
    tests = tuple(dict.fromkeys(test for mutant in chosen for test in mutant.tests))
    alone = tuple(test for test in tests if Path(test.partition("::")[0]).name in ALONE)
    others = tuple(test for test in tests if test not in alone)
    for selection in (("-n", str(COPIES), *others) if others else (), alone):
        status, output = run_tests(scratch / "0", selection) if selection else (0, "")
        if status:
            sys.exit(f"error: tests fail without any mutant:\n{output[-3000:]}")

    rows, lock = [], threading.Lock()

    def judge_one(mutant: Mutant) -> None:
        folder = copies.get()
        try:
            by, seconds = judge(mutant, folder)
        finally:
            copies.put(folder)
        print(f"{mutant.name:<55} {by or 'SURVIVED':<70} {seconds:.0f} s", flush=True)
        with lock:
            rows.append((mutant, by, seconds))

    with ThreadPoolExecutor(COPIES) as pool:
        list(pool.map(judge_one, chosen))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="default: all")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    mutants = {mutant.name: mutant for mutant in all_mutants()}
    unknown = [name for name in arguments.names if name not in mutants]
    if unknown:
        sys.exit(f"error: unknown mutant {unknown[0]!r}; --list shows them")
    if arguments.list:
        print("\n".join(f"{name:<42} {mutant.why}" for name, mutant in mutants.items()))
        return
    chosen = [mutants[name] for name in arguments.names or mutants]
    with tempfile.TemporaryDirectory(prefix="drlib-mutants-") as scratch:
        rows = judge_all(chosen, Path(scratch))
    survived = [mutant.name for mutant, by, _ in rows if not by]
    if survived:
        sys.exit(f"error: survived: {', '.join(survived)}")


if __name__ == "__main__":
    main()
