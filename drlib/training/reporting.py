"""Where the metrics of a stage are shown while it runs: TensorBoard or trackio (`report_to`).

metrics.jsonl stays the source. What is shown is made from its lines: at every start those that the
run folder kept are written anew, so a resumed stage has no step twice, whatever a kill left behind,
and one whose `report_to` was set only later has its first steps too. (The price: steps of before
the start have the clock time of the start. Read a curve by its step.)

Numbers are shown, those in a table of a line under "table/name"; texts and lists are not. A step is
the number of its line, from 1.

Stages that TRL trains report through TRL's own `report_to`. accelerate's trackers were not taken:
they start the state of its distributed processes, of which the local loop has its own.
"""

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path

from drlib.validation import require

FOLDER = "tensorboard"  # in the run folder


def require_package(report_to: str) -> None:
    """ValueError with the remedy where the package that shows the metrics is not installed."""
    require(
        report_to == "none" or importlib.util.find_spec(report_to) is not None,
        f"trainer.report_to={report_to!r} needs the package {report_to}, which is not installed: "
        f"pip install {report_to}, or set trainer.report_to=none",
    )


def numbers(row: dict, prefix: str = "") -> Iterator[tuple[str, float]]:
    """(name, value) of each number of a line of metrics, those of its tables included."""
    for name, value in row.items():
        if isinstance(value, dict):
            yield from numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and f"{prefix}{name}" != "step":
            yield prefix + name, float(value)


class Reporter:
    """Shows one stage's lines of metrics; "none" shows nothing and writes nothing.

    report_to: as the setting. folder: of the run, under construction. name: of the run when it is
    complete, for trackio, whose project is the profile (the folder's own folder).
    rows: the lines that are there already, of steps 1 to len(rows).

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
        """The line of `step`, which counts from 1; a reader sees it at once."""
        self._write(step, row)
        self._flush()

    def close(self) -> None:
        """What was shown is whole on the disk."""
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
    """A run of this name without any step, in the place where trackio keeps its projects."""
    trackio = importlib.import_module("trackio")
    try:
        known = [run for run in trackio.Api().runs(project) if run.name == name]
    except ValueError:  # no such project yet
        known = []
    for run in known:
        run.delete()
    quiet = dict(embed=False, auto_log_gpu=False, auto_log_cpu=False)
    return trackio.init(project=project, name=name, **quiet)
