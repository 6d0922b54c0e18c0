"""Rules for committed notebooks, checked without executing them.

Outputs must be stored (nbval compares nothing in a stripped notebook), normalised, and free of
local paths. Every notebook has the same headings and small cells.
"""

import itertools
import json
import re
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from drlib.notebook.display import ROOT
from drlib.notebook.execution import NotebookError, normalise, read, read_defaults

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
MEDIAN_LINES = 6  # maximum median over the code cells of a notebook
MAX_LINES = 25  # lines per code cell
MAX_TEXT_BYTES = 300_000  # per notebook without its images
MAX_IMAGE_BYTES = 600_000
IMAGE_TYPES = ("image/png", "image/jpeg", "image/svg+xml")
LINE_RULES = (
    (r".{101}", "above 100 columns"),  # the formatter's limit
    (r"\s*(!|%%?[a-z])", "no shell or magic command, because its exit status is ignored"),
    (r".*;\s*$", "a trailing `;` does not hide output under nbval: use plt.show()"),
)


def find_problems(path: Path, *, figures: Path = ROOT / "figures") -> list[str]:
    """Return one message per violated rule.

    Args:
        path: the notebook; in a folder `solutions`, headings and cell sizes are free.
        figures: folder of the committed figures.
    """
    try:
        notebook = read(path)
    except NotebookError as error:
        return [str(error)]
    number = path.stem[:2]
    messages = [*_check_execution(notebook), *_check_code(notebook)]
    messages += _check_figures(notebook, number, figures)
    if path.parent.name != "solutions":
        messages += _check_structure(notebook, number)
    return [*messages, *_check_outputs(notebook)]


def _code_cells(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _check_execution(notebook) -> Iterator[str]:
    """Check that the notebook was executed from top to bottom and is normalised."""
    counts = [cell.execution_count for cell in _code_cells(notebook)]
    if counts != list(range(1, len(counts) + 1)):
        yield f"execution counts are {counts}, not 1..{len(counts)}: run `drlib notebooks refresh`"
    if json.dumps(normalise(notebook), sort_keys=True) != json.dumps(notebook, sort_keys=True):
        yield "not normalised (ids, kernel, metadata, widgets): run `drlib notebooks refresh`"


def _check_code(notebook) -> Iterator[str]:
    """Check that code cells are small and contain only Python that nbval can compare."""
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            continue
        lines = cell.source.splitlines()
        if not cell.source.strip():
            yield f"cell {index} is empty"
        if len(lines) > MAX_LINES:
            yield f"cell {index} has {len(lines)} lines, above {MAX_LINES}"
        for line, (pattern, message) in itertools.product(lines, LINE_RULES):
            if re.match(pattern, line):
                yield f"cell {index}, {line.strip()[:30]!r}: {message}"


def _check_outputs(notebook) -> Iterator[str]:
    """Check outputs for errors, size and local paths; removes the images from `notebook`."""
    image_bytes = 0
    folders = (ROOT, ROOT.parent, Path.home(), tempfile.gettempdir())
    local_paths = sorted({f"{folder}/" for folder in folders} - {"//"})
    for index, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                yield f"cell {index} ends in {output.ename}"
            data = output.get("data", {})
            image_bytes += sum(len(str(data.pop(kind, ""))) for kind in IMAGE_TYPES)
            for local_path in local_paths:
                if local_path in json.dumps(output):
                    yield f"cell {index}: the output contains a local path ({local_path}...)"
    text_bytes = len(json.dumps(notebook))
    if text_bytes > MAX_TEXT_BYTES:
        yield f"{text_bytes} bytes without images, above {MAX_TEXT_BYTES}"
    if image_bytes > MAX_IMAGE_BYTES:
        yield f"{image_bytes} bytes of images, above {MAX_IMAGE_BYTES}: use fewer or smaller ones"


def _check_figures(notebook, number: str, figures: Path) -> Iterator[str]:
    """Check that every figure that the notebook saves or shows is committed."""
    source = "\n".join(cell.source for cell in notebook.cells)
    saved = re.findall(r"save_figure\([^\"']*[\"'](\w+)[\"']", source)
    shown = re.findall(rf"figures/({number}_\w+)\.png", source)
    for name in sorted({*saved, *shown}):
        if not (figures / f"{name}.png").exists():
            yield f"figures/{name}.png does not exist: run `drlib notebooks refresh {number}`"
    for name in saved:
        if not name.startswith(f"{number}_"):
            yield f"figure {name!r} must begin with the notebook's number, {number}_"


def _check_structure(notebook, number: str) -> Iterator[str]:
    """Check title, headings, parameters and the median cell size."""
    median = statistics.median(len(cell.source.splitlines()) for cell in _code_cells(notebook))
    if median > MEDIAN_LINES:
        yield f"the median code cell has {median} lines, above {MEDIAN_LINES}"
    try:
        read_defaults(notebook)
    except NotebookError as error:
        yield str(error)
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    prose = re.sub(r"^```.*?^```", "", prose, flags=re.M | re.S)
    if not prose.startswith(f"# {number} · "):
        yield f"the first cell must begin with '# {number} · Title'"
    headings = tuple(re.findall(r"^## (.+?)\s*$", prose, re.M))
    if headings != HEADINGS:
        yield f"headings are {', '.join(headings)}; they must be {', '.join(HEADINGS)}"
