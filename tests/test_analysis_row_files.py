"""Files of rollouts: compression, encodings, JSON documents, JSON text in fields, odd texts.

Run: python -m pytest tests/test_analysis_row_files.py
"""

import bz2
import gzip
import json
import lzma

import pandas as pd
import pyarrow as pa
import pytest

from drlib.analysis.inputs import read_rollouts
from drlib.analysis.report import write_report
from drlib.analysis.row_files import repair_text
from drlib.analysis.viewer import viewer_page
from drlib.trajectory import save_trajectories
from tests.test_analysis_inputs import (
    TOUR,
    tokenizer,  # noqa: F401 - a fixture
    write_lines,
)

ROWS = [
    {
        "messages": [
            {"role": "user", "content": f"Où est {n} 東京?"},
            {"role": "assistant", "content": f"<answer>{n}</answer>"},
        ],
        "reward": 1.0,
    }
    for n in range(3)
]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
PRETTY = json.dumps(ROWS, ensure_ascii=False, indent=2)
OBJECTS = "\n".join(json.dumps(row, indent=4) for row in ROWS)
CONTENTS = {
    "lines": LINES.encode(),
    "gzip": gzip.compress(LINES.encode()),
    "bzip2": bz2.compress(LINES.encode()),
    "xz": lzma.compress(LINES.encode()),
    "gzip of a document": gzip.compress(PRETTY.encode()),
    "UTF-16": LINES.encode("utf-16"),
    "UTF-16-LE without a mark": LINES.encode("utf-16-le"),
    "UTF-16-BE": b"\xfe\xff" + LINES.encode("utf-16-be"),
    "UTF-32": LINES.encode("utf-32"),
    "a byte order mark": LINES.encode("utf-8-sig"),
    "an array": json.dumps(ROWS).encode(),
    "a pretty-printed array": PRETTY.encode(),
    "a pretty-printed array in UTF-16": PRETTY.encode("utf-16"),
    "pretty-printed objects": OBJECTS.encode(),
    "Windows line ends": LINES.replace("\n", "\r\n").encode(),
    "one chat per line": "\n".join(json.dumps(row["messages"]) for row in ROWS).encode(),
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
@pytest.mark.parametrize("name", ["rollouts.jsonl", "rollouts.json", "rollouts"])
def test_files_are_read_in_any_container(tokenizer, tmp_path, content, name):
    (tmp_path / name).write_bytes(content)
    found = list(read_rollouts(tmp_path / name, tokenizer))
    assert [t.answer for t in found] == ["0", "1", "2"]
    assert found[1].metadata["question"] == "Où est 1 東京?"


def test_zstd_files_are_read(tokenizer, tmp_path):
    with pa.OSFile(str(tmp_path / "a.zst"), "w") as file:
        with pa.CompressedOutputStream(file, "zstd") as stream:
            stream.write(LINES.encode())
    assert len(list(read_rollouts(tmp_path / "a.zst", tokenizer))) == 3


def test_parquet_is_recognised_by_content(tokenizer, tmp_path):
    pd.DataFrame(ROWS).to_parquet(tmp_path / "rollouts.data")
    assert len(list(read_rollouts(tmp_path / "rollouts.data", tokenizer))) == 3


@pytest.mark.parametrize(
    "content, said",
    [
        (b"PK\x03\x04rest", "zip"),
        (gzip.compress(LINES.encode())[:-20], "truncated"),
        (lzma.compress(LINES.encode())[:40], "truncated"),
        (PRETTY[:-30].encode(), "line"),
        (OBJECTS[:-9].encode(), "line"),
        (LINES.encode("cp1252", "replace").replace(b"?", b"\xe9"), "line 1"),
        (b'{"messages": []}\n[1, 2]\n', "line 2"),
        (b"[3, 4]", "row 1"),
    ],
)
def test_unreadable_files_name_the_place(tokenizer, tmp_path, content, said):
    (tmp_path / "bad.jsonl").write_bytes(content)
    with pytest.raises(ValueError, match=f"bad.jsonl.*{said}"):
        list(read_rollouts(tmp_path / "bad.jsonl", tokenizer))


@pytest.mark.parametrize(
    "text, repaired",
    [
        ("a\ud83d", "a\ufffd"),
        ("\udc00b", "\ufffdb"),
        ("\ud83d\ude00", "😀"),
        ("x\ud800\ud83d\ude00y", "x\ufffd😀y"),
        ("whole 😀", "whole 😀"),
    ],
)
def test_half_surrogate_pairs_are_replaced(text, repaired):
    assert repair_text(text) == repaired


@pytest.mark.parametrize("place", ["question", "turn", "observation", "arguments", "answer", "key"])
def test_half_surrogate_pairs_in_any_field(tokenizer, tmp_path, place):
    odd = dict.fromkeys(("question", "turn", "observation", "answer", "key"), "")
    odd[place] = "\ud83d"
    arguments = '{"q": "\\ud83d"}' if place == "arguments" else {f"q{odd['key']}": "x"}
    chat = [
        {"role": "user", "content": f"Where{odd['question']}"},
        {
            "role": "assistant",
            "content": f"hm{odd['turn']}",
            "tool_calls": [{"function": {"name": "search", "arguments": arguments}}],
        },
        {"role": "tool", "content": f"found{odd['observation']}"},
        {"role": "assistant", "content": "<answer>Oslo</answer>"},
    ]
    row = {"messages": chat, "answer": f"Oslo{odd['answer']}"}
    path = write_lines(tmp_path / "a.jsonl", [row])
    (t,) = read_rollouts(path, tokenizer)
    save_trajectories(tmp_path / "a.parquet", [t])
    assert list(read_rollouts(tmp_path / "a.parquet")) == [t]
    viewer_page(path, tokenizer).encode()


def test_file_names_with_half_surrogate_pairs_are_reported_about(tokenizer, tmp_path):
    path = write_lines(tmp_path / "a\udcff.jsonl", ROWS)
    write_report(tmp_path / "r.html", [path], TOUR / "policy_rl")
    assert "trajectories" in (tmp_path / "r.html").read_text(encoding="utf-8")


CHAT = ROWS[0]["messages"]
TOOLS = [{"type": "function", "function": {"name": "search", "parameters": {}}}]


@pytest.mark.parametrize(
    "row",
    [
        {"messages": CHAT, "tools": json.dumps(TOOLS)},
        {"messages": CHAT, "tools": ""},
        {"messages": CHAT, "tools": TOOLS[0]},
        {"messages": json.dumps(CHAT), "tools": TOOLS},
        {"messages": [None, *CHAT]},
        {"messages": CHAT, "reward": "1.0"},
        {"messages": CHAT, "score": "1", "step": "7"},
        {"messages": CHAT, "reward": " 0.5e0 ", "step": 3.0},
        {"prompt_ids": "[5, 6]", "response_ids": ["15", 16.0], "response_mask": ["1", "1"]},
        {"prompt_ids": [5], "response_ids": [15, 16], "response_logprobs": ["-0.5", -1]},
    ],
)
def test_json_text_and_numbers_as_text_are_read(tokenizer, tmp_path, row):
    (t,) = read_rollouts(write_lines(tmp_path / "a.jsonl", [row]), tokenizer)
    assert t.generated.any()
    given = row.get("reward", row.get("score"))
    assert t.reward == (None if given is None else float(given))
    assert t.policy_version == int(float(row.get("step", 0)))
    if "response_ids" in row:
        assert t.token_ids[t.generated].tolist() == [15, 16]


@pytest.mark.parametrize(
    "row, said",
    [
        ({"messages": CHAT, "tools": "search(q)"}, "tools"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}, CHAT[1]]},
            "image_url",
        ),
        ({"messages": [CHAT[0], {"role": "assistant", "content": [{"type": "audio"}]}]}, "audio"),
        (
            {"messages": [*CHAT, {"role": "tool", "content": [{"type": "image", "source": {}}]}]},
            r"messages\[2\].content\[0\]",
        ),
        ({"messages": ["hm", *CHAT]}, r"messages\[0\]"),
        ({"messages": CHAT, "reward": "good"}, "good"),
        ({"messages": {"role": "user"}}, "messages"),
        ({"messages": CHAT, "prediction": ["x"]}, "prediction"),
        ({"messages": CHAT, "tools": "[{"}, "tools"),
        ({"conversations": CHAT, "images": ["a.png"]}, "images"),
        ({"prompt_ids": [5], "response_ids": [15.5]}, "15.5"),
    ],
)
def test_refusals_name_row_and_field(tokenizer, tmp_path, row, said):
    path = write_lines(tmp_path / "bad.jsonl", [row])
    with pytest.raises(ValueError, match=f"row 1 .*{said}"):
        list(read_rollouts(path, tokenizer))
