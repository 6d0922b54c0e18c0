"""`drlib evaluate STAGE`: evaluate the policy of a stage on held-out questions.

This builds the stage `evaluate_STAGE` and its missing inputs. The arguments are those of
`drlib train`.
"""

import sys

from drlib.cli import train

PREFIX = "evaluate_"


def main(argv: list[str]) -> int:
    """Run the command; return the exit status of `drlib train evaluate_STAGE`."""
    if argv[:1] in (["-h"], ["--help"]):
        print(f"{__doc__}\nexample:\n  drlib evaluate rl --profile ci\n")
        return train.main(argv)
    if not argv or argv[0].startswith("-"):
        print("drlib evaluate: name a stage first, as in: drlib evaluate rl", file=sys.stderr)
        return 2
    stage, *rest = argv
    return train.main([PREFIX + stage.removeprefix(PREFIX), *rest])
