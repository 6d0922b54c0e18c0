"""World `folder`: chunks, links, tables and front matter.

Unreadable files are in test_worlds_folder_faults.py, triples of a model in test_worlds_triples.py.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("pypdf")
pytest.importorskip("trafilatura")

from drlib.worlds import folder
from drlib.worlds.chunking import CHUNK, chunk_file
from tests.folder_examples import API, INTRO, facts_of, load, mixed_folder


@pytest.fixture
def place(tmp_path):
    return mixed_folder(tmp_path / "docs")


def test_chunks_links_tables_and_front_matter_of_markdown():
    part = chunk_file("guide/intro.md", INTRO)
    first, install, details, again = (
        "guide/intro.md",
        "guide/intro.md#install-now",
        "guide/intro.md#details",
        "guide/intro.md#install-now-1",
    )
    rows = [f"{install}: Oslo", f"{install}: Rome"]
    assert [d.title for d in part.documents] == [first, install, *rows, details, again]
    kinds = {node.title: node.kind for node in part.nodes}
    assert kinds[first] == "page" and kinds[again] == "section" and kinds[rows[0]] == "city"
    assert facts_of(part) == {
        (first, "tags", "alpha"),
        (first, "tags", "beta"),
        (first, "author", "Ada"),
        (first, "part", "a series"),
        (first, "link field", "own name"),
        (first, "heading", "Intro"),
        (install, "heading", "Install now!"),
        (details, "heading", "Details"),
        (again, "heading", "Install now!"),
        (first, "section", install),
        (install, "section", details),
        (first, "section", again),
        (first, "link", "api.rst#usage"),
        (install, "link", "guide/it aly.html"),
        (rows[0], "table", install),
        (rows[1], "table", install),
        (rows[0], "Country", "Norway"),
        (rows[1], "Country", "guide/it aly.html"),
        (rows[1], "Notes", "a | b"),
    }
    assert "[usage](folder:api.rst#usage)" in part.documents[0].text
    assert "[the web](https://example.org/a.md)" in part.documents[0].text
    # front matter that is not fully converted to facts is kept as a code block
    assert "nested: {a: 1}" in part.documents[0].text
    assert "author" not in chunk_file("a.md", "---\nauthor: Ada\n---\n# A").documents[0].text


def test_sections_and_links_of_rst():
    part = chunk_file("api.rst", API)
    assert [d.title for d in part.documents] == [
        "api.rst",
        "api.rst#usage",
        "api.rst#details",
        "api.rst#other",
    ]
    assert facts_of(part) == {
        ("api.rst", "heading", "API"),
        ("api.rst#usage", "heading", "Usage"),
        ("api.rst#details", "heading", "Details"),
        ("api.rst#other", "heading", "Other"),
        ("api.rst", "section", "api.rst#usage"),
        ("api.rst#usage", "section", "api.rst#details"),
        ("api.rst", "section", "api.rst#other"),
        ("api.rst", "link", "guide/intro.rst"),
        ("api.rst", "link", "guide/intro.md"),
    }
    assert "Indented\n    --------" in part.documents[1].text


def test_all_file_types_are_searchable(place):
    world = load(place)
    assert world.changes.skipped == {} and len(world.changes.added) == 7
    italy = "guide/it aly.html"
    assert world.find(f"folder:{italy}#HISTORY") == f"{italy}#history"
    assert world.links(italy)[0] == "guide/intro.md" and f"{italy}#history" in world.links(italy)
    text = world.page(f"{italy}#history").text
    assert "evil" not in text and "# code, no heading" in text
    graph = world.graph
    assert graph.values(f"{italy}#history: 1861", "Ruler") == {"Victor"}
    assert graph.values(f"{italy}#history", "heading") == {"History"}
    assert graph.values(italy, "link of") >= {"guide/study.ipynb", "guide/intro.md#install-now"}
    assert graph.values("guide/intro.md", "link of") == {"api.rst", italy}
    assert world.search("tungsten")[0].title == "memo.docx"
    assert world.search("second page")[0].title == "paper.pdf"
    assert world.page("plain.txt").text == "# no heading\n[no link](api.rst)"
    assert world.search("Umberto", 1)[0].title.startswith(f"{italy}#history")
    both = graph.values("api.rst#usage", "link of") & graph.values(italy, "link of")
    assert both == set()  # the intersection behind "the page that links to both"
    assert graph.values("guide/intro.md", "link of") & graph.values(
        "guide/intro.rst", "link of"
    ) == {"api.rst"}


def test_long_sections_are_split_at_line_ends_without_loss():
    rng = random.Random("lines-0")
    lines = ["x" * rng.randrange(1, 300) for _ in range(200)]
    part = chunk_file("a.txt", "\n".join(lines))
    assert [d.title for d in part.documents[:3]] == ["a.txt", "a.txt (2)", "a.txt (3)"]
    *cut, last = part.documents
    texts = []
    for number, document in enumerate(cut, 2):
        text, _, more = document.text.rpartition("\n\n")
        assert more == f"Continues at [a.txt ({number})](folder:a.txt ({number}))."
        assert document.links == (f"a.txt ({number})",)
        texts.append(text)
    assert "\n".join([*texts, last.text]).split("\n") == lines and last.links == ()
    assert all(len(text) <= CHUNK for text in [*texts, last.text])
    one = chunk_file("b.md", "# B\n" + "y" * (3 * CHUNK - 1))
    texts = [d.text.split("\n\nContinues at ")[0] for d in one.documents]
    assert [*map(len, texts)] == [CHUNK + 3, CHUNK + 3, CHUNK + 2]  # "B" and an empty line
    assert {d.text[:3] for d in one.documents} == {"B\n\n"}


@pytest.mark.parametrize(
    "table",
    [
        "| a | b |\n|---|---|\n| 1 | 2 |\n| 1 | 3 |",  # two rows of one name
        "| a | a |\n|---|---|\n| 1 | 2 |",  # two columns of one name
        "| a |   |\n|---|---|\n| 1 | 2 |",
        "| a | b |\n|---|---|\n| 1 | 2 | 3 |",
        "| a | b |\n|---|---|\n|   | 2 |",
        "| a |\n|---|\n| 1 |",
        "| a | b |\n| 1 | 2 |\n| 3 | 4 |",
        "| a | b |\n|---|---|\n| 1 | " + "long " * 30 + " |",
        "| a | b |\n|---|---|",
    ],
)
def test_unclean_table_is_text_only(table):
    part = chunk_file("a.md", table)
    assert facts_of(part) == set() and [d.text for d in part.documents] == [table]


def test_column_name_is_never_an_inverse():
    table = "| City | capital of | x: y of |\n|--|--|--|\n| Oslo | Norway | z |"
    assert facts_of(chunk_file("a.md", table)) == {
        ("a.md: Oslo", "table", "a.md"),
        ("a.md: Oslo", "capital", "Norway"),
        ("a.md: Oslo", "x y", "z"),
    }


@pytest.mark.parametrize(
    "front",
    [
        "a: [",
        "- 1",
        "just text",
        "a: 2026-99-99",
        "a: " + "9" * 5000,
        'a: "\\ud800"',
        "a: &x [1]\nb: [*x, *x]",
        "{}",
    ],
)
def test_invalid_front_matter_is_text(front, tmp_path):
    (tmp_path / "a.md").write_text(f"---\n{front}\n---\n# A\n\ntext\n")
    world = load(tmp_path)
    assert world.find("a.md") and world.changes.skipped == {}


def test_update_reads_only_changed_files_and_equals_a_rebuild(place, tmp_path, monkeypatch):
    index, read = tmp_path / "index.sqlite", []
    real = folder.chunk_file
    monkeypatch.setattr(folder, "chunk_file", lambda *args: read.append(args[0]) or real(*args))
    first = load(place, index)
    assert len(read) == 7
    again = load(place, index)
    assert len(read) == 7 and again.changes[:3] == ([], [], []) and again.version == first.version
    intro = place / "guide" / "intro.md"
    intro.write_text(INTRO.replace("Install now!", "Set up"))
    (place / "plain.txt").unlink()
    (place / "new.md").write_text("A [link](guide/intro.md#set-up)")
    third = load(place, index)
    assert read[7:] == ["new.md", "guide/intro.md"]
    assert third.changes[:3] == (["new.md"], ["guide/intro.md"], ["plain.txt"])
    fresh = load(place)
    assert third.version == fresh.version != first.version
    assert third.graph.version == fresh.graph.version
    assert third.find("guide/intro.md#install-now") is None
    assert third.links("new.md") == ("guide/intro.md#set-up",)


def test_files_and_folders_without_permission_are_reported():
    """Run as another user in a fork, because root can read everything."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o755)
        (place / "a.md").write_text("fine")
        (place / "plain.txt").touch(0o000)
        (place / "guide").mkdir(0o000)
        if not (child := os.fork()):
            try:
                if os.geteuid() == 0:
                    os.setuid(65534)
                skipped = load(place).changes.skipped
                os._exit(set(skipped) != {"guide", "plain.txt"} or "denied" not in str(skipped))
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_folder_is_not_written_to(place, tmp_path):
    def state():
        return {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in place.rglob("*")}

    before = state()
    load(place)
    load(place, tmp_path / "elsewhere" / "index.sqlite")
    assert state() == before


