"""`python -m drlib.training.build STAGE`: one stage in this process, its inputs being there.

It is what `drlib.training` and `notebook.build_stage` start, under torchrun where a stage takes several
processes. Type `drlib train STAGE` instead: that builds what is missing as well.
"""

import argparse
import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from drlib.config import ROOT, Config, load_from_arguments
from drlib.endpoint import EndpointError
from drlib.files import WriteError
from drlib.startup import freeze_imports
from drlib.training import stages
from drlib.training.run_folder import Interrupted, NotFinite, RunFolder, RunFolderError

if TYPE_CHECKING:
    from drlib.training.distributed import Ranks

MODULE = "drlib.training.build"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1")


def build(name: str, config: Config, runs: Path, ranks: "Ranks | None" = None) -> Path:
    """Build the stage from its finished inputs; returns its folder.

    Raises ValueError and RunFolderError for what cannot be built, naming it; AttributeError where
    the stage reads a setting that is not declared for it.
    """
    from drlib.training.distributed import Ranks  # only here: who asks for help waits for no torch

    path = stages.folder(name, config, runs)
    stage = stages.STAGES[name]
    ranks = ranks or Ranks(config.trainer.backend)
    with build_lock(path, ranks) as is_there:
        if not is_there:
            build_it = stage.builder(config)
            build_it(stages.restricted_config(name, config), path, ranks, **stage.arguments)
    return path


@contextmanager
def build_lock(path: Path, ranks: "Ranks") -> Iterator[bool]:
    """Nobody else builds this stage inside the block; whether it is complete already.

    Two notebooks may need the same stage at the same time: the second waits, then uses it, also
    where the first was done between the second's look and its start. The lock goes with its
    process, however that ends.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f".{path.name}.lock"), "w") as lock:
        if ranks.first:
            fcntl.flock(lock, fcntl.LOCK_EX)
        is_there = ranks.first and RunFolder.is_complete(path)
        yield ranks.sum({"is_there": float(is_there)})["is_there"] > 0


def search_path() -> str:
    """PYTHONPATH for a stage's process: it starts in the repository's folder, where drlib is, and
    finds the plugins that stand in this one too."""
    known = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join(filter(None, [os.getcwd(), known]))


def stage_arguments(description: str) -> argparse.ArgumentParser:
    """The arguments that all commands about stages take."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("stage")
    parser.add_argument("--profile", default="laptop")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs", help="default: runs/")
    parser.add_argument("--recipe", default="", help="a published recipe in drlib/recipes")
    return parser


def main() -> None:
    """One stage, on the ranks that torchrun started."""
    parser = stage_arguments("build one stage whose inputs are finished")
    args, settings = parser.parse_known_args()
    try:
        # before torch is imported: a misspelled setting fails at once
        config = load_from_arguments(args.profile, args.recipe, settings)
        with freeze_imports():
            from drlib.training.distributed import Ranks

            stages.STAGES[args.stage].builder(config)
        ranks = Ranks(config.trainer.backend)
        path = build(args.stage, config, args.runs.resolve(), ranks)
        if ranks.first:
            print(path)
        ranks.leave()
    except (
        ValueError,
        RunFolderError,
        WriteError,
        EndpointError,
        ModuleNotFoundError,
        NotFinite,
    ) as fault:
        sys.exit(f"error: {fault}")
    except Interrupted:
        print("interrupted: the same command goes on from the last checkpoint", file=sys.stderr)
        sys.exit(130)  # as shells have it after Ctrl-C


if __name__ == "__main__":
    main()
