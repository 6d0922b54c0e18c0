"""Rules checked on the files: import order, dependencies, pins and environment."""

import ast
import os
import re
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest
import setuptools
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from drlib.experiments import papers
from tests import names
from tests.conftest import ALONE

ROOT = Path(__file__).resolve().parents[1]
LAYERS = (
    "files",
    "wheels",
    "validation",
    "startup",
    "registry",
    "intervals",
    "task",
    "trajectory",
    "config",
    "chat",
    "endpoint",
    "worlds",
    "sandbox",
    "tools",
    "questions",
    "demonstrations",
    "models",
    "agents",
    "rewards",
    "environments",
    "rl",
    "training",
    "evaluation",
    "analysis",
    "experiments",
    "app",
    "notebook",
    "cli",
)
METHODS = {"webwalker", "webwatcher"}  # published methods with questions and agents
MODULES = sorted((ROOT / "drlib").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
# Modules that may import a library. Any other third-party import must be a base dependency, because
# the library must work without the lab extra.
ONLY = {
    "transformers": ("models/", "chat/", "training/"),
    "vllm": ("models/", "training/"),
    "trl": (
        "training/trl.py",
        "training/sft_trl.py",
        "training/grpo_trl.py",
        "training/reward_model.py",
    ),
    "peft": ("training/",),
    "ipywidgets": ("analysis/widgets.py",),
    "IPython": ("analysis/widgets.py", "notebook/"),
    "nbformat": ("notebook/",),
    "nbclient": ("notebook/",),
    "papermill": ("notebook/",),
    "traitlets": ("notebook/",),  # comes with ipykernel
    "httpx": ("tools/",),
    "openai": ("endpoint.py",),
    "httpx2": ("endpoint.py", "environments/openenv.py"),
    "openenv": ("environments/openenv.py",),
    "verifiers": ("environments/verifiers_tasks.py",),
    "PIL": ("tools/pictures.py",),
    "pypdf": ("worlds/reading.py",),
    "openpyxl": ("worlds/reading.py", "evaluation/benchmarks/benchmark.py"),
    "trafilatura": ("worlds/reading.py",),
    "bs4": ("worlds/reading.py",),
    "libzim": ("worlds/zim.py",),
    "reasoning_gym": ("environments/",),
    "psutil": ("sandbox/", "training/", "models/"),
    "mergekit": ("training/merge.py",),
}
IN_EXTRA = {
    "gguf": "gguf",
    "mergekit": "merge",
    "reasoning_gym": "gym",
    "math_verify": "judges",
    "llguidance": "constrained",
    "mcp": "mcp",
    "trl": "lab",
    "peft": "lab",
    "ipywidgets": "lab",
    "IPython": "lab",
    "nbformat": "lab",
    "nbclient": "lab",
    "papermill": "lab",
    "traitlets": "lab",
    "starlette": "cluster",
    "vllm": "vllm",
    "pypdf": "docs",
    "openpyxl": "docs",
    "trafilatura": "docs",
    "bs4": "docs",
    "charset_normalizer": "docs",
    "webencodings": "docs",
    "libzim": "zim",
    "bm25s": "search",
    "ray": "cluster",
    "fastapi": "cluster",
    "uvicorn": "cluster",
    "prometheus_client": "cluster",
}
FOREIGN = ("openenv", "verifiers")  # pins conflict: requirements/NAME.txt, make test-adapters
DISTRIBUTIONS = {
    "huggingface_hub": "huggingface-hub",
    "reasoning_gym": "reasoning-gym",
    "math_verify": "math-verify",
    "yaml": "pyyaml",
    "PIL": "pillow",
    "IPython": "ipython",
    "traitlets": "ipykernel",
    "bs4": "beautifulsoup4",
    "starlette": "fastapi",  # part of its interface
    "prometheus_client": "prometheus-client",
    "charset_normalizer": "charset-normalizer",
}


def relative(path):
    return path.relative_to(ROOT).as_posix()


def imports(path):
    """Yield (line, dotted name) of every import in a file, including those inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{relative(path)}:{node.lineno}: relative import"
            if node.module == "drlib":
                yield from ((node.lineno, f"drlib.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, node.module


def layer_of(path):
    return path.relative_to(ROOT / "drlib").parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_modules_import_only_from_lower_layers(path):
    layer = layer_of(path)
    if layer == "__init__":
        assert {name for _, name in imports(path)} == {"importlib"}
        return
    assert layer in LAYERS, f"{relative(path)}: add {layer} to LAYERS"
    for line, name in imports(path):
        if name.split(".")[0] != "drlib" or name == "drlib.__version__":
            continue
        other = (name.split(".") + [""])[1]
        assert other in LAYERS, f"{relative(path)}:{line} imports {name}"
        assert LAYERS.index(other) <= LAYERS.index(layer), f"{relative(path)}:{line}: {name}"
        assert layer != "sandbox" or other == "sandbox", "sandbox/ imports nothing else of drlib"


def module_name(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_no_import_cycles_between_modules():
    """Lazy imports inside functions count as well."""
    module_names = {module_name(path) for path in MODULES}
    edges = {}
    for path in MODULES:
        name_of_module = module_name(path)
        edges[name_of_module] = {
            target
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            for target in imported_modules(node, module_names)
            if target != name_of_module and not name_of_module.startswith(target + ".")
        }
    done, active = set(), []

    def visit(name):
        if name in active:
            raise AssertionError(" -> ".join([*active[active.index(name) :], name]))
        if name in done:
            return
        active.append(name)
        for target in sorted(edges[name] & module_names):
            visit(target)
        active.pop()
        done.add(name)

    for name in sorted(edges):
        visit(name)


def imported_modules(node, module_names):
    """Return the drlib modules that an import statement loads."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names if alias.name in module_names]
    if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "drlib":
        inner = [f"{node.module}.{alias.name}" for alias in node.names]
        found = [name for name in inner if name in module_names]
        return found if len(found) == len(inner) else [node.module, *found]
    return []


def test_module_names_are_unique():
    """Methods may have a file in several packages; a command has the name of the code it runs."""
    modules = [p for p in MODULES if layer_of(p) != "cli"]
    names = Counter(p.stem for p in modules if p.stem not in ("__init__", "__main__"))
    assert {name for name, count in names.items() if count > 1} <= METHODS


@pytest.mark.parametrize("path", [p for p in MODULES if layer_of(p) == "rl"], ids=relative)
def test_rl_is_pure(path):
    """Tensors and records in, tensors and metrics out: no files, processes or model libraries."""
    lower = {f"drlib.{name}" for name in ("validation", "registry", "task", "trajectory")}
    allowed = {"torch", "numpy", "drlib.rl", "drlib.chat.tool_calls", "drlib.rewards", *lower}
    side_effect_modules = {
        "os",
        "sys",
        "io",
        "pathlib",
        "shutil",
        "subprocess",
        "socket",
        "tempfile",
    }
    for line, name in imports(path):
        top = name.split(".")[0]
        inside = top in sys.stdlib_module_names and top not in side_effect_modules
        own = any(name == a or name.startswith(a + ".") for a in allowed)
        assert inside or own, f"{relative(path)}:{line} imports {name}"
    called = {
        n.func.id
        for n in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    }
    assert not called & {"open", "print", "input"}


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_third_party_imports_are_permitted_and_declared(path):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {"": {Requirement(r).name for r in project["dependencies"]}}
    for extra, group in project["optional-dependencies"].items():
        names[extra] = {Requirement(r).name for r in group}
    relative_path = path.relative_to(ROOT / "drlib").as_posix()
    for line, name in imports(path):
        top = name.split(".")[0]
        if top == "drlib" or top in sys.stdlib_module_names:
            continue
        if top in ONLY:
            assert relative_path.startswith(ONLY[top]), (
                f"{relative_path}:{line}: only {ONLY[top]} import {top}"
            )
        distribution = DISTRIBUTIONS.get(top, top)
        declared = top in FOREIGN or distribution in names[IN_EXTRA.get(top, "")]
        assert declared, f"{relative_path}:{line}: {distribution} is not declared in pyproject.toml"


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_modules_have_a_docstring(path):
    text = path.read_text(encoding="utf-8")
    assert not text or ast.get_docstring(ast.parse(text))


def test_every_public_name_has_a_user():
    """Users are other modules, notebooks, commands, the public names, and docs/papers.md.

    That page lists mechanisms that no run uses yet as "function only".
    """
    listed = {row.code.partition(":")[2] for row in papers.mechanisms()}
    assert names.without_user(names.PROMISED | names.COMPANIONS | listed) == {}


def test_names_used_only_by_tests_are_found(tmp_path, monkeypatch):
    """The finder on a toy package: used, used by a user, re-exported, and unused names."""
    files = {
        "drlib/__init__.py": "",
        "drlib/room/__init__.py": "from drlib.room.inner import shown\n",
        "drlib/room/inner.py": (
            "def shown(): return helper()\ndef helper(): return 1\n"
            "def forgotten(): return only_by_forgotten()\ndef only_by_forgotten(): pass\n"
        ),
        "drlib/user.py": "from drlib.room import shown\nVALUE = shown()\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(names, "ROOT", tmp_path)
    assert names.without_user() == {"drlib.room.inner": ["forgotten", "only_by_forgotten"]}
    assert names.without_user({"forgotten"}) == {}


def test_lint_exceptions_state_a_reason():
    pragma = re.compile(r"#\s*fmt:|#\s*noqa(?!: [A-Z]+\d+ - \S)|#\s*ruff:")
    notebooks = sorted((ROOT / "notebooks").rglob("*.ipynb"))
    found = [
        f"{relative(path)}: {match[0]}"
        for path in [*MODULES, *TESTS, *notebooks]
        if path != Path(__file__)
        for match in pragma.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_every_folder_of_modules_is_a_package():
    found = set(setuptools.find_packages(str(ROOT), include=["drlib", "drlib.*"]))
    folders = {relative(path.parent).replace("/", ".") for path in MODULES}
    assert found == folders


def test_files_have_no_local_paths_or_todo_markers():
    files = [
        p
        for pattern in (
            "*.*",
            ".ci/*",
            ".github/**/*",
            "requirements/*",
            "docs/*.md",
            "drlib/**/*.py",
            "notebooks/**/*.*",
            "tests/**/*.py",
        )
        for p in ROOT.glob(pattern)
        if p.is_file() and p != Path(__file__)
    ]
    # whole words only: the base64 of an image contains any letters sooner or later
    bad = re.compile(r"/work/|/root/|/home/\w|\bTODO\b|\bFIXME\b|raise NotImplementedError")
    found = [
        f"{relative(p)}: {m[0]}"
        for p in files
        if p.suffix != ".png"
        for m in bad.finditer(p.read_text(encoding="utf-8"))
    ]
    assert found == []


# ---------------------------------------------------------------------------------------------
# pins and environments


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def pins():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    requirements = [Requirement(line) for line in lines if line and not line.startswith("#")]
    pinned = {r.name.lower().replace("_", "-"): r for r in requirements}
    assert len(pinned) == len(requirements)
    for requirement in requirements:
        assert re.fullmatch(r"==[^,*]+", str(requirement.specifier)), f"{requirement} is no pin"
    return {name: next(iter(r.specifier)).version for name, r in pinned.items()}


def requirements(project):
    extras = project["optional-dependencies"].values()
    return [Requirement(text) for group in (project["dependencies"], *extras) for text in group]


def test_every_pin_satisfies_its_range(project, pins):
    for requirement in requirements(project):
        if requirement.name == "drlib":  # its own extras
            assert requirement.extras <= set(project["optional-dependencies"])
            continue
        if requirement.name not in pins:  # the CUDA wheel, which a CPU environment cannot pin
            assert re.fullmatch(r"==[^,*]+", str(requirement.specifier)), f"{requirement}: no pin"
            continue
        version = pins[requirement.name]
        assert requirement.specifier.contains(version), f"{requirement} excludes {version}"


def test_pins_are_compatible_with_vllm_on_a_cpu(pins):
    text = (ROOT / "requirements" / "vllm-cpu.txt").read_text()
    for line in text.splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            name = requirement.name.lower().replace("_", "-")
            assert requirement.specifier.contains(pins[name]), f"{line} excludes {pins[name]}"


def test_libraries_with_other_pins_have_requirements_of_their_own():
    for name in FOREIGN:
        lines = (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()
        pinned = [line.partition("==")[0] for line in lines if line[0] != "#"]
        assert pinned[0] == name and all("==" in line for line in lines if line[0] != "#")


def test_build_requirements_match_the_pins(pins):
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert all(Requirement(r).specifier.contains(pins[Requirement(r).name]) for r in build)


def test_environment_yml_installs_the_same_pins_and_extras(project):
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    *conda, pip = environment["dependencies"]
    assert conda == ["python=3.11", "pip"]
    constraint, editable = pip["pip"]
    assert constraint == "-c constraints.txt" and (ROOT / "constraints.txt").exists()
    extras = re.fullmatch(r"-e \.\[(.+)\]", editable)[1].split(",")
    assert extras == ["lab", "vllm"] and set(extras) <= set(project["optional-dependencies"])
    assert SpecifierSet(project["requires-python"]).contains("3.11.5")


def test_workflow_runs_the_script():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    (job,) = workflow["jobs"].values()
    assert [s["run"] for s in job["steps"] if "run" in s] == ["bash .ci/run"]
    (python,) = [s["with"]["python-version"] for s in job["steps"] if "python" in s.get("uses", "")]
    assert python == "3.11" and job["runs-on"].startswith("ubuntu")


def test_test_environment_is_offline_on_one_thread():
    import torch

    assert torch.get_num_threads() == 1
    assert os.environ["HF_HUB_OFFLINE"] == os.environ["DRLIB_HEADLESS"] == "1"
    assert "MPLBACKEND" not in os.environ or os.environ["MPLBACKEND"].startswith("module://")


def test_files_listed_as_alone_exist():
    assert {p.name for p in TESTS if p.name in ALONE} == set(ALONE)
