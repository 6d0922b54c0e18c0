"""The world `pydocs`: Python's standard library, whose facts can be checked by running Python.

`inspect` gives what can be executed (classes, base classes, methods, signatures), `ast` what only
the source tells (imports, raised exceptions), docstrings are real prose. What execution does not
confirm is left out: a module that cannot be imported here, a name that is raised but is no
exception or not used by the compiled function, an import whose name the module does not hold or
holds for something else.

Titles are dotted names of public things, under the module that defines them; what a private or C
module defines is under the first public module that shows it (`heapq.heappush`). Parameters are
those of `inspect.signature`. One named as a module is "time (parameter)": it is not that module.
`self` is counted but no fact: thousands of methods have it. All modules are imported, so a child
process does it.
Another Python gives another version of this world: about a quarter of its facts change from 3.11 to
3.14. Left out: tests, programs (idlelib), codecs, properties, constants, inherited methods, and
second names of one thing.
"""

import ast
import builtins
import importlib.util
import inspect
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from drlib.worlds.graph import Fact, Node
from drlib.worlds.library import Library
from drlib.worlds.store import Document, Part, Store

# programs, tests, tables, what acts when it is imported, what `os` shows, what is gone in 3.12
SKIP = {
    "antigravity",
    "distutils",
    "encodings",
    "idlelib",
    "lib2to3",
    "nt",
    "posix",
    "pydoc_data",
    "test",
    "tests",
    "this",
    "turtledemo",
}
LIBRARY = (sysconfig.get_path("stdlib"), sysconfig.get_config_var("DESTSHARED") or "")
BODY = 6000  # characters of a docstring
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
NOTHING = ast.Module([], [])


def load(rest: str = "", index_path: Path | None = None) -> Library:
    """The world, its index kept at `index_path` or in memory."""
    if rest:
        raise ValueError(f"world 'pydocs' takes nothing after its name, got {rest!r}")
    store, own = Store(index_path, "pydocs"), Path(__file__).read_bytes()
    made_by = sha256(own).hexdigest()[:12]
    store.update({"pydocs": f"{sys.version}, {made_by}"}, lambda _: read())
    return Library("pydocs", store, "pydocs")


def read() -> Part:
    """All of it, read by a child of the same Python. RuntimeError: it failed; says how."""
    # first the library's own files: -P and this order keep a user's `code.py` from being taken
    ours = [path for path in (*LIBRARY, *map(os.path.abspath, sys.path)) if path]
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-m", __name__],
        capture_output=True,
        encoding="utf-8",
        stdin=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(ours), "PYTHONIOENCODING": "utf-8"},
    )
    if done.returncode:
        raise RuntimeError(f"reading the standard library failed: {done.stderr[-2000:]}")
    documents, nodes, facts = json.loads(done.stdout.splitlines()[-1])
    return Part(
        [Document(*row) for row in documents],
        [Node(title, kind, tuple(names)) for title, kind, names in nodes],
        [tuple(row) for row in facts],
    )


def modules() -> dict:
    """The public modules that can be imported here, by name."""
    root, found = Path(LIBRARY[0]), {}
    files = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        for path in root.rglob("*.py")
    }
    for name in sorted(files | sys.stdlib_module_names):
        parts = name.split(".")
        if parts[0] in sys.stdlib_module_names and not any(p[0] == "_" or p in SKIP for p in parts):
            try:
                module = importlib.import_module(name)
            except (ImportError, AttributeError, OSError):  # of another platform, not installed
                continue
            file = getattr(module, "__file__", None) or root  # none: it is part of the interpreter
            if any(Path(file).is_relative_to(place) for place in LIBRARY if place):
                found[name] = module
    return found


