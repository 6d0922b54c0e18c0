"""`drlib evaluate STAGE`: evaluate the policy of a stage on held-out questions.

Builds the stage `evaluate_STAGE` and its inputs; takes the arguments of `drlib train`.
"""

import sys

from drlib.cli import train

PREFIX = "evaluate_"


def main(argv: list[str]) -> int:
    """Run the command; return the exit status of `drlib train evaluate_STAGE`."""
    if argv[:1] in (["-h"], ["--help"]):
        print(__doc__)
        return train.main(argv)
    if not argv or argv[0].startswith("-"):
        print("drlib evaluate: name a stage first, as in: drlib evaluate rl", file=sys.stderr)
        return 2
    stage, *rest = argv
    return train.main([PREFIX + stage.removeprefix(PREFIX), *rest])
