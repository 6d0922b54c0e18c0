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


def run_python(folder, *arguments, path=()):
    """Run a new Python process in `folder` with this checkout (and `path`) on its path."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, *path)))}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )


def run(folder, *arguments, path=()):
    """Return the output of a new Python process that must succeed."""
    done = run_python(folder, *arguments, path=path)
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_recipe(folder, name):
    """Write the recipe's module to its own file."""
    (folder / f"{name}.py").write_text(RECIPES[name], encoding="utf-8")


def test_every_kind_of_extension_has_an_example():
    kinds = {"agents", "callbacks", "clips", "notebook", "rewards", "stages", "tools", "worlds"}
    kinds |= {"judges", "benchmarks", "environments"}
    of_first_hour = {"my_route"}  # tests/first_hour/own_tool.py
    external = {"my_external", "train_external", "round_trip"}  # tests/test_training_gateway.py
    external |= {"calibrate"}  # tests/test_agents_browseconf.py
    external |= {"pictures"}  # tests/test_agents_webwatcher.py
    external |= {"my_server"}  # tests/test_environments_openenv.py
    assert {*RECIPES} == {f"my_{kind}" for kind in kinds} | of_first_hour | external


REGISTERED = ("clips", "tools", "rewards", "worlds", "agents", "callbacks")


@pytest.fixture(scope="module")
def check_results(tmp_path_factory):
    """Return the result of the checks: names of passed recipes, and tracebacks of the others.

    Each recipe is registered in its own process.
    """
    folder = tmp_path_factory.mktemp("outside")
    for recipe in REGISTERED:
        write_recipe(folder, f"my_{recipe}")
    return run_python(folder, "-m", "tests.contributing_checks", *REGISTERED)


@pytest.mark.parametrize("recipe", REGISTERED)
def test_external_extensions_work(recipe, check_results):
    assert recipe in check_results.stdout.split(), check_results.stderr


def test_registered_stage_is_built_after_its_inputs(tmp_path):
    write_recipe(tmp_path, "my_stages")
    command = ["-m", "drlib.cli", "train", "pages", "--profile=ci", f"--runs={tmp_path / 'runs'}"]
    command += ["--plugins=my_stages"]
    out = run(tmp_path, *command, path=[tmp_path])
    assert [line.split()[1] for line in out.splitlines() if "==" in line] == ["world:", "pages:"]
    folder = Path(out.splitlines()[-1])
    assert json.loads((folder / "manifest.json").read_text())["metrics"] == {"pages": 771}
    assert "nothing was built" in run(tmp_path, *command, path=[tmp_path])


def test_registered_environment_is_trained_on(tmp_path):
    write_recipe(tmp_path, "my_environments")
    command = ["-m", "drlib.cli", "train", "rl", "--profile=ci", f"--runs={tmp_path / 'runs'}"]
    command += ["--plugins=my_environments", "--rl.curriculum.environments=counter", "--rl.steps=1"]
    folder = Path(run(tmp_path, *command, path=[tmp_path]).splitlines()[-1])
    (row,) = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    assert row["accuracy_counter"] == 0 and row["env_faults"] == 0  # it knows no such tool


def test_registered_judge_and_benchmark_score_answers(tmp_path):
    for name in ("my_judges", "my_benchmarks"):
        write_recipe(tmp_path, name)
    (tmp_path / "trivia.csv").write_text("id,Q,A\n1,Capital?,Paris\n2,River?,Seine\n")
    rows = [{"id": "1", "prediction": "It is Paris."}, {"id": "2", "prediction": "the Rhine"}]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["-m", "drlib.cli", "evaluate", "answers", "answers.jsonl", "--source=trivia.csv"]
    command += ["--plugins=my_judges,my_benchmarks", "--benchmark=trivia"]
    by_rules = run(tmp_path, *command, path=[tmp_path])
    assert "0 correct, 2 incorrect" in by_rules
    assert "1 correct, 1 incorrect" in run(tmp_path, *command, "--judge=contains", path=[tmp_path])


def test_registered_notebook_follows_the_rules(tmp_path):
    (tmp_path / "notebooks").mkdir()
    write_recipe(tmp_path, "my_notebook")
    run(tmp_path, "my_notebook.py")
    path = tmp_path / "notebooks" / "40_toy.ipynb"
    assert refresh(path) and not refresh(path)
    assert find_problems(path) == []
    shown = read(path).cells[-1].outputs[0].data["text/plain"]
    assert shown == str(len("At scale"))
    assert check_parameters(read(path), {"profile": "laptop"})["profile"] == "laptop"


def test_docs_name_existing_settings_and_current_effects():
    names = {name for name in re.findall(r"`((?:\w+\.)+\w+)(?:=[\w.]+)?`", PAGE) if "." in name}
    sections = {name.partition(".")[0] for name in FIELDS}
    settings = {n for n in names if n.partition(".")[0] in sections and "(" not in n}
    unknown = {n for n in settings if n not in FIELDS and not n.endswith((".py", ".md", ".jsonl"))}
    assert {n for n in unknown if not hasattr(Config, n.partition(".")[2])} == set()
    reference = (ROOT / "docs" / "rl_reference.md").read_text(encoding="utf-8")
    findings = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    effects = re.findall(r"[+-]\d+\.\d \[[^\]]+\]", reference)
    assert len(effects) > 15 and [effect for effect in effects if effect not in findings] == []
