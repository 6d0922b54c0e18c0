"""World `folder`: text encodings, tables and slides."""

import csv
import json
from datetime import datetime

import pytest

pytest.importorskip("openpyxl")
pytest.importorskip("charset_normalizer")

import openpyxl

from drlib.worlds.charsets import decode
from drlib.worlds.sheets import from_delimited, from_json, table
from tests.file_examples import zipped
from tests.folder_examples import load

TEXTS = {
    "cp1252": "Zürich liegt am See. Die Straße führt über die Brücke – „schön“, sagte er; 5 €.",
    "cp1250": "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "cp1251": "Это русский текст. Москва — столица России.",
    "cp1253": "Αυτό είναι ελληνικό κείμενο. Η Αθήνα είναι η πρωτεύουσα.",
    "koi8-r": "Это русский текст. Москва столица России.",
    "shift_jis": "これは日本語の文章です。東京は日本の首都です。",
    "utf-16-le": "これは日本語の文章です。東京は日本の首都です。\n",
    "utf-16-be": "Привет мир, это текст",
}


@pytest.mark.parametrize("charset", TEXTS)
def test_old_encodings_are_decoded(charset, tmp_path):
    data = TEXTS[charset].encode(charset)
    assert decode(data) == TEXTS[charset]
    (tmp_path / "a.txt").write_bytes(data)
    (tmp_path / "b.csv").write_bytes(f"name,text\nfirst,{TEXTS[charset]!r}\n".encode(charset))
    if not charset.startswith("utf-16"):  # not accepted for a web page without a mark
        (tmp_path / "c.html").write_bytes(f"<p>{TEXTS[charset]}</p>".encode(charset))
    world = load(tmp_path)
    assert world.changes.skipped == {}
    texts = [text for (text,) in world.store.rows("SELECT text FROM pages")]
    assert sum(TEXTS[charset].split(",")[0].strip() in text for text in texts) >= 2


def test_ambiguous_encoding_is_refused_with_the_remedy(tmp_path):
    (tmp_path / "good.md").write_text("# Good")
    hebrew = "זהו טקסט בעברית. ירושלים היא הבירה".encode("cp1255")  # also valid as Cyrillic
    for name in ("a.md", "a.html", "a.csv"):
        (tmp_path / name).write_bytes(hebrew)
    (tmp_path / "bytes.txt").write_bytes(bytes(range(128, 256)) * 3)
    skipped = load(tmp_path).changes.skipped
    assert set(skipped) == {"a.md", "a.html", "a.csv", "bytes.txt"}
    assert all("save it as UTF-8" in skipped[f"a.{kind}"] for kind in ("md", "html", "csv"))
    assert "binary bytes" in skipped["bytes.txt"]


def test_declared_encodings_and_short_texts():
    assert decode("é and 語".encode("utf-16")) == "é and 語"
    turkish = "İstanbul Türkiye'nin en kalabalık şehridir, ığdır"
    assert decode(turkish.encode("cp1254")) == turkish  # these bytes are other letters in cp1252
    assert decode(b"\xef\xbb\xbfmark") == "mark" and decode("語".encode("gbk"), "gbk") == "語"
    assert decode(b"Z\xfcrich") == "Zürich" and decode(b"\xe9") == "é" and decode(b"") == ""
    with pytest.raises(ValueError, match="binary bytes"):
        decode(b"\x7fELF\0\1\2" + bytes(range(120, 256)))


def test_naming_column_comes_first():
    lines = table([["year", "name"], [1815, "Ada"], [1791, "Bob"]]).split("\n")
    assert lines == ["| name | year |", "| --- | --- |", "| Ada | 1815 |", "| Bob | 1791 |"]
    by_number = table([["who", "what"], ["Ada", "tea"], ["Ada", "tea"]])
    assert by_number.split("\n")[2:] == ["| 1 | Ada | tea |", "| 2 | Ada | tea |"]
    assert table([["code", "word"], [7, "x"], [8, "x"]]).startswith("| code | word |")
    odd = "| a | a 2 | column 3 |\n| --- | --- | --- |\n| x\\|y |  | 2 |"
    assert table([["a", "a", ""], ["x|y", "", 2.0]]) == odd
    assert table([]) == "" and table([[None], [""]]) == ""


