"""`python -m drlib.lab run|refresh|check|reference|table`: notebooks and runs from a terminal."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from drlib.lab.display import ROOT
from drlib.lab.hygiene import problems
from drlib.lab.notebooks import NotebookError, find, parse_pairs, read_parameters, refresh, run
from drlib.lab.reference import OUT, reference


def main(argv: list[str] | None = None) -> int:
    """The exit status: 0, or 1 with one line on stderr that says what is wrong."""
    args = _parser().parse_args(argv)
    try:
        return args.action(args)
    except (NotebookError, ValueError) as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: nothing is left running; the same command goes on", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m drlib.lab", description=__doc__)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("run", help="execute a copy with other parameters (papermill)")
    one.add_argument("number", metavar="NN")
    one.add_argument("-f", "--file", type=Path, help="YAML file with `name: value` lines")
    one.add_argument("-p", "--parameter", nargs=2, action="append", default=[],
                     metavar=("NAME", "VALUE"))  # fmt: skip
    one.add_argument("-o", "--output", type=Path,
                     help="if left out: runs/notebooks/NN_<profile>.ipynb")  # fmt: skip
    one.set_defaults(action=_run)
    for name, action, text in (
        ("refresh", _refresh, "execute in the ci profile and store the outputs, normalised"),
        ("check", _check, "the rules for committed notebooks, without executing them"),
    ):
        several = commands.add_parser(name, help=text)
        several.add_argument("numbers", nargs="*", metavar="NN", help="all if left out")
        several.set_defaults(action=action)
    line = commands.add_parser("reference", help="the whole line for several seeds, with controls")
    line.add_argument("--profile", default="laptop")
    line.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    line.add_argument("--runs", type=Path, default=ROOT / "runs")
    line.add_argument("--out", type=Path, default=OUT)
    line.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    line.add_argument("--only", nargs="+", metavar="STAGE", help="keep these alone, such as rl")
    line.set_defaults(action=_reference)
    text = commands.add_parser("table", help="write the reference run's results into README.md")
    text.add_argument("--readme", type=Path, default=ROOT / "README.md")
    text.add_argument("--run", type=Path, default=OUT)
    text.set_defaults(action=_table)
    return parser


def _reference(args) -> int:
    from drlib.config import Config

    if (args.set or args.only) and args.out.resolve() == OUT:
        raise ValueError("--set and --only need --out: figures/reference/tour is the recipe's")
    changes = parse_pairs([pair.partition("=")[::2] for pair in args.set])
    config = Config.load(args.profile, **changes)
    print(reference(config, args.seeds, args.runs, args.out, args.only))
    return 0


def _table(args) -> int:
    from drlib.lab.readme import refresh_readme

    changed = refresh_readme(args.readme, args.run)
    print(f"{args.readme.name}: {'refreshed' if changed else 'unchanged'}")
    return 0


def _run(args) -> int:
    parameters = read_parameters(args.file) if args.file else {}
    parameters |= parse_pairs(args.parameter)
    run(args.number, parameters, args.output)
    return 0


def _chosen(numbers: list[str]) -> list[Path]:
    """The notebooks of these numbers, solutions included; all of them for none."""
    return [path for number in numbers or [None] for path in find(number, solutions=True)]


def _refresh(args) -> int:
    for path in _chosen(args.numbers):
        changed = refresh(path)
        print(f"{path.name}: {'refreshed' if changed else 'unchanged'}", flush=True)
    return 0


def _check(args) -> int:
    paths = _chosen(args.numbers)
    found = [f"{path.name}: {text}" for path in paths for text in problems(path)]
    print("\n".join(found) or f"{len(paths)} notebooks: no problem")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
