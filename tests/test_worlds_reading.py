"""Reading of files: embedded data, office files, PDFs."""

import io
import json
import re
from pathlib import Path
from urllib.parse import quote

import pytest

pytest.importorskip("pypdf")
pytest.importorskip("trafilatura")
pytest.importorskip("openpyxl")

import pypdf

from drlib.worlds.reading import KEPT_CHARS, OUTLINES, drop_data, reply_to
from tests.file_examples import W, pdf, zipped
from tests.folder_examples import load

PICTURE = "iVBORw0KGgoAAAANSUhEUgAA/+AB" * 4_000
WRAPPED = "\n    ".join(PICTURE[at : at + 76] for at in range(0, len(PICTURE), 76))
NARROW = "\r\n".join(PICTURE[at : at + 40] for at in range(0, 4_010, 40))
SVG = f"<svg xmlns='http://www.w3.org/2000/svg'><path d='M0 0 (1)'/>{'<g/>' * 50}</svg>"


def text_of(suffix, data, outline=True):
    reply = reply_to([suffix, "", 0, outline], data)
    assert "fault" not in reply, reply
    return reply["text"]


# ---------------------------------------------------------------------------------- data: URLs

EMBEDDED = {
    "picture.md": f"before ![alt](data:image/png;base64,{PICTURE}) behind",
    "title.md": f'before ![alt](data:image/png;base64,{PICTURE} "alt") behind',
    "angle.md": f"before ![alt](<data:image/jpeg;base64,{PICTURE}>) behind",
    "label.md": f"before ![alt][x] behind\n\n[x]: data:image/gif;base64,{PICTURE}=\n",
    "element.md": f'before <img alt="alt" src="data:image/png;base64,\n    {WRAPPED}="> behind',
    "narrow.md": f'before <img alt="alt" src="data:image/png;base64,{NARROW}"> behind',
    "markup.md": f'before <img alt="alt" src="data:image/svg+xml;utf8,{SVG}"> behind',
    "front.md": f"---\nlogo: data:image/png;base64,{PICTURE}\n---\nbefore alt behind",
    "style.md": f"before alt\n<style>a {{background: url('data:font/woff2;base64,{PICTURE}')}}"
    "</style> behind",
    "percent.mdx": f"before ![alt](data:image/svg+xml,{quote(SVG)}) behind",
    "picture.rst": f"before alt\n\n.. image:: data:image/png;base64,{PICTURE}\n\nbehind",
    "plain.txt": f"before alt DATA:text/plain;charset=utf-8,{'a%20' * 5_000} behind",
    "link.html": f'<p>before <a href="data:text/csv,{"a%2Cb" * 5_000}">alt</a> behind</p>',
    "text.html": f"<p>before alt data:image/png;base64,{PICTURE} behind</p>",
    "table.csv": f"name,picture,last\nbefore alt,data:image/png;base64,{PICTURE},behind\n",
    "rows.json": json.dumps([{"a": "before alt", "b": f"data:;base64,{PICTURE}", "c": "behind"}]),
    "escaped.json": json.dumps(
        {"a": "before alt", "b": f"data:image/png;base64,{PICTURE}", "c": ["behind"]}
    ).replace("/", "\\/"),
    "cell.ipynb": json.dumps(
        {
            "cells": [
                {
                    "cell_type": "markdown",
                    "source": [f"before ![alt](data:image/png;base64,{PICTURE}) behind"],
                }
            ]
        }
    ),
}


@pytest.mark.parametrize("name", EMBEDDED)
def test_embedded_data_is_not_indexed(name, tmp_path):
    (tmp_path / name).write_text(EMBEDDED[name])
    world = load(tmp_path)
    texts = " ".join(text for (text,) in world.store.rows("SELECT text FROM pages"))
    assert len(texts) < 900 and len(world) <= 2
    for word in ("before", "alt", "behind"):
        assert word in texts


@pytest.mark.parametrize("name", ["picture.md", "plain.txt", "table.csv", "escaped.json"])
def test_tools_read_text_around_embedded_data(name):
    suffix = name[name.index(".") :]
    text = text_of(suffix, EMBEDDED[name].encode() + b" " * 9 + b"end" * KEPT_CHARS, outline=False)
    assert PICTURE[:200] not in text and "behind" in text


@pytest.mark.parametrize(
    "text",
    [
        "a short data:,Hello or data:text/html,%3Ch1%3E",
        "![dot](data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA=)",
        "the metadata:image/png;base64," + "iVBORw0KGgo" * 40,
        "some data: " + "prose " * 40 + "(see data:image/png)",
        "https://example.org/" + "a" * 300,
    ],
)
def test_text_about_data_is_kept(text):
    assert drop_data(text) == text


@pytest.mark.parametrize(
    "text", ["data:image/svg+xml,<svg ", "data: ", "data:a/b;base64,\n ", "data:,(("]
)
def test_time_to_drop_data_is_linear(text):
    assert drop_data(text * 30_000)


# -------------------------------------------------------------------------------- Word and PDF


def run(text, properties=""):
    return f"<w:r><w:rPr>{properties}</w:rPr><w:t xml:space='preserve'>{text}</w:t></w:r>"


def block(*runs, properties=""):
    return f"<w:p><w:pPr>{properties}</w:pPr>{''.join(runs)}</w:p>"


