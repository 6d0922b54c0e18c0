"""`drlib notebooks refresh|check`: the stored outputs of committed notebooks, and their rules."""

import argparse
import sys
from pathlib import Path

from drlib.files import WriteError
from drlib.notebook.execution import NotebookError, find, refresh
from drlib.notebook.rules import problems


def main(argv: list[str] | None = None) -> int:
    """Run the command; return 0, or 1 with the problems."""
    parser = argparse.ArgumentParser(
        prog="drlib notebooks", description=__doc__, epilog="example: drlib notebooks check 05"
    )
    commands = parser.add_subparsers(dest="action", required=True)
    for name, about in (
        ("refresh", "execute in the ci profile and store normalised outputs"),
        ("check", "check the rules for committed notebooks without executing them"),
    ):
        one = commands.add_parser(name, help=about)
        one.add_argument("numbers", nargs="*", metavar="NN", help="default: all")
    args = parser.parse_args(argv)
    try:
        paths = [p for number in args.numbers or [None] for p in find(number, solutions=True)]
        return _refresh(paths) if args.action == "refresh" else _check(paths)
    except (NotebookError, ValueError, WriteError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _refresh(paths: list[Path]) -> int:
    for path in paths:
        print(f"{path.name}: {'refreshed' if refresh(path) else 'unchanged'}", flush=True)
    return 0


def _check(paths: list[Path]) -> int:
    found = [f"{path.name}: {text}" for path in paths for text in problems(path)]
    print("\n".join(found) or f"{len(paths)} notebooks: no problem")
    return 1 if found else 0
