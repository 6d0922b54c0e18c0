"""World `pydocs`: facts are verified by running Python.

A subprocess imports the modules and confirms 5,000 sampled facts by other means than those that
produced them: issubclass, compiled code, bytecode.
"""

import json
import random
import subprocess
import sys

import pytest

from drlib.worlds import load_world, read_facts
from drlib.worlds import pydocs as module
from drlib.worlds.graph import Graph

SAMPLE = 2500

CHECK = r"""
import builtins, dis, importlib, importlib.util, inspect, json, pkgutil, sys

def is_number(thing, n):
    thing, bound = getattr(thing, "__func__", thing), inspect.ismethod(thing)
    code = getattr(thing, "__code__", None)
    if code is None or hasattr(thing, "__wrapped__"):
        return len(inspect.signature(thing).parameters) == n
    more = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_argcount + code.co_kwonlyargcount + more - bound == n

def has_parameter(thing, name):
    thing, bound = getattr(thing, "__func__", thing), inspect.ismethod(thing)
    code = getattr(thing, "__code__", None)
    if code is None or hasattr(thing, "__wrapped__"):
        return name in inspect.signature(thing).parameters
    more = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    n = code.co_argcount + code.co_kwonlyargcount + more
    return name in code.co_varnames[bound:n]

def imports(importer, target):
    names = set()
    code = compile(open(importer.__file__, "rb").read(), importer.__file__, "exec")
    for op in dis.get_instructions(code):
        if op.opname in ("IMPORT_NAME", "IMPORT_FROM"):
            names.add(op.argval.rpartition(".")[2])
            if op.argval == "":  # from . import name
                names.add((importer.__package__ or importer.__name__).rpartition(".")[2])
    return target in sys.modules and target.rpartition(".")[2] in names

def raises(thing, title):
    error, code = pkgutil.resolve_name(title), inspect.unwrap(thing).__code__
    scope = {**vars(builtins), **inspect.unwrap(thing).__globals__}
    ops = list(dis.get_instructions(code))
    loaded = [scope.get(op.argval) for op in ops if op.opname in ("LOAD_GLOBAL", "LOAD_NAME")]
    return (issubclass(error, BaseException) and any(x is error for x in loaded)
            and any(op.opname == "RAISE_VARARGS" for op in ops))

def is_true(subject, relation, value):
    thing = pkgutil.resolve_name(subject)
    if relation == "subclass":
        other = pkgutil.resolve_name(value)
        protocol = getattr(thing, "_is_protocol", False)  # issubclass refuses some
        return thing in other.__mro__[1:] if protocol else issubclass(other, thing)
    if relation == "part":
        return importlib.util.find_spec(value).parent.startswith(subject)
    if relation in ("function", "method", "class", "exception"):
        name, other = value.removeprefix(subject + "."), pkgutil.resolve_name(value)
        return getattr(thing, name) == other and callable(other) and relation in (
            ("exception" if issubclass(other, BaseException) else "class",)
            if isinstance(other, type) else ("method" if isinstance(thing, type) else "function",))
    return {"number of parameters": lambda: is_number(thing, int(value)),
            "parameter": lambda: has_parameter(thing, value.removesuffix(" (parameter)")),
            "imported module": lambda: imports(thing, value),
            "raised exception": lambda: raises(thing, value)}[relation]()

wrong = []
for fact in json.load(sys.stdin):
    try:
        good = is_true(*fact)
    except Exception as error:
        good, fact = False, [*fact, repr(error)]
    if not good:
        wrong.append(fact)
print("\n" + json.dumps(wrong))
"""


@pytest.fixture(scope="module")
def world():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONHASHSEED", "0")
        return load_world("pydocs")


def test_sampled_facts_are_confirmed_by_execution(world):
    facts = world.graph.facts
    assert len(facts) > 20_000
    sampled = random.Random("pydocs-0").sample(facts, SAMPLE)
    by_relation = {fact[1]: fact for fact in facts}
    assert {fact[1] for fact in sampled} == {*by_relation}  # the sample contains every relation
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHECK],
        input=json.dumps(sampled),
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_parameters_are_no_modules_and_self_is_no_fact(world):
    graph = world.graph
    shown = {value for _, relation, value in graph.facts if relation == "parameter"}
    assert len(shown) > 1000 and "self" not in shown
    assert not [value for value in shown if not graph.is_value(value)]
    assert "string (parameter)" in graph.values("re.match", "parameter")
    assert "parameter of" not in graph.relations["string"]
    assert "2" in graph.values("argparse.ArgumentParser.error", "number of parameters")  # with self
    assert graph.values("argparse.ArgumentParser.error", "parameter") == {"message"}


