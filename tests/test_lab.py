"""lab: real notebooks, real kernels, real processes; everything is made in temporary folders."""

import json
import os
import signal
import subprocess
import sys
import time

import nbformat
import psutil
import pytest
import yaml
from matplotlib.figure import Figure
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from drlib import lab
from drlib.config import Config
from drlib.files import WriteError
from drlib.lab import ROOT, hygiene, launching, notebooks
from drlib.lab.__main__ import _parser, main
from drlib.lab.display import REFERENCE
from drlib.lab.launching import steps_done
from drlib.lab.reference import _command

# A program that a test launches: it writes its own and its child's process id, then does as told.
PROGRAM = """
import json, os, signal, subprocess, sys, time
out, mode = sys.argv[1:3]
rank = os.environ.get("RANK", "0")
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
if mode == "deaf":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
with open(f"{out}.{rank}.tmp", "w") as file:
    json.dump([os.getpid(), child.pid, os.environ["OMP_NUM_THREADS"]], file)
os.replace(f"{out}.{rank}.tmp", f"{out}.{rank}")
if mode == "fail":
    print(*(f"line {i}" for i in range(100)), sep="\\n")
    child.kill()
    sys.exit(3)
if mode == "end":
    print("fine from rank", rank)
    child.kill()
    child.wait()
    sys.exit(0)
try:
    time.sleep(600)
except KeyboardInterrupt:
    open(f"{out}.{rank}.saved", "w").close()
    raise
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """(module, output prefix); logs go to a temporary folder too."""
    (tmp_path / "house_program.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(launching, "LOGS", tmp_path / "logs")
    return "house_program", tmp_path / "out"


def wait_for(condition, seconds=180):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def running(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def start(code):
    """Python with Ctrl-C working, also where the tests themselves run as a background job."""
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=lab.ROOT,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def interrupted_launch(tmp_path, mode, processes):
    """Launch from another process, interrupt it; (process ids of the program, exit status)."""
    out = tmp_path / "out"
    code = (
        "from drlib import lab; from drlib.lab import launching; import pathlib\n"
        f"launching.GRACE_S = {1.0 if mode == 'deaf' else 60.0}\n"
        f"launching.LOGS = pathlib.Path({str(tmp_path / 'logs')!r})\n"
        f"lab.launch('house_program', [{str(out)!r}, {mode!r}], {processes})\n"
    )
    notebook = start(code)
    files = [tmp_path / f"out.{rank}" for rank in range(processes)]
    wait_for(lambda: all(f.exists() for f in files))
    time.sleep(2 * launching.POLL_S)  # launch has seen the grandchildren once
    notebook.send_signal(signal.SIGINT)
    error = notebook.communicate(timeout=180)[1].decode()
    assert "KeyboardInterrupt" in error
    return [pid for f in files for pid in json.loads(f.read_text())[:2]]


def test_launch_runs_a_module_and_returns_its_log(program, tmp_path):
    module, out = program
    log = lab.launch(module, [str(out), "end"])
    assert "fine from rank 0" in log.read_text()
    assert json.loads((tmp_path / "out.0").read_text())[2] == "1"  # OMP_NUM_THREADS


def test_launch_runs_several_ranks(program, tmp_path):
    module, out = program
    log = lab.launch(module, [str(out), "end"], 2).read_text()
    assert "fine from rank 0" in log and "fine from rank 1" in log


def test_a_failing_program_shows_the_end_of_its_log(program):
    module, out = program
    with pytest.raises(lab.LaunchError) as caught:
        lab.launch(module, [str(out), "fail"], desc="sft")
    message = str(caught.value)
    assert caught.value.returncode == 3
    assert message.startswith("sft failed (exit status 3)")
    assert "line 99" in message and "line 70\n" in message and "line 69\n" not in message


def test_launch_refuses_no_processes(program):
    with pytest.raises(ValueError, match="processes must be at least 1, got 0"):
        lab.launch(program[0], [], 0)


@pytest.mark.parametrize(("mode", "processes"), [("polite", 1), ("deaf", 1), ("polite", 2)])
def test_ctrl_c_leaves_no_orphan(program, tmp_path, mode, processes):
    pids = interrupted_launch(tmp_path, mode, processes)
    assert [pid for pid in pids if running(pid)] == []
    saved = [(tmp_path / f"out.{rank}.saved").exists() for rank in range(processes)]
    assert saved == [mode == "polite"] * processes  # it had the time to save what it needs


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_a_killed_kernel_takes_its_program_along(program, tmp_path):
    out = tmp_path / "out"
    code = (
        "from drlib import lab; from drlib.lab import launching; import pathlib\n"
        f"launching.LOGS = pathlib.Path({str(tmp_path / 'logs')!r})\n"
        f"lab.launch('house_program', [{str(out)!r}, 'polite'])\n"
    )
    kernel = subprocess.Popen([sys.executable, "-c", code], cwd=lab.ROOT)
    wait_for((tmp_path / "out.0").exists)
    program_pid, grandchild = json.loads((tmp_path / "out.0").read_text())[:2]
    kernel.kill()
    kernel.wait()
    wait_for(lambda: not running(program_pid))
    os.kill(grandchild, signal.SIGKILL)  # a program that dies of SIGTERM cannot look after it


def test_the_steps_in_a_file_that_is_late_cut_back_and_renamed(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert steps_done(path) == 0
    path.write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert steps_done(path) == 2
    with open(path, "a") as file:
        file.write('ep": 3}\n')
    assert steps_done(path) == 3
    path.write_text('{"step": 1}\n')  # resumed from an earlier checkpoint
    assert steps_done(path, 3) == 1
    path.rename(tmp_path / "elsewhere.jsonl")
    assert steps_done(path, 1) == 1


def test_progress_is_silent_when_headless_and_text_when_asked(monkeypatch, capsys):
    monkeypatch.setenv("DRLIB_HEADLESS", "1")
    assert list(lab.progress(range(3), desc="steps")) == [0, 1, 2]
    assert capsys.readouterr() == ("", "")
    monkeypatch.delenv("DRLIB_HEADLESS")
    monkeypatch.setenv("DRLIB_TEXT_BARS", "60")
    assert list(lab.progress(range(3), desc="steps")) == [0, 1, 2]
    shown = capsys.readouterr()
    assert shown.out == "" and "steps: 100%" in shown.err and shown.err.count("%|") == 2


def test_show_source_shows_the_code_as_it_is(capsys):
    lab.show_source(notebooks.parse_pairs, wait_for)
    text = capsys.readouterr().out
    assert text.startswith("def parse_pairs(") and "\n\ndef wait_for(" in text
    with pytest.raises(ValueError, match="at least one"):
        lab.show_source()


def figure():
    fig = Figure()
    fig.subplots().plot([0, 1], [1, 0])
    return fig


def test_save_figure_makes_the_folder_and_equal_bytes(tmp_path, monkeypatch):
    monkeypatch.setenv("DRLIB_FIGURES", str(tmp_path / "new" / "figures"))
    path = lab.save_figure(figure(), "05_line")
    first = path.read_bytes()
    assert path == tmp_path / "new" / "figures" / "05_line.png"
    assert lab.save_figure(figure(), "05_line").read_bytes() == first
    assert b"Software" not in first and first.startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="must look like 05_grpo_by_hand"):
        lab.save_figure(figure(), "../line")


def test_a_full_disk_leaves_no_half_picture(tmp_path, monkeypatch):
    resource = pytest.importorskip("resource")
    monkeypatch.setenv("DRLIB_FIGURES", str(tmp_path))
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, old[1]))
    try:
        with pytest.raises(WriteError, match="05_line.png.*is the disk full"):
            lab.save_figure(figure(), "05_line")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------------------------------
# notebooks


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder `notebooks` with one small notebook, 07_small, never executed."""
    cells = [
        new_markdown_cell("# 07 · Small\n\n## Goal"),
        new_code_cell('profile = "ci"\nsteps = 3\nrate = 0.5', metadata={"tags": ["parameters"]}),
        new_markdown_cell("## Run"),
        new_code_cell("import ipywidgets, os\nprint(profile, steps * rate)"),
        new_code_cell("print(os.path.basename(os.getcwd()))"),
        new_code_cell("from drlib import lab\nfor _ in lab.progress(range(3), desc='bar'): ..."),
        new_code_cell("ipywidgets.IntSlider(3)"),
    ]
    folder = tmp_path / "notebooks"
    folder.mkdir()
    nbformat.write(new_notebook(cells=cells), folder / "07_small.ipynb")
    monkeypatch.setattr(notebooks, "FOLDER", folder)
    return folder


