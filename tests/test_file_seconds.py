"""Measured seconds of test files: sums by hand, and no file that is gone."""

import json

from drlib.config import ROOT
from tests import file_seconds


def test_total_sums_processes_and_leaves_out_fast_files(tmp_path):
    rows = {"1": [("a.py", 0.5), ("b.py", 2.0)], "2": [("a.py", 0.75), ("c.py", 0.9)]}
    for process, lines in rows.items():
        (tmp_path / process).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert file_seconds.total(tmp_path) == {"b.py": 2.0, "a.py": 1.2}
    assert [*file_seconds.total(tmp_path)] == ["b.py", "a.py"]


def test_listed_files_exist_slowest_first(request):
    seconds = file_seconds.read()
    assert all((ROOT / name).exists() for name in seconds)
    assert [*seconds.values()] == sorted(seconds.values(), reverse=True)
    assert file_seconds.name_of(request.node) == "tests/test_file_seconds.py"


def test_slow_files_start_first_and_are_marked(request):
    """In a run of one file this says little; `make test` has all of them."""
    seconds = file_seconds.read()
    times = [seconds.get(file_seconds.name_of(item), 0) for item in request.session.items]
    assert times == sorted(times, reverse=True)
    for item, used in zip(request.session.items, times):
        assert (item.get_closest_marker("slow") is not None) == (used >= file_seconds.SLOW_S)


def test_times_are_written_when_asked(tmp_path, monkeypatch, request):
    monkeypatch.setenv(file_seconds.FOLDER, str(tmp_path))
    measured = file_seconds.pytest_runtest_protocol(request.node)
    next(measured)
    sum(number**2 for number in range(200_000))
    assert next(measured, "ended") == "ended"
    (file,) = tmp_path.iterdir()
    name, used = json.loads(file.read_text())
    assert name == "tests/test_file_seconds.py" and 0 < used < 10
