"""`drlib dataset`, as a person uses it: real processes, one of them killed, and what others read.

Run: python -m pytest tests/test_lab_dataset.py
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import yaml
from datasets import load_dataset, load_from_disk
from PIL import Image

from drlib.cli.dataset import main
from drlib.questions.export import read_rows
from drlib.questions.queries import evaluate_query
from drlib.questions.webshaper import from_triples
from drlib.worlds import load_world
from tests.folder_examples import guild_folder, island_folder
from tests.scripted_server import Scripted

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def notes(tmp_path_factory):
    return guild_folder(tmp_path_factory.mktemp("guilds") / "notes")


def arguments(notes, out):
    return ["--world", f"folder:{notes}", "-n", "40", "--max-share", "0.1", "--out", str(out)]


@pytest.fixture(scope="module")
def made(notes, tmp_path_factory):
    out = tmp_path_factory.mktemp("made") / "set"
    assert main(arguments(notes, out)) == 0
    return out


def bytes_of(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def rows_of(folder, side):
    return [json.loads(line) for line in (folder / f"data/{side}.jsonl").read_text().splitlines()]


def test_a_killed_run_goes_on_and_gives_the_same_bytes(made, notes, tmp_path):
    out = tmp_path / "set"
    command = [sys.executable, "-m", "drlib.cli", "dataset", *arguments(notes, out)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "77"}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    first = out / "pieces" / "engine-0000.jsonl"
    while not first.exists() and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    kept = first.read_bytes()
    pieces = len([*(out / "pieces").glob("*.jsonl")])
    assert pieces < len([*(made / "pieces").iterdir()]) and not (out / "README.md").exists()
    (out / "pieces" / ".engine-0001.jsonl.1.partial").write_text("half")  # as a killed run leaves
    first_written = first.stat().st_mtime_ns
    assert subprocess.run(command, env=environment, capture_output=True).returncode == 0
    assert first.stat().st_mtime_ns == first_written and first.read_bytes() == kept
    assert bytes_of(out) == bytes_of(made)


def test_the_same_command_again_changes_nothing(made, notes, capsys):
    before = bytes_of(made)
    assert main(arguments(notes, made)) == 0
    assert bytes_of(made) == before
    out = capsys.readouterr()
    assert out.out == f"{made / 'README.md'}\n" and "40 of 40 questions" in out.err


def test_datasets_reads_every_form(made, tmp_path):
    held = load_from_disk(str(made / "hf"))
    for side, size in (("train", 32), ("test", 8)):
        rows = rows_of(made, side)
        assert held[side].to_list() == rows and len(rows) == size
        for config in ("default", "trl", "webdancer"):  # by the card
            told = load_dataset(str(made), config, split=side, cache_dir=str(tmp_path))
            assert len(told) == size
        loaded = load_dataset(
            "json", data_files=str(made / f"data/{side}.jsonl"), cache_dir=str(tmp_path)
        )["train"]
        assert loaded.to_list() == rows
        assert {row["split"] for row in rows} == {side}


def test_trainers_get_prompt_and_truth(made, tmp_path):
    rows = rows_of(made, "train")
    for line, row in zip((made / "trl/train.jsonl").read_text().splitlines(), rows, strict=True):
        told = json.loads(line)
        assert told["prompt"] == [{"role": "user", "content": row["question"]}]
        assert (told["answer"], told["aliases"]) == (row["answer"], row["aliases"])
    path = str(made / "verl/train.parquet")
    verl = load_dataset("parquet", data_files=path, cache_dir=str(tmp_path))["train"].to_list()
    for place, (told, row) in enumerate(zip(verl, rows, strict=True)):
        assert [*told] == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
        assert told["data_source"] == f"drlib/{row['family']}"
        assert told["prompt"] == [{"role": "user", "content": row["question"]}]
        assert told["reward_model"] == {"style": "rule", "ground_truth": row["answer"]}
        assert told["extra_info"]["index"] == place and told["extra_info"]["split"] == "train"


def test_the_released_forms_have_their_fields_and_the_same_answers(made, notes):
    world = load_world(f"folder:{notes}")
    tags = Counter()
    for side in ("train", "test"):
        rows = {row["question"]: row for row in rows_of(made, side)}
        path = made / f"released/webdancer_{side}.jsonl"
        for told in map(json.loads, path.read_text().splitlines()):
            assert [*told] == ["question", "answer", "tag"]
            assert rows[told["question"]]["family"] == told["tag"]
            tags[told["tag"]] += 1
        formal = read_rows(made / f"released/webshaper_{side}.jsonl")
        assert formal
        for row in formal:  # from the triples alone
            query = from_triples(row["formalization"])
            assert evaluate_query(query, world.graph) == {row["answer"]}
    assert tags.total() == 40 and len(tags) == 5


def test_the_card_says_what_the_files_hold(made):
    _, front, text = (made / "README.md").read_text().split("---\n", 2)
    configs = {one["config_name"]: one["data_files"] for one in yaml.safe_load(front)["configs"]}
    for files in configs.values():
        assert [file["split"] for file in files] == ["train", "test"]
        assert all((made / file["path"]).is_file() for file in files)
    counts = Counter(
        (row["family"], side) for side in ("train", "test") for row in rows_of(made, side)
    )
    worded = Counter(
        row["family"]
        for side in ("train", "test")
        for row in rows_of(made, side)
        if row["wording"] == "sentences"
    )
    for family in ("engine", "webdancer", "webshaper", "websailor", "websailor_v2"):
        train, test = counts[family, "train"], counts[family, "test"]
        assert f"| {family} | {train} | {test} | {worded[family]} |" in text
    report = json.loads((made / "quality_report.json").read_text())
    assert report["questions"] == 40
    assert report["split"]["answers"] == report["split"]["queries"] == 0
    assert report["by_sets"]["not unique"] == report["by_sql"]["wrong answer"] == 0
    assert f"hang on an equal number: {report['coincidences']:.1%}" in text
    with Image.open(made / "quality.png") as picture:
        assert len(picture.convert("L").getcolors()) > 20  # something is drawn


def test_a_benchmark_s_questions_are_not_in_the_folder(made, notes, tmp_path):
    planted = [row["question"] for row in rows_of(made, "train")][:2]
    bench = tmp_path / "bench.txt"
    bench.write_text("\n".join(planted))
    out = tmp_path / "set"
    assert main([*arguments(notes, out), "--benchmarks", str(bench)]) == 0
    texts = {row["question"] for side in ("train", "test") for row in rows_of(out, side)}
    assert len(texts) == 40 and not texts & {*planted}
    report = json.loads((out / "quality_report.json").read_text())
    assert report["contaminated"] == {str(bench): 0}
    assert "in a benchmark" in (out / "README.md").read_text()


def test_fewer_questions_are_written_with_the_reason(notes, tmp_path, capsys):
    out = tmp_path / "few"
    few = ["--families", "webshaper", "--max-share", "0", "--test-share", "0", "--hops", "2"]
    assert main(["--world", f"folder:{notes}", "-n", "99", "--out", str(out), *few]) == 0
    rows = rows_of(out, "train")
    counts = Counter(row["answer"] for row in rows)
    assert 20 < len(rows) < 99 and {*counts.values()} == {1}
    assert not (out / "data" / "test.jsonl").exists()
    said = capsys.readouterr().err
    assert f"gives {len(rows)} of 99 questions" in said and "its answer has its share" in said
    assert f"gives {len(rows)} of 99 questions" in (out / "README.md").read_text()


def test_a_world_without_questions_is_said_to_be_one(tmp_path, capsys):
    folder, out = island_folder(tmp_path / "islands"), tmp_path / "none"
    assert main(["--world", f"folder:{folder}", "-n", "9", "--out", str(out)]) == 1
    said = capsys.readouterr().err
    assert "gives 0 of 9 questions" in said and "structure=True" in said
    assert "gives 0 of 9 questions" in (out / "README.md").read_text()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--families", "engin"], "unknown family 'engin': did you mean 'engine'?"),
        (["--benchmarks", "absent.jsonl"], "no benchmark file absent.jsonl"),
        (["--world", "cldrr"], "unknown world 'cldrr'"),
        (["-n", "0"], "at least 1 question"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_wrong_argument_is_one_line_and_makes_no_folder(wrong, said, notes, tmp_path, capsys):
    out = tmp_path / "none"
    assert main([*arguments(notes, out), *wrong]) == 1
    line = capsys.readouterr().err
    assert said in line and line.startswith("drlib dataset: ") and line.count("\n") == 1
    assert not out.exists()


def test_a_folder_of_another_wish_is_left_alone(made, notes, capsys):
    before = bytes_of(made)
    assert main([*arguments(notes, made), "--seed", "1"]) == 1
    assert "seed was 0 and is 1" in capsys.readouterr().err
    assert bytes_of(made) == before


def test_what_a_model_knows_by_heart_is_left_out(made, notes, tmp_path):
    """A real server: five answers it knows at every try, one question it cannot take."""
    rows = rows_of(made, "train")
    *known, refused = rows[:6]
    answers = {row["question"]: f"<think>hm</think>{row['answer']}" for row in known}
    answers[refused["question"]] = None  # HTTP status 400

    out = tmp_path / "set"
    with Scripted(lambda messages: answers.get(messages[-1]["content"], "no idea")) as server:
        asked_of = ["--closed-book", server.url, "--model", "scripted", "--tries", "2"]
        assert main([*arguments(notes, out), *asked_of]) == 0
        asked = server.asked
        data = bytes_of(out / "data")
        assert main([*arguments(notes, out), *asked_of]) == 0
        again = 2 * 2  # what nobody could judge: two tries in each of two rounds
        assert server.asked == asked + again
    assert bytes_of(out / "data") == data
    kept = [row for side in ("train", "test") for row in rows_of(out, side)]
    assert len(kept) == 40 and {row["closed_book"] for row in kept} == {0.0}
    assert not {row["question"] for row in kept} & {*answers}
    card = (out / "README.md").read_text()
    heads, _, *cells = [line.split(" | ") for line in card.splitlines() if line.startswith("|")]
    columns = {name.strip("| "): place for place, name in enumerate(heads)}
    dropped = {
        reason: sum(int(row[columns[reason]].strip("| ")) for row in cells)
        for reason in ("answered from memory", "not judged closed book")
    }
    assert dropped == {"answered from memory": 5, "not judged closed book": 1}
    assert "closed_book scripted, tries 2" in card
    assert not any("closed_book" in row for row in rows)  # where no model was asked


def test_a_model_that_says_nothing_is_an_error_and_leaves_no_card(notes, tmp_path, capsys):
    out = tmp_path / "set"
    with Scripted(lambda messages: "no idea") as server:
        wrong_name = ["--closed-book", server.url, "--model", "another"]
        assert main([*arguments(notes, out), *wrong_name]) == 1
    assert "answered none of" in capsys.readouterr().err and not (out / "README.md").exists()
    for some in (["--model", "scripted"], ["--closed-book", "http://127.0.0.1:9/v1"]):
        assert main([*arguments(notes, out), *some]) == 1
        assert "go together" in capsys.readouterr().err
    assert main([*arguments(notes, out), "--closed-book", "nowhere", "--model", "scripted"]) == 1
    assert "is not an http(s) address" in capsys.readouterr().err