def printed(path):
    return [
        o.text
        for c in nbformat.read(path, 4).cells
        for o in c.get("outputs", [])
        if o.get("name") == "stdout"
    ]


def test_run_passes_parameters_and_starts_in_the_notebooks_folder(
    folder, tmp_path, capsys, monkeypatch
):
    monkeypatch.delenv("DRLIB_HEADLESS")
    output = tmp_path / "runs" / "07.ipynb"
    notebooks.run("7", {"steps": 8, "rate": 2}, output)
    assert printed(output) == ["ci 16\n", "notebooks\n"]
    shown, bars = capsys.readouterr()
    assert shown.index("== Goal") < shown.index("== Run") < shown.index("ci 16")
    assert "bar: 100%" in bars
    assert [p.name for p in output.parent.iterdir()] == ["07.ipynb"]


def test_a_failed_run_keeps_its_copy_under_another_name(folder, tmp_path):
    path = folder / "07_small.ipynb"
    path.write_text(path.read_text().replace("steps * rate", "steps / (steps - 8)"))
    output = tmp_path / "07.ipynb"
    with pytest.raises(notebooks.NotebookError, match=r"07.failed.ipynb: (.|\n)*ZeroDivisionError"):
        notebooks.run("07", {"steps": 8}, output)
    assert not output.exists() and (tmp_path / "07.failed.ipynb").exists()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"step": 8}, "unknown parameter 'step': did you mean 'steps'"),
        ({"steps": "8"}, r"'steps' must be int, got str \('8'\)"),
        ({"steps": True}, "'steps' must be int, got bool"),
        ({"rate": None}, "'rate' must be float, got NoneType"),
    ],
)
def test_bad_parameters_are_refused_before_a_kernel_starts(folder, tmp_path, parameters, message):
    with pytest.raises(notebooks.NotebookError, match=message):
        notebooks.run("07", parameters, tmp_path / "07.ipynb")
    assert list(tmp_path.iterdir()) == [folder]


