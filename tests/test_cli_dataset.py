"""`drlib dataset`: files, data card, resumption after a kill, filters and errors.

Run: python -m pytest tests/test_cli_dataset.py
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
from matplotlib import rcParams
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


RECIPES = ("engine", "webdancer", "webshaper", "websailor", "websailor_v2")


def arguments(notes, out):
    wish = ["-n", "40", "--max-share", "0.1", "--families", ",".join(RECIPES), "--no-plain"]
    return ["--world", f"folder:{notes}", *wish, "--out", str(out)]


@pytest.fixture(scope="module")
def dataset(notes, tmp_path_factory):
    out, style = tmp_path_factory.mktemp("dataset") / "set", rcParams["axes.titlelocation"]
    assert main(arguments(notes, out)) == 0
    assert rcParams["axes.titlelocation"] == style == "center", "it changes its caller's figures"
    return out


def read_files(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def read_split(folder, side):
    return [json.loads(line) for line in (folder / f"data/{side}.jsonl").read_text().splitlines()]


def test_killed_run_resumes_with_identical_files(dataset, notes, tmp_path):
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
    assert pieces < len([*(dataset / "pieces").iterdir()]) and not (out / "README.md").exists()
    (out / "pieces" / ".engine-0001.jsonl.1.partial").write_text("half")  # left by a killed run
    first_written = first.stat().st_mtime_ns
    assert subprocess.run(command, env=environment, capture_output=True).returncode == 0
    assert first.stat().st_mtime_ns == first_written and first.read_bytes() == kept
    assert read_files(out) == read_files(dataset)


def test_repeated_command_changes_nothing(dataset, notes, capsys):
    before = read_files(dataset)
    assert main(arguments(notes, dataset)) == 0
    assert read_files(dataset) == before
    out = capsys.readouterr()
    assert out.out == f"{dataset / 'README.md'}\n" and "40 of 40 questions" in out.err


def test_datasets_loads_every_format(dataset, tmp_path):
    stored = load_from_disk(str(dataset / "hf"))
    for side, size in (("train", 32), ("test", 8)):
        rows = read_split(dataset, side)
        assert stored[side].to_list() == rows and len(rows) == size
        for config in ("default", "trl", "webdancer"):  # configs of the card
            exported = load_dataset(str(dataset), config, split=side, cache_dir=str(tmp_path))
            assert len(exported) == size
        loaded = load_dataset(
            "json", data_files=str(dataset / f"data/{side}.jsonl"), cache_dir=str(tmp_path)
        )["train"]
        assert loaded.to_list() == rows
        assert {row["split"] for row in rows} == {side}


def test_trl_and_verl_files_have_prompt_and_answer(dataset, tmp_path):
    rows = read_split(dataset, "train")
    for line, row in zip((dataset / "trl/train.jsonl").read_text().splitlines(), rows, strict=True):
        exported = json.loads(line)
        assert exported["prompt"] == [{"role": "user", "content": row["question"]}]
        assert (exported["answer"], exported["aliases"]) == (row["answer"], row["aliases"])
    path = str(dataset / "verl/train.parquet")
    verl = load_dataset("parquet", data_files=path, cache_dir=str(tmp_path))["train"].to_list()
    for index, (exported, row) in enumerate(zip(verl, rows, strict=True)):
        assert [*exported] == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
        assert exported["data_source"] == f"drlib/{row['family']}"
        assert exported["prompt"] == [{"role": "user", "content": row["question"]}]
        assert exported["reward_model"] == {"style": "rule", "ground_truth": row["answer"]}
        assert (
            exported["extra_info"]["index"] == index and exported["extra_info"]["split"] == "train"
        )


def test_released_formats_have_their_fields_and_answers(dataset, notes):
    world = load_world(f"folder:{notes}")
    tags = Counter()
    for side in ("train", "test"):
        rows = {row["question"]: row for row in read_split(dataset, side)}
        path = dataset / f"released/webdancer_{side}.jsonl"
        for exported in map(json.loads, path.read_text().splitlines()):
            assert [*exported] == ["question", "answer", "tag"]
            assert rows[exported["question"]]["family"] == exported["tag"]
            tags[exported["tag"]] += 1
        formal = read_rows(dataset / f"released/webshaper_{side}.jsonl")
        assert formal
        for row in formal:  # the triples alone determine the answer
            query = from_triples(row["formalization"])
            (found,) = evaluate_query(query, world.graph)
            assert world.page(found).text.startswith(row["answer"])  # its heading
    assert tags.total() == 40 and len(tags) == 5


def test_card_describes_the_files(dataset):
    _, front, text = (dataset / "README.md").read_text().split("---\n", 2)
    configs = {one["config_name"]: one["data_files"] for one in yaml.safe_load(front)["configs"]}
    for files in configs.values():
        assert [file["split"] for file in files] == ["train", "test"]
        assert all((dataset / file["path"]).is_file() for file in files)
    counts = Counter(
        (row["family"], side) for side in ("train", "test") for row in read_split(dataset, side)
    )
    worded = Counter(
        row["family"]
        for side in ("train", "test")
        for row in read_split(dataset, side)
        if row["wording"] == "sentences"
    )
    for family in RECIPES:
        train, test = counts[family, "train"], counts[family, "test"]
        assert f"| {family} | {train} | {test} | {worded[family]} |" in text
    report = json.loads((dataset / "quality_report.json").read_text())
    assert report["questions"] == 40
    assert report["split"]["answers"] == report["split"]["queries"] == 0
    assert report["by_sets"]["not unique"] == report["by_sql"]["wrong answer"] == 0
    assert f"depend on two equal numbers: {report['coincidences']:.1%}" in text
    with Image.open(dataset / "quality.png") as picture:
        assert len(picture.convert("L").getcolors()) > 20  # the figure is not empty


def test_benchmark_questions_are_excluded(dataset, notes, tmp_path):
    planted = [row["question"] for row in read_split(dataset, "train")][:2]
    bench = tmp_path / "bench.txt"
    bench.write_text("\n".join(planted))
    out = tmp_path / "set"
    assert main([*arguments(notes, out), "--benchmarks", str(bench)]) == 0
    texts = {row["question"] for side in ("train", "test") for row in read_split(out, side)}
    assert len(texts) == 40 and not texts & {*planted}
    report = json.loads((out / "quality_report.json").read_text())
    assert report["contaminated"] == {str(bench): 0}
    assert "in a benchmark" in (out / "README.md").read_text()


def test_shortfall_is_explained(notes, tmp_path, capsys):
    out = tmp_path / "few"
    few = ["--families", "webshaper", "--max-share", "0", "--test-share", "0", "--hops", "2"]
    assert main(["--world", f"folder:{notes}", "-n", "99", "--out", str(out), *few]) == 0
    rows = read_split(out, "train")
    counts = Counter(row["answer"] for row in rows)
    assert 20 < len(rows) < 99 and {*counts.values()} == {1}
    assert not (out / "data" / "test.jsonl").exists()
    error = capsys.readouterr().err
    assert f"gives {len(rows)} of 99 questions" in error and "its answer has its share" in error
    assert f"gives {len(rows)} of 99 questions" in (out / "README.md").read_text()


def test_world_without_questions_fails_with_the_reason(tmp_path, capsys):
    folder, out = island_folder(tmp_path / "islands"), tmp_path / "none"
    few = ["--families", "engine", "--no-plain"]  # no two facts identify an island
    assert main(["--world", f"folder:{folder}", "-n", "9", "--out", str(out), *few]) == 1
    error = capsys.readouterr().err
    assert "gives 0 of 9 questions" in error and "structure=True" in error
    assert "gives 0 of 9 questions" in (out / "README.md").read_text()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--families", "engin"], "unknown family 'engin': did you mean 'engine'?"),
        (["--benchmarks", "absent.jsonl"], "no benchmark file absent.jsonl"),
        (["--world", "cldrr"], "unknown world 'cldrr'"),
        (["-n", "0"], "at least 1 question"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_wrong_argument_prints_one_line_and_creates_no_folder(
    wrong, message, notes, tmp_path, capsys
):
    out = tmp_path / "none"
    assert main([*arguments(notes, out), *wrong]) == 1
    line = capsys.readouterr().err
    assert message in line and line.startswith("drlib dataset: ") and line.count("\n") == 1
    assert not out.exists()


def test_folder_of_another_data_set_is_unchanged(dataset, notes, capsys):
    before = read_files(dataset)
    assert main([*arguments(notes, dataset), "--seed", "1"]) == 1
    assert "seed was 0 and is 1" in capsys.readouterr().err
    assert read_files(dataset) == before


def test_questions_answered_from_memory_are_excluded(dataset, notes, tmp_path):
    """The scripted server answers five questions correctly and rejects one."""
    rows = read_split(dataset, "train")
    *known, refused = rows[:6]
    answers = {row["question"]: f"<think>hm</think>{row['answer']}" for row in known}
    answers[refused["question"]] = None  # HTTP status 400

    out = tmp_path / "set"
    with Scripted(lambda messages: answers.get(messages[-1]["content"], "no idea")) as server:
        closed_book = ["--closed-book", server.url, "--model", "scripted", "--tries", "2"]
        closed_book += ["--omit", "temperature, top_p"]
        server.keep = True
        assert main([*arguments(notes, out), *closed_book]) == 0
        assert not any({"temperature", "top_p"} & set(body) for body in server.bodies)
        asked = server.asked
        data = read_files(out / "data")
        assert main([*arguments(notes, out), *closed_book]) == 0
        repeated = 2 * 2  # the rejected question: two rollouts in each of two rounds
        assert server.asked == asked + repeated
    assert read_files(out / "data") == data
    kept = [row for side in ("train", "test") for row in read_split(out, side)]
    assert len(kept) == 40 and {row["closed_book"] for row in kept} == {0.0}
    assert not {row["question"] for row in kept} & {*answers}
    card = (out / "README.md").read_text()
    heads, _, *cells = [line.split(" | ") for line in card.splitlines() if line.startswith("|")]
    columns = {name.strip("| "): index for index, name in enumerate(heads)}
    dropped = {
        reason: sum(int(row[columns[reason]].strip("| ")) for row in cells)
        for reason in ("answered from memory", "not judged closed book")
    }
    assert dropped == {"answered from memory": 5, "not judged closed book": 1}
    assert "closed_book scripted, tries 2" in card
    assert not any("closed_book" in row for row in rows)  # no closed-book model was given


def test_unusable_closed_book_model_is_an_error_without_a_card(notes, tmp_path, capsys):
    out = tmp_path / "set"
    with Scripted(lambda messages: "no idea") as server:
        wrong_name = ["--closed-book", server.url, "--model", "another"]
        assert main([*arguments(notes, out), *wrong_name]) == 1
    assert "answered none of" in capsys.readouterr().err and not (out / "README.md").exists()
    for incomplete in (["--model", "scripted"], ["--closed-book", "http://127.0.0.1:9/v1"]):
        assert main([*arguments(notes, out), *incomplete]) == 1
        assert "must be given together" in capsys.readouterr().err
    assert main([*arguments(notes, out), "--closed-book", "nowhere", "--model", "scripted"]) == 1
    assert "is not an http(s) address" in capsys.readouterr().err
