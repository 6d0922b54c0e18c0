"""Run one module of this package in a process that has no access to the rest of drlib.

`python launcher.py MODULE ARGUMENT`, by path. Two empty packages let the modules of the template
process import each other by their usual names. They are removed before `main` runs, so forked
generated code finds no drlib. `sys.path` would not work: it is split at ":", and modules of this
folder could shadow packages of the same name.
"""

import importlib
import os
import sys
import types


def main() -> None:
    """Import drlib.sandbox.MODULE and call its `main` with ARGUMENT."""
    name, argument = sys.argv[1:]
    here = os.path.dirname(os.path.abspath(__file__))
    sys.modules["drlib"] = _make_package("drlib", [])
    sys.modules["drlib.sandbox"] = _make_package("drlib.sandbox", [here])
    module = importlib.import_module(f"drlib.sandbox.{name}")
    for loaded in list(sys.modules):
        if loaded.split(".")[0] == "drlib":
            del sys.modules[loaded]
    module.main(argument)


def _make_package(name: str, folders: list[str]) -> types.ModuleType:
    """Create an empty package that finds its modules in `folders`."""
    package = types.ModuleType(name)
    package.__path__ = folders
    return package


if __name__ == "__main__":
    main()
