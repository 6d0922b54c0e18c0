"""parse_file: hostile files of each format, misbehaving parsers, random bytes.

Run: python -m pytest tests/test_tools_parse_file_hostile.py
"""

import io
import json
import random
import zipfile
from pathlib import Path

import psutil
import pytest

from drlib.tools import parse_file
from drlib.tools.backends import FAULT_KINDS, ToolFault
from drlib.worlds import reading
from tests.file_examples import (
    BILLION_LAUGHS,
    altered,
    docx,
    fault,
    nested,
    noise,
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


def link_in_zip():
    info = zipfile.ZipInfo("a.txt")
    info.external_attr = 0o120777 << 16
    return zipped([(info, "/etc/passwd")])


def make_encrypted_zip():
    data = bytearray(zipped([("a.txt", "x" * 50)]))
    data[6] |= 1
    data[data.index(b"PK\1\2") + 8] |= 1
    return bytes(data)


def zip_with_false_size(size=10):
    """Return a member that declares `size` bytes and unpacks to 200 MB."""
    data = bytearray(zipped([("a.txt", b"\x41" * 200_000_000)], compresslevel=1))
    for mark, offset in ((b"PK\3\4", 22), (b"PK\1\2", 24)):
        place = data.index(mark) + offset
        data[place : place + 4] = size.to_bytes(4, "little")
    return bytes(data)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: zipped([("a.txt", b"0" * 50_000_000)]), "too_large"),  # ratio
        (lambda: zipped([(f"{i}.txt", "x") for i in range(1_001)]), "too_large"),  # count
        (lambda: nested(2), "too_large"),
        (lambda: zipped([("../a.txt", "x")]), "refused"),
        (lambda: zipped([("/etc/a.txt", "x")]), "refused"),
        (lambda: zipped([("C:\\a.txt", "x")]), "refused"),
        (lambda: zipped([("d\\..\\..\\a.txt", "x")]), "refused"),
        (link_in_zip, "refused"),
        (lambda: zipped([("in.zip", zipped([("../a.txt", "x")]))]), "refused"),
        (lambda: b"PK\3\4 nothing", "malformed"),
        (lambda: zipped([("a.txt", "x")])[:40], "malformed"),
        (make_encrypted_zip, "malformed"),
        (zip_with_false_size, "malformed"),
    ],
    ids=[
        "ratio",
        "count",
        "nesting",
        "dots",
        "absolute",
        "drive",
        "backslashes",
        "link",
        "inner",
        "broken",
        "cut",
        "password",
        "lying",
    ],
)
def test_hostile_zips(reader, make, kind):
    assert fault(reader, "a.zip", make()).kind == kind


def test_archives_of_a_file_share_one_budget(reader):
    inner = zipped([(f"{i}.txt", "x") for i in range(400)])
    assert read(reader, "two.zip", zipped([("a.zip", inner), ("b.zip", inner)]))
    three = zipped([("a.zip", inner), ("b.zip", inner), ("c.zip", inner)])
    assert fault(reader, "three.zip", three).kind == "too_large"
    assert read(reader, "deep.zip", nested(1)).endswith("core")


def test_entities_in_docx_and_xlsx_are_refused(reader):
    bomb = docx(paragraph("&j;"), BILLION_LAUGHS)
    assert fault(reader, "a.docx", bomb).kind == "refused"
    wide = BILLION_LAUGHS.replace("?>", ' encoding="UTF-16"?>', 1) + "<x>&j;</x>"
    hidden = zipped([("word/document.xml", wide.encode("utf-16"))])
    assert fault(reader, "wide.docx", hidden).kind == "refused"
    external = '<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]>'
    assert fault(reader, "b.docx", docx(paragraph("&e;"), external)).kind == "refused"
    for part in ("xl/worksheets/sheet1.xml", "xl/workbook.xml"):

        def change(name, data, part=part):
            return BILLION_LAUGHS.encode() + data.split(b"?>")[-1] if name == part else data

        assert fault(reader, "a.xlsx", altered(xlsx(), change)).kind == "refused"


def test_bombs_in_office_files(reader):
    assert fault(reader, "a.docx", docx("<w:p/>" * 9_000_000)).kind == "too_large"
    assert fault(reader, "no.docx", zipped([("a", "b")])).kind == "malformed"
    assert fault(reader, "no.xlsx", zipped([("a", "b")])).kind == "malformed"

    def far(name, data):
        return data.replace(b'<row r="3"', b'<row r="99999999999"')

    sheet = altered(xlsx(), far)
    assert fault(reader, "far.xlsx", sheet, timeout_s=2.0).kind in ("timeout", "malformed")


