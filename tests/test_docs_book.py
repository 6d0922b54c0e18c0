"""The book lists every notebook once, and every notebook shows its stage on the pipeline map."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from drlib.analysis.pipeline_map import ARROWS, FOLDER, STAGES, draw_map
from drlib.config import ROOT
from drlib.notebook.execution import find, read

NOTEBOOKS = find(None)
SVG = "{http://www.w3.org/2000/svg}"


def test_book_lists_every_notebook_once():
    index = (ROOT / "docs" / "book" / "index.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\.\./\.\./notebooks/(\w+)$", index, re.MULTILINE)
    assert sorted(listed) == [path.stem for path in NOTEBOOKS]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_shows_its_stage(path):
    maps = re.findall(r"\]\(\.\./figures/pipeline/([^)]+)\.svg\)", read(path).cells[0].source)
    assert len(maps) == 1 and maps[0] in (*STAGES, "all")


@pytest.mark.parametrize("stage", [*STAGES, "all"])
def test_committed_maps_are_drawn_by_the_code(stage):
    assert (FOLDER / f"{stage}.svg").read_text(encoding="utf-8") == draw_map(stage)


def test_map_highlights_one_stage_and_connects_boxes():
    drawing = ElementTree.fromstring(draw_map("RL"))
    boxes = drawing.findall(f"{SVG}rect")[1:]
    names = [text.text for text in drawing.findall(f"{SVG}text")]
    filled = [box.get("fill") for box in boxes]
    assert names == list(STAGES) and len(boxes) == len(STAGES)
    assert [name for name, fill in zip(names, filled) if filled.count(fill) == 1] == ["RL"]
    assert len(drawing.findall(f"{SVG}line")) == 5 + len(ARROWS)
    x = {name: float(box.get("x")) for name, box in zip(names, boxes)}
    assert [x[name] for name in names[:6]] == sorted(x[name] for name in names[:6])
    width = float(drawing.get("width"))
    assert all(left > 0 and left + 104 < width for left in x.values())


def test_unknown_stage_is_rejected():
    with pytest.raises(ValueError, match="did you mean 'rewards'"):
        draw_map("reward")
