"""Readers of benchmarks: fixtures in the published schemas, broken rows, commands.

The rows are our own, encrypted by our own code. Run:
python -m pytest tests/test_evaluation_benchmarks.py
"""

import base64
import csv
import hashlib
import json
import re
import zipfile

import openpyxl
import pyarrow
import pyarrow.parquet
import pytest

from drlib.cli import main
from drlib.evaluation.answer_files import read_answers
from drlib.evaluation.benchmarks import (
    BENCHMARKS,
    BenchmarkError,
    BenchmarkItem,
    Document,
    load_benchmark,
    write_corpus,
    write_documents,
)
from drlib.evaluation.benchmarks.benchmark import (
    PARQUET_ROWS,
    decrypt,
    hashed_key,
    iter_rows,
    register_benchmark,
)
from drlib.rewards import llm_judge  # registers the judge llm
from drlib.rewards.judges import JUDGES, score_table
from drlib.worlds import load_world

QUESTION, ANSWER, CANARY = "Which town lies on the Ørsted: A or B?", "Ærøskøbing, 1:2", "canary-7"
HASHED = hashed_key(CANARY)
RAW = CANARY.encode()


def encrypt(text, key):
    """Return base64 of a text combined with the repeated key by exclusive or."""
    data = text.encode()
    return base64.b64encode(bytes(a ^ key[i % len(key)] for i, a in enumerate(data))).decode()


def seal(key, *texts):
    return [encrypt(text, key) for text in texts]


def separated(path, rows, separator=",", mark=""):
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(mark)
        writer = csv.DictWriter(file, rows[0], delimiter=separator)
        writer.writeheader()
        writer.writerows(rows)
    return path


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def whole(path, rows):
    path.write_text(json.dumps(rows), encoding="utf-8-sig")
    return path


def parquet(path, rows):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def sheet(path, rows):
    book = openpyxl.Workbook()
    book.active.append(list(rows[0]))
    for row in rows:
        book.active.append(list(row.values()))
    book.save(path)
    return path


def with_gold_tables(path, rows):
    """Write rows of WideSearch, and beside them their tables."""
    folder = path.parent / "widesearch_gold"
    folder.mkdir(exist_ok=True)
    for row in rows:
        if ident := str(row.get("instance_id", "")).strip():
            separated(folder / f"{ident}.csv", CITIES, mark="\ufeff")
    return lines(path, rows)


