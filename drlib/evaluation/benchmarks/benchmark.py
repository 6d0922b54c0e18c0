"""Records of benchmark questions, the registry of their readers, and decryption.

A reader converts one row of a benchmark's published file to a `BenchmarkItem`. Files are CSV, TSV,
JSON lines, JSON, Parquet or xlsx; a benchmark of task folders lists its rows itself. Protected
benchmarks are published encrypted so that they do not leak into training data: their rows are
decrypted in memory, and the texts of an item are in no `repr`, error or result file.
"""

import ast
import base64
import csv
import hashlib
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drlib.files import atomic_folder, iter_json_lines, write_atomic
from drlib.registry import Registry
from drlib.task import Task
from drlib.validation import require

_PAGE_ID = re.compile(r"[\w-][\w().+-]{0,99}")
_NOT_IN_NAMES = re.compile(r'[/\\:*?"<>|\x00-\x1f]')
MAX_CELL = 2**27  # characters of a csv cell; documents of a question stand in one
PARQUET_ROWS = 256  # rows in memory at a time; a corpus has long texts


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
        answers: correct answers, the canonical one first; () only for benchmarks that are verified
            by execution.
        meta: further published fields, such as level or topic.
        files: attachments, which exist.
        documents: the question's own pages, of which an offline world can be built.
        protected: published encrypted; question and answers must not be written to any file.
        task: of an environment that verifies the end of the rollout; None: the answer is judged.
    """

    id: str
    question: str = field(repr=False)
    answers: tuple[str, ...] = field(repr=False)
    meta: dict[str, Any] = field(default_factory=dict, repr=False)
    files: tuple[Path, ...] = ()
    documents: tuple[Document, ...] = field(default=(), repr=False)
    protected: bool = False
    task: Task | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Row:
    """A row of a file, with field names in lower case; or a file that is one record.

    Raises:
        BenchmarkError: from every method, with file, row and field.
    """

    path: Path
    number: int  # of the row, from 1, without the header; 0: the file is one record
    fields: dict[str, Any] = field(repr=False)

    def fail(self, name: str, problem: str) -> BenchmarkError:
        """Return the error for a field."""
        where = f"{self.path.name}, row {self.number}"
        if not self.number:  # the file of a task, which has the same name in every task's folder
            where = f"{self.path.parent.name}/{self.path.name}"
        return BenchmarkError(f"{where}, field {name!r}: {problem}")

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
        if isinstance(value, float) and not math.isfinite(value):  # a missing value of a data frame
            raise self.fail(names[0], f"is {value}, not a number")
        text = str(value).strip()
        try:
            text.encode()
        except UnicodeEncodeError:  # half of a surrogate pair: no file could contain it
            raise self.fail(names[0], "contains a character that is not valid Unicode") from None
        return text

    def listed(self, *names: str) -> list:
        """Return a field that is a list, or a list written as JSON or as Python; [] without it."""
        value = self.find(*names)
        if value is None or value == "":
            return []
        value = _parse_literal(value)
        if not isinstance(value, list | tuple):
            raise self.fail(names[0], "is no list")
        return list(value)

    def record(self, name: str) -> dict[str, Any]:
        """Return a field that is a record with named fields, or one written as JSON or Python."""
        value = _parse_literal(self.find(name))
        if not isinstance(value, dict):
            raise self.fail(name, "is missing, or no record with named fields")
        return {str(key): inner for key, inner in value.items()}

    def optional(self, *names: str) -> dict[str, Any]:
        """Return those of the fields that the row has."""
        return {name: self.fields[name] for name in names if self.fields.get(name) is not None}

    def ident(self, *names: str) -> str:
        """Return the id of the row."""
        value = self.find(*names)
        return f"row {self.number}" if value is None or value == "" else str(value)

    def file(self, name: str, relative: str) -> Path:
        """Return the path of a file in the folder of the row's file, which a field names."""
        folder = self.path.parent
        try:
            is_inside = (folder / relative).resolve().is_relative_to(folder.resolve())
            is_file = (folder / relative).is_file()
        except (OSError, ValueError, RuntimeError) as error:  # too long, null byte, loop of links
            raise self.fail(name, f"is no name of a file ({type(error).__name__})") from None
        if not is_inside:
            raise self.fail(name, "lies outside the folder of the file")
        if not is_file:
            raise self.fail(name, f"{relative} is not beside the file: download it too")
        return folder / relative

    def decrypt(self, name: str, key: bytes) -> str:
        """Return a field that is base64 of a text combined with a key by exclusive or."""
        sealed = self.text(name)
        try:
            text = decrypt(sealed, key).strip()
        except ValueError:
            raise self.fail(
                name, "cannot be decrypted: the canary is another one, or the row is damaged"
            ) from None
        if not text:
            raise self.fail(name, "is empty after decryption")
        return text


def _parse_literal(value: Any) -> Any:
    """Return the value that a text contains as JSON or as Python; other values unchanged."""
    for parse in (json.loads, ast.literal_eval) if isinstance(value, str) else ():
        try:
            return parse(value)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            continue
    return value


Reader = Callable[[Row], BenchmarkItem]
PageReader = Callable[[Row], tuple[str, str]]  # row -> (name, Markdown text) of a page


@dataclass(frozen=True)
class Benchmark:
    """A benchmark.

    Attributes:
        read: converts a row.
        judge: the judge of its published protocol (`drlib.rewards.judges.JUDGES`); "" if tasks are
            verified by execution, so that there is no text to compare with.
        rows: lists the rows of its file or folder.
        page: converts a row of its corpus, the documents that all questions share.
    """

    read: Reader
    judge: str
    rows: Callable[[Path], Iterator[Row]]
    page: PageReader | None = None


