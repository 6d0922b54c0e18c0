"""World `hub`: local files with the schemas of hub data sets; nothing is downloaded."""

import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from drlib.worlds import hub, load_world

WIKI = [
    {"id": "1", "url": "u", "title": "Oslo", "text": "Oslo is the capital of Norway. OSLO, oslo."},
    {"id": "2", "url": "u/2", "title": "Norway", "text": "Norway borders Sweden, not New Norway."},
    {"id": "3", "url": "u", "title": "New Norway", "text": "A village; nothing to do with Oslo's."},
]
HOTPOT = {
    "id": "5a",
    "question": "q?",
    "answer": "a",
    "type": "bridge",
    "level": "hard",
    "supporting_facts": {"title": ["Oslo"], "sent_id": [0]},
    "context": {
        "title": ["Oslo", "Norway"],
        "sentences": [["Oslo lies in Norway.", " It is old."], ["Norway is long."]],
    },
}
TWO_WIKI = {
    "_id": "x",
    "question": "q?",
    "answer": "a",
    "type": "comparison",
    "supporting_facts": [["Oslo", 0]],
    "context": [["Oslo", ["Oslo lies in Norway.", "It is old."]], ["Norway", ["Norway is long."]]],
    "evidences": [["Oslo", "country", "Norway"]],
}
MUSIQUE = {
    "id": "2hop__1_2",
    "question": "q?",
    "answer": "a",
    "answer_aliases": [],
    "answerable": True,
    "question_decomposition": [
        {"id": 1, "question": "p", "answer": "a", "paragraph_support_idx": 0}
    ],
    "paragraphs": [
        {"idx": 0, "title": "Oslo", "paragraph_text": "Oslo lies in Norway.", "is_supporting": 1},
        {"idx": 1, "title": "Norway", "paragraph_text": "Norway is long.", "is_supporting": 0},
        {"idx": 2, "title": "Oslo", "paragraph_text": "It is old.", "is_supporting": 0},
    ],
}


def jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def parquet(path, rows):
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("write", [jsonl, parquet])
def test_wikipedia_rows_become_pages_with_links(tmp_path, write):
    world = load_world(f"hub:{write(tmp_path / f'a.{write.__name__}', WIKI)}")
    assert len(world) == 3 and world.scheme == "hub"
    assert set(world.graph.facts) == {
        ("Oslo", "mentions", "Norway"),
        ("Norway", "mentions", "New Norway"),
        ("New Norway", "mentions", "Oslo"),
    }
    text = "Oslo is the capital of Norway. OSLO, oslo.\n\nFacts"
    assert world.page("hub:Oslo").text.startswith(text)
    assert world.links("Oslo") == ("Norway", "New Norway")  # mentioned there
    assert world.graph.nodes["Oslo"].kind == "article"
    assert world.search("village", 1)[0].title == "New Norway"


@pytest.mark.parametrize(
    ("row", "write"),
    [
        (HOTPOT, jsonl),
        (HOTPOT, parquet),
        (TWO_WIKI, jsonl),
        (MUSIQUE, jsonl),
        (MUSIQUE, parquet),
        ({**TWO_WIKI, "context": json.dumps(TWO_WIKI["context"])}, jsonl),
    ],
    ids=["hotpot", "hotpot parquet", "2wiki", "musique", "musique parquet", "JSON"],
)
def test_question_contexts_become_pages(tmp_path, row, write):
    path = write(tmp_path / f"dev.{write.__name__}", [row, row])
    world = load_world(f"hub:{path}")
    assert len(world) == 2  # the same paragraphs of a second question add nothing
    text = world.page("Oslo").text.partition("\n\nFacts")[0]
    assert text in ("Oslo lies in Norway. It is old.", "Oslo lies in Norway.\n\nIt is old.")
    assert set(world.graph.facts) == {("Oslo", "mentions", "Norway")}
    assert "q?" not in str(world.store.rows("SELECT text FROM pages"))


def test_longest_title_is_mentioned():
    titles = {"New York": 0, "York": 0, "New York City Ballet": 0, "it": 0, "U.S. Route 1": 0}
    text = "In York and new york, the New York City Ballet (New York) met; it took U.S. Route 1."
    found = ["York", "New York City Ballet", "New York", "U.S. Route 1"]
    assert hub._mentioned(text, titles) == found
    assert hub._mentioned("New York City", titles) == ["New York"]
    assert hub._mentioned("", titles) == []


