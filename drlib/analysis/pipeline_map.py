"""The map of the pipeline that every notebook shows, with its own stage highlighted.

`python -m drlib.analysis.pipeline_map` writes figures/pipeline/STAGE.svg for every stage.
"""

from drlib.config import ROOT
from drlib.files import write_atomic
from drlib.registry import suggest_name
from drlib.validation import require

FOLDER = ROOT / "figures" / "pipeline"
ROWS = (  # stages from left to right; the first row is the order of training
    ("world", "questions", "pre-training", "SFT", "RL", "distillation"),
    ("tools", "rewards", "agents", "evaluation", "analysis"),
)
ARROWS = (  # besides those between neighbours of the first row
    ("tools", "RL"),
    ("rewards", "RL"),
    ("RL", "agents"),
    ("agents", "evaluation"),
    ("evaluation", "analysis"),
)
STAGES = tuple(stage for row in ROWS for stage in row)
WIDTH, HEIGHT, GAP = 104, 34, 20  # of a box and between boxes, pixels
TOP = (12, 92)  # of the rows
ACTIVE, QUIET = "#2f6fb0", "#eef1f5"


def draw_map(active: str = "") -> str:
    """Return the map as SVG text; `active` is highlighted ("": none, "all": every stage).

    Raises:
        ValueError: unknown stage.
    """
    known = (*STAGES, "all", "")
    require(active in known, f"unknown stage {active!r}: {suggest_name(active, STAGES)}")
    places = {
        stage: (8 + (column + row) * (WIDTH + GAP), TOP[row])
        for row, stages in enumerate(ROWS)
        for column, stage in enumerate(stages)
    }
    neighbours = tuple(zip(ROWS[0], ROWS[0][1:]))
    parts = [_arrow(places[one], places[other]) for one, other in (*neighbours, *ARROWS)]
    parts += [_box(stage, *places[stage], active in (stage, "all")) for stage in STAGES]
    width, height = 8 + 6 * (WIDTH + GAP), TOP[1] + HEIGHT + 12
    head = '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' role="img" aria-label="pipeline, highlighted: {active or "nothing"}">\n'
        f'<defs>{head} orient="auto"><path d="M0 0 8 4 0 8z" fill="#667"/></marker></defs>\n'
        f'<rect width="{width}" height="{height}" rx="8" fill="#fff"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _box(name: str, x: float, y: float, is_active: bool) -> str:
    """Return a labelled box."""
    fill, colour = (ACTIVE, "#fff") if is_active else (QUIET, "#223")
    return (
        f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="{fill}"'
        f' stroke="#99a"/><text x="{x + WIDTH / 2}" y="{y + 22}" text-anchor="middle"'
        f' font-family="sans-serif" font-size="14" fill="{colour}">{name}</text>'
    )


def _arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    """Return an arrow between two boxes: sideways in a row, straight between the rows."""
    (x0, y0), (x1, y1) = start, end
    if y0 == y1:
        ends = (x0 + WIDTH, y0 + HEIGHT / 2, x1, y1 + HEIGHT / 2)
    elif y0 > y1:  # up
        ends = (x0 + WIDTH / 2, y0, x1 + WIDTH / 2 + (x0 - x1) / 12, y1 + HEIGHT)
    else:
        ends = (x0 + WIDTH / 2, y0 + HEIGHT, x1 + WIDTH / 2, y1)
    names = ("x1", "y1", "x2", "y2")
    where = " ".join(f'{name}="{value:g}"' for name, value in zip(names, ends))
    return f'<line {where} stroke="#667" stroke-width="1.5" marker-end="url(#head)"/>'


def main() -> None:
    for stage in (*STAGES, "all"):
        write_atomic(FOLDER / f"{stage}.svg", draw_map(stage))


if __name__ == "__main__":
    main()
