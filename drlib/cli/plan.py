"""`drlib plan`: estimate memory, time and disk space of a run; fail if it does not fit."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from drlib.cli.examples import add_examples
from drlib.config import load_from_arguments, runs_folder
from drlib.files import read_json_lines

if TYPE_CHECKING:
    from drlib.training.planner import Rates


def main(argv: Sequence[str] | None = None) -> int:
    """Print the plan; return 0, or 1 with the reasons on stderr if the run cannot start."""
    parser = argparse.ArgumentParser(prog="drlib plan", description=__doc__)
    add_examples(
        parser,
        "drlib plan --profile gpu8",
        "drlib plan --profile laptop --here --rl.steps 200",
    )
    parser.add_argument("--profile", default="laptop", help="a profile in drlib/profiles")
    parser.add_argument("--recipe", default="", help="a published recipe in drlib/recipes")
    parser.add_argument("--device-gb", type=float, help="GiB of one device (default: 80)")
    parser.add_argument(
        "--rates", type=Path, help="measured rates: JSON file or a run's metrics.jsonl"
    )
    parser.add_argument(
        "--here",
        action="store_true",
        help="also check the devices, packages and disk of this machine",
    )
    parser.add_argument("--runs", type=Path, default=runs_folder(), help="run folder for --here")
    args, settings = parser.parse_known_args(argv)
    # slow: imports torch and transformers, which --help does not need
    from drlib.training.planner import check_machine, plan, render

    try:
        config = load_from_arguments(args.profile, args.recipe, settings)
        rates = read_rates(args.rates, config.processes) if args.rates else None
        estimate = plan(config, args.device_gb, rates)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(render(estimate))
    errors = estimate.errors
    if args.here:
        errors = errors + check_machine(config, estimate.disk, args.runs)
    for message in errors:
        print(f"error: {message}", file=sys.stderr)
    return 1 if errors else 0


def read_rates(path: Path, processes: int = 1) -> Rates:
    """Read rates from a JSON file, or compute them from the metrics.jsonl of a run."""
    from drlib.training.planner import measure_rates, parse_rates

    try:
        if path.suffix == ".jsonl":
            return measure_rates(read_json_lines(path), processes)
        return parse_rates(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ValueError(f"--rates {path}: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"--rates {path} is not JSON: {error}") from error