def word(*blocks, styles="", place="document"):
    """Create a Word file with styles."""
    kinds = (("officeDocument", f"word/{place}.xml"),), (("styles", "styles.xml"),)
    of_file, of_document = (
        "".join(f'<Relationship Id="{kind}" Type="x/{kind}" Target="{to}"/>' for kind, to in some)
        for some in kinds
    )
    return zipped(
        [
            ("_rels/.rels", f"<Relationships>{of_file}</Relationships>"),
            (
                f"word/_rels/{place}.xml.rels",
                f"<Relationships>{of_document}</Relationships>",
            ),
            (
                f"word/{place}.xml",
                f'<w:document xmlns:w="{W}"><w:body>{"".join(blocks)}</w:body></w:document>',
            ),
            ("word/styles.xml", f'<w:styles xmlns:w="{W}">{styles}</w:styles>'),
        ]
    )


def style(name, properties="", based_on=""):
    base = f'<w:basedOn w:val="{based_on}"/>' if based_on else ""
    return f'<w:style w:styleId="{name}">{base}<w:rPr>{properties}</w:rPr></w:style>'


STYLES = (
    style("Secret", "<w:vanish/>")
    + style("Deeper", based_on="Secret")
    + style("Open", '<w:vanish w:val="0"/>', based_on="Deeper")
    + style("Loop", based_on="Loop")
)


@pytest.mark.parametrize(
    "blocks, text",
    [
        ([block("<w:r><w:t>well</w:t><w:noBreakHyphen/><w:t>known</w:t></w:r>")], "well-known"),
        (
            [block(run("555"), "<w:r><w:noBreakHyphen/></w:r>", run("0199"))],
            "555-0199",
        ),
        ([block("<w:r><w:t>exam</w:t><w:softHyphen/><w:t>ple</w:t></w:r>")], "example"),
        ([block("<w:r><w:t>a</w:t><w:ptab/><w:t>b</w:t></w:r>")], "a\tb"),
        # moved and deleted text
        (
            [
                block(f"<w:moveFrom>{run('moved')}</w:moveFrom>", run("one ")),
                block(f"<w:moveTo>{run('moved')}</w:moveTo>"),
            ],
            "one \nmoved",
        ),
        ([block(run("a"), f"<w:del>{run('gone')}</w:del>", f"<w:ins>{run('b')}</w:ins>")], "ab"),
        # hidden text
        ([block(run("a"), run("secret", "<w:vanish/>"), run("b"))], "ab"),
        ([block(run("a", '<w:vanish w:val="true"/>'), run("b", '<w:vanish w:val="false"/>'))], "b"),
        ([block(run("a"), run("secret", '<w:rStyle w:val="Secret"/>'))], "a"),
        ([block(run("a"), run("secret", '<w:rStyle w:val="Deeper"/>'))], "a"),
        ([block(run("a", '<w:rStyle w:val="Open"/>'), run("b", '<w:rStyle w:val="Loop"/>'))], "ab"),
        (
            [block(run("secret"), properties='<w:pStyle w:val="Secret"/>'), block(run("a"))],
            "a",
        ),
        (
            [
                block(
                    run("secret"),
                    run("a", '<w:vanish w:val="0"/>'),
                    properties='<w:pStyle w:val="Secret"/>',
                )
            ],
            "a",
        ),
        ([block(run("a"), properties="<w:rPr><w:vanish/></w:rPr>")], "a"),  # only its mark
        (
            [
                f"<w:tbl><w:tr><w:trPr><w:hidden/></w:trPr><w:tc>{block(run('no'))}</w:tc></w:tr>"
                f"<w:tr><w:tc>{block(run('a'))}</w:tc></w:tr></w:tbl>"
            ],
            "a",
        ),
    ],
)
def test_text_of_word_files_as_shown(blocks, text):
    for outline in (True, False):
        assert text_of(".docx", word(*blocks, styles=STYLES), outline) == text


def test_word_file_may_name_its_document():
    assert text_of(".docx", word(block(run("a")), place="document2")) == "a"


def encrypted(algorithm, password="", text="The secret of the moon"):
    pytest.importorskip("cryptography")
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(pdf(text)))
    writer.encrypt(password, owner_password="owner", algorithm=algorithm)
    buffer = io.BytesIO()
    writer.write(buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("algorithm", ["AES-128", "AES-256", "AES-256-R5", "RC4-40", "RC4-128"])
def test_pdf_encrypted_with_an_empty_password(algorithm):
    data = encrypted(algorithm)
    for outline in (True, False):
        assert text_of(".pdf", data, outline) == "The secret of the moon"


def test_encrypted_pdf_is_read_by_the_parser_process(tmp_path):
    (tmp_path / "a.pdf").write_bytes(encrypted("AES-256"))
    (tmp_path / "locked.pdf").write_bytes(encrypted("AES-256", "sesame"))
    world = load(tmp_path)
    assert "secret of the moon" in world.page("a.pdf").text
    assert set(world.changes.skipped) == {"locked.pdf"}
    assert "password" in world.changes.skipped["locked.pdf"]


def test_missing_library_of_encrypted_pdfs_is_named(monkeypatch):
    def read(*_args, **_options):
        raise pypdf.errors.DependencyError("cryptography is required")

    data = encrypted("AES-256")
    monkeypatch.setattr(pypdf, "PdfReader", read)
    kind, detail = reply_to([".pdf", "", 0, True], data)["fault"]
    assert kind == "refused" and "cryptography" in detail and "pip install" in detail


def test_documented_types_are_the_types_that_are_read():
    page = Path(__file__).parents[1] / "docs" / "own_documents.md"
    table = page.read_text().partition("## What is kept of a file")[2].partition("\n\nIn all")[0]
    assert {*re.findall(r"`(\.\w+)`", table)} == {*OUTLINES}
