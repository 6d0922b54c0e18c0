"""Words that were hyphenated at the end of a line of a PDF."""

import pytest

pytest.importorskip("pypdf")

from drlib.worlds.hyphens import join_hyphenated
from drlib.worlds.reading import reply_to
from tests.file_examples import pdf
from tests.folder_examples import load


def pages(*texts):
    """Create a PDF of pages with one line of text per line."""
    return pdf(*(text.replace("\n", ") Tj 0 -14 Td (") for text in texts))


@pytest.mark.parametrize(
    "text, joined",
    [
        ("an exam-\nple here", "an example\nhere"),
        ("hyphen-\nation, and", "hyphenation,\nand"),
        ("Donau-  \n   schifffahrt", "Donauschifffahrt"),
        ("multi-\nproces-\nsing\nnow", "multiprocessing\nnow"),
        ("exam\u00ad\nple and exam\u2010\nple", "example\nand example"),
        ("слово-\nформа", "словоформа"),
        ("ex\u00e9-\ncution", "ex\u00e9cution"),
        ("INTRO-\nDUCTION", "INTRODUCTION"),
        ("the thous-\nand, a thousand", "the thousand,\na thousand"),
        ("a page ends exam-\n\nple goes on", "a page ends example\n\ngoes on"),
        # the hyphen belongs to the word
        ("COVID-\n19", "COVID-19"),
        ("Anglo-\nSaxon", "Anglo-Saxon"),
        ("state-of-the-\nart", "state-of-the-art"),
        ("long-dis-\ntance, a distance", "long-distance,\na distance"),
        ("well-\nknown is well-known", "well-known\nis well-known"),
        ("by e-\nmail", "by e-mail"),
        ("1990-\n1995", "1990-1995"),
        ("https://a.org/some-\npage", "https://a.org/some-page"),
        # no word
        ("two-\nand three-fold", "two-\nand three-fold"),
        ("a dash -\nand more", "a dash -\nand more"),
        ("an item-\n* another", "an item-\n* another"),
        ("an end-\n\nChapter 2", "an end-\n\nChapter 2"),
        ("the last-", "the last-"),
        ("-\n-\n--\nx-\n", "-\n-\n--\nx-\n"),
        ("", ""),
    ],
)
def test_parts_of_words_are_joined(text, joined):
    assert join_hyphenated(text) == joined


def test_time_is_linear():
    for text in ("a-" * 200_000 + "\nb", "a-\n" * 50_000, "x" * 400_000 + "-\ny", "-\n" * 200_000):
        assert join_hyphenated(text)


def test_words_of_a_pdf_are_found(tmp_path):
    (tmp_path / "a.pdf").write_bytes(pages("The baro-\nmeter fell, and the ther-", "mometer too"))
    (tmp_path / "b.md").write_text("Something else.")
    world = load(tmp_path)
    for word in ("barometer", "thermometer"):
        assert [found.title for found in world.search(word)][:1] == ["a.pdf"]
    reply = reply_to([".pdf", "", 0, False], (tmp_path / "a.pdf").read_bytes())
    assert "barometer" in reply["text"] and "thermometer" in reply["text"]
