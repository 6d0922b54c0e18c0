"""Readers of benchmarks on damaged files: an error that names the file, or every row.

Run: python -m pytest tests/test_evaluation_benchmark_bytes.py
"""

import csv
import io
import json
import random

import openpyxl
import pyarrow.parquet
import pytest

from drlib.evaluation.benchmarks import BenchmarkError, load_benchmark
from tests.random_files import change_bytes, memory_folder
from tests.test_evaluation_benchmarks import (
    FIXTURES,
    encrypt,
    lines,
    parquet,
    separated,
    sheet,
    whole,
)

WRITERS = {
    "csv": separated,
    "tsv": lambda path, rows: separated(path, rows, "\t"),
    "jsonl": lines,
    "json": whole,
    "parquet": parquet,
    "xlsx": sheet,
}
GENERIC = [{"id": f"g{i}", "question": f"q{i}", "answer": f"a{i}"} for i in range(3)]
FILES = 10_000  # per format


def valid_files(suffix, folder):
    """Return (benchmark, content) of a valid file of each benchmark with this format."""
    found = []
    for name, (write, file, row, _) in sorted(FIXTURES.items()):
        if file.endswith(f".{suffix}"):
            found.append((name, write(folder / file, [row]).read_bytes()))
    path = WRITERS[suffix](folder / f"generic.{suffix}", GENERIC)
    return [*found, ("generic", path.read_bytes())]


def count_rows(content, suffix):
    """Count the rows of a readable file, without the code under test."""
    if suffix == "parquet":
        return pyarrow.parquet.ParquetFile(io.BytesIO(content)).metadata.num_rows
    if suffix == "xlsx":
        cells = openpyxl.load_workbook(io.BytesIO(content)).worksheets[0].iter_rows(min_row=2)
        return sum(any(cell.value is not None for cell in row) for row in cells)
    text = content.decode("utf-8-sig")
    if suffix == "jsonl":
        return sum(bool(line.strip()) for line in text.split("\n"))
    if suffix == "json":
        data = json.loads(text)
        return len(data["data"] if isinstance(data, dict) else data)
    separator = {"csv": ",", "tsv": "\t"}[suffix]
    return sum(map(bool, csv.reader(io.StringIO(text, newline=""), delimiter=separator))) - 1


@pytest.mark.parametrize("suffix", sorted(WRITERS))
def test_random_bytes_never_crash(suffix):
    """Noise, and valid files with a few changed bytes, of every benchmark with this format."""
    draws = random.Random(suffix)
    read = 0
    with memory_folder() as folder:
        valid = valid_files(suffix, folder)
        path = folder / f"a.{suffix}"
        for number in range(FILES):
            name, content = valid[number // 2 % len(valid)]
            damaged = change_bytes(content, draws) if number % 2 else draws.randbytes(number % 64)
            path.write_bytes(damaged)
            try:
                items = load_benchmark(name, path)
            except BenchmarkError as error:
                assert path.name in str(error) or ".csv" in str(error)
                continue
            read += 1
            assert len(items) == count_rows(damaged, suffix)
    assert read > 100


VALUES = [
    *(None, True, 0, -1, 1e308, float("nan"), float("inf"), 10**400),
    *("", " ", "x", "\x00", "\ud800", "x" * 5000, "[1]", "{1: 2}", "{[]: 1}", "[" * 999, "../.."),
    *([], [None], [[]], [["t", "s"]], [["t", [1]]], [{}], [{"title": 1}], ["x"]),
    *({}, {"title": 3, "sentences": 3}, {"title": [1], "sentences": []}, {"docid": [1]}),
    *("####", "?", "1" * 4301, "0" * 4301),
]


@pytest.mark.parametrize("name", sorted(FIXTURES))
def test_values_of_other_kinds_never_crash(name):
    """Every field with every value, alone and encrypted, and without the field."""
    _, _, row, _ = FIXTURES[name]
    with memory_folder() as folder:
        path = FIXTURES[name][0](folder / FIXTURES[name][1], [row])  # and the files beside it
        path = folder / "a.jsonl"
        for field in row:
            for value in [*VALUES, *(encrypt(text, b"canary-7") for text in (" ", "\x00", "x"))]:
                path.write_text(json.dumps(row | {field: value}) + "\n", encoding="utf-8")
                try:
                    items = load_benchmark(name, path)
                except BenchmarkError as error:
                    assert "a.jsonl" in str(error)
                    continue
                assert len(items) == 1 and items[0].question.strip()
                assert all(answer.strip() for answer in items[0].answers)
            path.write_text(json.dumps({k: v for k, v in row.items() if k != field}) + "\n")
            try:
                assert len(load_benchmark(name, path)) == 1
            except BenchmarkError as error:
                assert "a.jsonl, row 1, field" in str(error)
