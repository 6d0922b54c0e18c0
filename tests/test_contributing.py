"""The recipes of CONTRIBUTING.md, run exactly as they stand there, from outside the package.

Run: python -m pytest tests/test_contributing.py
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from drlib.config import ROOT
from drlib.notebook.execution import check_parameters, read, read_parameters, refresh
from drlib.notebook.rules import problems

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
RECIPES = dict(re.findall(r"^```python\n# (\w+)\.py\n(.*?)^```", PAGE, re.M | re.S))


def fresh(folder, *arguments, path=()):
    """A fresh Python in `folder`, which knows this checkout (and `path`)."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, *path)))}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )


def run(folder, *arguments, path=()):
    """What a fresh Python prints that does not fail."""
    done = fresh(folder, *arguments, path=path)
    assert done.returncode == 0, done.stderr
    return done.stdout


def written(folder, name):
    """The recipe's module in a file of its own."""
    (folder / f"{name}.py").write_text(RECIPES[name], encoding="utf-8")


def test_there_are_seven_recipes_of_five_to_fifteen_lines():
    names = ("my_clips", "my_tools", "my_rewards", "my_worlds", "my_stages", "my_notebook")
    names += ("my_agents",)
    assert tuple(RECIPES) == names
    for name, code in RECIPES.items():
        lines = [line for line in code.splitlines() if line.strip()]
        assert 5 <= len(lines) <= 15, name


REGISTERED = ("clips", "tools", "rewards", "worlds", "agents")


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
    assert problems(path) == []
    shown = read(path).cells[-1].outputs[0].data["text/plain"]
    assert shown == str(len("At scale"))
    parameters = read_parameters(ROOT / "notebooks" / "params" / "laptop.yaml")
    assert check_parameters(read(path), parameters)["profile"] == "laptop"


def test_the_page_names_files_and_settings_that_there_are():
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (ROOT / target.replace("\\", "")).exists() or target == "tests/mutants.md", target
    recipes = "\n".join(RECIPES.values())
    for name, value in re.findall(r"--set (\w+)=(\w+)", PAGE):
        assert value in RECIPES or f'"{value}"' in recipes or value == "random", (name, value)
