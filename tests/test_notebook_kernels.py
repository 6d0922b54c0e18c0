"""A kernel whose ports were taken before it bound them is started again; real kernels, real ports.

Jupyter's own search for free ports is given one that this test holds, which is what another program
that is quicker does to it.
"""

import socket

import nbformat
import nbval.kernel
import pytest
from jupyter_client.connect import LocalPortCache
from nbformat.v4 import new_code_cell, new_notebook

from drlib.notebook import execution
from drlib.notebook.execution import KERNEL_STARTS, NotebookError

PORTS = 5  # a kernel's: shell, iopub, stdin, heartbeat, control


@pytest.fixture
def taken(monkeypatch):
    """Lets the first kernels that are started find one of their ports taken; how many."""
    free = LocalPortCache.find_available_port
    asked = []

    def occupy(kernels):
        def find_available_port(cache, ip):
            asked.append(ip)
            first_of_its_kernel = len(asked) % PORTS == 1
            if first_of_its_kernel and len(asked) <= kernels * PORTS:
                return held.getsockname()[1]
            return free(cache, ip)

        monkeypatch.setattr(LocalPortCache, "find_available_port", find_available_port)
        return asked

    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        yield occupy


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    """A notebook that counts its own runs, as number 07."""
    runs = tmp_path / "runs.txt"
    cell = new_code_cell(f"print('ran', file=open({str(runs)!r}, 'a')); print(6 * 7)")
    parameters = new_code_cell('profile = "ci"', metadata={"tags": ["parameters"]})
    written = new_notebook(cells=[parameters, cell], metadata={"kernelspec": execution.KERNEL})
    nbformat.write(written, tmp_path / "07_small.ipynb")
    monkeypatch.setattr(execution, "FOLDER", tmp_path)
    return tmp_path / "07_small.ipynb"


def test_a_run_starts_another_kernel_and_runs_its_cells_once(taken, notebook, capfd):
    asked = taken(1)
    copy = notebook.with_name("copy.ipynb")
    execution.run("07", {}, copy)
    assert nbformat.read(copy, 4).cells[-1].outputs[0].text == "42\n"
    assert notebook.with_name("runs.txt").read_text() == "ran\n"
    assert len(asked) == 2 * PORTS
    said = capfd.readouterr().err
    assert "Address already in use" in said
    assert "another is started" in said


def test_a_kernel_that_never_starts_is_an_error_of_the_notebook(taken, notebook):
    asked = taken(KERNEL_STARTS)
    copy = notebook.with_name("copy.ipynb")
    with pytest.raises(NotebookError, match=f"ended {KERNEL_STARTS} times before it answered"):
        execution.run("07", {}, copy)
    assert len(asked) == KERNEL_STARTS * PORTS
    assert not copy.exists()
    assert not notebook.with_name("runs.txt").exists()


def test_nbval_starts_another_kernel(taken):
    asked = taken(1)
    kernel = nbval.kernel.RunningKernel(nbval.kernel.CURRENT_ENV_KERNEL_NAME)
    try:
        kernel.execute_cell_input("1 + 1")
        assert len(asked) == 2 * PORTS
    finally:
        kernel.stop()


def test_nbval_tells_what_the_kernel_said(taken):
    taken(KERNEL_STARTS)
    with pytest.raises(NotebookError) as fault:
        nbval.kernel.RunningKernel(nbval.kernel.CURRENT_ENV_KERNEL_NAME)
    assert "Address already in use" in fault.value.__notes__[0]


def test_other_faults_are_not_tried_again():
    started = []

    def start():
        started.append(1)
        raise RuntimeError("Kernel didn't respond in 60 seconds")

    with pytest.raises(RuntimeError, match="60 seconds"):
        execution.with_a_kernel(start)
    assert len(started) == 1
