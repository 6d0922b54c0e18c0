"""Results blocks of the documentation on hand-made outcomes.

test_reference.py tests the committed runs.

Run: python -m pytest tests/test_experiments_reference.py
"""

import json
from dataclasses import replace

import pytest

from drlib.evaluation.results import Results
from drlib.experiments import reference_run as reference
from tests.results_examples import make_outcomes, tour_results


@pytest.fixture
def results():
    return tour_results()


def test_results_block_is_computed_from_the_results(results, tmp_path):
    block = reference.results_block(results)
    assert "- **Python questions**, sampled: **87.5%** [" in block
    assert "python, sampled (n=32)" in block and "40.0 [27.6, 53.8] (n=50)" in block
    assert "| `evaluate_rl` |" in block and "a command" in block
    page, folder = tmp_path / "README.md", tmp_path / "run"
    page.write_text("before\n<!-- results -->\nold\n<!-- /results -->\nafter\n")
    results.save(folder)
    again = reference.results_block(Results.load(folder))
    assert again == block
    text = reference.with_block(page.read_text(), again, "results")
    assert text == f"before\n<!-- results -->\n{block}\n<!-- /results -->\nafter\n"
    assert reference.with_block(text, block, "results") == text
    assert json.loads((folder / "results.json").read_text())["profile"] == "laptop"


def test_worlds_block_compares_worlds(results, tmp_path):
    provenance = {"world": {"name": "folder:notes", "pages": 93}}
    replace(results, made=provenance).save(tmp_path / "notes")
    results.save(tmp_path / "tour")  # a run that did not record its world
    *_, tour_row, notes_row = reference.worlds_block(
        [tmp_path / "tour", tmp_path / "notes"]
    ).splitlines()
    assert tour_row.startswith("| `tour` |  | ")
    cells = [cell.strip() for cell in notes_row.strip("|").split("|")]
    assert cells[:2] == ["`folder:notes`", "93"]
    # 30 of 48 samples against 8; greedily four questions of six against one
    assert cells[2].startswith("62.5 [") and cells[3].startswith("16.7 [")
    assert cells[4].startswith("+45.8 [")
    assert cells[5].startswith("66.7 [") and cells[6].startswith("+50.0 [")
    assert cells[8].startswith("0.0 [")
    assert cells[9].startswith("[1 seed](")


def test_again_block_compares_repeated_runs(results):
    outcomes = results.outcomes | {("rl", 0): make_outcomes([8, 8, 8, 0], [8, 8, 8, 8, 2, 1])}
    again = replace(results, outcomes=outcomes, command="the same again")
    lines = reference.again_block(results, again).splitlines()
    first, second, difference = (
        [cell.strip().partition(" [")[0] for cell in line.strip("|").split("|")]
        for line in lines[2:5]
    )
    # 30 of 48 samples and 35, four greedy answers of six each time, one of two and none; 28 of 32
    # samples and 24; the control has 8 of 48
    assert first[1:] == ["62.5", "66.7", "87.5", "75.0", "50.0", "+45.8"]
    assert second[1:] == ["72.9", "66.7", "75.0", "75.0", "0.0", "+56.2"]
    assert difference[1:] == ["+10.4", "+0.0", "-12.5", "+0.0", "-50.0", ""]
    seed_text = (
        "Seed by seed: python, sampled 88 above, 75 again; three hops, greedy 50 above, 0 again"
    )
    assert lines[-1].startswith(seed_text) and "`the same again`" in lines[-1]
    with pytest.raises(ValueError, match="was not evaluated"):
        reference.again_block(results, replace(again, outcomes={("rl", 1): outcomes["rl", 0]}))


def test_missing_markers_and_runs_raise(tmp_path):
    with pytest.raises(ValueError, match="the page needs <!-- results -->"):
        reference.with_block("no markers", "block", "results")
    with pytest.raises(ValueError, match="no readable results"):
        reference.worlds_block([tmp_path / "none"])
