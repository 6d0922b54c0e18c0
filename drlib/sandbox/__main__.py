"""`python -m drlib.sandbox probe`: which layers hold here; exit code 1 below "standard".
`python -m drlib.sandbox serve`: a sandbox behind HTTP (service.py)."""

from __future__ import annotations

import argparse

from drlib.sandbox.probing import LEVELS, probe


def main(arguments: list[str] | None = None) -> int:
    """Print the table of `probe()`, or serve."""
    parser = argparse.ArgumentParser(prog="python -m drlib.sandbox", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("probe", help="print what this machine can isolate")
    serve = commands.add_parser("serve", help="answer calls over HTTP")
    for name, kind, value in (
        ("host", str, "127.0.0.1"), ("port", int, 8731), ("workers", int, 1),
        ("timeout", float, 4.0), ("memory-mb", int, 512), ("queue-timeout", float, 30.0),
        ("max-queue", int, 2000), ("output-chars", int, 2000),
    ):  # fmt: skip
        serve.add_argument(f"--{name}", type=kind, default=value, help=f"default: {value}")
    serve.add_argument("--min-level", choices=LEVELS[2:], default="standard")
    asked = vars(parser.parse_args(arguments))
    if asked.pop("command") == "serve":
        from drlib.sandbox import service

        times = {name + "_s": asked.pop(name) for name in ("timeout", "queue_timeout")}
        return service.serve(**asked, **times)
    found = probe()
    print(found.table())
    return 0 if LEVELS.index(found.level) >= LEVELS.index("standard") else 1


if __name__ == "__main__":
    raise SystemExit(main())
