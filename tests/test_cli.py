"""The `drlib` command, run as a real process with real exit codes."""

import os
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

import drlib
from drlib import cli
from tests.waiting import HANG_S

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = "import sys; from {module} import {function}; sys.exit({function}())"


def run_drlib(*arguments, code=None):
    """Run the entry point that pyproject.toml declares for the console script."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, function = project["scripts"]["drlib"].split(":")
    code = code or SCRIPT.format(module=module, function=function)
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=HANG_S)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]], ids=" ".join)
def test_help_lists_every_command_with_an_example(arguments):
    result = run_drlib(*arguments)
    assert result.returncode == 0 and result.stderr == ""
    for command, (_, example) in cli.COMMANDS.items():
        assert f"\n  {command} " in result.stdout and f"{example}\n" in result.stdout
        assert example.startswith(f"drlib {command} ")


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_help(command, capsys):
    assert find_spec(f"drlib.cli.{command}")
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])
    assert ended.value.code in (None, 0)
    assert f"drlib {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("module", "arguments", "least"),
    [
        ("drlib.cli", "train --list", 10_000),
        ("drlib.training.build", "rl --profile=ci --runs={empty}", 300_000),  # torch, transformers
    ],
)
def test_imports_are_excluded_from_garbage_collection(tmp_path, module, arguments, least):
    arguments = arguments.format(empty=tmp_path).split()
    code = f"""
import atexit, gc, sys
atexit.register(lambda: print("kept", gc.get_freeze_count(), gc.isenabled()))
from {module} import main
sys.argv[1:] = {arguments}
main()
"""
    last = run_drlib(code=code).stdout.splitlines()[-1].split()
    assert last[0] == "kept" and int(last[1]) > least and last[2] == "True"


def test_version_is_that_of_the_package():
    assert run_drlib("--version").stdout == f"drlib {drlib.__version__}\n"


def test_help_and_misspelled_commands_import_neither_torch_nor_numpy():
    code = "import sys; from drlib.cli import main; main(['--help']); main(['repot'])\n"
    code += "sys.exit(' '.join({'torch', 'numpy', 'transformers'} & set(sys.modules)) or 0)"
    result = run_drlib(code=code)
    assert result.returncode == 0, result.stderr


def test_light_modules_import_nothing_slow():
    modules = "agents", "analysis.data_plots", "cli.dataset", "cli.plan", "questions", "rewards"
    slow = {"datasets", "sympy", "torch", "transformers"}
    code = f"import sys, drlib.{', drlib.'.join(modules)}; print(*{slow} & {{*sys.modules}})"
    assert run_drlib(code=code).stdout == "\n"


def test_unknown_command_suggests_the_nearest():
    result = run_drlib("repotr", "x")
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr.startswith("drlib: unknown command 'repotr': did you mean 'report'?")


def test_run_rejects_a_missing_notebook():
    result = run_drlib("run", "99")
    assert result.returncode == 1 and "no notebook '99'" in result.stderr


def test_report_writes_a_page(tmp_path):
    tour, page = ROOT / "figures" / "reference" / "tour", tmp_path / "report.html"
    rollouts, policy = str(tour / "rl_greedy.parquet"), str(tour / "policy_rl")
    result = run_drlib("report", str(page), rollouts, "--tokenizer", policy, "--viewed", "1")
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == str(page) and page.read_text().startswith("<!")


def test_module_and_console_script_are_equal():
    script = run_drlib("sandbox", "probe")
    module = [sys.executable, "-m", "drlib.cli", "sandbox", "probe"]
    own = subprocess.run(module, cwd=ROOT, capture_output=True, text=True, timeout=HANG_S)
    assert (script.returncode, script.stdout) == (own.returncode, own.stdout)
    assert "seccomp" in script.stdout


def test_train_lists_stages_and_settings():
    stages = run_drlib("train", "--list").stdout
    assert "sft " in stages and "<- cpt, demonstrations" in stages
    settings = run_drlib("train", "--settings").stdout.splitlines()
    assert len(settings) > 100 and any(line.startswith("rl.lr=0.0004") for line in settings)
    typo = run_drlib("train", "rl", "--rl.stepz", "3")
    assert typo.returncode == 1
    assert typo.stderr.startswith("error: unknown setting 'rl.stepz': did you mean 'rl.steps'")


@pytest.mark.parametrize(
    ("arguments", "passed_on"),
    [
        (["rl", "--seed=1"], ["evaluate_rl", "--seed=1"]),
        (["evaluate_rl"], ["evaluate_rl"]),
    ],
    ids=" ".join,
)
def test_evaluate_builds_the_evaluation_of_a_stage(arguments, passed_on, monkeypatch):
    from drlib.cli import evaluate

    calls = []
    monkeypatch.setattr(evaluate.train, "main", lambda argv: calls.append(argv) or 0)
    assert evaluate.main(arguments) == 0 and calls == [passed_on]


@pytest.mark.parametrize("arguments", [[], ["--profile", "ci", "rl"]], ids=" ".join)
def test_evaluate_requires_the_stage_first(arguments):
    result = run_drlib("evaluate", *arguments)
    assert result.returncode == 2 and "name a stage first" in result.stderr


@pytest.mark.parametrize("command", ["train", "ask", "mcp"])
def test_windows_is_one_line_with_the_remedy(command, monkeypatch, capsys):
    monkeypatch.setattr(cli.sys, "platform", "win32")
    assert cli.main([command, "x"]) == 1
    error = capsys.readouterr().err
    assert "WSL 2" in error and error.count("\n") == 1
    assert cli.main(["--help"]) == 0
