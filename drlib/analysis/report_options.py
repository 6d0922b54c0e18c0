"""Checks of report options, without slow imports."""

from collections.abc import Sequence
from pathlib import Path

from drlib.validation import require


def check_report(
    out: str | Path, files: Sequence[str | Path], window: int, share: float, viewed: int
) -> None:
    """Check the arguments of `report.write_report`.

    Raises:
        ValueError: `out` is not .html, or a number is out of range.
        FileNotFoundError: a missing file.

    """
    require(
        Path(out).suffix in (".html", ".htm"),
        f"the report must be a .html file, got {out}: pass it before the trajectories",
    )
    require(
        window >= 1 and 0 < share < 1 and viewed >= 0,
        "window must be at least 1, share between 0 and 1, and viewed at least 0; "
        f"got {window}, {share}, {viewed}",
    )
    for path in files:
        if not Path(path).exists():
            raise FileNotFoundError(f"no file {path}")
