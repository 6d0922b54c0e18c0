"""Live display of a stage's metrics in TensorBoard or trackio (trainer.report_to).

metrics.jsonl is the source. At every start the rows in the run folder are written again, so that a
resumed stage has no duplicated steps. The clock times of these steps are those of the start: plot
by step. Numbers in a nested table are shown as "table/name"; texts and lists are not shown.

accelerate's trackers are not used, because they initialise accelerate's distributed state, and the
local loop has its own.
"""

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path

from drlib.validation import require

FOLDER = "tensorboard"  # in the run folder


def require_package(report_to: str) -> None:
    """Raise ValueError if the package that displays the metrics is not installed."""
    require(
        report_to == "none" or importlib.util.find_spec(report_to) is not None,
        f"trainer.report_to={report_to!r} needs the package {report_to}, which is not installed: "
        f"pip install {report_to}, or set trainer.report_to=none",
    )


def numbers(row: dict, prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield (name, value) of each number in a row of metrics, nested tables included."""
    for name, value in row.items():
        if isinstance(value, dict):
            yield from numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and f"{prefix}{name}" != "step":
            yield prefix + name, float(value)


class Reporter:
    """Displays the metrics of one stage; "none" does nothing.

    Args:
        report_to: as the setting.
        folder: run folder under construction.
        name: name of the finished run, for trackio; its project is the profile.
        rows: existing rows, of steps 1 to len(rows).

    Raises:
        ValueError: the package is not installed.
    """

    def __init__(self, report_to: str, folder: Path, name: str, rows: list[dict]):
        require_package(report_to)
        self._board = self._run = None
        if report_to == "tensorboard":
            from torch.utils.tensorboard import SummaryWriter

            shutil.rmtree(folder / FOLDER, ignore_errors=True)
            self._board = SummaryWriter(str(folder / FOLDER))
        elif report_to == "trackio":
            self._run = _trackio_run(folder.parent.name, name)
        for step, row in enumerate(rows, 1):
            self._write(step, row)
        self._flush()

    def show(self, step: int, row: dict) -> None:
        """Show the row of a step (from 1) immediately."""
        self._write(step, row)
        self._flush()

    def close(self) -> None:
        """Finish writing."""
        if self._board:
            self._board.close()
        if self._run:
            self._run.finish()

    def _write(self, step: int, row: dict) -> None:
        values = dict(numbers(row))
        if self._board:
            for name, value in values.items():
                self._board.add_scalar(name, value, step)
        if self._run:
            self._run.log(values, step=step)

    def _flush(self) -> None:
        if self._board:
            self._board.flush()


def _trackio_run(project: str, name: str):
    """Create an empty run of this name in trackio's project folder."""
    trackio = importlib.import_module("trackio")
    try:
        known = [run for run in trackio.Api().runs(project) if run.name == name]
    except ValueError:  # no such project yet
        known = []
    for run in known:
        run.delete()
    quiet = dict(embed=False, auto_log_gpu=False, auto_log_cpu=False)
    return trackio.init(project=project, name=name, **quiet)
