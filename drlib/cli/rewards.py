"""`drlib rewards serve`: judge rollouts over HTTP, for the reward `remote`.

Without DRLIB_REWARDS_TOKEN the service listens on loopback only.
"""

import argparse
import sys
from collections.abc import Sequence

from drlib.cli.examples import add_examples

# argument of `serve` -> (default, help)
SERVE_OPTIONS = {
    "host": ("127.0.0.1", "address to listen on"),
    "port": (8732, "port to listen on"),
    "threads": (16, "samples judged at the same time"),
    "timeout_s": (30.0, "time limit of a sample, seconds"),
    "max_queue": (20000, "maximum number of waiting samples"),
    "plugins": ("", "modules that register rewards of your own, separated by commas"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0, or 1 with the cause on stderr."""
    parser = argparse.ArgumentParser(prog="drlib rewards", description=__doc__)
    add_examples(parser, "drlib rewards serve --port 8732")
    commands = parser.add_subparsers(dest="command", required=True)
    about = "serve all registered rewards"
    serve = commands.add_parser("serve", help=about, description=about)
    add_examples(serve, "drlib rewards serve --port 8732 --plugins my_rewards")
    for name, (value, about) in SERVE_OPTIONS.items():
        option = "--" + name.removesuffix("_s").replace("_", "-")
        note = f"{about} ({value})" if value != "" else about
        serve.add_argument(option, dest=name, type=type(value), default=value, help=note)
    options = vars(parser.parse_args(argv))
    options.pop("command")
    try:
        from drlib.rewards import reward_service  # needs the cluster extra

        return reward_service.serve(**options)
    except (ValueError, OSError, ImportError) as error:
        print(f"drlib rewards: {error}", file=sys.stderr)
        return 1
