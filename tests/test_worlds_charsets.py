"""Text of wrongly declared, damaged and old encodings.

Run: python -m pytest tests/test_worlds_charsets.py
"""

import pytest

pytest.importorskip("charset_normalizer")
pytest.importorskip("webencodings")
pytest.importorskip("bs4")

from drlib.worlds.charsets import codec, decode
from drlib.worlds.reading import reply_to


@pytest.mark.parametrize(
    "data, text",
    [
        ("Žluťoučký kůň a Größe".encode() + b"\xe9!", "Žluťoučký kůň a Größe\ufffd!"),
        (b"\xff" + "Δοκιμή".encode(), "\ufffdΔοκιμή"),
        ("東京は日本の首都である".encode()[:-1], "東京は日本の首都であ\ufffd"),
        ("żółw ".encode() * 40 + b"\x80", "żółw " * 40 + "\ufffd"),
        ("Москва, Рим".encode() + b"\x92 ok", "Москва, Рим\ufffd ok"),
    ],
)
def test_utf8_with_few_bad_bytes_is_read_as_utf8(data, text):
    assert decode(data) == text


@pytest.mark.parametrize(
    "label, data, text",
    [
        ("iso-8859-1", b"\x93quoted\x94 \x80 5", "“quoted” € 5"),
        ("us-ascii", b"it\x92s caf\xe9", "it’s café"),
        ("latin1", b"caf\xe9 \x96 ouvert", "café – ouvert"),
        ("shift_jis", "①髙島屋㈱".encode("cp932"), "①髙島屋㈱"),
        ("x-sjis", "Ⅲ纊".encode("cp932"), "Ⅲ纊"),
        ("ks_c_5601-1987", "똠방각하".encode("cp949"), "똠방각하"),
        ("gb2312", "朱镕基喆".encode("gbk"), "朱镕基喆"),
        ("iso-8859-9", b"\x84\xddstanbul\x93", "„İstanbul“"),
        ("tis-620", b"\xa1\x93\x94\x85", "ก“”…"),
        ("iso-2022-jp", "日本語".encode("iso2022_jp"), "日本語"),
    ],
)
def test_labels_have_the_meaning_of_the_encoding_standard(label, data, text):
    assert decode(data, label) == text
    page = f'<html><head><meta charset="{label}"></head><body><p>'.encode() + data + b"</p>"
    for order in ([".html", "", 0, True], [".html", label, 0, True]):
        assert text in reply_to(order, page)["text"]


@pytest.mark.parametrize("label", ["iso-8859-1", "shift_jis", "windows-1251", "utf-16", "big5"])
def test_label_that_contradicts_utf8_or_a_mark_loses(label):
    for text in ("Größe: “5 €”", "東京は首都", "plain words"):
        assert decode(text.encode(), label) == text
        assert decode(text.encode("utf-8-sig"), label) == text
        assert decode(text.encode("utf-16"), label) == text
        assert decode(text.encode("utf-32"), label) == text
        page = f'<meta charset="{label}"><p>{text}</p>'
        for data in (page.encode(), page.encode("utf-8-sig"), page.encode("utf-16")):
            assert reply_to([".html", label, 0, True], data)["text"] == text


def test_declared_encoding_tolerates_few_bad_bytes():
    russian = "Москва — столица России. " * 20
    assert decode(russian.encode("cp1251") + b"\x98", "cp1251") == f"{russian}\ufffd"
    japanese = "東京は日本の首都である。" * 20
    assert decode(japanese.encode("euc_jp")[:-1], "euc-jp") == japanese[:-1] + "\ufffd"


def test_codecs_that_give_no_text_are_not_used():
    for label in ("hex", "rot13", "base64", "zlib", "undefined", "no such label", ""):
        assert codec(label) == ""
        assert decode("word é".encode(), label) == "word é"
