"""World `folder`: links by name, and values that name a page or a row."""

import pytest

pytest.importorskip("trafilatura")

from drlib.worlds.chunking import chunk_file
from drlib.worlds.linking import find_definitions, resolve_links
from tests.folder_examples import load


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def links_of(world, title):
    return set(world.graph.values(title, "link"))


@pytest.mark.parametrize(
    "link, target",
    [
        ("[a][b]", "x/b c.md"),
        ("[B][]", "x/b c.md"),
        ("[b]", "x/b c.md"),
        ("[x](<b c.md>)", "x/b c.md"),
        ("[x](<../d.md#e> 'title')", "d.md#e"),
        ("<../d.md>", "d.md"),
        ("[[#Life now]]", "x/a.md#life-now"),
        ("[x](Rome_(city).md)", "x/Rome_(city).md"),
        ("[x](../Rome_(a_(b))_(c).md#past)", "Rome_(a_(b))_(c).md#past"),
        (r"[x](Rome_\(city.md)", "x/Rome_(city.md"),
        (r"[x](Rome_\(city\).md)", "x/Rome_(city).md"),
        ("[x](Rome_%28city%29.md)", "x/Rome_(city).md"),
        ("[x](<Rome (city).md> 'a (b)')", "x/Rome (city).md"),
        ('[x](../d.md "a title (long)")', "d.md"),
        ("[x](../d.md (a title))", "d.md"),
        ("([x](d(1).md))", "x/d(1).md"),
        ("[y][z]\n\n[z]: Rome_(city).md 'title'", "x/Rome_(city).md"),
    ],
)
def test_links_by_path(link, target):
    text = f"see {link} here\n\n[b]: <b c.md> 'title'\n\n## Life now\n"
    part = chunk_file("x/a.md", text)
    assert [value for _, relation, value in part.facts if relation == "link"] == [target]
    assert f"](folder:{target})" in part.documents[0].text


