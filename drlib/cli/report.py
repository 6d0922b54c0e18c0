"""`drlib report REPORT.html ROLLOUTS...`: analyse rollouts of any model in one HTML page."""

import argparse
import sys
from pathlib import Path

from drlib.analysis.rendering import escape_unseen
from drlib.analysis.report_options import check_report
from drlib.cli.examples import add_examples
from drlib.startup import freeze_imports
from drlib.validation import require


def main(argv: list[str] | None = None) -> int:
    """Run the command; return 0, or 1 with the cause on stderr."""
    parser = argparse.ArgumentParser(prog="drlib report", description=__doc__)
    add_examples(
        parser,
        "drlib report report.html rollouts.jsonl",
        "drlib report report.html rollouts.jsonl --tokenizer DIR --viewed 10",
        "drlib report report.html answers.jsonl --atif trajectories",
    )
    parser.add_argument("report", metavar="REPORT.html", help="output file")
    parser.add_argument(
        "files",
        nargs="+",
        metavar="ROLLOUTS",
        help="Parquet or JSON files; formats: docs/rollouts.md",
    )
    parser.add_argument(
        "--tokenizer",
        help="folder or hub id of the tokenizer of the rollouts; default: count words",
    )
    parser.add_argument("--model", help="folder of a model, or smol, to rescore every token with")
    parser.add_argument(
        "--temperature",
        type=float,
        default=1.0,
        help="sampling temperature of the rollouts (--model)",
    )
    parser.add_argument(
        "--window", type=int, default=64, help="number of tokens analysed after a tool response"
    )
    parser.add_argument(
        "--share", type=float, default=0.2, help="share of thought tokens counted as forks"
    )
    parser.add_argument(
        "--viewed", type=int, default=50, help="number of trajectories shown per file"
    )
    parser.add_argument(
        "--atif", type=Path, help="new folder: write the rollouts there in Harbor's format as well"
    )
    args = parser.parse_args(argv)
    try:
        check_report(args.report, args.files, args.window, args.share, args.viewed)
        require(
            args.atif is None or not args.atif.exists(),
            f"{args.atif} exists: give a new folder to --atif",
        )
        print(escape_unseen(str(_report(args))))
        if args.atif is not None:
            _export(args)
    except (ValueError, OSError) as error:
        print(f"error: {escape_unseen(str(error))}", file=sys.stderr)
        return 1
    return 0


def _export(args: argparse.Namespace) -> None:
    """Write the rollouts of all files as ATIF."""
    from drlib.analysis.atif import write_atif
    from drlib.analysis.inputs import read_rollouts
    from drlib.analysis.reading_notes import ReadingNotes
    from drlib.chat.words import WordTokenizer

    tokenizer = args.tokenizer or args.model or WordTokenizer()
    # the report has shown the warnings
    found = (t for path in args.files for t in read_rollouts(path, tokenizer, notes=ReadingNotes()))
    print(f"{write_atif(args.atif, found)} trajectories in {escape_unseen(str(args.atif))}")


def _report(args: argparse.Namespace) -> Path:
    """Write the report; import torch and matplotlib only now, because this takes seconds."""
    with freeze_imports():
        import matplotlib

        from drlib.analysis.report import write_report
    matplotlib.use("Agg")
    model = None
    if args.model is not None:
        with freeze_imports():
            from drlib.models.moe import load_model
        model = load_model(args.model)
    return write_report(
        args.report,
        args.files,
        args.tokenizer or args.model,
        model=model,
        temperature=args.temperature,
        window=args.window,
        share=args.share,
        viewed=args.viewed,
    )
