"""One environment for all tests, and for the kernels that nbval starts (`-p tests.conftest`).

Quiet, offline, one thread, with separate Jupyter, IPython and figure folders for every process
of pytest-xdist. MPLBACKEND is never set, because inline figures would be lost.

`ALONE` lists files that need the machine to themselves (`make test-alone`). Slow files start first
and are excluded from `make test-fast` (`tests.file_seconds`).
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
from tests import file_seconds

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
    if file_seconds.FOLDER in os.environ:
        config.pluginmanager.register(file_seconds)
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
    seconds = file_seconds.read()
    for item in items:
        if item.path.name in ALONE:
            item.add_marker("alone")
        if seconds.get(file_seconds.name_of(item), 0) >= file_seconds.SLOW_S:
            item.add_marker("slow")
    items.sort(key=lambda item: -seconds.get(file_seconds.name_of(item), 0))
