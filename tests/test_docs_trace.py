"""docs/trace.md tells a walk that really happens: its eight stops are taken again and compared."""

import re

import pytest

from drlib.config import ROOT
from tests.loop_examples import cold_start  # noqa: F401 - a fixture
from tests.trace_walk import PAGE, Walk, page


@pytest.fixture(scope="module")
def values(cold_start):
    return Walk(cold_start).values()


def test_the_page_shows_the_values_of_the_run(values):
    made = page(values)
    assert "<<" not in made
    assert PAGE.read_text(encoding="utf-8") == made, "run: PYTHONPATH=. python -m tests.trace_walk"


def test_there_are_at_most_eight_stops_and_what_they_name_is_there():
    text = PAGE.read_text(encoding="utf-8")
    stops = re.findall(r"^## (\d)\. ", text, re.M)
    assert stops == [str(n + 1) for n in range(8)]
    for name, link in re.findall(r"\[`?([^\]`]+)`?\]\(\.\./([^)]+)\)", text.replace("\n", " ")):
        path = ROOT / link
        assert path.exists(), link
        last = name.split(".")[-1]
        if path.suffix == ".py" and last.isidentifier() and last != "here":
            assert re.search(rf"(def|class) {last}\b", path.read_text()), f"{name} in {link}"


def test_the_walk_has_a_gradient(values):
    assert float(values["gradient"]) > 0
    assert values["loss"] == values["by_hand"]
    assert 0 < int(values["right"]) < 8