CITIES = [
    {"Founded": "1070", "City Name": "Bergen|Bjørgvin", "Country": "Norway", "Note": "x"},
    {"Founded": "1823", "City Name": "Bergen", "Country": "USA", "Note": ""},
    {"Founded": "1", "City Name": "Bergen", "Country": "USA", "Note": "the same key again"},
]
TABLE = r"""| **country** | **cityname** | founded |
| --- | --- | --- |
| Norway | Bergen\|Bjørgvin | 1070 |
| USA | Bergen | 1823 |"""
PATCH = "diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+b\n"
SEALED, SEALED_RAW = seal(HASHED, QUESTION, ANSWER), seal(RAW, QUESTION, ANSWER)
PAIRS = [["Town", ["It is small. ", "It is old."]], ["River", ["It flows."]]]
PAGES = (Document("Town", "It is small. It is old."), Document("River", "It flows."))
# name -> (writer, file, row in the published schema, expected changes of the item)
FIXTURES = {
    "browsecomp": (
        lambda p, r: separated(p, r, mark="\ufeff"),
        "a.csv",
        {"problem": SEALED[0], "answer": SEALED[1], "problem_topic": "Art", "canary": CANARY},
        {"protected": True, "meta": {"problem_topic": "Art"}},
    ),
    "browsecomp_plus": (
        lines,
        "a.jsonl",
        {
            "query_id": "5",
            "query": SEALED[0],
            "answer": SEALED[1],
            "gold_docs": [
                {"docid": encrypt("d1", HASHED), "text": encrypt("x", HASHED), "url": "y"}
            ],
            "evidence_docs": [{"docid": "12", "text": "x", "url": "y"}, {"docid": "7"}],
            "negative_docs": [],
            "canary": CANARY,
        },
        {
            "id": "5",
            "protected": True,
            "meta": {"gold_docs": ["d1"], "evidence_docs": ["12", "7"]},
        },
    ),
    "browsecomp_zh": (
        sheet,
        "a.xlsx",
        {
            "Topic": encrypt("艺术", HASHED),
            "Question": SEALED[0],
            "Answer": SEALED[1],
            "canary": CANARY,
        },
        {"protected": True, "meta": {"topic": "艺术"}},
    ),
    "xbench": (
        lambda p, r: separated(p, r, mark="\ufeff"),
        "a.csv",
        {
            "id": "7",
            "prompt": SEALED_RAW[0],
            "answer": SEALED_RAW[1],
            "reference_steps": "",
            "canary": CANARY,
        },
        {"id": "7", "protected": True},
    ),
    "hle": (
        parquet,
        "a.parquet",
        {
            "id": "h1",
            "question": QUESTION,
            "image": "data:image/png;base64,xx",
            "answer": ANSWER,
            "answer_type": "exactMatch",
            "category": "Art",
            "canary": CANARY,
        },
        {
            "id": "h1",
            "protected": True,
            "meta": {"answer_type": "exactMatch", "category": "Art", "has_image": True},
        },
    ),
    "simpleqa": (
        separated,
        "a.csv",
        {"metadata": "{'topic': 'Art'}", "problem": QUESTION, "answer": ANSWER},
        {"meta": {"metadata": "{'topic': 'Art'}"}},
    ),
    "widesearch": (
        with_gold_tables,
        "a.jsonl",
        {
            "instance_id": "ws_1",
            "query": QUESTION,
            "evaluation": json.dumps(
                {
                    "unique_columns": ["country", "cityname"],
                    "required": ["cityname", "founded", "country"],
                    "eval_pipeline": {"founded": {"metric": ["number_near"], "criterion": 0.1}},
                }
            ),
            "language": "en",
        },
        {"id": "ws_1", "answers": (TABLE,), "meta": {"language": "en"}},
    ),
    "swebench": (
        parquet,
        "a.parquet",
        {
            "repo": "owner/name.py",
            "instance_id": "owner__name.py-1",
            "base_commit": "0a" * 20,
            "patch": PATCH,
            "test_patch": PATCH,
            "problem_statement": QUESTION,
            "hints_text": "",
            "version": "1.2",
            "FAIL_TO_PASS": '["t.py::test_a[x]"]',
            "PASS_TO_PASS": "[]",
            "difficulty": "15 min - 1 hour",
        },
        {
            "id": "owner__name.py-1",
            "answers": (),
            "meta": {
                "repo": "owner/name.py",
                "base_commit": "0a" * 20,
                "patch": PATCH,
                "test_patch": PATCH,
                "version": "1.2",
                "fail_to_pass": ["t.py::test_a[x]"],
                "pass_to_pass": [],
                "difficulty": "15 min - 1 hour",
            },
        },
    ),
    "frames": (
        lambda p, r: separated(p, r, "\t"),
        "a.tsv",
        {
            "": "0",
            "Prompt": QUESTION,
            "Answer": ANSWER,
            "wiki_links": "['https://a', 'https://b']",
            "reasoning_types": "Numerical reasoning | Tabular reasoning",
        },
        {
            "id": "0",
            "meta": {
                "wiki_links": ["https://a", "https://b"],
                "reasoning_types": ["Numerical reasoning", "Tabular reasoning"],
            },
        },
    ),
    "gaia": (
        lines,
        "metadata.jsonl",
        {
            "task_id": "g1",
            "Question": QUESTION,
            "Level": 1,
            "Final answer": ANSWER,
            "file_name": "",
            "Annotator Metadata": {"Steps": "1"},
        },
        {"id": "g1", "protected": True, "meta": {"level": 1}},
    ),
    "webwalkerqa": (
        lines,
        "a.jsonl",
        {"Question": QUESTION, "Answer": ANSWER, "Root_Url": "https://a", "Info": {"Hop": "multi"}},
        {"meta": {"root_url": "https://a", "info": {"Hop": "multi"}}},
    ),
    "hotpotqa": (
        whole,
        "a.json",
        {
            "_id": "p1",
            "question": QUESTION,
            "answer": ANSWER,
            "type": "bridge",
            "context": PAIRS,
            "supporting_facts": [["Town", 0]],
        },
        {
            "id": "p1",
            "documents": PAGES,
            "meta": {"type": "bridge", "supporting_facts": [["Town", 0]]},
        },
    ),
    "2wiki": (
        lines,
        "a.jsonl",
        {"id": "w1", "question": QUESTION, "golden_answers": [ANSWER, "B"], "context": PAIRS},
        {"id": "w1", "answers": (ANSWER, "B"), "documents": PAGES},
    ),
    "musique": (
        lines,
        "a.jsonl",
        {
            "id": "m1",
            "question": QUESTION,
            "answer": ANSWER,
            "answer_aliases": ["B"],
            "answerable": True,
            "paragraphs": [
                {"idx": 0, "title": d.title, "paragraph_text": d.text, "is_supporting": True}
                for d in PAGES
            ],
        },
        {
            "id": "m1",
            "answers": (ANSWER, "B"),
            "documents": PAGES,
            "meta": {"answerable": True},
        },
    ),
    "aime": (lines, "a.jsonl", {"problem": QUESTION, "answer": 33}, {"answers": ("33",)}),
    "math500": (
        lines,
        "a.jsonl",
        {"problem": QUESTION, "answer": ANSWER, "level": 5, "unique_id": "t/1"},
        {"id": "t/1", "meta": {"level": 5}},
    ),
    "gsm8k": (
        lines,
        "a.jsonl",
        {"question": QUESTION, "answer": "2+3=<<2+3=5>>5,000\n#### 5,000"},
        {"answers": ("5000",), "meta": {"solution": "2+3=<<2+3=5>>5,000"}},
    ),
    "generic": (
        lines,
        "a.jsonl",
        {"ID": 3, "Question": QUESTION, "answer": [ANSWER, "B"], "category": "towns"},
        {"id": "3", "answers": (ANSWER, "B"), "meta": {"category": "towns"}},
    ),
    "fanoutqa": (
        whole,
        "a.json",
        {
            "id": "f1",
            "question": QUESTION,
            "decomposition": [
                {
                    "question": "q",
                    "decomposition": [
                        {"evidence": {"title": "Å"}, "decomposition": []},
                        {"evidence": {"title": "Ä"}},
                    ],
                    "evidence": {"title": "Town"},
                },
                {"evidence": None},
                {"evidence": {"title": "River"}},
                {"evidence": {"title": "Town"}},
            ],
            "answer": {"Å": 7, "Town": True},
            "categories": ["Art"],
        },
        {
            "id": "f1",
            "answers": ('{"Å": 7, "Town": true}',),
            "meta": {"categories": ["Art"], "articles": ["Town", "Å", "Ä", "River"]},
        },
    ),
    "humaneval": (
        lines,
        "a.jsonl",
        {
            "task_id": "t/1",
            "prompt": 'def f(x):\n    """Return x + 1."""\n',
            "entry_point": "f",
            "canonical_solution": "    return x + 1\n",
            "test": "def check(c):\n    assert c(1) == 2",
        },
        {
            "id": "t/1",
            "question": 'def f(x):\n    """Return x + 1."""',
            "answers": ("def check(c):\n    assert c(1) == 2\n\ncheck(f)\n",),
            "meta": {"entry_point": "f", "canonical_solution": "    return x + 1\n"},
        },
    ),
    "tau2_banking": (
        whole,
        "a.json",
        {
            "id": "b1",
            "user_scenario": {"persona": None, "instructions": QUESTION},
            "evaluation_criteria": {"actions": []},
            "required_documents": ["d_(x)_1", "d2"],
        },
        {"id": "b1", "answers": (), "meta": {"required_documents": ["d_(x)_1", "d2"]}},
    ),
}
BROWSECOMP_PLUS, SWEBENCH, WIDESEARCH = (
    FIXTURES[name][2] for name in ("browsecomp_plus", "swebench", "widesearch")
)
# the field with the answer, for broken rows
ANSWERS = dict.fromkeys(FIXTURES, "answer") | {
    "browsecomp_zh": "Answer",
    "frames": "Answer",
    "gaia": "Final answer",
    "webwalkerqa": "Answer",
    "2wiki": "golden_answers",
    "widesearch": "query",
    "swebench": "problem_statement",
    "humaneval": "test",
    "tau2_banking": "required_documents",
}
FOLDERS = {"harbor", "terminal_bench"}  # tests/test_evaluation_task_folders.py


