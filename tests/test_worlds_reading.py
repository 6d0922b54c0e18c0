"""Reading of files: embedded data, office files, PDFs."""

import json
from urllib.parse import quote

import pytest

pytest.importorskip("pypdf")
pytest.importorskip("trafilatura")
pytest.importorskip("openpyxl")

from drlib.worlds.reading import KEPT_CHARS, drop_data, reply_to
from tests.folder_examples import load

PICTURE = "iVBORw0KGgoAAAANSUhEUgAA/+AB" * 4_000
WRAPPED = "\n    ".join(PICTURE[at : at + 76] for at in range(0, len(PICTURE), 76))
SVG = f"<svg xmlns='http://www.w3.org/2000/svg'><path d='M0 0 (1)'/>{'<g/>' * 50}</svg>"


def text_of(suffix, data, outline=True):
    reply = reply_to([suffix, "", 0, outline], data)
    assert "fault" not in reply, reply
    return reply["text"]


# ---------------------------------------------------------------------------------- data: URLs

EMBEDDED = {
    "picture.md": f"before ![alt](data:image/png;base64,{PICTURE}) behind",
    "title.md": f'before ![alt](data:image/png;base64,{PICTURE} "alt") behind',
    "angle.md": f"before ![alt](<data:image/jpeg;base64,{PICTURE}>) behind",
    "label.md": f"before ![alt][x] behind\n\n[x]: data:image/gif;base64,{PICTURE}=\n",
    "element.md": f'before <img alt="alt" src="data:image/png;base64,\n    {WRAPPED}="> behind',
    "markup.md": f'before <img alt="alt" src="data:image/svg+xml;utf8,{SVG}"> behind',
    "front.md": f"---\nlogo: data:image/png;base64,{PICTURE}\n---\nbefore alt behind",
    "style.md": f"before alt\n<style>a {{background: url('data:font/woff2;base64,{PICTURE}')}}"
    "</style> behind",
    "percent.mdx": f"before ![alt](data:image/svg+xml,{quote(SVG)}) behind",
    "picture.rst": f"before alt\n\n.. image:: data:image/png;base64,{PICTURE}\n\nbehind",
    "plain.txt": f"before alt DATA:text/plain;charset=utf-8,{'a%20' * 5_000} behind",
    "link.html": f'<p>before <a href="data:text/csv,{"a%2Cb" * 5_000}">alt</a> behind</p>',
    "text.html": f"<p>before alt data:image/png;base64,{PICTURE} behind</p>",
    "table.csv": f"name,picture,last\nbefore alt,data:image/png;base64,{PICTURE},behind\n",
    "rows.json": json.dumps([{"a": "before alt", "b": f"data:;base64,{PICTURE}", "c": "behind"}]),
    "escaped.json": json.dumps(
        {"a": "before alt", "b": f"data:image/png;base64,{PICTURE}", "c": ["behind"]}
    ).replace("/", "\\/"),
    "cell.ipynb": json.dumps(
        {
            "cells": [
                {
                    "cell_type": "markdown",
                    "source": [f"before ![alt](data:image/png;base64,{PICTURE}) behind"],
                }
            ]
        }
    ),
}


@pytest.mark.parametrize("name", EMBEDDED)
def test_embedded_data_is_not_indexed(name, tmp_path):
    (tmp_path / name).write_text(EMBEDDED[name])
    world = load(tmp_path)
    texts = " ".join(text for (text,) in world.store.rows("SELECT text FROM pages"))
    assert len(texts) < 900 and len(world) <= 2
    for word in ("before", "alt", "behind"):
        assert word in texts


@pytest.mark.parametrize("name", ["picture.md", "plain.txt", "table.csv", "escaped.json"])
def test_tools_read_text_around_embedded_data(name):
    suffix = name[name.index(".") :]
    text = text_of(suffix, EMBEDDED[name].encode() + b" " * 9 + b"end" * KEPT_CHARS, outline=False)
    assert PICTURE[:200] not in text and "behind" in text


@pytest.mark.parametrize(
    "text",
    [
        "a short data:,Hello or data:text/html,%3Ch1%3E",
        "![dot](data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA=)",
        "the metadata:image/png;base64," + "iVBORw0KGgo" * 40,
        "some data: " + "prose " * 40 + "(see data:image/png)",
        "https://example.org/" + "a" * 300,
    ],
)
def test_text_about_data_is_kept(text):
    assert drop_data(text) == text


@pytest.mark.parametrize(
    "text", ["data:image/svg+xml,<svg ", "data: ", "data:a/b;base64,\n ", "data:,(("]
)
def test_time_to_drop_data_is_linear(text):
    assert drop_data(text * 30_000)
