"""Notebooks in real kernels, run and refreshed in temporary folders.

Run: python -m pytest tests/test_notebook_execution.py
"""

import json
import os
import signal
import subprocess
import sys
import time

import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell

from drlib import cli
from drlib.config import ROOT
from drlib.notebook import execution, rules
from drlib.startup import GC_THRESHOLDS
from drlib.training import launch as launching
from tests.notebook_programs import (
    folder,  # noqa: F401 - a fixture
    printed,
    program,  # noqa: F401 - a fixture
    running,
    start,
    wait_for,
)
from tests.waiting import HANG_S


def test_run_passes_parameters_and_starts_in_the_working_directory(
    folder, tmp_path, capsys, monkeypatch
):
    monkeypatch.delenv("DRLIB_HEADLESS")
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    output = tmp_path / "runs" / "07.ipynb"
    execution.run("7", {"steps": 8, "rate": 2}, output)
    assert printed(output) == ["ci 16\n", "mine\n"]
    shown, bars = capsys.readouterr()
    assert shown.index("== Goal") < shown.index("== Run") < shown.index("ci 16")
    assert "bar: 100%" in bars
    assert [p.name for p in output.parent.iterdir()] == ["07.ipynb"]


def test_failed_run_keeps_its_copy_under_another_name(folder, tmp_path):
    path = folder / "07_small.ipynb"
    path.write_text(path.read_text().replace("steps * rate", "steps / (steps - 8)"))
    output = tmp_path / "07.ipynb"
    with pytest.raises(execution.NotebookError, match=r"07.failed.ipynb: (.|\n)*ZeroDivisionError"):
        execution.run("07", {"steps": 8}, output)
    assert not output.exists() and (tmp_path / "07.failed.ipynb").exists()
    assert not (tmp_path / "07.running.ipynb").exists()
    execution.run("07", {"steps": 9}, output)  # a complete copy replaces the failed one
    assert output.exists() and not (tmp_path / "07.failed.ipynb").exists()


def test_running_copy_has_its_own_name_and_survives_a_kill(folder, tmp_path):
    """The notebook lists the copies while it runs; then the runner is killed."""
    path, runs = folder / "07_small.ipynb", tmp_path / "runs"
    notebook = nbformat.read(path, 4)
    notebook.cells[-1].source = (
        f"import os, pathlib, time\nhere = pathlib.Path({str(runs)!r})\n"
        "(here / 'seen').write_text(' '.join(sorted(p.name for p in here.glob('*.ipynb'))))\n"
        "while (here / 'wait').exists(): time.sleep(0.1)"
    )
    nbformat.write(notebook, path)
    runs.mkdir()
    (runs / "wait").touch()
    command = start(
        "import pathlib\nfrom drlib.notebook import execution\n"
        f"execution.FOLDER = pathlib.Path({str(folder)!r})\n"
        f"execution.run('07', {{}}, pathlib.Path({str(runs / '07.ipynb')!r}))\n"
    )
    wait_for((runs / "seen").exists)
    wait_for((runs / "seen").read_text)
    kernels = psutil.Process(command.pid).children(recursive=True)
    command.kill()
    command.communicate()
    (runs / "wait").unlink()
    for kernel in kernels:
        kernel.kill()
    assert (runs / "seen").read_text() == "07.running.ipynb"
    assert [p.name for p in runs.glob("*.ipynb")] == ["07.running.ipynb"]


def test_next_run_replaces_an_incomplete_copy_with_a_message(folder, tmp_path, capsys):
    (tmp_path / "07.running.ipynb").write_text("half a copy")
    execution.run("07", {}, tmp_path / "07.ipynb")
    assert "replacing the incomplete copy of an interrupted run" in capsys.readouterr().out
    assert [p.name for p in tmp_path.glob("*.ipynb")] == ["07.ipynb"]


@pytest.mark.parametrize(
    ("first", "second", "given", "threads"),
    [
        ("import torch; torch.set_num_threads(2)", "from drlib import notebook", None, 1),
        ("from drlib import notebook", "import torch", None, 1),
        ("from drlib import notebook", "import torch", "2", 2),
    ],
)
def test_kernel_has_one_thread_for_any_import_order(
    folder, tmp_path, first, second, given, threads
):
    path = folder / "07_small.ipynb"
    notebook = nbformat.read(path, 4)
    notebook.cells[-1].source = "print('threads', torch.get_num_threads())"
    notebook.cells[3:5] = [new_code_cell(first), new_code_cell(second)]
    nbformat.write(notebook, path)
    output = tmp_path / "07.ipynb"
    with execution.private_jupyter(OMP_NUM_THREADS=given):
        execution._execute(path, output, {}, "nothing")
    assert printed(output) == [f"threads {threads}\n"]