def test_delimiters_and_json():
    for mark in ",;\t|":
        text = f'name{mark}town\nAda{mark}"Lon{mark}don"\nBob{mark}Rome\n'
        shown = from_delimited(text).split("\n")
        assert shown[0] == "| name | town |" and shown[3] == "| Bob | Rome |"
    rows = [{"name": "Ada", "likes": ["tea", "maths"]}, {"name": "Bob", "born": {"y": 1}}]
    assert "| Ada | tea<br>maths |  |" in from_json(json.dumps(rows))
    assert from_json("\n".join(map(json.dumps, rows)), is_lines=True) == from_json(json.dumps(rows))
    both = from_json(json.dumps({"version": 2, "people": rows}))
    assert both.startswith('```\n{\n  "version": 2\n}\n```\n\n## people\n\n| name |')
    assert from_json('{"a": [1, "é"]}') == '```\n{\n  "a": [\n    1,\n    "é"\n  ]\n}\n```'


def slide(*paragraphs, rows=()):
    """Return the XML of a slide with paragraphs and a table."""

    def of(words):
        return f"<a:p><a:r><a:t>{words}</a:t></a:r></a:p>"

    cells = [f"<a:tr>{''.join(f'<a:tc>{of(cell)}</a:tc>' for cell in row)}</a:tr>" for row in rows]
    body = "".join(map(of, paragraphs)) + (f"<a:tbl>{''.join(cells)}</a:tbl>" if rows else "")
    return f'<p:sld xmlns:a="A" xmlns:p="P">{body}</p:sld>'


def test_tables_of_all_types_become_entities_with_facts(tmp_path):
    (tmp_path / "towns.csv").write_text("town,country\nOslo,Norway\nRome,Italy\n")
    (tmp_path / "rivers.tsv").write_text("river\tsea\nPo\tAdriatic, north\n")
    (tmp_path / "hills.json").write_text('[{"hill": "Monte Mario", "long": "' + "x" * 200 + '"}]')
    (tmp_path / "lakes.jsonl").write_text('{"lake": "Garda", "fish": ["eel", "carp"]}\n')
    book = openpyxl.Workbook()
    book.active.title = "Kings"
    for row in (["king", "crowned"], ["Victor", datetime(1861, 3, 17)], ["Umberto", 1878.0]):
        book.active.append(row)
    book.create_sheet("Queens").append(["nobody"])
    book.save(tmp_path / "rulers.xlsx")
    slides = {
        "ppt/slides/slide10.xml": slide("The end"),
        "ppt/slides/slide2.xml": slide("Ports", "of Italy", rows=[["port", "gulf"], ["Pisa", "x"]]),
    }
    (tmp_path / "talk.pptx").write_bytes(zipped([*slides.items()]))
    (tmp_path / "broken.xlsx").write_bytes(b"PK")
    (tmp_path / "broken.json").write_text("{")
    world = load(tmp_path)
    assert set(world.changes.skipped) == {"broken.xlsx", "broken.json"}
    own = ("table", "section", "heading")
    assert {fact for fact in world.graph.facts if fact[1] not in own} == {
        ("towns.csv: Oslo", "country", "Norway"),
        ("towns.csv: Rome", "country", "Italy"),
        ("rivers.tsv: Po", "sea", "Adriatic, north"),
        ("lakes.jsonl: Garda", "fish", "eel"),
        ("lakes.jsonl: Garda", "fish", "carp"),
        ("rulers.xlsx: Victor", "crowned", "1861-03-17"),
        ("rulers.xlsx: Umberto", "crowned", "1878"),
        ("talk.pptx: Pisa", "gulf", "x"),
    }
    # too long for a fact, but kept as text
    assert "x" * 200 in world.page("hills.json: Monte Mario").text
    assert world.search("Italy of")[0].title.startswith(("talk.pptx", "towns.csv"))
    assert world.graph.nodes["towns.csv: Oslo"].kind == "town"
    assert world.find("talk.pptx#slide-2-the-end")


def test_csv_field_limit_is_never_lowered():
    before = csv.field_size_limit()
    assert "| a |" in from_delimited("a,b\n1,2\n")
    assert csv.field_size_limit() == before
    long = "x" * (before + 10)
    assert long in from_delimited(f"a,b\n1,{long}\n")
    csv.field_size_limit(before)
