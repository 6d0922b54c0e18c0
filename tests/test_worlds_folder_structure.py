"""World `folder`: recognition of structure, one index per world, symbolic links.

Other tests of folders are in test_worlds_folder.py.
"""

import json
import os

import pytest

pytest.importorskip("trafilatura")

from drlib.worlds import folder, load_world
from drlib.worlds.chunking import chunk_file
from drlib.worlds.linking import slug
from tests.folder_examples import facts_of, load


def test_front_matter_values_are_text_and_other_lines_are_kept():
    front = "country: NO\nversion: 1.10\ncode: 0123\nstart: 12:30\nauthor:\nmore facts: x\n"
    facts = {
        ("a.md", "country", "NO"),
        ("a.md", "version", "1.10"),
        ("a.md", "code", "0123"),
        ("a.md", "start", "12:30"),
        ("a.md", "more facts field", "x"),
    }
    for text in (
        f"---\n{front}---\n",
        f"--- \n{front}---\t\n# A",
        f"---\n{front}...\n# A",
        f"---\n{front}---\n# A".replace("\n", "\r\n"),
    ):
        part = chunk_file("a.md", text)
        assert facts_of(part) - {("a.md", "heading", "A")} == facts
        assert [d.text for d in part.documents] == ["A" if "# A" in text else ""]
    rule = "---\n\nThe zeppelin.\n\n---\n\nMore."
    assert "The zeppelin." in chunk_file("a.md", rule).documents[0].text
    long = f"---\ntitle: T\nabout: the zeppelin{' long' * 40}\n---\nbody"
    part = chunk_file("a.md", long)
    assert "zeppelin" in part.documents[0].text and ("a.md", "title", "T") in facts_of(part)


def test_code_contains_no_structure():
    code = "# no heading\n| City | Country |\n|--|--|\n| Paris | Spain |\n\n[see](b.md)"
    for fence in ("```", "~~~", "````\n```"):
        text = f"# A\n\n{fence}\n{code}\n{fence.split()[0]}\n\n[it](c.md)"
        part = chunk_file("a.md", text)
        assert facts_of(part) == {("a.md", "heading", "A"), ("a.md", "link", "c.md")}
        assert code in part.documents[0].text
    # "```" is no heading
    assert len(chunk_file("a.md", "# A\n\n```\nx\n```\n---\n").documents) == 1


def test_html_text_and_notebook_cells_contain_no_structure(tmp_path):
    table = "<p>| City | Country |<br>|--|--|<br>| Paris | Spain |</p>"
    (tmp_path / "a.html").write_text(
        f"<p># one</p><p>[x](b.html)</p><p>```</p>{table}<h1>B</h1>"
        "<pre>```\n# two\n[y](b.html)</pre><a href=c.html>c</a>"
    )
    cells = [
        {"cell_type": "code", "source": "x\n```\n# three\n"},
        {"cell_type": "markdown", "source": "# four"},
    ]
    (tmp_path / "n.ipynb").write_text(json.dumps({"cells": cells}))
    (tmp_path / "c.html").write_text("c")
    world = load(tmp_path)
    headings = {what for _, relation, what in world.graph.facts if relation == "heading"}
    links = {fact for fact in world.graph.facts if fact[1] == "link"}
    assert headings == {"B", "four"} and len(world) == 5
    assert links == {("a.html#b", "link", "c.html")}
    assert "```\n# two\n[y](b.html)" in world.page("a.html#b").text


def test_adjacent_tables_stay_separate(tmp_path):
    def table(*rows):
        return "<table>" + "".join(f"<tr>{''.join(row)}</tr>" for row in rows) + "</table>"

    head = [f"<th>{name}</th>" for name in ("City", "Country", "Year", "Ruler")]
    body = [f"<td>{name}</td>" for name in ("Oslo", "Norway", "1861", "Victor")]
    html = table(head[:2], body[:2]) + table(head[2:], body[2:])
    (tmp_path / "a.html").write_text(html)
    named = {fact for fact in load(tmp_path).graph.facts if fact[1] != "table"}
    assert named == {("a.html: Oslo", "Country", "Norway"), ("a.html: 1861", "Ruler", "Victor")}
    joined = "|City|Country|\n|--|--|\n|Oslo|Norway|\n|Year|Ruler|\n|--|--|\n|1861|Victor|\n"
    assert facts_of(chunk_file("b.md", joined)) == set()  # the rows cannot be assigned to a table


def test_link_that_replaces_a_file_is_not_followed(tmp_path, monkeypatch):
    docs, secret = tmp_path / "docs", tmp_path / "secret"
    docs.mkdir()
    secret.write_text("TOP SECRET")
    (docs / "a.md").write_text("fine")
    (docs / "b.md").write_text("fine")
    real = folder._open_regular

    def swapped(name, flags):
        if str(name).endswith("a.md"):
            (docs / "a.md").unlink()
            (docs / "a.md").symlink_to(secret)
        return real(name, flags)

    monkeypatch.setattr(folder, "_open_regular", swapped)
    world = load(docs)
    assert len(world) == 1 and "not readable" in world.changes.skipped["a.md"]


def test_deeply_nested_folders_are_refused(tmp_path, monkeypatch):
    def walk(*_args, **_options):
        raise RecursionError

    # a real tree of 1,000 levels depends on the Python version
    monkeypatch.setattr(os, "walk", walk)
    with pytest.raises(ValueError, match="nested too deeply"):
        load(tmp_path)


def test_index_belongs_to_one_world_and_survives_an_empty_folder(tmp_path):
    index, one, two = tmp_path / "index", tmp_path / "one", tmp_path / "two"
    for place in (one, two):
        place.mkdir()
        (place / "a.md").write_text(f"# {place.name}")
    load(one, index)
    for other in (f"folder:{two}", "tour"):
        with pytest.raises(ValueError, match="one, not of .*one index_path per world"):
            load_world(other, index).search("some words")
    (one / "a.md").rename(tmp_path / "a.md")
    with pytest.raises(ValueError, match="no files"):
        load(one, index)
    (one / "b.md").write_bytes(b"\0")
    with pytest.raises(ValueError, match="no pages.*b.md"):
        load(one, index)
    (one / "b.md").unlink()
    (tmp_path / "a.md").rename(one / "a.md")
    assert load(one, index).find("a.md")


def test_slugs_match_github():
    assert slug("Getting started!") == "getting-started"
    assert slug("C++ & `json.dumps` – Ünder") == "c--jsondumps--ünder"
    assert slug("???") == "section"
