"""Public names of `drlib`: lazy import, documentation, and registration of extensions."""

import doctest
import subprocess
import sys
from importlib import import_module

import pytest

import drlib
from drlib.tools.definitions import Tool
from drlib.training import extensions


@pytest.mark.parametrize("name", [name for name in drlib.__all__ if name != "__version__"])
def test_every_public_name_is_importable_and_documented(name):
    value = getattr(drlib, name)
    module, _, attribute = drlib._PUBLIC[name].partition(":")
    assert value is getattr(import_module(module), attribute or name)
    assert value.__doc__
    assert name in dir(drlib)


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="'drlib' has no attribute 'nothing'"):
        _ = drlib.nothing
    with pytest.raises(ImportError, match="nothing"):
        exec("from drlib import nothing")


def test_importing_drlib_loads_no_model_library():
    code = (
        "import sys, drlib; sys.exit(' '.join({'torch', 'numpy', 'yaml'} & set(sys.modules)) or 0)"
    )
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert completed.returncode == 0, completed.stderr


@pytest.mark.parametrize("module", [drlib, extensions], ids=lambda module: module.__name__)
def test_docstring_examples_run(module):
    result = doctest.testmod(module)
    assert result.attempted > 0 and result.failed == 0


def make_extension(kind):
    """Return anything that may be registered; a tool must be one."""
    return Tool("toy", "A toy.", (), run=str) if kind == "tool" else object()


@pytest.mark.parametrize("kind", dir(drlib.register))
def test_every_kind_of_extension_can_be_registered(kind):
    """A name can be registered once, replaced explicitly, and looked up."""
    module, _, name = extensions.REGISTRIES[kind].partition(":")
    registry = getattr(import_module(module), name)
    before = dict(registry)
    try:
        extension, other, third = (make_extension(kind) for _ in range(3))
        assert registry.register("toy", extension) is extension and registry["toy"] is extension
        with pytest.raises(ValueError, match=f"{kind} 'toy' is already registered"):
            registry.register("toy", third)
        registry.register("toy", other, replace=True)
        assert registry["toy"] is other
        assert getattr(drlib.register, kind) == registry.register
    finally:
        registry.clear()
        registry.update(before)


def test_unknown_kind_of_extension_lists_the_known_ones():
    with pytest.raises(AttributeError, match="no registry of 'rewards'; available: reward"):
        _ = drlib.register.rewards
