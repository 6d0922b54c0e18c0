"""Files that are tables, as Markdown: csv, tsv, json, jsonl, workbooks, and slides with them.

`drlib.worlds.chunking` makes a thing of each row of a clean table, and facts of its cells. So a
table is written there in the same form: one line of column names, all different, and rows of equal
length. What names a thing comes first: the first column whose cells are all there, different, and
hold letters; else the first with different cells; else the number of the row.

JSON is a table where it is a list of objects, or an object of such lists (a section each);
everything else is shown as it is, indented. Left out: formulas, merged cells, notes of slides,
charts.
"""

import csv
import io
import json
import re
import zipfile
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import zip_longest
from xml.etree import ElementTree

from drlib.worlds.outlines import fenced

DELIMITERS = ",;\t|"
SAMPLE = 20_000  # characters that tell the delimiter
HAS_LETTER = re.compile(r"[^\W\d_]")
BETWEEN_VALUES = "<br>"  # of one cell


def from_delimited(text: str, delimiter: str = "") -> str:
    """A table of the text of a csv file; without `delimiter`, that which its first lines have."""
    csv.field_size_limit(max(csv.field_size_limit(), len(text) + 1))  # it holds for the process
    text = text.strip("\r\n")
    if not delimiter:
        try:
            delimiter = csv.Sniffer().sniff(text[:SAMPLE], DELIMITERS).delimiter
        except csv.Error:  # one column, or lines of different length
            counts = {mark: text[:SAMPLE].split("\n")[0].count(mark) for mark in DELIMITERS}
            delimiter = max(DELIMITERS, key=lambda mark: counts[mark])
    return table(csv.reader(io.StringIO(text), delimiter=delimiter))


def from_json(text: str, *, is_lines: bool = False) -> str:
    """Tables of a JSON text, or of one with a JSON text on each line; else the text, indented."""
    lines = [line for line in text.split("\n") if line.strip()] if is_lines else []
    found = [json.loads(line) for line in lines] if is_lines else json.loads(text)
    if _is_table(found):
        return _of_objects(found)
    if isinstance(found, dict) and any(map(_is_table, found.values())):
        rest = {key: value for key, value in found.items() if not _is_table(value)}
        parts = [_block(rest)] if rest else []
        parts += [
            f"## {_flat(key)}\n\n{_of_objects(rows)}"
            for key, rows in found.items()
            if _is_table(rows)
        ]
        return "\n\n".join(parts)
    return _block(found)


def from_sheets(sheets: Iterable[tuple[str, Iterable[Sequence[object]]]]) -> str:
    """A section with a table for each (name, rows) of a workbook."""
    parts = [f"## {_flat(name)}\n\n{table(rows)}" for name, rows in sheets]
    return "\n\n".join(parts)


def from_slides(archive: zipfile.ZipFile) -> str:
    """A section for each slide of a pptx: its title, a line a paragraph, and its tables."""
    names = [name for name in archive.namelist() if re.fullmatch(r"ppt/slides/slide\d+\.xml", name)]
    parts = []
    for number, name in enumerate(sorted(names, key=lambda n: int(re.search(r"\d+", n)[0])), 1):
        root = ElementTree.fromstring(archive.read(name))
        tables = []
        for found in root.iterfind(".//{*}tbl"):
            rows = [
                [_words(cell) for cell in row.iterfind("{*}tc")] for row in found.iterfind("{*}tr")
            ]
            tables.append(table(rows))
            found.clear()
        lines = [_words(part) for part in root.iterfind(".//{*}p")]
        first, *others = [line for line in lines if line] or [""]
        head = f"## Slide {number}: {first}" if first else f"## Slide {number}"
        parts.append("\n\n".join([head, *others, *tables]))
    return "\n\n".join(parts)


def table(rows: Iterable[Sequence[object]]) -> str:
    """Rows, of which the first that is not empty has the columns' names, as a table of Markdown."""
    texts = [[_shown(value) for value in row] for row in rows]
    texts = [row for row in texts if any(row)]
    if not texts:
        return ""
    width = max(map(len, texts))
    head, *body = [[*row, *[""] * (width - len(row))] for row in texts]
    used = [at for at in range(width) if head[at] or any(row[at] for row in body)]
    columns = _different([head[at] or f"column {at + 1}" for at in used])
    body = [[row[at] for at in used] for row in body]
    place = _naming_column(body)
    if place is None:
        columns, place = _different(["row", *columns]), 0
        body = [[str(number), *row] for number, row in enumerate(body, 1)]
    order = [place, *(at for at in range(len(columns)) if at != place)]
    lines = [[columns[at] for at in order], ["---"] * len(order)]
    lines += [[row[at] for at in order] for row in body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _naming_column(body: list[list[str]]) -> int | None:
    """The column whose cells name the rows; None: no column has different cells in all rows."""
    columns = [*zip_longest(*body)]
    different = [
        at for at, cells in enumerate(columns) if all(cells) and len({*cells}) == len(cells)
    ]
    worded = [at for at in different if all(HAS_LETTER.search(cell) for cell in columns[at])]
    return next(iter([*worded, *different]), None)


def _different(names: list[str]) -> list[str]:
    """`names`, those that come again with a number behind them."""
    taken: set[str] = set()
    for at, name in enumerate(names):
        number = 1
        while names[at] in taken:
            number += 1
            names[at] = f"{name} {number}"
        taken.add(names[at])
    return names


def _is_table(found: object) -> bool:
    """Whether it is a list of objects."""
    return isinstance(found, list) and bool(found) and all(isinstance(row, dict) for row in found)


def _of_objects(rows: list[dict]) -> str:
    columns = [*dict.fromkeys(key for row in rows for key in row)]
    return table([columns, *([row.get(key) for key in columns] for row in rows)])


def _block(found: object) -> str:
    return fenced(json.dumps(found, indent=2, ensure_ascii=False))


def _shown(value: object) -> str:
    """A value as a cell: on one line, several behind each other, midnight as a mere date."""
    if isinstance(value, list) and not any(isinstance(part, list | dict) for part in value):
        return BETWEEN_VALUES.join(_shown(part) for part in value)
    if isinstance(value, list | dict):
        value = json.dumps(value, ensure_ascii=False)
    if isinstance(value, datetime) and not (value.hour or value.minute or value.second):
        value = value.date()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "" if value is None else _flat(str(value))


def _flat(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _words(node: ElementTree.Element) -> str:
    return _flat("".join(part.text or "" for part in node.iterfind(".//{*}t")))
