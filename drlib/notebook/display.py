"""Notebook output: source code of the library, figures, and feedback on exercises.

Equal input gives equal output bytes, so nbval can compare them. The variable DRLIB_FIGURES sets
another folder for figures; tests and `drlib run` use it to keep the committed figures unchanged.
"""

import inspect
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

from drlib.config import ROOT, TOUR
from drlib.files import write_atomic

REFERENCE = TOUR
FIGURE_NAME = re.compile(r"\d\d_[a-z0-9_]+")


def limit_kernel_threads() -> None:
    """Limit OpenMP (and torch) to one thread inside a notebook kernel.

    Small policies run several times slower with two threads. The function has no effect outside a
    kernel or if OMP_NUM_THREADS is set, and does not import torch.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if not hasattr(shell, "kernel") or "OMP_NUM_THREADS" in os.environ:
        return
    os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is loaded
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def show_source(*objects) -> None:
    """Display the source code of functions or classes as Markdown, or print it in a script."""
    if not objects:
        raise ValueError("show_source needs at least one function or class")
    code = "\n\n".join(textwrap.dedent(inspect.getsource(one)).rstrip() for one in objects)
    from IPython import get_ipython
    from IPython.display import Markdown, display

    if get_ipython() is None:
        print(code)
    else:
        display(Markdown(f"```python\n{code}\n```"))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table with aligned columns under a header.

    Args:
        columns: names of the columns.
        rows: cells, one sequence per row; columns in which every cell starts with a digit or a sign
            are aligned on the right.

    Raises:
        ValueError: there is no row, or a row has another number of cells than `columns`.
    """
    texts = [[str(cell) for cell in row] for row in rows]
    if not texts or any(len(row) != len(columns) for row in texts):
        raise ValueError(f"print_table needs at least one row, and {len(columns)} cells in each")
    widths = [max(map(len, column)) for column in zip(columns, *texts)]
    right = [all(re.match(r"[-+]?\d", cell) for cell in column) for column in zip(*texts)]
    for row in (columns, *texts):
        cells = [
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(row, widths, right)
        ]
        print("  ".join(cells).rstrip())


def check(exercise: str, answer) -> None:
    """Print whether an answer to an exercise is right or close, or a hint.

    Args:
        exercise: name in `drlib.notebook.exercises`.
        answer: a number, an array, the name of an option or a function; None: no answer yet.

    Raises:
        ValueError: unknown exercise.
    """
    from drlib.notebook.exercises import EXERCISES  # lazy: imports torch

    print(textwrap.fill(EXERCISES[exercise].grade(answer), 96))


def use_style() -> None:
    """Apply drlib.mplstyle to matplotlib."""
    import matplotlib.pyplot as plt

    from drlib.analysis.figure_style import STYLE

    plt.style.use(STYLE)


def save_figure(fig, name: str) -> Path:
    """Write figures/NAME.png atomically and return its path.

    Raises:
        ValueError: `name` does not look like 03_grpo_by_hand.
    """
    if not FIGURE_NAME.fullmatch(name):
        raise ValueError(f"figure name {name!r} must look like 03_grpo_by_hand (lower case)")
    path = Path(os.environ.get("DRLIB_FIGURES") or ROOT / "figures") / f"{name}.png"
    return write_atomic(
        path, lambda file: fig.savefig(file, format="png", metadata={"Software": None})
    )
