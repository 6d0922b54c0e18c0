"""Start one module of this room in a process that sees nothing else of drlib.

`python alone.py MODULE ARGUMENT`, by path. The modules of the template process import each other
by their usual names through two empty packages, which are taken away again before `main` runs:
generated code that is forked from there finds no drlib. (`sys.path` is no way: it is split at a
":", and `ray.py` in this folder would hide the package of that name.)
"""

import importlib
import os
import sys
import types


def main() -> None:
    """Import drlib.sandbox.MODULE and hand ARGUMENT to its `main`."""
    name, argument = sys.argv[1:]
    here = os.path.dirname(os.path.abspath(__file__))
    for package, folders in (("drlib", []), ("drlib.sandbox", [here])):
        sys.modules[package] = types.ModuleType(package)
        sys.modules[package].__path__ = folders
    module = importlib.import_module(f"drlib.sandbox.{name}")
    for loaded in list(sys.modules):
        if loaded.split(".")[0] == "drlib":
            del sys.modules[loaded]
    module.main(argument)


if __name__ == "__main__":
    main()
