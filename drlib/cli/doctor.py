"""`drlib doctor RUN_OR_MODEL`: find out why a reward stays flat; each check is ok or a fault.

RUN is a folder runs/PROFILE/STAGE-HASH. A finished one has its settings; an unfinished one
(`.partial`) needs the options with which `drlib train` was started. A stage other than rl, or a
MODEL (a folder, smol, or a GGUF file), answers a few training questions first.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from drlib.analysis.rendering import escape_unseen
from drlib.cli.examples import add_examples
from drlib.startup import freeze_imports

if TYPE_CHECKING:
    from drlib.training.doctor import Check

MARKS = {True: "ok", False: "FAULT", None: "not run"}


def main(argv: Sequence[str] | None = None) -> int:
    """Print all checks; return 0, or 1 if there is a fault or nothing to examine."""
    parser = argparse.ArgumentParser(prog="drlib doctor", description=__doc__)
    add_examples(
        parser,
        "drlib doctor figures/reference/tour/policy_sft",
        "drlib doctor runs/laptop/rl-0123456789",
        "drlib doctor runs/ci/rl-0123456789.partial --rl.lr 2e-4",
        "drlib doctor smol --questions 2",
    )
    parser.add_argument("target", metavar="RUN_OR_MODEL", help="folder of a stage, or a model")
    parser.add_argument("--profile", default="", help="a profile in drlib/profiles")
    parser.add_argument("--recipe", default="", help="a published recipe in drlib/recipes")
    parser.add_argument(
        "--questions", type=int, help="questions that a model answers (default: 16 or 3, by size)"
    )
    parser.add_argument(
        "--turn-tokens", type=int, default=128, help="maximum tokens of its turns (128)"
    )
    parser.add_argument("--hours", type=float, default=24.0, help="time limit of the run (24)")
    args, settings = parser.parse_known_args(argv)
    try:
        with freeze_imports():
            from drlib.training.diagnosis import diagnose, find_subject
        subject = find_subject(args.target, args.profile, args.recipe, settings)
        print(f"{args.target}: {subject.title}", flush=True)
        checks = diagnose(subject, args.questions, args.turn_tokens, args.hours)
    except (ValueError, OSError) as error:
        print(f"error: {escape_unseen(str(error))}", file=sys.stderr)
        return 1
    print(escape_unseen(render_checks(checks)))
    return 1 if any(check.ok is False for check in checks) else 0


def render_checks(checks: "Sequence[Check]") -> str:
    """Format the checks as text; examples are indented, one line each."""
    lines = []
    for check in checks:
        lines.append(f"{MARKS[check.ok]:<8} {check.name:<14} {check.finding}")
        if check.remedy:
            lines.append(f"{'':<8} {'':<14} remedy: {check.remedy}")
        lines += [f"{'':<8} {'':<14} > {text!r}" for text in check.examples]
    faults = sum(check.ok is False for check in checks)
    lines.append(f"{faults} fault{'s' * (faults != 1)} in {len(checks)} checks")
    return "\n".join(lines)
