"""What notebooks need, and what keeps them honest.

    from drlib import lab                             sets one thread, in a notebook's kernel
    lab.use_style()                                   the look of every figure
    lab.show_source(leave_one_out)                    the library's real code, compared in CI
    for step in lab.progress(steps): ...              a bar; silent when DRLIB_HEADLESS=1
    lab.launch("drlib.training.sft", [...], 2)        a program in its own processes
    lab.ensure("rl", config)                          a stage's folder, built if it is missing
    lab.save_figure(fig, "05_grpo_by_hand")           figures/05_grpo_by_hand.png

`python -m drlib.lab --help` says what can be done from a terminal.
"""

from drlib.lab.display import (
    ROOT,
    one_thread_in_a_notebook,
    progress,
    save_figure,
    show_source,
    use_style,
)
from drlib.lab.launching import LaunchError, ensure, launch

__all__ = [
    "ROOT",
    "LaunchError",
    "ensure",
    "launch",
    "progress",
    "save_figure",
    "show_source",
    "use_style",
]

one_thread_in_a_notebook()
