"""World `folder`: unusual contents and unreadable files."""

import os
import random
import socket
import tracemalloc

import pytest

pytest.importorskip("pypdf")
pytest.importorskip("trafilatura")

from drlib.worlds import folder
from drlib.worlds.folder import chunk_file
from tests.file_examples import BILLION_LAUGHS, docx, paragraph, pdf, zipped
from tests.folder_examples import load, mixed_folder


@pytest.fixture
def place(tmp_path):
    return mixed_folder(tmp_path / "docs")


def test_missing_or_empty_folder_error_contains_the_remedy(tmp_path):
    with pytest.raises(ValueError, match="no such folder: pass folder:PATH"):
        load(tmp_path / "none")
    (tmp_path / "a.md").write_text("x")
    with pytest.raises(ValueError, match="no such folder: pass folder:PATH"):
        load(tmp_path / "a.md")
    (tmp_path / "a.md").unlink()
    with pytest.raises(ValueError, match=r"add files of type .*\.md"):
        load(tmp_path)
    (tmp_path / "a.exe").write_bytes(b"MZ")
    with pytest.raises(ValueError, match=r"no pages.*'a.exe', 'no regular file .*\.md"):
        load(tmp_path)


REASONS = {  # reason why a file of `fill` is skipped
    "broken link.md": "links are not followed",
    "leaves.txt": "links are not followed",
    "cycle": "links are not followed",
    "loop.md": "links are not followed",
    "pipe.md": "no regular file",
    "socket.txt": "no regular file",
    ".git": "hidden and",
    "binary.txt": "binary bytes",
    "broken.pdf": "malformed",
    "broken.ipynb": "malformed",
    "strange.ipynb": "malformed",
    "bomb.docx": "too_large",
    "entities.docx": "entities",
    "no.docx": "malformed",
    "picture.png": "a picture",
}


def fill(place, outside):
    """Write unreadable files, and five readable ones with unusual names or contents."""
    (place / "broken link.md").symlink_to(place / "nothing.md")
    (place / "leaves.txt").symlink_to(outside)
    (place / "cycle").symlink_to(place)
    (place / "loop.md").symlink_to(place / "loop.md")
    os.mkfifo(place / "pipe.md")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket.txt")
    (place / "folder.md").mkdir()
    (place / "folder.md" / "inside.md").write_text("inside a folder called like a file")
    (place / ".git").mkdir()
    (place / ".git" / "config.md").write_text("hidden")
    noise = random.Random("bytes-0").randbytes(100)
    (place / "binary.txt").write_bytes(b"\x7fELF\0\1\2" + noise)
    (place / "broken.pdf").write_bytes(pdf("x")[:50])
    (place / "broken.ipynb").write_text('{"cells": [{"cell_type"')
    (place / "strange.ipynb").write_text("[1]")
    (place / "bomb.docx").write_bytes(docx("<w:p/>" * 9_000_000))
    (place / "entities.docx").write_bytes(docx(paragraph("&j;"), BILLION_LAUGHS))
    (place / "no.docx").write_bytes(zipped([("a", "b")]))
    (place / "picture.png").write_bytes(b"\x89PNG")
    (place / "latin.txt").write_bytes("Zürich".encode("latin-1"))
    (place / "wide.md").write_bytes("# Zürich".encode("utf-16"))
    (place / "empty.md").write_bytes(b"")
    with open(os.fsencode(place) + b"/\xff.md", "w") as strange:
        strange.write("x")


def test_unreadable_files_are_reported_and_others_loaded(place, tmp_path, monkeypatch):
    outside = tmp_path / "secret.txt"
    outside.write_text("secret")
    monkeypatch.chdir(place)  # socket names must be short
    fill(place, outside)
    world = load(place)
    skipped = world.changes.skipped
    assert set(skipped) == set(REASONS)
    wrong = {name: skipped[name] for name, reason in REASONS.items() if reason not in skipped[name]}
    assert wrong == {}
    assert world.page("latin.txt").text == world.page("wide.md").text.split("\n")[0] == "Zürich"
    assert world.page("folder.md/inside.md") and world.page("empty.md").text == ""
    assert len(world.changes.added) == 7 + 5 and world.find("guide/intro.md")
    assert world.page("\\udcff.md").text == "x"  # a name that is not UTF-8
    assert "secret" not in str(world.store.rows("SELECT text FROM pages"))


def test_file_above_the_limit_is_not_read(tmp_path):
    (tmp_path / "small.md").write_text("small")
    with open(tmp_path / "huge.txt", "wb") as huge:
        huge.truncate(200_000_000)
    tracemalloc.start()
    world = load(tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert world.changes.skipped == {
        "huge.txt": "200000000 bytes, above the limit of 20000000: split the file"
    }
    assert peak < 20_000_000 and len(world) == 1


def test_large_text_is_shortened_with_a_note(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "MAX_TEXT", 10_000)
    (tmp_path / "a.txt").write_text("a line of text\n" * 2_000)
    texts = [text for (text,) in load(tmp_path).store.rows("SELECT text FROM pages")]
    assert sum(map(len, texts)) < 11_000 and any("19999 characters left out" in t for t in texts)


def test_hostile_markdown_is_parsed_quickly(tmp_path):
    for line in (
        "[",
        "[](",
        "# ",
        "|-",
        "`<",
        "- - ",
        "[a](" + "b" * 800,
        "{#",
        "|--|\n",
        "---\n",
        "a\n---\n",
        "# a\n",
        "|a|b|\n|--|--|\n",
        ":doc:`",
    ):
        for suffix in (".md", ".rst"):
            # quadratic parsing would take minutes
            part = chunk_file(f"a{suffix}", line * (200_000 // len(line)))
            assert part.documents[0].title == f"a{suffix}"


def test_cyclic_links_and_world_without_links(tmp_path):
    (tmp_path / "a.md").write_text("[b](b.md) [a](a.md)")
    (tmp_path / "b.md").write_text("[a](a.md)")
    world = load(tmp_path)
    assert world.links("a.md") == ("b.md", "a.md") and world.links("b.md") == ("a.md",)
    assert set(world.graph.facts) == {("a.md", "link", "b.md"), ("b.md", "link", "a.md")}
    for name in "ab":
        (tmp_path / f"{name}.md").write_text("no link")
    bare = load(tmp_path)
    assert bare.graph is None and bare.search("link")
