"""parse_file: every format made here, hostile files of each, and random bytes as files."""

import io
import json
import os
import random
import sys
import zipfile
from pathlib import Path

import psutil
import pytest

pytest.importorskip("pypdf")
pytest.importorskip("trafilatura")
openpyxl = pytest.importorskip("openpyxl")

from drlib.tools import files  # noqa: E402
from drlib.tools.backends import KINDS, ToolFault  # noqa: E402
from drlib.worlds import reading  # noqa: E402

W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
BILLION_LAUGHS = (
    '<?xml version="1.0"?><!DOCTYPE lolz [<!ENTITY a "ha">'
    + "".join(f'<!ENTITY {chr(98 + i)} "{f"&{chr(97 + i)};" * 10}">' for i in range(9))
    + "]>"
)


@pytest.fixture
def reader(tmp_path):
    (tmp_path / "corpus").mkdir()
    return files.ParseFile(tmp_path / "corpus")


def read(reader, name, data=None, timeout_s=30.0):
    if data is not None:
        (reader._folder / name).write_bytes(data)
    return reader({"file": name}, timeout_s)["text"]


def fault(reader, name, data=None, timeout_s=30.0):
    """What was wrong, as the parser named it; outside it is an answer, whatever it was."""
    with pytest.raises(ToolFault) as raised:
        read(reader, name, data, timeout_s)
    assert raised.value.kind in ("refused", "not_found")
    kind, _, detail = raised.value.detail.partition(": ")
    return ToolFault(kind, detail) if kind in KINDS else raised.value


def zipped(members, **options):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, **options) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return buffer.getvalue()