def test_every_benchmark_has_a_fixture_and_a_judge():
    assert {*FIXTURES} | FOLDERS == {*BENCHMARKS} and llm_judge
    assert {kind.judge for kind in BENCHMARKS.values()} <= {*JUDGES, ""}


@pytest.mark.parametrize("name", sorted(FIXTURES))
def test_published_schemas(name, tmp_path):
    write, file, row, changes = FIXTURES[name]
    (item,) = load_benchmark(name, write(tmp_path / file, [row]))
    expected = {"id": "row 1", "question": QUESTION, "answers": (ANSWER,), "meta": {}} | changes
    assert item == BenchmarkItem(**expected)
    if item.protected:
        assert QUESTION not in repr(item) and ANSWER not in repr(item)


@pytest.mark.parametrize("name", sorted(FIXTURES))
def test_broken_rows_are_named(name, tmp_path):
    write, file, row, _ = FIXTURES[name]
    field = ANSWERS[name]
    missing = {key: value for key, value in row.items() if key != field}
    with pytest.raises(BenchmarkError, match=f"{file}, row 1, field .*missing"):
        load_benchmark(name, write(tmp_path / file, [missing]))
    empty = row | {field: [] if isinstance(row[field], list) else " "}
    with pytest.raises(BenchmarkError, match=f"{file}, row 1, field .*(empty|missing)"):
        load_benchmark(name, write(tmp_path / file, [empty]))
    names = ("id", "_id", "task_id", "unique_id", "query_id", "instance_id")
    if ident := next((key for key in row if key in names), None):
        with pytest.raises(BenchmarkError, match="row 2, .*occurs twice"):
            load_benchmark(name, write(tmp_path / file, [row, row]))
        assert len(load_benchmark(name, write(tmp_path / file, [row, row | {ident: "x"}]))) == 2


