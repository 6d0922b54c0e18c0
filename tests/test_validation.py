"""Core modules (files, startup, task), light imports, and the examples in docstrings."""

import doctest
import importlib
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import drlib
from drlib.files import (
    WriteError,
    append_json_line,
    iter_json_lines,
    read_json_lines,
    write_atomic,
    write_json_lines,
)
from drlib.task import Task, is_accepted, is_correct

ROOT = Path(__file__).resolve().parents[1]


def test_version_has_a_single_source():
    file = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert file["project"]["dynamic"] == ["version"] and "version" not in file["project"]
    assert file["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "drlib.__version__"}
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == drlib.__version__


# Commands that need no model start fast; importing torch alone takes seconds.
LIGHT = (
    "drlib.files",
    "drlib.validation",
    "drlib.task",
    "drlib.trajectory",
    "drlib.config",
    "drlib.chat.tool_calls",
    "drlib.chat.template",
    "drlib.endpoint",
    "drlib.worlds",
    "drlib.sandbox",
    "drlib.tools",
    "drlib.questions",
    "drlib.demonstrations",
    "drlib.intervals",
    "drlib.cli.train",
    "drlib.cli.report",
)


@pytest.mark.parametrize("name", LIGHT)
def test_core_modules_import_no_model_library(name):
    program = (
        f"import sys, {name}\n"
        "print([m for m in ('torch', 'transformers', 'datasets', 'openai') if m in sys.modules])"
    )
    completed = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert completed.stdout == "[]\n"


EXAMPLES = (
    "drlib.registry",
    "drlib.task",
    "drlib.worlds",
    "drlib.worlds.library",
    "drlib.worlds.small",
    "drlib.tools.calculator",
    "drlib.tools.definitions",
    "drlib.tools.toolbox",
)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_in_docstrings_run(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted and not result.failed


# ---------------------------------------------------------------------------------------------
# files


@pytest.mark.parametrize(
    "content", ["é\n", "é\n".encode(), lambda path: path.write_bytes("é\n".encode())]
)
def test_write_atomic_accepts_text_bytes_and_functions(tmp_path, content):
    path = tmp_path / "a" / "new folder" / "file"
    assert write_atomic(str(path), content) == path
    assert path.read_bytes() == "é\n".encode()
    assert [p.name for p in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("fault", [OSError("no space"), RuntimeError("no space"), ValueError("x")])
def test_failed_write_keeps_the_old_file(tmp_path, fault):
    path = write_atomic(tmp_path / "file", "old")

    def fails(partial):
        partial.write_text("half")
        raise fault

    with pytest.raises(ValueError if isinstance(fault, ValueError) else WriteError) as raised:
        write_atomic(path, fails)
    if isinstance(raised.value, WriteError):
        assert str(path) in str(raised.value) and "disk full" in str(raised.value)
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["file"]


def test_file_in_place_of_a_folder_is_reported(tmp_path):
    write_atomic(tmp_path / "taken", "")
    with pytest.raises(WriteError, match="taken"):
        write_atomic(tmp_path / "taken" / "file", "text")


ROWS = [{"text": "a\u2028b\x85c \u00e9", "n": 1.5}, {}, [1, "half a pair: \ud800"], 3]


def test_json_lines_round_trip(tmp_path):
    path = write_json_lines(tmp_path / "rows.jsonl", ROWS[:3])
    append_json_line(path, ROWS[3])
    assert read_json_lines(path) == ROWS
    assert path.read_bytes().count(b"\n") == len(ROWS) and "é".encode() in path.read_bytes()
    assert list(iter_json_lines(path)) == list(enumerate(ROWS, 1))


def test_blank_lines_and_a_byte_order_mark_are_skipped(tmp_path):
    path = write_atomic(tmp_path / "rows.jsonl", b'\xef\xbb\xbf{"a": 1}\r\n\n  \n{"a": 2}')
    assert list(iter_json_lines(path)) == [(1, {"a": 1}), (4, {"a": 2})]


@pytest.mark.parametrize("bad", [b'{"a": 1', b"\xff", b"no", b"[" * 100_000])
def test_invalid_json_line_raises_when_reached(tmp_path, bad):
    path = write_atomic(tmp_path / "rows.jsonl", json.dumps({}).encode() + b"\n" + bad)
    rows = iter_json_lines(path)
    assert next(rows) == (1, {})
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 2 is not valid JSON"):
        next(rows)


# ---------------------------------------------------------------------------------------------
# answers


@pytest.mark.parametrize("collects", [True, False])
def test_frozen_imports_are_not_collected(collects):
    """In its own process, because freezing cannot be undone."""
    code = f"""
import gc
from drlib.startup import freeze_imports
if not {collects}: gc.disable()
before = gc.get_freeze_count()
try:
    with freeze_imports():
        inside, made = gc.isenabled(), [[] for _ in range(1000)]
        raise ValueError
except ValueError:
    pass
print(inside, gc.isenabled(), gc.get_freeze_count() - before > 1000)
"""
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT
    )
    assert completed.stdout == f"False {collects} True\n", completed.stderr


def test_none_is_incorrect_and_aliases_are_correct():
    task = Task("t", "?", "Oslo", "search", "w", aliases=("Christiania",))
    expected_by_answer = {
        None: False,
        "": False,
        "oslo.": True,
        " CHRISTIANIA ": True,
        "Bergen": False,
    }
    assert {answer: is_correct(answer, task) for answer in expected_by_answer} == expected_by_answer
    assert not is_accepted("Oslo", []) and not is_accepted(None, ["Oslo"])
    assert is_accepted("12.0", ["x", "12"])
