"""docs/papers.md: every mechanism of the sources, its place in the code, and its completeness.

The table is `papers.yaml`; `drlib experiment pages` writes the page. A row with code names the
notebook that explains it, its test and its measurement.
"""

from pathlib import Path
from typing import NamedTuple

import yaml

from drlib.config import ROOT
from drlib.validation import require

TABLE, PAPERS_PAGE = Path(__file__).with_name("papers.yaml"), ROOT / "docs" / "papers.md"
NOTHING_YET = "none yet"
MECHANISM_STATES = {
    "whole": "as published, and runs use it",
    "reduced": "the idea with less in it; the words beside it say what was left out",
    "switch": "a setting of the stage `rl`, off by default; no committed run has measured it",
    "function": "function only: code and test, but no run uses it",
    "missing": "nothing is there",
    "removed": "was there and is not any more; the reason stands beside it",
}
HEAD = """# Papers

Every mechanism of the documents that drlib comes from: where it is here, the notebook that explains
it, its test, what it has measured in a committed run, and how much of it there is. Drawn by
`drlib experiment pages` from [papers.yaml](../drlib/experiments/papers.yaml); a test follows each
link.
"""
COLUMNS = ("mechanism", "file", "notebook", "test", "measured", "how much of it")


class Mechanism(NamedTuple):
    """One row of the table; paths are empty for a mechanism that is not implemented.

    Args:
        code: path under drlib/, optionally with ":NAME".
        test: file under tests/.
        measured: paths under figures/reference/.
    """

    source: str
    what: str
    state: str
    particulars: str
    code: str = ""
    notebook: str = ""
    test: str = ""
    measured: tuple[str, ...] = ()


def mechanisms(table: Path = TABLE) -> list[Mechanism]:
    """Return the rows in order; ValueError names an incomplete one."""
    rows = []
    for group in yaml.safe_load(table.read_text(encoding="utf-8")):
        for fields in group["rows"]:
            state, _, particulars = fields.pop("state").partition(":")
            measured = fields.pop("measured", NOTHING_YET)
            row = Mechanism(
                group["source"],
                state=state,
                particulars=particulars.strip(),
                measured=() if measured == NOTHING_YET else tuple(measured.split()),
                **fields,
            )
            require(state in MECHANISM_STATES, f"{row.what!r}: unknown state {state!r}")
            is_there = state not in ("missing", "removed")
            require(is_there == bool(row.code), f"{row.what!r}: {state}, and code {row.code!r}")
            require(is_there == bool(row.test), f"{row.what!r}: {state}, and test {row.test!r}")
            rows.append(row)
    return rows


def notebook_of(number: str) -> Path:
    """Return the file of a notebook by number; ValueError if there is none."""
    found = [*(ROOT / "notebooks").glob(f"{number}_*.ipynb")]
    require(len(found) == 1, f"no notebook {number!r}")
    return found[0]


def papers_page(table: Path = TABLE) -> str:
    """Return the page in Markdown."""
    rows = mechanisms(table)
    parts = [HEAD, *(f"- **{word}**: {meaning}." for word, meaning in MECHANISM_STATES.items()), ""]
    counts = ", ".join(f"{sum(r.state == s for r in rows)} {s}" for s in MECHANISM_STATES)
    parts.append(f"{len(rows)} rows: {counts}.")
    for group in yaml.safe_load(table.read_text(encoding="utf-8")):
        mine = [row for row in rows if row.source == group["source"]]
        parts += [
            f"\n## {group['source']}\n",
            f"{group['about'][0].upper()}{group['about'][1:]}.\n",
        ]
        parts += [_line(COLUMNS), _line(["---"] * len(COLUMNS)), *(_line(_cells(r)) for r in mine)]
    return "\n".join(parts) + "\n"


def _line(cells) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(row: Mechanism) -> list[str]:
    """Return the cells of a row, with links relative to docs/."""
    how_much = f"**{row.state}**" + (f": {row.particulars}" if row.particulars else "")
    if not row.code:
        return [row.what, "", "", "", "", how_much]
    file, _, name = row.code.partition(":")
    code = f"[{file}](../drlib/{file})" + (f" `{name}`" if name else "")
    notebook = row.notebook and f"[{row.notebook}](../notebooks/{notebook_of(row.notebook).name})"
    test = f"[{row.test}](../tests/{row.test})"
    links = [f"[{path}](../figures/reference/{path})" for path in row.measured]
    return [row.what, code, notebook, test, ", ".join(links) or NOTHING_YET, how_much]
