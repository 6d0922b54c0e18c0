"""Lists of "Key: value" items are facts of their page or section.

Run: python -m pytest tests/test_worlds_lists.py
"""

import pytest

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
