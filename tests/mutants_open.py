"""Mutants of what is registered by name (see `tests.mutants`)."""

from tests.mutants import Mutant

MUTANTS = [
    Mutant(
        "registry: a name is replaced silently",
        "drlib/registry.py",
        "        if name in self:",
        "        if False:",
        ("tests/test_registry.py",),
        "a run uses another clip than the configured one",
    ),
    Mutant(
        "registry: a plugin's error is ignored",
        "drlib/registry.py",
        "            raise _broken(name, error) from error\n\n",
        "            pass\n\n",
        ("tests/test_registry.py",),
        "a stage runs without what the plugin registers",
    ),
    Mutant(
        "tools: unknown arguments are passed on",
        "drlib/tools/definitions.py",
        "return [{p.name: arguments[p.name] for p in self.parameters}]",
        "return [dict(arguments)]",
        ("tests/test_tools_registered.py",),
        "an invalid argument ends the run with a TypeError",
    ),
]
