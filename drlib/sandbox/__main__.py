"""`python -m drlib.sandbox probe`: which layers hold here; exit code 1 below "standard"."""

from __future__ import annotations

import argparse

from drlib.sandbox.probing import LEVELS, probe


def main(arguments: list[str] | None = None) -> int:
    """Print the table of `probe()`."""
    parser = argparse.ArgumentParser(prog="python -m drlib.sandbox", description=__doc__)
    parser.add_argument("command", choices=["probe"])
    parser.parse_args(arguments)
    found = probe()
    print(found.table())
    return 0 if LEVELS.index(found.level) >= LEVELS.index("standard") else 1


if __name__ == "__main__":
    raise SystemExit(main())
