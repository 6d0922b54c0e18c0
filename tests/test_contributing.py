"""The code blocks of the docs pages, run unchanged from outside the package.

Run: python -m pytest tests/test_contributing.py
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from drlib.config import FIELDS, ROOT, Config
from drlib.notebook.execution import check_parameters, read, refresh
from drlib.notebook.rules import find_problems

PAGE = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
RECIPES = dict(re.findall(r"^```python\n# (\w+)\.py\n(.*?)^```", PAGE, re.M | re.S))


def fresh(folder, *arguments, path=()):
    """A fresh Python in `folder`, which knows this checkout (and `path`)."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, *path)))}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )


def run(folder, *arguments, path=()):
    """Return the output of a fresh Python process that must succeed."""
    done = fresh(folder, *arguments, path=path)
    assert done.returncode == 0, done.stderr
    return done.stdout


def written(folder, name):
    """The recipe's module in a file of its own."""
    (folder / f"{name}.py").write_text(RECIPES[name], encoding="utf-8")


def test_every_kind_of_extension_has_an_example():
    kinds = {"agents", "callbacks", "clips", "notebook", "rewards", "stages", "tools", "worlds"}
    assert {*RECIPES} == {f"my_{kind}" for kind in kinds}


REGISTERED = ("clips", "tools", "rewards", "worlds", "agents", "callbacks")


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """The names of the recipes that do what they should, and the tracebacks of the others: each is
    registered in a process that no other is registered in."""
    folder = tmp_path_factory.mktemp("outside")
    for recipe in REGISTERED:
        written(folder, f"my_{recipe}")
    return fresh(folder, "-m", "tests.contributing_checks", *REGISTERED)


@pytest.mark.parametrize("recipe", REGISTERED)
def test_what_is_registered_outside_the_package_works_like_its_own(recipe, checked):
    assert recipe in checked.stdout.split(), checked.stderr


def test_a_registered_stage_is_built_after_what_it_needs(tmp_path):
    written(tmp_path, "my_stages")
    command = ["-m", "drlib.cli", "train", "pages", "--profile=ci", f"--runs={tmp_path / 'runs'}"]
    command += ["--plugins=my_stages"]
    out = run(tmp_path, *command, path=[tmp_path])
    assert [line.split()[1] for line in out.splitlines() if "==" in line] == ["world:", "pages:"]
    folder = Path(out.splitlines()[-1])
    assert json.loads((folder / "manifest.json").read_text())["metrics"] == {"pages": 771}
    assert "nothing was built" in run(tmp_path, *command, path=[tmp_path])


def test_a_registered_notebook_obeys_the_rules(tmp_path):
    (tmp_path / "notebooks").mkdir()
    written(tmp_path, "my_notebook")
    run(tmp_path, "my_notebook.py")
    path = tmp_path / "notebooks" / "40_toy.ipynb"
    assert refresh(path) and not refresh(path)
    assert find_problems(path) == []
    shown = read(path).cells[-1].outputs[0].data["text/plain"]
    assert shown == str(len("At scale"))
    assert check_parameters(read(path), {"profile": "laptop"})["profile"] == "laptop"


def test_the_pages_name_existing_settings_and_the_effects_of_the_findings():
    names = {name for name in re.findall(r"`((?:\w+\.)+\w+)(?:=[\w.]+)?`", PAGE) if "." in name}
    sections = {name.partition(".")[0] for name in FIELDS}
    settings = {n for n in names if n.partition(".")[0] in sections and "(" not in n}
    unknown = {n for n in settings if n not in FIELDS and not n.endswith((".py", ".md", ".jsonl"))}
    assert {n for n in unknown if not hasattr(Config, n.partition(".")[2])} == set()
    reference = (ROOT / "docs" / "rl_reference.md").read_text(encoding="utf-8")
    findings = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    effects = re.findall(r"[+-]\d+\.\d \[[^\]]+\]", reference)
    assert len(effects) > 15 and [effect for effect in effects if effect not in findings] == []
