"""Front matter: YAML, TOML and JSON, also if they are not valid."""

import pytest

from drlib.worlds.chunking import chunk_file
from drlib.worlds.front_matter import read_front_matter


def facts_of(source, text):
    """Return the facts of the first page, and its heading."""
    facts = chunk_file(source, text).facts
    front = {(relation, value) for title, relation, value in facts if title == source}
    headings = {value for relation, value in front if relation == "heading"}
    return {fact for fact in front if fact[0] != "heading"}, headings


INVALID = {
    "colon": "title: Rome: a guide",
    "user": "title: @ada",
    "percent": "title: %d files",
    "backtick": "title: `ls` explained",
    "quote inside": "title: \"Rome\" and 'Oslo'",
    "quote not closed": 'title: "Rome',
    "star": "title: *bold*",
    "template": "title: {{ page.name }} now",
    "list not closed": "tags: [rome, oslo",
    "list with colon": "tags: [rome: one, oslo, @x]",
    "tab": "tags:\n\t- rome\n\t- oslo",
    "items": "tags:\n- @rome\n- oslo: x: y",
    "stray line": "title: Rome\nno entry here",
    "no space": "title:Rome",
    "control": "title: Ro\x07me",
    "question": "title: ? - :",
}
EXPECTED = {
    "colon": {("title", "Rome: a guide")},
    "user": {("title", "@ada")},
    "percent": {("title", "%d files")},
    "backtick": {("title", "`ls` explained")},
    "quote inside": {("title", "\"Rome\" and 'Oslo'")},
    "quote not closed": {("title", "Rome")},
    "star": {("title", "*bold*")},
    "template": {("title", "{{ page.name }} now")},
    "list not closed": {("tags", "rome"), ("tags", "oslo")},
    "list with colon": {("tags", "rome: one"), ("tags", "oslo"), ("tags", "@x")},
    "tab": {("tags", "rome"), ("tags", "oslo")},
    "items": {("tags", "@rome"), ("tags", "oslo: x: y")},
    "stray line": {("title", "Rome")},
    "no space": {("title", "Rome")},
    "control": {("title", "Ro\x07me")},
    "question": {("title", "? - :")},
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_yaml_keeps_its_other_facts(name):
    front = f"author: Ada Lovelace\n{INVALID[name]}\nversion: 1.10\n"
    facts, headings = facts_of("a.md", f"---\n{front}---\nThe text.\n")
    assert facts == {("author", "Ada Lovelace"), ("version", "1.10")} | EXPECTED[name]
    assert headings == set()  # the last line is none
    assert chunk_file("a.md", f"---\n{front}---\n# Top\n").documents[0].text.startswith("Top")


def test_lines_that_are_no_fact_stay_in_the_text():
    part = chunk_file("a.md", "---\ntitle: Rome: one\nno entry here\n---\nThe text.\n")
    assert "no entry here" in part.documents[0].text and "The text." in part.documents[0].text


TOML = """title = "Rome"
version = 1.10
number = 1_000
draft = false
date = 2024-05-01
tags = ["one", "two"]
"""


def test_toml_front_matter():
    facts, headings = facts_of("a.md", f"+++\n{TOML}+++\n# Top\n")
    assert headings == {"Top"} and facts == {
        ("title", "Rome"),
        ("version", "1.10"),
        ("number", "1000"),
        ("draft", "false"),
        ("date", "2024-05-01"),
        ("tags", "one"),
        ("tags", "two"),
    }
    nested = chunk_file("a.mdx", f"+++\n{TOML}[extra]\nmood = 'calm'\n+++\nThe text.\n")
    assert "mood = 'calm'" in nested.documents[0].text
    time = facts_of("a.md", "+++ \r\nat = 2024-05-01T07:32:00Z\r\n+++\r\n")[0]
    assert time == {("at", "2024-05-01 07:32:00+00:00")}


@pytest.mark.parametrize(
    "entry, value",
    [("by = Ada L", "Ada L"), ("by = 'Ada", "Ada"), ("by = 01234", "01234"), ("by = \\d", "\\d")],
)
def test_invalid_toml_keeps_its_facts(entry, value):
    facts, _ = facts_of("a.md", f'+++\ntitle = "Rome"\n{entry}\n+++\nThe text.\n')
    assert facts == {("title", "Rome"), ("by", value)}


def test_json_front_matter():
    facts, headings = facts_of(
        "a.md", '{\n  "title": "Rome",\n  "version": 1.10, "tags": ["one", "two"]\n}\n# Top\n'
    )
    assert headings == {"Top"}
    assert facts == {("title", "Rome"), ("version", "1.10"), ("tags", "one"), ("tags", "two")}


@pytest.mark.parametrize(
    "text",
    [
        "---\n\nThe zeppelin flew: far: away.\n\n---\n\nMore.\n",
        "---\nThe zeppelin flew.\nIt was: late: again.\n---\nMore.\n",
        "---\n- one: two: three\n---\nMore.\n",
        "---\nNote: this: is\nprose that goes on\nfor many lines\nand more\n---\nMore.\n",
        "{a: [b}\nMore.\n",
        '{"a": 1} is an object\n',
        "{}\n",
        "+++\nno entry\n+++\nMore.\n",
        "--- x\ntitle: Rome\n---\n",
    ],
)
def test_text_between_rules_is_no_front_matter(text):
    assert read_front_matter(text, ".md") == ({}, "", text)


def test_other_types_have_only_yaml():
    for suffix in (".rst", ".html", ".ipynb"):
        for text in ("+++\ntitle = 'x'\n+++\n", '{"title": "x"}\n'):
            assert read_front_matter(text, suffix) == ({}, "", text)
    assert read_front_matter("---\na: b\n---\nx", ".rst") == ({"a": "b"}, "a: b", "x")
