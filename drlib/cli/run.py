"""`drlib run NOTEBOOK`: execute a copy of a notebook with other parameters."""

import argparse
import sys
from pathlib import Path

from drlib.cli.examples import add_examples
from drlib.files import WriteError
from drlib.notebook.execution import NotebookError, parse_pairs, read_parameters, run


def main(argv: list[str] | None = None) -> int:
    """Run the command; return 0, 1 with the cause on stderr, or 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="drlib run", description=__doc__)
    add_examples(parser, "drlib run tour --profile laptop -p seed 3")
    parser.add_argument("notebook", help="number or name, such as 00 or tour")
    parser.add_argument("--profile", help="profile, such as ci or laptop; same as -p profile NAME")
    parser.add_argument(
        "-f", "--file", type=Path, help="YAML file of parameters, `name: value` per line"
    )
    parser.add_argument(
        "-p",
        "--parameter",
        nargs=2,
        action="append",
        default=[],
        metavar=("NAME", "VALUE"),
        help="notebook parameter; VALUE is parsed as YAML",
    )
    parser.add_argument(
        "-o", "--output", type=Path, help="default: runs/notebooks/NN_PROFILE.ipynb"
    )
    args = parser.parse_args(argv)
    try:
        parameters = read_parameters(args.file) if args.file else {}
        parameters |= {"profile": args.profile} if args.profile else {}
        run(args.notebook, parameters | parse_pairs(args.parameter), args.output)
    except (NotebookError, ValueError, WriteError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: run the same command again to resume", file=sys.stderr)
        return 130
    return 0