def test_killed_build_keeps_the_old_state(place, tmp_path):
    index = tmp_path / "index.sqlite"
    before = load(place, index).version
    for i in range(3_000):
        (place / f"more{i}.md").write_text(f"# Number {i}\n\n[next](more{i + 1}.md)\n")
    program = (
        "import sys; from drlib.worlds import folder; real = folder.chunk_file\n"
        "def chunks(*a):\n  print(a[0], flush=True); return real(*a)\n"
        "folder.chunk_file = chunks; folder.load(sys.argv[1], sys.argv[2])"
    )
    child = subprocess.Popen([sys.executable, "-c", program, place, index], stdout=subprocess.PIPE)
    for _ in range(300):
        child.stdout.readline()
    child.send_signal(signal.SIGKILL)
    child.communicate()
    for i in range(3_000):
        (place / f"more{i}.md").unlink()
    world = load(place, index)
    assert world.version == before and world.changes[:3] == ([], [], [])


def test_world_is_independent_of_the_hash_seed(place):
    program = (
        "import sys; from drlib.worlds import folder; w = folder.load(sys.argv[1])\n"
        "print(w.version, w.graph.version, [h.title for h in w.search('text page')])"
    )
    outputs = set()
    for seed in ("0", "77"):
        environment, command = {**os.environ, "PYTHONHASHSEED": seed}, [sys.executable, "-c"]
        done = subprocess.run([*command, program, place], env=environment, capture_output=True)
        outputs.add(done.stdout)
    assert len(outputs) == 1 and b"" not in outputs
