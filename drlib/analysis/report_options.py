"""Options of a report, checked before slow imports."""

from collections.abc import Sequence
from pathlib import Path

from drlib.validation import require


def check_report(
    out: str | Path, files: Sequence[str | Path], window: int, share: float, viewed: int
) -> None:
    """ValueError: `out` is no .html, or a number out of range. FileNotFoundError: a file is not
    there."""
    require(
        Path(out).suffix in (".html", ".htm"),
        f"the report is a .html file, not {out}: name it before the trajectories",
    )
    require(
        window >= 1 and 0 < share < 1 and viewed >= 0,
        "need a window of at least 1, a share "
        f"between 0 and 1 and no negative viewed; got {window}, {share}, {viewed}",
    )
    for path in files:
        if not Path(path).exists():
            raise FileNotFoundError(f"there is no file {path}")
