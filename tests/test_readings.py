"""The questions that were read against the rubric: what the file holds, and that it still holds.

The folders are made anew from their seed, so that an answer is looked up in the world that the
question was asked about.
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


def test_there_are_sixty_different_questions_of_each_world():
    assert Counter(row["world"] for row in ROWS) == dict.fromkeys(WORLDS, 60)
    assert len({row["question"] for row in ROWS}) == len({row["id"] for row in ROWS}) == 300


def test_each_has_all_labels_and_a_note_where_one_is_no():
    for row in ROWS:
        assert all(type(row[label]) is bool for label in LABELS), row["id"]
        assert bool(row["note"]) != passes(row), row["id"]


@pytest.mark.parametrize("name", WORLDS)
def test_each_still_says_its_query_whose_answer_it_has(name):
    with world_of(name) if name in MAKERS else nullcontext(shared_world(name)) as world:
        grammar = load_grammar(world.graph, world.scheme)
        for row in (row for row in ROWS if row["world"] == name):
            query = from_text(json.dumps(row["query"]))
            assert evaluate_query(query, world.graph) == {row["answer"]}
            assert find_faults(query, world.graph) == []
            assert read_question(row["question"], grammar) == normalise_query(query), row[
                "question"
            ]


def test_the_second_reader_gets_questions_and_answers_and_no_labels():
    kept = read_json_lines(FOLDER / "sample_for_second.jsonl")
    assert kept == sample(ROWS) and len(kept) == SECOND * len(WORLDS)
    assert all(set(row) == {"id", "question", "answer"} for row in kept)


def test_the_rubric_says_how_two_engines_were_read():
    rows = read_json_lines(FOLDER / "two_engines.jsonl")
    assert Counter((row["world"], row["engine"]) for row in rows) == {
        (world, engine): 25 for world in MAKERS for engine in ("1cbacdd", "exact first")
    }
    passed = Counter(row["engine"] for row in rows if passes(row))
    told = f"{passed['1cbacdd']} of 75 and {passed['exact first']} of 75 pass"
    assert told in (FOLDER / "rubric.md").read_text(encoding="utf-8")


def test_the_summary_counts_what_passes():
    rows = [{"id": "a", "world": "cldr", **dict.fromkeys(LABELS, True)}]
    rows += [{**rows[0], "id": "b", "natural": False}]
    found = summary(rows, [{**rows[1], "natural": True}])
    assert found["cldr"]["n"] == 2 and found["cldr"]["passed"] == 1 == found["cldr"]["natural"]
    assert found["two readers"]["agree"] == 0 and found["two readers"]["multi_hop"] == 1


@pytest.mark.parametrize("name", MAKERS)
def test_a_maker_s_folder_depends_on_its_seed_alone(name):
    assert MAKERS[name](SEED) == MAKERS[name](SEED) != MAKERS[name]("another")
    documents = [path for path in MAKERS[name](SEED) if path.endswith(".md")]
    assert 55 <= len(documents) <= 70


def test_the_page_says_what_the_files_say():
    page = Path("docs/questions.md").read_text(encoding="utf-8")
    again = read_json_lines(FOLDER / "second.jsonl")
    first = {row["id"]: passes(row) for row in ROWS}
    assert f"| {sum(first.values())} of {len(ROWS)} |" in page
    for world in WORLDS:
        some = [passes(row) for row in ROWS if row["world"] == world]
        assert f"{100 * sum(some) / len(some):.0f}%" in page, world
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
