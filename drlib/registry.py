"""Names under which a thing can be chosen: rewards, advantages, clips, worlds, tools, and yours.

Each room keeps a `Registry` of its own. A notebook or another package puts something into it with
one line, and from then on a setting chooses it by name. A stage runs in a process of its own: there
it imports the modules named as its plugins (`load_plugins`), and these register again.
"""

import difflib
import importlib
import traceback
from collections.abc import Callable, Iterable
from typing import Any


class Registry(dict):
    """Things of one `kind` by name: `registry[name]`, and `register` to add one.

    ValueError for a name that is not there, with the one that was perhaps meant, and for a name
    that is there already: nothing is replaced in silence.
    """

    def __init__(self, kind: str):
        super().__init__()
        self.kind = kind

    def register(self, name: str, thing: Any = None, *, replace: bool = False) -> Callable | Any:
        """Add `thing` and return it; without it, a decorator that adds what stands below it.

        replace: whether the name may stand for something else already, as when a cell runs again.
        """
        if thing is None:
            return lambda decorated: self.register(name, decorated, replace=replace)
        if replace:
            self.pop(name, None)
        self[name] = thing
        return thing

    def __setitem__(self, name: str, thing: Any) -> None:
        if not isinstance(name, str) or not name:
            raise ValueError(f"the name of a {self.kind} is a text, got {name!r}")
        if name in self:
            raise ValueError(
                f"there is a {self.kind} {name!r} already ({self[name]!r}): "
                "choose another name, or pass replace=True"
            )
        super().__setitem__(name, thing)

    def __missing__(self, name: str) -> Any:
        raise ValueError(f"unknown {self.kind} {name!r}: {nearest(name, self)}")


def nearest(word: str, known: Iterable[str]) -> str:
    """For an error message: the known name that `word` may mean, and all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(str(word), names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}Known: {', '.join(names)}"


def plugin_names(names: str) -> list[str]:
    """The modules named in a text such as "mypackage.rewards, mytools"; none in ""."""
    return [part.strip() for part in names.split(",") if part.strip()]


def load_plugins(names: str) -> None:
    """Import modules, such as "mypackage.rewards,mytools", for what they register; "" for none.

    They are found as any import is: beside the program that is started, on PYTHONPATH, or
    installed. A second call imports nothing again. ValueError names the module that is not there,
    or the line at which one fails.
    """
    for name in plugin_names(names):
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"plugin {name!r}: give a module as `import` has it, such as my.tools")
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing = error.name or name
            if name != missing and not name.startswith(f"{missing}."):
                raise _broken(name, error) from error
            raise ValueError(
                f"plugin {name!r}: no module {missing!r} is found; start in its folder, "
                "put that on PYTHONPATH, or install it"
            ) from error
        except Exception as error:
            raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> ValueError:
    """What the plugin `name` raised when it was imported, and where."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    what = f"{type(error).__name__}: {error}"
    return ValueError(
        f"plugin {name!r} cannot be imported: {what} ({where.filename}:{where.lineno})"
    )
