"""Faults put in by hand, one at a time, and the tests that must see them.

A test that cannot fail is none yet: here a reversed advantage and an engine that was never given
new weights once passed everything. Each mutant is a small change of the library's text. It is made
in a copy of the checkout, the tests named with it run there, and they must fail.

Run: python -m tests.mutants               all of them; writes tests/mutants.md (also: make mutants)
     python -m tests.mutants --missing     those that the table lacks; adds their rows
     python -m tests.mutants NAME [NAME]   some of them; writes nothing
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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from drlib.files import write_atomic
from tests.conftest import ALONE

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "tests" / "mutants.md"
COPIES = 2  # of the checkout, each with one mutant at a time
FAILED = 1  # pytest's exit status when tests ran and some failed; 2 and up: they did not run


@dataclass(frozen=True)
class Mutant:
    """`old`, which stands once in the file `path`, becomes `new`; `tests` must then fail."""

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]
    why: str  # what would go wrong with it


Row = tuple[Mutant, str, float]  # with the test that caught it ("": none), and its seconds


def all_mutants() -> list[Mutant]:
    """In the order of the rooms."""
    from tests import (
        mutants_balance,
        mutants_contexts,
        mutants_crafting,
        mutants_crawl,
        mutants_dataset,
        mutants_decoding,
        mutants_escalation,
        mutants_flat,
        mutants_joins,
        mutants_language,
        mutants_loop,
        mutants_open,
        mutants_pictures,
        mutants_questions,
        mutants_real,
        mutants_replay,
        mutants_steering,
        mutants_sweep,
        mutants_switches,
        mutants_tools,
    )

    modules = (
        mutants_loop,
        mutants_balance,
        mutants_flat,
        mutants_decoding,
        mutants_switches,
        mutants_steering,
        mutants_questions,
        mutants_language,
        mutants_joins,
        mutants_crafting,
        mutants_replay,
        mutants_real,
        mutants_open,
        mutants_pictures,
        mutants_contexts,
        mutants_crawl,
        mutants_dataset,
        mutants_escalation,
        mutants_tools,
        mutants_sweep,
    )
    return [mutant for module in modules for mutant in module.MUTANTS]


def copy_checkout(target: Path) -> None:
    """The files that git knows or would take, without history and environment."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def run_tests(folder: Path, tests: tuple[str, ...]) -> tuple[int, str]:
    """(exit status, output) of the tests in the copy; they import the copy's library."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def caught_by(output: str) -> str:
    """The test that failed first."""
    found = re.search(r"^(?:FAILED|ERROR) tests/\S+?::(\w+)", output, re.M)
    return found[1] if found else ""


def judge(mutant: Mutant, folder: Path) -> tuple[str, float]:
    """(the test that caught it, or "", seconds); the copy is as before afterwards."""
    path = folder / mutant.path
    text = path.read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        found = text.count(mutant.old)
        raise ValueError(f"{mutant.name}: its text stands {found} times in {mutant.path}, not once")
    started = time.perf_counter()
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        status, output = run_tests(folder, mutant.tests)
    finally:
        path.write_text(text, encoding="utf-8")
    if status not in (0, FAILED):
        raise RuntimeError(f"{mutant.name}: the tests did not run:\n{output[-2000:]}")
    return caught_by(output) if status == FAILED else "", time.perf_counter() - started


def judge_all(chosen: list[Mutant], scratch: Path, keep: Callable) -> list[Row]:
    """(mutant, the test that caught it, seconds) of each; two copies work side by side.

    keep: is given the rows so far after each of them, so that a kill loses none. SystemExit where
    tests fail without any mutant: they would seem to catch everything.
    """
    copies: queue.Queue[Path] = queue.Queue()
    for number in range(COPIES):
        copy_checkout(scratch / str(number))
        copies.put(scratch / str(number))
    tests = tuple(dict.fromkeys(test for mutant in chosen for test in mutant.tests))
    alone = tuple(test for test in tests if Path(test.partition("::")[0]).name in ALONE)
    others = tuple(test for test in tests if test not in alone)
    for some in (("-n", str(COPIES), *others) if others else (), alone):
        status, output = run_tests(scratch / "0", some) if some else (0, "")
        if status:
            sys.exit(f"error: tests fail without any mutant:\n{output[-3000:]}")

    rows, lock = [], threading.Lock()

    def one(mutant: Mutant) -> None:
        folder = copies.get()
        try:
            by, seconds = judge(mutant, folder)
        finally:
            copies.put(folder)
        print(f"{mutant.name:<55} {by or 'SURVIVED':<70} {seconds:.0f} s", flush=True)
        with lock:
            rows.append((mutant, by, seconds))
            keep(rows)

    with ThreadPoolExecutor(COPIES) as pool:
        list(pool.map(one, chosen))
    return rows


def known_rows(text: str) -> list[Row]:
    """What a table has of the mutants that are still as it says, and were caught."""
    told = {}
    for line in text.splitlines()[6:]:
        name, file, why, by, seconds = (cell.strip() for cell in line.strip("|").split(" | "))
        told[name, file, why] = by, float(seconds)
    rows = []
    for mutant in all_mutants():
        row = told.get((mutant.name, mutant.path.removeprefix("drlib/"), mutant.why))
        if row is not None and row[0] != "**nobody**":
            rows.append((mutant, row[0].strip("`"), row[1]))
    return rows


def in_order(rows: list[Row]) -> list[Row]:
    """As `all_mutants` has them."""
    places = {mutant.name: place for place, mutant in enumerate(all_mutants())}
    return sorted(rows, key=lambda row: places[row[0].name])


def table(rows: list[Row]) -> str:
    """What was found, as Markdown."""
    caught = sum(bool(by) for _, by, _ in rows)
    lines = [
        "# Mutants",
        "",
        f"{caught} of {len(rows)} faults caught. Written by `make mutants` "
        "(`python -m tests.mutants`), which makes each in a copy and runs the tests named with it.",
        "",
        "| fault | file | what would go wrong | caught by | s |",
        "|---|---|---|---|---|",
    ]
    for mutant, by, seconds in rows:
        seen = f"`{by}`" if by else "**nobody**"
        file = mutant.path.removeprefix("drlib/")
        lines.append(f"| {mutant.name} | {file} | {mutant.why} | {seen} | {seconds:.0f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="default: all, and the table is written")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--missing", action="store_true", help="those that the table lacks")
    arguments = parser.parse_args()
    mutants = {mutant.name: mutant for mutant in all_mutants()}
    unknown = [name for name in arguments.names if name not in mutants]
    if unknown:
        sys.exit(f"error: no mutant is called {unknown[0]!r}; --list shows them")
    if arguments.list:
        print("\n".join(f"{name:<42} {mutant.why}" for name, mutant in mutants.items()))
        return
    kept = known_rows(TABLE.read_text(encoding="utf-8")) if arguments.missing else []
    known = {mutant.name for mutant, *_ in kept}
    chosen = [mutants[name] for name in arguments.names or mutants if name not in known]

    def keep(rows: list[Row]) -> None:
        if arguments.missing or (not arguments.names and len(rows) == len(chosen)):
            write_atomic(TABLE, table(in_order(kept + rows)))

    with tempfile.TemporaryDirectory(prefix="drlib-mutants-") as scratch:
        rows = judge_all(chosen, Path(scratch), keep)
    survived = [mutant.name for mutant, by, _ in rows if not by]
    if survived:
        sys.exit(f"error: survived: {', '.join(survived)}")


if __name__ == "__main__":
    main()
