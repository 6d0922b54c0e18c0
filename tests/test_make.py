"""The Makefile, with an interpreter that only records its arguments."""

import os
import shlex
import shutil
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
def make_clone(tmp_path):
    """Return a folder with a space in its name, and `make(*arguments)` in it."""
    folder = tmp_path / "a clone"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (folder / name).write_text((ROOT / name).read_text())
    python = folder / "fake python"
    python.write_text(INTERPRETER.replace("REAL", shlex.quote(sys.executable)))
    (folder / "release").write_text("3, 11, 5")
    python.chmod(0o755)
    environment_without_make = {
        k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))
    }
    leaks = {"VIRTUAL_ENV": "/other", "PYTHONPATH": "/other", "MPLBACKEND": "Agg"}

    def make(*arguments):
        command = ["make", *arguments, f"PYTHON={python}"]
        environment = environment_without_make | leaks
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)

    return folder, make


def calls(folder):
    lines = (folder / "calls").read_text().splitlines()
    return [line.rpartition("|")[0] for line in lines if not line.startswith("-c")]


def stamps(folder):
    return list((folder / ".venv").glob(".drlib-*"))


def test_setup_runs_once_and_after_pin_changes(make_clone):
    folder, make = make_clone
    first = make("setup")
    assert first.returncode == 0 and "installing the pinned packages" in first.stdout
    pip_options = (
        "--quiet --quiet --disable-pip-version-check"  # errors only, no warnings about folders
    )
    install = f"-m pip install {pip_options} -c constraints.txt -e .[lab]"
    assert calls(folder) == ["-m venv --clear .venv", install]
    assert len(stamps(folder)) == 1
    make("setup")
    assert len(calls(folder)) == 2
    (folder / "constraints.txt").write_text("torch==2.12.0\n")
    make("setup")
    assert calls(folder)[2:] == [install]  # the environment itself is kept
    assert len(stamps(folder)) == 1


def test_unrelated_environments_are_ignored(make_clone):
    folder, make = make_clone
    make("test")
    assert {line.rpartition("|")[2] for line in (folder / "calls").read_text().splitlines()} == {""}


def test_failed_install_is_retried(make_clone):
    folder, make = make_clone
    (folder / "offline").touch()
    assert make("run").returncode != 0
    assert stamps(folder) == [] and not any("drlib.cli" in call for call in calls(folder))
    (folder / "offline").unlink()
    (folder / "calls").unlink()
    assert make("run").returncode == 0
    assert calls(folder)[0] == "-m venv --clear .venv"  # pip may have left half a package
    assert calls(folder)[-1] == "-m drlib.cli run 00 --profile laptop"


@pytest.mark.parametrize("version", ["3, 10, 14", "3, 11, 2", "3, 11, 4", "3, 12, 5", "4, 11, 5"])
def test_unsupported_python_is_rejected_with_a_remedy(version, make_clone):
    folder, make = make_clone
    (folder / "release").write_text(version)
    result = make("run")
    assert result.returncode != 0
    assert "drlib needs Python 3.11, 3.11.5 or newer" in result.stderr
    assert "fake python" in result.stderr and "make PYTHON=/path/to/python3.11" in result.stderr
    assert not (folder / ".venv").exists()


@pytest.mark.parametrize("version", ["3, 11, 5", "3, 11, 14"])
def test_supported_python_creates_the_environment(version, make_clone):
    folder, make = make_clone
    (folder / "release").write_text(version)
    assert make("setup").returncode == 0 and len(stamps(folder)) == 1


def test_environment_of_an_older_python_is_recreated(make_clone):
    folder, make = make_clone
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
STEPS = {  # failing command: the words in the summary lines
    "ruff format --check .": ("format", "checks"),
    "ruff check .": ("lint", "checks"),
    "mypy": ("types", "checks"),
    f"pytest {BOTH_CORES} --durations=20 -m not alone tests": ("library",),
    f"pytest {BOTH_CORES} -p tests.conftest --nbval ": ("notebooks",),
}


@pytest.mark.parametrize("failing_step", STEPS)
def test_make_test_runs_every_step_after_a_failure(failing_step, make_clone):
    folder, make = make_clone
    (folder / "broken").write_text(failing_step)
    result = make("test")
    assert result.returncode != 0
    for word in STEPS[failing_step]:
        assert f"== failed: {word}\n" in result.stdout
    tools = ("pytest", "ruff", "mypy")
    steps = [call for call in calls(folder) if any(tool in call for tool in tools)]
    steps = [call for call in steps if "pip" not in call]
    assert len(steps) == len(STEPS)
    for step, expected in zip(steps, STEPS):
        assert step.startswith(f"-m {expected}")


def test_make_test_passes_if_all_steps_pass(make_clone):
    folder, make = make_clone
    result = make("test")
    assert result.returncode == 0 and result.stdout.endswith("== all passed\n")


def test_test_alone_is_a_separate_target(make_clone):
    folder, make = make_clone
    assert make("test-alone").returncode == 0
    assert calls(folder)[-1] == "-m pytest -m alone --durations=10 tests"
    (folder / "broken").write_text("pytest -m alone")
    assert make("test-alone").returncode != 0


def test_make_lab_opens_the_notebooks(make_clone):
    folder, make = make_clone
    assert make("lab").returncode == 0
    assert calls(folder)[-1] == f"-m jupyterlab --ServerApp.root_dir={folder}/notebooks"


def test_make_help_lists_every_target(make_clone):
    _, make = make_clone
    targets = [line.split()[1] for line in make("help").stdout.splitlines()]
    assert targets == [
        "run",
        "lab",
        "check",
        "test-fast",
        "test",
        "test-alone",
        "test-vllm",
        "smol",
        "benchmarks",
        "test-smol",
        "test-gym",
        "test-adapters",
        "book",
        "mutants",
        "reference",
        "clean",
    ]


# ---------------------------------------------------------------------------------------------
# .ci/run


@pytest.fixture
def run_ci(tmp_path):
    """Return a function that runs .ci/run with a `make` that only records its targets."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    programs = tmp_path / "bin"
    programs.mkdir()
    make = 'echo "$1" >> made; [ "$1" != "$FAILING" ]'
    for name, text in {"make": make, "chromium": "", "gcc": ""}.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)

    def run(**environment):
        (tmp_path / "made").unlink(missing_ok=True)
        path = os.pathsep.join([str(programs), os.environ["PATH"]])
        done = subprocess.run(
            [tmp_path / ".ci" / "run"],
            env=os.environ | {"PATH": path, "FAILING": ""} | environment,
            capture_output=True,
            text=True,
        )
        return done, (tmp_path / "made").read_text().split()

    return run


SUITES = ["test-alone", "test-vllm", "test-gym", "book"]


@pytest.mark.parametrize("failing", ["", "test", "book"])
def test_ci_runs_every_suite_also_after_a_failure(run_ci, failing):
    done, made = run_ci(FAILING=failing)
    assert made == ["test", *SUITES]
    assert done.returncode == (1 if failing else 0)
    assert ("== failed: " + failing in done.stdout) == bool(failing)


def test_ci_names_the_suites_for_which_no_time_is_left(run_ci):
    done, made = run_ci(CI_LIMIT_S="-1")
    assert made == ["test"] and done.returncode == 0
    assert [line.split()[4].rstrip(";") for line in done.stdout.splitlines()] == SUITES
