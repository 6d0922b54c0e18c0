"""Notebook support: figures, source display, exercises, progress bars, stages in subprocesses.

Importing this package limits a notebook kernel to one thread.
"""

from drlib.config import ROOT, runs_folder
from drlib.notebook.display import (
    check,
    limit_kernel_threads,
    print_table,
    save_figure,
    show_source,
    use_style,
)
from drlib.notebook.panels import show_panel
from drlib.training.launch import LaunchError, build_stage, launch, progress

__all__ = [
    "ROOT",
    "LaunchError",
    "build_stage",
    "check",
    "launch",
    "print_table",
    "progress",
    "runs_folder",
    "save_figure",
    "show_panel",
    "show_source",
    "use_style",
]

limit_kernel_threads()
