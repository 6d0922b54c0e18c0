"""Generated files of each type for the tests of parsers."""

import io
import json
import zipfile

import pytest

from drlib.tools import parse_file
from drlib.tools.backends import FAULT_KINDS, ToolFault

W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
BILLION_LAUGHS = (
    '<?xml version="1.0"?><!DOCTYPE lolz [<!ENTITY a "ha">'
    + "".join(f'<!ENTITY {chr(98 + i)} "{f"&{chr(97 + i)};" * 10}">' for i in range(9))
    + "]>"
)


@pytest.fixture
def reader(tmp_path):
    (tmp_path / "corpus").mkdir()
    return parse_file.ParseFile(tmp_path / "corpus")


def read(reader, name, data=None, timeout_s=30.0):
    if data is not None:
        (reader._folder / name).write_bytes(data)
    return reader({"file": name}, timeout_s)["text"]


def fault(reader, name, data=None, timeout_s=30.0):
    """Return the fault named by the parser."""
    with pytest.raises(ToolFault) as raised:
        read(reader, name, data, timeout_s)
    assert raised.value.kind in ("refused", "not_found")
    kind, _, detail = raised.value.detail.partition(": ")
    return ToolFault(kind, detail) if kind in FAULT_KINDS else raised.value


def zipped(members, **options):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, **options) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return buffer.getvalue()


def pdf(*pages, title="A report"):
    """Create a small PDF with one line of text per page."""
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
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.title = "Numbers"
    for row in rows:
        book.active.append(row)
    book.create_sheet("More").append(["last"])
    buffer = io.BytesIO()
    book.save(buffer)
    return buffer.getvalue()


def altered(data, change):
    """Apply `change(name, bytes)` to each member of an archive."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return zipped([(n, change(n, archive.read(n))) for n in archive.namelist()])


def nested(depth):
    data = zipped([("a.txt", "core")])
    for i in range(depth):
        data = zipped([(f"{i}.zip", data)])
    return data


XLSX = xlsx()
NOTEBOOK = json.dumps(
    {"cells": [{"cell_type": "markdown", "source": ["# A"]}, {"cell_type": "code", "source": "1"}]}
).encode()


def noise(rng, suffix):
    """Return random bytes, or a real file with some bytes changed."""
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