def test_time_for_links_is_linear():
    for start in ("[x](", "[x](" + "(" * 3_000, "[x](" + "\\(" * 3_000, "[x](a (", "[x](a(b"):
        chunk_file("a.md", start * (100_000 // len(start)))


def test_cell_with_parentheses_in_its_link(tmp_path):
    table = "|City|Country|\n|--|--|\n|[Oslo](Oslo_(city).md)|[Norway](no.md)|\n"
    world = load(write(tmp_path, {"a.md": table, "Oslo_(city).md": "# Oslo", "no.md": "# Norway"}))
    assert ("Oslo_(city).md", "Country", "no.md") in world.graph.facts


@pytest.mark.parametrize(
    "text",
    [
        "[c] [a][c] [x] [^1]\n\n[^1]: b.md",
        "<https://a.org/b.md> <me@b.md> [x](http://b.md)",
        "\0[[Note]] [b](b.md)",
        "![[picture.png]] [code](a.py)",
        "[[]] [up](../../out.md)",
        "[x](Rome_(city.md and more",
        "[x](a (b.md) c)",
    ],
)
def test_text_that_is_no_link_is_unchanged(text):
    shown, found = resolve_links("a.md", text, find_definitions(text))
    assert shown == text and found == ()


NOTES = {
    "notes/Alpha.md": "---\naliases: [First letter]\n---\n# The beginning\n\n## Its shape\n\nx\n",
    "zettel/202101010000 Ideas.md": "# Ideas of engines\n",
    "guide/01-intro.md": "# Intro\n",
    "guide/more/index.md": "# More\n",
    "one/same.md": "# One\n",
    "two/same.md": "# Two\n",
}


@pytest.mark.parametrize(
    "link, target",
    [
        ("[[Alpha]]", "notes/Alpha.md"),
        ("[[alpha|shown]]", "notes/Alpha.md"),
        ("[[Alpha.md]]", "notes/Alpha.md"),
        ("[[Alpha#Its shape]]", "notes/Alpha.md#its-shape"),
        ("![[notes/Alpha]]", "notes/Alpha.md"),
        ("[[First letter]]", "notes/Alpha.md"),
        ("[[The beginning]]", "notes/Alpha.md"),
        ("[[202101010000]]", "zettel/202101010000 Ideas.md"),
        ("[[202101010000 Ideas]]", "zettel/202101010000 Ideas.md"),
        ("[x](guide/intro)", "guide/01-intro.md"),
        ("[x](/guide/01-intro)", "guide/01-intro.md"),
        ("[x](guide/more/)", "guide/more/index.md"),
        ("[[one/same]]", "one/same.md"),
        ("[[same]]", None),  # ambiguous
        ("[[Nobody]]", None),
    ],
)
def test_links_by_name(link, target, tmp_path):
    world = load(write(tmp_path, {**NOTES, "start.md": f"See {link}."}))
    found = links_of(world, "start.md")
    assert found == ({target} if target else set())
    if target:
        url = world.page("start.md").text.partition("](")[2].partition(").")[0]
        assert world.page(url).title == target and target in world.links("start.md")


def test_mdx_page_begins_with_its_heading():
    part = chunk_file(
        "a.mdx", "---\ntag: x\n---\nimport X from '@x';\nexport const y = 1;\n\n# A\n\nimport b"
    )
    assert [d.title for d in part.documents] == ["a.mdx"]
    assert part.documents[0].text == "A\n\nimport b"


def test_rst_labels(tmp_path):
    text = (
        ".. _lab:\n\nTop\n===\n\n.. _low one:\n\nLow\n---\n\n:ref:`the top <lab>` :ref:`low one`\n"
    )
    world = load(write(tmp_path, {"a.rst": text, "b.rst": "B\n=\n\n:ref:`low one`, :ref:`none`\n"}))
    assert links_of(world, "a.rst#low") == {"a.rst"} and links_of(world, "b.rst") == {"a.rst#low"}
    assert world.find("a.rst").startswith("a.rst") and ".. _" not in world.page("a.rst").text


def test_names_are_resolved_again_without_reading_unchanged_files(tmp_path, monkeypatch):
    from drlib.worlds import folder

    place, index, read = tmp_path / "docs", tmp_path / "index.sqlite", []
    write(place, {"a.md": "---\nfriend: Bea\n---\n[[Note]]", "b.md": "b", "t.md": "# Bea"})
    real = folder.chunk_file
    monkeypatch.setattr(folder, "chunk_file", lambda *args: read.append(args[0]) or real(*args))

    def now():
        world = load(place, index)
        assert world.version == load(place).version  # equal to a new build
        del read[-len(list(place.rglob("*.md"))) :]
        return links_of(world, "a.md"), set(world.graph.values("a.md", "friend")), world.changes

    assert now()[:2] == (set(), {"t.md"})
    del read[:]
    write(place, {"sub/Note.md": "x", "t.md": "# Somebody else"})
    links, friends, changes = now()
    assert (links, friends) == ({"sub/Note.md"}, {"Bea"}) and read == ["sub/Note.md", "t.md"]
    assert changes[:3] == (["sub/Note.md"], ["t.md"], [])
    write(place, {"other/note.md": "y"})
    assert now()[0] == set()  # ambiguous now
    (place / "sub" / "Note.md").unlink()
    assert now()[0] == {"other/note.md"}
    assert now()[2][:3] == ([], [], [])


ADA = (
    "---\nalias: Countess of Lovelace\nfield: Mathematics\nfriend: '[[Babbage]]'\n---\n"
    "# Ada Lovelace\n"
)
WORLD = {
    "people/ada.md": ADA,
    "people/babbage.md": "# Charles Babbage\n",
    "machines.md": "|Machine|Inventor|Year|\n|--|--|--|\n|Engine One|charles  BABBAGE|1837|\n"
    "|Note G|Countess of Lovelace|1843|\n",
    "born.csv": "name,birth year,city\nAda Lovelace,1815,London\nJohn Doe,1900,Paris\n",
    "cities.csv": "city,country\nLondon,England\nParis,France\n",
    "book.md": "---\nhero: 'born.csv: Ada Lovelace'\n---\n",
    "seine.csv": "river town,river\nParis,Seine\n",
}


def test_rows_pages_and_values_with_one_name_are_merged(tmp_path):
    graph = load(write(tmp_path, WORLD)).graph
    ada, london = "people/ada.md", "cities.csv: London"
    assert graph.values("machines.md: Engine One", "Inventor") == {"people/babbage.md"}
    assert graph.values("machines.md: Note G", "Inventor") == {ada}
    assert graph.values(ada, "city") == {london} and graph.values(ada, "birth year") == {"1815"}
    assert graph.values("book.md", "hero") == {ada}  # by the title of her row
    assert graph.values(ada, "friend") == {"people/babbage.md"}
    assert graph.values(london, "country") == {"England"}  # two hops further than Note G
    assert graph.values("born.csv: Ada Lovelace", "same as") == {ada}
    assert graph.values("born.csv: Ada Lovelace", "city") == set()
    paris = "cities.csv: Paris"
    assert graph.values(paris, "river") == {"Seine"} and graph.values(paris, "country") == {
        "France"
    }
    assert graph.values("seine.csv: Paris", "same as") == {paris}
    assert graph.values("born.csv: John Doe", "city") == {paris}
    assert graph.values(ada, "alias") == {"Countess of Lovelace"}  # its own name is no link
    assert {"Ada Lovelace", "Countess of Lovelace"} <= {*graph.nodes[ada].aliases}


def test_contradicting_rows_stay_separate_and_numbers_name_nothing(tmp_path):
    files = {
        "2020.csv": "town,people\nOslo,700\n",
        "2021.csv": "town,people\nOslo,710\n",
        "codes.csv": "code,of\n1,x\n2,x\n",
        "more.csv": "code,with\n1,y\n2,1\n",
    }
    graph = load(write(tmp_path, files)).graph
    assert graph.values("2020.csv: Oslo", "people") == {"700"}
    assert graph.values("2021.csv: Oslo", "people") == {"710"}
    assert graph.values("2021.csv: Oslo", "same as") == {"2020.csv: Oslo"}
    assert (
        graph.values("more.csv: 2", "with") == {"1"}
        and "same as" not in graph.relations["more.csv: 1"]
    )


def test_ambiguous_name_refers_to_no_page(tmp_path):
    pages = {"x.md": "# Ada", "y.md": "# Ada", "z.md": "---\nby: Ada\n---\n# Z"}
    assert load(write(tmp_path, pages)).graph.values("z.md", "by") == {"Ada"}
