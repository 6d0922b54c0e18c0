"""One environment for all tests, and for the kernels that nbval starts (`-p tests.conftest`).

Quiet, offline, one thread, private Jupyter and IPython folders, pictures into a scratch folder; one
of each for every process of pytest-xdist. MPLBACKEND is never set: with it, the inline figures of a
kernel would be lost.

Files of tests that a neighbour would disturb are marked `alone` here, with the reason; `make test`
runs them after the others, one at a time.
"""

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings

from drlib.lab.notebooks import kernel_environment

# File of tests -> why nothing may run beside it.
ALONE = {
    "test_sandbox_bounds.py": "it measures what a call holds of the whole machine's memory",
    "test_sandbox_kill.py": "it counts what lies in the shared /dev/shm before and after",
    "test_sandbox_ray.py": "Ray starts a cluster of its own, as large as the machine",
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
    settings.load_profile("drlib")
    import torch  # after OMP_NUM_THREADS; a plugin may have imported it before

    torch.set_num_threads(1)


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.name in ALONE:
            item.add_marker("alone")