ENCRYPTED = {"browsecomp": "sha", "browsecomp_plus": "sha", "browsecomp_zh": "sha", "xbench": "raw"}


@pytest.mark.parametrize("name", sorted(ENCRYPTED))
def test_wrong_canaries_and_damaged_rows_show_no_text(name, tmp_path):
    write, file, row, _ = FIXTURES[name]
    field = next(key for key in row if key.lower() == "answer")
    for change in ({"canary": "another"}, {field: row[field][:-3]}, {field: "no base64!"}):
        with pytest.raises(BenchmarkError, match="cannot be decrypted") as raised:
            load_benchmark(name, write(tmp_path / file, [row | change]))
        assert row[field] not in str(raised.value) and ANSWER not in str(raised.value)


def test_decryption_vectors():
    """Computed by hand: exclusive or with the key's bytes, repeated."""
    assert base64.b64decode(encrypt("abc", b"\x01\x02")) == bytes([0x60, 0x60, 0x62])
    assert hashlib.sha256(b"canary-7").digest() == HASHED and len(HASHED) == 32
    long = "x" * 100
    sealed = base64.b64decode(encrypt(long, HASHED))
    assert sealed[32:64] == sealed[:32] and sealed[0] == ord("x") ^ HASHED[0]
    assert decrypt(encrypt(long, HASHED), HASHED) == long
    with pytest.raises(ValueError, match="key is empty"):
        decrypt("YQ==", b"")


@pytest.mark.parametrize("name", sorted(ENCRYPTED))
def test_decryption_vector_of_each_benchmark(name, tmp_path):
    """Cipher texts for the canary "abc", written down here, not made by `encrypt`.

    The SHA-256 of "abc" starts with ba 78 16 bf 8f 01 cf ea (FIPS 180). "Oslo" is 4f 73 6c 6f, so
    the exclusive or is f5 0b 7a d0; with the bytes of "abc" and again "a" it is 2e 11 0f 0e.
    """
    sealed = {"sha": bytes.fromhex("f50b7ad0"), "raw": bytes.fromhex("2e110f0e")}
    cipher = base64.b64encode(sealed[ENCRYPTED[name]]).decode()
    write, file, row, _ = FIXTURES[name]
    kept = {"id": "1", "canary": "abc"}
    row = {k: kept.get(k, [] if k.endswith("_docs") else cipher) for k in row}
    (item,) = load_benchmark(name, write(tmp_path / file, [row]))
    assert (item.question, item.answers) == ("Oslo", ("Oslo",))


@pytest.mark.parametrize(
    ("name", "file", "row", "expected"),
    [
        (
            "xbench",
            "ScienceQA.csv",
            {"id": "7", "type": "text", "subject": "Art", "canary": CANARY}
            | dict(zip(("prompt", "answer"), SEALED_RAW)),
            {"id": "7", "protected": True, "meta": {"type": "text", "subject": "Art"}},
        ),
        (
            "simpleqa",
            "simpleqa_verified.csv",
            {
                "original_index": 12,
                "problem": QUESTION,
                "answer": ANSWER,
                "topic": "Art",
                "answer_type": "Place",
                "multi_step": False,
                "requires_reasoning": True,
                "urls": "https://a,https://b",
            },
            {"id": "12", "meta": {"topic": "Art", "answer_type": "Place"}},
        ),
        (
            "hle",
            "hle_verified.jsonl",
            {
                "id": "h1",
                "question": QUESTION,
                "image": "",
                "answer": ANSWER,
                "category": "Art",
                "verdict": "gold",
            },
            {"id": "h1", "protected": True, "meta": {"category": "Art", "has_image": False}},
        ),
        (
            "hle",
            "no_image_field.jsonl",
            {"id": "h1", "question": QUESTION, "answer": ANSWER},
            {"id": "h1", "protected": True, "meta": {"has_image": False}},
        ),
    ],
)
def test_other_files_of_the_same_readers(name, file, row, expected, tmp_path):
    write = lines if file.endswith(".jsonl") else separated
    (item,) = load_benchmark(name, write(tmp_path / file, [row]))
    assert item == BenchmarkItem(**{"question": QUESTION, "answers": (ANSWER,)} | expected)


