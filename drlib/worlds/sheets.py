"""Tables as Markdown: csv, tsv, json, jsonl, workbooks and slides.

`drlib.worlds.chunking` makes a node of each row of a clean table and facts of its cells. Tables are
written in that form: one line of unique column names, and rows of equal length. The first column
names the row: the first column of unique non-empty cells with letters, else the first with unique
cells, else the row number.

JSON becomes a table if it is a list of objects, or an object of such lists (one section each);
other JSON is shown indented. Not implemented: formulas, merged cells, slide notes, charts.
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

from drlib.worlds.office import main_part, relations
from drlib.worlds.outlines import fenced

DELIMITERS = ",;\t|"
SEPARATOR = re.compile(r"\s*\"?sep=(.)\"?[ \t]*(?:\r\n?|\n)", re.IGNORECASE)  # as Excel writes it
SAMPLE = 20_000  # characters used to detect the delimiter
HAS_LETTER = re.compile(r"[^\W\d_]")
BETWEEN_VALUES = "<br>"  # separator of several values in a cell


def from_delimited(text: str, delimiter: str = "") -> str:
    """Convert a csv text to a table; without `delimiter` it is detected."""
    hint = SEPARATOR.match(text)
    if hint:
        delimiter, text = delimiter or hint[1], text[hint.end() :]
    # the limit is global to the process and never lowered
    limit = max(csv.field_size_limit(), len(text) + 1)
    csv.field_size_limit(limit)
    text = text.strip("\r\n")
    if not delimiter:
        try:
            delimiter = csv.Sniffer().sniff(text[:SAMPLE], DELIMITERS).delimiter
        except csv.Error:  # one column, or rows of unequal length
            line = re.split("[\r\n]", text[:SAMPLE], maxsplit=1)[0]
            counts = {mark: line.count(mark) for mark in DELIMITERS}
            delimiter = max(DELIMITERS, key=lambda mark: counts[mark])
    return table(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))


def from_json(text: str, *, is_lines: bool = False) -> str:
    """Convert JSON or JSON lines to tables, or to indented text if it is no table."""
    lines = [line for line in re.split("[\r\n]", text) if line.strip()] if is_lines else []
    found = [json.loads(line) for line in lines] if is_lines else json.loads(text)
    if _is_table(found):
        return _table_from_objects(found)
    if isinstance(found, dict) and any(map(_is_table, found.values())):
        rest = {key: value for key, value in found.items() if not _is_table(value)}
        parts = [_json_block(rest)] if rest else []
        parts += [
            f"## {_flatten(key)}\n\n{_table_from_objects(rows)}"
            for key, rows in found.items()
            if _is_table(rows)
        ]
        return "\n\n".join(parts)
    return _json_block(found)


def from_sheets(sheets: Iterable[tuple[str, Iterable[Sequence[object]]]]) -> str:
    """Convert the (name, rows) of a workbook to sections with a table each."""
    parts = [f"## {_flatten(name)}\n\n{table(rows)}" for name, rows in sheets]
    return "\n\n".join(parts)


def from_slides(archive: zipfile.ZipFile) -> str:
    """Convert a pptx to sections with title, paragraphs and tables, one per slide."""
    parts = []
    for number, name in enumerate(_slide_names(archive), 1):
        root = ElementTree.fromstring(archive.read(name))
        for copy in root.iterfind(".//{*}Fallback"):
            copy.clear()
        tables = []
        for found in root.iterfind(".//{*}tbl"):
            rows = [
                [_node_text(cell) for cell in row.iterfind("{*}tc")]
                for row in found.iterfind("{*}tr")
            ]
            tables.append(table(rows))
            found.clear()
        lines = [_node_text(part) for part in root.iterfind(".//{*}p")]
        first, *others = [line for line in lines if line] or [""]
        head = f"## Slide {number}: {first}" if first else f"## Slide {number}"
        parts.append("\n\n".join([head, *others, *tables]))
    return "\n\n".join(parts)


def _slide_names(archive: zipfile.ZipFile) -> list[str]:
    """Return the parts of the slides in the order of the presentation, else by number.

    A deleted slide may still be in the file.
    """
    place = main_part(archive, "ppt/presentation.xml")
    targets = relations(archive, place)
    if targets and place in archive.NameToInfo:
        show = ElementTree.fromstring(archive.read(place))
        slides = [
            targets.get(value, ("", ""))[1]
            for slide in show.iterfind("{*}sldIdLst/{*}sldId")
            for name, value in slide.attrib.items()
            if name.endswith("}id")
        ]
        return [name for name in slides if name in archive.NameToInfo]
    names = [name for name in archive.namelist() if re.fullmatch(r"ppt/slides/slide\d+\.xml", name)]
    return sorted(names, key=lambda name: int(re.search(r"\d+", name)[0]))


def table(rows: Iterable[Sequence[object]]) -> str:
    """Format rows as a Markdown table; the first non-empty row contains the column names."""
    texts = [[_format_cell(value) for value in row] for row in rows]
    texts = [row for row in texts if any(row)]
    if not texts:
        return ""
    width = max(map(len, texts))
    head, *body = [[*row, *[""] * (width - len(row))] for row in texts]
    used = [at for at in range(width) if head[at] or any(row[at] for row in body)]
    columns = _make_unique([head[at] or f"column {at + 1}" for at in used])
    body = [[row[at] for at in used] for row in body]
    place = _naming_column(body)
    if place is None:
        columns, place = _make_unique(["row", *columns]), 0
        body = [[str(number), *row] for number, row in enumerate(body, 1)]
    order = [place, *(at for at in range(len(columns)) if at != place)]
    lines = [[columns[at] for at in order], ["---"] * len(order)]
    lines += [[row[at] for at in order] for row in body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _naming_column(body: list[list[str]]) -> int | None:
    """Return the index of the column that names the rows, or None."""
    columns = [*zip_longest(*body)]
    different = [
        at for at, cells in enumerate(columns) if all(cells) and len({*cells}) == len(cells)
    ]
    worded = [at for at in different if all(HAS_LETTER.search(cell) for cell in columns[at])]
    return next(iter([*worded, *different]), None)


def _make_unique(names: list[str]) -> list[str]:
    """Add a number to repeated names."""
    taken: set[str] = set()
    for at, name in enumerate(names):
        number = 1
        while names[at] in taken:
            number += 1
            names[at] = f"{name} {number}"
        taken.add(names[at])
    return names


def _is_table(found: object) -> bool:
    """Return True for a non-empty list of objects."""
    return isinstance(found, list) and bool(found) and all(isinstance(row, dict) for row in found)


def _table_from_objects(rows: list[dict]) -> str:
    columns = [*dict.fromkeys(key for row in rows for key in row)]
    return table([columns, *([row.get(key) for key in columns] for row in rows)])


def _json_block(found: object) -> str:
    return fenced(json.dumps(found, indent=2, ensure_ascii=False))


def _format_cell(value: object) -> str:
    """Format a value as a cell on one line; midnight is shown as a date."""
    if isinstance(value, list) and not any(isinstance(part, list | dict) for part in value):
        return BETWEEN_VALUES.join(_format_cell(part) for part in value)
    if isinstance(value, list | dict):
        value = json.dumps(value, ensure_ascii=False)
    if isinstance(value, datetime) and not (value.hour or value.minute or value.second):
        value = value.date()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "" if value is None else _flatten(str(value))


def _flatten(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _node_text(node: ElementTree.Element) -> str:
    """Return the text of a paragraph or cell; its paragraphs and lines separate words."""
    parts = []
    for part in node.iter():
        tag = part.tag.rpartition("}")[2]
        parts.append((part.text or "") if tag == "t" else " " if tag in ("p", "br") else "")
    return _flatten("".join(parts))