def test_verifier_detects_false_facts():
    false_facts = [
        ["builtins.ValueError", "subclass", "builtins.Exception"],
        ["json.loads", "raised exception", "builtins.TypeErr"],
        ["json.dumps", "number of parameters", "3"],
        ["json.dumps", "parameter", "o"],
        ["json.loads", "raised exception", "builtins.KeyError"],
        ["json", "imported module", "asyncio"],
        ["json", "class", "json.dumps"],
        ["json", "function", "json.loss"],
    ]
    truths = [
        ["builtins.Exception", "subclass", "builtins.ValueError"],
        ["json.dumps", "number of parameters", "11"],
        ["json", "function", "json.dumps"],
    ]
    done = subprocess.run(
        [sys.executable, "-c", CHECK],
        input=json.dumps(false_facts + truths),
        capture_output=True,
        text=True,
        check=True,
    )
    assert [fact[:3] for fact in json.loads(done.stdout.splitlines()[-1])] == false_facts


def test_well_known_facts_are_included(world):
    graph = world.graph
    assert "json.decoder" in graph.values("json", "part")
    assert graph.values("json.decoder.JSONDecodeError", "subclass of") == {"builtins.ValueError"}
    assert "json.decoder.JSONDecodeError" in graph.values("json.loads", "raised exception")
    assert graph.values("bisect.insort_left", "parameter") == {"a", "x", "lo", "hi", "key"}
    assert "heapq.heappush" in graph.values("heapq", "function")  # C code under its public name
    assert "os.getcwd" in graph.values("os", "function")
    assert "collections" in graph.values("functools", "imported module")
    ordered = "collections.OrderedDict"
    assert f"{ordered}.move_to_end" in graph.values(ordered, "method")
    kinds = {"module", "class", "exception", "function", "method", "value"}
    assert {*graph.kinds} == kinds
    assert not any(fact[1].endswith(" of") for fact in graph.facts)


def test_no_private_and_no_duplicate_titles(world):
    titles = [node.title for node in world.graph.nodes.values() if node.kind != "value"]
    assert len(titles) == len(world) == len({*titles})
    assert not any(part.startswith("_") for title in titles for part in title.split("."))
    assert not any(title.split(".")[0] in module.SKIP for title in titles)


def test_pages_contain_docstring_and_facts(world):
    page = world.page("json.dumps")
    assert page.text.startswith("json.dumps is a function of json.\n\nSerialize ``obj`` to a JSON")
    facts = read_facts(page.text)
    assert facts["number of parameters"] == ["11"] and facts["function of"] == ["json"]
    for relation in ("parameter", "function of"):
        assert {*facts[relation]} == world.graph.values("json.dumps", relation)
    assert world.page("pydocs:json").links and "json.dumps" in world.links("json")
    assert world.search("ValueError", 3)[0].title == "builtins.ValueError"
    assert "textwrap" in {hit.title.split(".")[0] for hit in world.search("wrap a paragraph", 5)}


def test_independent_of_hash_seed_and_isolated_from_this_process(world, monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "77")
    loaded = {*sys.modules}
    part = module.read_standard_library()
    assert Graph(part.nodes, part.facts).version == world.graph.version
    assert [d.text for d in part.documents[:50]] == [
        world.page(d.title).text.partition("\n\nFacts about")[0] for d in part.documents[:50]
    ]
    assert not {*sys.modules} - loaded & {"turtle", "tkinter", "antigravity"}


def test_file_in_the_current_folder_does_not_shadow_a_module(tmp_path, monkeypatch):
    """Read only the module names, in a subprocess started like the reader's."""
    for name in ("code", "zlib", "chunk"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'RUN')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    seen, real = [], subprocess.run
    names = "from drlib.worlds.pydocs import import_modules; print(len(import_modules()))"

    def run(command, **options):
        seen.append(real([*command[:-2], "-c", names], check=True, **options))
        return subprocess.CompletedProcess(command, 0, "\n[[], [], []]")

    monkeypatch.setattr(module.subprocess, "run", run)
    assert (
        module.read_standard_library() == ([], [], [])
        and int(seen[0].stdout.splitlines()[-1]) > 200
    )
    assert not (tmp_path / "RUN").exists()


def test_library_is_read_once(tmp_path, monkeypatch):
    """A second load with the same Python reads nothing; a failing subprocess leaves nothing."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="reading the standard library failed"):
        load_world("pydocs", tmp_path / "index.db")
    monkeypatch.setattr(
        module, "read_standard_library", lambda: module.Part([module.Document("a", "b")])
    )
    assert len(load_world("pydocs", tmp_path / "index.db")) == 1
    monkeypatch.setattr(module, "read_standard_library", lambda: pytest.fail("read again"))
    assert len(load_world("pydocs", tmp_path / "index.db")) == 1


def test_argument_in_the_name_is_refused():
    with pytest.raises(ValueError, match="pydocs"):
        load_world("pydocs:3.14")
