"""Launched processes, figures and progress bars, in temporary folders.

Run: python -m pytest tests/test_notebook_display.py
"""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from matplotlib.figure import Figure

from drlib import notebook
from drlib.files import WriteError
from drlib.notebook import execution
from drlib.training import launch as launching
from drlib.training.launch import count_steps
from tests.notebook_programs import (
    program,  # noqa: F401 - a fixture
    running,
    start,
    wait_for,
)
from tests.waiting import HANG_S


def interrupt_launch(tmp_path, mode, processes):
    """Launch a program from another process, interrupt it, and return the ids of its processes."""
    out = tmp_path / "out"
    code = (
        "import os; from drlib import notebook\n"
        "from drlib.training import launch as launching\n"
        f"launching.GRACE_S = {1.0 if mode == 'deaf' else 60.0}\n"
        f"os.chdir({str(tmp_path)!r})\n"
        f"notebook.launch('launched_program', [{str(out)!r}, {mode!r}], {processes})\n"
    )
    notebook = start(code)
    files = [tmp_path / f"out.{rank}" for rank in range(processes)]
    wait_for(lambda: all(f.exists() for f in files))
    time.sleep(2 * launching.POLL_S)  # `launch` has polled the grandchildren once
    notebook.send_signal(signal.SIGINT)
    error = notebook.communicate(timeout=HANG_S)[1].decode()
    assert "KeyboardInterrupt" in error
    return [pid for f in files for pid in json.loads(f.read_text())[:2]]


def test_launch_runs_a_module_and_returns_its_log(program, tmp_path):
    module, out = program
    log = notebook.launch(module, [str(out), "end"])
    assert "fine from rank 0" in log.read_text()
    assert json.loads((tmp_path / "out.0").read_text())[2] == "1"  # OMP_NUM_THREADS


def test_launch_runs_several_ranks(program, tmp_path):
    module, out = program
    log = notebook.launch(module, [str(out), "end"], 2, threads=3).read_text()
    assert "fine from rank 0" in log and "fine from rank 1" in log
    for rank in ("0", "1"):
        assert json.loads((tmp_path / f"out.{rank}").read_text())[2] == "3"  # OMP_NUM_THREADS


def test_launch_error_contains_the_end_of_the_log(program):
    module, out = program
    with pytest.raises(notebook.LaunchError) as caught:
        notebook.launch(module, [str(out), "fail"], desc="sft")
    message = str(caught.value)
    assert caught.value.returncode == 3
    assert message.startswith("sft failed (exit status 3)")
    assert "line 99" in message and "line 70\n" in message and "line 69\n" not in message


def test_launch_rejects_zero_processes(program):
    with pytest.raises(ValueError, match="processes must be at least 1, got 0"):
        notebook.launch(program[0], [], 0)


@pytest.mark.parametrize(("mode", "processes"), [("polite", 1), ("deaf", 1), ("polite", 2)])
def test_ctrl_c_leaves_no_orphan(program, tmp_path, mode, processes):
    pids = interrupt_launch(tmp_path, mode, processes)
    assert [pid for pid in pids if running(pid)] == []
    saved = [(tmp_path / f"out.{rank}.saved").exists() for rank in range(processes)]
    assert (
        saved == [mode == "polite"] * processes
    )  # a program that handles SIGINT can save its state


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_killed_kernel_stops_its_program(program, tmp_path):
    out = tmp_path / "out"
    code = (
        "import os; from drlib import notebook\n"
        "from drlib.training import launch as launching\n"
        f"os.chdir({str(tmp_path)!r})\n"
        f"notebook.launch('launched_program', [{str(out)!r}, 'polite'])\n"
    )
    kernel = subprocess.Popen([sys.executable, "-c", code], cwd=notebook.ROOT)
    wait_for((tmp_path / "out.0").exists)
    program_pid, grandchild = json.loads((tmp_path / "out.0").read_text())[:2]
    kernel.kill()
    kernel.wait()
    wait_for(lambda: not running(program_pid))
    os.kill(grandchild, signal.SIGKILL)  # a program killed by SIGTERM does not stop its children


def test_count_steps_of_a_missing_growing_shortened_or_renamed_file(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert count_steps(path) == 0
    path.write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert count_steps(path) == 2
    with open(path, "a") as file:
        file.write('ep": 3}\n')
    assert count_steps(path) == 3
    path.write_text('{"step": 1}\n')  # resumed from an earlier checkpoint
    assert count_steps(path, 3) == 1
    path.rename(tmp_path / "elsewhere.jsonl")
    assert count_steps(path, 1) == 1


def test_progress_is_silent_when_headless_and_can_be_text(monkeypatch, capsys):
    monkeypatch.setenv("DRLIB_HEADLESS", "1")
    assert list(notebook.progress(range(3), desc="steps")) == [0, 1, 2]
    assert capsys.readouterr() == ("", "")
    monkeypatch.delenv("DRLIB_HEADLESS")
    monkeypatch.setenv("DRLIB_TEXT_BARS", "60")
    assert list(notebook.progress(range(3), desc="steps")) == [0, 1, 2]
    shown = capsys.readouterr()
    assert shown.out == "" and "steps: 100%" in shown.err and shown.err.count("%|") == 2


def test_show_source_prints_the_source_code(capsys):
    notebook.show_source(execution.parse_pairs, wait_for)
    text = capsys.readouterr().out
    assert text.startswith("def parse_pairs(") and "\n\ndef wait_for(" in text
    with pytest.raises(ValueError, match="at least one"):
        notebook.show_source()


def test_print_table_aligns_columns_under_their_header(capsys):
    rows = [("Malta", 3, "English, Maltese"), ("Greece", -12, "Greek")]
    notebook.print_table(["country", "n", "languages"], rows)
    assert capsys.readouterr().out.splitlines() == [
        "country    n  languages",
        "Malta      3  English, Maltese",
        "Greece   -12  Greek",
    ]
    notebook.print_table(["share", "word"], [("7%", "1st"), ("100%", "a")])
    assert capsys.readouterr().out.splitlines() == ["share  word", "   7%  1st", " 100%  a"]
    with pytest.raises(ValueError, match="2 cells in each"):
        notebook.print_table(["a", "b"], [("one",)])
    with pytest.raises(ValueError, match="at least one row"):
        notebook.print_table(["a", "b"], [])


def figure():
    fig = Figure()
    fig.subplots().plot([0, 1], [1, 0])
    return fig


def test_save_figure_creates_the_folder_and_is_bit_identical(tmp_path, monkeypatch):
    monkeypatch.setenv("DRLIB_FIGURES", str(tmp_path / "new" / "figures"))
    path = notebook.save_figure(figure(), "05_line")
    first = path.read_bytes()
    assert path == tmp_path / "new" / "figures" / "05_line.png"
    assert notebook.save_figure(figure(), "05_line").read_bytes() == first
    assert b"Software" not in first and first.startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="must look like 03_grpo_by_hand"):
        notebook.save_figure(figure(), "../line")


def test_full_disk_leaves_no_partial_figure(tmp_path, monkeypatch):
    resource = pytest.importorskip("resource")
    monkeypatch.setenv("DRLIB_FIGURES", str(tmp_path))
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, old[1]))
    try:
        with pytest.raises(WriteError, match="05_line.png.*is the disk full"):
            notebook.save_figure(figure(), "05_line")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(tmp_path.iterdir()) == []
