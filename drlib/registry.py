"""Registries: named extension points for rewards, advantages, clips, worlds, tools and others.

Each package has its own `Registry`. A notebook or another package adds an entry in one line, and a
setting then selects it by name. A stage runs in a separate process, where it imports the modules
listed as plugins (`load_plugins`), which register their entries again.

    from drlib.worlds import WORLDS
    WORLDS.register("mine", load_my_world)
"""

import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import Any


class Registry(dict):
    """Objects of one `kind` by name.

    Example:
        >>> clips = Registry("clip")
        >>> @clips.register("none")
        ... def no_clip(ratio):
        ...     return ratio
        >>> clips["none"](3)
        3

    Raises:
        ValueError: an unknown name (the message suggests a similar one), or a name that is taken:
            entries are never replaced silently.
    """

    def __init__(self, kind: str):
        super().__init__()
        self.kind = kind

    def register(self, name: str, thing: Any = None, *, replace: bool = False) -> Callable | Any:
        """Add `thing` and return it; without `thing`, return a decorator.

        Args:
            name: key of the entry.
            thing: any object but None.
            replace: allow an existing name, for example when a notebook cell runs again.

        Raises:
            ValueError: the name is empty or taken.
        """
        if thing is None:
            return lambda decorated: self.register(name, decorated, replace=replace)
        if replace:
            self.pop(name, None)
        self[name] = thing
        return thing

    def __setitem__(self, name: str, thing: Any) -> None:
        if not isinstance(name, str) or not name:
            raise ValueError(f"the name of a {self.kind} must be a non-empty string, got {name!r}")
        if name in self:
            raise ValueError(
                f"{self.kind} {name!r} is already registered ({self[name]!r}): "
                "use another name, or pass replace=True"
            )
        super().__setitem__(name, thing)

    def __missing__(self, name: str) -> Any:
        raise ValueError(f"unknown {self.kind} {name!r}: {suggest_name(name, self)}")


def suggest_name(word: str, known: Iterable[str]) -> str:
    """Return the end of an error message: the most similar name, and all names."""
    names = sorted(known)
    close = difflib.get_close_matches(str(word), names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}Known: {', '.join(names)}"


def plugin_names(names: str) -> list[str]:
    """Return the modules in a text such as "mypackage.rewards, mytools"; [] for ""."""
    return [part.strip() for part in names.split(",") if part.strip()]


def load_plugins(names: str) -> None:
    """Import modules such as "mypackage.rewards,mytools" for the entries that they register.

    They are found in the working directory, on PYTHONPATH, or installed. Repeated calls have no
    effect.

    Raises:
        ValueError: a module is missing, or fails at the reported line.
    """
    if plugin_names(names) and not {"", os.getcwd()} & {*sys.path}:
        sys.path.insert(0, os.getcwd())  # a console script has the folder of the script instead
    for name in plugin_names(names):
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(
                f"plugin {name!r}: not a module name; use the form of `import`, such as my.tools"
            )
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing = error.name or name
            if name != missing and not name.startswith(f"{missing}."):
                raise _broken(name, error) from error
            raise ValueError(
                f"plugin {name!r}: no module {missing!r}: start in its folder, "
                "add its folder to PYTHONPATH, or install it"
            ) from error
        except Exception as error:
            raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> ValueError:
    """Return the error for a plugin that raised `error` when it was imported."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    what = f"{type(error).__name__}: {error}"
    return ValueError(
        f"plugin {name!r} cannot be imported: {what} ({where.filename}:{where.lineno})"
    )
