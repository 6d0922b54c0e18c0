"""The `drlib` command, started as a person starts it: real processes, real exit codes."""

import os
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

import drlib
from drlib import cli

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = "import sys; from {module} import {function}; sys.exit({function}())"


def drlib_command(*arguments, code=None):
    """What the console script does, with the entry point that pyproject.toml declares."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, function = project["scripts"]["drlib"].split(":")
    code = code or SCRIPT.format(module=module, function=function)
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]], ids=" ".join)
def test_help_names_every_command(arguments):
    result = drlib_command(*arguments)
    assert result.returncode == 0 and result.stderr == ""
    for word in ("run", "train", "evaluate", "report", "sandbox"):
        assert f"\n  {word} " in result.stdout


@pytest.mark.parametrize(
    ("module", "arguments", "least"),
    [
        ("drlib.cli", "train --list", 10_000),
        ("drlib.training.build", "rl --profile=ci --runs={empty}", 300_000),  # torch, transformers
    ],
)
def test_what_a_program_imports_is_not_searched_for_garbage(tmp_path, module, arguments, least):
    arguments = arguments.format(empty=tmp_path).split()
    code = f"""
import atexit, gc, sys
atexit.register(lambda: print("kept", gc.get_freeze_count(), gc.isenabled()))
from {module} import main
sys.argv[1:] = {arguments}
main()
"""
    last = drlib_command(code=code).stdout.splitlines()[-1].split()
    assert last[0] == "kept" and int(last[1]) > least and last[2] == "True"


def test_the_version_is_the_package_s():
    assert drlib_command("--version").stdout == f"drlib {drlib.__version__}\n"


def test_help_and_misspelled_words_take_neither_torch_nor_numpy():
    code = "import sys; from drlib.cli import main; main(['--help']); main(['repot'])\n"
    code += "sys.exit(' '.join({'torch', 'numpy', 'transformers'} & set(sys.modules)) or 0)"
    result = drlib_command(code=code)
    assert result.returncode == 0, result.stderr


def test_an_unknown_command_is_named_with_the_nearest_one():
    result = drlib_command("repotr", "x")
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr.startswith("drlib: unknown command 'repotr': did you mean 'report'?")
    assert "Traceback" not in result.stderr


def test_run_hands_its_arguments_to_the_notebooks_program():
    result = drlib_command("run", "99")
    assert result.returncode == 1
    assert "error: no notebook '99' in notebooks/" in result.stderr


def test_report_writes_a_page(tmp_path):
    tour, page = ROOT / "figures" / "reference" / "tour", tmp_path / "report.html"
    rollouts, policy = str(tour / "rl_greedy.parquet"), str(tour / "policy_rl")
    result = drlib_command("report", str(page), rollouts, "--tokenizer", policy, "--viewed", "1")
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == str(page) and page.read_text().startswith("<!")


def test_sandbox_probe_is_the_rooms_own():
    mine = drlib_command("sandbox", "probe")
    module = [sys.executable, "-m", "drlib.sandbox", "probe"]
    own = subprocess.run(module, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (mine.returncode, mine.stdout) == (own.returncode, own.stdout)
    assert "seccomp" in mine.stdout


@pytest.mark.parametrize("word", cli.COMMANDS)
def test_behind_every_word_stands_a_program(word):
    assert find_spec(cli.COMMANDS[word].module), cli.COMMANDS[word].module


@pytest.mark.parametrize(
    ("arguments", "handed_over"),
    [
        (["train", "rl", "--profile", "ci"], ["rl", "--profile", "ci"]),
        (["train"], []),
        (["evaluate", "rl", "--seed=1"], ["evaluate_rl", "--seed=1"]),
        (["evaluate", "evaluate_rl"], ["evaluate_rl"]),
        (["evaluate", "--help"], ["--help"]),
    ],
    ids=lambda value: " ".join(value) or "nothing",
)
def test_train_and_evaluate_name_stages(arguments, handed_over, monkeypatch):
    taken = []

    class Program:
        main = taken.append

    monkeypatch.setattr(cli, "import_module", {"drlib.training.__main__": Program}.__getitem__)
    assert cli.main(arguments) == 0
    assert taken == [handed_over]


@pytest.mark.parametrize("arguments", [[], ["--profile", "ci", "rl"]], ids=" ".join)
def test_evaluate_wants_the_stage_first(arguments):
    result = drlib_command("evaluate", *arguments)
    assert result.returncode == 2
    assert result.stderr == (
        "drlib: evaluate wants the name of a stage first, as in: drlib evaluate rl\n"
    )
