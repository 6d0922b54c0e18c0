"""What a notebook shows: progress bars, the library's source, figures in one style.

Everything here gives the same stored output on every run, so that nbval can compare it.
Environment: DRLIB_HEADLESS=1 silences bars. DRLIB_TEXT_BARS makes them text on stderr, drawn every
so many seconds (for `lab run`, whose terminal shows no widget). DRLIB_FIGURES names another folder
for pictures (tests and `lab run` use it, so that they never change the committed ones).
"""

import inspect
import os
import re
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

from drlib.config import ROOT
from drlib.files import write_whole

REFERENCE = ROOT / "figures" / "reference" / "tour"  # what pictures and the README are made from
AGAIN = REFERENCE.with_name("again")  # the same recipe, trained by a later commit
FIGURE_NAME = re.compile(r"\d\d_[a-z0-9_]+")


def one_thread_in_a_notebook() -> None:
    """Torch and what else counts by OpenMP use one thread in a kernel, as in the stages and tests.

    The policies here are small: with two threads they wait for each other, and what takes half a
    minute takes several. A kernel that was started with OMP_NUM_THREADS keeps it, and outside of a
    kernel nothing happens. Torch need not be imported yet, and is not imported here.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if not hasattr(shell, "kernel") or "OMP_NUM_THREADS" in os.environ:
        return
    os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is loaded
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def progress(iterable: Iterable | None = None, total: float | None = None, desc: str = ""):
    """A tqdm bar with time left: a widget in Jupyter, text elsewhere, nothing when headless."""
    from tqdm import auto, std

    if os.environ.get("DRLIB_HEADLESS") == "1":  # the notebook bar ignores tqdm's TQDM_DISABLE
        return std.tqdm(iterable, total=total, desc=desc, disable=True)
    pause = os.environ.get("DRLIB_TEXT_BARS")
    if pause:  # a size of its own: a kernel's terminal may have none, and tqdm would hide the bar
        how = dict(ncols=88, nrows=20, mininterval=float(pause))
        return std.tqdm(iterable, total=total, desc=desc, **how)
    return auto.tqdm(iterable, total=total, desc=desc)


def show_source(*objects) -> None:
    """Display the source of functions or classes, as Markdown: it renders on GitHub, and nbval
    fails as soon as the library's code changes."""
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
    """The look of every figure: drlib.mplstyle on matplotlib's defaults."""
    import matplotlib.pyplot as plt

    from drlib.analysis.plots import STYLE  # lazily: it brings torch

    plt.style.use(STYLE)


def save_figure(fig, name: str) -> Path:
    """Write figures/NAME.png, NAME being NN_what, and return its path.

    Equal content gives equal bytes, and a failure leaves no half-written picture.
    """
    if not FIGURE_NAME.fullmatch(name):
        raise ValueError(f"figure name {name!r} must look like 05_grpo_by_hand (lower case)")
    path = Path(os.environ.get("DRLIB_FIGURES") or ROOT / "figures") / f"{name}.png"
    return write_whole(path, lambda p: fig.savefig(p, format="png", metadata={"Software": None}))
