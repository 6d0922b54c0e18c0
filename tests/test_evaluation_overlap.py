"""Contamination of training files, by hand, against brute force, and the committed measurement.

Run: python -m pytest tests/test_evaluation_overlap.py
"""

import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from drlib.cli import main
from drlib.config import ROOT
from drlib.evaluation.answer_files import hash_question
from drlib.evaluation.benchmarks import BenchmarkItem
from drlib.evaluation.overlap import overlap, render_overlap, split_words
from tests.test_evaluation_answer_files import write

LONG = "In which year did the harbour of the old town on the river Aller burn down completely?"
SHORT = "Who built the old stone bridge of Celle in Saxony?"  # ten words: an 8-gram


def item(question, *answers, ident="q"):
    return BenchmarkItem(ident, question, answers or ("x",))


def search(tmp_path, question, rows, *answers):
    """Return the kinds of match of one question."""
    found = overlap([item(question, *answers)], [write(tmp_path / "t.jsonl", rows)])
    assert len(found["matches"]) <= 1 and found["files"] == {"t.jsonl": len(rows)}
    (match,) = found["matches"] or [{}]
    assert all(found[kind] == (kind in match) for kind in ("verbatim", "ngram", "answer_and_name"))
    return {kind: place for kind, place in match.items() if kind not in ("id", "question")}


@pytest.mark.parametrize(
    ("question", "text", "kinds"),
    [
        (LONG, f"Q: {LONG.upper()} A", {"verbatim", "ngram"}),
        (LONG, " ".join(LONG.split()[2:15]), {"ngram"}),  # 13 words
        (LONG, " ".join(LONG.split()[2:14]), set()),  # 12 words
        (SHORT, " ".join(SHORT.split()[:8]), {"ngram"}),
        (SHORT, " ".join(SHORT.split()[:7]), set()),
        ("Who is  Ada?", "who is ada", {"verbatim", "ngram"}),
        ("Who is Ada?", "who is adam", set()),
        ("谁建造了这座桥梁?", "问:谁建造了这座桥梁。", {"verbatim", "ngram"}),
        (
            "这是一个非常长的问题关于一座古老的桥",
            "长的问题关于一座古老的桥",
            set(),
        ),  # 12 characters
        ("这是一个非常长的问题关于一座古老的桥", "常长的问题关于一座古老的桥", {"ngram"}),
    ],
)
def test_questions_and_their_ngrams(tmp_path, question, text, kinds):
    found = search(tmp_path, question, [{"a": "no"}, {"text": text}])
    assert found == dict.fromkeys(kinds, "t.jsonl:2")


def test_ngrams_do_not_cross_texts(tmp_path):
    words = SHORT.split()
    halves = [" ".join(words[:5]), " ".join(words[5:])]
    assert search(tmp_path, SHORT, [{"messages": halves}]) == {}
    assert search(tmp_path, SHORT, [{"messages": [" ".join(halves)]}]) != {}


@pytest.mark.parametrize(
    ("question", "answer", "row", "matches"),
    [
        ("Where was Ada Lovelace born?", "London", {"a": "Ada Lovelace", "b": "in London."}, True),
        ("Where was Ada Lovelace born?", "London", {"a": "Ada, Lovelace's London"}, True),
        ("Where was Ada Lovelace born?", "London", {"a": "Ada was born in London"}, False),
        ("Where was Ada Lovelace born?", "London", {"a": "Ada Lovelace, Londonderry"}, False),
        ("Where was Ada Lovelace born?", "London", {"a": "Where was London born?"}, False),
        ("Who wrote “the blue hour”?", "Klara Vik", {"x": ["klara vik", "The Blue Hour"]}, True),
        ("In Oslo's port, which ship sank?", "Aurora", {"a": "Aurora at oslo"}, True),
        ("Which of Oslo, Bergen is older?", "Tønsberg", {"a": "TØNSBERG bergen"}, True),
        ("Is Oslo large?", "yes", {"a": "yes, Oslo"}, False),
        ("How many seas border Oslo?", "12", {"a": "12 Oslo"}, False),
        ("When was Oslo founded?", "1048", {"place": "Oslo", "year": 1048}, True),
        ("When was Oslo founded?", "1048", {"place": "Oslo", "ids": [1048]}, False),
        ("Which city is it, Oslo?", "Oslo", {"a": "Oslo"}, False),  # the answer is no name of it
        ("Where is it?", "London", {"a": "Where in London?"}, False),
    ],
)
def test_answer_and_name_in_one_row(tmp_path, question, answer, row, matches):
    found = search(tmp_path, question, [row], answer)
    assert ("answer_and_name" in found) == matches


def test_answer_and_name_must_be_in_the_same_row(tmp_path):
    rows = [{"a": "Ada Lovelace"}, {"a": "London"}]
    assert search(tmp_path, "Where was Ada Lovelace born?", rows, "London") == {}
    rows.append({"a": "London", "b": {"c": ["Ada Lovelace"]}})
    found = search(tmp_path, "Where was Ada Lovelace born?", rows, "Londres", "London")
    assert found == {"answer_and_name": "t.jsonl:3"}


