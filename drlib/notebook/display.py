"""Notebook output: the library's source, and figures in one style.

Equal input gives equal output bytes, so that nbval can compare them. DRLIB_FIGURES names another
folder for pictures; tests and `drlib run` set it so that they never change the committed figures.
"""

import inspect
import os
import re
import sys
import textwrap
from pathlib import Path

from drlib.config import ROOT, TOUR
from drlib.files import write_atomic

REFERENCE = TOUR
FIGURE_NAME = re.compile(r"\d\d_[a-z0-9_]+")


def limit_kernel_threads() -> None:
    """Limit OpenMP (and torch) to one thread inside a notebook kernel.

    Small policies run several times slower with two threads. An existing OMP_NUM_THREADS is kept,
    and nothing happens outside a kernel. Torch is not imported here.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if not hasattr(shell, "kernel") or "OMP_NUM_THREADS" in os.environ:
        return
    os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is loaded
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def show_source(*objects) -> None:
    """Display the source of functions or classes as Markdown, which code hosts render."""
    if not objects:
        raise ValueError("show_source needs at least one function or class")
    code = "\n\n".join(textwrap.dedent(inspect.getsource(o)).rstrip() for o in objects)
    from IPython import get_ipython
    from IPython.display import Markdown, display

    if get_ipython() is None:
        print(code)
    else:
        display(Markdown(f"```python\n{code}\n```"))


def use_style() -> None:
    """Apply drlib.mplstyle to matplotlib."""
    import matplotlib.pyplot as plt

    from drlib.analysis.plots import STYLE  # lazy: imports torch

    plt.style.use(STYLE)


def save_figure(fig, name: str) -> Path:
    """Write figures/NAME.png atomically and return its path; NAME is like 05_grpo_by_hand."""
    if not FIGURE_NAME.fullmatch(name):
        raise ValueError(f"figure name {name!r} must look like 05_grpo_by_hand (lower case)")
    path = Path(os.environ.get("DRLIB_FIGURES") or ROOT / "figures") / f"{name}.png"
    return write_atomic(path, lambda p: fig.savefig(p, format="png", metadata={"Software": None}))