def test_empty_texts_after_decryption(tmp_path):
    write, file, row, _ = FIXTURES["browsecomp"]
    for name in ("problem", "answer"):
        with pytest.raises(BenchmarkError, match=f"field '{name}': is empty"):
            load_benchmark(
                "browsecomp", write(tmp_path / file, [row | {name: encrypt(" ", HASHED)}])
            )


def test_gold_tables_of_widesearch(tmp_path):
    write, file, row, _ = FIXTURES["widesearch"]
    path = write(tmp_path / file, [row])
    (item,) = load_benchmark("widesearch", path)
    (gold,) = item.answers
    # the key is country and city: the second row is found although its city occurs twice
    answer = "City Name,Country,Founded\nBergen,USA,1823\nBergen|Bjørgvin,Norway,1071"
    score = score_table(answer, gold)
    assert (score.row_f1, score.item_f1) == pytest.approx((1 / 2, 5 / 6))
    table = tmp_path / "widesearch_gold" / "ws_1.csv"
    for text, message in (
        ("City Name,Founded\na,b\n", "ws_1.csv, row 1, field 'country': missing"),
        ("City Name,Founded,Country\n", "ws_1.csv has no rows"),
        ("City Name,Founded,Country\na\n", "ws_1.csv, row 1 has another number of fields"),
    ):
        table.write_text(text)
        with pytest.raises(BenchmarkError, match=message):
            load_benchmark("widesearch", path)
    table.unlink()
    with pytest.raises(BenchmarkError, match="row 1, field 'instance_id': .*ws_1.csv is not"):
        load_benchmark("widesearch", path)
    lines(path, [row | {"instance_id": "../../x"}])
    with pytest.raises(BenchmarkError, match="outside the folder"):
        load_benchmark("widesearch", path)


def test_a_corpus_becomes_a_world(tmp_path, capsys):
    """Pages are named by docid, which recall is counted by; a second file continues the first."""
    rows = [
        {"docid": "12", "text": "---\ntitle: Lund\n---\nLund has a cathedral.", "url": "https://l"},
        {"docid": "a-7", "text": "Bergen has a harbour.", "url": None},
    ]
    files = [lines(tmp_path / "a.jsonl", rows[:1]), parquet(tmp_path / "b.parquet", rows[1:])]
    out = tmp_path / "plus"
    command = ["evaluate", "pages", "browsecomp_plus", "--corpus", *map(str, files)]
    assert main([*command, "--out", str(out)]) == 0
    assert "2 pages" in capsys.readouterr().out
    written = {p.relative_to(out).as_posix(): p.read_text() for p in out.rglob("*") if p.is_file()}
    assert written == {
        "pages/12.md": f"{rows[0]['text']}\n\nSource: https://l\n",
        "pages/a-7.md": "Bergen has a harbour.\n",
    }
    world = load_world(f"folder:{out / 'pages'}")
    hit = world.search("cathedral", 1)[0]
    assert hit.url.endswith("12.md") and "cathedral" in world.page(hit.url).text
    assert main([*command, "--out", str(out)]) == 1
    assert "is not empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "have no rows"),
        ([{"docid": "1", "text": " "}], "row 1, field 'text': is empty"),
        ([{"text": "x"}], "row 1, field 'docid': missing"),
        ([{"docid": "../x", "text": "x"}], "row 1, field 'docid': must consist of"),
        ([{"docid": "a", "text": "x"}, {"docid": "A", "text": "y"}], "row 2, .*'A' occurs twice"),
    ],
)
def test_damaged_corpora_leave_no_folder(rows, message, tmp_path):
    path = lines(tmp_path / "a.jsonl", rows)
    with pytest.raises(BenchmarkError, match=message):
        write_corpus("browsecomp_plus", [path], tmp_path / "pages")
    assert [p.name for p in tmp_path.iterdir()] == ["a.jsonl"]


