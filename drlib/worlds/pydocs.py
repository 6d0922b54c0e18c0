"""World `pydocs`: Python's standard library, whose facts can be verified by running Python.

`inspect` gives runtime facts (classes, base classes, methods, signatures), `ast` facts of the
source (imports, raised exceptions); docstrings are the text. Facts that execution does not confirm
are left out: modules that cannot be imported, raised names that are no exception or not used by the
compiled function, and imports whose name the module does not bind.

Titles are dotted names of public objects under the module that defines them. An object defined in a
private or C module belongs to the first public module that exposes it (`heapq.heappush`). A
parameter named like a module is "time (parameter)". `self` is counted but is no fact, as thousands
of methods have it. Importing all modules has side effects, so a subprocess does it.

Each Python version gives another version of this world; about a quarter of the facts change from
3.11 to 3.14. Not included: tests, programs (idlelib), codecs, properties, constants, inherited
methods, and second names of an object.
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

# programs, tests, tables, modules with import side effects, parts of `os`, removed in 3.12
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
BODY = 6000  # characters kept of a docstring
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
EMPTY_TREE = ast.Module([], [])


def load(rest: str = "", index_path: Path | None = None) -> Library:
    """Load the world; its index is kept at `index_path` or in memory."""
    if rest:
        raise ValueError(f"world 'pydocs' takes no argument, got {rest!r}")
    store = Store(index_path, "pydocs")
    made_by = sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    store.update({"pydocs": f"{sys.version}, {made_by}"}, lambda _: read_standard_library())
    return Library("pydocs", store, "pydocs")


def read_standard_library() -> Part:
    """Read documents, nodes and facts in a subprocess of the same Python.

    Raises:
        RuntimeError: the subprocess failed; the message ends with its error output.
    """
    # the library's files first: with -P, a user's `code.py` cannot shadow a module
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


def import_modules() -> dict:
    """Import the public modules available here; return them by name."""
    root = Path(LIBRARY[0])
    files = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        for path in root.rglob("*.py")
    }
    found = {}
    for name in sorted(files | sys.stdlib_module_names):
        parts = name.split(".")
        is_public = not any(part[0] == "_" or part in SKIP for part in parts)
        if parts[0] not in sys.stdlib_module_names or not is_public:
            continue
        try:
            module = importlib.import_module(name)
        except (ImportError, AttributeError, OSError):  # other platform, or not installed
            continue
        file = getattr(module, "__file__", None) or root  # no file: built into the interpreter
        if any(Path(file).is_relative_to(place) for place in LIBRARY if place):
            found[name] = module
    return found


class StandardLibrary:
    """Public objects by title, titles by identity, and the functions of all source files."""

    def __init__(self) -> None:
        self.modules = import_modules()
        self.found: dict[str, object] = {}
        self.titles: dict[int, str] = {}  # `id` of the object -> title
        for name in sorted(self.modules, key=lambda name: (name.count("."), name)):
            self._claim(name, name, self.modules[name])
        files = {getattr(module, "__file__", None) or "" for module in self.modules.values()}
        self.trees = {
            file: ast.parse(Path(file).read_bytes())
            for file in sorted(files)
            if file.endswith(".py")
        }
        self.functions = {
            (file, _first_line(node)): node
            for file, tree in self.trees.items()
            for node in ast.walk(tree)
            if isinstance(node, FUNCTIONS)
        }

    def _claim(self, title: str, module: str, thing: object) -> None:
        """Assign titles to `thing` and its members if they belong to `module`."""
        if title in self.found or id(thing) in self.titles:
            return
        self.found[title] = thing
        self.titles[id(thing)] = title
        for name in sorted(vars(thing)) if not inspect.isroutine(thing) else ():
            inner = getattr(thing, name, None)
            home = getattr(inner, "__module__", None)
            is_named_so = getattr(inner, "__name__", "") == name and name[0] != "_"
            is_defined_here = home == module or home not in self.modules
            is_page = inspect.isclass(inner) or inspect.isroutine(inner)
            title_of_inner = f"{title}.{name}"
            if is_named_so and is_page and is_defined_here and title_of_inner not in self.modules:
                self._claim(title_of_inner, module, inner)

    def kind(self, title: str) -> str:
        """Return "module", "class", "exception", "method" or "function"."""
        thing = self.found[title]
        if inspect.isclass(thing):
            return "exception" if issubclass(thing, BaseException) else "class"
        if inspect.ismodule(thing):
            return "module"
        owner = self.found.get(title.rpartition(".")[0])
        return "method" if inspect.isclass(owner) else "function"

    def facts(self, title: str) -> Iterator[Fact]:
        """Yield the facts of an object's own definition."""
        thing = self.found[title]
        owner = title.rpartition(".")[0]
        kind = self.kind(title)
        if owner in self.found:
            yield owner, "part" if kind == "module" else kind, title
        if kind == "module":
            for name in self._imports(thing):
                yield title, "imported module", name
        elif inspect.isclass(thing):
            bases = [self.titles.get(id(base)) for base in thing.__bases__ if base is not object]
            yield from ((base, "subclass", title) for base in bases if base)
        else:
            for name in self._raises(thing):
                yield title, "raised exception", name
            yield from self._parameters(title, thing)

    def _parameters(self, title: str, function) -> Iterator[Fact]:
        try:
            parameters = inspect.signature(function).parameters
        except (ValueError, TypeError, AttributeError):  # C code without signature
            return
        yield title, "number of parameters", str(len(parameters))
        for name in parameters:
            if name != "self":
                yield title, "parameter", f"{name} (parameter)" if name in self.found else name

    def _imports(self, module) -> Iterator[str]:
        """Yield the modules imported by its own statements, if the bound name exists."""
        for node in iter_own_nodes(self.trees.get(getattr(module, "__file__", None), EMPTY_TREE)):
            if isinstance(node, ast.Import):
                base = ""
            elif isinstance(node, ast.ImportFrom):
                relative = "." * node.level + (node.module or "")
                base = importlib.util.resolve_name(relative, module.__package__)
            else:
                continue
            for alias in node.names:
                name = f"{base}.{alias.name}" if base else alias.name
                name = name if name in self.modules else base
                if name not in self.modules or name == module.__name__:
                    continue
                bound = alias.asname or (alias.name if base else alias.name.partition(".")[0])
                bound_value = vars(module).get(bound)
                # a branch that was not taken may bind something else
                if name == base:
                    is_bound = bound_value is not None and bound_value is vars(
                        self.modules[name]
                    ).get(alias.name)
                else:
                    is_bound = inspect.ismodule(bound_value)
                if is_bound:
                    yield name

    def _raises(self, function) -> Iterator[str]:
        """Yield the exceptions in its own raise statements that its compiled code uses."""
        function = inspect.unwrap(function)
        code = getattr(function, "__code__", None)
        scope = getattr(function, "__globals__", {})
        place = (code.co_filename, code.co_firstlineno) if code else None
        for node in iter_own_nodes(self.functions.get(place, EMPTY_TREE)):
            if not isinstance(node, ast.Raise) or not node.exc:
                continue
            raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            name = getattr(raised, "id", "")  # "" for an attribute of another module
            thing = scope.get(name, vars(builtins).get(name))
            is_exception = inspect.isclass(thing) and issubclass(thing, BaseException)
            if is_exception and id(thing) in self.titles and name in code.co_names:
                yield self.titles[id(thing)]

    def document(self, title: str) -> Document:
        """Return the page: a description and the docstring."""
        owner = title.rpartition(".")[0]
        place = owner if owner in self.found else "Python's standard library"
        text = (inspect.getdoc(self.found[title]) or "")[:BODY]
        return Document(title, f"{title} is a {self.kind(title)} of {place}.\n\n{text}".strip())


def _first_line(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the first line as compiled code reports it: that of the first decorator."""
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def iter_own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run with `node`, without nested functions and classes."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            yield child
            yield from iter_own_nodes(child)


def _alias(title: str) -> tuple[str, ...]:
    """Return the short name of a built-in: `len` for `builtins.len`."""
    return (title.removeprefix("builtins."),) if title.startswith("builtins.") else ()


def main() -> None:
    """Run the subprocess of `read_standard_library`: print one JSON line after other output."""
    reading = StandardLibrary()
    titles = sorted(reading.found)
    rows = [
        [reading.document(title) for title in titles],
        [Node(title, reading.kind(title), _alias(title)) for title in titles],
        sorted({fact for title in titles for fact in reading.facts(title)}),
    ]
    print("\n" + json.dumps(rows))


if __name__ == "__main__":
    main()
