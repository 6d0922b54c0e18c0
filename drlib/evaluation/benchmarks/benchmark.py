"""Records of benchmark questions, the registry of their readers, and decryption.

A reader converts one row of a benchmark's published file to a `BenchmarkItem`. Files are CSV, TSV,
JSON lines, JSON, Parquet or xlsx. Protected benchmarks are published encrypted so that they do not
leak into training data: their rows are decrypted in memory, and the texts of an item are in no
`repr`, error or result file.
"""

import ast
import base64
import csv
import hashlib
import itertools
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drlib.files import iter_json_lines, write_atomic
from drlib.registry import Registry
from drlib.validation import require

_NOT_IN_NAMES = re.compile(r'[/\\:*?"<>|\x00-\x1f]')
MAX_CELL = 2**27  # characters of a csv cell; documents of a question stand in one


class BenchmarkError(ValueError):
    """A file or a row cannot be read; the message names file, row and field."""


@dataclass(frozen=True)
class Document:
    """A page that belongs to a question."""

    title: str
    text: str = field(repr=False)


@dataclass(frozen=True)
class BenchmarkItem:
    """A question of a benchmark.

    Attributes:
        id: the file's, or "row N".
        answers: correct answers, the canonical one first.
        meta: further published fields, such as level or topic.
        files: attachments, which exist.
        documents: the question's own pages, of which an offline world can be built.
        protected: published encrypted; question and answers must not be written to any file.
    """

    id: str
    question: str = field(repr=False)
    answers: tuple[str, ...] = field(repr=False)
    meta: dict[str, Any] = field(default_factory=dict, repr=False)
    files: tuple[Path, ...] = ()
    documents: tuple[Document, ...] = field(default=(), repr=False)
    protected: bool = False


@dataclass(frozen=True)
class Row:
    """A row of a file, with field names in lower case.

    Raises:
        BenchmarkError: from every method, with file, row and field.
    """

    path: Path
    number: int  # of the row, from 1, without the header
    fields: dict[str, Any] = field(repr=False)

    def fail(self, name: str, problem: str) -> BenchmarkError:
        """Return the error for a field."""
        return BenchmarkError(f"{self.path.name}, row {self.number}, field {name!r}: {problem}")

    def find(self, *names: str) -> Any:
        """Return the first of the fields that the row has, None without any."""
        return next((self.fields[name] for name in names if name in self.fields), None)

    def text(self, *names: str) -> str:
        """Return a field that is a non-empty text or a number."""
        value = self.find(*names)
        if value is None:
            known = ", ".join(sorted(self.fields)) or "none"
            raise self.fail(names[0], f"missing; the row has: {known}")
        if value == [] or (isinstance(value, str) and not value.strip()):
            raise self.fail(names[0], "is empty")
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise self.fail(names[0], f"is a {type(value).__name__}, not a text")
        return str(value).strip()

    def listed(self, *names: str) -> list:
        """Return a field that is a list, or a list written as JSON or as Python; [] without it."""
        value = self.find(*names)
        if value is None or value == "":
            return []
        if isinstance(value, str):
            for parse in (json.loads, ast.literal_eval):
                try:
                    value = parse(value)
                    break
                except (ValueError, SyntaxError, RecursionError, MemoryError):
                    continue
        if not isinstance(value, list | tuple):
            raise self.fail(names[0], "is no list")
        return list(value)

    def optional(self, *names: str) -> dict[str, Any]:
        """Return those of the fields that the row has."""
        return {name: self.fields[name] for name in names if self.fields.get(name) is not None}

    def ident(self, *names: str) -> str:
        """Return the id of the row."""
        value = self.find(*names)
        return f"row {self.number}" if value is None or value == "" else str(value)

    def decrypt(self, name: str, key: bytes) -> str:
        """Return a field that is base64 of a text combined with a key by exclusive or."""
        sealed = self.text(name)
        try:
            return decrypt(sealed, key)
        except ValueError:
            raise self.fail(
                name, "cannot be decrypted: the canary is another one, or the row is damaged"
            ) from None


Reader = Callable[[Row], BenchmarkItem]


@dataclass(frozen=True)
class Benchmark:
    """A benchmark.

    Attributes:
        read: converts a row.
        judge: the judge of its published protocol (`drlib.rewards.judges.JUDGES`).
    """

    read: Reader
    judge: str


BENCHMARKS = Registry("benchmark")  # name -> Benchmark


def register_benchmark(name: str, judge: str) -> Callable[[Reader], Reader]:
    """Register a reader of rows."""

    def register(read: Reader) -> Reader:
        BENCHMARKS[name] = Benchmark(read, judge)
        return read

    return register