def test_a_corpus_contains_no_questions(tmp_path, capsys):
    write, file, row, _ = FIXTURES["browsecomp_plus"]
    questions = write(tmp_path / file, [row])
    command = ["evaluate", "pages", "browsecomp_plus", "--out", str(tmp_path / "out")]
    for options, message in (
        (["--corpus", str(questions)], "field 'text': missing"),
        (["--source", str(questions)], "protected texts are written to no file"),
        (["--source", str(questions), "--corpus", str(questions)], "either --source or --corpus"),
        ([], "either --source or --corpus"),
    ):
        assert main([*command, *options]) == 1
        assert message in capsys.readouterr().err
        assert not (tmp_path / "out" / "pages").exists()
    with pytest.raises(ValueError, match="hotpotqa has no corpus; .*browsecomp_plus"):
        write_corpus("hotpotqa", [questions], tmp_path / "out")


def test_attachments_of_gaia(tmp_path):
    write, file, row, _ = FIXTURES["gaia"]
    path = write(tmp_path / file, [row | {"file_name": "picture.png"}])
    with pytest.raises(BenchmarkError, match="field 'file_name': picture.png is not beside"):
        load_benchmark("gaia", path)
    (tmp_path / "picture.png").write_bytes(b"x")
    assert load_benchmark("gaia", path)[0].files == (tmp_path / "picture.png",)
    with pytest.raises(BenchmarkError, match="outside the folder"):
        load_benchmark("gaia", write(tmp_path / file, [row | {"file_name": "../x"}]))
    with pytest.raises(BenchmarkError, match="is hidden"):
        load_benchmark("gaia", write(tmp_path / file, [row | {"Final answer": "?"}]))


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("aime", {"problem": "q", "answer": "1000"}, "no integer from 0 to 999"),
        ("aime", {"problem": "q", "answer": "x"}, "no integer from 0 to 999"),
        ("gsm8k", {"question": "q", "answer": "5"}, "has no ####"),
        ("frames", {"prompt": "q", "answer": "a", "wiki_links": "[oops"}, "is no list"),
        ("hotpotqa", {"question": "q", "answer": "a", "context": [["t"]]}, "must be pairs"),
        ("musique", {"question": "q", "answer": "a", "paragraphs": [{}]}, "must have title"),
        ("fanoutqa", {"question": "q", "answer": {"a": None}}, "a part that is no text or number"),
        ("fanoutqa", {"question": "q", "answer": ["", " "]}, "field 'answer': is empty"),
        ("fanoutqa", {"question": "q", "answer": "a", "decomposition": ["x"]}, "with evidence"),
        ("fanoutqa", {"question": "q", "necessary_evidence": []}, "field 'answer': missing"),
        ("humaneval", {"prompt": "p", "test": "t", "entry_point": "a b"}, "no name of a function"),
        ("tau2_banking", {"user_scenario": {}, "required_documents": [3]}, "must be a list of ids"),
        ("generic", {"question": ["q"], "answer": "a"}, "is a list, not a text"),
        ("generic", {"question": "q", "answer": True}, "is a bool, not a text"),
        ("generic", {"question": "q", "answer": ["a", " "]}, "is empty"),
        ("generic", {"question": "q", "answer": float("nan")}, "is nan, not a number"),
        (
            "generic",
            {"question": "q", "answer": "a", "Answer": "b"},
            "several fields named 'answer'",
        ),
        ("generic", {"question": "q", "answer": "\ud800"}, "not valid Unicode"),
        ("hotpotqa", {"question": "q", "answer": "a", "context": {"title": ["t"]}}, "one length"),
        (
            "hotpotqa",
            {"question": "q", "answer": "a", "context": {"title": ["t"], "sentences": []}},
            "one length",
        ),
        ("browsecomp_plus", BROWSECOMP_PLUS | {"gold_docs": ["d1"]}, "documents with docid"),
        ("browsecomp_plus", BROWSECOMP_PLUS | {"evidence_docs": [{"docid": "x"}]}, "be decrypted"),
        ("swebench", SWEBENCH | {"repo": "name"}, "field 'repo': must have the form"),
        ("swebench", SWEBENCH | {"repo": "owner/name/x"}, "field 'repo': must have the form"),
        ("swebench", SWEBENCH | {"base_commit": "0a" * 21}, "'base_commit': must have the form"),
        ("swebench", SWEBENCH | {"base_commit": "main"}, "'base_commit': must have the form"),
        ("swebench", SWEBENCH | {"patch": "x"}, "field 'patch': is no patch"),
        ("swebench", SWEBENCH | {"test_patch": "x"}, "field 'test_patch': is no patch"),
        ("swebench", SWEBENCH | {"FAIL_TO_PASS": "[]"}, "field 'fail_to_pass': is empty"),
        ("swebench", SWEBENCH | {"FAIL_TO_PASS": "[1]"}, "must be a list of names of tests"),
        ("swebench", SWEBENCH | {"PASS_TO_PASS": "t.py"}, "field 'pass_to_pass': is no list"),
        ("swebench", SWEBENCH | {"PASS_TO_PASS": None}, "field 'pass_to_pass': missing"),
        ("swebench", SWEBENCH | {"instance_id": None}, "field 'instance_id': missing"),
        ("widesearch", WIDESEARCH | {"evaluation": "{"}, "'evaluation': is missing, or no record"),
        ("widesearch", WIDESEARCH | {"evaluation": {"required": ["a"]}}, "unique_columns must be"),
        (
            "widesearch",
            WIDESEARCH | {"evaluation": {"required": ["a"], "unique_columns": ["b"]}},
            "some of required",
        ),
        (
            "widesearch",
            WIDESEARCH | {"evaluation": {"required": ["a b", "A B"], "unique_columns": ["ab"]}},
            "required must be a list of different names",
        ),
    ],
)
def test_wrong_fields(name, row, message, tmp_path):
    with pytest.raises(BenchmarkError, match=message):
        load_benchmark(name, lines(tmp_path / "a.jsonl", [row]))