def test_kernel_uses_the_garbage_collection_thresholds(folder, tmp_path):
    """The startup file leaves no name in the notebook's namespace."""
    path = folder / "07_small.ipynb"
    notebook = nbformat.read(path, 4)
    notebook.cells[-1].source = "print('gc' in dir(), __import__('gc').get_threshold())"
    nbformat.write(notebook, path)
    with execution.private_jupyter():
        execution._execute(path, tmp_path / "07.ipynb", {}, "nothing")
    assert printed(tmp_path / "07.ipynb")[-1] == f"False {GC_THRESHOLDS}\n"


def test_script_keeps_its_number_of_threads():
    code = "from drlib import notebook; import os; print(os.environ.get('OMP_NUM_THREADS'))"
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True
    )
    assert result.stdout == "None\n", result.stderr


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"step": 8}, "unknown parameter 'step': did you mean 'steps'"),
        ({"steps": "8"}, r"'steps' must be int, got str \('8'\)"),
        ({"steps": True}, "'steps' must be int, got bool"),
        ({"rate": None}, "'rate' must be float, got NoneType"),
    ],
)
def test_bad_parameters_fail_before_a_kernel_starts(folder, tmp_path, parameters, message):
    with pytest.raises(execution.NotebookError, match=message):
        execution.run("07", parameters, tmp_path / "07.ipynb")
    assert list(tmp_path.iterdir()) == [folder]


def test_command_line_errors_give_the_cause(tmp_path, capsys, folder):
    typo, broken = tmp_path / "typo.yaml", tmp_path / "broken.yaml"
    typo.write_text("profile: ci\nstep: 3\n")
    broken.write_text("profile: [ci\n")
    for argv, message in [
        (["run", "99"], "no notebook '99' in notebooks/; available: 07_small"),
        (["run", "07", "-p", "profil", "ci"], "did you mean 'profile'"),
        (["run", "07", "-p", "profile", "lapto"], "unknown profile 'lapto': did you mean 'laptop'"),
        (["run", "07", "-f", str(typo)], "unknown parameter 'step'"),
        (["run", "07", "-f", str(broken)], "broken.yaml is not YAML"),
        (["run", "07", "-f", str(tmp_path / "none.yaml")], "cannot read the parameter file"),
        (["notebooks", "check", "42"], "no notebook '42'"),
        (["run", ""], "no notebook ''"),
    ]:
        assert cli.main(argv) == 1
        assert message in capsys.readouterr().err


def test_repeated_refresh_is_bit_identical(folder):
    path = folder / "07_small.ipynb"
    assert execution.refresh(path) is True
    first = path.read_bytes()
    assert execution.refresh(path) is False
    assert path.read_bytes() == first
    assert printed(path) == ["ci 1.5\n", "notebooks\n"]
    assert b"widget-view" not in first and b'"id": "cell-05"' in first
    messages = [
        p for p in rules.find_problems(path) if "headings" not in p and "cells, not" not in p
    ]
    assert messages == []


def test_failed_refresh_keeps_the_notebook_unchanged(folder):
    path = folder / "07_small.ipynb"
    path.write_text(path.read_text().replace("steps * rate", "1 / 0"))
    before = path.read_bytes()
    with pytest.raises(execution.NotebookError, match="nothing was written(.|\n)*ZeroDivision"):
        execution.refresh(path)
    assert path.read_bytes() == before


def test_ctrl_c_stops_the_notebook_and_its_program(folder, program, tmp_path):
    path, out = folder / "07_small.ipynb", tmp_path / "out"
    notebook = nbformat.read(path, 4)
    notebook.cells[-1].source = (
        "import os\nfrom drlib.training import launch as launching\n"
        f"os.chdir({str(tmp_path)!r})\n"
        f"launching.launch('launched_program', [{str(out)!r}, 'polite'])"
    )
    nbformat.write(notebook, path)
    code = (
        "import pathlib, sys\nfrom drlib.notebook import execution\n"
        "from drlib.cli import main\n"
        f"execution.FOLDER = pathlib.Path({str(folder)!r})\n"
        f"sys.exit(main(['run', '07', '-o', {str(tmp_path / '07.ipynb')!r}]))\n"
    )
    command = start(code)
    wait_for((tmp_path / "out.0").exists)
    time.sleep(2 * launching.POLL_S)
    kernels = [p.pid for p in psutil.Process(command.pid).children(recursive=True)]
    command.send_signal(signal.SIGINT)
    error = command.communicate(timeout=HANG_S)[1].decode()
    pids = json.loads((tmp_path / "out.0").read_text())[:2]
    assert [pid for pid in pids + kernels if running(pid)] == []
    assert (tmp_path / "out.0.saved").exists()
    assert command.returncode == 130 and "interrupted" in error
    assert not (tmp_path / "07.ipynb").exists()
    assert not (tmp_path / "07.failed.ipynb").exists()  # it was interrupted and did not fail