def write_documents(items: Iterable[BenchmarkItem], folder: str | Path) -> int:
    """Write the questions' documents as Markdown files, for the world `folder:FOLDER`.

    A document that several questions share is written once; return the number of files.

    Raises:
        ValueError: the items have no documents, are protected, or the folder is not empty.
    """
    folder = Path(folder)
    items = list(items)
    require(not any(item.protected for item in items), "protected texts are written to no file")
    require(not (folder.exists() and any(folder.iterdir())), f"{folder} is not empty")
    documents = dict.fromkeys(document for item in items for document in item.documents)
    require(bool(documents), "the questions have no documents of their own")
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    taken: set[str] = set()  # in lower case, for file systems that ignore it
    try:
        for document in documents:
            title = _NOT_IN_NAMES.sub("-", document.title).strip(" .")[:80] or "page"
            names = itertools.chain([title], (f"{title} ({n})" for n in itertools.count(2)))
            name = next(name for name in names if name.lower() not in taken)
            taken.add(name.lower())
            write_atomic(partial / f"{name}.md", f"# {document.title}\n\n{document.text}\n")
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return len(documents)


def load_benchmark(name: str, source: str | Path) -> list[BenchmarkItem]:
    """Load a benchmark from its published file.

    Args:
        name: key of `BENCHMARKS`.
        source: the file (.csv, .tsv, .jsonl, .json, .parquet or .xlsx).

    Raises:
        ValueError: unknown benchmark.
        BenchmarkError: a missing or unreadable file, or a row that lacks a field, is empty, cannot
            be decrypted or repeats an id.
    """
    read = BENCHMARKS[name].read
    items: dict[str, BenchmarkItem] = {}
    for row in iter_rows(Path(source)):
        item = read(row)
        if item.id in items:
            raise row.fail("id", f"{item.id!r} occurs twice")
        items[item.id] = item
    if not items:
        raise BenchmarkError(f"{source} has no rows")
    return list(items.values())


def iter_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file.

    Raises:
        BenchmarkError: the file cannot be read, or has another format.
    """
    readers = {
        ".csv": lambda: _iter_separated(path, ","),
        ".tsv": lambda: _iter_separated(path, "\t"),
        ".jsonl": lambda: (data for _, data in iter_json_lines(path)),
        ".json": lambda: _read_json(path),
        ".parquet": lambda: _read_parquet(path),
        ".xlsx": lambda: _read_sheet(path),
    }
    read = readers.get(path.suffix.lower())
    if read is None:
        raise BenchmarkError(f"{path}: the format must be one of {', '.join(readers)}")
    try:
        for number, data in enumerate(read(), 1):
            if not isinstance(data, dict):
                raise BenchmarkError(f"{path.name}, row {number} is no record with named fields")
            names = [str(name).strip().lower() for name in data]
            yield Row(path, number, dict(zip(names, data.values())))
    except BenchmarkError:
        raise
    except FileNotFoundError:
        raise BenchmarkError(f"{path} does not exist") from None
    except (OSError, ValueError, csv.Error) as error:
        raise BenchmarkError(f"{path} cannot be read: {error}") from error


def _iter_separated(path: Path, separator: str) -> Iterator[dict]:
    csv.field_size_limit(MAX_CELL)
    with open(path, encoding="utf-8-sig", newline="") as file:
        for number, row in enumerate(csv.DictReader(file, delimiter=separator, strict=True), 1):
            if None in row or None in row.values():
                raise BenchmarkError(
                    f"{path.name}, row {number} has another number of fields than the header: is "
                    "the file complete?"
                )
            yield row


def _read_json(path: Path) -> list:
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except RecursionError:
        raise BenchmarkError(f"{path} is nested too deeply") from None
    if isinstance(data, dict):  # {"data": [...]}
        data = data.get("data")
    if not isinstance(data, list):
        raise BenchmarkError(f'{path} is no list of records, nor {{"data": [...]}}')
    return data


def _read_parquet(path: Path) -> list[dict]:
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_table(path).to_pylist()
    except pyarrow.ArrowException as error:
        raise BenchmarkError(f"{path} cannot be read: {error}") from error


def _read_sheet(path: Path) -> list[dict]:
    import openpyxl

    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        rows = list(book.worksheets[0].iter_rows(values_only=True))
    except FileNotFoundError:
        raise
    except Exception as error:  # zip, XML and openpyxl raise many kinds
        raise BenchmarkError(f"{path} is no xlsx file: {type(error).__name__}: {error}") from error
    header = [str(name or "") for name in rows[0]] if rows else []
    full = [row for row in rows[1:] if any(value is not None for value in row)]
    return [dict(zip(header, row)) for row in full]


# ---------------------------------------------------------------- encryption


def hashed_key(canary: str) -> bytes:
    """Return the key of BrowseComp: the SHA-256 of the canary."""
    return hashlib.sha256(canary.encode()).digest()


def decrypt(sealed: str, key: bytes) -> str:
    """Return the text (UTF-8) that was combined with the repeated key by exclusive or.

    Args:
        sealed: base64.

    Raises:
        ValueError: not base64, an empty key, or the result is no text.

    Example:
        >>> decrypt("YGBi", bytes([1, 2]))
        'abc'
    """
    require(bool(key), "the key is empty")
    data = base64.b64decode(sealed, validate=True)
    text = bytes(a ^ key[i % len(key)] for i, a in enumerate(data)).decode()
    if not text or any(ord(c) < 32 and c not in "\n\r\t" for c in text):
        raise ValueError("the result is no text")
    return text
