"""Mutants of what is registered by name (see `tests.mutants`)."""

from tests.mutants import Mutant

MUTANTS = [
    Mutant(
        "registry: a name is replaced in silence",
        "drlib/registry.py",
        "        if name in self:",
        "        if False:",
        ("tests/test_registry.py",),
        "a run is made with another clip than the one it names",
    ),
    Mutant(
        "registry: a plugin's fault is swallowed",
        "drlib/registry.py",
        "            raise _broken(name, error) from error\n\n",
        "            pass\n\n",
        ("tests/test_registry.py",),
        "a stage runs without what the plugin registers",
    ),
    Mutant(
        "tools: a policy's invented argument is handed on",
        "drlib/tools/definitions.py",
        "return [{p.name: arguments[p.name] for p in self.parameters}]",
        "return [dict(arguments)]",
        ("tests/test_tools_registered.py",),
        "one wrong word of the policy ends the run with a TypeError",
    ),
]
