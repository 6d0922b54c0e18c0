"""Lists of "Key: value" items are facts of their page or section.

Run: python -m pytest tests/test_worlds_lists.py
"""

import pytest

from drlib.questions.phrases import Phrasebook
from drlib.worlds import load_world
from tests.folder_examples import load

OWN = ("heading", "section", "link")


def facts(folder, text, **others):
    (folder / "page.md").write_text(text, encoding="utf-8")
    for name, content in others.items():
        (folder / f"{name}.md").write_text(content, encoding="utf-8")
    found = load(folder).graph.facts
    return {fact for fact in found if fact[1] not in OWN and fact[0].startswith("page.md")}


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ("- Team: Billing\n- Office: Oslo", {("Team", "Billing"), ("Office", "Oslo")}),
        ("* **Lead:** Ada\n* **Founded**: 1997", {("Lead", "Ada"), ("Founded", "1997")}),
        ("+ __Cost__: 5 EUR\n+ __Time:__ 09:30", {("Cost", "5 EUR"), ("Time", "09:30")}),
        ("- **Status:** open", {("Status", "open")}),
        ("- Größe: 3 m\n- 重量: 4 kg", {("Größe", "3 m"), ("重量", "4 kg")}),
        (
            "  - First user group: staff\n  - Path: `a/b`",
            {("First user group", "staff"), ("Path", "a/b")},
        ),
    ],
)
def test_items_are_facts(tmp_path, items, expected):
    found = facts(tmp_path, f"# P\n\nText.\n\n{items}\n\nMore text.\n")
    assert found == {("page.md", *pair) for pair in expected}


@pytest.mark.parametrize(
    "items",
    [
        "- Note: read this first",  # one item, not bold
        "- Team: Billing\n- the second item has no key",
        "- Team: Billing\n- Team: Search",  # a key twice
        "- Fixed: the parser no longer fails on files that end in a tab\n- Added: tests",
        "- see http://a.example: it works\n- Office: Oslo",
        "- -v: verbose\n- -q: quiet",
        "- one two three four five: x\n- Office: Oslo",
        "Team: Billing\nOffice: Oslo",  # no list
        "```\n- Team: Billing\n- Office: Oslo\n```",
        "    - Team: Billing\n    - Office: Oslo",  # code
    ],
)
def test_other_lists_are_text(tmp_path, items):
    assert facts(tmp_path, f"# P\n\n{items}\n") == set()


def test_values_are_links_and_sections_are_subjects(tmp_path):
    text = "# P\n\n## Office\n\n- Lead: [Ada](ada.md)\n- Team: [[Search]]\n- Of: x\n"
    found = facts(tmp_path, text, ada="# Ada\n", search="# Search\n")
    assert ("page.md#office", "Lead", "ada.md") in found
    assert ("page.md#office", "Team", "search.md") in found


def test_sections_about_the_page_have_its_facts(tmp_path):
    text = "# P\n\n## Key facts\n\n- Lead: Ada\n- Team: Search\n"
    assert ("page.md", "Lead", "Ada") in facts(tmp_path, text)


def test_long_lists_take_linear_time(tmp_path):
    lines = [f"- Key {n}: {'a ' * 3}" for n in range(20_000)] + ["- " + "a" * 50_000]
    assert facts(tmp_path, "# P\n\n" + "\n".join(lines)) == set()


@pytest.mark.parametrize(
    ("header", "heading", "file", "kind"),
    [
        ("Boat", "Offices", "page.md", "boat"),
        ("Name", "Offices", "page.md", "office"),
        ("Title", "Our lighthouses", "page.md", "lighthouse"),
        ("ID", "List of companies", "page.md", "company"),
        ("Full name", "Glasses", "page.md", "glass"),
        ("Name", "Branches", "page.md", "branch"),
        ("Name", "Overview", "harbour-boats.md", "harbour boat"),
        ("Name", "Staff", "people.md", "table row"),
        ("Page", "Pages", "status.md", "table row"),
        ("Key", "Everything that we know about boats", "class.md", "table row"),
    ],
)
def test_generic_headers_are_no_kinds(tmp_path, header, heading, file, kind):
    rows = "".join(f"| R{n}x | c{n} |\n" for n in range(3))
    (tmp_path / file).write_text(f"# {heading}\n\n| {header} | Colour |\n|---|---|\n{rows}")
    nodes = load(tmp_path).graph.nodes.values()
    assert {node.kind for node in nodes if node.aliases == ("R1x",)} == {kind}


