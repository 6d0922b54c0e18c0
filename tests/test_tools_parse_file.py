"""parse_file: formats, encodings, names, and refused files.

Run: python -m pytest tests/test_tools_parse_file.py
"""

import os
import sys

import pytest

from drlib.tools import parse_file
from drlib.worlds import reading
from tests.file_examples import (
    altered,
    docx,
    fault,
    paragraph,
    pdf,
    read,
    reader,
    xlsx,
    zipped,
)

__all__ = ["reader"]  # a fixture
for library in ("pypdf", "trafilatura", "openpyxl"):
    pytest.importorskip(library)


@pytest.mark.parametrize("suffix", [".txt", ".md", ".csv", ".tsv", ".json", ".jsonl", ".TXT"])
def test_plain_text_is_unchanged(reader, suffix):
    assert read(reader, "a" + suffix, "a,b\n1,Zürich\n".encode()) == "a,b\n1,Zürich"


def test_encodings_of_text(reader):
    assert read(reader, "bom.txt", "é".encode("utf-8-sig")) == "é"
    assert read(reader, "wide.txt", "é and 語".encode("utf-16")) == "é and 語"
    assert read(reader, "old.txt", "é".encode("latin-1")) == "é"
    assert (
        parse_file.parse_in_child(".txt", "語".encode("shift_jis"), 1.0, "shift_jis")["text"]
        == "語"
    )
    assert parse_file.parse_in_child(".txt", "語".encode(), 1.0, "no-such-codec")["text"] == "語"
    assert fault(reader, "binary.txt", b"ELF\0\1\2").kind == "malformed"


def test_html_gives_the_article_and_the_title(reader):
    article = "<p>" + "The moon is a satellite of the earth and of nothing else. " * 20 + "</p>"
    page = f"<html><head><title> The\nmoon </title></head><body><nav>Home Login</nav>{article}"
    parsed = parse_file.parse_in_child(".html", page.encode(), 30.0)
    assert parsed["title"] == "The moon" and parsed["text"].startswith("The moon is a satellite")
    assert "Login" not in parsed["text"]


def test_html_without_an_article_falls_back_to_its_visible_text():
    page = b"<title>T</title><script>evil()</script><style>p{}</style><b>7</b><i>x</i>"
    parsed = parse_file.parse_in_child(".html", page, 30.0)
    assert parsed == {"title": "T", "text": "7\nx"}
    assert (
        parse_file.parse_in_child(".htm", "<b>語</b>".encode("euc-jp"), 30.0, "euc-jp")["text"]
        == "語"
    )


def test_pdf_pages_and_title(reader):
    assert read(reader, "a.pdf", pdf("First page", "Second page")) == "First page\n\nSecond page"
    assert parse_file.parse_in_child(".pdf", pdf("x"), 30.0)["title"] == "A report"


def test_docx_paragraphs_tables_and_breaks(reader):
    cell = "<w:tc>{}</w:tc>".format
    table = f"<w:tbl><w:tr>{cell(paragraph('a'))}{cell(paragraph('b') + paragraph('c'))}</w:tr>"
    table += f"<w:tr>{cell(paragraph('d'))}{cell(paragraph('e'))}</w:tr></w:tbl>"
    stops = "<w:p><w:pPr><w:tabs><w:tab/></w:tabs></w:pPr><w:r><w:t>x</w:t><w:tab/><w:br/>"
    stops += "<w:t>y &lt;z</w:t></w:r></w:p>"
    box = f"<w:p><w:r><Choice>{paragraph('box')}</Choice><Fallback>{paragraph('box')}</Fallback>"
    box = box.replace("Choice", "w:Choice").replace("Fallback", "w:Fallback") + "</w:r></w:p>"
    text = read(reader, "a.docx", docx(paragraph("Title") + table + stops + box))
    assert [line for line in text.split("\n") if line] == [
        "Title",
        "a\tb c",
        "d\te",
        "x\t",
        "y <z",
        "box",
    ]


