"""`python -m drlib.training.build STAGE`: one stage in this process, its inputs being there.

It is what `drlib.training` and `lab.ensure` start, under torchrun where a stage takes several
processes. Type `python -m drlib.training STAGE` instead: that builds what is missing as well.
"""

import argparse
import sys
from pathlib import Path

import yaml

from drlib.config import ROOT, Config
from drlib.files import WriteError
from drlib.registry import load_plugins
from drlib.training import stages
from drlib.training.run import Interrupted, Ranks, RunFolderError

MODULE = "drlib.training.build"


def build(name: str, config: Config, runs: Path, ranks: Ranks | None = None) -> Path:
    """Build the stage from its finished inputs; returns its folder.

    Raises ValueError and RunFolderError for what cannot be built, naming it; AttributeError where
    the stage reads a setting that is not declared for it.
    """
    path = stages.folder(name, config, runs)
    stage = stages.find(name)
    stage.function(stages.readable(name, config), path, ranks, **stage.arguments)
    return path


def parse(description: str) -> argparse.ArgumentParser:
    """The arguments that all commands about stages take."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("stage")
    parser.add_argument("--profile", default="laptop")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs", help="default: runs/")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    return parser


def config_from(args: argparse.Namespace) -> Config:
    """The settings that were typed, with their plugins imported; ValueError names what is wrong."""
    changes = {
        name: yaml.safe_load(value) for name, _, value in (s.partition("=") for s in args.set)
    }
    load_plugins(changes.get("plugins", ""))
    return Config.load(args.profile, **changes)


def main() -> None:
    """One stage, on the ranks that torchrun started."""
    args = parse("build one stage whose inputs are there").parse_args()
    try:
        config = config_from(args)
        ranks = Ranks()
        path = build(args.stage, config, args.runs.resolve(), ranks)
        if ranks.first:
            print(path)
    except (ValueError, RunFolderError, WriteError) as fault:
        sys.exit(f"error: {fault}")
    except Interrupted:
        print("interrupted: the same command goes on from the last checkpoint", file=sys.stderr)
        sys.exit(130)  # as shells have it after Ctrl-C


if __name__ == "__main__":
    main()
