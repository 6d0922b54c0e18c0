"""`python -m drlib.training.build STAGE`: build one stage in this process from finished inputs.

`drlib train` and `notebook.build_stage` start this module, under torchrun if a stage uses several
processes. Use `drlib train STAGE` instead: it also builds missing inputs.
"""

import argparse
import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from drlib.config import Config, load_from_arguments, runs_folder
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
    """Build a stage from its finished inputs and return its folder.

    Raises:
        ValueError, RunFolderError: the stage cannot be built.
        AttributeError: the stage reads a setting that is not declared for it.
    """
    from drlib.training.distributed import Ranks  # lazy: help texts need no torch

    path = stages.folder(name, config, runs)
    stage = stages.STAGES[name]
    ranks = ranks or Ranks(config.trainer.backend)
    with build_lock(path, ranks) as is_complete:
        if not is_complete:
            build_it = stage.builder(config)
            build_it(stages.restricted_config(name, config), path, ranks, **stage.arguments)
    return path


@contextmanager
def build_lock(path: Path, ranks: "Ranks") -> Iterator[bool]:
    """Lock the folder of a stage; yield True if the stage is already complete.

    If two notebooks need the same stage, the second waits and then uses the result. The lock is
    released when its process ends for any reason.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f".{path.name}.lock"), "w") as lock:
        if ranks.first:
            fcntl.flock(lock, fcntl.LOCK_EX)
        is_complete = ranks.first and RunFolder.is_complete(path)
        yield ranks.sum({"is_complete": float(is_complete)})["is_complete"] > 0


def search_path() -> str:
    """Return PYTHONPATH for the process of a stage, with the current folder for plugins."""
    known = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join(filter(None, [os.getcwd(), known]))


def stage_arguments(description: str) -> argparse.ArgumentParser:
    """Return a parser with the arguments shared by all commands about stages."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("stage")
    parser.add_argument("--profile", default="laptop")
    parser.add_argument("--runs", type=Path, default=runs_folder(), help="default: runs/")
    parser.add_argument("--recipe", default="", help="a published recipe in drlib/recipes")
    return parser


def main() -> None:
    """Build one stage on the ranks started by torchrun."""
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
        print(
            "interrupted: run the same command again to resume from the last checkpoint",
            file=sys.stderr,
        )
        sys.exit(130)  # exit status of shells after Ctrl-C


if __name__ == "__main__":
    main()
