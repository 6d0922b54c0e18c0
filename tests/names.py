"""Public names of the library that nothing uses, found by resolving imports.

A public name is a function or class at the top of a module without a leading underscore. Other
modules, notebooks, programs under tests/benchmarks, and the Python code and dotted names of
Markdown pages are users; tests are not. A `main` is a command, and `load_world` imports each
world's `load` by name. The names of `drlib.__all__` need no other user.
"""

import ast
import json
import re
from collections import defaultdict
from pathlib import Path

import drlib

ROOT = Path(__file__).resolve().parents[1]
PROMISED = frozenset(
    name.rpartition(":")[2] or name for name in drlib._PUBLIC.values()
) | frozenset(drlib._PUBLIC)

# Parts of mechanisms in docs/papers.md that no run uses yet.
COMPANIONS = frozenset(
    """
    expert_load distillation_loss
    """.split()
)


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def public_names() -> dict[str, set[str]]:
    """Return module -> its public functions and classes."""
    found = {}
    for path in (ROOT / "drlib").rglob("*.py"):
        defined = ast.parse(path.read_text(encoding="utf-8")).body
        kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        names = {d.name for d in defined if isinstance(d, kinds) and not d.name.startswith("_")}
        found[module_name(path)] = names
    return found


def exported() -> dict[tuple[str, str], tuple[str, str]]:
    """Return (module, imported name) -> (module, name) of the definition."""
    found = {}
    for path in (ROOT / "drlib").rglob("__init__.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("drlib"):
                for alias in node.names:
                    here = module_name(path), alias.asname or alias.name
                    found[here] = node.module, alias.name
    return found


def sources() -> dict[str, str]:
    """Return the code of all users (modules, notebooks, benchmarks, pages) by name."""
    found = {}
    for folder in ("drlib", "tests/benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            found[module_name(path)] = path.read_text(encoding="utf-8")
    for path in (ROOT / "notebooks").rglob("*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        text = re.sub(r"^\s*[%!].*$", "", "\n".join(code), flags=re.M)
        found[path.relative_to(ROOT).as_posix()] = text
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
        text = path.read_text(encoding="utf-8")
        blocks = re.findall(r"```python\n(.*?)```", text, re.S)
        dotted = re.findall(r"`(drlib(?:\.\w+)+)\.(\w+)", text)
        named = [f"from {module} import {name}" for module, name in dotted]
        found[path.name] = "\n".join([*blocks, *named])
    return found


def uses(code: str, modules: set[str]) -> set[tuple[str, str]]:
    """Return the (module, name) pairs of the library that code imports or accesses by attribute."""
    tree, found, alias_of = ast.parse(code), set(), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("drlib"):
            for alias in node.names:
                dotted_name = f"{node.module}.{alias.name}"
                if dotted_name in modules:
                    alias_of[alias.asname or alias.name] = dotted_name
                found.add((node.module, alias.name))
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("drlib"):
                    alias_of[alias.asname or alias.name] = alias.name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            module = alias_of.get(ast.unparse(node.value))
            if module:
                found.add((module, node.attr))
    return found


def named_in_strings(code: str, modules: set[str]) -> set[tuple[str, str]]:
    """Return (module, name) of "module:name" strings, which registries use for lazy loading."""
    pairs = re.findall(r'"(drlib[\w.]*|[\w.]*):(\w+)"', code)
    return {(module, name) for module, name in pairs if module in modules}


def reached_names(module: str, used: set[str]) -> set[str]:
    """Return the top-level names of a module that the used names depend on, including themselves.

    The module's own statements (a registry's table, the call under `__main__`) always run.
    """
    path = ROOT / (module.replace(".", "/") + ".py")
    path = path if path.exists() else path.with_suffix("") / "__init__.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    definitions = {d.name: d for d in tree.body if isinstance(d, kinds)}

    def names_in(node: ast.AST) -> set[str]:
        texts = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant)}
        quoted = {name for text in texts if isinstance(text, str) for name in text.split(".")}
        return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} | (
            quoted & definitions.keys()
        )

    statements = [node for node in tree.body if not isinstance(node, kinds)]
    statements += [d for definition in definitions.values() for d in definition.decorator_list]
    registered = {d.name for d in definitions.values() if d.decorator_list and _registers(d)}
    pending = used | registered | {name for node in statements for name in names_in(node)}
    reached: set[str] = set()
    while pending:
        name = pending.pop()
        if name in definitions and name not in reached:
            reached.add(name)
            pending |= names_in(definitions[name]) - reached
    return reached


def _registers(definition) -> bool:
    """Return True if a decorator registers it."""
    texts = [ast.unparse(decorator) for decorator in definition.decorator_list]
    return any("register" in text or text.startswith("operator(") for text in texts)


def without_user(promised: set[str] = frozenset()) -> dict[str, list[str]]:
    """Return module -> public names that only tests use.

    promised: names that count as used.
    """
    names, reexported, used = public_names(), exported(), defaultdict(set)
    modules = {*names}
    for where, code in sources().items():
        for module, name in uses(code, modules) | named_in_strings(code, modules):
            while reexported.get((module, name), (module, name)) != (module, name):
                module, name = reexported[module, name]
            if module != where:
                used[module].add(name)
    left = {}
    for module, module_names in sorted(names.items()):
        started = {"main"} | ({"load"} if module.startswith("drlib.worlds.") else set())
        used[module] |= module_names & started
        unused = module_names - reached_names(module, used[module] | (promised & module_names))
        if unused:
            left[module] = sorted(unused)
    return left