@pytest.mark.parametrize(
    "row",
    [
        {"context": 7},
        {"context": "{"},
        {"context": {"title": ["a"]}},
        {"paragraphs": [{"title": "a"}]},
        {"title": 7, "text": "x"},
    ],
)
def test_known_column_with_wrong_contents_is_an_unknown_schema(tmp_path, row):
    with pytest.raises(ValueError, match="unknown schema"):
        load_world(f"hub:{jsonl(tmp_path / 'a.jsonl', [row])}")


def test_json_beside_parquet_is_ignored_and_no_rows_raise(tmp_path):
    pq.write_table(pa.Table.from_pylist(WIKI), tmp_path / "train.parquet")
    (tmp_path / "dataset_infos.json").write_text('{"a": 1}')
    (tmp_path / "empty.jsonl").touch()
    assert len(load_world(f"hub:{tmp_path}")) == 3
    with pytest.raises(ValueError, match="no pages"):
        load_world(f"hub:{tmp_path}", limit=0)


def test_file_rewritten_within_a_second_is_read_again(tmp_path):
    file = tmp_path / "a.jsonl"
    for title in ("Oslo", "Rome"):
        file.write_text(json.dumps({"title": title, "text": "x"}) + "\n")
        os.utime(file, ns=(10**18, 10**18))  # equal size and modification time
        assert load_world(f"hub:{file}", tmp_path / "index").find(title)


def test_file_order_and_limit(tmp_path):
    jsonl(tmp_path / "b.jsonl", WIKI[1:])
    jsonl(tmp_path / "a.jsonl", WIKI[:1])
    (tmp_path / "README.md").write_text("no data")
    assert len(load_world(f"hub:{tmp_path}")) == 3
    world = load_world(f"hub:{tmp_path}", limit=2)
    assert world.find("Oslo") and world.find("Norway") and not world.find("New Norway")
    files = [str(tmp_path / "b.jsonl")]
    assert len(load_world("hub:wikimedia/wikipedia", data_files=files)) == 2
    assert len(load_world("hub:wikimedia/wikipedia", data_files=files[0])) == 2


def test_only_changed_files_are_read_again(tmp_path, monkeypatch):
    path, index, calls = jsonl(tmp_path / "a.jsonl", WIKI), tmp_path / "index.sqlite", []
    real = hub.read_pages
    monkeypatch.setattr(hub, "read_pages", lambda rows: calls.append(1) or real(rows))
    first = load_world(f"hub:{path}", index)
    again = load_world(f"hub:{path}", index)
    assert len(calls) == 1 and again.version == first.version
    jsonl(path, WIKI[:2])
    assert len(load_world(f"hub:{path}", index)) == 2 and len(calls) == 2
    load_world(f"hub:{path}", index, limit=1)
    assert len(calls) == 3


def test_unknown_schema_lists_columns(tmp_path):
    path, index = jsonl(tmp_path / "a.jsonl", [{"prompt": "p"}]), tmp_path / "i.sqlite"
    with pytest.raises(ValueError, match=r"columns prompt: expected title and text .*context"):
        load_world(f"hub:{path}", index)
    jsonl(path, WIKI)
    assert len(load_world(f"hub:{path}", index)) == 3  # no partial index remains


@pytest.mark.parametrize("content", ["{broken", '{"title": "a", "text": \n'])
def test_broken_file_is_named(tmp_path, content):
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(ValueError, match="a.jsonl"):
        load_world(f"hub:{tmp_path / 'a.jsonl'}")


def test_rows_without_text_or_title_are_skipped(tmp_path):
    rows = [
        *WIKI,
        {"id": "4", "url": "", "title": None, "text": "x"},
        {"id": "5", "url": "", "title": "Empty", "text": None},
        {"id": "6", "url": "", "title": " ", "text": "x"},
    ]
    assert len(load_world(f"hub:{jsonl(tmp_path / 'a.jsonl', rows)}")) == 3


def test_missing_data_set_error_contains_the_remedy(tmp_path):
    with pytest.raises(ValueError, match="hub:no/such-set cannot be read .*pass hub:PATH"):
        load_world("hub:no/such-set")
    with pytest.raises(ValueError, match=r"no non-empty .*parquet"):
        load_world(f"hub:{tmp_path}")
    with pytest.raises(ValueError, match="cannot be read .*pass hub:PATH"):
        load_world("hub:x", data_files=str(tmp_path / "none.jsonl"))


def test_equal_rows_give_equal_worlds(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", WIKI)
    one, two = load_world(f"hub:{path}"), load_world(f"hub:{path}")
    assert one.version == two.version and one.graph.version == two.graph.version
