"""`drlib sandbox probe|serve`: show what this machine can isolate, or serve calls over HTTP.

`probe` exits with status 1 below the level "standard".
"""

import argparse

from drlib.sandbox.selftest import LEVELS, probe

# Arguments of `service.serve`.
SERVE_DEFAULTS = {
    "host": "127.0.0.1",
    "port": 8731,
    "workers": 1,
    "timeout_s": 4.0,
    "memory_mb": 512,
    "queue_timeout_s": 30.0,
    "max_queue": 2000,
    "output_chars": 2000,
}


def main(argv: list[str] | None = None) -> int:
    """Run the command; return 0, or 1 if the machine is below the level "standard"."""
    parser = argparse.ArgumentParser(prog="drlib sandbox", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("probe", help="print what this machine can isolate")
    serve = commands.add_parser("serve", help="answer calls over HTTP")
    for name, value in SERVE_DEFAULTS.items():
        option = "--" + name.removesuffix("_s").replace("_", "-")
        serve.add_argument(
            option, dest=name, type=type(value), default=value, help=f"default: {value}"
        )
    serve.add_argument("--min-level", choices=LEVELS[2:], default="standard")
    options = vars(parser.parse_args(argv))
    if options.pop("command") == "serve":
        from drlib.sandbox import service

        return service.serve(**options)
    found = probe()
    print(found.table())
    return 0 if LEVELS.index(found.level) >= LEVELS.index("standard") else 1
