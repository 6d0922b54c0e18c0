"""The Makefile, with an interpreter that only records its arguments."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Version checks run in the real interpreter with the version in the file `release`.
INTERPRETER = """#!/bin/sh
echo "$*|${VIRTUAL_ENV-}${PYTHONPATH-}${MPLBACKEND-}" >> "$PWD/calls"
case "$*" in
  -c*) exec REAL -ISc "import sys; sys.version_info = ($(cat "$PWD/release")); $2" ;;
  "-m venv --clear .venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
  "-m pip"*) test ! -e "$PWD/offline" ;;
  "-m $(cat "$PWD/broken" 2>/dev/null || echo nothing)"*) exit 1 ;;
esac
"""


@pytest.fixture
def clone(tmp_path):
    """A folder with a space in its name that make can set up, and `make(*arguments)` in it."""
    folder = tmp_path / "a clone"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (folder / name).write_text((ROOT / name).read_text())
    python = folder / "fake python"
    python.write_text(INTERPRETER.replace("REAL", shlex.quote(sys.executable)))
    (folder / "release").write_text("3, 11, 5")
    python.chmod(0o755)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    leaks = {"VIRTUAL_ENV": "/other", "PYTHONPATH": "/other", "MPLBACKEND": "Agg"}

    def make(*arguments):
        command = ["make", *arguments, f"PYTHON={python}"]
        environment = clean | leaks
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)

    return folder, make


def calls(folder):
    lines = (folder / "calls").read_text().splitlines()
    return [line.rpartition("|")[0] for line in lines if not line.startswith("-c")]


def stamps(folder):
    return list((folder / ".venv").glob(".drlib-*"))


def test_make_sets_up_once_and_again_when_the_pins_change(clone):
    folder, make = clone
    first = make("setup")
    assert first.returncode == 0 and "installing the pinned packages" in first.stdout
    quiet = "--quiet --quiet --disable-pip-version-check"  # errors only: no warnings of folders
    install = f"-m pip install {quiet} -c constraints.txt -e .[lab]"
    assert calls(folder) == ["-m venv --clear .venv", install]
    assert len(stamps(folder)) == 1
    make("setup")
    assert len(calls(folder)) == 2
    (folder / "constraints.txt").write_text("torch==2.12.0\n")
    make("setup")
    assert calls(folder)[2:] == [install]  # the environment itself is kept
    assert len(stamps(folder)) == 1


def test_nothing_of_an_unrelated_environment_leaks_in(clone):
    folder, make = clone
    make("test")
    assert {line.rpartition("|")[2] for line in (folder / "calls").read_text().splitlines()} == {""}


def test_a_failed_install_leaves_no_stamp_and_the_next_call_tries_again(clone):
    folder, make = clone
    (folder / "offline").touch()
    assert make("run").returncode != 0
    assert stamps(folder) == [] and not any("drlib.cli" in call for call in calls(folder))
    (folder / "offline").unlink()
    assert make("run").returncode == 0
    assert calls(folder)[-1] == "-m drlib.cli run 00 --profile laptop"


@pytest.mark.parametrize("release", ["3, 10, 14", "3, 11, 2", "3, 11, 4", "3, 12, 5", "4, 11, 5"])
def test_a_wrong_python_is_named_with_the_remedy(release, clone):
    folder, make = clone
    (folder / "release").write_text(release)
    result = make("run")
    assert result.returncode != 0
    assert "drlib needs Python 3.11, 3.11.5 or newer" in result.stderr
    assert "fake python" in result.stderr and "make PYTHON=/path/to/python3.11" in result.stderr
    assert not (folder / ".venv").exists()


@pytest.mark.parametrize("release", ["3, 11, 5", "3, 11, 14"])
def test_a_right_python_makes_the_environment(release, clone):
    folder, make = clone
    (folder / "release").write_text(release)
    assert make("setup").returncode == 0 and len(stamps(folder)) == 1


def test_an_environment_of_an_older_python_is_made_again(clone):
    folder, make = clone
    make("setup")
    (folder / "release").write_text("3, 11, 2")
    (folder / "constraints.txt").write_text("torch==2.12.0\n")
    assert make("setup").returncode != 0
    (folder / "release").write_text("3, 11, 5")
    older = INTERPRETER.replace("REAL", shlex.quote(sys.executable))
    older = older.replace('$(cat "$PWD/release")', "3, 11, 2")
    (folder / ".venv/bin/python").write_text(older)
    assert make("setup").returncode == 0
    assert calls(folder)[2] == "-m venv --clear .venv"


BOTH_CORES = "-n 3 --dist loadfile --no-loadscope-reorder"
STEPS = {  # what fails when this command fails: the words in the summary lines
    "ruff format --check .": ("format", "checks"),
    "ruff check .": ("lint", "checks"),
    "mypy": ("types", "checks"),
    f"pytest {BOTH_CORES} --durations=20 -m not alone tests": ("library",),
    f"pytest {BOTH_CORES} -p tests.conftest --nbval ": ("notebooks",),
}


@pytest.mark.parametrize("broken", STEPS)
def test_make_test_takes_every_step_even_when_one_fails(broken, clone):
    folder, make = clone
    (folder / "broken").write_text(broken)
    result = make("test")
    assert result.returncode != 0
    for word in STEPS[broken]:
        assert f"== failed: {word}\n" in result.stdout
    tools = ("pytest", "ruff", "mypy")
    steps = [call for call in calls(folder) if any(tool in call for tool in tools)]
    steps = [call for call in steps if "pip" not in call]
    assert len(steps) == len(STEPS)
    for step, wanted in zip(steps, STEPS):
        assert step.startswith(f"-m {wanted}")


def test_make_test_passes_when_every_step_does(clone):
    folder, make = clone
    result = make("test")
    assert result.returncode == 0 and result.stdout.endswith("== all passed\n")


def test_what_wants_the_machine_to_itself_is_a_target_of_its_own(clone):
    folder, make = clone
    assert make("test-alone").returncode == 0
    assert calls(folder)[-1] == "-m pytest -m alone --durations=10 tests"
    (folder / "broken").write_text("pytest -m alone")
    assert make("test-alone").returncode != 0


def test_make_lab_opens_the_notebooks_in_the_environment_of_the_project(clone):
    folder, make = clone
    assert make("lab").returncode == 0
    assert calls(folder)[-1] == f"-m jupyterlab --ServerApp.root_dir={folder}/notebooks"


def test_make_help_names_every_target(clone):
    _, make = clone
    targets = [line.split()[1] for line in make("help").stdout.splitlines()]
    assert targets == [
        "run",
        "lab",
        "check",
        "test-fast",
        "test",
        "test-alone",
        "test-vllm",
        "mutants",
        "reference",
        "clean",
    ]