def pdf(*pages, title="A report"):
    """A small PDF with one line of text a page, written by hand."""
    first = 4
    kids = " ".join(f"{first + 2 * i} 0 R" for i in range(len(pages)))
    bodies = [
        "<</Type/Catalog/Pages 2 0 R>>",
        f"<</Type/Pages/Kids[{kids}]/Count {len(pages)}>>",
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    for i, text in enumerate(pages):
        stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET"
        bodies.append(
            "<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents "
            f"{first + 2 * i + 1} 0 R/Resources<</Font<</F1 3 0 R>>>>>>"
        )
        bodies.append(f"<</Length {len(stream)}>>\nstream\n{stream}\nendstream")
    bodies.append(f"<</Title({title})>>")
    out, places = b"%PDF-1.4\n", []
    for number, body in enumerate(bodies, 1):
        places.append(len(out))
        out += f"{number} 0 obj\n{body}\nendobj\n".encode()
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    tail = f"trailer<</Size {len(bodies) + 1}/Root 1 0 R/Info {len(bodies)} 0 R>>"
    start = len(out)
    head = f"xref\n0 {len(bodies) + 1}\n0000000000 65535 f \n"
    return out + f"{head}{table}{tail}\nstartxref\n{start}\n%%EOF\n".encode()


def docx(body, prolog=""):
    xml = f'{prolog}<w:document xmlns:w="{W}"><w:body>{body}</w:body></w:document>'
    return zipped([("[Content_Types].xml", "<Types/>"), ("word/document.xml", xml)])


def paragraph(text):
    return f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>"


def xlsx(rows=((1, "one"), (None, None), (2.5, None, "two"))):
    book = openpyxl.Workbook()
    book.active.title = "Numbers"
    for row in rows:
        book.active.append(row)
    book.create_sheet("More").append(["last"])
    buffer = io.BytesIO()
    book.save(buffer)
    return buffer.getvalue()


def altered(data, change):
    """The archive `data` with `change(name, bytes)` applied to each member."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return zipped([(n, change(n, archive.read(n))) for n in archive.namelist()])


@pytest.mark.parametrize("suffix", [".txt", ".md", ".csv", ".tsv", ".json", ".jsonl", ".TXT"])
def test_plain_text_comes_back_as_it_is(reader, suffix):
    assert read(reader, "a" + suffix, "a,b\n1,Zürich\n".encode()) == "a,b\n1,Zürich"


def test_encodings_of_text(reader):
    assert read(reader, "bom.txt", "é".encode("utf-8-sig")) == "é"
    assert read(reader, "wide.txt", "é and 語".encode("utf-16")) == "é and 語"
    assert read(reader, "old.txt", "é".encode("latin-1")) == "é"
    assert files.parse(".txt", "語".encode("shift_jis"), 1.0, "shift_jis")["text"] == "語"
    assert files.parse(".txt", "語".encode(), 1.0, "no-such-codec")["text"] == "語"
    assert fault(reader, "binary.txt", b"ELF\0\1\2").kind == "malformed"


def test_html_gives_the_article_and_the_title(reader):
    article = "<p>" + "The moon is a satellite of the earth and of nothing else. " * 20 + "</p>"
    page = f"<html><head><title> The\nmoon </title></head><body><nav>Home Login</nav>{article}"
    parsed = files.parse(".html", page.encode(), 30.0)
    assert parsed["title"] == "The moon" and parsed["text"].startswith("The moon is a satellite")
    assert "Login" not in parsed["text"]


def test_html_without_an_article_falls_back_to_its_visible_text():
    page = b"<title>T</title><script>evil()</script><style>p{}</style><b>7</b><i>x</i>"
    parsed = files.parse(".html", page, 30.0)
    assert parsed == {"title": "T", "text": "7\nx"}
    assert files.parse(".htm", "<b>語</b>".encode("euc-jp"), 30.0, "euc-jp")["text"] == "語"


def test_pdf_pages_and_title(reader):
    assert read(reader, "a.pdf", pdf("First page", "Second page")) == "First page\n\nSecond page"
    assert files.parse(".pdf", pdf("x"), 30.0)["title"] == "A report"


def test_docx_paragraphs_tables_breaks_and_no_repeated_drawings(reader):
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


def test_zip_reads_members_of_all_types_and_names_the_others(reader):
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
    for wanted in (
        "=== d/a.txt ===\nplain",
        "=== b.pdf ===\nIn a PDF",
        "In a docx",
        "=== c.exe ===\n[type '.exe' is not read]",
        "=== deep.txt ===\ndeep",
        "=== broken.pdf ===\n[not a readable .pdf",
    ):
        assert wanted in text


def test_long_texts_keep_head_and_tail_and_say_what_is_missing(reader, monkeypatch):
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
    monkeypatch.setattr(files, "MAX_FILE", 100)
    assert fault(reader, "a.txt", b"x" * 101).kind == "too_large"
    assert read(reader, "b.txt", b"x" * 100)


def test_a_missing_library_is_named_with_its_remedy(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pypdf", None)
    monkeypatch.setattr(reading.importlib.util, "find_spec", lambda name: name != "pypdf" or None)
    with pytest.raises(ImportError, match=r'^pypdf missing: pip install "drlib\[docs\]"'):
        files.ParseFile(tmp_path)
    with pytest.raises(FileNotFoundError):
        monkeypatch.undo()
        files.ParseFile(tmp_path / "nowhere")


def nested(depth):
    data = zipped([("a.txt", "core")])
    for i in range(depth):
        data = zipped([(f"{i}.zip", data)])
    return data


def link_in_zip():
    info = zipfile.ZipInfo("a.txt")
    info.external_attr = 0o120777 << 16
    return zipped([(info, "/etc/passwd")])


def encrypted():
    data = bytearray(zipped([("a.txt", "x" * 50)]))
    data[6] |= 1
    data[data.index(b"PK\1\2") + 8] |= 1
    return bytes(data)


def lying(size=10):
    """A member that says it has `size` bytes and unpacks to 200 MB."""
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
        (encrypted, "malformed"),
        (lying, "malformed"),
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


def test_all_archives_of_a_file_share_one_allowance(reader):
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


def test_a_pdf_with_a_password_and_one_with_lone_surrogates():
    import pypdf

    writer, buffer = pypdf.PdfWriter(io.BytesIO(pdf("secret"))), io.BytesIO()
    writer.encrypt("open", algorithm="RC4-128")
    writer.write(buffer)
    with pytest.raises(ToolFault, match="malformed") as raised:
        files.parse(".pdf", buffer.getvalue(), 30.0)
    assert "decrypted" in raised.value.detail
    title = "\\376\\377\\330\\000"  # UTF-16 of half a pair
    parsed = files.parse(".pdf", pdf("x", title=title), 30.0)
    json.dumps(parsed, ensure_ascii=False).encode()


def bad_parser(tmp_path, body):
    """reading.py with one reader replaced, so that the limits meet a parser that misbehaves."""
    source = Path(reading.__file__).read_text()
    source = source.replace("PARSER_CPU_S = 20", "PARSER_CPU_S = 1")
    old = "def _pdf(data: bytes"
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
def test_a_parser_that_misbehaves_is_ended(tmp_path, monkeypatch, body, timeout_s, kind):
    monkeypatch.setattr(reading, "__file__", bad_parser(tmp_path, body))
    monkeypatch.setenv("SERPER_API_KEY", "a secret")
    if kind is None:
        assert "SERPER_API_KEY" not in files.parse(".pdf", b"", timeout_s)["text"]
        return
    with pytest.raises(ToolFault) as raised:
        files.parse(".pdf", b"", timeout_s)
    assert raised.value.kind == kind
    assert not [c for c in psutil.Process().children() if "bad.py" in " ".join(c.cmdline())]


def noise(rng, suffix):
    """Random bytes, or a real file of the type with some bytes changed."""
    real = {
        ".pdf": pdf("a", "b"),
        ".docx": docx(paragraph("a")),
        ".xlsx": XLSX,
        ".zip": zipped([("a.txt", "a" * 99), ("b.docx", docx(paragraph("a")))]),
        ".html": b"<html><body><table><tr><td>a</td></tr></table><p>b</p></body></html>",
        ".ipynb": NOTEBOOK,
    }
    if suffix not in real or rng.random() < 0.3:
        return rng.randbytes(rng.randrange(300))
    data = bytearray(real[suffix])
    for _ in range(rng.randrange(1, 30)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data[: rng.randrange(1, len(data) + 1)] if rng.random() < 0.2 else data)


XLSX = xlsx()
NOTEBOOK = json.dumps(
    {"cells": [{"cell_type": "markdown", "source": ["# A"]}, {"cell_type": "code", "source": "1"}]}
).encode()


def test_random_bytes_as_files_give_typed_results_only():
    """In this process, which is what the child runs: 10,000 files over all types."""
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
            assert kind in KINDS and detail
            kinds.add(kind)
        else:
            assert set(reply) == {"title", "text"}
            assert all(isinstance(part, str) for part in reply.values())
    assert "malformed" in kinds


def test_random_bytes_through_the_child(reader):
    rng = random.Random(5)
    for i, suffix in enumerate((".pdf", ".docx", ".xlsx", ".zip", ".html") * 2):
        try:
            assert isinstance(read(reader, f"{i}{suffix}", noise(rng, suffix)), str)
        except ToolFault as wrong:
            assert wrong.kind in KINDS
