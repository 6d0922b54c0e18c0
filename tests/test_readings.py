"""The questions that were read against the rubric: file contents, and validity today.

The folders are generated again from their seed, so that each answer is checked in the world of its
question.
"""

import json
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import pytest

from drlib.files import read_json_lines
from drlib.questions.checks import find_faults
from drlib.questions.joins import normalise_query
from drlib.questions.queries import evaluate_query, from_text
from drlib.questions.read_back import load_grammar, read_question
from tests.benchmarks.make_readings import (
    FOLDER,
    LABELS,
    SECOND,
    SEED,
    WORLDS,
    passes,
    sample,
    summary,
    world_of,
)
from tests.folder_makers import MAKERS
from tests.shared_worlds import shared_world

ROWS = read_json_lines(FOLDER / "readings.jsonl")


def test_sixty_distinct_questions_per_world():
    assert Counter(row["world"] for row in ROWS) == dict.fromkeys(WORLDS, 60)
    assert len({row["question"] for row in ROWS}) == len({row["id"] for row in ROWS}) == 300


def test_rows_have_all_labels_and_notes_for_failures():
    for row in ROWS:
        assert all(type(row[label]) is bool for label in LABELS), row["id"]
        assert bool(row["note"]) != passes(row), row["id"]


@pytest.mark.parametrize("name", WORLDS)
def test_questions_still_match_their_queries_and_answers(name):
    with world_of(name) if name in MAKERS else nullcontext(shared_world(name)) as world:
        grammar = load_grammar(world.graph, world.scheme)
        for row in (row for row in ROWS if row["world"] == name):
            query = from_text(json.dumps(row["query"]))
            assert evaluate_query(query, world.graph) == {row["answer"]}
            assert find_faults(query, world.graph) == []
            assert read_question(row["question"], grammar) == normalise_query(query), row[
                "question"
            ]


def test_second_reader_sample_has_no_labels():
    kept = read_json_lines(FOLDER / "sample_for_second.jsonl")
    assert kept == sample(ROWS) and len(kept) == SECOND * len(WORLDS)
    assert all(set(row) == {"id", "question", "answer"} for row in kept)


def test_rubric_reports_the_two_engines():
    rows = read_json_lines(FOLDER / "two_engines.jsonl")
    assert Counter((row["world"], row["engine"]) for row in rows) == {
        (world, engine): 25 for world in MAKERS for engine in ("1cbacdd", "exact first")
    }
    passed = Counter(row["engine"] for row in rows if passes(row))
    sentence = f"{passed['1cbacdd']} of 75 and {passed['exact first']} of 75 pass"
    assert sentence in (FOLDER / "rubric.md").read_text(encoding="utf-8")


def test_summary_counts_accepted_questions():
    rows = [{"id": "a", "world": "cldr", **dict.fromkeys(LABELS, True)}]
    rows += [{**rows[0], "id": "b", "natural": False}]
    found = summary(rows, [{**rows[1], "natural": True}])
    assert found["cldr"]["n"] == 2 and found["cldr"]["passed"] == 1 == found["cldr"]["natural"]
    assert found["two readers"]["agree"] == 0 and found["two readers"]["multi_hop"] == 1


@pytest.mark.parametrize("name", MAKERS)
def test_generated_folder_depends_only_on_its_seed(name):
    assert MAKERS[name](SEED) == MAKERS[name](SEED) != MAKERS[name]("another")
    documents = [path for path in MAKERS[name](SEED) if path.endswith(".md")]
    assert 55 <= len(documents) <= 70


def test_docs_page_matches_the_files():
    page = Path("docs/questions.md").read_text(encoding="utf-8")
    again = read_json_lines(FOLDER / "second.jsonl")
    first = {row["id"]: passes(row) for row in ROWS}
    assert f"| {sum(first.values())} of {len(ROWS)} |" in page
    for world in WORLDS:
        passed_rows = [passes(row) for row in ROWS if row["world"] == world]
        assert f"{100 * sum(passed_rows) / len(passed_rows):.0f}%" in page, world
    both = sum(row_of_first := [first[row["id"]] for row in again]), sum(map(passes, again))
    agreed = sum(one and passes(row) for one, row in zip(row_of_first, again))
    assert f"same {len(again)} | {both[0]} and {both[1]} accepted, {agreed} by both" in page

    rows = json.loads(Path("figures/reference/data/evaluations.json").read_text())["rows"]
    cldr, pydocs = (row["speed"] for row in rows[:2])
    assert f"cldr {cldr['depth_3']}, pydocs {pydocs['depth_3']}" in page

    rows = json.loads(Path("figures/reference/data/questions.json").read_text())
    share = max(row["largest_answer_share"] for row in rows)
    assert f"| most frequent answer | at most {share:.1%} |" in page

    report = json.loads(
        Path("figures/reference/data/dataset_pydocs/quality_report.json").read_text()
    )
    assert report["world"] == "pydocs" and report["questions"] == 2000
    assert not any([*report["by_sets"].values(), *report["by_sql"].values()])
    assert report["split"]["answers"] == report["split"]["queries"] == 0