@pytest.mark.parametrize("cut", [0, 20, 200, 400, -30])
def test_truncated_pdfs_give_text_or_malformed(reader, cut):
    try:
        assert isinstance(read(reader, "a.pdf", pdf("First", "Second")[: cut or None][:cut]), str)
    except ToolFault as wrong:
        assert wrong.kind == "refused" and wrong.detail.startswith("malformed")


def test_encrypted_pdf_and_lone_surrogates():
    import pypdf

    writer, buffer = pypdf.PdfWriter(io.BytesIO(pdf("secret"))), io.BytesIO()
    writer.encrypt("open", algorithm="RC4-128")
    writer.write(buffer)
    with pytest.raises(ToolFault, match="malformed") as raised:
        parse_file.parse_in_child(".pdf", buffer.getvalue(), 30.0)
    assert "decrypted" in raised.value.detail
    title = "\\376\\377\\330\\000"  # UTF-16 of half a pair
    parsed = parse_file.parse_in_child(".pdf", pdf("x", title=title), 30.0)
    json.dumps(parsed, ensure_ascii=False).encode()


def bad_parser(tmp_path, body):
    """Replace one reader in reading.py to test the limits with a misbehaving parser."""
    source = Path(reading.__file__).read_text()
    old = "def _pdf(data: bytes"
    assert source.count("PARSER_CPU_S = 20") == source.count(old) == 1
    source = source.replace("PARSER_CPU_S = 20", "PARSER_CPU_S = 1")
    new = f"def _pdf(*_):\n    {body}\n\n\ndef _old(data: bytes"
    (tmp_path / "bad.py").write_text(source.replace(old, new))
    return str(tmp_path / "bad.py")


@pytest.mark.parametrize(
    ("body", "timeout_s", "kind"),
    [
        ("import time; time.sleep(60)", 1.0, "timeout"),
        ("\n    while True: pass", 20.0, "too_large"),
        ("return '', str(len(bytes(1536 << 20)))", 20.0, "too_large"),
        ("import ctypes; ctypes.string_at(0)", 20.0, "malformed"),
        ("return _pdf()", 20.0, "too_large"),
        ("raise SystemExit(3)", 20.0, "malformed"),
        ("return '', repr(sorted(os.environ))", 20.0, None),
    ],
    ids=["sleep", "spin", "memory", "crash", "recursion", "exit", "environment"],
)
def test_misbehaving_parser_is_stopped(tmp_path, monkeypatch, body, timeout_s, kind):
    monkeypatch.setattr(reading, "__file__", bad_parser(tmp_path, body))
    monkeypatch.setenv("SERPER_API_KEY", "a secret")
    if kind is None:
        assert "SERPER_API_KEY" not in parse_file.parse_in_child(".pdf", b"", timeout_s)["text"]
        return
    with pytest.raises(ToolFault) as raised:
        parse_file.parse_in_child(".pdf", b"", timeout_s)
    assert raised.value.kind == kind
    assert not [c for c in psutil.Process().children() if "bad.py" in " ".join(c.cmdline())]


def test_random_files_return_typed_results():
    """Run the subprocess code in this process on 10,000 files of all types."""
    rng, kinds = random.Random(4), set()
    suffixes = [(suffix, False) for suffix in reading.READERS]
    suffixes += [(suffix, True) for suffix in reading.OUTLINES]
    for i in range(10_000):
        suffix, outline = suffixes[i % len(suffixes)]
        charset = rng.choice(["", "utf-8", "gbk", "x"])
        reply = reading.reply_to([suffix, charset, 0, outline], noise(rng, suffix))
        json.dumps(reply, ensure_ascii=False).encode()
        if "fault" in reply:
            kind, detail = reply["fault"]
            assert kind in FAULT_KINDS and detail
            kinds.add(kind)
        else:
            assert set(reply) == {"title", "text"}
            assert all(isinstance(part, str) for part in reply.values())
    assert "malformed" in kinds


def test_random_files_in_the_subprocess(reader):
    rng = random.Random(5)
    for i, suffix in enumerate((".pdf", ".docx", ".xlsx", ".zip", ".html") * 2):
        try:
            assert isinstance(read(reader, f"{i}{suffix}", noise(rng, suffix)), str)
        except ToolFault as wrong:
            assert wrong.kind in FAULT_KINDS