@pytest.mark.parametrize(
    ("answer", "expected"), [("007", "7"), ("000", "0"), (0, "0"), (33.0, "33"), ("0999", "999")]
)
def test_integers_of_aime(answer, expected, tmp_path):
    path = lines(tmp_path / "a.jsonl", [{"problem": "q", "answer": answer}])
    assert load_benchmark("aime", path)[0].answers == (expected,)


def test_hub_form_of_hotpotqa(tmp_path):
    context = {"title": [p[0] for p in PAIRS], "sentences": [p[1] for p in PAIRS]}
    row = {"id": "p1", "question": QUESTION, "answer": ANSWER, "context": context}
    (item,) = load_benchmark("hotpotqa", parquet(tmp_path / "a.parquet", [row]))
    assert item.documents == PAGES


@pytest.mark.parametrize("answers", [(), ("",), ("a", " ")])
def test_readers_of_plugins_cannot_return_empty_answers(answers, tmp_path):
    """They would be judged; only a benchmark without a judge has no answers."""
    path = lines(tmp_path / "a.jsonl", [{"q": "q"}])
    try:
        for name, judge in (("judged", "rules"), ("executed", "")):
            register_benchmark(name, judge)(lambda row: BenchmarkItem("1", row.text("q"), answers))
        with pytest.raises(BenchmarkError, match="row 1, field 'answer': is empty"):
            load_benchmark("judged", path)
        assert load_benchmark("executed", path)[0].answers == answers
    finally:
        del BENCHMARKS["judged"], BENCHMARKS["executed"]


def test_every_batch_of_a_parquet_file_is_read(tmp_path):
    rows = [{"id": str(i), "question": f"q{i}", "answer": "a"} for i in range(2 * PARQUET_ROWS + 1)]
    items = load_benchmark("generic", parquet(tmp_path / "a.parquet", rows))
    assert [item.question for item in items] == [row["question"] for row in rows]


def test_cells_without_a_header_are_not_lost(tmp_path):
    book = openpyxl.Workbook()
    for row in (["question", "answer"], ["q", "a", "lost"]):
        book.active.append(row)
    book.save(tmp_path / "a.xlsx")
    (item,) = load_benchmark("generic", tmp_path / "a.xlsx")  # openpyxl fills the header up
    assert item.answers == ("a",)
    rows = list(iter_rows(tmp_path / "a.xlsx"))
    assert rows[0].fields == {"question": "q", "answer": "a", "column 3": "lost"}
    # without the stated size of the sheet, rows have their own lengths
    with (
        zipfile.ZipFile(tmp_path / "a.xlsx") as old,
        zipfile.ZipFile(tmp_path / "b.xlsx", "w") as new,
    ):
        for name in old.namelist():
            new.writestr(name, re.sub(rb"<dimension[^>]*/>", b"", old.read(name)))
    with pytest.raises(BenchmarkError, match="b.xlsx has a row with more cells than the header"):
        load_benchmark("generic", tmp_path / "b.xlsx")


def test_columns_of_one_name_in_binary_formats(tmp_path):
    names = ["question", "answer", "answer"]
    table = pyarrow.Table.from_arrays([pyarrow.array(["x"])] * 3, names=names)
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    book = openpyxl.Workbook()
    for row in (names, ["q", "a", "b"]):
        book.active.append(row)
    book.save(tmp_path / "a.xlsx")
    for file in ("a.parquet", "a.xlsx"):
        with pytest.raises(BenchmarkError, match=f"{file} has several fields named 'answer'"):
            load_benchmark("generic", tmp_path / file)


