"""Kernels that die because another process took one of their ports are restarted.

The tests use real kernels. Jupyter's search for free ports returns a port that the test occupies.
"""

import socket

import nbformat
import nbval.kernel
import pytest
from jupyter_client.connect import LocalPortCache
from nbformat.v4 import new_code_cell, new_notebook

from drlib.notebook import execution
from drlib.notebook.execution import KERNEL_STARTS, NotebookError

PORTS = 5  # ports of a kernel: shell, iopub, stdin, heartbeat, control


@pytest.fixture
def occupy_ports(monkeypatch):
    """Return a function that occupies one port of each of the first `kernels` kernels."""
    free = LocalPortCache.find_available_port
    requests = []

    def occupy(kernels):
        def find_available_port(cache, ip):
            requests.append(ip)
            first_of_its_kernel = len(requests) % PORTS == 1
            if first_of_its_kernel and len(requests) <= kernels * PORTS:
                return blocker.getsockname()[1]
            return free(cache, ip)

        monkeypatch.setattr(LocalPortCache, "find_available_port", find_available_port)
        return requests

    with socket.socket() as blocker:
        blocker.bind(("127.0.0.1", 0))
        blocker.listen()
        yield occupy


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    """Notebook 07, which logs each execution of its cell."""
    runs = tmp_path / "runs.txt"
    cell = new_code_cell(f"print('ran', file=open({str(runs)!r}, 'a')); print(6 * 7)")
    parameters = new_code_cell('profile = "ci"', metadata={"tags": ["parameters"]})
    content = new_notebook(cells=[parameters, cell], metadata={"kernelspec": execution.KERNEL})
    nbformat.write(content, tmp_path / "07_small.ipynb")
    monkeypatch.setattr(execution, "FOLDER", tmp_path)
    return tmp_path / "07_small.ipynb"


def test_run_restarts_a_dead_kernel_and_executes_each_cell_once(occupy_ports, notebook, capfd):
    requests = occupy_ports(1)
    copy = notebook.with_name("copy.ipynb")
    execution.run("07", {}, copy)
    assert nbformat.read(copy, 4).cells[-1].outputs[0].text == "42\n"
    assert notebook.with_name("runs.txt").read_text() == "ran\n"
    assert len(requests) == 2 * PORTS
    error = capfd.readouterr().err
    assert "Address already in use" in error
    assert "starting another one" in error


def test_run_fails_if_the_kernel_never_starts(occupy_ports, notebook):
    requests = occupy_ports(KERNEL_STARTS)
    copy = notebook.with_name("copy.ipynb")
    with pytest.raises(NotebookError, match=f"died {KERNEL_STARTS} times before replying"):
        execution.run("07", {}, copy)
    assert len(requests) == KERNEL_STARTS * PORTS
    assert not copy.exists()
    assert not notebook.with_name("runs.txt").exists()


def test_nbval_restarts_a_dead_kernel(occupy_ports):
    requests = occupy_ports(1)
    kernel = nbval.kernel.RunningKernel(nbval.kernel.CURRENT_ENV_KERNEL_NAME)
    try:
        kernel.execute_cell_input("1 + 1")
        assert len(requests) == 2 * PORTS
    finally:
        kernel.stop()


def test_nbval_error_contains_the_kernel_output(occupy_ports):
    occupy_ports(KERNEL_STARTS)
    with pytest.raises(NotebookError) as fault:
        nbval.kernel.RunningKernel(nbval.kernel.CURRENT_ENV_KERNEL_NAME)
    assert "Address already in use" in fault.value.__notes__[0]


def test_other_errors_are_not_retried():
    started = []

    def start():
        started.append(1)
        raise RuntimeError("Kernel didn't respond in 60 seconds")

    with pytest.raises(RuntimeError, match="60 seconds"):
        execution.retry_kernel_start(start)
    assert len(started) == 1
