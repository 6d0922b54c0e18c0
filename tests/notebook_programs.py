"""Fixtures of notebook tests: a program to launch and interrupt, and a small notebook."""

import os
import signal
import subprocess
import sys
import time

import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from drlib import notebook
from drlib.notebook import execution

# The launched program writes its own and its child's process id, then acts by its mode.
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
    """Return module name and output prefix of the program; the folder is the working directory."""
    (tmp_path / "launched_program.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.chdir(tmp_path)
    return "launched_program", tmp_path / "out"


def wait_for(condition, seconds=180):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.05)


def running(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def start(code):
    """Start Python with the default SIGINT handler, which background jobs do not inherit."""
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=notebook.ROOT,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder `notebooks` with one small notebook, 07_small, that was never executed."""
    cells = [
        new_markdown_cell("# 07 · Small\n\n## Goal"),
        new_code_cell('profile = "ci"\nsteps = 3\nrate = 0.5', metadata={"tags": ["parameters"]}),
        new_markdown_cell("## Run"),
        new_code_cell("import ipywidgets, os\nprint(profile, steps * rate)"),
        new_code_cell("print(os.path.basename(os.getcwd()))"),
        new_code_cell(
            "from drlib import notebook\nfor _ in notebook.progress(range(3), desc='bar'): ..."
        ),
        new_code_cell("ipywidgets.IntSlider(3)"),
    ]
    folder = tmp_path / "notebooks"
    folder.mkdir()
    nbformat.write(new_notebook(cells=cells), folder / "07_small.ipynb")
    monkeypatch.setattr(execution, "FOLDER", folder)
    return folder


def printed(path):
    return [
        o.text
        for c in nbformat.read(path, 4).cells
        for o in c.get("outputs", [])
        if o.get("name") == "stdout"
    ]
