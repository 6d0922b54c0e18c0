"""One environment for all tests, and for the kernels that nbval starts (`-p tests.conftest`).

Quiet, offline, one thread, with separate Jupyter, IPython and figure folders for every process
of pytest-xdist. MPLBACKEND is never set, because inline figures would be lost.

`ALONE` lists files that need the machine to themselves (`make test-alone`). `LONG` lists slow
files, which start first and are excluded from `make test-fast`.
"""

import gc
import os
import shutil
import tempfile
from pathlib import Path

import nbval.kernel
from hypothesis import settings

from drlib.notebook.execution import NotebookError, kernel_environment, retry_kernel_start
from drlib.startup import GC_THRESHOLDS

START_NEW_KERNEL = nbval.kernel.start_new_kernel

# Test file -> reason why it needs the machine to itself.
ALONE = {
    "test_sandbox_bounds.py": "it measures what a call holds of the whole machine's memory",
    "test_sandbox_kill.py": "it counts what lies in the shared /dev/shm before and after",
    "test_training_ray.py": "Ray starts a cluster of two nodes, and kills a worker by its name",
    "test_sandbox_ray.py": "Ray starts a cluster of its own, as large as the machine",
    "test_training_asynchronous.py": "Ray starts clusters of its own, and kills their actors",
    "test_experiments_ray.py": "Ray starts a cluster of two nodes, each of which trains",
}

# Slow files, slowest first: a slow file started last would keep one core busy and the other idle.
LONG = (
    "test_first_hour.py",
    "test_training_real_processes.py",
    "test_training_real.py",
    "test_training_stages.py",
    "test_training_grpo.py",
    "test_notebooks.py",
    "test_training_callbacks.py",
    "test_training_switches.py",
    "test_training_replay.py",
    "test_contributing.py",
    "test_analysis_report.py",
    "test_training_registry.py",
    "test_training_worlds.py",
    "test_training_question_scheduling.py",
    "test_training_plan_memory.py",
    "test_sandbox_fuzz.py",
    "test_sandbox_weakened_layers.py",
    "test_training_together.py",
    "test_experiments_runner.py",
    "test_experiments_budget.py",
    "00_tour.ipynb",
    "22_stability.ipynb",
    "05_rl_run.ipynb",
    "31_reasoning_as_descent.ipynb",
)

settings.register_profile("drlib", derandomize=True, deadline=None)


def pytest_configure(config):
    scratch = Path(tempfile.mkdtemp(prefix="drlib-tests-"))
    config.add_cleanup(lambda: shutil.rmtree(scratch, ignore_errors=True))
    values = kernel_environment(scratch) | {
        "DRLIB_HEADLESS": "1",
        "DRLIB_FIGURES": str(scratch / "figures"),
    }
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if "DRLIB_TEST_WORLDS" not in os.environ:
        # the first process of a run; the processes of pytest-xdist inherit its environment
        (scratch / "worlds").mkdir()
        os.environ["DRLIB_TEST_WORLDS"] = str(scratch / "worlds")
    settings.load_profile("drlib")
    nbval.kernel.start_new_kernel = _start_kernel
    import torch  # after OMP_NUM_THREADS; a plugin may have imported it before

    torch.set_num_threads(1)
    gc.set_threshold(*GC_THRESHOLDS)


def pytest_collection_finish():
    """Exclude the collected tests and their imports from garbage collection.

    Scanning them took a fifth of the time of the training tests.
    """
    gc.collect()
    gc.freeze()


def _start_kernel(**options):
    """Start a kernel for nbval, which otherwise starts it once and discards its stderr."""
    with tempfile.TemporaryFile("w+") as stderr:
        try:
            return retry_kernel_start(START_NEW_KERNEL, **options | {"stderr": stderr})
        except NotebookError as error:
            stderr.seek(0)
            error.add_note(stderr.read())
            raise


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.name in ALONE:
            item.add_marker("alone")
        if item.path.name in LONG:
            item.add_marker("slow")
    order = {name: at for at, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get(item.path.name, len(LONG)))
