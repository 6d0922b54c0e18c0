"""`python -m drlib.sandbox probe`: which layers hold here; exit code 1 below "standard".
`python -m drlib.sandbox serve`: a sandbox behind HTTP (service.py)."""

from __future__ import annotations

import argparse

from drlib.sandbox.selftest import LEVELS, probe

# Of a service, by the argument of `service.serve` that they are.
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
    """Print the table of `probe()`, or serve."""
    parser = argparse.ArgumentParser(prog="python -m drlib.sandbox", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("probe", help="print what this machine can isolate")
    serve = commands.add_parser("serve", help="answer calls over HTTP")
    for name, value in SERVE_DEFAULTS.items():
        option = "--" + name.removesuffix("_s").replace("_", "-")
        serve.add_argument(
            option, dest=name, type=type(value), default=value, help=f"default: {value}"
        )
    serve.add_argument("--min-level", choices=LEVELS[2:], default="standard")
    asked = vars(parser.parse_args(argv))
    if asked.pop("command") == "serve":
        from drlib.sandbox import service

        return service.serve(**asked)
    found = probe()
    print(found.table())
    return 0 if LEVELS.index(found.level) >= LEVELS.index("standard") else 1


if __name__ == "__main__":
    raise SystemExit(main())