def test_files_that_are_none(tmp_path):
    cases = {
        "none.csv": (None, "does not exist"),
        "a.txt": (b"x", "format must be one of"),
        "empty.jsonl": (b"", "has no rows"),
        "cut.jsonl": (b'{"question": "q", "ans', "not valid JSON"),
        "list.jsonl": (b"[1]\n", "row 1 is no record"),
        "cut.csv": (b"question,answer\nq\n", "row 1 has another number of fields"),
        "more.csv": (b"question,answer\nq,a,b\n", "row 1 has another number of fields"),
        "names.csv": (b"question,answer,answer\nq,a,b\n", "several fields named 'answer'"),
        "quote.csv": (b'question,answer\n"q,a\n', "cannot be read"),
        "latin.csv": ("question,answer\nø,a\n".encode("latin-1"), "cannot be read"),
        "a.json": (b"3", "no list of records"),
        "a.parquet": (b"PAR1xxxx", "cannot be read"),
        "a.xlsx": (b"PK\x03\x04", "no xlsx file"),
    }
    for name, (content, message) in cases.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(BenchmarkError, match=message):
            load_benchmark("generic", tmp_path / name)
    with pytest.raises(ValueError, match="unknown benchmark 'browscomp'"):
        load_benchmark("browscomp", tmp_path / "a.json")


def test_documents_become_a_world(tmp_path):
    items = [
        BenchmarkItem("1", "q", ("a",), documents=PAGES),
        BenchmarkItem("2", "q", ("a",), documents=(PAGES[0], Document("town", "Another one."))),
        BenchmarkItem("3", "q", ("a",), documents=(Document("A/B: c?", "Odd name."),)),
        BenchmarkItem("4", "q", ("a",), documents=(Document("Town (2)", "A third one."),)),
    ]
    assert write_documents(items, tmp_path / "pages") == 5
    assert {file.name for file in (tmp_path / "pages").iterdir()} == {
        "Town.md",
        "River.md",
        "town (2).md",
        "Town (2) (2).md",
        "A-B- c-.md",
    }
    world = load_world(f"folder:{tmp_path / 'pages'}")
    assert "It flows." in world.page(world.search("River", 1)[0].url).text
    with pytest.raises(ValueError, match="is not empty"):
        write_documents(items, tmp_path / "pages")
    with pytest.raises(ValueError, match="no documents"):
        write_documents([BenchmarkItem("1", "q", ("a",))], tmp_path / "x")
    with pytest.raises(ValueError, match="protected texts"):
        write_documents([BenchmarkItem("1", "q", ("a",), protected=True)], tmp_path / "x")


# ---------------------------------------------------------------- commands


def hotpot(tmp_path, n):
    """Write a benchmark of `n` questions whose answers are their numbers."""
    rows = [
        FIXTURES["hotpotqa"][2] | {"_id": f"p{i}", "question": f"Number {i}?", "answer": f"{i}"}
        for i in range(n)
    ]
    return whole(tmp_path / "hotpot.json", rows)


def test_answers_need_only_ids_of_a_benchmark(tmp_path, capsys):
    source = hotpot(tmp_path, 3)
    rows = [{"id": "p1", "prediction": "1"}, {"question": "Number 2?", "prediction": "7"}]
    answers = lines(tmp_path / "a.jsonl", rows)
    items = load_benchmark("hotpotqa", source)
    assert [(row.key, row.golds) for row in read_answers(answers, items)] == [
        ("p1", ("1",)),
        ("p2", ("2",)),
    ]
    command = ["evaluate", "answers", str(answers), "--benchmark", "hotpotqa"]
    assert main([*command, "--source", str(source)]) == 0
    assert "1 of 3 questions of the benchmark have no answer" in capsys.readouterr().err
    out = tmp_path / "report.json"
    assert main([*command, "--source", str(source), "--out", str(out)]) == 0
    assert json.loads(out.read_text())["unanswered"] == 1
    assert main(command) == 1 and "given together" in capsys.readouterr().err
    other = lines(tmp_path / "b.jsonl", [{"id": "x", "prediction": "1"}])
    with pytest.raises(ValueError, match="line 1 answers no question"):
        read_answers(other, items)


def test_a_question_that_stands_twice_needs_its_id(tmp_path):
    items = [BenchmarkItem(name, "Same?", (name,)) for name in "ab"]
    by_id = lines(tmp_path / "a.jsonl", [{"id": "b", "question": "Same?", "prediction": "b"}])
    assert read_answers(by_id, items)[0].golds == ("b",)
    by_text = lines(tmp_path / "b.jsonl", [{"question": "Same?", "prediction": "b"}])
    with pytest.raises(ValueError, match="give its id"):
        read_answers(by_text, items)
