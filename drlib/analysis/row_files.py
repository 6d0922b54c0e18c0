"""Rows of rollout files: JSON lines, JSON documents and Parquet, compressed or not.

JSON lines and Parquet are streamed. A JSON document (an array, or pretty-printed objects) must fit
in memory. The encoding (UTF-8, UTF-16 or UTF-32) is detected from the first bytes.
"""

import bz2
import gzip
import io
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from drlib.analysis.reading_notes import ReadingNotes
from drlib.validation import require

_SURROGATE = re.compile("[\ud800-\udfff]")
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")  # in JSON text
_BLANKS = re.compile(r"[\s]*")


def iter_rows(path: Path, notes: ReadingNotes, size: int = 16) -> Iterator[tuple[int, dict]]:
    """Yield the rows of a file, numbered from 1 (JSON lines: by line).

    Args:
        path: JSON lines, JSON or Parquet file; JSON may be compressed (gzip, bzip2, xz, zstd).
        notes: counts the repaired texts.
        size: number of rows of a Parquet file to read at a time.

    Raises:
        ValueError: the file is damaged or in another format; the message names file and line.

    """
    with open(path, "rb") as file:
        head = file.read(6)
    if path.suffix == ".parquet" or head.startswith(b"PAR1"):
        yield from enumerate(_iter_parquet(path, size), 1)
        return
    if head.startswith(b"PK\x03\x04"):
        raise ValueError(f"{path} is a zip archive; unpack it and pass the file inside")
    opener = next((opens for magic, opens in _OPENERS.items() if head.startswith(magic)), None)
    try:
        with opener(path) if opener else open(path, "rb") as data:
            encoding = json.detect_encoding(data.read(4))
            data.seek(0)
            if not encoding.startswith("utf-8"):
                data = io.TextIOWrapper(data, encoding, errors="surrogatepass", newline="\n")
            yield from _iter_json(path, data, notes)
    except (OSError, EOFError, UnicodeError, lzma.LZMAError, zlib.error) as error:
        raise ValueError(f"{path} is truncated or damaged ({error}); copy it again") from error


def _open_zstd(path: Path) -> io.BytesIO:
    """Decompress a zstd file in memory."""
    with pa.OSFile(str(path)) as file, pa.CompressedInputStream(file, "zstd") as stream:
        return io.BytesIO(stream.read())


# first bytes of compressed files
_OPENERS: dict[bytes, Callable] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
    b"\x28\xb5\x2f\xfd": _open_zstd,
}


def _iter_parquet(path: Path, size: int) -> Iterator[dict]:
    """Yield the rows of a Parquet file, `size` at a time."""
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(size):
                yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} is truncated or not a Parquet file ({error})") from error


def _iter_json(path: Path, data, notes: ReadingNotes) -> Iterator[tuple[int, dict]]:
    """Yield the rows of JSON lines, or of a JSON document if the first line is not an object."""
    lines = ((n, _decode(path, n, line)) for n, line in enumerate(data, 1))
    lines = ((n, text) for n, text in lines if text.strip())
    first = next(lines, None)
    if first is None:
        return
    everything = chain([first], lines)
    try:
        is_document = isinstance(json.loads(first[1]), list)
    except (ValueError, RecursionError):  # the first line of a pretty-printed object
        is_document = True
    if is_document:
        yield from _iter_document(path, first[0], "".join(t for _, t in everything), notes)
        return
    for n, text in everything:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise _build_json_error(path, n, error) from error
        is_odd = bool(_SURROGATE_ESCAPE.search(text))
        yield n, _check_row(value, is_odd, f"{path}, line {n}", notes)


def _decode(path: Path, n: int, line: str | bytes) -> str:
    """Decode a line of UTF-8; half surrogate pairs are repaired later."""
    if isinstance(line, str):
        return line
    try:
        return line.decode("utf-8", "surrogatepass").removeprefix("\ufeff" if n == 1 else "")
    except UnicodeError as error:
        raise _build_json_error(path, n, error) from error


def _iter_document(
    path: Path, line: int, text: str, notes: ReadingNotes
) -> Iterator[tuple[int, dict]]:
    """Yield the rows of an array, of pretty-printed objects, or of one conversation per line."""
    decoder = json.JSONDecoder()
    is_odd = bool(_SURROGATE_ESCAPE.search(text))
    at, n = _skip_blanks(text, 0), 0
    while at < len(text):
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            lost = line - 1 + getattr(error, "lineno", 1)
            raise _build_json_error(path, lost, error) from error
        at = _skip_blanks(text, at)
        for element in _split_array(value):
            n += 1
            yield n, _check_row(element, is_odd, f"{path}, row {n}", notes)


def _skip_blanks(text: str, at: int) -> int:
    """Return the position of the first character from `at` that is not blank."""
    return _BLANKS.match(text, at).end()


def _split_array(value: Any) -> list:
    """Return the rows of a top-level value; an array of messages is one row."""
    if not isinstance(value, list):
        return [value]
    for name, field in (("role", "messages"), ("from", "conversations")):
        if value and all(isinstance(one, dict) and name in one for one in value):
            return [{field: value}]
    return value


def _check_row(value: Any, is_odd: bool, where: str, notes: ReadingNotes) -> dict:
    """Return an object, with repaired texts if it may have surrogates; else raise ValueError."""
    require(isinstance(value, dict), f"{where} is not a JSON object; pass one object per rollout")
    if is_odd:
        value = repair_texts(value, notes)
    return value


def _build_json_error(path: Path, n: int, error: Exception) -> ValueError:
    """Return the error of a line that is not JSON."""
    return ValueError(f"{path}, line {n} is not valid JSON ({error}): is the file truncated?")


def repair_texts(value: Any, notes: ReadingNotes | None) -> Any:
    """Return the value with half surrogate pairs in its texts replaced by U+FFFD."""
    if isinstance(value, str):
        return repair_text(value, notes)
    if isinstance(value, list):
        return [repair_texts(one, notes) for one in value]
    if isinstance(value, dict):
        return {repair_text(k, notes): repair_texts(one, notes) for k, one in value.items()}
    return value


def repair_text(text: str, notes: ReadingNotes | None = None) -> str:
    """Return the text with half surrogate pairs replaced by U+FFFD; two halves are joined."""
    if not _SURROGATE.search(text):
        return text
    repaired = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if notes is not None:
        notes.repaired["texts with half surrogate pairs"] += "\ufffd" in repaired
    return repaired
