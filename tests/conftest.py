"""One environment for all tests, and for the kernels that nbval starts (`-p tests.conftest`).

Quiet, offline, one thread, private Jupyter and IPython folders, pictures into a scratch folder.
MPLBACKEND is never set: with it, the inline figures of a kernel would be lost.
"""

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings

from drlib.lab.notebooks import kernel_environment

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