def table(*rows):
    head, *others = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *others))


def nodes(tmp_path, **pages):
    for name, text in pages.items():
        suffix = "" if "." in name else ".md"
        (tmp_path / f"{name.replace('__', '.')}{suffix}").write_text(text)
    graph = load_world(f"folder:{tmp_path}").graph
    return graph, {node.aliases[0]: node for node in graph.nodes.values() if node.aliases}


def test_a_table_of_properties_describes_its_page(tmp_path):
    text = table(["Property", "Value"], ["Weight", "92 g"], ["Made in", "Obrenz"])
    found = facts(tmp_path, f"# Lamp\n\n## Specifications\n\n{text}\n")
    assert {("page.md", "Weight", "92 g"), ("page.md", "Made in", "Obrenz")} <= found
    assert not any(relation == "table" for _, relation, _ in found)


def test_a_table_of_properties_of_several_things_is_turned(tmp_path):
    text = table(["Property", "Loop", "Counter"], ["Length", "2 km", "9 km"], ["Price", "3", "4"])
    graph, by_name = nodes(tmp_path, page=f"# Detection\n\n{text}\n")
    assert graph.values(by_name["Loop"].title, "Length") == {"2 km"}
    assert graph.values(by_name["Counter"].title, "Price") == {"4"}
    assert "Length" not in by_name


def test_a_later_column_names_the_rows_after_a_number_or_an_author(tmp_path):
    prices = table(["SKU", "Product", "Price"], ["K-1", "Faro lamp", "3"], ["K-2", "Torch", "4"])
    books = table(["Author", "Title", "Year"], ["Ada Ost", "Ice Notes", "1987"])
    graph, by_name = nodes(tmp_path, prices=f"# Prices\n\n{prices}\n", books=f"# B\n\n{books}\n")
    assert graph.values(by_name["Faro lamp"].title, "SKU") == {"K-1"}
    assert by_name["Faro lamp"].kind == "product" and by_name["Ice Notes"].kind == "book"
    assert graph.values(by_name["Ice Notes"].title, "Author") == {"Ada Ost"}


def test_rows_with_names_of_persons_are_persons(tmp_path):
    staff = table(["Name", "Desk"], ["Ada Brant", "1"], ["Kim van Ost", "2"])
    rooms = table(["Name", "Desk"], ["Aske", "1"], ["Red room", "2"])
    _, by_name = nodes(tmp_path, a=f"# All\n\n{staff}\n", b=f"# Other\n\n{rooms}\n")
    assert by_name["Ada Brant"].kind == "person" and by_name["Aske"].kind == "table row"


def test_the_first_line_names_a_plain_text(tmp_path):
    (tmp_path / "a.txt").write_text("The ferry at Ness\n\nIt crossed the river.\n")
    (tmp_path / "b.txt").write_text("It crossed the river.\nAnd came back.\n")
    graph, _ = nodes(tmp_path, c="# C\n\nSee [a](a.txt) and [b](b.txt).\n")
    assert graph.nodes["a.txt"].aliases == ("The ferry at Ness",)
    assert graph.nodes["b.txt"].aliases == ()


def test_the_name_of_a_site_is_no_part_of_a_name(tmp_path):
    pages = {
        f"p{n}": f"# Acme: {name}\n\nText.\n" for n, name in enumerate(("Lamp", "Bell", "Hub"))
    }
    prices = table(["Product", "Price"], ["Lamp", "3"], ["Bell", "4"])
    graph, _ = nodes(tmp_path, **pages, prices=f"# Prices\n\n{prices}\n")
    assert Phrasebook(graph, "folder").display("p0.md") == "Lamp"
    assert graph.values("p0.md", "Price") == {"3"}  # the row is the page


def test_columns_and_keys_that_differ_in_spelling_are_one_relation(tmp_path):
    prices = table(["Product", "item_no"], ["Lamp", "K-1"])
    lamp = "---\nItem number: K-1\n---\n# Lamp\n"
    graph, _ = nodes(tmp_path, lamp=lamp, prices=f"# Prices\n\n{prices}\n")
    relations = {relation for _, relation, value in graph.facts if value == "K-1"}
    assert relations == {"Item number"}