class Reading:
    """Public things by title, titles by identity, and the functions of all source files."""

    def __init__(self):
        self.modules, self.found, self.titles = modules(), {}, {}
        for name in sorted(self.modules, key=lambda name: (name.count("."), name)):
            self._claim(name, name, self.modules[name])
        files = {getattr(module, "__file__", None) or "" for module in self.modules.values()}
        self.trees = {
            file: ast.parse(Path(file).read_bytes())
            for file in sorted(files)
            if file.endswith(".py")
        }
        # as compiled code names its place: a function begins at its first decorator
        self.functions = {
            (file, min([f.lineno, *(d.lineno for d in f.decorator_list)])): f
            for file, tree in self.trees.items()
            for f in ast.walk(tree)
            if isinstance(f, FUNCTIONS)
        }

    def _claim(self, title: str, module: str, thing) -> None:
        """Give `thing` and what it defines their titles, if they belong to `module`."""
        if title in self.found or id(thing) in self.titles:
            return
        self.found[title], self.titles[id(thing)] = thing, title
        for name in sorted(vars(thing)) if not inspect.isroutine(thing) else ():
            inner, own = getattr(thing, name, None), f"{title}.{name}"
            home = getattr(inner, "__module__", None)
            here = home == module or home not in self.modules
            named = getattr(inner, "__name__", "") == name and name[0] != "_"
            if named and (inspect.isclass(inner) or inspect.isroutine(inner)):
                if own not in self.modules and here:
                    self._claim(own, module, inner)

    def kind(self, title: str) -> str:
        """module, class, exception, method or function"""
        thing, owner = self.found[title], self.found.get(title.rpartition(".")[0])
        if inspect.isclass(thing):
            return "exception" if issubclass(thing, BaseException) else "class"
        return (
            "module"
            if inspect.ismodule(thing)
            else "method"
            if inspect.isclass(owner)
            else "function"
        )

    def facts(self, title: str) -> Iterator[Fact]:
        """What its own definition tells."""
        thing, owner, kind = self.found[title], title.rpartition(".")[0], self.kind(title)
        if owner in self.found:
            yield owner, "part" if kind == "module" else kind, title
        if kind == "module":
            yield from ((title, "imported module", name) for name in self._imports(thing))
        elif inspect.isclass(thing):
            bases = [self.titles.get(id(base)) for base in thing.__bases__ if base is not object]
            yield from ((base, "subclass", title) for base in bases if base)
        else:
            yield from ((title, "raised exception", name) for name in self._raises(thing))
            try:
                parameters = inspect.signature(thing).parameters
            except (ValueError, TypeError, AttributeError):  # C code that does not say
                return
            yield title, "number of parameters", str(len(parameters))
            for name in parameters:
                if name != "self":
                    shown = f"{name} (parameter)" if name in self.found else name
                    yield title, "parameter", shown

    def _imports(self, module) -> Iterator[str]:
        """The modules that its own statements import, where the name that they bind is there."""
        for node in inside(self.trees.get(getattr(module, "__file__", None), NOTHING)):
            base = ""
            if isinstance(node, ast.ImportFrom):
                name = "." * node.level + (node.module or "")
                base = importlib.util.resolve_name(name, module.__package__)
            for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
                name = f"{base}.{alias.name}" if base else alias.name
                name = name if name in self.modules else base
                bound = alias.asname or (alias.name if base else alias.name.partition(".")[0])
                if name in self.modules and name != module.__name__:
                    held, own = vars(module).get(bound), vars(self.modules[name]).get(alias.name)
                    # a branch that was not taken binds something else
                    if held is own is not None if name == base else inspect.ismodule(held):
                        yield name

    def _raises(self, function) -> Iterator[str]:
        """The exceptions in its own raise statements that its compiled code names."""
        function = inspect.unwrap(function)
        code, scope = getattr(function, "__code__", None), getattr(function, "__globals__", {})
        place = (code.co_filename, code.co_firstlineno) if code else None
        for node in inside(self.functions.get(place, NOTHING)):
            if isinstance(node, ast.Raise) and node.exc:
                raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
                name = getattr(raised, "id", "")  # not of another module: no attribute
                thing = scope.get(name, vars(builtins).get(name))
                if inspect.isclass(thing) and issubclass(thing, BaseException):
                    if id(thing) in self.titles and name in code.co_names:
                        yield self.titles[id(thing)]

    def document(self, title: str) -> Document:
        """What it is, and its docstring."""
        owner = title.rpartition(".")[0]
        place = owner if owner in self.found else "Python's standard library"
        text = (inspect.getdoc(self.found[title]) or "")[:BODY]
        return Document(title, f"{title} is a {self.kind(title)} of {place}.\n\n{text}".strip())


def inside(node: ast.AST) -> Iterator[ast.AST]:
    """What runs when `node` does: not the functions and classes that are defined in it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            yield child
            yield from inside(child)


if __name__ == "__main__":
    reading = Reading()
    titles = sorted(reading.found)
    names = {t: (t.removeprefix("builtins."),) if t.startswith("builtins.") else () for t in titles}
    rows = [
        [reading.document(t) for t in titles],
        [Node(t, reading.kind(t), names[t]) for t in titles],
        sorted({fact for t in titles for fact in reading.facts(t)}),
    ]
    print("\n" + json.dumps(rows))
