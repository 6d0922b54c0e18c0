"""`drlib sandbox probe|serve`: show the isolation of this machine, or serve calls over HTTP.

`probe` exits with status 1 below the level "standard".
"""

import argparse

from drlib.cli.examples import add_examples
from drlib.sandbox.selftest import LEVELS, probe

# argument of `service.serve` -> (default, help)
SERVE_OPTIONS = {
    "host": ("127.0.0.1", "address to listen on"),
    "port": (8731, "port to listen on"),
    "workers": (1, "number of worker processes"),
    "timeout_s": (4.0, "time limit of a call, seconds"),
    "memory_mb": (512, "memory limit of a call, MiB"),
    "queue_timeout_s": (30.0, "maximum waiting time of a call, seconds"),
    "max_queue": (2000, "maximum number of waiting calls"),
    "output_chars": (2000, "maximum number of output characters"),
}


def main(argv: list[str] | None = None) -> int:
    """Run the command; return 0, or 1 if the machine is below the level "standard"."""
    parser = argparse.ArgumentParser(prog="drlib sandbox", description=__doc__)
    add_examples(parser, "drlib sandbox probe", "drlib sandbox serve --port 8731 --workers 4")
    commands = parser.add_subparsers(dest="command", required=True)
    about = "print the isolation mechanisms that this machine supports"
    add_examples(commands.add_parser("probe", help=about, description=about), "drlib sandbox probe")
    about = "run Python calls over HTTP"
    serve = commands.add_parser("serve", help=about, description=about)
    add_examples(serve, "drlib sandbox serve --port 8731 --workers 4 --memory-mb 1024")
    for name, (value, about) in SERVE_OPTIONS.items():
        option = "--" + name.removesuffix("_s").replace("_", "-")
        serve.add_argument(
            option, dest=name, type=type(value), default=value, help=f"{about} ({value})"
        )
    serve.add_argument(
        "--min-level",
        choices=LEVELS[2:],
        default="standard",
        help="refuse to start below this isolation level (standard)",
    )
    options = vars(parser.parse_args(argv))
    if options.pop("command") == "serve":
        from drlib.sandbox import service

        return service.serve(**options)
    support = probe()
    print(support.table())
    return 0 if LEVELS.index(support.level) >= LEVELS.index("standard") else 1
