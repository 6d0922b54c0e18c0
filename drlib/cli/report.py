"""`drlib report REPORT.html ROLLOUTS...`: one HTML page about rollouts of any model."""

import argparse
import sys
from pathlib import Path

from drlib.analysis.rendering import visible
from drlib.analysis.report_options import check_report
from drlib.startup import freeze_imports


def main(argv: list[str] | None = None) -> int:
    """Run the command; return 0, or 1 with the cause on stderr."""
    parser = argparse.ArgumentParser(prog="drlib report", description=__doc__)
    parser.add_argument("report", metavar="REPORT.html")
    parser.add_argument(
        "files",
        nargs="+",
        metavar="TRAJECTORIES",
        help="Parquet or JSON lines, see drlib/analysis/inputs.py",
    )
    parser.add_argument("--tokenizer", help="folder of the tokenizer of the model that made them")
    parser.add_argument("--model", help="folder of a model that scores every token again")
    parser.add_argument("--temperature", type=float, default=1.0, help="of the rollouts (--model)")
    parser.add_argument("--window", type=int, default=64, help="tokens after a response")
    parser.add_argument("--share", type=float, default=0.2, help="of the thoughts that are forks")
    parser.add_argument("--viewed", type=int, default=50, help="trajectories of a file to show")
    args = parser.parse_args(argv)
    try:
        check_report(args.report, args.files, args.window, args.share, args.viewed)
        print(visible(str(_report(args))))
    except (ValueError, OSError) as fault:
        print(f"error: {visible(str(fault))}", file=sys.stderr)
        return 1
    return 0


def _report(args: argparse.Namespace) -> Path:
    """Write the report; its imports take seconds."""
    with freeze_imports():
        import matplotlib

        from drlib.analysis.report import report
    matplotlib.use("Agg")
    model = None
    if args.model is not None:
        with freeze_imports():
            from drlib.models.moe import load_model
        model = load_model(args.model)
    return report(
        args.report,
        args.files,
        args.tokenizer or args.model,
        model=model,
        temperature=args.temperature,
        window=args.window,
        share=args.share,
        viewed=args.viewed,
    )
