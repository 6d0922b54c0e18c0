"""Tables and slides as Markdown: separators, line ends, order of slides."""

import pytest

from drlib.worlds.reading import reply_to
from drlib.worlds.sheets import from_delimited, from_json
from tests.file_examples import zipped

TABLE = "| name | town |\n| --- | --- |\n| Ada | London |\n| Bob | Rome |"
A, P, R = "urn:drawing", "urn:presentation", "urn:relationships"


@pytest.mark.parametrize("hint", ["sep=;", "SEP=;", '"sep=;"', "sep=; "])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_separator_line_of_a_csv_file(hint, end):
    rows = [hint, "name;town", '"Ada";"London, the city; of England"', "Bob;Rome"]
    shown = from_delimited(end.join(rows) + end)
    assert shown == TABLE.replace("London", "London, the city; of England")


@pytest.mark.parametrize("mark", ["\t", "|", "^", "~"])
def test_separator_line_names_any_character(mark):
    assert from_delimited(f"sep={mark}\nname{mark}town\nAda{mark}London\nBob{mark}Rome") == TABLE


@pytest.mark.parametrize(
    "text",
    [
        "name,town\rAda,London\rBob,Rome\r",
        "name\ttown\rAda\tLondon\rBob\tRome",
        "name,town\r\rAda,London\rBob,Rome\r\r",
        "name,town\r\r\nAda,London\r\r\nBob,Rome\r\r\n",
        "name,town\rAda,London\nBob,Rome\r\n",
        '"name","town"\r"Ada","London"\r"Bob","Rome"',
    ],
)
def test_line_ends_of_a_csv_file(text):
    assert from_delimited(text) == TABLE


def test_line_end_in_a_quoted_field_and_one_column():
    assert "| Ada | one two |" in from_delimited('name,town\rAda,"one\rtwo"\rBob,Rome\r')
    assert from_delimited("sep,town\nAda,London\n").startswith("| sep | town |")
    assert from_delimited("name\rAda\rBob\r") == "| name |\n| --- |\n| Ada |\n| Bob |"


def test_line_ends_of_json_lines():
    rows = ['{"name": "Ada", "town": "London"}', '{"name": "Bob", "town": "Rome"}']
    for end in ("\n", "\r\n", "\r"):
        assert from_json(end.join(rows) + end, is_lines=True) == TABLE


def slide(*paragraphs):
    """Return the XML of a slide; a line break in a paragraph is a break."""
    runs = [
        "<a:br/>".join(f"<a:r><a:t>{line}</a:t></a:r>" for line in words.split("\n"))
        for words in paragraphs
    ]
    body = "".join(f"<a:p>{run}</a:p>" for run in runs)
    return f'<p:sld xmlns:a="{A}" xmlns:p="{P}">{body}</p:sld>'


def show(slides, order, *, absolute=False, extra=()):
    """Create a presentation of name -> XML, shown in `order`."""
    ids = "".join(f'<p:sldId id="{256 + at}" r:id="r{at}"/>' for at in range(len(order)))
    root = "/ppt/" if absolute else ""
    targets = "".join(
        f'<Relationship Id="r{at}" Type="urn:x/slide" Target="{root}slides/{name}.xml"/>'
        for at, name in enumerate(order)
    )
    members = {
        "ppt/presentation.xml": f'<p:presentation xmlns:p="{P}" xmlns:r="{R}">'
        f"<p:sldMasterIdLst/><p:sldIdLst>{ids}</p:sldIdLst></p:presentation>",
        "ppt/_rels/presentation.xml.rels": f"<Relationships>{targets}</Relationships>",
        **{f"ppt/slides/{name}.xml": xml for name, xml in slides.items()},
    }
    return zipped([*members.items(), *extra])


def headings(data):
    text = reply_to([".pptx", "", 0, True], data)["text"]
    return [line[3:] for line in text.split("\n") if line.startswith("## ")]


SLIDES = {f"slide{n}": slide(f"Title {n}", "text") for n in (1, 2, 3, 10)}


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("order", [[3, 1, 10, 2], [10, 2], [1, 2, 3, 10], [2]])
def test_slides_in_the_order_of_the_presentation(order, absolute):
    data = show(SLIDES, [f"slide{n}" for n in order], absolute=absolute)
    assert headings(data) == [f"Slide {at}: Title {n}" for at, n in enumerate(order, 1)]


def test_slides_of_other_names_and_of_a_file_without_order():
    renamed = {"intro": SLIDES["slide2"], "end": SLIDES["slide1"]}
    assert headings(show(renamed, ["intro", "end"])) == ["Slide 1: Title 2", "Slide 2: Title 1"]
    assert headings(show(SLIDES, ["slide2", "gone"])) == ["Slide 1: Title 2"]
    alone = zipped([(f"ppt/slides/{name}.xml", xml) for name, xml in SLIDES.items()])
    assert [head[-7:] for head in headings(alone)] == ["Title 1", "Title 2", "Title 3", "itle 10"]


def test_lines_and_paragraphs_of_slides_separate_words():
    cells = "".join(
        f"<a:tc>{''.join(f'<a:p><a:r><a:t>{word}</a:t></a:r></a:p>' for word in words)}</a:tc>"
        for words in (["City", "name"], ["Country"], ["Oslo", "fjord"], ["Norway"])
    )
    rows = cells.replace("<a:tc>", "<a:tr><a:tc>", 1).replace("</a:tc><a:tc>", "</a:tc>|<a:tc>")
    one, two, three, four = rows.split("|")
    table = f"<a:tbl>{one}{two}</a:tr><a:tr>{three}{four}</a:tr></a:tbl>"
    xml = slide("Alpha\nBeta").replace("</p:sld>", f"{table}</p:sld>")
    text = reply_to([".pptx", "", 0, True], show({"slide1": xml}, ["slide1"]))["text"]
    assert "Alpha Beta" in text and "| City name | Country |" in text
    assert "| Oslo fjord | Norway |" in text


def test_printer_settings_are_no_document_type():
    settings = b"\2\0\0\0<?xml version='1.0'?><!DOCTYPE plist><plist/>"
    place = "ppt/printerSettings/printerSettings1.bin"
    assert headings(show(SLIDES, ["slide1"], extra=[(place, settings)])) == ["Slide 1: Title 1"]
    for start in (b"", b"\xef\xbb\xbf", b" \n"):
        evil = start + b"<!DOCTYPE a [<!ENTITY b 'c'>]><a/>"
        reply = reply_to([".pptx", "", 0, True], show(SLIDES, ["slide1"], extra=[("x.bin", evil)]))
        assert reply["fault"][0] == "refused"
