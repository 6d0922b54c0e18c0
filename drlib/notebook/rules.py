"""The rules for committed notebooks, read from the file without executing it.

They hold what execution cannot show: that outputs are stored, normalised (nbval compares nothing
in a stripped notebook) and without a path of somebody's machine, and that every notebook has the
same headings and small cells.
"""

import itertools
import json
import re
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from drlib.notebook.display import ROOT
from drlib.notebook.execution import NotebookError, defaults, normalised, read

HEADINGS = (
    "Goal",
    "Parameters",
    "Idea",
    "By hand",
    "In code",
    "Run",
    "Figure",
    "Play",
    "Checks",
    "Exercises",
    "At scale",
)
MEDIAN_LINES = 6  # of a notebook's code cells
MAX_LINES = 25  # of one code cell
MAX_TEXT_BYTES = 300_000  # of a notebook without its pictures
MAX_IMAGE_BYTES = 600_000
IMAGE_TYPES = ("image/png", "image/jpeg", "image/svg+xml")
LINE_RULES = (
    (r".{101}", "above 100 columns"),  # as the formatter has it
    (r"\s*(!|%%?[a-z])", "no shell or magic command (its exit status is ignored)"),
    (r".*;\s*$", "a trailing `;` does not hide output under nbval: use plt.show()"),
)


def problems(path: Path, *, figures: Path = ROOT / "figures") -> list[str]:
    """Everything that is wrong with a notebook, one sentence each; in a folder `solutions` it need
    not have the shape of a main one. `figures` is the folder of the committed pictures."""
    try:
        notebook = read(path)
    except NotebookError as fault:
        return [str(fault)]
    number = path.stem[:2]
    found = [*_stored(notebook), *_code(notebook), *_figures(notebook, number, figures)]
    found += _shape(notebook, number) if path.parent.name != "solutions" else ()
    return [*found, *_shown(notebook)]


def _code_cells(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _stored(notebook) -> Iterator[str]:
    """Executed from top to bottom, without errors, normalised."""
    counts = [cell.execution_count for cell in _code_cells(notebook)]
    if counts != list(range(1, len(counts) + 1)):
        yield f"execution counts are {counts}, not 1..{len(counts)}: run `drlib notebooks refresh`"
    if json.dumps(normalised(notebook), sort_keys=True) != json.dumps(notebook, sort_keys=True):
        yield "not normalised (ids, kernel, metadata, widgets): run `drlib notebooks refresh`"


def _code(notebook) -> Iterator[str]:
    """Small cells of plain Python that nbval can compare."""
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            continue
        lines = cell.source.splitlines()
        if not cell.source.strip():
            yield f"cell {index} is empty"
        if len(lines) > MAX_LINES:
            yield f"cell {index} has {len(lines)} lines, above {MAX_LINES}"
        for line, (pattern, fault) in itertools.product(lines, LINE_RULES):
            if re.match(pattern, line):
                yield f"cell {index}, {line.strip()[:30]!r}: {fault}"


def _shown(notebook) -> Iterator[str]:
    """Outputs: no error, not too large, no path of this machine; takes the pictures out."""
    images = 0
    folders = (ROOT, ROOT.parent, Path.home(), tempfile.gettempdir())
    places = sorted({f"{folder}/" for folder in folders} - {"//"})
    for index, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                yield f"cell {index} ends in {output.ename}"
            data = output.get("data", {})
            images += sum(len(str(data.pop(kind, ""))) for kind in IMAGE_TYPES)
            for place in places:
                if place in json.dumps(output):
                    yield f"cell {index}: a path of this machine is in the output ({place}...)"
    text = len(json.dumps(notebook))
    if text > MAX_TEXT_BYTES:
        yield f"{text} bytes without pictures, above {MAX_TEXT_BYTES}"
    if images > MAX_IMAGE_BYTES:
        yield f"{images} bytes of pictures, above {MAX_IMAGE_BYTES}: fewer or smaller ones"


def _figures(notebook, number: str, figures: Path) -> Iterator[str]:
    """Every picture that the notebook saves or shows by name is committed."""
    source = "\n".join(cell.source for cell in notebook.cells)
    saved = re.findall(r"save_figure\([^\"']*[\"'](\w+)[\"']", source)
    shown = re.findall(rf"figures/({number}_\w+)\.png", source)
    for name in sorted({*saved, *shown}):
        if not (figures / f"{name}.png").exists():
            yield f"figures/{name}.png does not exist: run `drlib notebooks refresh {number}`"
    for name in saved:
        if not name.startswith(f"{number}_"):
            yield f"figure {name!r} must begin with the notebook's number, {number}_"


def _shape(notebook, number: str) -> Iterator[str]:
    """The same way through every notebook."""
    median = statistics.median(len(cell.source.splitlines()) for cell in _code_cells(notebook))
    if median > MEDIAN_LINES:
        yield f"the median code cell has {median} lines, above {MEDIAN_LINES}"
    try:
        defaults(notebook)
    except NotebookError as fault:
        yield str(fault)
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    prose = re.sub(r"^```.*?^```", "", prose, flags=re.M | re.S)
    if not prose.startswith(f"# {number} · "):
        yield f"the first cell must begin with '# {number} · Title'"
    headings = tuple(re.findall(r"^## (.+?)\s*$", prose, re.M))
    if headings != HEADINGS:
        yield f"headings are {', '.join(headings)}; they must be {', '.join(HEADINGS)}"