def test_questions_that_cannot_match_by_answer_are_counted(tmp_path):
    items = [item("Is Oslo large?", "yes"), item("where is it?", "London", ident="r")]
    items.append(item("Where is Oslo?", "Norway", ident="s"))
    found = overlap(items, [write(tmp_path / "t.jsonl", [{"a": "no"}])])
    assert found["unsearched"] == 2 and found["matches"] == [] and found["questions"] == 3


def test_formats(tmp_path):
    messages = [{"role": "user", "content": f"{SHORT}\nThink."}]
    columns = {
        "messages": [json.dumps(messages), "[broken"],
        "token_ids": [[1, 2], [3]],
        "nested": [[{"text": "a"}], [{"text": SHORT}]],
        "texts": [["Ada"], ["b"]],
    }
    table = tmp_path / "t.parquet"
    pq.write_table(pa.table(columns), table)
    (tmp_path / "one.json").write_text(json.dumps({"data": [SHORT]}))
    (tmp_path / "list.json").write_text(json.dumps(["x", {"q": SHORT}]))
    for path, place in (
        (table, "t.parquet:1"),
        (tmp_path / "one.json", "one.json:1"),
        (tmp_path / "list.json", "list.json:2"),
    ):
        found = overlap([item(SHORT)], [path])
        assert found["matches"][0]["verbatim"] == place, "JSON in a text is read"
    assert overlap([item("Who is Ada?", "b")], [table])["files"] == {"t.parquet": 2}
    pq.write_table(pa.table({"nested": [[{"text": SHORT}]]}), table)
    assert overlap([item(SHORT)], [table])["verbatim"] == 1
    pq.write_table(pa.table({"texts": [[SHORT]]}), table)
    assert overlap([item(SHORT)], [table])["verbatim"] == 1


def test_bad_files_are_named(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no")
    (tmp_path / "b.json").write_text("{")
    (tmp_path / "c.jsonl").write_text('{"a": 1}\n{')
    (tmp_path / "d.txt").write_text("x")
    for name in ("a.parquet", "b.json", "c.jsonl", "d.txt"):
        with pytest.raises(ValueError, match=name):
            overlap([item(SHORT)], [tmp_path / name])
    with pytest.raises(ValueError, match="no questions"):
        overlap([], [tmp_path / "d.txt"])
    with pytest.raises(ValueError, match="no training files"):
        overlap([item(SHORT)], [])


def test_matches_agree_with_brute_force(tmp_path):
    draws = random.Random(0)
    words = [f"w{i}" for i in range(4)]

    def text(n):
        return " ".join(draws.choice(words) for _ in range(n))

    items = [item(text(draws.randint(3, 16)), "none", ident=str(i)) for i in range(60)]
    rows = [{"a": text(40), "b": [text(8)]} for _ in range(150)]
    found = overlap(items, [write(tmp_path / "t.jsonl", rows)])
    texts = [f" {each} " for row in rows for each in (row["a"], *row["b"])]
    for one in items:
        asked = one.question.split()
        n = 13 if len(asked) >= 13 else min(8, len(asked))
        grams = [f" {' '.join(asked[i : i + n])} " for i in range(len(asked) - n + 1)]
        expected = {
            "ngram": any(gram in each for gram in grams for each in texts),
            "verbatim": any(f" {one.question} " in each for each in texts),
        }
        match = next((m for m in found["matches"] if m["id"] == one.id), {})
        assert {kind: kind in match for kind in expected} == expected
    assert 5 < found["ngram"] < 55 and 2 < found["verbatim"] < found["ngram"]


def test_words_ignore_case_and_forms():
    assert split_words("Ｏslo's ÅR, 2024") == ("oslo", "s", "år", "2024")
    assert split_words("A谁谁b") == ("a", "谁", "谁", "b") and split_words("?!") == ()


def test_command(tmp_path, capsys):
    questions = write(tmp_path / "q.jsonl", [{"id": 7, "question": SHORT, "answer": "Ernst"}])
    training = write(tmp_path / "t.jsonl", [{"text": SHORT}, {"text": "Celle: Ernst"}])
    out = tmp_path / "out.json"
    arguments = ["evaluate", "overlap", str(training), "--source", str(questions)]
    assert main([*arguments, "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "| whole question in a row | 1 (100.0%) |" in shown
    text = out.read_text()
    assert json.loads(text)["matches"] == [
        {
            "id": "7",
            "question": hash_question(SHORT),
            "verbatim": "t.jsonl:1",
            "ngram": "t.jsonl:1",
            "answer_and_name": "t.jsonl:2",
        }
    ]
    assert "bridge" not in text and "Ernst" not in text
    assert (
        main(["evaluate", "overlap", str(tmp_path / "no.jsonl"), "--source", str(questions)]) == 1
    )
    assert "no.jsonl" in capsys.readouterr().err


def test_committed_measurement():
    path = ROOT / "figures" / "reference" / "evaluation" / "overlap.json"
    data = json.loads(path.read_text())["overlap"]
    shown = (ROOT / "docs" / "evaluation.md").read_text()
    for kind in ("search", "python"):
        counts = [
            f"{data[kind][source][name]}"
            for source in ("demonstrations", "rl")
            for name in ("verbatim", "ngram", "answer_and_name")
        ]
        assert f"| {kind} | {' | '.join(counts)} |" in shown
        assert render_overlap(data[kind]["rl"]).count("\n") == 7