def test_xlsx_values_by_sheet(reader):
    text = read(reader, "a.xlsx", xlsx())
    assert text == "=== Numbers ===\n1\tone\n2.5\t\ttwo\n=== More ===\nlast"
    lie = altered(xlsx(), lambda name, data: data.replace(b'ref="A1:C3"', b'ref="A1:A1"'))
    assert read(reader, "lie.xlsx", lie) == text


def test_zip_reads_known_members_and_lists_others(reader):
    inner = zipped([("deep.txt", "deep")])
    data = zipped(
        [
            ("d/a.txt", "plain"),
            ("b.pdf", pdf("In a PDF")),
            ("c.exe", b"MZ"),
            ("e.docx", docx(paragraph("In a docx"))),
            ("broken.pdf", b"%PDF-nothing"),
            ("inner.zip", inner),
            ("d/", ""),
        ]
    )
    text = read(reader, "a.zip", data)
    for expected in (
        "=== d/a.txt ===\nplain",
        "=== b.pdf ===\nIn a PDF",
        "In a docx",
        "=== c.exe ===\n[type '.exe' is not read]",
        "=== deep.txt ===\ndeep",
        "=== broken.pdf ===\n[not a readable .pdf",
    ):
        assert expected in text


def test_long_texts_keep_head_and_tail(reader, monkeypatch):
    monkeypatch.setattr(reading, "KEPT_CHARS", 10)
    assert read(reader, "a.txt", b"01234" + b"x" * 90 + b"56789") == (
        "01234\n[... 90 characters left out ...]\n56789"
    )
    assert read(reader, "b.txt", b"0123456789") == "0123456789"


@pytest.mark.parametrize(
    "name",
    [
        "../secret.txt",
        "/etc/passwd",
        "x/../../secret.txt",
        "link.txt",
        "linked/secret.txt",
        "a\0.txt",
        "loop",
        "n" * 5000,
        "x/../ok.txt",
        None,
        3,
        ["ok.txt"],
        "..",
        "\ud800/../../secret.txt",
    ],
)
def test_names_outside_the_folder_are_refused(reader, tmp_path, name):
    (tmp_path / "secret.txt").write_text("secret")
    folder = reader._folder
    (folder / "ok.txt").write_text("fine")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "linked").symlink_to(tmp_path)
    (folder / "loop").symlink_to(folder / "loop")
    assert fault(reader, name).kind == "refused"


def test_links_inside_the_folder_are_followed(reader):
    (reader._folder / "ok.txt").write_text("fine")
    (reader._folder / "again.txt").symlink_to("ok.txt")
    assert read(reader, "again.txt") == "fine"


def test_missing_files_folders_pipes_and_types(reader):
    (reader._folder / "d.txt").mkdir()
    os.mkfifo(reader._folder / "pipe.txt")
    for name in ("none.txt", "d.txt", "pipe.txt", "", "\ud800.txt"):
        assert fault(reader, name).kind in ("not_found", "refused")
    for name in ("a.pptx", "a.doc", "a", "a.mp4", "a.exe"):
        wrong = fault(reader, name, b"x")
        assert wrong.kind == "refused" and ".docx" in wrong.detail


def test_large_files_are_not_read(reader, monkeypatch):
    monkeypatch.setattr(parse_file, "MAX_FILE", 100)
    assert fault(reader, "a.txt", b"x" * 101).kind == "too_large"
    assert read(reader, "b.txt", b"x" * 100)


def test_missing_library_error_contains_the_remedy(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pypdf", None)
    monkeypatch.setattr(reading.importlib.util, "find_spec", lambda name: name != "pypdf" or None)
    with pytest.raises(ImportError, match=r'^pypdf missing: pip install "drlib\[docs\]"'):
        parse_file.ParseFile(tmp_path)
    with pytest.raises(FileNotFoundError):
        monkeypatch.undo()
        parse_file.ParseFile(tmp_path / "nowhere")