def test_the_command_line_names_what_is_wrong(tmp_path, capsys, folder):
    typo, broken = tmp_path / "typo.yaml", tmp_path / "broken.yaml"
    typo.write_text("profile: ci\nstep: 3\n")
    broken.write_text("profile: [ci\n")
    for argv, message in [
        (["run", "99"], "no notebook '99' in notebooks/: there are 07_small"),
        (["run", "07", "-p", "profil", "ci"], "did you mean 'profile'"),
        (["run", "07", "-p", "profile", "lapto"], "unknown profile 'lapto': did you mean 'laptop'"),
        (["run", "07", "-f", str(typo)], "unknown parameter 'step'"),
        (["run", "07", "-f", str(broken)], "broken.yaml is not YAML"),
        (["run", "07", "-f", str(tmp_path / "none.yaml")], "cannot read the parameter file"),
        (["check", "42"], "no notebook '42'"),
        (["run", ""], "no notebook ''"),
        (["reference", "--only", "rl"], "--only need --out"),
        (["reference", "--set", "seed=3", "--out", "figures/reference/tour"], "need --out"),
        (["reference", "--set", "rl_clip", "--out", str(tmp_path)], "'rl_clip' must be"),
        (["reference", "--only", "rl_randm", "--out", str(tmp_path)], "unknown stage"),
    ]:
        assert main(argv) == 1
        assert message in capsys.readouterr().err


def test_a_variation_names_the_command_that_makes_it():
    config = Config.load("laptop", rl_oversample=2, rl_resample="sample", rl_kl_coef=5e-5)
    command = _command(config, [0, 2], ROOT / "figures/reference/other", ["rl"])
    args = _parser().parse_args(command.split()[3:])
    assert (args.profile, args.seeds, args.only) == ("laptop", [0, 2], ["rl"])
    assert str(args.out) == "figures/reference/other"
    changes = dict(pair.split("=") for pair in args.set)
    assert {name: yaml.safe_load(value) for name, value in changes.items()} == {
        "rl_oversample": 2,
        "rl_resample": "sample",
        "rl_kl_coef": 5e-5,
    }
    recipe = _command(Config.load("laptop"), [0], REFERENCE, None)
    assert recipe.endswith("--profile laptop --seeds 0")


def test_refresh_twice_gives_the_same_bytes(folder):
    path = folder / "07_small.ipynb"
    assert notebooks.refresh(path) is True
    first = path.read_bytes()
    assert notebooks.refresh(path) is False
    assert path.read_bytes() == first
    assert printed(path) == ["ci 1.5\n", "notebooks\n"]
    assert b"widget-view" not in first and b'"id": "cell-05"' in first
    stored = [p for p in hygiene.problems(path) if "headings" not in p and "cells, not" not in p]
    assert stored == []


def test_a_failing_refresh_leaves_the_notebook_alone(folder):
    path = folder / "07_small.ipynb"
    path.write_text(path.read_text().replace("steps * rate", "1 / 0"))
    before = path.read_bytes()
    with pytest.raises(notebooks.NotebookError, match="nothing was written(.|\n)*ZeroDivision"):
        notebooks.refresh(path)
    assert path.read_bytes() == before


def test_ctrl_c_in_a_run_stops_the_notebook_and_its_program(folder, program, tmp_path):
    path, out = folder / "07_small.ipynb", tmp_path / "out"
    notebook = nbformat.read(path, 4)
    notebook.cells[-1].source = (
        "import pathlib\nfrom drlib.lab import launching\n"
        f"launching.LOGS = pathlib.Path({str(tmp_path / 'logs')!r})\n"
        f"launching.launch('house_program', [{str(out)!r}, 'polite'])"
    )
    nbformat.write(notebook, path)
    code = (
        "import pathlib, sys\nfrom drlib.lab import notebooks\n"
        "from drlib.lab.__main__ import main\n"
        f"notebooks.FOLDER = pathlib.Path({str(folder)!r})\n"
        f"sys.exit(main(['run', '07', '-o', {str(tmp_path / '07.ipynb')!r}]))\n"
    )
    command = start(code)
    wait_for((tmp_path / "out.0").exists)
    time.sleep(2 * launching.POLL_S)
    kernels = [p.pid for p in psutil.Process(command.pid).children(recursive=True)]
    command.send_signal(signal.SIGINT)
    error = command.communicate(timeout=180)[1].decode()
    pids = json.loads((tmp_path / "out.0").read_text())[:2]
    assert [pid for pid in pids + kernels if running(pid)] == []
    assert (tmp_path / "out.0.saved").exists()
    assert command.returncode == 130 and "interrupted" in error
    assert not (tmp_path / "07.ipynb").exists()