BENCHMARKS = Registry("benchmark")  # name -> Benchmark


def register_benchmark(
    name: str,
    judge: str,
    rows: Callable[[Path], Iterator[Row]] | None = None,
    page: PageReader | None = None,
) -> Callable[[Reader], Reader]:
    """Register a reader of rows.

    Args:
        judge: name of a judge, or "" (see `Benchmark`).
        rows: default: `iter_rows`.
        page: reader of a row of the corpus, if the benchmark has one.
    """

    def register(read: Reader) -> Reader:
        BENCHMARKS[name] = Benchmark(read, judge, rows or iter_rows, page)
        return read

    return register


def write_documents(items: Iterable[BenchmarkItem], folder: str | Path) -> int:
    """Write the questions' documents as Markdown files, for the world `folder:FOLDER`.

    A document that several questions share is written once; return the number of files.

    Raises:
        ValueError: the items have no documents, are protected, or the folder is not empty.
    """
    items = list(items)
    require(not any(item.protected for item in items), "protected texts are written to no file")
    documents = dict.fromkeys(document for item in items for document in item.documents)
    require(bool(documents), "the questions have no documents of their own")
    taken: set[str] = set()  # in lower case, for file systems that ignore it
    with _new_folder(Path(folder)) as partial:
        for document in documents:
            title = _NOT_IN_NAMES.sub("-", document.title).strip(" .")[:80] or "page"
            names = itertools.chain([title], (f"{title} ({n})" for n in itertools.count(2)))
            name = next(name for name in names if name.lower() not in taken)
            taken.add(name.lower())
            write_atomic(partial / f"{name}.md", f"# {document.title}\n\n{document.text}\n")
    return len(documents)


def write_corpus(name: str, files: Iterable[str | Path], folder: str | Path) -> int:
    """Write the corpus of a benchmark as Markdown files, for the world `folder:FOLDER`.

    Questions are neither read nor written. A row is read and written before the next, so the corpus
    does not have to fit in memory. Return the number of files.

    Args:
        name: key of `BENCHMARKS`.
        files: the published files of the corpus, in the formats of `load_benchmark`.

    Raises:
        ValueError: the benchmark has no corpus, or the folder is not empty.
        BenchmarkError: a missing or unreadable file, or a row that lacks a field or repeats an id.
    """
    read = BENCHMARKS[name].page
    if read is None:
        known = ", ".join(sorted(key for key, kind in BENCHMARKS.items() if kind.page))
        raise ValueError(f"{name} has no corpus; those that have one: {known}")
    taken: set[str] = set()
    with _new_folder(Path(folder)) as partial:
        for file in files:
            for row in iter_rows(Path(file)):
                ident, text = read(row)
                field = "docid" if "docid" in row.fields else "id"
                if not ident.isascii() or not _PAGE_ID.fullmatch(ident):
                    raise row.fail(field, "must consist of letters, digits and _ - . + ( )")
                if ident.lower() in taken:
                    raise row.fail(field, f"{ident!r} occurs twice")
                taken.add(ident.lower())
                write_atomic(partial / f"{ident}.md", text)
        if not taken:
            raise BenchmarkError("the files of the corpus have no rows")
    return len(taken)


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder, which becomes `folder` if the block ends without an error."""
    require(not (folder.exists() and any(folder.iterdir())), f"{folder} is not empty")
    with atomic_folder(folder) as partial:
        yield partial


def load_benchmark(name: str, source: str | Path) -> list[BenchmarkItem]:
    """Load a benchmark from its published file.

    Args:
        name: key of `BENCHMARKS`.
        source: the file (.csv, .tsv, .jsonl, .json, .parquet or .xlsx), or the folder of task
            folders.

    Raises:
        ValueError: unknown benchmark.
        BenchmarkError: a missing or unreadable file, or a row that lacks a field, is empty, cannot
            be decrypted or repeats an id.
    """
    benchmark = BENCHMARKS[name]
    items: dict[str, BenchmarkItem] = {}
    for row in benchmark.rows(Path(source)):
        item = benchmark.read(row)
        if benchmark.judge and not (item.answers and all(map(str.strip, item.answers))):
            raise row.fail("answer", "is empty")
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
        ".parquet": lambda: _iter_parquet(path),
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
            _check_names(path, names)
            yield Row(path, number, dict(zip(names, data.values())))
    except BenchmarkError:
        raise
    except FileNotFoundError:
        raise BenchmarkError(f"{path} does not exist") from None
    except (OSError, ValueError, csv.Error) as error:
        raise BenchmarkError(f"{path} cannot be read: {error}") from error


def _check_names(path: Path, names: Sequence[str]) -> None:
    """Raise BenchmarkError if two fields have one name: one of them would be lost."""
    if len({*names}) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise BenchmarkError(f"{path.name} has several fields named {repeated!r}: rename them")


def _iter_separated(path: Path, separator: str) -> Iterator[dict]:
    csv.field_size_limit(MAX_CELL)
    with open(path, encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, delimiter=separator, strict=True)
        _check_names(path, reader.fieldnames or ())
        for number, row in enumerate(reader, 1):
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


def _iter_parquet(path: Path) -> Iterator[dict]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            _check_names(path, file.schema_arrow.names)
            for batch in file.iter_batches(batch_size=PARQUET_ROWS):
                yield from batch.to_pylist()
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
    header = [str(name or f"column {n}") for n, name in enumerate(rows[0], 1)] if rows else []
    _check_names(path, header)
    full = [row for row in rows[1:] if any(value is not None for value in row)]
    if any(value is not None for row in full for value in row[len(header) :]):
        raise BenchmarkError(f"{path.name} has a row with more cells than the header")
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
