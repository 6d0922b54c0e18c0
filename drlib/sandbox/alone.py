"""Start one module of this room in a process that sees nothing else of drlib.

`python alone.py MODULE ARGUMENT`, by path. The modules of the template process import each other
by their usual names through two empty packages, which are taken away again before `main` runs:
generated code that is forked from there finds no drlib. (`sys.path` is no way: it is split at a
":", and modules of this folder could hide packages of the same name.)
"""

import importlib
import os
import sys
import types


def main() -> None:
    """Import drlib.sandbox.MODULE and hand ARGUMENT to its `main`."""
    name, argument = sys.argv[1:]
    here = os.path.dirname(os.path.abspath(__file__))
    sys.modules["drlib"] = _package("drlib", [])
    sys.modules["drlib.sandbox"] = _package("drlib.sandbox", [here])
    module = importlib.import_module(f"drlib.sandbox.{name}")
    for loaded in list(sys.modules):
        if loaded.split(".")[0] == "drlib":
            del sys.modules[loaded]
    module.main(argument)


def _package(name: str, folders: list[str]) -> types.ModuleType:
    """An empty package whose modules are looked for in `folders`."""
    package = types.ModuleType(name)
    package.__path__ = folders
    return package


if __name__ == "__main__":
    main()
