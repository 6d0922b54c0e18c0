"""`drlib notebooks refresh|check`: update or check the stored outputs of committed notebooks."""

import argparse
import sys
from pathlib import Path

from drlib.cli.examples import add_examples
from drlib.files import WriteError
from drlib.notebook.execution import NotebookError, find, refresh
from drlib.notebook.rules import find_problems


def main(argv: list[str] | None = None) -> int:
    """Run the command; return 0, or 1 with the problems."""
    parser = argparse.ArgumentParser(prog="drlib notebooks", description=__doc__)
    add_examples(parser, "drlib notebooks refresh 03", "drlib notebooks check")
    commands = parser.add_subparsers(dest="action", required=True)
    for name, about in (
        ("refresh", "execute in the ci profile and store normalised outputs"),
        ("check", "check the rules for committed notebooks without executing them"),
    ):
        command = commands.add_parser(name, help=about, description=about)
        command.add_argument("numbers", nargs="*", metavar="NN", help="notebook; default: all")
        add_examples(command, f"drlib notebooks {name} 05")
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
    messages = [f"{path.name}: {text}" for path in paths for text in find_problems(path)]
    print("\n".join(messages) or f"{len(paths)} notebooks: no problem")
    return 1 if messages else 0
