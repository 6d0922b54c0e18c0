"""Registries and plugins."""

import subprocess
import sys

import pytest

from drlib.registry import Registry, load_plugins, suggest_name


def a_registry():
    fruits = Registry("fruit")
    fruits.register("apple", 1)
    fruits.register("pear", 2)
    return fruits


def test_register_by_call_or_decorator():
    fruits = a_registry()

    @fruits.register("plum")
    def plum():
        return "blue"

    assert fruits["apple"] == 1 and fruits["plum"] is plum and plum() == "blue"
    assert list(fruits) == ["apple", "pear", "plum"]
    assert fruits.register("fig", 3) == 3


def test_unknown_name_raises_with_a_suggestion():
    fruits = a_registry()
    with pytest.raises(
        ValueError, match="unknown fruit 'aple': did you mean 'apple'. Known: apple"
    ):
        fruits["aple"]
    assert "aple" not in fruits and fruits.get("aple") is None


def test_replacing_needs_replace_true():
    fruits = a_registry()
    for add in (lambda: fruits.register("pear", 5), lambda: fruits.__setitem__("pear", 5)):
        with pytest.raises(ValueError, match="fruit 'pear' is already registered .*replace=True"):
            add()
    assert fruits["pear"] == 2
    fruits.register("pear", 5, replace=True)
    fruits.register("cherry", replace=True)(7)
    assert (fruits["pear"], fruits["cherry"]) == (5, 7)


def test_name_must_be_a_string():
    for name in ("", None, max):
        with pytest.raises(ValueError, match="the name of a fruit must be"):
            a_registry().register(name, 1)


def test_suggest_name():
    assert suggest_name("laptpo", ["laptop", "ci"]) == "did you mean 'laptop'? Known: ci, laptop"
    assert suggest_name("zzz", ["laptop", "ci"]) == "Known: ci, laptop"


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    """Create a folder of modules on the path; forget imported modules afterwards."""
    sources = {
        "plug_good": "from plug_log import seen\nseen.append('good')",
        "plug_more": "from plug_log import seen\nseen.append('more')",
        "plug_log": "seen = []",
        "plug_typo": "x = 1\nunknown_name",
        "plug_needs": "import a_module_that_is_not_there",
        "plug_syntax": "def broken(:\n",
    }
    for name, source in sources.items():
        (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in sources:
        sys.modules.pop(name, None)


def test_plugins_are_imported_once_in_order(plugins):
    load_plugins("")
    load_plugins(" plug_good, plug_more ,")
    load_plugins("plug_good")
    assert sys.modules["plug_log"].seen == ["good", "more"]


@pytest.mark.parametrize(
    "names, message",
    [
        ("plug_good,plug_gone", "plugin 'plug_gone': no module 'plug_gone'"),
        ("plug_gone.inner", "plugin 'plug_gone.inner': no module 'plug_gone'"),
        ("plug_good.py", "no module 'plug_good.py'"),
        ("my-plugin", "plugin 'my-plugin': not a module name"),
        ("./plug_good", "not a module name"),
        ("plug_typo", r"'plug_typo' cannot be imported: NameError: .*plug_typo.py:2\)"),
        ("plug_needs", r"imported: ModuleNotFoundError: .*a_module_that_is_not_there.*needs.py:1"),
        ("plug_syntax", "'plug_syntax' cannot be imported: SyntaxError"),
    ],
)
def test_broken_plugin_is_named_with_the_cause(plugins, names, message):
    with pytest.raises(ValueError, match=message):
        load_plugins(names)


def test_registry_imports_no_library():
    """Every module imports it, so it must be light."""
    code = "import sys, drlib.registry; print(sorted({'torch', 'numpy', 'yaml'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
