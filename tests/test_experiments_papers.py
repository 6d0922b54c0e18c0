"""docs/papers.md matches its table, and everything that the table names exists."""

import ast
import re
from pathlib import Path

import pytest

from drlib.experiments import papers
from drlib.training.stages import STAGES

ROOT = Path(__file__).resolve().parents[1]
ROWS = papers.mechanisms()
PRESENT = [row for row in ROWS if row.code]
# Modules of the training and agent code: a function used here is not "function only".
RUNS = [*(ROOT / "drlib" / "training").glob("*.py"), *(ROOT / "drlib" / "agents").glob("*.py")]


def top_level_names(path):
    """Return the names defined at the top level of a module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if hasattr(node, "name")}


def is_tested_in(name: str, test: str) -> bool:
    """Return True if a test file names a function, or the stage that this function builds.

    Stage tests start commands and name stages: `cpt` runs `pretrain.pretrain`.
    """
    built = [stage.name for stage in STAGES.values() if stage.build.endswith(f":{name}")]
    return name in test or any(f'"{stage}"' in test for stage in built)


def test_papers_page_is_current():
    assert papers.PAPERS_PAGE.read_text(encoding="utf-8") == papers.papers_page(), (
        "run: drlib experiment pages"
    )


@pytest.mark.parametrize("row", PRESENT, ids=lambda row: f"{row.source}: {row.what}"[:60])
def test_files_of_a_row_exist(row):
    file, _, name = row.code.partition(":")
    path = ROOT / "drlib" / file
    assert path.exists() and (not name or name in top_level_names(path)), row.code
    assert is_tested_in(name, (ROOT / "tests" / row.test).read_text()), (
        f"{row.test} is no test of {name}"
    )
    assert all((ROOT / "figures" / "reference" / one).exists() for one in row.measured)
    assert not row.notebook or papers.notebook_of(row.notebook).exists()


@pytest.mark.parametrize("row", PRESENT, ids=lambda row: f"{row.source}: {row.what}"[:60])
def test_state_of_a_row_is_correct(row):
    name = row.code.partition(":")[2]
    if row.state == "function":
        callers = [path.name for path in RUNS if re.search(rf"\b{name}\b", path.read_text())]
        assert not row.measured and not callers, callers
    if row.state == "switch":
        assert not row.measured
    if row.state == "reduced":
        assert row.particulars, "a reduced mechanism says what was left out"


def test_every_source_has_rows():
    sources = {row.source for row in ROWS}
    family = "WebWalker WebDancer WebSailor WebSailor-V2 WebResearcher WebWeaver WebWatcher "
    family += "WebShaper ReSum AgentFounder AgentScaler"
    digest = "s3 RaML ProRL VLAA-Thinking V-Triune"
    assert {*family.split(), *digest.split(), "GLM-5", "rStar2-Agent"} <= sources


def test_incomplete_rows_are_rejected(tmp_path):
    table = tmp_path / "papers.yaml"
    for row, message in (
        ("{what: A, state: splendid}", "unknown state"),
        ("{what: A, state: whole}", "whole, and code"),
        ("{what: A, state: missing, code: files.py}", "missing, and code"),
        ("{what: A, state: whole, code: files.py}", "whole, and test"),
    ):
        table.write_text(f"- {{source: S, about: s, rows: [{row}]}}\n")
        with pytest.raises(ValueError, match=message):
            papers.mechanisms(table)
